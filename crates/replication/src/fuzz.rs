//! Fuzz bodies of this crate: any bytes are read without a panic, and what is read is written as it was.

use crate::change;
use crate::copies::manifest::{Manifest, sealed_for_fuzz};
use crate::copies::question::{Answer, Question};
use crate::group::GroupId;
use crate::journal::{self, replay_for_fuzz};
use crate::link::{self, Frame};

/// `mainstem.groups`: any bytes give a state or a fault, and a state is what its own frames come to.
pub fn journal(data: &[u8]) {
    for magic in [b"msgroup1", b"msgroup2"] {
        journal_of_format(magic, data);
    }
}

fn journal_of_format(magic: &[u8], data: &[u8]) {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(data);
    let Some(groups) = replay_for_fuzz(&bytes) else { return };
    let mut again = magic.to_vec();
    for (group, state) in &groups {
        state.frames().iter().for_each(|frame: &journal::Frame| frame.encode(*group, 0, &mut again));
    }
    let read: Vec<(GroupId, _)> = replay_for_fuzz(&again).expect("our own journal").into_iter().collect();
    let frames = |state: &crate::journal::GroupState| state.frames();
    assert_eq!(read.len(), groups.len());
    for ((group, state), (same, other)) in read.iter().zip(&groups) {
        assert_eq!((group, frames(state)), (same, frames(other)));
    }
}

/// Bytes that came over a link: any are frames or a fault, and a frame is written as it was. They are taken for a change of members too.
pub fn link(data: &[u8]) {
    let _ = change::decode(data);
    let mut rest = data;
    while let Ok(Some((frame, len))) = link::decode(rest, 1 << 20) {
        let mut again = Vec::new();
        match &frame {
            Frame::Group(alias) => link::group(alias, &mut again),
            Frame::Heartbeats(heartbeats) => link::heartbeats(heartbeats, &mut again),
            Frame::Coalesced(heartbeats) => link::coalesced_heartbeats(heartbeats, &mut again),
            Frame::Repeat(repeat) => link::repeat(repeat, &mut again),
            Frame::RepeatAnswer(answer) => link::repeat_answer(answer, &mut again),
            Frame::Message { alias, message } => assert!(link::message(*alias, message, &mut again)),
            Frame::Append { alias, message, offset, batches } => {
                link::append_head(*alias, message, *offset, batches.len() as u32, &mut again);
                again.extend_from_slice(batches);
            }
            Frame::Call { id, kind, body } => link::call(*id, *kind, body, &mut again),
            Frame::Answer { id, status, body } => link::answer(*id, *status, body, &mut again),
        }
        let decoded = link::decode(&again, 1 << 20);
        assert_eq!(decoded, Ok(Some((frame, again.len()))));
        rest = &rest[len..];
    }
}

/// A manifest, a question about a copy, or its answer: any bytes are one or are refused, and it is written as it was. The bytes are
/// taken for the fields of a manifest too, which the checksum alone would refuse.
pub fn copies(data: &[u8]) {
    for bytes in [data, &sealed_for_fuzz(data)] {
        if let Ok(manifest) = Manifest::decode(bytes) {
            assert_eq!(manifest.encode(), bytes);
        }
    }
    if let Some(question) = Question::decode(data) {
        assert_eq!(question.encode(), data);
    }
    if let Some(answer) = Answer::decode(data) {
        assert_eq!(answer.encode(), data);
    }
}
