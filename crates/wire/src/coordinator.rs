//! Records of the coordinators' topics: a 16-bit prefix, then the schema's body.
//!
//! In keys the prefix is the type of the record, in values the version of the value's schema. The payloads of the
//! consumer protocol (subscription, assignment) have the version prefix too.

use crate::{DecodeError, Decoder, EncodeError, Encoder, Malformed, Message};

/// The key of a record in `__consumer_offsets`, `__transaction_state` or `__share_group_state`.
pub trait CoordinatorKey<'a>: Message<'a> {
    /// The record type in the key's prefix.
    const RECORD_TYPE: i16;
    /// The schema of the value that belongs to the key.
    type Value<'v>: Message<'v>;
}

/// The type of the record that a key belongs to; each topic counts its types by itself.
pub fn record_type(key: &[u8]) -> Result<i16, DecodeError> {
    Decoder::new(key).i16("CoordinatorKey.type")
}

/// A key with its type as prefix.
pub fn encode_key<'a, K: CoordinatorKey<'a>>(key: &K) -> Result<Vec<u8>, EncodeError> {
    with_prefix(K::RECORD_TYPE, key, *K::VERSIONS.end())
}

/// The key after its prefix, which must say the key's type.
pub fn decode_key<'a, K: CoordinatorKey<'a>>(bytes: &'a [u8]) -> Result<K, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let record_type = decoder.i16(K::NAME)?;
    if record_type != K::RECORD_TYPE {
        return Err(decoder.fault(K::NAME, Malformed::Type(i64::from(record_type))));
    }
    let key = K::decode(&mut decoder, *K::VERSIONS.end())?;
    decoder.finish(K::NAME)?;
    Ok(key)
}

/// A message with its version as prefix.
pub fn encode_with_version<'a, M: Message<'a>>(message: &M, version: i16) -> Result<Vec<u8>, EncodeError> {
    with_prefix(version, message, version)
}

/// The message after its version, which must be a known one. Gives the version too.
pub fn decode_with_version<'a, M: Message<'a>>(bytes: &'a [u8]) -> Result<(M, i16), DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let version = decoder.i16(M::NAME)?;
    let message = M::decode(&mut decoder, version)?;
    decoder.finish(M::NAME)?;
    Ok((message, version))
}

/// The message after its version, a newer one than known being read as the newest known; what follows is left alone.
/// This is how the consumer protocol stays open for newer clients.
pub fn decode_with_version_or_newer<'a, M: Message<'a>>(bytes: &'a [u8]) -> Result<(M, i16), DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let version = decoder.i16(M::NAME)?;
    let message = M::decode(&mut decoder, version.min(*M::VERSIONS.end()))?;
    Ok((message, version))
}

fn with_prefix<'a, M: Message<'a>>(prefix: i16, message: &M, version: i16) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = prefix.to_be_bytes().to_vec();
    message.encode(&mut Encoder::new(&mut bytes), version)?;
    Ok(bytes)
}
