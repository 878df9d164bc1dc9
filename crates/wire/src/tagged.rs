//! Tagged fields that the schema does not know (KIP-482).

use std::borrow::Cow;

/// A tagged field of a newer peer, kept so that it is written again as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownTaggedField<'a> {
    /// The number of the field.
    pub tag: u32,
    /// Its value without tag and size.
    pub data: Cow<'a, [u8]>,
}
