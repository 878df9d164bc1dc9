//! Traits of the generated messages.

use std::ops::RangeInclusive;

use crate::{ApiKey, DecodeError, Decoder, EncodeError, Encoder, Malformed, Unencodable};

/// A message of Kafka's protocol, or the schema of a record.
pub trait Message<'a>: Sized + Default {
    /// The name in Kafka's schema.
    const NAME: &'static str;
    /// The stable versions, which are the ones that can be decoded and encoded.
    const VERSIONS: RangeInclusive<i16>;

    /// Returns true if a version has compact lengths and tagged fields (KIP-482).
    fn is_flexible(version: i16) -> bool;

    /// Reads the fields of a version that is known to exist.
    #[doc(hidden)]
    fn decode_body(decoder: &mut Decoder<'a>, version: i16) -> Result<Self, DecodeError>;

    /// Writes the fields of a version that is known to exist.
    #[doc(hidden)]
    fn encode_body(&self, encoder: &mut Encoder<'_>, version: i16) -> Result<(), EncodeError>;

    /// Reads the message; fields that the version does not have get the schema's default. Bytes after the message
    /// are left in the decoder.
    fn decode(decoder: &mut Decoder<'a>, version: i16) -> Result<Self, DecodeError> {
        if !Self::VERSIONS.contains(&version) {
            return Err(decoder.fault(Self::NAME, Malformed::Version(i64::from(version))));
        }
        Self::decode_body(decoder, version)
    }

    /// Appends the message. A field that the version does not have must have its default, unless the schema calls it
    /// ignorable. After an error the buffer ends in a part of the message.
    fn encode(&self, encoder: &mut Encoder<'_>, version: i16) -> Result<(), EncodeError> {
        if !Self::VERSIONS.contains(&version) {
            return Err(EncodeError { field: Self::NAME, version, kind: Unencodable::Version });
        }
        self.encode_body(encoder, version).map_err(|error| EncodeError { version, ..error })
    }
}

/// A message that asks for a response.
pub trait Request<'a>: Message<'a> {
    /// The API that the request calls.
    const KEY: ApiKey;
    /// The response, in the same version.
    type Response<'r>: Message<'r>;
}

/// A structure of which a response has an array, which can be written element by element ([`ListFrame`](crate::ListFrame)).
pub trait Element {
    /// Writes the fields of a version that is known to exist.
    #[doc(hidden)]
    fn encode_element(&self, encoder: &mut Encoder<'_>, version: i16) -> Result<(), EncodeError>;
}
