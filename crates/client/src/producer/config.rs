//! The configuration of a producer.

use std::sync::Arc;
use std::time::Duration;

use mainstem_records::{BatchOptions, Compression};

use super::queue::QueueConfig;
use crate::config::ClientConfig;
use crate::error::Error;

/// Requests in flight for a broker, and batches in flight for a partition: as many as a broker remembers of a producer.
const IN_FLIGHT_MAX: usize = 5;

/// The replicas that have to have a record before it counts as written.
///
/// ```
/// use mainstem_client::{Acks, ClientConfig, ProducerConfig};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let config = ProducerConfig::new(ClientConfig::new("127.0.0.1:9092")?);
/// assert_eq!(config.acks, Acks::All);
/// let config = config.acks(Acks::Leader);
/// assert!(!config.idempotence);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// None: the broker does not answer, and deliveries have no offset.
    None,
    /// The leader of the partition.
    Leader,
    /// All replicas that are in sync.
    #[default]
    All,
}

impl Acks {
    pub(crate) fn code(self) -> i16 {
        match self {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

/// Settings of a [`Producer`](crate::Producer); the defaults are those of the Java client.
///
/// ```
/// use mainstem_client::{Acks, ClientConfig, Compression, ProducerConfig};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let client = ClientConfig::new("127.0.0.1:9092")?;
/// let config = ProducerConfig::new(client).compression(Compression::Lz4).acks(Acks::Leader);
/// assert!(!config.idempotence, "it needs the acknowledgement of all replicas");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    /// The connections, and the waits between attempts.
    pub client: ClientConfig,
    /// The replicas that have to have a record. [`Acks::All`] by default.
    pub acks: Acks,
    /// Brokers recognise a batch that is sent again, so that no record is written twice and those of a partition stay in their
    /// order, with up to five requests in flight (KIP-98). On by default; needs [`Acks::All`]. Without it a record that
    /// is sent again may be written twice, and after later ones.
    pub idempotence: bool,
    /// The name under which the producer writes in transactions (KIP-98), the same when it comes back after a restart;
    /// none by default. Needs idempotence.
    pub transactional_id: Option<Arc<str>>,
    /// The longest time that a transaction may stay open before its coordinator aborts it. 60 s by default.
    pub transaction_timeout: Duration,
    /// Requests in flight for a broker. 5 by default, the most with idempotence. With 1 the records of a partition stay in
    /// their order without idempotence, too.
    pub in_flight_max: usize,
    /// Codec of the batches; none by default.
    pub compression: Compression,
    /// The codec's level; its own default if there is none (KIP-390). Snappy and lz4 have no other.
    pub compression_level: Option<i32>,
    /// The time that a batch waits for more records, unless a caller waits for memory. Less than `delivery_timeout`, 5 ms by
    /// default.
    pub linger: Duration,
    /// A batch takes records up to about this many bytes, before compression; a larger record has a batch of its own.
    /// 16 KiB by default.
    pub batch_bytes: usize,
    /// A record, and all batches of one request, have at most this many bytes before compression. A batch that is split for its
    /// size, or that takes a record of all of them, may have its own 61 more. 1 MiB by default.
    pub request_bytes_max: usize,
    /// The most bytes of all records that wait or are under way; [`Producer::send`](crate::Producer::send) waits until its
    /// record fits. 32 MiB by default.
    pub buffer_bytes: usize,
    /// The longest time that `send` waits for memory, and for the metadata of a topic. 60 s by default.
    pub max_block: Duration,
    /// The longest time until the outcome of a record is known, with all retries. 2 min by default.
    pub delivery_timeout: Duration,
}

impl ProducerConfig {
    /// The usual settings.
    pub fn new(client: ClientConfig) -> ProducerConfig {
        ProducerConfig {
            client,
            acks: Acks::All,
            idempotence: true,
            transactional_id: None,
            transaction_timeout: Duration::from_secs(60),
            in_flight_max: IN_FLIGHT_MAX,
            compression: Compression::None,
            compression_level: None,
            linger: Duration::from_millis(5),
            batch_bytes: 16 << 10,
            request_bytes_max: 1 << 20,
            buffer_bytes: 32 << 20,
            max_block: Duration::from_secs(60),
            delivery_timeout: Duration::from_secs(120),
        }
    }

    /// The same with other acknowledgements; any but [`Acks::All`] turn idempotence off.
    pub fn acks(mut self, acks: Acks) -> ProducerConfig {
        self.acks = acks;
        self.idempotence &= acks == Acks::All;
        self
    }

    /// The same with a codec.
    pub fn compression(mut self, compression: Compression) -> ProducerConfig {
        self.compression = compression;
        self
    }

    /// The same for transactions under a name; see [`Producer::init_transactions`](crate::Producer::init_transactions).
    pub fn transactional_id(mut self, id: impl Into<Arc<str>>) -> ProducerConfig {
        self.transactional_id = Some(id.into());
        self
    }

    /// The same with another time that a batch waits for more records.
    pub fn linger(mut self, linger: Duration) -> ProducerConfig {
        self.linger = linger;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |reason: &str| Err(Error::Invalid(reason.to_owned()));
        if self.idempotence && self.acks != Acks::All {
            return refused("idempotence needs acks to be All; set another acks or turn idempotence off");
        }
        if self.transactional_id.is_some() && !self.idempotence {
            return refused("transactions need idempotence");
        }
        if i32::try_from(self.transaction_timeout.as_millis()).is_err() {
            return refused("transaction_timeout is at most 24 days");
        }
        if self.in_flight_max == 0 || (self.idempotence && self.in_flight_max > IN_FLIGHT_MAX) {
            return refused("in_flight_max has to be more than 0, and at most 5 with idempotence");
        }
        if self.delivery_timeout <= self.linger {
            return refused(
                "delivery_timeout has to be more than linger, or no batch is sent before it is too late",
            );
        }
        if self.batch_bytes == 0 || self.request_bytes_max == 0 {
            return refused("batch_bytes and request_bytes_max have to be more than 0");
        }
        if self.request_bytes_max > i32::MAX as usize / 2 {
            return refused("request_bytes_max has to be less than 1 GiB");
        }
        if self.buffer_bytes < self.request_bytes_max {
            return refused(
                "buffer_bytes has to be at least request_bytes_max, or a large record never finds room",
            );
        }
        if self.buffer_bytes > tokio::sync::Semaphore::MAX_PERMITS {
            return refused("buffer_bytes is more than can be counted");
        }
        Ok(())
    }

    pub(crate) fn queue(&self) -> QueueConfig {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        QueueConfig {
            batch_bytes: self.batch_bytes.min(self.request_bytes_max),
            linger_ms: ms(self.linger),
            delivery_timeout_ms: ms(self.delivery_timeout),
            retry_backoff_ms: ms(self.client.retry_backoff),
            retry_backoff_max_ms: ms(self.client.retry_backoff_max),
            in_flight_max: self.in_flight_max,
            idempotent: self.idempotence,
            is_transactional: self.transactional_id.is_some(),
            options: BatchOptions {
                compression: self.compression,
                level: self.compression_level,
                is_transactional: self.transactional_id.is_some(),
                ..BatchOptions::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused() {
        let config = || ProducerConfig::new(ClientConfig::new("a:1").unwrap());
        assert_eq!(config().check(), Ok(()));
        for wrong in [
            ProducerConfig { acks: Acks::Leader, ..config() },
            ProducerConfig { batch_bytes: 0, ..config() },
            ProducerConfig { buffer_bytes: 1000, ..config() },
            ProducerConfig { in_flight_max: 0, ..config() },
            ProducerConfig { in_flight_max: 6, ..config() },
            ProducerConfig { delivery_timeout: Duration::from_secs(1), ..config() }
                .linger(Duration::from_secs(1)),
        ] {
            assert!(matches!(wrong.check(), Err(Error::Invalid(_))), "{wrong:?}");
        }
    }
}
