//! Payloads of Apache Avro, by the single-object encoding of its specification: each value says by a fingerprint which schema
//! it was written by.

use std::ops::Deref as _;

use apache_avro::rabin::Rabin;
use apache_avro::{AvroSchema, from_avro_datum, from_value, to_avro_datum, to_value};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::Received;
use crate::payload::{DecodeError, Encode, EncodeError, Payload, value};

/// The first bytes of a value in single-object encoding.
const MARKER: [u8; 2] = [0xC3, 0x01];
/// Marker and fingerprint.
const HEAD_BYTES: usize = 10;
/// The first byte of a value whose schema is in a registry, whose id follows.
const REGISTRY_MARKER: u8 = 0;

/// The value as a single object of Avro, written by the schema of `T`.
///
/// ```
/// use mainstem_flow::{Avro, Encode};
///
/// #[derive(serde::Serialize, serde::Deserialize, apache_avro::AvroSchema)]
/// struct Moved { sku: String, n: i32 }
///
/// let bytes = Avro(Moved { sku: "tea".to_owned(), n: 2 }).encode().expect("it has a schema");
/// assert_eq!(&bytes.expect("it is no tombstone")[..2], [0xC3, 0x01]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Avro<T>(pub T);

fn fingerprint<T: AvroSchema>() -> Vec<u8> {
    T::get_schema().fingerprint::<Rabin>().bytes
}

impl<T: AvroSchema + DeserializeOwned + Send + 'static> Payload for Avro<T> {
    type Event = T;

    fn decode(record: &Received) -> Result<Avro<T>, DecodeError> {
        decode(value(record, "Avro")?).map(Avro)
    }

    fn event(&self) -> &T {
        &self.0
    }

    fn into_event(self) -> T {
        self.0
    }
}

fn decode<T: AvroSchema + DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.first() == Some(&REGISTRY_MARKER) {
        return Err(DecodeError::new(
            "the value names a schema of a registry (its first byte is 0), and only Avro's single-object encoding is read",
        ));
    }
    let (head, mut datum) = bytes
        .split_at_checked(HEAD_BYTES)
        .filter(|(head, _)| head.starts_with(&MARKER))
        .ok_or_else(|| {
            DecodeError::new(
                "the value is no single object of Avro: it does not begin with C3 01 and a fingerprint",
            )
        })?;
    let known = fingerprint::<T>();
    if head[MARKER.len()..] != known[..] {
        return Err(DecodeError::new(format!(
            "the value was written by the schema with fingerprint {}, and the type's schema has {}",
            hex(&head[MARKER.len()..]),
            hex(&known)
        )));
    }
    let wrong = |error: apache_avro::Error| {
        DecodeError::new(format!("the value is not what its schema says: {error}"))
    };
    let decoded = from_avro_datum(&T::get_schema(), &mut datum, None).map_err(wrong)?;
    if !datum.is_empty() {
        return Err(DecodeError::new(format!("{} bytes follow the value", datum.len())));
    }
    from_value(&decoded).map_err(wrong)
}

impl<T: AvroSchema + Serialize> Encode for Avro<T> {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        let wrong =
            |error: apache_avro::Error| EncodeError::new(format!("it does not fit its schema: {error}"));
        let schema = T::get_schema();
        let value = to_value(&self.0).and_then(|value| value.resolve(&schema)).map_err(wrong)?;
        let datum = to_avro_datum(&schema, value).map_err(wrong)?;
        Ok(Some([&MARKER[..], fingerprint::<T>().deref(), &datum].concat().into()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize, AvroSchema)]
    struct Moved {
        sku: String,
        n: i32,
    }

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize, AvroSchema)]
    struct Renamed {
        sku: String,
        count: i32,
    }

    fn encoded() -> Vec<u8> {
        let moved = Avro(Moved { sku: "tea".to_owned(), n: -2 });
        moved.encode().unwrap().unwrap().to_vec()
    }

    #[test]
    fn a_value_comes_back() {
        let bytes = encoded();
        // A string is its length and its bytes, an int is zigzag: the datum as the specification has it.
        assert_eq!(bytes[HEAD_BYTES..], [6, b't', b'e', b'a', 3]);
        assert_eq!(decode::<Moved>(&bytes).unwrap(), Moved { sku: "tea".to_owned(), n: -2 });
    }

    #[test]
    fn what_is_no_such_value_says_why() {
        let bytes = encoded();
        let why = |bytes: &[u8]| decode::<Moved>(bytes).unwrap_err().to_string();
        assert!(why(&[0, 0, 0, 0, 7, 1]).contains("schema of a registry"));
        assert!(why(b"{}").contains("no single object of Avro"));
        assert!(why(&bytes[..bytes.len() - 1]).contains("not what its schema says"));
        assert!(why(&[&bytes[..], &[0]].concat()).contains("1 bytes follow"));
        let other = decode::<Renamed>(&bytes).unwrap_err().to_string();
        assert!(other.contains("was written by the schema with fingerprint"), "{other}");
    }
}
