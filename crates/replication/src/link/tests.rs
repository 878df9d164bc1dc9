use super::*;
use crate::coalesced::{Repeat, RepeatAnswer};
use crate::group::Configuration;
use crate::journal::Start;
use crate::snapshots::{SNAPSHOT_BYTES_MAX, SnapshotOffer};
use crate::store::{is_stub, offer_of, snapshot_of, stub};
use mainstem_records::HEADER_BYTES;
use proptest::prelude::*;
use raft::eraftpb::{Entry, EntryType, Message};

const BATCHES_MAX: usize = 1 << 20;

fn alias() -> Alias {
    let group = GroupId { topic_id: [7; 16], partition: 3 };
    Alias { number: 9, group, from: ReplicaId::new(1, 1), to: ReplicaId::new(2, 4) }
}

fn append(entries: Vec<Entry>) -> Message {
    let (term, log_term, index, commit) = (5, 4, 10, 8);
    let mut message =
        Message { msg_type: MessageType::MsgAppend, term, log_term, index, commit, ..Message::default() };
    message.set_entries(entries.into());
    message
}

fn answer() -> Message {
    Message {
        msg_type: MessageType::MsgAppendResponse,
        term: 5,
        index: 12,
        commit: 8,
        reject: true,
        reject_hint: 3,
        context: bytes::Bytes::from_static(b"c"),
        ..Message::default()
    }
}

fn three_batches_in_two_terms() -> (Message, Vec<u8>) {
    let noop = Entry { index: 13, term: 5, ..Entry::default() };
    let change = Entry {
        index: 14,
        term: 5,
        entry_type: EntryType::EntryConfChangeV2,
        data: bytes::Bytes::from_static(&[1, 2]),
        ..Entry::default()
    };
    let message = append(vec![stub(11, 4), stub(12, 4), noop, change, stub(15, 5)]);
    (message, vec![0xAB; 3 * mainstem_records::HEADER_BYTES])
}

fn append_frame(message: &Message, batches: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    append_head(9, message, 77, batches.len() as u32, &mut out);
    out.extend_from_slice(batches);
    out
}

#[track_caller]
fn check(bytes: &[u8], expected: Frame<'_>) {
    assert_eq!(decode(bytes, BATCHES_MAX), Ok(Some((expected, bytes.len()))));
    for len in 0..bytes.len() {
        assert_eq!(decode(&bytes[..len], BATCHES_MAX), Ok(None), "{len} of {} bytes", bytes.len());
    }
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    let mut out = Vec::new();
    group(&alias(), &mut out);
    check(&out, Frame::Group(alias()));
    let beats = vec![Heartbeat { alias: 1, term: 2, commit: 3 }, Heartbeat { alias: 2, term: 2, commit: 9 }];
    out.clear();
    heartbeats(&beats, &mut out);
    check(&out, Frame::Heartbeats(beats.clone()));
    out.clear();
    heartbeats(&[], &mut out);
    check(&out, Frame::Heartbeats(Vec::new()));
    out.clear();
    coalesced_heartbeats(&beats, &mut out);
    check(&out, Frame::Coalesced(beats));
    let said = Repeat { number: 1 << 40, withdrawn: vec![7, 8] };
    out.clear();
    repeat(&said, &mut out);
    check(&out, Frame::Repeat(said));
    let said = RepeatAnswer { number: 3, refused: Vec::new() };
    out.clear();
    repeat_answer(&said, &mut out);
    check(&out, Frame::RepeatAnswer(said));
    out.clear();
    assert!(message(9, &answer(), &mut out));
    check(&out, Frame::Message { alias: 9, message: answer() });
    let (message, batches) = three_batches_in_two_terms();
    let bytes = append_frame(&message, &batches);
    check(&bytes, Frame::Append { alias: 9, message, offset: 77, batches: &batches });
    let empty = append(Vec::new());
    let bytes = append_frame(&empty, &[]);
    check(&bytes, Frame::Append { alias: 9, message: empty, offset: 77, batches: &[] });
}

#[test]
fn a_read_index_keeps_what_it_asks_for() {
    let mut asked = Message { msg_type: MessageType::MsgReadIndex, term: 1, ..Message::default() };
    let data = bytes::Bytes::from_static(b"request 1");
    asked.set_entries(vec![Entry { data, ..Entry::default() }].into());
    let mut out = Vec::new();
    assert!(message(1, &asked, &mut out));
    check(&out, Frame::Message { alias: 1, message: asked });
}

fn offer() -> SnapshotOffer {
    let configuration = Configuration {
        voters: vec![ReplicaId::new(1, 1), ReplicaId::new(2, 4)],
        learners: vec![ReplicaId::new(3, 1)],
        ..Configuration::default()
    };
    let start = Start { index: 12, term: 5, offset: 77 };
    SnapshotOffer { start, configuration, len: 1 << 20, crc: 0xFFFF_0001 }
}

fn offered(offer: &SnapshotOffer) -> Vec<u8> {
    let mut said = Message { msg_type: MessageType::MsgSnapshot, term: 6, ..Message::default() };
    said.set_snapshot(snapshot_of(offer));
    let mut out = Vec::new();
    assert!(message(9, &said, &mut out));
    out
}

#[test]
fn an_offer_is_read_as_it_was_written() {
    let mut expected = Message { msg_type: MessageType::MsgSnapshot, term: 6, ..Message::default() };
    expected.set_snapshot(snapshot_of(&offer()));
    check(&offered(&offer()), Frame::Message { alias: 9, message: expected.clone() });
    assert_eq!(offer_of(expected.get_snapshot()), Some(offer()));
    let nothing = Message { msg_type: MessageType::MsgSnapshot, term: 6, ..Message::default() };
    let mut out = Vec::new();
    assert!(!message(9, &nothing, &mut out) && out.is_empty(), "it is not said what it is");
}

#[test]
fn an_offer_that_no_leader_makes_is_refused() {
    let whole = offer();
    let start = |index, term| Start { index, term, ..whole.start };
    let voters =
        |voters: &[ReplicaId]| Configuration { voters: voters.to_vec(), ..whole.configuration.clone() };
    let (one, learner) = (ReplicaId::new(1, 1), ReplicaId::new(3, 1));
    for malformed in [
        SnapshotOffer { start: start(12, 1 << 31), ..whole.clone() },
        SnapshotOffer { len: 0, ..whole.clone() },
        SnapshotOffer { len: SNAPSHOT_BYTES_MAX + 1, ..whole.clone() },
        SnapshotOffer { configuration: voters(&[]), ..whole.clone() },
        SnapshotOffer { configuration: voters(&[one, one]), ..whole.clone() },
        SnapshotOffer { configuration: voters(&[one, learner]), ..whole.clone() },
    ] {
        let mut out = Vec::new();
        let mut said = Message { msg_type: MessageType::MsgSnapshot, term: 6, ..Message::default() };
        said.set_snapshot(snapshot_of(&malformed));
        let is_refused = !message(9, &said, &mut out)
            || decode(&out, BATCHES_MAX) == Err(FrameError::Malformed("a snapshot"));
        assert!(is_refused, "{malformed:?}");
    }
}

/// A term that no leader epoch can be would be written, and the group could never append again. Each kind of frame that has one
/// is refused, whichever of its terms it is.
#[test]
fn a_term_beyond_all_leader_epochs_is_malformed() {
    const LAST: u64 = i32::MAX as u64;
    let is_malformed = |bytes: &[u8]| matches!(decode(bytes, BATCHES_MAX), Err(FrameError::Malformed(_)));
    let framed = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    for (term, is_beyond) in [(LAST, false), (LAST + 1, true), (u64::MAX, true)] {
        for msg_type in TYPES.into_iter().filter(|kind| *kind != MessageType::MsgAppend) {
            let mut plain = Message { msg_type, ..Message::default() };
            if matches!(msg_type, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp) {
                let data = bytes::Bytes::from_static(b"request 1");
                plain.set_entries(vec![Entry { data, ..Entry::default() }].into());
            }
            for said in [
                Message { term, ..plain.clone() },
                Message { log_term: term, ..plain.clone() },
                Message { commit_term: term, ..plain.clone() },
            ] {
                let bytes = framed(&|out| assert!(message(9, &said, out)));
                assert_eq!(is_malformed(&bytes), is_beyond, "{said:?}");
            }
        }
        let beats = [Heartbeat { alias: 1, term: 2, commit: 3 }, Heartbeat { alias: 2, term, commit: 3 }];
        for bytes in
            [framed(&|out| heartbeats(&beats, out)), framed(&|out| coalesced_heartbeats(&beats, out))]
        {
            assert_eq!(is_malformed(&bytes), is_beyond, "heartbeats of term {term}");
        }
        let noop = Entry { index: 11, term, ..Entry::default() };
        for said in [
            Message { term, ..append(vec![stub(11, 5)]) },
            Message { log_term: term, ..append(vec![stub(11, 5)]) },
            append(vec![stub(11, term)]),
            append(vec![noop, stub(12, 5)]),
        ] {
            let bytes = append_frame(&said, &[0xAB; mainstem_records::HEADER_BYTES]);
            assert_eq!(is_malformed(&bytes), is_beyond, "{said:?}");
        }
        let mut said = Message { msg_type: MessageType::MsgSnapshot, term, ..Message::default() };
        said.set_snapshot(snapshot_of(&offer()));
        let bytes = framed(&|out| assert!(message(9, &said, out)));
        assert_eq!(is_malformed(&bytes), is_beyond, "an offer in term {term}");
    }
}

#[test]
fn frames_have_the_bytes_that_the_format_says() {
    let mut out = Vec::new();
    heartbeats(&[Heartbeat { alias: 1, term: 2, commit: 3 }], &mut out);
    assert_eq!(out, [0, 0, 0, 21, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
    out.clear();
    repeat(&Repeat { number: 4, withdrawn: vec![2] }, &mut out);
    repeat_answer(&RepeatAnswer { number: 4, refused: vec![3] }, &mut out);
    let expected = [
        [0, 0, 0, 13, 8, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 2],
        [0, 0, 0, 13, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 3],
    ];
    assert_eq!(out, expected.concat());
    out.clear();
    append_head(9, &append(vec![stub(11, 5), stub(12, 5)]), 77, 200, &mut out);
    let mut expected = vec![0, 0, 1, 6, 4, 0, 0, 0, 9];
    for number in [5u64, 4, 10, 8, 77] {
        expected.extend_from_slice(&number.to_be_bytes());
    }
    expected.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2]);
    assert_eq!(out, expected);
}

/// A length, or a count, that the bytes do not bear out makes nothing large.
#[test]
fn what_a_peer_claims_is_refused_before_anything_is_reserved() {
    let too_long = |bytes: &[u8]| matches!(decode(bytes, BATCHES_MAX), Err(FrameError::TooLong { .. }));
    assert!(too_long(&[0xFF, 0xFF, 0xFF, 0xFF]));
    assert!(too_long(&[0, 16, 0, 1, KIND_HEARTBEATS]));
    let mut claimed = append_frame(&append(vec![stub(11, 5)]), &[0; 100]);
    let count_at = 4 + 1 + 4 + 40 + 4 + 1 + 8;
    claimed[count_at..count_at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(decode(&claimed, BATCHES_MAX), Err(FrameError::Malformed("an append")));
    let large = append_frame(&append(Vec::new()), &[0; 100]);
    assert!(decode(&large, 99).is_err() && decode(&large, 100).is_ok());
}

/// An entry takes several times as much memory as it has bytes in a frame.
#[test]
fn an_append_has_no_more_entries_than_its_bound() {
    const BATCHES_MAX: usize = 16 << 20;
    let noops = |count: u64| (11..11 + count).map(|index| Entry { index, term: 5, ..Entry::default() });
    let stubs = |count: u64| (11..11 + count).map(|index| stub(index, 5));
    let decoded = |entries: Vec<Entry>| {
        let batches = vec![0; entries.iter().filter(|entry| is_stub(entry)).count() * HEADER_BYTES];
        let frame = append_frame(&append(entries), &batches);
        decode(&frame, BATCHES_MAX).map(|frame| frame.is_some())
    };
    let (most, refused) = (ENTRIES_MAX as u64, Err(FrameError::Malformed("an append")));
    assert_eq!(decoded(noops(most).collect()), Ok(true));
    assert_eq!(decoded(noops(most + 1).collect()), refused);
    assert_eq!(decoded(stubs(most).collect()), Ok(true));
    assert_eq!(decoded(stubs(most + 1).collect()), refused);
    assert_eq!(
        decoded(stubs(most).chain([Entry { index: 11 + most, term: 5, ..Entry::default() }]).collect()),
        refused
    );
}

#[test]
fn what_a_replica_says_to_itself_is_not_sent() {
    for kind in [MessageType::MsgHup, MessageType::MsgBeat, MessageType::MsgPropose, MessageType::MsgAppend] {
        let mut out = Vec::new();
        assert!(!message(1, &Message { msg_type: kind, ..Message::default() }, &mut out) && out.is_empty());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz::link(&data);
    }

    #[test]
    fn damaged_frames_are_read(at in 0usize..300, value: u8) {
        let (message, batches) = three_batches_in_two_terms();
        let mut bytes = append_frame(&message, &batches);
        let at = at % bytes.len();
        bytes[at] = value;
        crate::fuzz::link(&bytes);
    }
}
