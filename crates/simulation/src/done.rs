//! Counts of what clients and nodes did in a run.

use std::collections::BTreeMap;

/// Number of actions, by their names.
#[derive(Debug, Default)]
pub(crate) struct Done(BTreeMap<&'static str, usize>);

impl Done {
    pub(crate) fn add(&mut self, name: &'static str) {
        self.add_many(name, 1);
    }

    pub(crate) fn add_many(&mut self, name: &'static str, count: usize) {
        if count > 0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    pub(crate) fn into_counts(self) -> BTreeMap<&'static str, usize> {
        self.0
    }
}
