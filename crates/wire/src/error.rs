//! Errors of bytes that are decoded, and of messages that are encoded.

use thiserror::Error;

/// Bytes that are not the message they claim to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field} at byte {position}: {kind}")]
pub struct DecodeError {
    /// `Message.Field`, or `Message.Structure.Field` where the field sits in a nested structure.
    pub field: &'static str,
    /// Bytes from the start of the decoder's input to the fault.
    pub position: usize,
    /// The fault.
    pub kind: Malformed,
}

impl DecodeError {
    /// The name of the message.
    pub fn message(&self) -> &'static str {
        self.field.split('.').next().unwrap_or(self.field)
    }
}

/// The ways in which bytes can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The input ends within the field.
    #[error("{needed} bytes are needed where {remaining} remain")]
    Truncated {
        /// Bytes that the field wants.
        needed: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// A length or count below zero, or a string above 32,767 bytes.
    #[error("a length of {0}")]
    Length(i64),
    /// Null in a version that does not allow it.
    #[error("null where this version has no null")]
    Null,
    /// A variable-length integer above its width.
    #[error("a variable-length integer that does not end")]
    Varint,
    /// More elements than the remaining bytes can hold.
    #[error("{count} elements where {remaining} bytes remain")]
    Count {
        /// Elements that are claimed.
        count: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// The decoded message would need more memory than the decoder's budget.
    #[error("{needed} bytes of memory where the budget has {left} left")]
    Budget {
        /// Bytes that the elements would take.
        needed: usize,
        /// Bytes left in the budget.
        left: usize,
    },
    /// A tagged field whose value is shorter or longer than its size says.
    #[error("a tagged field of {size} bytes whose value takes {used}")]
    TaggedSize {
        /// The size that was given.
        size: usize,
        /// The bytes that were read.
        used: usize,
    },
    /// A version that the message does not have.
    #[error("version {0} does not exist")]
    Version(i64),
    /// A record type that the schema does not have.
    #[error("type {0} does not exist")]
    Type(i64),
    /// Bytes after the end of the message.
    #[error("{0} bytes after the end")]
    Trailing(usize),
}

/// A message that cannot be written in the version that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field} in version {version}: {kind}")]
pub struct EncodeError {
    /// `Message.Field`, or `Message.Structure.Field`.
    pub field: &'static str,
    /// The version that was asked for; -1 where the field's writer does not know it.
    pub version: i16,
    /// The fault.
    pub kind: Unencodable,
}

impl EncodeError {
    /// A field with a value other than its default in a version that has no place for it.
    #[cold]
    pub(crate) fn absent(field: &'static str, version: i16) -> Self {
        EncodeError { field, version, kind: Unencodable::Absent }
    }

    #[cold]
    pub(crate) fn new(field: &'static str, kind: Unencodable) -> Self {
        EncodeError { field, version: -1, kind }
    }
}

/// The ways in which a message can be impossible to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unencodable {
    /// The field is set, is not ignorable, and does not exist in this version.
    #[error("set, but the version does not have it")]
    Absent,
    /// The field is null in a version that does not allow it.
    #[error("null where the version has no null")]
    Null,
    /// A string above 32,767 bytes, or bytes or elements above `i32::MAX`.
    #[error("a length of {0}")]
    Length(usize),
    /// A version that the message does not have.
    #[error("the version does not exist")]
    Version,
}
