//! The one table of configuration keys: parsing, validation, `--help`, docs/configuration.md and DescribeConfigs
//! are all made from it.

mod broker;
mod client_metrics;
mod group;
mod named;
mod topic;

use super::key::{ConfigKey, Scope};

/// The reason why a key has no effect here: completes the sentence "KEY has no effect here: ...".
mod reason {
    pub(super) const FILE: &str = "it counts in the properties file, where it is obeyed before anything else";
    pub(super) const TLS: &str = "TLS is not Java's here";
    pub(super) const SASL: &str = "the mechanism, or the class, is not there";
    pub(super) const AUTHZ: &str = "the authorizer is there before any listener opens";
    pub(super) const TOKENS: &str = "delegation tokens are not served yet";
    pub(super) const PROTOCOLS: &str = "clients choose among the group protocols that exist";
    pub(super) const SHARE: &str = "share groups are not served yet";
    pub(super) const STREAMS: &str = "streams groups are not served yet";
    pub(super) const TXN_WAIT: &str = "a partition is added as soon as the last transaction has ended";
    pub(super) const CHUNKS: &str = "logs are replayed in pieces of 1 MiB";
    pub(super) const TWO_PHASE: &str = "two-phase commit is not served yet";
    pub(super) const REPLICA: &str = "this node keeps the only replica";
    pub(super) const MOVER: &str = "one thread moves partitions between log directories, one at a time";
    pub(super) const SAMPLES: &str = "moves are slowed down piece by piece, without samples";
    pub(super) const SNAPSHOT: &str =
        "a snapshot takes the place of all that the metadata log says before it";
    pub(super) const REMOTE: &str = "there is no tiered storage";
    pub(super) const LZ4: &str = "lz4 has one level, Kafka's default";
    pub(super) const UNCLEAN: &str = "a replica that lacks acknowledged records is not elected by itself";
    pub(super) const JVM: &str = "it names Java code";
    pub(super) const QUORUM: &str = "one node is its own controller";
    pub(super) const THREADS: &str = "a request is served on the thread that read it";
    pub(super) const PURGATORY: &str = "waiting requests are dropped when they end";
    pub(super) const METRICS: &str = "metrics are counters read over HTTP";
    pub(super) const CLIENT: &str = "the broker opens no connections";
    pub(super) const INTERNAL: &str = "it tunes the insides of Kafka";
}

/// All keys: topic keys, broker keys with an effect, broker keys without one, group keys, keys of client metrics; by name within each.
pub fn all() -> impl Iterator<Item = &'static ConfigKey> {
    TABLES.iter().flat_map(|(_, table)| table.iter())
}

/// All keys of one scope, by name within each of the scope's tables.
pub fn keys(scope: Scope) -> impl Iterator<Item = &'static ConfigKey> {
    TABLES.iter().filter(move |(of, _)| *of == scope).flat_map(|(_, table)| table.iter())
}

/// The key of this name, if it is known.
pub fn find(scope: Scope, name: &str) -> Option<&'static ConfigKey> {
    TABLES
        .iter()
        .filter(|(of, _)| *of == scope)
        .find_map(|(_, table)| table.binary_search_by(|key| key.name.cmp(name)).ok().map(|at| &table[at]))
}

/// The broker key of this name, also under a listener's prefix (`listener.name.NAME.KEY`, KIP-226).
pub fn find_broker(name: &str) -> Option<&'static ConfigKey> {
    find(Scope::Broker, without_listener_prefix(name))
}

/// `KEY` of `listener.name.NAME.KEY` or `listener.name.NAME.MECHANISM.KEY`; any other name as it is.
pub fn without_listener_prefix(name: &str) -> &str {
    let Some((_, key)) = name.strip_prefix("listener.name.").and_then(|rest| rest.split_once('.')) else {
        return name;
    };
    match key.split_once('.') {
        Some((_, base)) if find(Scope::Broker, key).is_none() && find(Scope::Broker, base).is_some() => base,
        _ => key,
    }
}

/// The most letters that may be missing, wrong or too many in a name that is like another.
const TYPOS_MAX: usize = 3;

/// The known name that is most like an unknown one, if any is like it: for "did you mean".
pub fn nearest(scope: Scope, name: &str) -> Option<&'static str> {
    // A comparison with all others takes long if names are long and many.
    let is_as_long = |key: &&ConfigKey| key.name.len().abs_diff(name.len()) <= TYPOS_MAX;
    let near = keys(scope).filter(is_as_long).map(|key| (edit_distance(name, key.name), key.name));
    let (distance, key) = near.min()?;
    (distance <= TYPOS_MAX && distance * 3 < name.len()).then_some(key)
}

/// Sorted by name each, which a test checks and [`find`] relies on.
const TABLES: [(Scope, &[ConfigKey]); 5] = [
    (Scope::Topic, topic::TOPIC),
    (Scope::Broker, broker::BROKER),
    (Scope::Broker, named::NAMED),
    (Scope::Group, group::GROUP),
    (Scope::ClientMetrics, client_metrics::CLIENT_METRICS),
];

/// Levenshtein's distance in bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::key::{Importance, Origin, Status, UpdateMode};
    use super::*;

    /// Facts printed by Kafka 4.3.0's own `ConfigDef`s.
    const KAFKA: &str = include_str!("fixtures/kafka-4.3.0-keys.tsv");

    fn kafka_rows(kind: &str) -> Vec<Vec<&'static str>> {
        let rows: Vec<_> = KAFKA
            .lines()
            .map(|line| line.split('\t').collect::<Vec<_>>())
            .filter(|row| row[0] == kind)
            .collect();
        assert!(!rows.is_empty(), "no rows of kind {kind}");
        rows
    }

    #[test]
    fn tables_are_sorted_and_documented() {
        for (_, table) in TABLES {
            assert!(table.is_sorted_by(|a, b| a.name < b.name));
        }
        for key in all() {
            assert!(key.doc.ends_with('.'), "{}: {}", key.name, key.doc);
            assert_eq!(find(key.scope, key.name).map(|found| found.name), Some(key.name));
        }
    }

    #[test]
    fn every_default_is_valid() {
        for key in all() {
            if let Some(default) = key.default {
                let value = key.parse(default).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(value.to_string(), default, "{}", key.name);
            }
        }
    }

    #[test]
    fn every_key_of_kafka_is_here_with_its_facts() {
        for (kind, scope) in [("T", Scope::Topic), ("B", Scope::Broker), ("G", Scope::Group)] {
            for row in kafka_rows(kind) {
                let key = find(scope, row[1]).unwrap_or_else(|| panic!("{} is missing", row[1]));
                assert_eq!(key.kind.name(), row[2], "{}", row[1]);
                let default = match key.origin {
                    Origin::KafkaWithDefault(default) => default,
                    _ => key.default,
                };
                assert_eq!(default, Some(row[3]).filter(|d| !d.starts_with('<')), "{}", row[1]);
                let importance = match key.importance {
                    Importance::High => "HIGH",
                    Importance::Medium => "MEDIUM",
                    Importance::Low => "LOW",
                };
                assert_eq!(importance, row[5], "{}", row[1]);
                assert_eq!(key.internal.to_string(), row[6], "{}", row[1]);
                let update = match (scope, key.update) {
                    (Scope::Broker, UpdateMode::ReadOnly) => "read-only",
                    (Scope::Broker, UpdateMode::PerBroker) => "per-broker",
                    (Scope::Broker, UpdateMode::ClusterWide) => "cluster-wide",
                    _ => "-",
                };
                // The node does not open or close listeners while it runs.
                let fixed_here = ["listeners", "listener.security.protocol.map"].contains(&key.name);
                assert_eq!(update, if fixed_here { "read-only" } else { row[7] }, "{}", row[1]);
            }
        }
    }

    #[test]
    fn keys_that_kafka_does_not_have_are_marked_as_ours() {
        let theirs: Vec<_> = ["T", "B", "G"].into_iter().flat_map(kafka_rows).map(|row| row[1]).collect();
        // Kafka has these three outside of its table: they exist only as dynamic broker configurations.
        let dynamic = [
            "follower.replication.throttled.rate",
            "leader.replication.throttled.rate",
            "replica.alter.log.dirs.io.max.bytes.per.second",
        ];
        // And these with its authorizer.
        let authorizer = ["allow.everyone.if.no.acl.found", "super.users"];
        // The facts above are of three tables; a fourth has those of client metrics.
        for key in all().filter(|key| key.scope != Scope::ClientMetrics) {
            let elsewhere = [&dynamic[..], &authorizer].concat();
            let known = theirs.contains(&key.name) || elsewhere.contains(&key.name);
            assert_eq!(key.origin != Origin::Mainstem, known, "{}", key.name);
        }
    }

    #[test]
    fn fallbacks_are_kafkas_synonyms() {
        for row in kafka_rows("S") {
            let key = find(Scope::Topic, row[1]).expect("a topic key");
            let mut names: Vec<&str> = Vec::new();
            for fallback in key.fallbacks {
                names.push(fallback.key);
                let behind = find(Scope::Broker, fallback.key).expect("a broker key");
                names.extend(behind.fallbacks.iter().map(|further| further.key));
            }
            assert_eq!(names.join(" "), row[2].trim(), "{}", row[1]);
        }
        for row in kafka_rows("GS") {
            let key = find(Scope::Group, row[1]).expect("a group key");
            let name = row[2].trim_start_matches("Optional[").trim_end_matches(']');
            let expect = (name != "Optional.empty").then_some(name);
            assert_eq!(key.fallbacks.first().map(|fallback| fallback.key), expect, "{}", row[1]);
        }
    }

    #[test]
    fn only_the_agreed_topic_keys_are_merely_named() {
        let named: Vec<_> = keys(Scope::Topic)
            .filter(|key| matches!(key.status, Status::NamedOnly(_) | Status::WithoutMeaningHere(_)))
            .map(|key| key.name)
            .collect();
        assert_eq!(
            named,
            [
                "compression.lz4.level",
                "local.retention.bytes",
                "local.retention.ms",
                "remote.log.copy.disable",
                "remote.log.delete.on.disable",
                "remote.storage.enable",
                "unclean.leader.election.enable",
            ]
        );
    }

    #[test]
    fn listener_prefixes_are_seen_through() {
        for (name, base) in [
            ("listener.name.internal.ssl.keystore.location", "ssl.keystore.location"),
            ("listener.name.internal.plain.sasl.jaas.config", "sasl.jaas.config"),
            ("log.dirs", "log.dirs"),
        ] {
            assert_eq!(find_broker(name).map(|key| key.name), Some(base));
        }
    }

    #[test]
    fn a_mistyped_key_finds_its_neighbour() {
        assert_eq!(nearest(Scope::Broker, "num.partition"), Some("num.partitions"));
        assert_eq!(nearest(Scope::Broker, "zookeeper.connect"), None);
    }
}
