//! Messages whose taking waits for a disk: those that have a log cut. A disk that hangs must not take the thread of a link with it: that
//! hears for all groups that their leaders live. So each log directory with such messages has a thread for as long as there are some.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use mainstem_runtime::supervised;

type Job = Box<dyn FnOnce() + Send>;

/// The jobs of directories that have some, in their order.
#[derive(Default)]
pub(super) struct DiskSteps {
    of_dirs: Mutex<BTreeMap<PathBuf, VecDeque<Job>>>,
    /// No thread is made: the jobs wait until they are run by hand.
    is_by_hand: AtomicBool,
}

impl DiskSteps {
    /// Has a job done behind those of the same directory; on this thread where the system has no other one.
    pub(super) fn push(self: &Arc<Self>, dir: &Path, job: Job) {
        match self.of_dirs.lock().entry(dir.to_owned()) {
            Entry::Occupied(mut jobs) => return jobs.get_mut().push_back(job),
            Entry::Vacant(jobs) => jobs.insert(VecDeque::from([job])),
        };
        if self.is_by_hand.load(Ordering::Relaxed) {
            return;
        }
        let (steps, of) = (self.clone(), dir.to_owned());
        let run = move || steps.run(&of);
        if supervised::spawn_vital("disk-steps", "a replica would be deaf to its leader", run).is_err() {
            self.run(dir);
        }
    }

    /// Makes no thread from now on.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn by_hand(&self) {
        self.is_by_hand.store(true, Ordering::Relaxed);
    }

    /// Runs all jobs that wait, where no thread does.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn run_all(&self) {
        let dirs: Vec<_> = self.of_dirs.lock().keys().cloned().collect();
        dirs.iter().for_each(|dir| self.run(dir));
    }

    /// Forgets all jobs that wait.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn forget_all(&self) {
        let jobs = std::mem::take(&mut *self.of_dirs.lock());
        drop(jobs);
    }

    fn run(&self, dir: &Path) {
        while let Some(job) = self.next(dir) {
            job();
        }
    }

    /// The next job of a directory; where there is none, the directory has no thread any more.
    fn next(&self, dir: &Path) -> Option<Job> {
        let mut of_dirs = self.of_dirs.lock();
        let job = of_dirs.get_mut(dir)?.pop_front();
        if job.is_none() {
            of_dirs.remove(dir);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_directory_that_hangs_holds_up_no_other_and_keeps_its_order() {
        let (steps, (done, seen), (release, gate)) =
            (Arc::<DiskSteps>::default(), channel(), channel::<()>());
        let say = |what: &'static str| {
            let done = done.clone();
            Box::new(move || done.send(what).expect("the test listens")) as Job
        };
        let first = say("a1");
        steps.push(
            Path::new("a"),
            Box::new(move || {
                gate.recv().expect("it is released");
                first();
            }),
        );
        steps.push(Path::new("a"), say("a2"));
        steps.push(Path::new("b"), say("b1"));
        assert_eq!(seen.recv(), Ok("b1"));
        release.send(()).expect("the job waits");
        assert_eq!([seen.recv(), seen.recv()], [Ok("a1"), Ok("a2")]);
        steps.push(Path::new("a"), say("a3"));
        assert_eq!(seen.recv(), Ok("a3"));
    }
}
