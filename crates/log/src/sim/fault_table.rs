//! A table of faults. Each call that an action makes is refused in each way, and a table of Markdown shows the results of the
//! action.

use super::{Call, Hooked};
use crate::storage::StorageFault;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls of one kind on one kind of file that are refused, one after another.
const NTH_MAX: usize = 3;

/// A state of a storage, with what is known of it, in which one action is tried.
pub trait World {
    /// The storage of the action.
    fn storage(&self) -> &Hooked;

    /// Does the action, or what is left of it after it has failed.
    fn act(&mut self) -> Result<(), String>;

    /// The lasting effect, as the document names it; `None`: there is none, and what failed can be tried again.
    fn effect(&self) -> Option<&'static str>;

    /// Panics if something is not there that was acknowledged, or is there that was not: now, after a kill of the process
    /// or after a power cut.
    fn verify(self: Box<Self>, ending: Ending);
}

/// The end of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A kill of its process, and later a power cut, with a seed for what survives that.
    Kill(u64),
    /// A power cut of its machine, with the same.
    PowerCut(u64),
}

/// An action of a table.
pub struct Action {
    /// Its name in the document.
    pub name: &'static str,
    /// Makes the state in which it is done.
    pub prepare: Box<dyn Fn() -> Box<dyn World>>,
}

/// The duration of a fault.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// The one call.
    Once,
    /// That call and all of its kind after it, until the action is over.
    Lasting,
}

/// A call on a kind of file.
type Site = (Call, String);
/// The effects of each fault.
type Effects = [BTreeSet<&'static str>; 4];

/// Tries each action with each of its calls refused, and returns the table. `class` names the kind of a file by its path.
///
/// # Panics
/// If a rule of the vocabulary is broken: a shortage ends something for good, a world does not hold what was acknowledged,
/// or what can be tried again does not succeed.
pub fn fault_table(actions: &[Action], class: fn(&Path) -> String) -> String {
    let mut table = String::from(
        "| action | file (refused calls) | no space | no handles | medium | file |\n|---|---|---|---|---|---|\n",
    );
    let mut wrong = Vec::new();
    for action in actions {
        let mut rows: Vec<(Effects, Vec<Site>)> = Vec::new();
        for (site, count) in sites(action, class) {
            let effects =
                StorageFault::ALL.map(|fault| try_fault(action, class, &site, count, fault, &mut wrong));
            match rows.iter_mut().find(|(known, _)| *known == effects) {
                Some((_, sites)) => sites.push(site),
                None => rows.push((effects, vec![site])),
            }
        }
        for (effects, sites) in rows {
            let cells = effects.map(|effects| match effects.is_empty() {
                true => "-".to_owned(),
                false => effects.into_iter().collect::<Vec<_>>().join(", "),
            });
            let _ = writeln!(table, "| {} | {} | {} |", action.name, calls(&sites), cells.join(" | "));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} faults have an effect that they may not have:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    table
}

/// Calls by the kind of file that they are of.
fn calls(sites: &[Site]) -> String {
    let mut by_class: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (call, class) in sites {
        by_class.entry(class).or_default().push(verb(*call));
    }
    let of_class = |(class, verbs): (&str, Vec<&str>)| format!("{class} ({})", verbs.join(", "));
    by_class.into_iter().map(of_class).collect::<Vec<_>>().join("; ")
}

/// The calls that an action makes, and how many there are of each.
fn sites(action: &Action, class: fn(&Path) -> String) -> BTreeMap<Site, usize> {
    let mut world = (action.prepare)();
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let noted = seen.clone();
    world.storage().set_hook(move |call, path| {
        if call != Call::ReadCached {
            *noted.lock().entry((call, class(path))).or_insert(0) += 1;
        }
        Ok(())
    });
    let done = world.act();
    world.storage().clear_hook();
    assert_eq!((done, world.effect()), (Ok(()), None), "{}: without a fault", action.name);
    world.verify(Ending::Kill(0));
    let seen = seen.lock();
    assert!(!seen.is_empty(), "{}: it does nothing", action.name);
    seen.clone()
}

fn try_fault(
    action: &Action,
    class: fn(&Path) -> String,
    site: &Site,
    count: usize,
    fault: StorageFault,
    wrong: &mut Vec<String>,
) -> BTreeSet<&'static str> {
    let mut effects = BTreeSet::new();
    let Some(error) = error_of(fault, site.0) else { return effects };
    for nth in 0..count.min(NTH_MAX) {
        // Each ending comes with each extent, by turns.
        let seed = seed_of(site, nth);
        let endings = match (nth + fault as usize).is_multiple_of(2) {
            true => [Ending::Kill(seed), Ending::PowerCut(seed)],
            false => [Ending::PowerCut(seed), Ending::Kill(seed)],
        };
        for (extent, ending) in [Extent::Once, Extent::Lasting].into_iter().zip(endings) {
            let context = format!(
                "{}: {} {} {nth} ({fault}, {extent:?}), {ending:?}",
                action.name,
                verb(site.0),
                site.1
            );
            let tried =
                catch_unwind(AssertUnwindSafe(|| refuse(action, class, site, nth, error, extent, ending)));
            let Ok(effect) = tried else {
                wrong.push(format!("{context}: see the panic above"));
                continue;
            };
            let may = ["no effect", "refused, then done", UNCLEAN];
            if fault.is_temporary() && !is_sync_of_file(site.0) && !may.contains(&effect) {
                wrong.push(format!("{context}: a shortage has a lasting effect: {effect}"));
            }
            effects.insert(effect);
        }
    }
    effects
}

/// A seed that is another one for each call.
fn seed_of((call, class): &Site, nth: usize) -> u64 {
    class.bytes().fold(*call as u64 + 31 * nth as u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte))
}

/// The effect of a stop that was not orderly.
pub const UNCLEAN: &str = "the next start checks";

/// A sync that is asked of an open file says nothing by its error: the data may be lost, whatever it is.
fn is_sync_of_file(call: Call) -> bool {
    matches!(call, Call::Sync | Call::SyncFs)
}

#[allow(clippy::too_many_arguments, reason = "the place and the kind of one fault")]
fn refuse(
    action: &Action,
    class: fn(&Path) -> String,
    site: &Site,
    nth: usize,
    error: i32,
    extent: Extent,
    ending: Ending,
) -> &'static str {
    let mut world = (action.prepare)();
    let (site, seen) = (site.clone(), AtomicUsize::new(0));
    world.storage().set_hook(move |call, path| {
        if call != site.0 || class(path) != site.1 {
            return Ok(());
        }
        let number = seen.fetch_add(1, Ordering::Relaxed);
        let is_refused = match extent {
            Extent::Once => number == nth,
            Extent::Lasting => number >= nth,
        };
        if is_refused { Err(io::Error::from_raw_os_error(error)) } else { Ok(()) }
    });
    let done = world.act();
    world.storage().clear_hook();
    let effect = match (world.effect(), done) {
        (Some(lasting), _) => lasting,
        (None, Ok(())) => "no effect",
        (None, Err(reason)) => {
            let again = world.act();
            assert!(again.is_ok(), "it can be tried again after {reason:?}, and fails: {again:?}");
            "refused, then done"
        }
    };
    world.verify(ending);
    effect
}

/// The error of a fault that a call can have; `None`: it has none of this kind.
fn error_of(fault: StorageFault, call: Call) -> Option<i32> {
    // The sync of a directory asks for no free space.
    let takes_space =
        !matches!(call, Call::Open | Call::List | Call::Exists | Call::Read | Call::Len | Call::SyncDir);
    let opens =
        matches!(call, Call::Open | Call::Create | Call::List | Call::Lock | Call::SyncDir | Call::RemoveDir);
    match fault {
        StorageFault::NoSpace => takes_space.then_some(libc::ENOSPC),
        StorageFault::NoHandles => Some(if opens { libc::EMFILE } else { libc::ENOMEM }),
        StorageFault::Medium => Some(libc::EIO),
        StorageFault::File => Some(libc::EACCES),
    }
}

fn verb(call: Call) -> &'static str {
    match call {
        Call::Open => "open",
        Call::Create => "create",
        Call::List => "list",
        Call::Exists => "look for",
        Call::Rename => "rename",
        Call::RemoveFile | Call::RemoveDir => "remove",
        Call::CreateDir => "make",
        Call::SyncDir | Call::Sync => "sync",
        Call::Lock => "lock",
        Call::Write => "write",
        Call::Read | Call::ReadCached => "read",
        Call::Len => "measure",
        Call::SetLen => "cut",
        Call::Allocate => "reserve",
        Call::SyncFs => "sync the file system of",
    }
}
