//! Fields of type `records`: bytes at hand, or a hole that something else fills.

use std::borrow::Cow;
use std::fmt;

/// Record batches in a message.
#[derive(Clone, PartialEq, Eq)]
pub enum Records<'a> {
    /// The batches themselves.
    Bytes(Cow<'a, [u8]>),
    /// The number of bytes that the encoder leaves out. A file range or a shared buffer goes there.
    Hole(usize),
}

impl Records<'_> {
    /// Bytes of batches.
    pub fn len(&self) -> usize {
        match self {
            Records::Bytes(bytes) => bytes.len(),
            Records::Hole(len) => *len,
        }
    }

    /// Returns true if there are no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Records<'_> {
    fn default() -> Self {
        Records::Bytes(Cow::Borrowed(&[]))
    }
}

impl fmt::Debug for Records<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Records::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Records::Hole(len) => write!(f, "Hole({len})"),
        }
    }
}

/// A place of missing bytes in an encoder's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Index into the whole buffer: the missing bytes go before the byte at this index.
    pub at: usize,
    /// The number of missing bytes.
    pub len: usize,
}
