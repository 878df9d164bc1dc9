//! Groups that begin at a floor, before which each replica may compact its log by itself.

use super::files::Harm;
use super::*;
use mainstem_log::sim::Call;
use std::io;

const FLOOR: i64 = 8;
/// The error of a full disk on Linux.
const ENOSPC: i32 = 28;

impl Group {
    /// Lets the disk of a node refuse, for want of space, writes to its journal.
    fn fill_disk_of_journal(&self, node: usize) {
        self.hooked[node].set_hook(|call, path| {
            match call == Call::Write && path.ends_with("mainstem.groups") {
                true => Err(io::Error::from_raw_os_error(ENOSPC)),
                false => Ok(()),
            }
        });
    }

    /// A group in which all replicas have ten records, and a mark at the floor.
    fn with_a_mark_at_the_floor() -> Group {
        let mut group = Group::led_by_first(false);
        group.compacts = true;
        group.append(0, FLOOR as usize);
        group.exchange();
        (0..3).for_each(|node| group.replica(node).prepare_close().expect("it is noted"));
        group.append(0, 2);
        group.exchange();
        group
    }

    /// Starts a replica again under the same boot.
    fn started_again(&mut self, node: usize) -> Result<Replica, ReplicaError> {
        self.boots[node] -= 1;
        self.try_start(node, i64::MAX, 0)
    }
}

#[test]
fn a_replica_that_has_lost_what_others_may_have_compacted_stays_out() {
    for harm in [Harm::DirectoryRemoved, Harm::SegmentRemoved, Harm::SegmentCut] {
        let mut group = Group::with_a_mark_at_the_floor();
        for node in 0..3 {
            group.replica(node).follow_floor(FLOOR).expect("it is noted");
            assert_eq!(group.replica(node).start_offset(), FLOOR);
        }
        group.exchange();
        group.kill(1);
        harm.befall(&group.disks[1]);
        for _ in 0..2 {
            let started = group.started_again(1).map(|replica| replica.log().ends());
            let refused =
                matches!(started, Err(ReplicaError::LacksCompacted { end, start: FLOOR }) if end < FLOOR);
            assert!(refused, "{harm:?}: {started:?}");
            group.disks[1].kill();
        }
        group.append(0, 1);
        group.exchange();
        assert_eq!(group.replica(0).log().ends().high_watermark, FLOOR + 3, "the others are a majority");
    }
}

#[test]
fn a_group_begins_where_its_journal_says_also_after_a_write_that_failed() {
    let mut group = Group::with_a_mark_at_the_floor();
    group.fill_disk_of_journal(1);
    let refused = group.replica(1).follow_floor(FLOOR);
    assert!(refused.is_err(), "the disk is full");
    group.hooked[1].clear_hook();
    assert_eq!(group.replica(1).start_offset(), 0, "what precedes the floor still counts");
    group.replica(1).follow_floor(FLOOR).expect("it is noted");
    group.exchange();
    group.kill(1);
    let replica = group.started_again(1).expect("a replica");
    assert_eq!(replica.start_offset(), FLOOR);
}

#[test]
fn the_entry_that_has_moved_the_log_start_is_kept_until_that_lasts() {
    let mut group = Group::with_a_mark_at_the_floor();
    let replica = group.replica(1);
    replica.log_mut().delete_records_before(4).expect("they are committed");
    assert!(!replica.log().is_log_start_durable());
    replica.follow_floor(FLOOR).expect("nothing is noted");
    assert_eq!(replica.start_offset(), 0);
    replica.log().dir().checkpoints().log_start.commit().expect("a checkpoint");
    replica.follow_floor(FLOOR).expect("it is noted");
    assert_eq!(replica.start_offset(), FLOOR);
}

#[test]
fn a_group_that_begins_at_a_floor_goes_on_there_after_a_kill() {
    let mut group = Group::with_a_mark_at_the_floor();
    (0..3).for_each(|node| group.replica(node).follow_floor(FLOOR).expect("it is noted"));
    group.exchange();
    group.kill(1);
    let replica = group.started_again(1).expect("a replica");
    assert_eq!((replica.start_offset(), replica.log().ends().log_end), (FLOOR, FLOOR + 2));
    group.replicas[1] = Some(replica);
    group.replica(0).report_unreachable(id(1));
    group.append(0, 3);
    group.pass(2_000);
    assert_eq!(group.end(1), FLOOR + 5);
}

/// The place where entries can begin is noted when a segment begins. A full disk refuses that, and takes the records.
#[test]
fn places_that_a_full_disk_has_refused_are_noted_when_there_is_space() {
    let mut group = Group::led_by_first(false);
    let config = LogConfig { segment_bytes: 300, retention_ms: None, ..LogConfig::default() };
    group.replica(1).log_mut().set_config(Arc::new(config));
    group.fill_disk_of_journal(1);
    group.append(0, 12);
    group.exchange();
    let bases = |group: &mut Group| group.replica(1).log().segment_bases().skip(1).collect::<Vec<_>>();
    assert!(!bases(&mut group).is_empty() && !group.replica(1).is_taking_part(), "{:?}", bases(&mut group));
    group.hooked[1].clear_hook();
    group.pass(5_000);
    group.append(0, 12);
    group.exchange();
    let bases = bases(&mut group);
    let state = group.replica(1).journal().lock().group(GROUP).cloned().expect("it is known");
    let noted: Vec<_> = state.marks.iter().map(|mark| mark.offset).collect();
    assert_eq!(noted, bases);
    let replica = group.replica(1);
    assert!(bases.iter().all(|base| replica.group.index().known_at(*base).is_some()));
}
