//! The unfinished messages of a window: a slab, linked by offset and by offset within a slice.

/// No slot.
pub(super) const NONE: u16 = u16::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Behind another message of its slice.
    Queued,
    /// It may start.
    Ready,
    /// It may start when its time has come.
    Delayed,
    Running,
    /// The slot is free.
    Free,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) offset: i64,
    pub(super) not_before_ms: u64,
    pub(super) bytes: u32,
    pub(super) slice: u16,
    pub(super) previous: u16,
    pub(super) next: u16,
    pub(super) chain_previous: u16,
    pub(super) chain_next: u16,
    pub(super) state: State,
    pub(super) is_tried: bool,
}

const FREE: Slot = Slot {
    offset: 0,
    not_before_ms: 0,
    bytes: 0,
    slice: 0,
    previous: NONE,
    next: NONE,
    chain_previous: NONE,
    chain_next: NONE,
    state: State::Free,
    is_tried: false,
};

#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    first: u16,
    last: u16,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { slots: Vec::new(), free: Vec::new(), first: NONE, last: NONE }
    }
}

impl Slots {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    #[inline]
    pub(super) fn get(&self, slot: u16) -> &Slot {
        &self.slots[usize::from(slot)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[usize::from(slot)]
    }

    /// The message with the lowest offset.
    #[inline]
    pub(super) fn first(&self) -> Option<&Slot> {
        (self.first != NONE).then(|| self.get(self.first))
    }

    /// All, by offset.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &Slot)> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at)?;
            at = self.get(slot).next;
            Some((slot, self.get(slot)))
        })
    }

    /// The same from the last one backwards.
    pub(super) fn iter_back(&self) -> impl Iterator<Item = (u16, &Slot)> {
        let mut at = self.last;
        std::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at)?;
            at = self.get(slot).previous;
            Some((slot, self.get(slot)))
        })
    }

    /// The slot that is taken next.
    #[inline]
    pub(super) fn next(&self) -> u16 {
        let new = || u16::try_from(self.slots.len()).expect("a window has at most 1,024 slots");
        self.free.last().copied().unwrap_or_else(new)
    }

    /// A slot behind all others.
    #[inline]
    pub(super) fn append(&mut self, offset: i64, slice: u16, bytes: u32) -> u16 {
        let slot = self.next();
        if self.free.pop().is_none() {
            self.slots.push(FREE);
        }
        let previous = self.last;
        *self.get_mut(slot) = Slot { offset, slice, bytes, previous, state: State::Queued, ..FREE };
        match previous {
            NONE => self.first = slot,
            previous => self.get_mut(previous).next = slot,
        }
        self.last = slot;
        slot
    }

    /// Puts a slot behind the last one of its slice.
    pub(super) fn link_to_chain(&mut self, slot: u16, last: u16) {
        self.get_mut(slot).chain_previous = last;
        if last != NONE {
            self.get_mut(last).chain_next = slot;
        }
    }

    /// Takes a slot out of both lists.
    pub(super) fn remove(&mut self, slot: u16) {
        let one = *self.get(slot);
        match one.previous {
            NONE => self.first = one.next,
            previous => self.get_mut(previous).next = one.next,
        }
        match one.next {
            NONE => self.last = one.previous,
            next => self.get_mut(next).previous = one.previous,
        }
        if one.chain_previous != NONE {
            self.get_mut(one.chain_previous).chain_next = one.chain_next;
        }
        if one.chain_next != NONE {
            self.get_mut(one.chain_next).chain_previous = one.chain_previous;
        }
        *self.get_mut(slot) = FREE;
        self.free.push(slot);
    }

    pub(super) fn check(&self) {
        let listed: Vec<_> = self.iter().collect();
        assert_eq!(listed.len(), self.len(), "each slot is free or in the list");
        assert!(listed.iter().zip(listed.iter().skip(1)).all(|(a, b)| a.1.offset < b.1.offset), "by offset");
        assert!(listed.iter().all(|(_, one)| one.state != State::Free), "no free slot is in the list");
    }
}
