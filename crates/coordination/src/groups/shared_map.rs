//! An ordered map whose clones share what none of them has changed since: a clone costs the same however large the map is.
//!
//! So a large group can be described without holding the coordinator up: the lock is held for a clone only, and the answer is written from
//! that. The map is a tree of nodes of up to [`FANOUT`] entries. A change copies the nodes on the way to its entry that a clone shares;
//! without clones it copies none.

use std::borrow::Borrow;
use std::fmt;
use std::iter::FusedIterator;
use std::slice;
use std::sync::Arc;

/// The most entries of a leaf, and children of a branch: a change copies at most that many for each level. Four levels hold 16 million
/// entries.
const FANOUT: usize = 64;
/// A node with fewer is merged with a neighbour, if both fit into one.
const FEW: usize = FANOUT / 4;

/// A map from `K` to `V` in the order of `K`.
#[derive(Clone)]
pub(crate) struct SharedMap<K, V> {
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

#[derive(Clone)]
enum Node<K, V> {
    /// Entries in order.
    Leaf(Vec<(K, V)>),
    /// Children in order. Only leaves have keys, so that the use count of a key is the number of its entries.
    Branch(Vec<Arc<Node<K, V>>>),
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// An entry with the key that the map holds.
    pub(crate) fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let (key, value) = &entries[search(entries, key).ok()?];
                    return Some((key, value));
                }
                Node::Branch(children) => node = &children[child_of(children, key)],
            }
        }
    }

    /// The value of a key, to be changed.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut node = Arc::make_mut(self.root.as_mut()?);
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = search(entries, key).ok()?;
                    return Some(&mut entries[at].1);
                }
                Node::Branch(children) => {
                    let at = child_of(children, key);
                    node = Arc::make_mut(&mut children[at]);
                }
            }
        }
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Inserts an entry; returns the value that it replaces.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            (self.root, self.len) = (Some(Arc::new(Node::Leaf(vec![(key, value)]))), 1);
            return None;
        };
        let split = match Arc::make_mut(root).insert(key, value, true) {
            Inserted::Replaced(before) => return Some(before),
            Inserted::Added(split) => split,
        };
        self.len += 1;
        if let Some(right) = split {
            let left = self.root.take();
            self.root = Some(Arc::new(Node::Branch(left.into_iter().chain([right]).collect())));
        }
        None
    }

    /// Removes an entry, if it exists.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Removes an entry, if it exists, and returns the key that the map held.
    pub(crate) fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let removed = Arc::make_mut(self.root.as_mut()?).remove(key)?;
        self.len -= 1;
        self.lower();
        Some(removed)
    }

    /// Drops root levels with a single child.
    fn lower(&mut self) {
        if self.is_empty() {
            self.root = None;
        }
        while let Some(Node::Branch(children)) = self.root.as_deref()
            && let [only] = children.as_slice()
        {
            self.root = Some(only.clone());
        }
    }

    /// Every entry, in order.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { branches: Vec::new(), leaf: [].iter() };
        if let Some(root) = &self.root {
            iter.enter(root);
        }
        iter
    }

    /// Every key, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Every value, in the order of the keys.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The value of a key, to be changed; a new one if there is none.
    pub(crate) fn get_or_default(&mut self, key: &K) -> &mut V
    where
        V: Default,
    {
        if !self.contains_key(key) {
            self.insert(key.clone(), V::default());
        }
        self.get_mut(key).expect("it is there")
    }

    /// The same values under other keys. Values are shared, as those of a clone.
    pub(crate) fn with_keys(&self, mut key: impl FnMut(&K) -> K) -> Self {
        let mut renamed = Self::default();
        self.iter().for_each(|(of, value)| _ = renamed.insert(key(of), value.clone()));
        renamed
    }

    /// Every value, in the order of the keys, to be changed. It copies all that a clone shares.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let mut iter = IterMut { branches: Vec::new(), leaf: [].iter_mut() };
        if let Some(root) = &mut self.root {
            iter.enter(Arc::make_mut(root));
        }
        iter
    }
}

enum Inserted<K, V> {
    Replaced(V),
    /// Added. The node behind it is there if the node was split.
    Added(Option<Arc<Node<K, V>>>),
}

impl<K, V> Node<K, V> {
    /// Number of entries, or of children.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Branch(children) => children.len(),
        }
    }

    /// The first key.
    fn first(&self) -> &K {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(entries) => return &entries[0].0,
                Node::Branch(children) => node = &children[0],
            }
        }
    }
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    /// Inserts an entry in order. `is_last`: no node of the level is behind this one.
    fn insert(&mut self, key: K, value: V, is_last: bool) -> Inserted<K, V> {
        match self {
            Node::Leaf(entries) => match search(entries, &key) {
                Ok(at) => Inserted::Replaced(std::mem::replace(&mut entries[at].1, value)),
                Err(at) => {
                    let right = put(entries, at, (key, value), is_last);
                    Inserted::Added(right.map(|right| Arc::new(Node::Leaf(right))))
                }
            },
            Node::Branch(children) => {
                let at = child_of(children, &key);
                let is_last_child = is_last && at + 1 == children.len();
                let split = match Arc::make_mut(&mut children[at]).insert(key, value, is_last_child) {
                    Inserted::Added(Some(split)) => split,
                    done => return done,
                };
                let right = put(children, at + 1, split, is_last);
                Inserted::Added(right.map(|right| Arc::new(Node::Branch(right))))
            }
        }
    }

    /// Removes an existing entry.
    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        match self {
            Node::Leaf(entries) => Some(entries.remove(search(entries, key).ok()?)),
            Node::Branch(children) => {
                let at = child_of(children, key);
                let child = Arc::make_mut(&mut children[at]);
                let removed = child.remove(key)?;
                if child.len() < FEW {
                    join(children, at);
                }
                Some(removed)
            }
        }
    }

    /// Adds what follows.
    fn append(&mut self, right: Self) {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(mut right)) => left.append(&mut right),
            (Node::Branch(left), Node::Branch(mut right)) => left.append(&mut right),
            _ => unreachable!("all leaves are equally deep"),
        }
    }
}

/// Returns the index of a key in a leaf, or the index at which it belongs.
fn search<K: Borrow<Q>, V, Q: Ord + ?Sized>(entries: &[(K, V)], key: &Q) -> Result<usize, usize> {
    entries.binary_search_by(|(at, _)| at.borrow().cmp(key))
}

/// The child that has a key, if any has.
fn child_of<K: Borrow<Q>, V, Q: Ord + ?Sized>(children: &[Arc<Node<K, V>>], key: &Q) -> usize {
    children.partition_point(|child| child.first().borrow() <= key).saturating_sub(1)
}

/// Inserts an item into a node. A full node is split, and the node behind it is returned. That one gets half of the items, or the last item
/// alone if the item is the last of all: so nodes are full.
fn put<T>(items: &mut Vec<T>, at: usize, item: T, is_last: bool) -> Option<Vec<T>> {
    if items.len() < FANOUT {
        items.insert(at, item);
        return None;
    }
    let middle = if is_last && at == FANOUT { FANOUT } else { FANOUT / 2 };
    let mut right = items.split_off(middle);
    match at.checked_sub(middle) {
        Some(at) => right.insert(at, item),
        None => items.insert(at, item),
    }
    Some(right)
}

/// Merges a child with few entries with a neighbour, if both fit into one node.
fn join<K: Ord + Clone, V: Clone>(children: &mut Vec<Arc<Node<K, V>>>, at: usize) {
    let fits = |left: usize| {
        let right = children.get(left + 1);
        right.is_some_and(|right| children[left].len() + right.len() <= FANOUT)
    };
    let lefts = [Some(at), at.checked_sub(1)];
    if let Some(left) = lefts.into_iter().flatten().find(|left| fits(*left)) {
        let right = Arc::unwrap_or_clone(children.remove(left + 1));
        Arc::make_mut(&mut children[left]).append(right);
    } else if children[at].len() == 0 {
        children.remove(at);
    }
}

/// The entries of a [`SharedMap`].
pub(crate) struct Iter<'m, K, V> {
    /// The remaining children of each level.
    branches: Vec<slice::Iter<'m, Arc<Node<K, V>>>>,
    leaf: slice::Iter<'m, (K, V)>,
}

impl<'m, K, V> Iter<'m, K, V> {
    /// Descends to the first leaf of a node.
    fn enter(&mut self, mut node: &'m Node<K, V>) {
        loop {
            match node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return;
                }
                Node::Branch(children) => {
                    let mut children = children.iter();
                    let Some(first) = children.next() else { return };
                    self.branches.push(children);
                    node = first;
                }
            }
        }
    }
}

impl<'m, K, V> Iterator for Iter<'m, K, V> {
    type Item = (&'m K, &'m V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.branches.last_mut()?.next() {
                Some(child) => self.enter(child),
                None => _ = self.branches.pop(),
            }
        }
    }
}

impl<K, V> FusedIterator for Iter<'_, K, V> {}

/// The values of a [`SharedMap`], to be changed.
struct IterMut<'m, K, V> {
    branches: Vec<slice::IterMut<'m, Arc<Node<K, V>>>>,
    leaf: slice::IterMut<'m, (K, V)>,
}

impl<'m, K: Clone, V: Clone> IterMut<'m, K, V> {
    fn enter(&mut self, mut node: &'m mut Node<K, V>) {
        loop {
            match node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter_mut();
                    return;
                }
                Node::Branch(children) => {
                    let mut children = children.iter_mut();
                    let Some(first) = children.next() else { return };
                    self.branches.push(children);
                    node = Arc::make_mut(first);
                }
            }
        }
    }
}

impl<'m, K: Clone, V: Clone> Iterator for IterMut<'m, K, V> {
    type Item = &'m mut V;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((_, value)) = self.leaf.next() {
                return Some(value);
            }
            match self.branches.last_mut()?.next() {
                Some(child) => self.enter(Arc::make_mut(child)),
                None => _ = self.branches.pop(),
            }
        }
    }
}

impl<'m, K: Ord + Clone, V: Clone> IntoIterator for &'m SharedMap<K, V> {
    type Item = (&'m K, &'m V);
    type IntoIter = Iter<'m, K, V>;

    fn into_iter(self) -> Iter<'m, K, V> {
        self.iter()
    }
}

impl<K: Ord + Clone + PartialEq, V: Clone + PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone, V: Clone + Eq> Eq for SharedMap<K, V> {}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
        /// Asserts that all leaves are equally deep, that keys ascend and are where they are looked for, and that the nodes are
        /// not more than the entries need.
        fn check(&self) {
            let Some(root) = &self.root else { return assert_eq!(self.len, 0) };
            let (mut depths, mut nodes) = (Vec::new(), 0);
            walk(root, 0, &mut depths, &mut nodes);
            assert!(depths.windows(2).all(|pair| pair[0] == pair[1]), "depths of leaves: {depths:?}");
            let keys: Vec<&K> = self.keys().collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "keys are out of order");
            assert_eq!(keys.len(), self.len);
            assert!(keys.iter().all(|key| self.contains_key(*key)), "a key is not where it is looked for");
            assert!(
                nodes <= 2 + depths[0] + self.len * 16 / FANOUT,
                "{nodes} nodes for {} entries",
                self.len
            );
        }
    }

    fn walk<K, V>(node: &Node<K, V>, depth: usize, depths: &mut Vec<usize>, nodes: &mut usize) {
        *nodes += 1;
        match node {
            Node::Leaf(entries) => {
                assert!((1..=FANOUT).contains(&entries.len()), "a leaf of {}", entries.len());
                depths.push(depth);
            }
            Node::Branch(children) => {
                assert!((1..=FANOUT).contains(&children.len()), "a branch of {}", children.len());
                children.iter().for_each(|child| walk(child, depth + 1, depths, nodes));
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16),
        Remove(u16),
        /// Runs of keys, as offsets come and groups go.
        InsertAll(u16, u16),
        InsertAllDownwards(u16, u16),
        RemoveAll(u16, u16),
        Change(u16),
        ChangeAll,
        Clone,
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..3000_u16;
        prop_oneof![
            4 => key.clone().prop_map(Step::Insert),
            4 => key.clone().prop_map(Step::Remove),
            2 => (key.clone(), 1..800_u16).prop_map(|(first, count)| Step::InsertAll(first, count)),
            2 => (key.clone(), 1..800_u16).prop_map(|(first, count)| Step::InsertAllDownwards(first, count)),
            2 => (key.clone(), 1..800_u16).prop_map(|(first, count)| Step::RemoveAll(first, count)),
            3 => key.prop_map(Step::Change),
            1 => Just(Step::ChangeAll),
            2 => Just(Step::Clone),
        ]
    }

    proptest! {
        /// The map behaves like std's, and no clone sees later changes.
        #[test]
        fn it_is_a_map_and_its_clones_stay_as_they_were(steps in prop::collection::vec(step(), 1..60)) {
            let (mut map, mut model) = (SharedMap::default(), BTreeMap::new());
            let mut clones = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(key) => assert_eq!(map.insert(key, number), model.insert(key, number)),
                    Step::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key)),
                    Step::InsertAll(first, count) => (first..first + count).for_each(|key| {
                        assert_eq!(map.insert(key, number), model.insert(key, number));
                    }),
                    Step::InsertAllDownwards(first, count) => (first..first + count).rev().for_each(|key| {
                        assert_eq!(map.insert(key, number), model.insert(key, number));
                    }),
                    Step::RemoveAll(first, count) => (first..first + count).for_each(|key| {
                        assert_eq!(map.remove_entry(&key), model.remove_entry(&key));
                    }),
                    Step::Change(key) => {
                        let values = (map.get_mut(&key), model.get_mut(&key));
                        assert_eq!(values.0, values.1);
                        if let (Some(one), Some(other)) = values {
                            (*one, *other) = (number, number);
                        }
                    }
                    Step::ChangeAll => {
                        map.values_mut().for_each(|value| *value += 1);
                        model.values_mut().for_each(|value| *value += 1);
                    }
                    Step::Clone => clones.push((map.clone(), model.clone())),
                }
                map.check();
            }
            clones.push((map, model));
            for (map, model) in &clones {
                assert!(map.iter().eq(model.iter()), "{map:?} and not {model:?}");
            }
        }
    }

    /// A value that counts how often it is copied.
    struct Counted(Rc<Cell<usize>>);

    impl Clone for Counted {
        fn clone(&self) -> Self {
            self.0.set(self.0.get() + 1);
            Self(self.0.clone())
        }
    }

    /// Inserts descending keys behind a full leaf: they share leaves.
    #[test]
    fn leaves_are_filled_in_whatever_order_entries_come() {
        let mut map = SharedMap::default();
        (0..FANOUT).for_each(|key| _ = map.insert(key, ()));
        (FANOUT..20 * FANOUT).rev().for_each(|key| _ = map.insert(key, ()));
        map.check();
    }

    #[test]
    fn a_clone_visits_no_entry_and_a_change_after_it_those_of_one_leaf() {
        let copied = Rc::new(Cell::new(0));
        for count in [10, 1_000, 1_000_000] {
            let mut map = SharedMap::default();
            for key in 0..count {
                map.insert(key, Counted(copied.clone()));
            }
            let taken = |map: &mut dyn FnMut()| {
                copied.set(0);
                map();
                copied.get()
            };
            let mut clone = None;
            assert_eq!(taken(&mut || clone = Some(map.clone())), 0, "of {count}, cloned");
            let change = |map: &mut SharedMap<i32, Counted>| _ = map.get_mut(&(count / 2));
            assert!((1..=FANOUT).contains(&taken(&mut || change(&mut map))), "of {count}, changed");
            assert_eq!(taken(&mut || change(&mut map)), 0, "of {count}, changed again");
            assert!(taken(&mut || _ = map.insert(count, Counted(copied.clone()))) <= FANOUT);
            assert!(taken(&mut || _ = map.remove(&0)) <= 2 * FANOUT);
            assert_eq!(clone.map(|clone| clone.len()), usize::try_from(count).ok());
        }
    }
}
