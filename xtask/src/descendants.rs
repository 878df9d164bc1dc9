//! Processes below this one: none outlives a run, however the run ends, and none outlives the suite that started it.
//!
//! This process is the reaper of its descendants: a process whose parent has ended becomes a child of this one, so that
//! `/proc` shows what a test left running.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Time in which processes that were asked to end may do so.
const GRACE: Duration = Duration::from_secs(3);
/// Time in which a process that a test has killed, or is about to, disappears by itself.
const LEAK_GRACE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(50);

/// A process, as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    parent: u32,
    is_zombie: bool,
    command: String,
}

/// Makes this process the parent of its orphaned descendants, and has SIGINT, SIGTERM and SIGHUP end all of them, then this one.
pub(crate) fn adopt() -> Result<()> {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from).context("adopt orphans")?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listen to signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("\ninterrupted: ending the processes of this run");
            end_all();
            process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Ends the orphans that are left after a grace period, and returns their command lines.
///
/// Every other child of this process has to have ended and been waited for.
pub(crate) fn end_orphans() -> Vec<String> {
    let deadline = Instant::now() + LEAK_GRACE;
    let left = loop {
        let left = running_children();
        if left.is_empty() || Instant::now() > deadline {
            break left;
        }
        thread::sleep(TICK);
    };
    if !left.is_empty() {
        end_all();
    }
    left
}

/// Command lines of the children that run; those that have ended are waited for.
fn running_children() -> Vec<String> {
    let own = process::id();
    let mut running = Vec::new();
    for (id, entry) in processes().into_iter().filter(|(_, entry)| entry.parent == own) {
        if entry.is_zombie {
            // If another thread has waited for it, it is gone at the next look.
            let _ = waitpid(pid(id), WaitOptions::NOHANG);
        } else {
            running.push(format!("{id}: {}", entry.command));
        }
    }
    running
}

/// Asks all descendants to end (SIGTERM), and kills those that do not.
fn end_all() {
    signal_all(Signal::TERM);
    let deadline = Instant::now() + GRACE;
    while !running_children().is_empty() && Instant::now() < deadline {
        thread::sleep(TICK);
    }
    // A process that is killed hands its children on: again until there are none.
    let deadline = Instant::now() + GRACE;
    while !running_children().is_empty() && Instant::now() < deadline {
        signal_all(Signal::KILL);
        thread::sleep(TICK);
    }
}

fn signal_all(signal: Signal) {
    for id in descendants(&processes(), process::id()) {
        if let Some(pid) = pid(id) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Ids of all processes below one.
fn descendants(processes: &BTreeMap<u32, Entry>, root: u32) -> Vec<u32> {
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        let children: Vec<u32> =
            processes.iter().filter(|(_, entry)| entry.parent == parent).map(|(id, _)| *id).collect();
        found.extend(&children);
        open.extend(children);
    }
    found
}

/// All processes of the machine that can be seen.
fn processes() -> BTreeMap<u32, Entry> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, entry(id)?))).collect()
}

fn entry(id: u32) -> Option<Entry> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (parent, is_zombie) = parse_stat(&stat)?;
    let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let words = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let command = words.take(COMMAND_WORDS_MAX).collect::<Vec<_>>().join(" ");
    Some(Entry { parent, is_zombie, command })
}

/// Words of a command line that are shown.
const COMMAND_WORDS_MAX: usize = 12;

/// The parent's id, and true where the process has ended: `ID (NAME) STATE PARENT ...`; the name may have any bytes.
fn parse_stat(stat: &str) -> Option<(u32, bool)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, state == "Z"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::wait_until;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_parent() {
        assert_eq!(parse_stat("12 (a) b) S 7 12 12 0"), Some((7, false)));
        assert_eq!(parse_stat("12 (x) Z 1 12"), Some((1, true)));
        assert_eq!(parse_stat("nothing"), None);
    }

    #[test]
    fn descendants_are_found_through_all_generations() {
        let entry = |parent| Entry { parent, is_zombie: false, command: String::new() };
        let processes: BTreeMap<u32, Entry> =
            [(2, entry(1)), (3, entry(2)), (4, entry(3)), (9, entry(8))].into();
        let mut found = descendants(&processes, 2);
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }

    #[test]
    fn a_child_is_seen_while_it_runs() {
        let mut child = process::Command::new("sleep").arg("60").spawn().unwrap();
        let shown = format!("{}: sleep 60", child.id());
        // Other tests of this program may have children as well. A process that has just begun has no command line for a moment.
        let is_seen = || Ok(running_children().iter().any(|line| line.trim_end() == shown));
        wait_until(|| format!("{shown} is seen"), Duration::from_secs(50), is_seen).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!running_children().iter().any(|line| line.trim_end() == shown));
    }
}
