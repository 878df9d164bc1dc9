//! Helpers of the tests of streams: journals in a temporary folder, and consumers that read to lists.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it")]

pub(crate) mod log;
pub(crate) mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mainstem_direct::{
    Address, Admin, Consumer, ConsumerConfig, ConsumerEvent, DirectError, Done, Journal, JournalOptions,
    Publisher, Serving, SliceRange,
};
use mainstem_records::{Batch, Scratch};

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The role of this process if a test has started it, from variables of these names: the role, the publisher's address, and a
/// runtime.
pub(crate) fn role(role: &str, address: &str) -> Option<(String, String, tokio::runtime::Runtime)> {
    let role = std::env::var(role).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Some((role, std::env::var(address).unwrap(), runtime))
}

pub(crate) fn open(directory: &Path) -> Journal {
    JournalOptions::new().queue(|queue| queue.segment_bytes(256 << 10)).open(directory).unwrap()
}

/// Serves at an address that stays free for the next publisher when this one stops.
pub(crate) async fn serve(journal: &Journal) -> Serving {
    Publisher::new().stream(journal).start(&format!("127.0.0.1:{}", mainstem_testkit::port())).await.unwrap()
}

/// Serves at an address that another publisher had a moment ago.
pub(crate) async fn serve_at(journal: &Journal, address: SocketAddr) -> Serving {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        match Publisher::new().stream(journal).start(&address.to_string()).await {
            Err(DirectError::Bind { .. }) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            served => return served.unwrap(),
        }
    }
}

pub(crate) fn address(of: SocketAddr) -> Address {
    Address::new(&of.to_string()).unwrap()
}

pub(crate) fn config(at: SocketAddr, stream: &str) -> ConsumerConfig {
    ConsumerConfig::new(address(at), stream, "analytics")
}

pub(crate) async fn admin(at: SocketAddr) -> Admin {
    Admin::connect(address(at)).await.unwrap()
}

/// A consumer that does each event when it comes.
pub(crate) struct Reader {
    pub(crate) consumer: Consumer,
    pub(crate) assigned: Option<(u64, SliceRange)>,
    pub(crate) next: i64,
    pub(crate) events: Vec<(i64, String)>,
    pub(crate) others: Vec<ConsumerEvent>,
}

impl Reader {
    pub(crate) fn new(config: ConsumerConfig) -> Reader {
        Reader {
            consumer: Consumer::new(config),
            assigned: None,
            next: 0,
            events: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Takes the next event of the subscription.
    pub(crate) async fn step(&mut self) -> Result<(), DirectError> {
        let event = tokio::time::timeout(DEADLINE, self.consumer.next()).await.expect("something comes")?;
        self.take(event);
        Ok(())
    }

    pub(crate) fn take(&mut self, event: ConsumerEvent) {
        match event {
            ConsumerEvent::Assigned { assignment, slices, offset, .. } => {
                (self.assigned, self.next) = (Some((assignment, slices)), offset);
            }
            ConsumerEvent::Records { assignment, from, next, batches, ranges } => {
                assert_eq!((Some(assignment), from), (self.assigned.map(|(one, _)| one), self.next));
                for range in ranges {
                    self.events.extend(records(&batches[range]));
                }
                self.next = next;
                self.done();
            }
            ConsumerEvent::Revoking { assignment } => {
                assert_eq!(self.assigned.take().map(|(one, _)| one), Some(assignment));
                self.consumer.release(Done { assignment, offset: self.next, finished: Vec::new() });
            }
            ConsumerEvent::Lost { .. } => {
                self.assigned = None;
                self.others.push(event);
            }
            other => self.others.push(other),
        }
    }

    pub(crate) fn done(&self) {
        let assignment = self.assigned.map_or(0, |(one, _)| one);
        self.consumer.positions().done(Done { assignment, offset: self.next, finished: Vec::new() });
    }

    /// Takes events until it has so many in all.
    pub(crate) async fn read(&mut self, count: usize) -> &[(i64, String)] {
        while self.events.len() < count {
            self.step().await.unwrap();
        }
        &self.events
    }

    /// Takes events until its position is this offset.
    pub(crate) async fn read_to(&mut self, offset: i64) {
        while self.next < offset {
            self.step().await.unwrap();
        }
    }

    pub(crate) fn offsets(&self) -> Vec<i64> {
        self.events.iter().map(|(offset, _)| *offset).collect()
    }
}

/// Offset and value of each record of a batch.
pub(crate) fn records(batch: &[u8]) -> Vec<(i64, String)> {
    let (batch, _) = Batch::split_first(batch).unwrap();
    assert!(batch.verify_crc());
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 64 << 20, &mut Scratch::default()).unwrap();
    records
        .map(|record| {
            let record = record.unwrap();
            (record.offset, String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned())
        })
        .collect()
}

/// Waits until something is true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_true: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !is_true().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
