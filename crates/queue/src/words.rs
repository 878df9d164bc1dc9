//! Values of the control file's words.

/// Bits of [`Control::sleepers`](crate::control::Control::sleepers).
pub(crate) mod sleeper {
    /// A reader sleeps on [`Control::wake_sequence`](crate::control::Control::wake_sequence).
    pub(crate) const READER: u32 = 1;
    /// The broker sleeps on [`Control::broker_wake_sequence`](crate::control::Control::broker_wake_sequence).
    pub(crate) const BROKER: u32 = 2;
}

/// The published end of the open segment: a value of [`Control::end`](crate::control::Control::end).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    /// The number of rolls of the queue, modulo 2^32. It identifies the segment.
    pub(crate) roll: u32,
    /// Readable bytes of the open segment.
    pub(crate) bytes: u32,
}

impl End {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.roll) << 32 | u64::from(self.bytes)
    }

    pub(crate) fn unpack(word: u64) -> End {
        End { roll: (word >> 32) as u32, bytes: word as u32 }
    }
}
