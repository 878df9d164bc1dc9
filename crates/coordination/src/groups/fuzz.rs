//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use mainstem_records::{ProducerEpoch, ProducerId};

use super::{Effect, GroupConfig, GroupCoordinator, LogEntry, Producer, TransactionEnd};
use crate::time::Now;

/// The only partition here.
const PARTITION: i32 = 0;
/// Two days: longer than any time-out that a record can set.
const LONG_MS: u64 = 2 * 86_400_000;
/// The number of producers that have transactions.
const PRODUCERS: i64 = 4;

/// Loads any records, some of them of transactions that end or stay open. The coordinator must load them, survive all time-outs, end open
/// transactions, and free all that it holds in the end.
pub fn group_records(data: &[u8]) {
    let config = GroupConfig { offsets_topic_num_partitions: 1, ..GroupConfig::default() };
    let mut coordinator = GroupCoordinator::new(config);
    let now = Now { mono_ms: 1, wall_ms: 1 };
    let mut loader = coordinator.begin_load(PARTITION);
    let entries = entries(data);
    let replayed = loader.load(now, PARTITION, entries.iter().copied());
    assert_eq!(replayed.applied + replayed.skipped + replayed.malformed, entries.len() as u64);
    coordinator.finish_load(now, PARTITION, loader);
    let later = Now { mono_ms: LONG_MS, wall_ms: i64::MAX };
    coordinator.tick(later);
    succeed(&mut coordinator, later);
    // The last producer's transaction is open when the partition is unloaded.
    for id in 1..PRODUCERS {
        let end = TransactionEnd {
            producer: Producer { id: ProducerId::new(id), epoch: ProducerEpoch::ZERO },
            committed: id % 2 == 0,
        };
        let ticket = coordinator.transaction_ended(later, PARTITION, end).expect("it is served");
        coordinator.appended(later, ticket, Ok(()));
    }
    coordinator.tick(later);
    succeed(&mut coordinator, later);
    coordinator.unload(later, PARTITION);
    assert_eq!(coordinator.stats(), Default::default());
    assert_eq!(coordinator.next_deadline_ms(), None);
}

/// Lets all appends of the coordinator succeed.
fn succeed(coordinator: &mut GroupCoordinator, now: Now) {
    let effects: Vec<_> = coordinator.effects().collect();
    for effect in effects {
        if let Effect::Append { ticket, .. } = effect {
            coordinator.appended(now, ticket, Ok(()));
        }
    }
}

/// Cuts the data into entries of the log, each as in [`records`] except for the highest four bits of the length of a key. With 01 and the
/// number of a producer there, the entry is a record of the producer's transaction. With 10 it is the end of that transaction and nothing
/// else: a commit if the word is odd.
fn entries(mut data: &[u8]) -> Vec<LogEntry<'_>> {
    let mut entries = Vec::new();
    while let Some((word, rest)) = data.split_first_chunk::<2>() {
        data = rest;
        entries.push(entry(u16::from_be_bytes(*word), &mut data));
    }
    entries
}

fn entry<'a>(word: u16, data: &mut &'a [u8]) -> LogEntry<'a> {
    let id = ProducerId::new(i64::from((word >> 12) & 3) + 1);
    let producer = Producer { id, epoch: ProducerEpoch::ZERO };
    let (len, producer) = match word >> 14 {
        1 => (word & 0x0fff, Some(producer)),
        2 => return LogEntry::End(TransactionEnd { producer, committed: word % 2 == 1 }),
        _ => (word, None),
    };
    let key = bytes(data, len).unwrap_or_default();
    LogEntry::Record { key, value: part(data).flatten(), producer }
}

/// Serves any requests to consumer groups: no partition is held by two members, and nothing is left at the end.
pub fn consumer_groups(data: &[u8]) {
    super::consumer::fuzz::requests(data);
}

/// Cuts the data into records: two bytes of length and a key, two bytes of length and a value; 0xffff is a tombstone.
pub(crate) fn records(mut data: &[u8]) -> Vec<(&[u8], Option<&[u8]>)> {
    let mut records = Vec::new();
    while let Some(key) = part(&mut data) {
        records.push((key.unwrap_or_default(), part(&mut data).flatten()));
    }
    records
}

fn part<'a>(data: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (len, rest) = data.split_first_chunk::<2>()?;
    *data = rest;
    Some(bytes(data, u16::from_be_bytes(*len)))
}

/// The next `len` bytes, or those that are left.
fn bytes<'a>(data: &mut &'a [u8], len: u16) -> Option<&'a [u8]> {
    if len == u16::MAX {
        return None;
    }
    let (part, rest) = data.split_at(usize::from(len).min(data.len()));
    *data = rest;
    Some(part)
}
