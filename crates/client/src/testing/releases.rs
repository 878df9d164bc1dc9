//! The releases of Apache Kafka that tests run against, and the tests that need a feature which some of them lack.

use std::io::Write;
use std::sync::OnceLock;

use super::kafka::KafkaPeer;

/// A release of Apache Kafka.
pub(crate) struct Release {
    /// As Maven names it; `cargo xtask test` installs those that this file names.
    pub(crate) version: &'static str,
    /// Major and minor version, to be compared.
    number: (u32, u32),
    /// Brokers need ZooKeeper.
    pub(crate) has_zookeeper: bool,
    peer: OnceLock<Result<KafkaPeer, String>>,
}

/// The release that most tests compare with.
pub(crate) static NEWEST: Release = Release::new("4.3.0", (4, 3));

/// The last one before 4.0.
pub(crate) static BEFORE_4: Release = Release::new("3.9.2", (3, 9));

/// The oldest one whose brokers keep records in today's format (KIP-98).
pub(crate) static OLDEST: Release = Release::new("0.11.0.3", (0, 11)).with_zookeeper();

/// A feature that tests need and that some releases lack.
struct Need {
    /// In the names of the tests.
    tests: &'static str,
    /// The first release that has it.
    since: (u32, u32),
    what: &'static str,
}

const fn need(tests: &'static str, since: (u32, u32), what: &'static str) -> Need {
    Need { tests, since, what }
}

const NEEDS: &[Need] = &[
    need(
        "consumer_protocol::a_pattern_finds_topics_that_come_later",
        (4, 0),
        "patterns of the consumer protocol",
    ),
    need("consumer_protocol::", (3, 9), "groups of the consumer protocol (KIP-848)"),
    need("consumer_protocol_alone::", (3, 9), "groups of the consumer protocol (KIP-848)"),
    need("replicas_are_reported_page_by_page", (3, 8), "DescribeTopicPartitions (KIP-966)"),
    need(
        "passwords_of_users_are_reported",
        (3, 5),
        "DescribeUserScramCredentials without ZooKeeper (KIP-554)",
    ),
    need("nodes_are_unregistered", (3, 0), "UnregisterBroker"),
    need("what_does_not_exist_is_reported_at_once", (2, 3), "IncrementalAlterConfigs (KIP-339)"),
    need("groups_have_settings", (4, 0), "settings of groups (KIP-848)"),
    need("what_has_settings_is_listed", (4, 1), "a list of all that has settings (KIP-1142)"),
    need("settings_are_changed_and_say_where_they_come_from", (3, 7), "client metrics (KIP-714)"),
    need("the_cluster_is_described", (3, 3), "DescribeQuorum (KIP-595)"),
    need("what_a_partition_takes_is_reported", (3, 3), "the sizes of volumes in DescribeLogDirs (KIP-827)"),
    need("a_position_in_a_topic_that_was_deleted_", (2, 8), "ids of topics (KIP-516)"),
    need("producers_are_reported", (2, 8), "DescribeProducers (KIP-664)"),
    need("quotas_are_set_and_taken_away", (2, 6), "DescribeClientQuotas (KIP-546)"),
    need(
        "leaders_and_places_of_partitions_are_asked_for",
        (2, 4),
        "ElectLeaders and reassignments (KIP-455, KIP-460)",
    ),
    need(
        "groups_are_described_and_their_offsets_moved",
        (2, 4),
        "static members and OffsetDelete (KIP-345, KIP-496)",
    ),
    need("copies_are_placed_as_asked", (1, 0), "CreatePartitions (KIP-195)"),
    need("retention_leaves_records_of_any_age", (3, 7), "log.initial.task.delay.ms"),
    need("groups_are_listed_by_state_and_type", (3, 7), "types of groups in ListGroups (KIP-848)"),
    need("static_members_are_removed", (2, 4), "members in LeaveGroup (KIP-345)"),
    need("a_member_shares_with_one_of_java", (2, 4), "cooperative-sticky in Java's client (KIP-429)"),
    need("a_static_member_comes_back_to_what_it_had", (2, 3), "static members (KIP-345)"),
    need("a_static_member_that_comes_back_sees_a_topic_grow", (2, 3), "static members (KIP-345)"),
    need("a_topic_that_grows_is_read_whole", (1, 0), "CreatePartitions (KIP-195)"),
    need("topics_come_grow_and_go", (1, 0), "CreatePartitions (KIP-195)"),
    need("a_partition_that_comes_later_holds_up_no_other", (1, 0), "CreatePartitions (KIP-195)"),
    need(
        "a_partition_that_does_not_exist_is_reported_with_how_many_there_are",
        (1, 0),
        "CreatePartitions (KIP-195)",
    ),
    need(
        "an_offset_that_no_leader_has_written_is_reported",
        (2, 1),
        "epochs of leaders in commits (KIP-320)",
    ),
    need("offsets_are_committed_with", (2, 5), "members of groups in TxnOffsetCommit (KIP-447)"),
    need("transactions_are_", (3, 0), "ListTransactions (KIP-664)"),
    need("after_a_failure_", (2, 5), "the next epoch of a producer (KIP-360)"),
];

impl Release {
    const fn new(version: &'static str, number: (u32, u32)) -> Release {
        Release { version, number, has_zookeeper: false, peer: OnceLock::new() }
    }

    const fn with_zookeeper(mut self) -> Release {
        self.has_zookeeper = true;
        self
    }

    /// Returns true if it is this release or a later one.
    pub(crate) fn is_at_least(&self, major: u32, minor: u32) -> bool {
        self.number >= (major, minor)
    }

    /// Its JVM, which all tests of the process share; the error is the reason if it cannot run.
    pub(crate) fn peer(&'static self) -> &'static Result<KafkaPeer, String> {
        self.peer.get_or_init(|| KafkaPeer::start(self))
    }

    /// Returns true if a test is to run against it; otherwise reports why not. The test's name has its module's and that of the
    /// release before it.
    pub(crate) fn takes(&self, test: &str) -> bool {
        let (module, name) = test.rsplit_once("::").expect("it is in a module");
        let name = format!("{}::{name}", module.rsplit_once("::").expect("it is in a crate").0);
        let lacking = NEEDS.iter().find(|need| name.contains(need.tests) && self.number < need.since);
        if let Some(Need { since, what, .. }) = lacking {
            skipped(test, &format!("Kafka {} lacks {what}, new in {}.{}", self.version, since.0, since.1));
        }
        lacking.is_none()
    }
}

/// Reports why a test does not run. Not by `eprintln`, which is shown only if a test fails.
pub(super) fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no test has would let every test run.
    #[test]
    fn the_names_of_the_tables_are_those_of_tests() {
        let sources = sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        for name in NEEDS.iter().map(|need| need.tests) {
            let last = name.trim_end_matches(':').rsplit("::").next().expect("a name has a part");
            let is_there = |what: &str| sources.contains(&format!("{what} {last}"));
            assert!(is_there("async fn") || is_there("mod"), "no test is named {name}");
        }
    }

    fn sources(folder: &std::path::Path) -> String {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: std::path::PathBuf| match path.is_dir() {
            true => sources(&path),
            false => std::fs::read_to_string(path).unwrap(),
        };
        entries.map(text).collect()
    }
}
