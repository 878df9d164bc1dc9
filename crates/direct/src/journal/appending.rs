//! Appends to a journal.

use bytes::Bytes;
use mainstem_queue::Header;

use super::{FRAME_BYTES_MAX, Journal};
use crate::error::{DirectError, Result};
use crate::filter::TAG_HEADER;

/// Bytes of a batch beside its events' own.
const BATCH_BYTES: usize = 128;
/// Bytes of an event, and of each header, beside what is in them: lengths and deltas.
const EVENT_BYTES: usize = 32;
const HEADER_BYTES: usize = 8;

/// A type that can be appended. Bytes and texts can; the payloads of `mainstem-flow` can.
pub trait ToEvent {
    /// The event's value.
    ///
    /// # Errors
    /// The reason why it cannot be encoded.
    fn to_value(&self) -> Result<Bytes, String>;

    /// The value of the header `type`, for enums of events.
    fn event_type(&self) -> Option<&str> {
        None
    }
}

impl<T: AsRef<[u8]> + ?Sized> ToEvent for T {
    fn to_value(&self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self.as_ref()))
    }
}

/// An event with all optional parts.
///
/// ```
/// use mainstem_direct::NewEvent;
///
/// let cart = String::from("cart-7");
/// let event = NewEvent::new("tea").key(&cart).tag("vip").header("trace", "4711");
/// # let _ = event;
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewEvent {
    key: Option<Bytes>,
    value: Bytes,
    headers: Vec<(String, Bytes)>,
}

impl NewEvent {
    /// An event without a key.
    pub fn new(value: impl Into<Bytes>) -> NewEvent {
        NewEvent { value: value.into(), ..NewEvent::default() }
    }

    /// Sets the key. Events of equal keys are handled in their order.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> NewEvent {
        self.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> NewEvent {
        self.headers.push((name.into(), Bytes::copy_from_slice(value.as_ref())));
        self
    }

    /// Adds a tag, for filters.
    #[must_use]
    pub fn tag(self, tag: impl AsRef<[u8]>) -> NewEvent {
        self.header(TAG_HEADER, tag)
    }

    /// Sets the header `type`.
    #[must_use]
    pub fn event_type(self, name: impl AsRef<[u8]>) -> NewEvent {
        self.header("type", name)
    }

    fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER_BYTES);
        self.key.as_ref().map_or(0, Bytes::len) + self.value.len() + headers.sum::<usize>() + EVENT_BYTES
    }

    fn headers(&self) -> Vec<Header<'_>> {
        self.headers.iter().map(|(name, value)| Header { key: name.as_bytes(), value: Some(value) }).collect()
    }
}

fn check_size(bytes: usize) -> Result<()> {
    let max = FRAME_BYTES_MAX - BATCH_BYTES;
    if bytes > max {
        return Err(DirectError::TooLarge { bytes, max });
    }
    Ok(())
}

impl Journal {
    /// Appends an event; returns its offset when it is on disk. Concurrent appends share a sync.
    ///
    /// If the future is dropped, the event may be in the journal all the same. While the process has no descriptor or no memory for a
    /// sync, appends wait.
    ///
    /// # Errors
    /// [`DirectError::TooLarge`], and [`DirectError::Queue`] if the disk is full: the event is not in the journal. [`DirectError::Io`]
    /// if a sync has failed: it may be in the journal or not, and all further appends fail.
    pub async fn append(&self, key: impl AsRef<[u8]>, event: &(impl ToEvent + ?Sized)) -> Result<i64> {
        let value = event.to_value().map_err(DirectError::Invalid)?;
        let new = NewEvent::new(value).key(key);
        self.append_event(match event.event_type() {
            Some(name) => new.event_type(name),
            None => new,
        })
        .await
    }

    /// The same for an event with optional parts.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub async fn append_event(&self, event: NewEvent) -> Result<i64> {
        check_size(event.size())?;
        self.append_by(|appender| {
            Ok(appender.append_with(event.key.as_deref(), &event.value, &event.headers(), None)?)
        })
        .await
    }

    /// Appends events as one batch, which is seen whole or not at all. Returns the offset of the first one.
    ///
    /// # Errors
    /// As [`Journal::append`]; [`DirectError::Invalid`] if there is none.
    pub async fn append_many(&self, events: impl IntoIterator<Item = NewEvent>) -> Result<i64> {
        let events: Vec<NewEvent> = events.into_iter().collect();
        if events.is_empty() {
            return Err(DirectError::Invalid("there is no event to append".to_owned()));
        }
        check_size(events.iter().map(NewEvent::size).sum())?;
        self.append_by(|appender| {
            let mut batch = appender.batch();
            for event in &events {
                batch.push_with(event.key.as_deref(), &event.value, &event.headers(), None)?;
            }
            Ok(batch.commit()?)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JournalOptions;

    #[tokio::test]
    async fn keys_and_values_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let journal = JournalOptions::new().open(dir.path().join("cart")).unwrap();
        let (key, value) = (String::from("cart-7"), String::from("tea"));
        assert_eq!(journal.append(&key, &value).await.unwrap(), 0);
        assert_eq!(journal.append(key.as_str(), value.as_str()).await.unwrap(), 1);
        assert_eq!(journal.append(key.clone(), &value.into_bytes()).await.unwrap(), 2);
        assert_eq!(journal.append(Bytes::from(key), b"milk").await.unwrap(), 3);
        assert_eq!(journal.append([7_u8; 4], "bread").await.unwrap(), 4);
    }
}
