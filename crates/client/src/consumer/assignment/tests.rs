//! Effects of answers, seeks and new leaders on the next fetch.

use mainstem_records::{BatchBuilder, BatchOptions};
use mainstem_wire::Uuid;

use super::*;
use crate::config::ClientConfig;

fn key() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn config() -> ConsumerConfig {
    ConsumerConfig::new(ClientConfig::new("a:1").unwrap())
}

/// An assignment of one partition at an offset.
fn at(offset: i64) -> Assignment {
    let mut assignment = Assignment::default();
    assignment.assign([(key(), Position::Offset(offset).into())]);
    assignment
}

/// The next fetch of the one partition.
fn asked(assignment: &Assignment) -> Option<Wanted> {
    let wanted = assignment.wanted(&config());
    wanted.first().map(|wish| Wanted {
        topic_id: Uuid::default(),
        offset: wish.offset,
        leader_epoch: 0,
        generation: wish.generation,
    })
}

/// An answer with a batch of two records at an offset.
fn answer(assignment: &mut Assignment, asked: &Wanted, base_offset: i64) {
    let options = BatchOptions { base_offset, partition_leader_epoch: 0, ..BatchOptions::default() };
    let mut builder = BatchBuilder::new(options);
    builder.append(0, None, Some(b"a"), &[]).unwrap();
    builder.append(0, None, Some(b"b"), &[]).unwrap();
    let mut bytes = Vec::new();
    builder.finish(&mut bytes).unwrap();
    answer_bytes(assignment, asked, bytes);
}

fn answer_bytes(assignment: &mut Assignment, asked: &Wanted, bytes: Vec<u8>) {
    let arrived = Arrived { bytes: bytes.into(), aborted: vec![], end_offset: 100 };
    assignment.arrived(&key(), asked, arrived, Isolation::ReadUncommitted);
}

/// The lookups that are due if all leaders are known.
fn locate(assignment: &mut Assignment) -> Vec<OffsetLookup> {
    assignment.locate(|_| Some(())).into_iter().map(|(_, one)| one).collect()
}

/// Sets the leader epoch of the partition, in a cluster without topic ids.
fn lead(assignment: &mut Assignment, leader_epoch: i32) {
    assignment.lead(|_| Some((Uuid::ZERO, leader_epoch)), OutOfRange::Fail);
}

/// The epoch validations that are due if all leaders are known.
fn due_validations(assignment: &mut Assignment) -> Vec<EpochValidation> {
    assignment.due_validations(|_| Some(())).into_iter().map(|(_, one)| one).collect()
}

fn take(assignment: &mut Assignment) -> Option<Result<Vec<i64>, Error>> {
    loop {
        let unopened = match assignment.take().batch? {
            Ok(unopened) => unopened,
            Err(error) => return Some(Err(error)),
        };
        let outcome = unopened.open(&config(), &mut Scratch::default());
        if let Some(batch) = assignment.opened(unopened, outcome) {
            return Some(batch.map(|batch| batch.records().map(|record| record.unwrap().offset).collect()));
        }
    }
}

#[test]
fn a_held_partition_forgets_nothing_and_stops_no_other() {
    let other = TopicPartition::new("t", 1);
    let mut assignment = Assignment::default();
    let both = [key(), other.clone()].map(|key| (key, Position::Offset(0).into()));
    assignment.assign(both);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    let under_way = asked(&assignment).unwrap();
    assignment.set_held(&key(), true).unwrap();
    assignment.set_held(&key(), true).unwrap();
    assert_eq!(take(&mut assignment), None);
    answer(&mut assignment, &under_way, 2);
    let tight = ConsumerConfig { prefetch_bytes: 1, ..config() };
    let wanted: Vec<_> = assignment.wanted(&tight).iter().map(|wish| wish.key.clone()).collect();
    assert_eq!(wanted, [other], "what is held counts towards no bound, and no more is asked for");
    assert_eq!(take(&mut assignment), None);
    assignment.set_held(&key(), false).unwrap();
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])), "nothing has to be asked for again");
    assert_eq!(take(&mut assignment), Some(Ok(vec![2, 3])));
    assert_eq!(take(&mut assignment), None);
    assert_eq!(assignment.buffered_bytes, 0);
}

#[test]
fn a_seek_forgets_what_is_held() {
    let mut assignment = at(0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    assignment.set_held(&key(), true).unwrap();
    assignment.seek(&key(), Position::Offset(8)).unwrap();
    assert!(asked(&assignment).is_none(), "it is held still");
    assignment.set_held(&key(), false).unwrap();
    assert_eq!(take(&mut assignment), None);
    let after = asked(&assignment).unwrap();
    answer(&mut assignment, &after, 8);
    assert_eq!(take(&mut assignment), Some(Ok(vec![8, 9])));
    assert_eq!(take(&mut assignment), None);
    assert_eq!(assignment.buffered_bytes, 0);
}

#[test]
fn a_batch_that_is_opened_after_a_seek_is_not_handed_out() {
    let mut assignment = at(0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    let unopened = assignment.take().batch.unwrap().unwrap();
    assert_eq!(assignment.position(&key()), Ok(Some(0)), "what is not opened is not taken");
    assignment.seek(&key(), Position::Offset(8)).unwrap();
    let outcome = unopened.open(&config(), &mut Scratch::default());
    assert!(outcome.is_ok() && assignment.opened(unopened, outcome).is_none());
    assert_eq!(assignment.position(&key()), Ok(Some(8)));
}

#[test]
fn reading_goes_ahead_of_taking() {
    let mut assignment = at(1);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    let second = asked(&assignment).unwrap();
    assert_eq!((second.offset, assignment.position(&key())), (2, Ok(Some(1))));
    answer(&mut assignment, &second, 2);
    assert_eq!(take(&mut assignment), Some(Ok(vec![1])), "what was not asked for is left out");
    assert_eq!(take(&mut assignment), Some(Ok(vec![2, 3])));
    assert_eq!(take(&mut assignment), None);
    assert_eq!(assignment.lag(&key()), Ok(Some(96)));
}

#[test]
fn an_answer_counts_once_and_not_after_a_seek() {
    let mut assignment = at(0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    answer(&mut assignment, &first, 0);
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
    assert_eq!(take(&mut assignment), None);
    let before = asked(&assignment).unwrap();
    assignment.seek(&key(), Position::Offset(2)).unwrap();
    answer(&mut assignment, &before, 2);
    assert_eq!(take(&mut assignment), None, "the same offset, but asked for before the seek");
    let after = asked(&assignment).unwrap();
    answer(&mut assignment, &after, 2);
    assignment.seek(&key(), Position::Offset(0)).unwrap();
    assert_eq!(take(&mut assignment), None, "what was read ahead is forgotten");
    assert_eq!(assignment.buffered_bytes, 0);
}

#[test]
fn nothing_is_asked_for_while_enough_waits() {
    let mut assignment = at(0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    let tight = ConsumerConfig { prefetch_bytes: 1, ..config() };
    assert!(assignment.wanted(&tight).is_empty());
    assert!(assignment.wanted(&ConsumerConfig { partition_bytes_max: 1, ..config() }).is_empty());
    assert!(take(&mut assignment).is_some());
    assert!(assignment.take().has_freed_memory);
    assert_eq!(assignment.wanted(&tight).len(), 1);
}

#[test]
fn a_damaged_batch_stops_its_partition_until_a_seek() {
    let mut assignment = at(0);
    let first = asked(&assignment).unwrap();
    let mut builder = BatchBuilder::new(BatchOptions::default());
    builder.append(0, None, Some(b"a"), &[]).unwrap();
    let mut bytes = Vec::new();
    builder.finish(&mut bytes).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    answer_bytes(&mut assignment, &first, bytes);
    assert_eq!(take(&mut assignment).map(damaged), Some((0, Some(1))));
    assert_eq!((asked(&assignment), take(&mut assignment)), (None, None));
    assert_eq!(assignment.position(&key()), Ok(Some(0)));
    assignment.seek(&key(), Position::Offset(1)).unwrap();
    let wanted = asked(&assignment).unwrap();
    answer_bytes(&mut assignment, &wanted, vec![0; 100]);
    assert_eq!(take(&mut assignment).map(damaged), Some((1, None)), "not even a batch");
    assert_eq!(assignment.position(&key()), Ok(Some(1)));
}

/// The offset of damaged records, and the one at which to continue.
fn damaged(taken: Result<Vec<i64>, Error>) -> (i64, Option<i64>) {
    match taken {
        Err(Error::Damaged { partition, offset, next_offset, .. }) if partition == key() => {
            (offset, next_offset)
        }
        other => panic!("{other:?}"),
    }
}

/// A batch of one record.
fn batch_at(base_offset: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
    builder.append(0, None, Some(b"a"), &[]).unwrap();
    let mut bytes = Vec::new();
    builder.finish(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_end_of_a_damaged_batch_is_where_the_next_one_begins() {
    // The offset of the last record, less that of the first: bytes 23 to 26 (docs/format.md).
    for (delta, end) in [(1_000_i32, 1_001), (-7, -6)] {
        let mut first = batch_at(0);
        first[23..27].copy_from_slice(&delta.to_be_bytes());
        for (arrived, next_offset) in [
            ([first.clone(), batch_at(3)].concat(), Some(3)),
            // Without a next batch, only its own header says where it ends.
            (first, (end > 0).then_some(end)),
        ] {
            let mut assignment = at(0);
            let asked = asked(&assignment).unwrap();
            answer_bytes(&mut assignment, &asked, arrived);
            assert_eq!(take(&mut assignment).map(damaged), Some((0, next_offset)), "{delta}");
        }
    }
}

#[test]
fn a_partition_that_has_failed_keeps_its_position() {
    let mut assignment = at(0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    let behind = asked(&assignment).unwrap();
    assignment.out_of_range(&key(), &behind, gone(2), OutOfRange::Fail);
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
    assert_eq!(take(&mut assignment), Some(Err(gone(2))));
    assert_eq!((assignment.position(&key()), assignment.epoch_at(&key(), 2)), (Ok(Some(2)), 0));
    assignment.fail_topic("t", &gone(2));
    assert_eq!(take(&mut assignment), None, "it has failed already");
    assignment.seek(&key(), Position::End).unwrap();
    let sought = locate(&mut assignment);
    assignment.fail(&key(), sought[0].generation, gone(9));
    assert_eq!(take(&mut assignment), Some(Err(gone(9))));
    assert_eq!(assignment.position(&key()), Ok(None), "it was never found");
}

/// Answers that an offset does not exist.
fn gone(offset: i64) -> Error {
    Error::OutOfRange { partition: key(), offset, broker: "b:1".into() }
}

/// Four records in two answers that the caller has not taken, and the next fetch after them.
fn read_ahead() -> (Assignment, Wanted) {
    let mut assignment = at(0);
    for base_offset in [0, 2] {
        let next = asked(&assignment).unwrap();
        answer(&mut assignment, &next, base_offset);
    }
    let behind = asked(&assignment).unwrap();
    assert_eq!(behind.offset, 4);
    (assignment, behind)
}

#[test]
fn what_has_arrived_is_handed_out_before_an_offset_behind_it_is_missed() {
    for (then, next) in [
        (OutOfRange::Fail, None),
        (OutOfRange::Beginning, Some(Position::Beginning)),
        (OutOfRange::End, Some(Position::End)),
    ] {
        let (mut assignment, behind) = read_ahead();
        assignment.out_of_range(&key(), &behind, gone(4), then);
        for offsets in [vec![0, 1], vec![2, 3]] {
            assert_eq!((asked(&assignment), locate(&mut assignment)), (None, vec![]), "{then:?}");
            assert_eq!(take(&mut assignment), Some(Ok(offsets)), "{then:?}");
        }
        assert_eq!(take(&mut assignment), next.is_none().then(|| Err(gone(4))), "{then:?}");
        assert_eq!(take(&mut assignment), None);
        let sought = locate(&mut assignment);
        assert_eq!(sought.first().map(|one| one.position), next);
        assert_eq!(asked(&assignment), None);
    }
}

#[test]
fn an_offset_that_is_missed_where_nothing_waits_is_passed_at_once() {
    let mut assignment = at(7);
    let first = asked(&assignment).unwrap();
    let elsewhere = Wanted { offset: 6, ..first };
    assignment.out_of_range(&key(), &elsewhere, gone(6), OutOfRange::Fail);
    assert_eq!((take(&mut assignment), asked(&assignment)), (None, Some(first)), "it is not read there");
    assignment.out_of_range(&key(), &first, gone(7), OutOfRange::Beginning);
    assert_eq!(locate(&mut assignment)[0].position, Position::Beginning);
    assignment.out_of_range(&key(), &first, gone(7), OutOfRange::Fail);
    assert_eq!(take(&mut assignment), None, "it was asked for before the partition went on elsewhere");
}

#[test]
fn what_has_arrived_is_handed_out_before_a_failure() {
    let (mut assignment, behind) = read_ahead();
    assignment.fail(&key(), behind.generation, gone(4));
    assignment.fail(&key(), behind.generation, gone(5));
    assert_eq!(asked(&assignment), None);
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
    assert_eq!(take(&mut assignment), Some(Ok(vec![2, 3])));
    assert_eq!(take(&mut assignment), Some(Err(gone(4))));
    assert_eq!(take(&mut assignment), None, "it is returned once");
    assert_eq!((asked(&assignment), assignment.buffered_bytes), (None, 0));
    assignment.seek(&key(), Position::Offset(2)).unwrap();
    assert_eq!(asked(&assignment).unwrap().offset, 2);
}

#[test]
fn a_damaged_answer_is_reported_behind_what_has_arrived() {
    let (mut assignment, behind) = read_ahead();
    answer_bytes(&mut assignment, &behind, vec![0; 100]);
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
    assert_eq!(take(&mut assignment), Some(Ok(vec![2, 3])));
    assert!(matches!(take(&mut assignment), Some(Err(Error::Damaged { .. }))));
}

#[test]
fn after_a_seek_answers_about_the_old_position_are_ignored() {
    type Change = fn(&mut Assignment, &Wanted);
    let changes: [Change; 3] = [
        |assignment, _| assignment.seek(&key(), Position::Offset(0)).unwrap(),
        |assignment, _| {
            assignment.set_paused(&key(), true).unwrap();
            assignment.set_paused(&key(), false).unwrap();
        },
        // Another leader has records there.
        |assignment, behind| answer(assignment, behind, 4),
    ];
    for (change, offset) in changes.into_iter().zip([0, 0, 6]) {
        let (mut assignment, behind) = read_ahead();
        assignment.out_of_range(&key(), &behind, gone(4), OutOfRange::Fail);
        change(&mut assignment, &behind);
        assert_eq!(asked(&assignment).map(|asked| asked.offset), Some(offset));
        while let Some(taken) = take(&mut assignment) {
            taken.unwrap();
        }
        assert_eq!(asked(&assignment).map(|asked| asked.offset), Some(offset));
    }
}

#[test]
fn a_position_is_asked_for_once_and_counts_until_the_next_seek() {
    let mut assignment = at(0);
    assignment.seek(&key(), Position::Time(7)).unwrap();
    let sought = locate(&mut assignment);
    assert_eq!((sought.len(), locate(&mut assignment).len()), (1, 0));
    assignment.located(&sought[0], None);
    let again = locate(&mut assignment);
    assert_eq!(again, sought, "the answer was of no use");
    assignment.seek(&key(), Position::Offset(3)).unwrap();
    assignment.located(&again[0], Some(50));
    assert_eq!(assignment.position(&key()), Ok(Some(3)));
    assignment.seek(&key(), Position::End).unwrap();
    let last = locate(&mut assignment);
    assignment.set_paused(&key(), true).unwrap();
    assignment.located(&last[0], Some(50));
    let lookups = locate(&mut assignment);
    assignment.located(&lookups[0], Some(60));
    assert_eq!((assignment.position(&key()), asked(&assignment)), (Ok(Some(60)), None));
}

/// An assignment that has read two records of epoch 0, has taken `taken` batches, and has a leader of epoch 1.
fn under_new_leader(taken: usize) -> (Assignment, Vec<EpochValidation>) {
    let mut assignment = at(0);
    lead(&mut assignment, 0);
    assert_eq!(due_validations(&mut assignment), [], "nothing was read yet");
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    for _ in 0..taken {
        take(&mut assignment).unwrap().unwrap();
    }
    lead(&mut assignment, 0);
    assert_eq!(due_validations(&mut assignment), []);
    lead(&mut assignment, 1);
    let validations = due_validations(&mut assignment);
    assert_eq!((validations.len(), asked(&assignment)), (1, None), "nothing is read meanwhile");
    assert_eq!(
        (validations[0].leader_epoch, validations[0].epoch, due_validations(&mut assignment).len()),
        (1, 0, 0)
    );
    (assignment, validations)
}

#[test]
fn a_question_that_fails_is_reported_whatever_answer_comes_late() {
    let mut assignment = at(0);
    lead(&mut assignment, 0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    // Asked of the old leader, which answers when the new one has refused to say where its epochs end.
    let late = asked(&assignment).unwrap();
    lead(&mut assignment, 1);
    let validations = due_validations(&mut assignment);
    assignment.fail(&key(), validations[0].generation, gone(2));
    answer(&mut assignment, &late, 2);
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
    assert_eq!(take(&mut assignment), Some(Ok(vec![2, 3])));
    assert_eq!(take(&mut assignment), Some(Err(gone(2))));
    assert_eq!((take(&mut assignment), asked(&assignment)), (None, None));
}

fn end(epoch: i32, offset: i64) -> Option<FetchPosition> {
    Some(FetchPosition { offset, epoch })
}

#[test]
fn under_a_new_leader_reading_continues_if_the_records_are_the_same() {
    let (mut assignment, validations) = under_new_leader(1);
    assignment.settled(&validations[0], None, OutOfRange::Fail);
    assert_eq!(due_validations(&mut assignment), validations, "there was no answer");
    assignment.settled(&validations[0], end(0, 2), OutOfRange::Fail);
    assert_eq!(asked(&assignment).unwrap().offset, 2);
    assert_eq!(assignment.epoch_at(&key(), 2), 0);
    lead(&mut assignment, 2);
    assignment.settled(&validations[0], end(0, 0), OutOfRange::Fail);
    assert_eq!(
        due_validations(&mut assignment)[0].leader_epoch,
        2,
        "the answer of the leader before does not count"
    );
}

#[test]
fn what_was_read_ahead_and_is_gone_is_forgotten() {
    let (mut assignment, validations) = under_new_leader(0);
    assignment.settled(&validations[0], end(0, 1), OutOfRange::Fail);
    assert_eq!(take(&mut assignment), None);
    assert_eq!(asked(&assignment).unwrap().offset, 0);
    lead(&mut assignment, 1);
    assert_eq!(due_validations(&mut assignment), [], "the leader is known");
}

#[test]
fn records_that_were_taken_and_are_gone_are_reported_or_passed() {
    for (answer, diverges_at, next) in [(end(0, 1), Some(1), Some(1)), (end(-1, -1), None, None)] {
        let (mut assignment, validations) = under_new_leader(1);
        assignment.settled(&validations[0], answer, OutOfRange::Fail);
        let error = take(&mut assignment).unwrap().unwrap_err();
        assert_eq!(
            error,
            Error::Truncated { partition: TopicPartition::new("t", 0), offset: 2, diverges_at }
        );
        assert_eq!(asked(&assignment), None);
        let (mut assignment, validations) = under_new_leader(1);
        assignment.settled(&validations[0], answer, OutOfRange::Beginning);
        assert_eq!(take(&mut assignment), None);
        assert_eq!(asked(&assignment).map(|asked| asked.offset), next);
        let located = locate(&mut assignment);
        assert_eq!(located.len(), usize::from(next.is_none()));
        assert!(located.iter().all(|one| one.position == Position::Beginning));
    }
}

#[test]
fn a_second_leader_that_is_asked_nothing_ends_the_question_to_the_first() {
    let mut assignment = at(0);
    lead(&mut assignment, 0);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    // Asked of the old leader, which answers late, with a batch that names no epoch.
    let late = asked(&assignment).unwrap();
    lead(&mut assignment, 1);
    let validations = due_validations(&mut assignment);
    answer_bytes(&mut assignment, &late, batch_at(2));
    lead(&mut assignment, 2);
    assert_eq!(due_validations(&mut assignment), [], "there is no epoch to ask for");
    assignment.settled(&validations[0], end(0, 2), OutOfRange::Fail);
    assert_eq!(asked(&assignment).map(|asked| asked.offset), Some(3), "reading continues");
}

#[test]
fn an_answer_of_a_broker_that_tells_no_ids_counts() {
    let mut assignment = at(0);
    assignment.lead(|_| Some((Uuid::from_u128(1), 0)), OutOfRange::Fail);
    // The next metadata come from an older broker, in the midst of an upgrade.
    assignment.lead(|_| Some((Uuid::ZERO, 0)), OutOfRange::Fail);
    let wanted = asked(&assignment).unwrap();
    assert!(wanted.topic_id.is_zero());
    answer(&mut assignment, &wanted, 0);
    assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
}

#[test]
fn the_end_of_a_partition_is_known_after_a_seek() {
    let mut assignment = at(0);
    assignment.lead(|_| Some((Uuid::from_u128(1), 0)), OutOfRange::End);
    let first = asked(&assignment).unwrap();
    answer(&mut assignment, &first, 0);
    assignment.seek(&key(), Position::Offset(40)).unwrap();
    assert_eq!(assignment.lag(&key()), Ok(Some(60)), "a broker does not send it again");
    assignment.lead(|_| Some((Uuid::from_u128(1), 0)), OutOfRange::End);
    assignment.lead(|_| Some((Uuid::from_u128(2), 0)), OutOfRange::End);
    let sought = locate(&mut assignment);
    assignment.located(&sought[0], Some(7));
    assert_eq!(assignment.lag(&key()), Ok(None), "it was that of another topic");
}

#[test]
fn a_pause_does_not_swallow_the_question_whether_offsets_hold() {
    let (mut assignment, validations) = under_new_leader(1);
    assignment.set_paused(&key(), true).unwrap();
    assignment.settled(&validations[0], end(0, 2), OutOfRange::Fail);
    assignment.set_paused(&key(), false).unwrap();
    let again = due_validations(&mut assignment);
    assert_eq!((again.len(), asked(&assignment)), (1, None), "the answer was one about what was read before");
    assignment.settled(&again[0], end(0, 2), OutOfRange::Fail);
    assert_eq!(asked(&assignment).unwrap().offset, 2);

    // Before the first record no record can be another one.
    let (mut assignment, _) = under_new_leader(0);
    assignment.set_paused(&key(), true).unwrap();
    assignment.set_paused(&key(), false).unwrap();
    assert_eq!((due_validations(&mut assignment), asked(&assignment).unwrap().offset), (Vec::new(), 0));
}

#[test]
fn a_topic_that_is_created_again_is_read_as_the_configuration_says_about_offsets_that_are_not_there() {
    let (old, new) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for then in [OutOfRange::Fail, OutOfRange::Beginning, OutOfRange::End] {
        let mut assignment = at(0);
        assignment.lead(|_| Some((old, 0)), then);
        let first = Wanted { topic_id: old, ..asked(&assignment).unwrap() };
        answer(&mut assignment, &first, 0);
        let under_way = Wanted { topic_id: old, ..asked(&assignment).unwrap() };
        assignment.lead(|_| None, then);
        assignment.lead(|_| Some((new, 0)), then);
        assert!(asked(&assignment).is_none(), "no offset of the old one is asked for");
        // An old leader answers so if it does not know of the new topic yet.
        answer(&mut assignment, &under_way, 2);
        assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])), "what had arrived comes first");
        match then {
            OutOfRange::Fail => {
                let error = Error::TopicRecreated { partition: key(), offset: 2 };
                assert_eq!(take(&mut assignment), Some(Err(error)));
            }
            OutOfRange::Beginning | OutOfRange::End => {
                assert_eq!(take(&mut assignment), None);
                let position = if then == OutOfRange::End { Position::End } else { Position::Beginning };
                let sought = locate(&mut assignment);
                assert_eq!(sought[0].position, position);
                assignment.located(&sought[0], Some(0));
                assignment.lead(|_| Some((new, 0)), then);
                let renewed = Wanted { topic_id: new, ..asked(&assignment).unwrap() };
                answer(&mut assignment, &renewed, 0);
                assert_eq!(take(&mut assignment), Some(Ok(vec![0, 1])));
            }
        }
    }
}
