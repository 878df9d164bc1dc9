//! The goals of Mainstem, by workload and figure.

use crate::stats::Spread;
use crate::workload::Durability;

/// A goal for a figure of ours; of medians, unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// At least so many times the peer's.
    Min {
        peer: &'static str,
        times: f64,
    },
    /// At most so many times the peer's.
    Max {
        peer: &'static str,
        times: f64,
    },
    /// At least, or at most, so many times the peer's in the page cache, whatever the durability of ours.
    MinOfCached {
        peer: &'static str,
        times: f64,
    },
    MaxOfCached {
        peer: &'static str,
        times: f64,
    },
    /// At most so many times the p99 of acknowledgements before the harm.
    MaxOfUndisturbed {
        times: f64,
    },
    /// In every round at least so many times the peer's.
    EachMin {
        peer: &'static str,
        times: f64,
    },
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// At most so many times the p99 of one fdatasync under the load, as the probe reports it of the same rounds.
    MaxOfSync {
        times: f64,
    },
    /// At most so many times the p99 of one fdatasync on the disk that was idle before the same runs.
    MaxOfIdleSync {
        times: f64,
    },
}

const KAFKA: &str = "kafka";
const KAFKA_SECURED: &str = "kafka-sasl-ssl";
const CHRONICLE: &str = "chronicle";
const PROBE: &str = "probe";
const SYNC: &str = "fdatasync_loaded_p99_us";
const IDLE_SYNC: &str = "fdatasync_p99_us";
const UNDISTURBED: &str = "undisturbed_ack_p99_us";

/// The figure that ours is divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Divisor {
    /// The name of a system.
    pub(crate) peer: &'static str,
    /// Another figure than the one that is judged.
    pub(crate) key: Option<&'static str>,
    /// Another durability than the one that is judged.
    pub(crate) durability: Option<Durability>,
}

impl Divisor {
    const fn of(peer: &'static str) -> Self {
        Self { peer, key: None, durability: None }
    }

    const fn cached(peer: &'static str) -> Self {
        Self { durability: Some(Durability::PageCache), ..Self::of(peer) }
    }
}

/// The goals for a figure of a workload, each to be reached.
pub(crate) fn goals(workload: &str, key: &str, durability: Durability) -> Vec<Goal> {
    let (max, min) = (|times| Goal::Max { peer: KAFKA, times }, |times| Goal::Min { peer: KAFKA, times });
    let is_cached = durability == Durability::PageCache;
    if workload.starts_with("two-hops") || workload.starts_with("queue-") {
        return embedded(workload, key).into_iter().collect();
    }
    if workload.starts_with("replica") || workload.starts_with("leader-") {
        return replicated(workload, key, is_cached);
    }
    match (workload, key) {
        (_, "first_ack_ms" | "idle_cpu_percent" | "vm_hwm_mib" | "vm_rss_growth_mib") => {
            limit(workload, key).into_iter().collect()
        }
        ("small-msg-saturate" | "local-1kb-saturate", key) if is_cached => match key {
            "messages_per_s" => vec![min(3.0), Goal::Min { peer: PROBE, times: 0.75 }],
            "messages_per_cpu_s" => vec![min(6.0), Goal::Min { peer: PROBE, times: 0.75 }],
            "ack_p99_us" => vec![max(0.35)],
            "end_to_end_p99_us" => vec![max(0.08)],
            _ => Vec::new(),
        },
        (
            "fixed-rate-2000" | "fixed-rate-10000",
            "ack_p99_us" | "ack_p999_us" | "end_to_end_p99_us" | "end_to_end_p999_us",
        ) if is_cached => vec![max(if workload == "fixed-rate-2000" { 0.1 } else { 0.2 })],
        ("fixed-rate-2000" | "fixed-rate-10000", "ack_p99_us" | "end_to_end_p99_us") => {
            vec![max(0.5), Goal::MaxOfSync { times: 1.5 }]
        }
        ("pipelined-small" | "pipelined-1kb" | "many-partitions", "messages_per_s") if is_cached => {
            vec![min(2.0)]
        }
        ("pipelined-small" | "pipelined-1kb", "messages_per_cpu_s") if is_cached => vec![min(4.0)],
        ("bandwidth-in-acks-1" | "bandwidth-in-acks-all" | "bandwidth-out", "messages_per_s")
            if is_cached =>
        {
            vec![min(1.0), Goal::EachMin { peer: KAFKA, times: 0.9 }]
        }
        ("bandwidth-in-acks-1" | "bandwidth-in-acks-all", "broker_cpu_s") if is_cached => vec![max(0.35)],
        ("bandwidth-out", "broker_cpu_s") => vec![max(0.6)],
        ("handshakes-p256" | "handshakes-rsa", "handshakes_per_s") => {
            vec![Goal::Min { peer: KAFKA_SECURED, times: 3.0 }]
        }
        ("secured-logins" | "secured-strangers", "p99_of_undisturbed") => vec![Goal::AtMost(1.3)],
        ("secured-acls", "of_undisturbed") => vec![Goal::AtLeast(0.98)],
        ("transactions" | "transactions-eager", "transactions_per_s") if is_cached => vec![min(2.0)],
        ("transactions" | "transactions-eager", "transactions_per_cpu_s") if is_cached => vec![min(4.0)],
        ("transactions" | "transactions-eager", "commit_p99_us") if is_cached => vec![max(0.5)],
        ("read-committed", "committed_cost_percent") => vec![Goal::AtMost(5.0)],
        _ => Vec::new(),
    }
}

/// Goals of three nodes.
fn replicated(workload: &str, key: &str, is_cached: bool) -> Vec<Goal> {
    let (max, min) = (|times| Goal::Max { peer: KAFKA, times }, |times| Goal::Min { peer: KAFKA, times });
    let max_of_cached = |times| Goal::MaxOfCached { peer: KAFKA, times };
    match (workload, key) {
        ("replicated-closed", "messages_per_s") if !is_cached => {
            vec![Goal::MinOfCached { peer: KAFKA, times: 2.0 }, min(4.0)]
        }
        ("replicated-closed", "ack_p99_us") if !is_cached => vec![max_of_cached(0.4), max(0.2)],
        ("replicated-rate-1000" | "replicated-rate-5000", "end_to_end_p999_us") if !is_cached => {
            vec![max(0.25), max_of_cached(0.6)]
        }
        ("replicated-pipelined", "messages_per_s") => vec![min(2.0)],
        ("replicated-pipelined", "messages_per_cpu_s") => vec![min(2.5)],
        ("replica-stopped" | "replica-slow-disk", "ack_p99_us") => {
            vec![Goal::MaxOfUndisturbed { times: 1.5 }]
        }
        ("leader-killed", "pause_ms") => vec![max(0.1), Goal::AtMost(3_000.0)],
        ("leader-stopped", "pause_ms") => vec![max(0.4), Goal::AtMost(3_000.0)],
        ("replicated-idle", "vm_hwm_mib") => vec![Goal::AtMost(48.0)],
        ("replicated-idle", "idle_cpu_percent") => vec![Goal::AtMost(1.0)],
        ("replicated-start", "first_ack_ms") => vec![max(0.3)],
        ("offsets-load", "load_ms") => vec![max(0.3), Goal::AtMost(1_500.0)],
        ("offsets-load", "offsets_ms") => vec![Goal::AtMost(3_000.0)],
        ("offsets-kept", "kept_growth") => vec![Goal::AtMost(1.2)],
        ("offsets-kept", "kept_most_mib") => vec![Goal::AtMost(128.0)],
        _ => Vec::new(),
    }
}

/// Goals of embedded queues.
fn embedded(workload: &str, key: &str) -> Option<Goal> {
    let (max, min) = (
        |times| Some(Goal::Max { peer: CHRONICLE, times }),
        |times| Some(Goal::Min { peer: CHRONICLE, times }),
    );
    match (workload, key) {
        ("queue-write", "messages_per_s") => min(2.0),
        ("queue-contend", "messages_per_s") => min(1.0),
        ("queue-contend", "least_writer") => Some(Goal::AtLeast(0.1)),
        ("queue-wake", "wake_p50_us") => Some(Goal::AtMost(15.0)),
        ("queue-wake", "idle_cpu_percent") => Some(Goal::AtMost(0.5)),
        // The windows of docs/format.md, and the program: four appenders and a tailer; two and two at most.
        ("queue-contend", "rss_file_mib") => Some(Goal::AtMost(52.0)),
        (_, "rss_file_mib") => Some(Goal::AtMost(44.0)),
        (_, "publish_p50_us") => max(0.5),
        (_, "publish_p99_us") => max(0.35),
        (_, "publish_p999_us") => max(0.2),
        (_, "end_to_end_p50_us") => max(1.0),
        (_, "end_to_end_p99_us" | "end_to_end_p999_us") => max(0.5),
        _ => None,
    }
}

/// Goals that do not depend on a peer.
fn limit(workload: &str, key: &str) -> Option<Goal> {
    let most = match (workload, key) {
        ("start", "first_ack_ms") => 50.0,
        ("start-clean", "first_ack_ms") => 300.0,
        ("start-killed", "first_ack_ms") => 2_000.0,
        ("idle", "idle_cpu_percent") => 0.2,
        ("idle" | "many-partitions", "vm_hwm_mib") => 40.0,
        // The table of docs/memory.md: the program, and 64 responses of 256 KiB each.
        ("slow-consumers" | "transactional-ids", "vm_hwm_mib") => 32.0,
        ("soak", "vm_hwm_mib") => 32.0,
        ("soak", "vm_rss_growth_mib") => 2.0,
        ("small-msg-saturate" | "local-1kb-saturate", "vm_hwm_mib") => 16.0,
        _ => return None,
    };
    Some(Goal::AtMost(most))
}

impl Goal {
    /// Returns the value that is compared, and true if it reaches the goal; `None` if something that it needs was not measured. `ratio`
    /// returns the ratio to a peer's figure, `other` the median of another figure.
    pub(crate) fn judge(
        self,
        ours: f64,
        ratio: impl Fn(Divisor) -> Option<Spread>,
        other: impl Fn(&str) -> Option<f64>,
    ) -> Option<(f64, bool)> {
        let (value, is_reached) = match self {
            Self::Min { peer, times } => judged(ratio(Divisor::of(peer))?.median, |value| value >= times),
            Self::Max { peer, times } => judged(ratio(Divisor::of(peer))?.median, |value| value <= times),
            Self::MinOfCached { peer, times } => {
                judged(ratio(Divisor::cached(peer))?.median, |value| value >= times)
            }
            Self::MaxOfCached { peer, times } => {
                judged(ratio(Divisor::cached(peer))?.median, |value| value <= times)
            }
            Self::MaxOfUndisturbed { times } => judged(ours / other(UNDISTURBED)?, |value| value <= times),
            Self::EachMin { peer, times } => judged(ratio(Divisor::of(peer))?.min, |value| value >= times),
            Self::AtMost(most) => judged(ours, |value| value <= most),
            Self::AtLeast(least) => judged(ours, |value| value >= least),
            Self::MaxOfSync { times } => {
                let sync = Divisor { key: Some(SYNC), ..Divisor::of(PROBE) };
                judged(ratio(sync)?.median, |value| value <= times)
            }
            Self::MaxOfIdleSync { times } => judged(ours / other(IDLE_SYNC)?, |value| value <= times),
        };
        Some((value, is_reached))
    }

    /// Returns the goal that is judged instead if something that this one needs was not measured.
    pub(crate) fn instead(self) -> Option<Self> {
        match self {
            Self::MaxOfSync { times } => Some(Self::MaxOfIdleSync { times }),
            _ => None,
        }
    }

    /// The goal in words, without the figure's title.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Min { peer, times } => format!(">= {times}x {peer}"),
            Self::Max { peer, times } => format!("<= {times}x {peer}"),
            Self::MinOfCached { peer, times } => format!(">= {times}x {peer} in the page cache"),
            Self::MaxOfCached { peer, times } => format!("<= {times}x {peer} in the page cache"),
            Self::MaxOfUndisturbed { times } => format!("<= {times}x the p99 before the harm"),
            Self::EachMin { peer, times } => format!(">= {times}x {peer} in every round"),
            Self::AtMost(most) => format!("<= {most}"),
            Self::AtLeast(least) => format!(">= {least}"),
            Self::MaxOfSync { times } => format!("<= {times}x the p99 of one fdatasync under the load"),
            Self::MaxOfIdleSync { times } => {
                format!(
                    "<= {times}x the p99 of one fdatasync on the idle disk (no probe reported one under the load)"
                )
            }
        }
    }

    /// Returns true if the value that is judged is a ratio.
    pub(crate) fn is_ratio(self) -> bool {
        !matches!(self, Self::AtMost(_) | Self::AtLeast(_))
    }
}

fn judged(value: f64, is_reached: impl Fn(f64) -> bool) -> (f64, bool) {
    (value, is_reached(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figure;
    use crate::workload::Workload;

    fn judge(goal: Goal, ours: f64, ratio: f64, worst: f64) -> Option<(f64, bool)> {
        let spread = Spread { median: ratio, min: worst, max: 9.0 };
        let peers = |divisor: Divisor| (divisor == Divisor::of("kafka")).then_some(spread);
        goal.judge(ours, peers, |key| (key == IDLE_SYNC).then_some(100.0))
    }

    #[test]
    fn goals_are_judged_by_what_they_name() {
        let min = Goal::Min { peer: "kafka", times: 3.0 };
        assert_eq!(judge(min, 1.0, 3.0, 2.0), Some((3.0, true)));
        assert_eq!(judge(min, 1.0, 2.9, 2.0), Some((2.9, false)));
        assert_eq!(judge(Goal::Min { peer: "probe", times: 3.0 }, 1.0, 3.0, 2.0), None);
        assert_eq!(judge(Goal::Max { peer: "kafka", times: 0.5 }, 1.0, 0.6, 0.1), Some((0.6, false)));
        assert_eq!(judge(Goal::EachMin { peer: "kafka", times: 0.9 }, 1.0, 1.2, 0.8), Some((0.8, false)));
        assert_eq!(judge(Goal::AtMost(16.0), 16.0, 0.0, 0.0), Some((16.0, true)));
        assert_eq!(judge(Goal::AtLeast(0.1), 0.09, 0.0, 0.0), Some((0.09, false)));
    }

    #[test]
    fn a_latency_on_the_disk_is_judged_by_syncs_under_the_load_if_they_are_known() {
        let goal = Goal::MaxOfSync { times: 1.5 };
        let reported = Spread { median: 1.6, min: 1.0, max: 2.0 };
        let by_probe = |divisor: Divisor| (divisor.peer, divisor.key) == ("probe", Some(SYNC));
        let judged = goal.judge(140.0, |divisor| by_probe(divisor).then_some(reported), |_| Some(100.0));
        assert_eq!(judged, Some((1.6, false)));
        assert_eq!(judge(goal, 140.0, 1.0, 1.0), None, "they are not known");
        let instead = goal.instead().unwrap();
        assert_eq!(judge(instead, 140.0, 1.0, 1.0), Some((1.4, true)));
        assert!(goal.describe().ends_with("under the load") && instead.describe().contains("idle disk"));
        assert!(instead.is_ratio() && instead.instead().is_none());
    }

    #[test]
    fn goals_speak_of_workloads_and_figures_that_exist() {
        let of = |workload, key| goals(workload, key, Durability::PageCache);
        assert_eq!(of("small-msg-saturate", "messages_per_s").len(), 2);
        assert_eq!(of("fixed-rate-10000", "ack_p999_us"), [Goal::Max { peer: "kafka", times: 0.2 }]);
        assert_eq!(of("start-clean", "first_ack_ms"), [Goal::AtMost(300.0)]);
        assert_eq!(goals("small-msg-saturate", "messages_per_s", Durability::Fsync), []);
        assert_eq!(goals("fixed-rate-2000", "ack_p99_us", Durability::Fsync).len(), 2);
        let keys = ["broker_cpu_s", "idle_cpu_percent", "vm_hwm_mib", "end_to_end_p999_us", "first_ack_ms"];
        let of_nodes = ["pause_ms", UNDISTURBED];
        let of_queues = ["publish_p999_us", "least_writer", "wake_p50_us", "rss_file_mib"];
        let mut keys = keys.into_iter().chain([SYNC, IDLE_SYNC]).chain(of_queues).chain(of_nodes);
        assert_eq!(keys.find(|key| Figure::named(key).is_none()), None);
        for name in [
            "two-hops-25k",
            "queue-write",
            "queue-contend",
            "queue-wake",
            "bandwidth-out",
            "bandwidth-in-acks-1",
            "bandwidth-in-acks-all",
            "many-partitions",
            "idle",
            "replicated-closed",
            "replicated-rate-1000",
            "replicated-rate-5000",
            "replicated-pipelined",
            "replica-stopped",
            "replica-slow-disk",
            "leader-killed",
            "leader-stopped",
            "replicated-idle",
            "replicated-start",
        ] {
            assert!(Workload::parse(name).is_ok(), "{name}");
        }
    }
}
