//! Jobs by key, and which is next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Jobs that wait, and keys of which one runs.
#[derive(Debug)]
pub(super) struct KeyedQueue<K, J> {
    /// Keys with jobs of which none runs, in their turn.
    waiting: VecDeque<K>,
    /// Never empty lists.
    jobs: BTreeMap<K, VecDeque<J>>,
    running: BTreeSet<K>,
    /// Running keys that get the next turn when they are done.
    preferred: BTreeSet<K>,
}

impl<K, J> Default for KeyedQueue<K, J> {
    fn default() -> Self {
        KeyedQueue {
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            running: BTreeSet::new(),
            preferred: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Clone, J> KeyedQueue<K, J> {
    /// Adds a job behind those of its key.
    pub(super) fn push(&mut self, key: K, job: J) {
        if !self.jobs.contains_key(&key) && !self.running.contains(&key) {
            self.waiting.push_back(key.clone());
        }
        self.jobs.entry(key).or_default().push_back(job);
    }

    /// Gives a key the next turn, if it has jobs.
    pub(super) fn prefer(&mut self, key: &K) {
        if self.running.contains(key) {
            self.preferred.insert(key.clone());
        }
        if let Some(at) = self.waiting.iter().position(|waiting| waiting == key)
            && let Some(key) = self.waiting.remove(at)
        {
            self.waiting.push_front(key);
        }
    }

    /// The next job, with its key. Until [`Self::done`] no other one of that key is next.
    pub(super) fn next(&mut self) -> Option<(K, J)> {
        let key = self.waiting.pop_front()?;
        let jobs = self.jobs.get_mut(&key)?;
        let job = jobs.pop_front()?;
        if jobs.is_empty() {
            self.jobs.remove(&key);
        }
        self.running.insert(key.clone());
        Some((key, job))
    }

    /// The job of a key has ended.
    pub(super) fn done(&mut self, key: &K) {
        // Not of a queue that was taken away meanwhile.
        let (was_running, is_preferred) = (self.running.remove(key), self.preferred.remove(key));
        match was_running && self.jobs.contains_key(key) {
            true if is_preferred => self.waiting.push_front(key.clone()),
            true => self.waiting.push_back(key.clone()),
            false => {}
        }
    }

    /// Asserts what holds between any two calls.
    #[cfg(test)]
    fn check(&self) {
        assert!(self.jobs.values().all(|jobs| !jobs.is_empty()), "a key without jobs");
        for key in self.jobs.keys() {
            let turns = self.waiting.iter().filter(|waiting| *waiting == key).count();
            assert_eq!(turns, usize::from(!self.running.contains(key)), "turns of a key with jobs");
        }
        assert!(self.waiting.iter().all(|key| self.jobs.contains_key(key)), "a turn without a job");
        assert!(self.preferred.is_subset(&self.running), "preferred keys that do not run");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_job_at_a_time_and_the_preferred_one_is_next() {
        let mut queue = KeyedQueue::default();
        for (key, job) in [('a', 1), ('a', 2), ('b', 3), ('c', 4)] {
            queue.push(key, job);
            queue.check();
        }
        assert_eq!(queue.next(), Some(('a', 1)));
        queue.prefer(&'c');
        queue.prefer(&'a');
        queue.prefer(&'d');
        queue.check();
        assert_eq!((queue.next(), queue.next(), queue.next()), (Some(('c', 4)), Some(('b', 3)), None));
        queue.push('b', 5);
        queue.check();
        assert_eq!(queue.next(), None, "one of its key runs");
        queue.prefer(&'b');
        queue.check();
        queue.done(&'a');
        queue.done(&'b');
        queue.check();
        assert_eq!((queue.next(), queue.next(), queue.next()), (Some(('b', 5)), Some(('a', 2)), None));
        ['a', 'b', 'c'].iter().for_each(|key| queue.done(key));
        queue.check();
        assert_eq!(queue.next(), None);
    }
}
