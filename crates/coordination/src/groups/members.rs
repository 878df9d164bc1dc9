//! The members of a group by their ids.

use std::sync::Arc;

use super::member::MemberId;
use super::shared_map::{Iter, SharedMap};

/// Members of a group, in the order of their ids. A clone shares all that is not changed afterwards, so that a group can be described while
/// it changes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Members<M>(SharedMap<MemberId, Arc<M>>);

impl<M> Default for Members<M> {
    fn default() -> Self {
        Self(SharedMap::default())
    }
}

impl<M: Clone> Members<M> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains_key(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    pub(crate) fn get(&self, id: &str) -> Option<&M> {
        self.0.get(id).map(|member| &**member)
    }

    /// A member with its id as it is held here.
    pub(crate) fn get_key_value(&self, id: &str) -> Option<(&MemberId, &M)> {
        self.0.get_key_value(id).map(|(id, member)| (id, &**member))
    }

    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut M> {
        self.0.get_mut(id).map(Arc::make_mut)
    }

    /// Inserts a member; returns the one that had the id.
    pub(crate) fn insert(&mut self, id: MemberId, member: M) -> Option<M> {
        self.0.insert(id, Arc::new(member)).map(Arc::unwrap_or_clone)
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<M> {
        self.0.remove(id).map(Arc::unwrap_or_clone)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &MemberId> {
        self.0.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &M> {
        self.0.values().map(|member| &**member)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.0.values_mut().map(Arc::make_mut)
    }

    pub(crate) fn iter(&self) -> MembersIter<'_, M> {
        MembersIter(self.0.iter())
    }
}

/// The members of a group with their ids.
pub(crate) struct MembersIter<'m, M>(Iter<'m, MemberId, Arc<M>>);

impl<'m, M> Iterator for MembersIter<'m, M> {
    type Item = (&'m MemberId, &'m M);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(id, member)| (id, &**member))
    }
}

impl<'m, M: Clone> IntoIterator for &'m Members<M> {
    type Item = (&'m MemberId, &'m M);
    type IntoIter = MembersIter<'m, M>;

    fn into_iter(self) -> MembersIter<'m, M> {
        self.iter()
    }
}
