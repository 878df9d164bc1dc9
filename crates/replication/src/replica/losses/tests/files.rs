//! Logs that come back with less than their replicas have promised, since files are gone, cut or damaged.

use super::*;
use mainstem_log::storage::{OpenMode, read_exact_at, write_all_at};

const JOURNAL: &str = "/data/mainstem.groups";
const PROMISES: &str = "/data/mainstem.promises";

/// Harm to a replica's files while it does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Harm {
    SegmentRemoved,
    SegmentCut,
    RecordDamaged,
    DirectoryRemoved,
}

impl Harm {
    const ALL: [Harm; 4] =
        [Harm::SegmentRemoved, Harm::SegmentCut, Harm::RecordDamaged, Harm::DirectoryRemoved];

    pub(super) fn befall(self, disk: &SimStorage) {
        let dir = Path::new("/data/t-0");
        let segment = dir.join("00000000000000000000.log");
        let open = || disk.open(&segment, OpenMode::ReadWrite).expect("the segment");
        match self {
            Harm::SegmentRemoved => disk.remove_file(&segment).expect("it is there"),
            Harm::SegmentCut => open().set_len(open().len().expect("a length") / 2).expect("a cut"),
            Harm::RecordDamaged => {
                let middle = open().len().expect("a length") / 2;
                write_all_at(&*open(), &[0xFF; 8], middle).expect("a write");
            }
            Harm::DirectoryRemoved => disk.remove_dir_all(dir).expect("it is there"),
        }
    }
}

impl Group {
    /// Its process dies.
    pub(super) fn kill(&mut self, node: usize) {
        self.replicas[node] = None;
        self.disks[node].kill();
    }

    /// It is started again, under the same boot or another one.
    fn start_again(&mut self, node: usize, is_another_boot: bool) {
        self.boots[node] -= u64::from(!is_another_boot);
        self.start(node, i64::MAX, 0);
    }

    fn lacks(&mut self, node: usize) -> bool {
        self.replica(node).may_lack_acknowledged()
    }

    fn leads_anywhere(&self) -> bool {
        self.replicas.iter().flatten().any(|replica| replica.role().state == RoleState::Leader)
    }

    /// Records that the first and the third replica have, and then the third one's files suffer, while neither runs.
    fn with_harm(harms: &[(usize, Harm)], is_another_boot: bool) -> Group {
        let mut group = Group::led_by_first(false);
        group.cut_off = vec![1];
        group.append(0, 20);
        group.exchange();
        assert_eq!([0, 1, 2].map(|node| group.end(node)), [20, 0, 20]);
        assert_eq!(group.replica(0).log().ends().high_watermark, 20);
        (0..3).for_each(|node| group.kill(node));
        harms.iter().for_each(|(node, harm)| harm.befall(&group.disks[*node]));
        group.cut_off.clear();
        group.start_again(1, false);
        group.start_again(2, is_another_boot);
        group
    }
}

#[test]
fn a_replica_that_has_lost_files_neither_leads_nor_has_one_lead_that_lacks_what_it_had() {
    for harm in Harm::ALL {
        for is_another_boot in [false, true] {
            let case = format!("{harm:?}, another boot: {is_another_boot}");
            let mut group = Group::with_harm(&[(2, harm)], is_another_boot);
            assert!(group.end(2) < 20, "{case}");
            group.pass(10_000);
            assert!(!group.leads_anywhere(), "{case}: what was acknowledged would be gone");
            // Nor after another start.
            group.kill(2);
            group.start_again(2, false);
            group.pass(10_000);
            assert!(group.lacks(2) && !group.leads_anywhere(), "{case}");
            group.start_again(0, false);
            group.pass(5_000);
            assert_eq!(group.leader(), 0, "{case}: it has all");
            assert_eq!([0, 1, 2].map(|node| group.end(node)), [20; 3], "{case}");
            assert!(!group.lacks(2) && group.lost.is_empty(), "{case}");
            // It is a replica as any other from then on.
            group.kill(0);
            group.pass(5_000);
            assert!(group.leads_anywhere(), "{case}");
            assert_eq!([1, 2].map(|node| group.end(node)), [20; 2], "{case}");
        }
    }
}

/// Those that have lost theirs know what they had, and so whom they can vote for.
#[test]
fn a_replica_with_all_leads_by_votes_of_those_that_have_lost_theirs() {
    let mut group = Group::led_by_first(false);
    group.append(0, 20);
    group.exchange();
    (0..3).for_each(|node| group.kill(node));
    (1..3).for_each(|node| Harm::SegmentCut.befall(&group.disks[node]));
    (1..3).for_each(|node| group.start_again(node, false));
    group.pass(10_000);
    assert!(!group.leads_anywhere());
    group.start_again(0, false);
    group.pass(5_000);
    assert_eq!(group.leader(), 0);
    assert_eq!([0, 1, 2].map(|node| group.end(node)), [20; 3]);
    assert!((0..3).all(|node| !group.lacks(node)) && group.lost.is_empty());
}

/// The leader of a term runs on, and has counted on what is gone.
#[test]
fn a_leader_sends_again_what_a_follower_has_lost_with_its_files() {
    for harm in Harm::ALL {
        let mut group = Group::led_by_first(false);
        group.append(0, 20);
        group.exchange();
        group.kill(1);
        harm.befall(&group.disks[1]);
        group.start_again(1, false);
        assert!(group.lacks(1), "{harm:?}");
        group.replica(0).report_unreachable(id(1));
        group.append(0, 1);
        group.pass(2_000);
        assert_eq!(group.replica(1).failed(), None, "{harm:?}");
        assert_eq!((group.end(1), group.lacks(1), group.leader()), (21, false, 0), "{harm:?}");
    }
}

/// The beginning of its log was deleted: that is not sent again.
#[test]
fn a_replica_whose_directory_is_gone_begins_where_its_log_did() {
    let mut group = Group::led_by_first(false);
    group.append(0, 8);
    group.exchange();
    (0..3).for_each(|node| group.replica(node).prepare_close().expect("it is noted"));
    group.append(0, 12);
    group.exchange();
    (0..3).for_each(|node| group.delete_before(node, 8));
    assert_eq!(group.replica(1).start().offset, 8);
    group.exchange();
    group.kill(1);
    Harm::DirectoryRemoved.befall(&group.disks[1]);
    group.start_again(1, false);
    assert!(group.lacks(1));
    group.replica(0).report_unreachable(id(1));
    group.append(0, 1);
    group.pass(2_000);
    let ends = group.replica(1).log().ends();
    assert_eq!((ends.log_start, ends.log_end, group.lacks(1)), (8, 21, false));
    assert!(group.behind.is_empty());
}

/// A power cut behind a deletion leaves a note of what precedes it.
#[test]
fn a_log_that_ends_before_its_start_lacks_something_whatever_was_noted() {
    let mut group = Group::led_by_first(false);
    group.append(0, 8);
    group.exchange();
    (0..3).for_each(|node| group.replica(node).prepare_close().expect("it is noted"));
    let noted =
        |group: &Group| group.disks[1].open(Path::new(PROMISES), OpenMode::ReadWrite).expect("a file");
    let mut older = vec![0; noted(&group).len().expect("a length") as usize];
    read_exact_at(&*noted(&group), &mut older, 0).expect("it is read");
    group.append(0, 12);
    group.exchange();
    (0..3).for_each(|node| group.delete_before(node, 8));
    group.kill(1);
    Harm::DirectoryRemoved.befall(&group.disks[1]);
    write_all_at(&*noted(&group), &older, 0).expect("a write");
    for _ in 0..2 {
        group.start_again(1, false);
        assert!(group.lacks(1), "at this start and the next one");
        group.kill(1);
    }
}

/// Clients would be sent to it, and an operator would not see that there is none.
#[test]
fn a_replica_that_lacks_something_names_no_leader_that_is_gone() {
    let mut group = Group::with_harm(&[(2, Harm::SegmentCut)], false);
    let term = group.replica(2).role().term;
    let heartbeat = message(MessageType::MsgHeartbeat, 0, 2, term);
    group.replica(2).step(heartbeat, 0, &[]).expect("a message");
    group.replica(2).drive().expect("it works");
    assert_eq!(group.replica(2).role().state, RoleState::Follower { leader: Some(id(0)) });
    group.pass(10_000);
    assert_eq!(group.replica(2).role().state, RoleState::Follower { leader: None });
}

/// The process dies, or the power is cut, with a tail that was never durable.
#[test]
fn what_was_not_acknowledged_is_no_loss() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut group = Group::led_by_first(false);
        group.append(0, 6);
        group.exchange();
        group.syncs_logs = false;
        group.append(0, 6);
        group.exchange();
        for node in 0..3 {
            match seed % 2 {
                0 => group.lose_power(node, &mut random, 0),
                _ => group.restart(node, false),
            }
            assert!(group.end(node) >= 6 && !group.lacks(node), "seed {seed}, {node}");
        }
        group.syncs_logs = true;
        group.pass(5_000);
        assert!(group.leads_anywhere(), "seed {seed}");
    }
}

/// A leader that is cut off has a tail of its own. What it has of it is durable, and is not promised any more when it is cut off.
#[test]
fn what_another_leader_has_cut_is_no_loss() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut group = Group::led_by_first(false);
        group.append(0, 6);
        group.exchange();
        group.cut_off = vec![0];
        group.append(0, 5);
        group.pass(6_000);
        assert_eq!(group.end(0), 11);
        group.cut_off.clear();
        let leader = group.leader();
        group.append(leader, 1);
        group.pass(2_000);
        assert_eq!([0, 1, 2].map(|node| group.end(node)), [7; 3], "seed {seed}");
        match seed % 2 {
            0 => group.lose_power(0, &mut random, 0),
            _ => group.restart(0, false),
        }
        assert!(!group.lacks(0), "seed {seed}");
    }
}

/// No one has more any more, and an operator says so.
#[test]
fn a_replica_takes_part_without_what_it_has_lost_when_that_is_accepted() {
    let mut group = Group::with_harm(&[(2, Harm::SegmentCut)], false);
    group.kill(2);
    let accepted = Path::new("/data/t-0/accept-loss");
    group.disks[2].open(accepted, OpenMode::Create).expect("a file");
    group.boots[2] -= 1;
    group.start(2, i64::MAX, 20);
    assert!(!group.lacks(2) && !group.disks[2].exists(accepted).expect("a look"), "it counts once");
    let kept = group.end(2);
    group.pass(5_000);
    assert_eq!(group.leader(), 2);
    let counted: Vec<_> = group.lost.iter().filter(|(node, _)| *node == 2).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
    let Lost { offset, records } = counted[0].1;
    assert_eq!((offset <= kept, offset + records), (true, 20), "it is counted");
}

#[test]
fn what_was_accepted_is_accepted_after_a_power_cut_too() {
    for seed in 0..8 {
        let mut group = Group::with_harm(&[(2, Harm::SegmentCut)], false);
        group.kill(2);
        group.disks[2].open(Path::new("/data/t-0/accept-loss"), OpenMode::Create).expect("a file");
        group.start_again(2, false);
        group.lose_power(2, &mut Random::new(seed), 0);
        assert!(!group.lacks(2), "seed {seed}");
    }
}

/// It is not known for whom votes were that are gone.
#[test]
fn a_replica_whose_journal_has_lost_votes_gives_none_in_their_terms() {
    let mut group = Group::led_by_first(false);
    group.append(0, 3);
    group.exchange();
    let (_, term, _) = group.replica(0).last_and_committed();
    group.kill(1);
    let file = group.disks[1].open(Path::new(JOURNAL), OpenMode::ReadWrite).expect("a journal");
    // The vote, and the beginning of the term.
    let len = file.len().expect("a length");
    file.set_len(len - 120).expect("a cut");
    group.start_again(1, false);
    assert!(group.lacks(1));
    let mut asks = message(MessageType::MsgRequestVote, 2, 1, term);
    (asks.index, asks.log_term) = (100, term);
    group.replica(1).step(asks, 0, &[]).expect("a message");
    let effects = group.replica(1).drive().expect("it works");
    let gives = |kind| kind == MessageType::MsgRequestVoteResponse;
    let given =
        effects.messages.iter().filter(|one| gives(one.message.get_msg_type()) && !one.message.reject);
    assert_eq!(given.count(), 0);
    assert_eq!(group.replica(1).role().term, term);
    group.replica(0).report_unreachable(id(1));
    group.pass(2_000);
    assert_eq!((group.end(1), group.lacks(1)), (3, false));
}

/// A release before this one has noted nothing.
#[test]
fn a_directory_without_promises_starts_as_it_did() {
    let mut group = Group::led_by_first(false);
    group.append(0, 6);
    group.exchange();
    group.kill(1);
    group.disks[1].remove_file(Path::new(PROMISES)).expect("it is there");
    group.start_again(1, false);
    assert!(!group.lacks(1));
    // And notes it from here on.
    group.kill(1);
    Harm::SegmentCut.befall(&group.disks[1]);
    group.start_again(1, false);
    assert!(group.lacks(1));
}
