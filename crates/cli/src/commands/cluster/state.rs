//! The state of a node, from Kafka's protocol: DescribeCluster says whether it is fenced (KIP-1073), DescribeQuorum
//! when it last fetched from the metadata leader (KIP-836).

use std::fmt;

use mainstem_client::Quorum;
use serde_json::{Value, json};

/// Milliseconds since its last fetch after which a node counts as silent. A voter of Kafka fetches at least every
/// half second, one of ours sends at least a message each second.
const SILENT_MS: i64 = 3_000;

/// The facts known of one node.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// The cluster lists it as a broker.
    pub(super) is_listed: bool,
    /// It is registered and takes no part; none where the asked broker does not report it.
    pub(super) is_fenced: Option<bool>,
    /// Its last fetch of metadata; known of replicas of the metadata alone.
    pub(super) last_fetch: LastFetch,
    /// It took no connection when it was dialled from here.
    pub(super) is_unreachable: bool,
}

/// The last fetch of a node, as the metadata leader reports it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastFetch {
    /// The node has no replica of the metadata, or no leader reports fetches.
    #[default]
    Unknown,
    /// The time since then, in milliseconds.
    Ago(i64),
    /// Not since the leader was elected.
    Never,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It takes part.
    Up,
    /// Its last fetch was so many milliseconds ago; it is not fenced yet.
    Silent(i64),
    /// It takes no part. A fenced node that fetches is starting or stopping.
    Fenced(LastFetch),
    /// It belongs to the cluster, and has not fetched since the metadata leader was elected.
    Away,
    /// It takes no connection, and no metadata leader knows more.
    Unreachable,
    /// No broker says anything about it.
    Unknown,
}

impl LastFetch {
    /// The last fetch of a node; unknown where it has no replica of the metadata.
    pub(super) fn of(quorum: &Quorum, node: i32) -> LastFetch {
        let mut all = quorum.voters.iter().chain(&quorum.observers);
        let Some(replica) = all.clone().find(|replica| replica.node == node) else {
            return LastFetch::Unknown;
        };
        // Both times are by the leader's clock, which may differ from this machine's.
        let now_ms =
            all.find(|replica| replica.node == quorum.leader).and_then(|leader| leader.last_fetch_ms);
        match (now_ms, replica.last_fetch_ms) {
            (Some(now_ms), Some(ms)) => LastFetch::Ago(now_ms.saturating_sub(ms).max(0)),
            (Some(_), None) => LastFetch::Never,
            (None, _) => LastFetch::Unknown,
        }
    }
}

impl Known {
    /// The state that follows from these facts.
    pub(super) fn state(self) -> State {
        let silent_ms = match self.last_fetch {
            LastFetch::Ago(ms) if ms > SILENT_MS => Some(ms),
            _ => None,
        };
        match (self.is_fenced, self.last_fetch, silent_ms) {
            _ if self.is_unreachable => State::Unreachable,
            (Some(true), LastFetch::Never, _) => State::Away,
            (Some(true), last_fetch, _) => State::Fenced(last_fetch),
            (_, _, Some(ms)) => State::Silent(ms),
            (Some(false), ..) => State::Up,
            // The brokers do not report fencing: a listed broker takes part, and a replica of the metadata fetches.
            _ if self.is_listed => State::Up,
            (None, LastFetch::Ago(_), _) => State::Up,
            (None, LastFetch::Never, _) => State::Away,
            (None, LastFetch::Unknown, _) => State::Unknown,
        }
    }
}

impl State {
    /// For programs: a word, and the milliseconds of silence where there are any.
    pub(super) fn to_json(self) -> (&'static str, Value) {
        match self {
            State::Up => ("up", Value::Null),
            State::Silent(ms) => ("silent", json!(ms)),
            State::Fenced(LastFetch::Ago(ms)) if ms > SILENT_MS => ("fenced", json!(ms)),
            State::Fenced(_) => ("fenced", Value::Null),
            State::Away => ("away", Value::Null),
            State::Unreachable => ("unreachable", Value::Null),
            State::Unknown => ("unknown", Value::Null),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Up => f.write_str("up"),
            State::Silent(ms) => write!(f, "silent for {}", Span(*ms)),
            State::Fenced(LastFetch::Ago(ms)) if *ms > SILENT_MS => {
                write!(f, "fenced, silent for {}", Span(*ms))
            }
            State::Fenced(LastFetch::Ago(_)) => f.write_str("fenced, starts or stops"),
            State::Fenced(_) => f.write_str("fenced"),
            State::Away => f.write_str("away"),
            State::Unreachable => f.write_str("unreachable"),
            State::Unknown => f.write_str("unknown"),
        }
    }
}

/// Milliseconds as text for people.
struct Span(i64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 1_000 {
            seconds @ ..120 => write!(f, "{seconds} s"),
            seconds @ 120..7_200 => write!(f, "{} min", seconds / 60),
            seconds @ 7_200..172_800 => write!(f, "{} h", seconds / 3_600),
            seconds => write!(f, "{} days", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_client::QuorumReplica;

    use super::*;

    fn quorum(last_fetch_ms: &[(i32, Option<i64>)]) -> Quorum {
        let replica = |(node, last_fetch_ms): &(i32, Option<i64>)| QuorumReplica {
            node: *node,
            log_end_offset: Some(1),
            last_fetch_ms: *last_fetch_ms,
            last_caught_up_ms: None,
        };
        let voters = last_fetch_ms.iter().map(replica).collect();
        Quorum { leader: 1, leader_epoch: 1, high_watermark: 1, voters, observers: Vec::new() }
    }

    #[test]
    fn last_fetches_are_by_the_clock_of_the_leader() {
        let reported = quorum(&[(1, Some(90_000)), (2, Some(70_000)), (3, None)]);
        let last_fetch = [1, 2, 3, 4].map(|node| LastFetch::of(&reported, node));
        assert_eq!(
            last_fetch,
            [LastFetch::Ago(0), LastFetch::Ago(20_000), LastFetch::Never, LastFetch::Unknown]
        );
        // Brokers before Kafka 3.3 report no times, not even their own.
        let unreported = quorum(&[(1, None), (2, None)]);
        assert_eq!([1, 2].map(|node| LastFetch::of(&unreported, node)), [LastFetch::Unknown; 2]);
    }

    #[test]
    fn states_follow_from_what_is_reported() {
        let (listed, fenced) = ([true, false], [Some(true), Some(false), None]);
        let last_fetch = [LastFetch::Ago(500), LastFetch::Ago(130_000), LastFetch::Never, LastFetch::Unknown];
        let mut states = String::new();
        for is_listed in listed {
            for is_fenced in fenced.into_iter().filter(|fenced| is_listed || fenced.is_none()) {
                for last_fetch in last_fetch {
                    let state = Known { is_listed, is_fenced, last_fetch, is_unreachable: false }.state();
                    states += &format!("{is_listed} {is_fenced:?} {last_fetch:?}: {state}\n");
                }
            }
        }
        expect_test::expect![[r"
            true Some(true) Ago(500): fenced, starts or stops
            true Some(true) Ago(130000): fenced, silent for 2 min
            true Some(true) Never: away
            true Some(true) Unknown: fenced
            true Some(false) Ago(500): up
            true Some(false) Ago(130000): silent for 2 min
            true Some(false) Never: up
            true Some(false) Unknown: up
            true None Ago(500): up
            true None Ago(130000): silent for 2 min
            true None Never: up
            true None Unknown: up
            false None Ago(500): up
            false None Ago(130000): silent for 2 min
            false None Never: away
            false None Unknown: unknown
        "]]
        .assert_eq(&states);
        let unreachable = Known { is_listed: true, is_unreachable: true, ..Known::default() };
        assert_eq!(unreachable.state(), State::Unreachable);
    }

    #[test]
    fn spans_have_one_unit() {
        let texts = [0, 119_999, 120_000, 7_199_000, 7_200_000, 172_800_000].map(|ms| Span(ms).to_string());
        assert_eq!(texts, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
