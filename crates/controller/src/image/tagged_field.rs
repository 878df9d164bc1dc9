//! The tagged field 10000 of metadata records, which Kafka does not know. Its value begins with a version; integers are big-endian.

use mainstem_wire::UnknownTaggedField;

/// The number of the field. Kafka numbers its own fields from zero.
pub(super) const TAG: u32 = 10_000;

/// The version of the value.
pub(super) const VERSION: u8 = 1;

/// The fault of a value that ends too early or too late.
pub(super) const LENGTH: &str = "its field has a wrong length";

/// The value of the field among the tagged fields of a record, if it is there.
///
/// # Errors
/// The fault of the field.
pub(super) fn find<T>(
    fields: &[UnknownTaggedField<'_>],
    decode: impl FnOnce(&[u8]) -> Result<T, &'static str>,
) -> Result<Option<T>, &'static str> {
    let mut found = fields.iter().filter(|field| field.tag == TAG);
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(field), None) => decode(&field.data).map(Some),
        (Some(_), Some(_)) => Err("its field is there twice"),
    }
}

/// The bytes that were not read yet.
pub(super) struct Rest<'v>(&'v [u8]);

impl Rest<'_> {
    /// The bytes behind the version of a value.
    ///
    /// # Errors
    /// A value that is empty or has another version.
    pub(super) fn of(value: &[u8]) -> Result<Rest<'_>, &'static str> {
        match value.split_first().ok_or(LENGTH)? {
            (&VERSION, rest) => Ok(Rest(rest)),
            _ => Err("its field has another version than 1"),
        }
    }

    pub(super) fn take<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], &'static str> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(LENGTH)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn list<T>(&mut self, of_bytes: impl Fn([u8; 4]) -> T) -> Result<Vec<T>, &'static str> {
        let count = u16::from_be_bytes(self.take()?);
        // No memory is taken for what is not there.
        if usize::from(count) * 4 > self.0.len() {
            return Err(LENGTH);
        }
        (0..count).map(|_| self.take().map(&of_bytes)).collect()
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Bytes that are left.
    pub(super) fn end(self) -> Result<(), &'static str> {
        if self.0.is_empty() { Ok(()) } else { Err(LENGTH) }
    }
}
