//! A record that is to be sent.

use std::sync::Arc;

use bytes::Bytes;

/// A record for a topic.
///
/// ```
/// use mainstem_client::Record;
///
/// let record = Record::new("orders", "hello").key("customer-7").header("trace", "4711");
/// assert_eq!(record.partition, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// The partition; chosen by the key, or in turn, if there is none.
    pub partition: Option<i32>,
    /// The key: records with equal keys go to one partition and keep their order.
    pub key: Option<Bytes>,
    /// The payload; none deletes the key from a compacted topic.
    pub value: Option<Bytes>,
    /// Names and values beside the payload; names may come twice.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// Milliseconds since 1970; the time of sending if there is none.
    pub timestamp_ms: Option<i64>,
}

impl Record {
    /// A record with a value.
    pub fn new(topic: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Record {
        Record {
            topic: topic.into(),
            partition: None,
            key: None,
            value: Some(value.into()),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    /// A record without a value: it deletes its key from a compacted topic.
    pub fn tombstone(topic: impl Into<Arc<str>>, key: impl Into<Bytes>) -> Record {
        let mut record = Record::new(topic, Bytes::new()).key(key);
        record.value = None;
        record
    }

    /// The same with a key.
    pub fn key(mut self, key: impl Into<Bytes>) -> Record {
        self.key = Some(key.into());
        self
    }

    /// The same with a further header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Record {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// The same for a partition.
    pub fn partition(mut self, partition: i32) -> Record {
        self.partition = Some(partition);
        self
    }

    /// The same with a timestamp.
    pub fn timestamp_ms(mut self, timestamp_ms: i64) -> Record {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }
}
