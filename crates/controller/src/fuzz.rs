//! Bodies for fuzzing: each takes any bytes and asserts what must hold for them.

use super::snapshot_format::{QuorumRecords, SnapshotFormatError, SnapshotRecord, decode, encode};
use super::state_machine::MetadataStateMachine;

/// Checks that any values of records are applied or refused, and that a refused one changes nothing.
///
/// The bytes are cut into records by prefixes of two bytes, little-endian: the lowest bit skips an offset, the rest
/// is the length.
pub fn metadata_replay(data: &[u8]) {
    let mut machine = MetadataStateMachine::default();
    let mut rest = data;
    let mut offset = 0;
    while let [low, high, tail @ ..] = rest {
        let prefix = u16::from_le_bytes([*low, *high]);
        let (record, tail) = tail.split_at(usize::from(prefix >> 1).min(tail.len()));
        rest = tail;
        offset += i64::from(prefix & 1);
        let before = machine.image().clone();
        match machine.replay(offset, record) {
            Ok(_) => {
                offset += 1;
                assert_eq!(machine.image().next_offset(), offset);
            }
            Err(_) => assert_eq!(machine.image(), &before, "a refused record changed the image"),
        }
        check_consistency(&machine);
    }
}

/// Checks that any bytes are a snapshot or refused. A snapshot has the same records when it is written again.
pub fn snapshot_decode(data: &[u8]) {
    let Ok((values, quorum)) = snapshot(data) else { return };
    let again = encode(&quorum, values.iter().cloned(), 0, 0);
    assert_eq!(snapshot(&again).expect("what was written is whole"), (values, quorum));
}

/// The values of the metadata's records, and the records of the quorum.
fn snapshot(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, QuorumRecords), SnapshotFormatError> {
    let (mut values, mut quorum) = (Vec::new(), QuorumRecords::default());
    decode(bytes, |record| match record {
        SnapshotRecord::Metadata(value) => values.push(value.to_vec()),
        SnapshotRecord::Control(kind, value) => quorum.note(kind, value),
    })?;
    Ok((values, quorum))
}

/// Checks what holds for every image.
fn check_consistency(machine: &MetadataStateMachine) {
    let image = machine.image();
    for topic in image.topics() {
        assert_eq!(image.topic(&topic.name), image.topic_by_id(topic.id));
    }
    let is_named = image.controllers_version() > 0;
    assert_eq!(
        image.controllers().any(|(_, controller)| controller.votes),
        is_named,
        "named nodes, and a vote"
    );
    assert_eq!(machine.ahead(), image, "nothing is decided, so nothing is ahead");
}
