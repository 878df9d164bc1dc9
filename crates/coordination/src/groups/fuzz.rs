//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use super::{GroupConfig, GroupCoordinator};
use crate::time::Now;

/// The only partition here.
const PARTITION: i32 = 0;
/// Two days: longer than any time-out that a record can set.
const LONG_MS: u64 = 2 * 86_400_000;

/// Loads any records. The coordinator must come up, survive all time-outs, and give up what it holds to the last bit.
pub fn group_records(data: &[u8]) {
    let config = GroupConfig { offsets_topic_num_partitions: 1, ..GroupConfig::default() };
    let mut heart = GroupCoordinator::new(config);
    let now = Now { mono_ms: 1, wall_ms: 1 };
    heart.begin_load(PARTITION);
    let records = records(data);
    let replayed = heart.load(now, PARTITION, records.iter().copied());
    assert_eq!(replayed.applied + replayed.skipped + replayed.malformed, records.len() as u64);
    heart.finish_load(now, PARTITION);
    let later = Now { mono_ms: LONG_MS, wall_ms: i64::MAX };
    heart.tick(later);
    let appends: Vec<_> = heart.effects().collect();
    for effect in appends {
        if let super::Effect::Append { ticket, .. } = effect {
            heart.appended(later, ticket, Ok(()));
        }
    }
    heart.unload(later, PARTITION);
    assert_eq!(heart.stats(), Default::default());
    assert_eq!(heart.next_deadline_ms(), None);
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
    let len = u16::from_be_bytes(*len);
    if len == u16::MAX {
        return Some(None);
    }
    let (part, rest) = rest.split_at(usize::from(len).min(rest.len()));
    *data = rest;
    Some(Some(part))
}
