//! CPU time and memory of a process and of all CPUs, from Linux' /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Returns the CPU time, user and system, of a process with all its threads, with a resolution of one tick (10 ms).
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    sum_of_stat(pid, OWN_TIMES)
}

/// Returns the CPU time of a process, and of the children that it has waited for.
pub(crate) fn cpu_time_with_children(pid: u32) -> Result<Duration> {
    sum_of_stat(pid, OWN_TIMES + CHILDREN_TIMES)
}

/// Returns the CPU time of a process, and of its children, both ended and running.
pub(crate) fn cpu_time_of_family(pid: u32) -> Result<Duration> {
    let mut sum = cpu_time_with_children(pid)?;
    for entry in fs::read_dir("/proc")?.flatten() {
        // A process may end during the look.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if parent_of_stat(&stat) == Some(pid) {
            sum += ticks_of_stat(&stat, OWN_TIMES).map(ticks).unwrap_or_default();
        }
    }
    Ok(sum)
}

fn parent_of_stat(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Number of time fields of a stat file for the process itself: utime and stime. Those of its children follow.
const OWN_TIMES: usize = 2;
const CHILDREN_TIMES: usize = 2;

fn sum_of_stat(pid: u32, fields: usize) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} has ended"))?;
    ticks_of_stat(&stat, fields).map(ticks).with_context(|| format!("reading /proc/{pid}/stat"))
}

/// CPU time that all processes of the machine used since boot, without waiting for disks.
pub(crate) fn machine_cpu_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    busy_ticks_of_stat(&stat).map(ticks).context("reading /proc/stat")
}

/// Resident memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    /// VmHWM: the most that it ever was.
    pub(crate) peak: u64,
    /// VmRSS: now.
    pub(crate) resident: u64,
}

pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} has ended"))?;
    memory_of_status(&status).with_context(|| format!("reading /proc/{pid}/status"))
}

/// Resident memory in bytes, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Resident {
    /// RssAnon: its own.
    pub(crate) anonymous: u64,
    /// RssFile and RssShmem: pages of files, which others may have too and the kernel can take back.
    pub(crate) of_files: u64,
}

pub(crate) fn resident(pid: u32) -> Result<Resident> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} has ended"))?;
    resident_of_status(&status).with_context(|| format!("reading /proc/{pid}/status"))
}

fn resident_of_status(status: &str) -> Option<Resident> {
    let of_files = kib_of_status(status, "RssFile:")? + kib_of_status(status, "RssShmem:")?;
    Some(Resident { anonymous: kib_of_status(status, "RssAnon:")? * 1024, of_files: of_files * 1024 })
}

/// Returns the bytes that a process has caused to be read from disks, by the kernel's count, without what was in the page cache.
pub(crate) fn bytes_from_disk(pid: u32) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io"))
        .with_context(|| format!("the I/O of process {pid} cannot be read"))?;
    read_bytes_of_io(&io).with_context(|| format!("reading /proc/{pid}/io"))
}

fn read_bytes_of_io(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// Returns (name, CPU time) of every process that can be read, to find those that keep the machine busy.
pub(crate) fn all_cpu_times() -> Vec<(u32, String, Duration)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let name = stat.split_once('(')?.1.rsplit_once(')')?.0.to_owned();
            Some((pid, name, ticks(ticks_of_stat(&stat, OWN_TIMES)?)))
        })
        .collect()
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the sum of so many fields from the 14th on. The second field is a name in parentheses that may contain anything.
fn ticks_of_stat(stat: &str, fields: usize) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(fields);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns the busy ticks of the first line (all CPUs): user, nice, system, idle, iowait, irq, softirq, steal. Steal is time that the
/// machine did not have, so it counts as used by others.
fn busy_ticks_of_stat(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let &[user, nice, system, _idle, _iowait, irq, softirq, steal] = fields.as_slice() else { return None };
    Some(user + nice + system + irq + softirq + steal)
}

fn memory_of_status(status: &str) -> Option<Memory> {
    let kib = |key: &str| kib_of_status(status, key);
    Some(Memory { peak: kib("VmHWM:")? * 1024, resident: kib("VmRSS:")? * 1024 })
}

fn kib_of_status(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 10 0 0 0 120 45 0 0 20 0 9 0 5 6 7";
        assert_eq!(ticks_of_stat(stat, 2), Some(165));
        assert_eq!(parent_of_stat(stat), Some(1));
        assert_eq!(ticks_of_stat(&stat.replace("45 0 0", "45 7 3"), 4), Some(175));
        assert_eq!(busy_ticks_of_stat("cpu  1 2 4 100 200 8 16 32 64 0\ncpu0 9 9"), Some(63));
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(memory_of_status(status), Some(Memory { peak: 2 << 20, resident: 1 << 20 }));
        assert_eq!(memory_of_status("Name:\tzombie\n"), None);
        let status = "RssAnon:\t 8 kB\nRssFile:\t 4 kB\nRssShmem:\t 2 kB\n";
        assert_eq!(resident_of_status(status), Some(Resident { anonymous: 8 << 10, of_files: 6 << 10 }));
        assert_eq!(read_bytes_of_io("rchar: 9\nread_bytes: 4096\nwrite_bytes: 7\n"), Some(4096));
    }

    #[test]
    fn this_process_is_found() {
        let pid = std::process::id();
        assert!(memory(pid).unwrap().resident > 0);
        assert!(bytes_from_disk(pid).is_ok());
        assert!(machine_cpu_time().unwrap() >= cpu_time(pid).unwrap());
        assert!(all_cpu_times().iter().any(|(other, ..)| *other == pid));
    }
}
