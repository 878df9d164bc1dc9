//! One round of the flusher: the files and directories that a group of targets needs synced, and the results for each.

use super::{Counters, FlushOptions, FlushTarget, FlushWork, Method, OnFailure};
use crate::pool::Pool;
use crate::storage::{Storage, StorageFault, StorageFile};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Targets with their work, taken apart into items that can be synced by any thread.
pub(super) struct Round {
    items: Vec<Item>,
    members: Vec<Member>,
    /// Indexes of the items that are files which targets share.
    shared: Vec<usize>,
}

struct Item {
    what: Syncable,
    /// Indexes of the members that wait for this item: one for a file of its own, any number for one that is shared and for
    /// a directory.
    members: Vec<usize>,
}

enum Syncable {
    File(Arc<dyn StorageFile>),
    Directory(Arc<Path>),
}

struct Member {
    target: Arc<dyn FlushTarget>,
    upto: i64,
    items_left: AtomicUsize,
    error: Mutex<Option<io::Error>>,
    /// Directories that could not be opened.
    untried: Mutex<Vec<Arc<Path>>>,
}

/// A target of which all is synced except directories that could not be opened, for want of a handle. It waits for the
/// next round.
pub(super) struct Unfinished {
    target: Arc<dyn FlushTarget>,
    work: FlushWork,
}

impl Unfinished {
    fn is_of(&self, target: &Arc<dyn FlushTarget>) -> bool {
        Arc::as_ptr(&self.target).cast::<()>() == Arc::as_ptr(target).cast::<()>()
    }

    /// Tells the target that nothing more is tried.
    pub(super) fn give_up(self, error: io::Error) {
        self.target.end_flush(self.work.upto, Err(error));
    }
}

impl Round {
    /// Puts together what is left of earlier rounds and the work of every target that has nothing left there. The others
    /// stay: a target has one piece of work in progress at most.
    ///
    /// A ticket goes back first, so that a request which comes after `begin_flush` looked queues the target again.
    pub(super) fn begin(unfinished: Vec<Unfinished>, targets: &mut Vec<Arc<dyn FlushTarget>>) -> Round {
        let mut round = Round { items: Vec::new(), members: Vec::new(), shared: Vec::new() };
        let mut directories = HashMap::new();
        let fresh = |target: &mut Arc<dyn FlushTarget>| !unfinished.iter().any(|left| left.is_of(target));
        for target in targets.extract_if(.., fresh) {
            target.ticket().give_back();
            let work = target.begin_flush();
            round.add_member(&mut directories, target, work);
        }
        for left in unfinished {
            round.add_member(&mut directories, left.target, left.work);
        }
        round
    }

    fn add_member(
        &mut self,
        directories: &mut HashMap<Arc<Path>, usize>,
        target: Arc<dyn FlushTarget>,
        work: FlushWork,
    ) {
        let member = self.members.len();
        let mut items_left = work.files.len();
        let files = work.files.into_iter().map(Syncable::File);
        self.items.extend(files.map(|what| Item { what, members: vec![member] }));
        if let Some(shared) = work.shared {
            self.add_shared(shared, member);
            items_left += 1;
        }
        for directory in work.directories {
            items_left += usize::from(self.add_directory(directories, directory, member));
        }
        self.members.push(Member {
            target,
            upto: work.upto,
            items_left: AtomicUsize::new(items_left),
            error: Mutex::new(None),
            untried: Mutex::default(),
        });
    }

    fn add_shared(&mut self, file: Arc<dyn StorageFile>, member: usize) {
        // There is one for each log directory: the journal of its groups.
        let known = self.shared.iter().find(|index| match &self.items[**index].what {
            Syncable::File(other) => Arc::ptr_eq(other, &file),
            Syncable::Directory(_) => false,
        });
        match known {
            Some(index) => self.items[*index].members.push(member),
            None => {
                self.shared.push(self.items.len());
                self.items.push(Item { what: Syncable::File(file), members: vec![member] });
            }
        }
    }

    /// Adds a directory. Returns true if the member has to wait for it, which it does once.
    fn add_directory(
        &mut self,
        known: &mut HashMap<Arc<Path>, usize>,
        directory: Arc<Path>,
        member: usize,
    ) -> bool {
        let index = *known.entry(directory).or_insert_with_key(|directory| {
            let what = Syncable::Directory(directory.clone());
            self.items.push(Item { what, members: Vec::new() });
            self.items.len() - 1
        });
        let members = &mut self.items[index].members;
        let new = members.last() != Some(&member);
        if new {
            members.push(member);
        }
        new
    }

    fn sync_item(&self, index: usize, context: &SyncContext) {
        self.report(index, &self.outcome(index, context), context);
    }

    fn outcome(&self, index: usize, context: &SyncContext) -> Outcome<'_> {
        match &self.items[index].what {
            Syncable::File(file) => Outcome::Synced(file.sync_data()),
            Syncable::Directory(path) => match context.storage.sync_dir(path) {
                Err(error) if StorageFault::of(&error) == StorageFault::NoHandles => Outcome::NotTried(path),
                result => Outcome::Synced(result),
            },
        }
    }

    fn report(&self, index: usize, outcome: &Outcome<'_>, context: &SyncContext) {
        if let Outcome::Synced(Err(error)) = outcome {
            (context.on_failure)(error);
        }
        for member in &self.items[index].members {
            self.members[*member].item_done(outcome, context);
        }
    }

    /// Syncs all items, and lets no target hear of it yet.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn outcomes(&self, context: &SyncContext) -> Vec<io::Result<()>> {
        let result = |outcome| match outcome {
            Outcome::Synced(result) => result,
            Outcome::NotTried(_) => unreachable!("a simulated file system does not run out of handles"),
        };
        (0..self.items.len()).map(|index| result(self.outcome(index, context))).collect()
    }

    /// Tells every target what has come of its items.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn report_all(&self, results: Vec<io::Result<()>>, context: &SyncContext) {
        self.finish_without_items();
        for (index, result) in results.into_iter().enumerate() {
            self.report(index, &Outcome::Synced(result), context);
        }
    }

    /// Tells the members that wait for nothing (any more).
    fn finish_without_items(&self) {
        for member in &self.members {
            if member.items_left.load(Ordering::Acquire) == 0 {
                member.target.end_flush(member.upto, Ok(()));
            }
        }
    }

    fn finish_all(&self) {
        for member in &self.members {
            member.target.end_flush(member.upto, Ok(()));
        }
    }
}

/// The result for an item.
enum Outcome<'r> {
    Synced(io::Result<()>),
    /// There was no handle to sync this directory by, which says nothing about what is in it.
    NotTried(&'r Arc<Path>),
}

impl Member {
    fn item_done(&self, outcome: &Outcome<'_>, context: &SyncContext) {
        match outcome {
            Outcome::Synced(Ok(())) => {}
            Outcome::Synced(Err(error)) => {
                self.error.lock().get_or_insert_with(|| copy_error(error));
            }
            Outcome::NotTried(directory) => self.untried.lock().push((*directory).clone()),
        }
        // The release of each thread's error and the acquire of the last one meet here.
        if self.items_left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let result = self.error.lock().take().map_or(Ok(()), Err);
        let directories = std::mem::take(&mut *self.untried.lock());
        if result.is_err() {
            context.counters.failures.fetch_add(1, Ordering::Relaxed);
        } else if !directories.is_empty() {
            let work = FlushWork { directories, upto: self.upto, ..FlushWork::default() };
            context.unfinished.lock().push(Unfinished { target: self.target.clone(), work });
            return;
        }
        self.target.end_flush(self.upto, result);
    }
}

/// A result for one of several that get the same one.
pub(crate) fn copy_result(result: &io::Result<()>) -> io::Result<()> {
    result.as_ref().copied().map_err(copy_error)
}

/// An [`io::Error`] cannot be cloned.
fn copy_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// The parts of a flusher that its rounds use.
#[derive(Clone)]
pub(super) struct SyncContext {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) anchor: Arc<dyn StorageFile>,
    pub(super) options: FlushOptions,
    pub(super) on_failure: OnFailure,
    pub(super) counters: Arc<Counters>,
    pub(super) pool: Arc<Pool>,
    /// Work that the last round has left for the next one.
    pub(super) unfinished: Arc<Mutex<Vec<Unfinished>>>,
}

impl SyncContext {
    /// Takes the work that the last round has left.
    pub(super) fn take_unfinished(&self) -> Vec<Unfinished> {
        std::mem::take(&mut *self.unfinished.lock())
    }

    /// Returns true if the last round has left work.
    pub(super) fn has_unfinished(&self) -> bool {
        !self.unfinished.lock().is_empty()
    }

    /// Syncs a round and notifies every target.
    pub(super) fn sync(&mut self, round: Round) {
        self.counters.rounds.fetch_add(1, Ordering::Relaxed);
        self.counters.targets.fetch_add(round.members.len() as u64, Ordering::Relaxed);
        match self.options.method(round.items.len()) {
            Method::Sequential => self.sync_sequential(&round),
            Method::Parallel => self.sync_parallel(round),
            Method::SyncFs => self.sync_fs(round),
        }
    }

    fn sync_sequential(&self, round: &Round) {
        round.finish_without_items();
        for index in 0..round.items.len() {
            round.sync_item(index, self);
        }
    }

    /// Syncs a round by `syncfs`. An error of `syncfs` names no file, and may concern a file of another program. So each item is
    /// then synced by its own handle, whose result is that of its file. This is no second try: if pages of a file were lost,
    /// it is the first report that its handle gets.
    fn sync_fs(&mut self, round: Round) {
        match self.anchor.sync_fs() {
            Ok(()) => {
                self.counters.rounds_sync_fs.fetch_add(1, Ordering::Relaxed);
                round.finish_all();
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.options.sync_fs_files_min = usize::MAX;
                self.sync_parallel(round);
            }
            Err(error) => {
                tracing::error!(%error, "syncfs failed; every file is asked what became of it");
                self.sync_parallel(round);
            }
        }
    }

    fn sync_parallel(&self, round: Round) {
        round.finish_without_items();
        let crew = Arc::new(Crew::new(round, self.clone()));
        for _ in 0..self.options.helpers.min(crew.round.items.len().saturating_sub(1)) {
            let member = crew.clone();
            if self.pool.run(Box::new(move || member.work())).is_err() {
                break;
            }
        }
        crew.work();
        crew.wait();
    }
}

/// Threads that share the items of one round.
struct Crew {
    round: Round,
    context: SyncContext,
    next: AtomicUsize,
    done: Mutex<usize>,
    all_done: Condvar,
}

impl Crew {
    fn new(round: Round, context: SyncContext) -> Crew {
        Crew { round, context, next: AtomicUsize::new(0), done: Mutex::new(0), all_done: Condvar::new() }
    }

    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.round.items.len() {
                return;
            }
            self.round.sync_item(index, &self.context);
            let mut done = self.done.lock();
            *done += 1;
            if *done == self.round.items.len() {
                self.all_done.notify_one();
            }
        }
    }

    /// Waits until the items that the helpers took are synced too.
    fn wait(&self) {
        let mut done = self.done.lock();
        while *done < self.round.items.len() {
            self.all_done.wait(&mut done);
        }
    }
}
