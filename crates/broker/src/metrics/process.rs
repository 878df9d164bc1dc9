//! The system's figures of the process, under the names that Prometheus' own libraries use.

use mainstem_operator::{Exposition, Kind};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Writes the figures that this system has.
pub(super) fn expose(text: &mut Exposition) {
    let Some(stat) = Stat::read() else { return };
    text.one(
        "process_cpu_seconds_total",
        Kind::Counter,
        "Seconds of CPU time, of user and system together.",
        stat.cpu_seconds,
    );
    text.one("process_resident_memory_bytes", Kind::Gauge, "Memory in use.", stat.resident_bytes);
    text.one("process_virtual_memory_bytes", Kind::Gauge, "Address space in use.", stat.virtual_bytes);
    text.one("process_threads", Kind::Gauge, "Threads.", stat.threads);
    if let Some(start) = stat.start_seconds {
        text.one("process_start_time_seconds", Kind::Gauge, "When the process began.", start);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        text.one("process_open_fds", Kind::Gauge, "Open descriptors.", open.count() as f64);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        text.one("process_max_fds", Kind::Gauge, "Descriptors that may be open.", most as f64);
    }
}

/// Fields of `/proc/self/stat` (proc(5)).
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    threads: f64,
    /// The start, in seconds since 1970.
    start_seconds: Option<f64>,
}

impl Stat {
    fn read() -> Option<Stat> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let boot = std::fs::read_to_string("/proc/stat").ok();
        let boot = boot.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("btime ")));
        Stat::parse(&stat, boot.and_then(|seconds| seconds.trim().parse().ok()))
    }

    /// Parses the file. The name in parentheses may have any characters; the numbers follow the last parenthesis.
    fn parse(stat: &str, boot_seconds: Option<f64>) -> Option<Stat> {
        let (_, numbers) = stat.rsplit_once(") ")?;
        let numbers: Vec<f64> = numbers.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
        // The first number is field 4.
        let field = |number: usize| numbers.get(number - 4).copied();
        let ticks = clock_ticks_per_second() as f64;
        Some(Stat {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            threads: field(20)?,
            start_seconds: boot_seconds.map(|boot| boot + field(22).unwrap_or_default() / ticks),
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page_size() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_found_behind_any_name() {
        let ticks = clock_ticks_per_second() as f64;
        let stat = "7 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 100 200 13 14 15 16 17 18 500 4096 3 0 0";
        let parsed = Stat::parse(stat, Some(1000.0)).expect("it is whole");
        assert_eq!(parsed.cpu_seconds, 300.0 / ticks);
        assert_eq!((parsed.threads, parsed.virtual_bytes), (17.0, 4096.0));
        assert_eq!(parsed.start_seconds, Some(1000.0 + 500.0 / ticks));
        assert_eq!(parsed.resident_bytes, 3.0 * page_size() as f64);
        assert_eq!(Stat::parse("7 (a) S 1 2", None), None);
    }
}
