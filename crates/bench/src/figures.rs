//! The figures that runs report: their keys, titles and units.

/// A figure by the key that it has in JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    /// Digits behind the point in tables.
    pub(crate) digits: usize,
    /// True for a figure of the system, of which a ratio is meaningful; false for a circumstance of the run.
    pub(crate) is_of_system: bool,
}

const fn figure(key: &'static str, title: &'static str, digits: usize) -> Figure {
    Figure { key, title, digits, is_of_system: true }
}

/// A figure that describes the run, not the system.
const fn circumstance(key: &'static str, title: &'static str, digits: usize) -> Figure {
    Figure { key, title, digits, is_of_system: false }
}

/// In the order of the tables.
pub(crate) const FIGURES: [Figure; 79] = [
    figure("messages_per_s", "messages/s", 0),
    figure("messages_per_cpu_s", "messages per broker CPU-second", 0),
    figure("mib_per_s", "MiB/s", 1),
    figure("handshakes_per_s", "handshakes with a login/s", 0),
    figure("handshakes_per_cpu_s", "the same per broker CPU-second", 0),
    figure("of_undisturbed", "messages/s, of those undisturbed", 3),
    figure("p99_of_undisturbed", "ack p99, of the one undisturbed", 2),
    figure("transactions_per_s", "transactions/s", 0),
    figure("transactions_per_cpu_s", "transactions per broker CPU-second", 0),
    figure("commit_p50_us", "commit p50, us", 1),
    figure("commit_p99_us", "commit p99, us", 1),
    figure("commit_p999_us", "commit p99.9, us", 1),
    figure("commit_max_us", "commit max, us", 1),
    figure("transaction_p50_us", "whole transaction p50, us", 1),
    figure("transaction_p99_us", "whole transaction p99, us", 1),
    figure("uncommitted_mib_per_s", "read_uncommitted, MiB/s", 1),
    figure("committed_mib_per_s", "read_committed, MiB/s", 1),
    figure("committed_cost_percent", "cost of read_committed, %", 1),
    figure("broker_cpu_s", "broker CPU, s", 2),
    figure("ack_p50_us", "ack p50, us", 1),
    figure("ack_p90_us", "ack p90, us", 1),
    figure("ack_p99_us", "ack p99, us", 1),
    figure("ack_p999_us", "ack p99.9, us", 1),
    figure("ack_p9999_us", "ack p99.99, us", 1),
    figure("ack_max_us", "ack max, us", 1),
    figure("end_to_end_p50_us", "end-to-end p50, us", 1),
    figure("end_to_end_p90_us", "end-to-end p90, us", 1),
    figure("end_to_end_p99_us", "end-to-end p99, us", 1),
    figure("end_to_end_p999_us", "end-to-end p99.9, us", 1),
    figure("end_to_end_p9999_us", "end-to-end p99.99, us", 1),
    figure("end_to_end_max_us", "end-to-end max, us", 1),
    figure("publish_p50_us", "publish p50, us", 3),
    figure("publish_p90_us", "publish p90, us", 3),
    figure("publish_p99_us", "publish p99, us", 3),
    figure("publish_p999_us", "publish p99.9, us", 3),
    figure("publish_p9999_us", "publish p99.99, us", 2),
    figure("publish_max_us", "publish max, us", 1),
    figure("to_service_p50_us", "one hop p50, us", 2),
    figure("to_service_p99_us", "one hop p99, us", 2),
    figure("to_service_p999_us", "one hop p99.9, us", 2),
    figure("wake_p50_us", "wake-up p50, us", 1),
    figure("wake_p99_us", "wake-up p99, us", 1),
    figure("wake_p999_us", "wake-up p99.9, us", 1),
    figure("read_per_s", "read, messages/s", 0),
    figure("least_writer", "least writer, of the mean", 2),
    figure("rss_anon_mib", "memory of its own, most, MiB", 1),
    figure("rss_file_mib", "mapped files resident, most, MiB", 1),
    circumstance("written_mib", "written, MiB", 0),
    circumstance("process_cpus", "CPUs used by the process", 2),
    figure("pause_ms", "longest pause of acknowledgements, ms", 1),
    figure("shortest_pause_ms", "the same of the partition with the shortest, ms", 1),
    figure("elected_ms", "kill to the last new coordinator, ms", 1),
    figure("load_ms", "longest time from there to offsets, ms", 1),
    figure("shortest_load_ms", "shortest time from there to offsets, ms", 1),
    figure("offsets_ms", "kill to the offsets of all groups, ms", 1),
    figure("kept_first_mib", "kept, most in the first sixth, MiB", 1),
    figure("kept_most_mib", "kept, most, MiB", 1),
    figure("kept_growth", "kept, most, times of the first sixth", 2),
    figure("first_ack_ms", "start to first ack, ms", 1),
    figure("smallest_heap_mib", "smallest heap that holds, MiB", 0),
    figure("vm_hwm_mib", "VmHWM, MiB", 1),
    figure("vm_rss_mib", "VmRSS, MiB", 1),
    figure("vm_rss_growth_mib", "VmRSS growth, MiB", 1),
    figure("idle_cpu_percent", "CPU at rest, % of one", 2),
    circumstance("offered_per_s", "offered, messages/s", 0),
    circumstance("undisturbed_messages_per_s", "messages/s undisturbed", 0),
    circumstance("undisturbed_ack_p99_us", "ack p99 before the harm, us", 1),
    circumstance("unsent", "due in the window and never sent", 0),
    circumstance("late_p99_us", "made late by the driver p99, us", 1),
    circumstance("commits_per_s", "commits/s", 0),
    circumstance("visits", "clients that came, and went or died", 0),
    circumstance("slow_mib_per_s", "taken by slow consumers, MiB/s", 1),
    circumstance("from_disk_mib", "read from the disk by the broker, MiB", 0),
    circumstance("fdatasync_p99_us", "one fdatasync on the idle disk p99, us", 1),
    circumstance("fdatasync_loaded_p50_us", "one fdatasync under the load p50, us", 1),
    circumstance("fdatasync_loaded_p99_us", "one fdatasync under the load p99, us", 1),
    circumstance("fdatasync_loaded_p999_us", "one fdatasync under the load p99.9, us", 1),
    circumstance("driver_cpus", "CPUs used by the driver", 2),
    circumstance("other_cpus", "CPUs used by others", 2),
];

/// The figures that are printed as soon as a run is done.
const HEADLINE: [&str; 19] = [
    "handshakes_per_s",
    "of_undisturbed",
    "p99_of_undisturbed",
    "messages_per_s",
    "messages_per_cpu_s",
    "transactions_per_s",
    "transactions_per_cpu_s",
    "commit_p99_us",
    "committed_cost_percent",
    "ack_p50_us",
    "ack_p99_us",
    "end_to_end_p99_us",
    "pause_ms",
    "load_ms",
    "kept_growth",
    "first_ack_ms",
    "smallest_heap_mib",
    "vm_hwm_mib",
    "idle_cpu_percent",
];

impl Figure {
    /// The figure of that key.
    pub(crate) fn named(key: &str) -> Option<Self> {
        FIGURES.into_iter().find(|figure| figure.key == key)
    }
}

/// The main figures in a line.
pub(crate) fn headline(value: impl Fn(&str) -> Option<f64>) -> String {
    let shown = HEADLINE.iter().filter_map(|key| {
        let figure = Figure::named(key)?;
        Some(format!("{} {:.*}", figure.title, figure.digits, value(key)?))
    });
    shown.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headline_has_what_was_measured() {
        let value = |key: &str| match key {
            "messages_per_s" => Some(1234.5),
            "vm_hwm_mib" => Some(11.0),
            _ => None,
        };
        assert_eq!(headline(value), "messages/s 1234; VmHWM, MiB 11.0");
        assert!(HEADLINE.iter().all(|key| Figure::named(key).is_some()));
    }
}
