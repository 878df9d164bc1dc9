//! The table of the effects of failing file calls ([`calls`](super::calls)) on actions, for a part of docs/faults.md.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use super::calls::{Fault, Place, Seen};

/// The longest wait for anything in these tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Each of the first calls of a kind fails, so many at most.
const CALLS_MAX: u64 = 3;
/// Cases at one time: most of them wait for something.
const THREADS: usize = 48;
/// The faults, in the order of the table.
const FAULTS: [(&str, i32); 4] =
    [("no space", libc::ENOSPC), ("no handles", libc::EMFILE), ("medium", libc::EIO), ("file", libc::EACCES)];

/// An action that is done while a call fails.
pub(crate) trait Action: Sync {
    fn name(&self) -> &'static str;

    /// The calls that it makes if none fails.
    fn places(&self) -> Vec<Place>;

    /// Does it once, with a fault. Returns its effect, or none if it made no call that would have failed.
    ///
    /// # Panics
    /// If a promise is broken.
    fn effect(&self, fault: Fault) -> Option<&'static str>;
}

/// Returns true for a fault that may end by itself: when there is space again, or a descriptor.
pub(crate) fn is_temporary(fault: Fault) -> bool {
    [libc::ENOSPC, libc::EMFILE].contains(&fault.errno)
}

/// The table of actions: one call fails, and for want of space or handles also all of its kind.
///
/// # Panics
/// If a promise is broken, with all cases in which one is, or if a case does not end.
pub(crate) fn table(actions: &'static [impl Action]) -> String {
    let numbered = actions.iter().enumerate();
    let places =
        numbered.flat_map(|(number, action)| action.places().into_iter().map(move |place| (number, place)));
    let work: Arc<[(usize, Place)]> = places.collect();
    let next = Arc::new(AtomicUsize::new(0));
    let (ended, steps) = mpsc::channel();
    for _ in 0..THREADS {
        let (work, next, ended) = (Arc::clone(&work), Arc::clone(&next), ended.clone());
        thread::spawn(move || {
            while let Some(&(number, place)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let effects = effects(&actions[number], place, &ended);
                let _ = ended.send(Step::Place(number, effects));
            }
        });
    }
    drop(ended);
    let (mut found, mut broken, mut left) = (BTreeMap::<_, Effects>::new(), Vec::new(), work.len());
    while left > 0 {
        match steps.recv_timeout(TIMEOUT).expect("each case ends, and no thread fails") {
            Step::Case(name) => broken.extend(name),
            Step::Place(number, effects) => {
                found.entry(number).or_default().extend(effects);
                left -= 1;
            }
        }
    }
    assert!(broken.is_empty(), "{} cases break a promise:\n{}", broken.len(), broken.join("\n"));
    let columns = FAULTS.map(|(name, _)| name).join(" | ");
    let head = format!("| action | calls | {columns} |\n|---|---|{}\n", "---|".repeat(FAULTS.len()));
    head + &found.iter().map(|(number, effects)| rows(actions[*number].name(), effects)).collect::<String>()
}

/// The progress of a thread.
enum Step {
    /// A case, and what was said if a promise was broken in it.
    Case(Option<String>),
    /// All of an action's calls of a place.
    Place(usize, Effects),
}

/// Effects by the calls that failed and the fault's column.
type Effects = BTreeMap<(Place, usize), BTreeSet<&'static str>>;

/// The effects of each fault at an action's calls of a place.
fn effects(action: &impl Action, place: Place, ended: &Sender<Step>) -> Effects {
    let mut effects = Effects::new();
    for (column, &(_, errno)) in FAULTS.iter().enumerate() {
        let once = (1..=CALLS_MAX).map(|nth| Fault { place, nth, lasts: false, errno });
        // A shortage lasts for a while.
        let lasting = Some(Fault { place, nth: 1, lasts: true, errno }).filter(|fault| is_temporary(*fault));
        for faults in [once.collect::<Vec<_>>(), lasting.into_iter().collect()] {
            for fault in faults {
                let done = catch_unwind(AssertUnwindSafe(|| action.effect(fault)));
                let broken = done.as_ref().err().map(|panic| named(action, fault, said(&**panic)));
                let _ = ended.send(Step::Case(broken));
                match done {
                    Ok(None) => break,
                    Ok(Some(effect)) => drop(effects.entry((place, column)).or_default().insert(effect)),
                    Err(_) => {}
                }
            }
        }
    }
    effects
}

fn named(action: &impl Action, fault: Fault, said: &str) -> String {
    let Fault { place, nth, lasts, errno } = fault;
    let lasting = if lasts { " and those after it" } else { "" };
    format!("{}: {place}, call {nth}{lasting}, error {errno}: {said}", action.name())
}

/// The words of a panic.
fn said(panic: &dyn Any) -> &str {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// The rows of an action: calls of equal effects share one.
fn rows(action: &str, effects: &Effects) -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for place in effects.keys().map(|(place, _)| *place).collect::<BTreeSet<_>>() {
        let cells: String = (0..FAULTS.len()).map(|column| cell(effects.get(&(place, column)))).collect();
        match rows.iter_mut().find(|(other, _)| *other == cells) {
            Some((_, places)) => places.push(place.to_string()),
            None => rows.push((cells, vec![place.to_string()])),
        }
    }
    let row =
        |(cells, places): &(String, Vec<String>)| format!("| {action} | {} |{cells}\n", places.join(", "));
    rows.iter().map(row).collect()
}

fn cell(effects: Option<&BTreeSet<&'static str>>) -> String {
    let effects: Vec<_> = effects.into_iter().flatten().copied().collect();
    format!(" {} |", if effects.is_empty() { "-".to_owned() } else { effects.join(", ") })
}

/// An error names the file, and what was done to it.
///
/// # Panics
/// If it does not.
pub(crate) fn check_words(error: &impl std::error::Error, seen: &Seen) {
    const DONE: [&str; 9] = [
        "opening",
        "making",
        "reading",
        "writing",
        "allocating",
        "mapping",
        "cutting",
        "syncing",
        "deleting",
    ];
    let text = error.to_string();
    let path = seen.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    // What takes the place of a file is named as that.
    assert!(text.contains(path.trim_end_matches(".tmp")), "{path} is not in: {text}");
    assert!(DONE.iter().any(|done| text.contains(done)), "{text}");
}

/// A directory in memory, where there is one: thousands of queues are made and deleted.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("there is a place for files")
}
