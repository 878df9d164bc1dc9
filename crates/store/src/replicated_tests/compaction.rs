//! The offset before which replicas may compact their logs.

use super::cluster::Cluster;
use super::wait_for;

/// Values that fill several segments.
const VALUES: u64 = 120;

#[test]
fn a_floor_waits_for_all_replicas() {
    let mut cluster = Cluster::that_compacts(50);
    let first = cluster.leader();
    let other = (first + 1) % 3;
    (0..VALUES).for_each(|value| cluster.acknowledge(first, value));
    let everywhere = wait_for("all replicas to have all", || {
        let end = cluster.partition(first).ends().ok()?.log_end;
        (0..3).all(|node| cluster.partition(node).ends().is_ok_and(|ends| ends.log_end == end)).then_some(end)
    });
    cluster.kill(other);
    (VALUES..3 * VALUES).for_each(|value| cluster.acknowledge(first, value));
    let bound = wait_for("a floor", || {
        cluster.partition(first).propose_floor();
        cluster.partition(first).compaction_bound()
    });
    assert!(bound > 0 && bound <= everywhere, "{bound} of {everywhere}");
    cluster.partition(first).propose_floor();
    assert_eq!(cluster.partition(first).compaction_bound(), Some(bound), "the one that is away holds it up");
    cluster.restart(other);
    for node in 0..3 {
        wait_for("the floor to go on everywhere", || {
            cluster.partition(cluster.leader()).propose_floor();
            cluster.partition(node).compaction_bound().filter(|bound| *bound > everywhere)
        });
    }
    cluster.check(3 * VALUES as usize);
}

#[test]
fn a_floor_is_known_after_a_restart() {
    let mut cluster = Cluster::that_compacts(51);
    let first = cluster.leader();
    let other = (first + 1) % 3;
    (0..VALUES).for_each(|value| cluster.acknowledge(first, value));
    wait_for("the follower to know a floor", || {
        cluster.partition(first).propose_floor();
        let knows = |replica: &mut mainstem_replication::Replica| replica.applied_data().next().is_some();
        cluster.partition(other).with_replica_by_hand(knows).filter(|knows| *knows)
    });
    cluster.kill(other);
    cluster.restart(other);
    let bound = wait_for("its floor", || cluster.partition(other).compaction_bound());
    assert!(bound > 0);
    cluster.check(VALUES as usize);
}
