//! The state of a node, from what Kafka's protocol says of it: DescribeCluster whether it is fenced (KIP-1073), DescribeQuorum when the
//! metadata leader heard of it last (KIP-836).

use std::fmt;

use mainstem_client::Quorum;
use serde_json::{Value, json};

/// A node of which the leader has heard nothing for longer is silent, in milliseconds. A voter of Kafka fetches at least every half
/// second, one of ours says something each second.
const SILENT_MS: i64 = 3_000;

/// The knowledge of one node.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// It is among the brokers that the cluster names.
    pub(super) is_listed: bool,
    /// It is registered and takes no part; none where the asked broker does not tell.
    pub(super) is_fenced: Option<bool>,
    /// Told of those that keep the metadata.
    pub(super) heard: Heard,
    /// It took no connection when it was dialled from here.
    pub(super) is_unreachable: bool,
}

/// The last sign of life of a node that the metadata leader had.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It keeps no metadata, or nobody tells.
    #[default]
    Untold,
    /// Something, so many milliseconds ago.
    Ago(i64),
    /// Nothing since it leads.
    Never,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It takes part.
    Up,
    /// Nothing was heard of it for so many milliseconds; it is not fenced yet.
    Silent(i64),
    /// It takes no part. One that is heard of starts or stops.
    Fenced(Heard),
    /// It belongs to the cluster, and nothing was heard of it since the metadata leader leads.
    Away,
    /// It takes no connection, and no metadata leader knows more.
    Unreachable,
    /// Nothing is said of it.
    Unknown,
}

impl Heard {
    /// The last sign of life of a node; untold where it has no replica of the metadata.
    pub(super) fn of(quorum: &Quorum, node: i32) -> Heard {
        let mut all = quorum.voters.iter().chain(&quorum.observers);
        let Some(replica) = all.clone().find(|replica| replica.node == node) else { return Heard::Untold };
        // By the clock of the leader alone, which may not be that of this machine.
        let now_ms =
            all.find(|replica| replica.node == quorum.leader).and_then(|leader| leader.last_fetch_ms);
        match (now_ms, replica.last_fetch_ms) {
            (Some(now_ms), Some(ms)) => Heard::Ago(now_ms.saturating_sub(ms).max(0)),
            (Some(_), None) => Heard::Never,
            (None, _) => Heard::Untold,
        }
    }
}

impl Known {
    /// The state that follows.
    pub(super) fn state(self) -> State {
        let silent_ms = match self.heard {
            Heard::Ago(ms) if ms > SILENT_MS => Some(ms),
            _ => None,
        };
        match (self.is_fenced, self.heard, silent_ms) {
            _ if self.is_unreachable => State::Unreachable,
            (Some(true), Heard::Never, _) => State::Away,
            (Some(true), heard, _) => State::Fenced(heard),
            (_, _, Some(ms)) => State::Silent(ms),
            (Some(false), ..) => State::Up,
            // Nobody says who is fenced: who is named takes part, and who keeps the metadata is heard of.
            _ if self.is_listed => State::Up,
            (None, Heard::Ago(_), _) => State::Up,
            (None, Heard::Never, _) => State::Away,
            (None, Heard::Untold, _) => State::Unknown,
        }
    }
}

impl State {
    /// For programs: a word, and the milliseconds of silence where there are any.
    pub(super) fn to_json(self) -> (&'static str, Value) {
        match self {
            State::Up => ("up", Value::Null),
            State::Silent(ms) => ("silent", json!(ms)),
            State::Fenced(Heard::Ago(ms)) if ms > SILENT_MS => ("fenced", json!(ms)),
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
            State::Fenced(Heard::Ago(ms)) if *ms > SILENT_MS => {
                write!(f, "fenced, silent for {}", Span(*ms))
            }
            State::Fenced(Heard::Ago(_)) => f.write_str("fenced, starts or stops"),
            State::Fenced(_) => f.write_str("fenced"),
            State::Away => f.write_str("away"),
            State::Unreachable => f.write_str("unreachable"),
            State::Unknown => f.write_str("unknown"),
        }
    }
}

/// Milliseconds as a person says them.
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

    fn quorum(heard_ms: &[(i32, Option<i64>)]) -> Quorum {
        let replica = |(node, last_fetch_ms): &(i32, Option<i64>)| QuorumReplica {
            node: *node,
            log_end_offset: Some(1),
            last_fetch_ms: *last_fetch_ms,
            last_caught_up_ms: None,
        };
        let voters = heard_ms.iter().map(replica).collect();
        Quorum { leader: 1, leader_epoch: 1, high_watermark: 1, voters, observers: Vec::new() }
    }

    #[test]
    fn what_the_leader_has_heard_is_by_its_own_clock() {
        let told = quorum(&[(1, Some(90_000)), (2, Some(70_000)), (3, None)]);
        let heard = [1, 2, 3, 4].map(|node| Heard::of(&told, node));
        assert_eq!(heard, [Heard::Ago(0), Heard::Ago(20_000), Heard::Never, Heard::Untold]);
        // One before Kafka 3.3 says nothing, not even of itself.
        let untold = quorum(&[(1, None), (2, None)]);
        assert_eq!([1, 2].map(|node| Heard::of(&untold, node)), [Heard::Untold; 2]);
    }

    #[test]
    fn states_follow_from_what_is_told() {
        let (listed, fenced) = ([true, false], [Some(true), Some(false), None]);
        let heard = [Heard::Ago(500), Heard::Ago(130_000), Heard::Never, Heard::Untold];
        let mut said = String::new();
        for is_listed in listed {
            for is_fenced in fenced.into_iter().filter(|fenced| is_listed || fenced.is_none()) {
                for heard in heard {
                    let state = Known { is_listed, is_fenced, heard, is_unreachable: false }.state();
                    said += &format!("{is_listed} {is_fenced:?} {heard:?}: {state}\n");
                }
            }
        }
        expect_test::expect![[r"
            true Some(true) Ago(500): fenced, starts or stops
            true Some(true) Ago(130000): fenced, silent for 2 min
            true Some(true) Never: away
            true Some(true) Untold: fenced
            true Some(false) Ago(500): up
            true Some(false) Ago(130000): silent for 2 min
            true Some(false) Never: up
            true Some(false) Untold: up
            true None Ago(500): up
            true None Ago(130000): silent for 2 min
            true None Never: up
            true None Untold: up
            false None Ago(500): up
            false None Ago(130000): silent for 2 min
            false None Never: away
            false None Untold: unknown
        "]]
        .assert_eq(&said);
        let unreachable = Known { is_listed: true, is_unreachable: true, ..Known::default() };
        assert_eq!(unreachable.state(), State::Unreachable);
    }

    #[test]
    fn spans_are_said_in_one_unit() {
        let said = [0, 119_999, 120_000, 7_199_000, 7_200_000, 172_800_000].map(|ms| Span(ms).to_string());
        assert_eq!(said, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
