//! The figures that are measured, their units, and what is to be reached.

/// A figure that runs report, by the key that it has in JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    /// Digits behind the point in tables.
    pub(crate) digits: usize,
}

const fn figure(key: &'static str, title: &'static str, digits: usize) -> Figure {
    Figure { key, title, digits }
}

/// In the order of the tables.
pub(crate) const FIGURES: [Figure; 12] = [
    figure("messages_per_s", "messages/s", 0),
    figure("messages_per_cpu_s", "messages per broker CPU-second", 0),
    figure("ack_p50_us", "ack p50, us", 1),
    figure("ack_p99_us", "ack p99, us", 1),
    figure("end_to_end_p50_us", "end-to-end p50, us", 1),
    figure("end_to_end_p99_us", "end-to-end p99, us", 1),
    figure("first_ack_ms", "start to first ack, ms", 1),
    figure("vm_hwm_mib", "VmHWM, MiB", 1),
    figure("vm_rss_mib", "VmRSS, MiB", 1),
    figure("idle_cpu_percent", "CPU at rest, % of one", 2),
    figure("driver_cpus", "CPUs used by the driver", 2),
    figure("other_cpus", "CPUs used by others", 2),
];

/// What a figure of ours must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// At least so many times Kafka's.
    TimesKafkaMin(f64),
    /// At most so many times Kafka's.
    TimesKafkaMax(f64),
    /// At most this.
    Max(f64),
}

impl Goal {
    /// The goals are set for the page cache, as Kafka runs by default.
    pub(crate) fn of(workload: &str, figure: &str, fsync: bool) -> Option<Self> {
        if fsync {
            return None;
        }
        match (workload, figure) {
            ("start", "first_ack_ms") => Some(Self::Max(60.0)),
            ("idle", "vm_hwm_mib") => Some(Self::Max(40.0)),
            ("start" | "idle", _) => None,
            (_, "messages_per_s") => Some(Self::TimesKafkaMin(3.0)),
            (_, "messages_per_cpu_s") => Some(Self::TimesKafkaMin(6.0)),
            (_, "ack_p99_us") => Some(Self::TimesKafkaMax(0.4)),
            (_, "end_to_end_p99_us") => Some(Self::TimesKafkaMax(0.15)),
            (_, "vm_hwm_mib") => Some(Self::Max(16.0)),
            _ => None,
        }
    }

    /// Whether the median of ours reaches it, given the ratio to Kafka; `None` if that was not measured.
    pub(crate) fn is_reached(self, median: f64, times_kafka: Option<f64>) -> Option<bool> {
        match self {
            Self::TimesKafkaMin(min) => times_kafka.map(|ratio| ratio >= min),
            Self::TimesKafkaMax(max) => times_kafka.map(|ratio| ratio <= max),
            Self::Max(max) => Some(median <= max),
        }
    }

    pub(crate) fn describe(self) -> String {
        match self {
            Self::TimesKafkaMin(min) => format!(">= {min}x kafka"),
            Self::TimesKafkaMax(max) => format!("<= {max}x kafka"),
            Self::Max(max) => format!("<= {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
        let goal = Goal::of("small-msg-saturate", "messages_per_s", false).unwrap();
        assert_eq!(goal.describe(), ">= 3x kafka");
        assert_eq!(goal.is_reached(1.0, Some(3.0)), Some(true));
        assert_eq!(goal.is_reached(1.0, Some(2.9)), Some(false));
        assert_eq!(goal.is_reached(1.0, None), None);
        let goal = Goal::of("idle", "vm_hwm_mib", false).unwrap();
        assert_eq!((goal.is_reached(40.0, None), goal.is_reached(40.1, None)), (Some(true), Some(false)));
        assert_eq!(Goal::of("small-msg-saturate", "ack_p99_us", true), None);
    }
}
