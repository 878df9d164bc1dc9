//! Encodings of the journal and the links alike: big-endian numbers, and the members of a group. docs/format.md has the diagrams.

use crate::group::{Configuration, ReplicaId};
use crate::journal::REPLICAS_MAX;

/// Bytes that were not read yet. Each method takes from their front; `None`: there are too few.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next bytes, of this length.
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    /// 0 or 1; `None` also for another byte.
    pub(crate) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// An offset; `None` also for a negative one.
    pub(crate) fn offset(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes).filter(|offset| *offset >= 0)
    }

    /// The members of a group, as [`put_configuration`] writes them; `None` also for more than [`REPLICAS_MAX`] replicas. They are
    /// in any order, as the founder of a group may name them.
    pub(crate) fn configuration(&mut self) -> Option<Configuration> {
        let mut counts = [0; 4];
        for count in &mut counts {
            *count = usize::from(self.u16()?);
        }
        let auto_leave = self.bool()?;
        if counts.iter().sum::<usize>() > REPLICAS_MAX {
            return None;
        }
        let mut lists = [const { Vec::new() }; 4];
        for (list, count) in lists.iter_mut().zip(counts) {
            for _ in 0..count {
                list.push(ReplicaId(self.u64()?));
            }
        }
        let [voters, learners, voters_outgoing, learners_next] = lists;
        Some(Configuration { voters, learners, voters_outgoing, learners_next, auto_leave })
    }
}

/// Appends numbers.
pub(crate) fn put_u64(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
}

/// Appends who is in a group: the lengths of its lists, whether the leader ends a change by itself, and the lists.
pub(crate) fn put_configuration(out: &mut Vec<u8>, configuration: &Configuration) {
    let lists = configuration.lists();
    lists.iter().for_each(|list| out.extend_from_slice(&(list.len() as u16).to_be_bytes()));
    out.push(u8::from(configuration.auto_leave));
    configuration.replicas().for_each(|replica| put_u64(out, &[replica.0]));
}
