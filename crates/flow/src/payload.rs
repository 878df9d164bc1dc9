//! Payloads: types that messages are decoded to, and that records are encoded from.

pub use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::Received;

/// Why a message cannot be decoded; it becomes a dead letter at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);

impl DecodeError {
    /// With a sentence about what is wrong.
    pub fn new(reason: impl Into<String>) -> DecodeError {
        DecodeError(reason.into())
    }
}

/// A type that messages are decoded to.
pub trait Payload: Send + Sized + 'static {
    /// The value that a handler sees: a [`Msg`](crate::Msg) derefs to it.
    type Event;

    /// Decodes a record.
    ///
    /// # Errors
    /// The reason why it is no such value.
    fn decode(record: &Received) -> Result<Self, DecodeError>;

    /// The event.
    fn event(&self) -> &Self::Event;

    /// Returns the event without the rest of the payload.
    fn into_event(self) -> Self::Event;
}

/// A type that can be sent.
pub trait Encode {
    /// The value of the record; none is a tombstone.
    ///
    /// # Errors
    /// Why it cannot be encoded.
    fn encode(&self) -> Result<Option<Bytes>, EncodeError>;

    /// The header `type` of the record, for enums of events.
    fn event_type(&self) -> Option<&str> {
        None
    }
}

/// Why a payload cannot be encoded: no attempt would help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(String);

impl EncodeError {
    /// With a sentence about what is wrong.
    pub fn new(reason: impl Into<String>) -> EncodeError {
        EncodeError(reason.into())
    }
}

/// The value as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Raw(pub Bytes);

/// The value as UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text(pub String);

/// The value as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Json<T>(pub T);

/// The value as a message of protocol buffers.
#[cfg(feature = "proto")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proto<T>(pub T);

/// The value of a record of a type that takes no tombstones.
pub(crate) fn value<'a>(record: &'a Received, takes: &str) -> Result<&'a [u8], DecodeError> {
    record.value().ok_or_else(|| is_tombstone(takes))
}

#[cold]
fn is_tombstone(takes: &str) -> DecodeError {
    DecodeError(format!(
        "the record is a tombstone (it has no value), and the route takes {takes}; take Option<{takes}> to handle tombstones"
    ))
}

/// The event of a payload that is a tuple struct of it.
macro_rules! event_is_inside {
    () => {
        fn event(&self) -> &Self::Event {
            &self.0
        }

        fn into_event(self) -> Self::Event {
            self.0
        }
    };
}

impl Payload for Raw {
    type Event = Bytes;

    fn decode(record: &Received) -> Result<Raw, DecodeError> {
        record.shared_value().map(Raw).ok_or_else(|| is_tombstone("Raw"))
    }

    event_is_inside!();
}

impl Payload for Text {
    type Event = String;

    fn decode(record: &Received) -> Result<Text, DecodeError> {
        let text = std::str::from_utf8(value(record, "Text")?);
        text.map(|text| Text(text.to_owned()))
            .map_err(|error| DecodeError(format!("the value is not UTF-8: {error}")))
    }

    event_is_inside!();
}

impl<T: DeserializeOwned + Send + 'static> Payload for Json<T> {
    type Event = T;

    fn decode(record: &Received) -> Result<Json<T>, DecodeError> {
        from_json(value(record, "Json")?).map(Json)
    }

    event_is_inside!();
}

#[cfg(feature = "proto")]
impl<T: prost::Message + Default + 'static> Payload for Proto<T> {
    type Event = T;

    fn decode(record: &Received) -> Result<Proto<T>, DecodeError> {
        let decoded = T::decode(value(record, "Proto")?);
        decoded.map(Proto).map_err(|error| DecodeError(format!("the value is not such a message: {error}")))
    }

    event_is_inside!();
}

/// Takes tombstones as well.
impl<P: Payload> Payload for Option<P> {
    type Event = Option<P>;

    fn decode(record: &Received) -> Result<Option<P>, DecodeError> {
        record.value().map(|_| P::decode(record)).transpose()
    }

    fn event(&self) -> &Option<P> {
        self
    }

    fn into_event(self) -> Option<P> {
        self
    }
}

/// Reads JSON, for the code of `derive(Event)`.
///
/// # Errors
/// The reason why it is no such value.
pub fn from_json<T: DeserializeOwned>(value: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(value)
        .map_err(|error| DecodeError(format!("the value is not the expected JSON: {error}")))
}

/// The header `type` of a record, which chooses the variant of an enum of events.
///
/// # Errors
/// That there is none, or that it is no text; `known`: the types that there are.
pub fn event_type<'a>(record: &'a Received, known: &str) -> Result<&'a str, DecodeError> {
    let header = record.header("type");
    let header =
        header.ok_or_else(|| DecodeError(format!("the record has no header `type`; known are {known}")))?;
    std::str::from_utf8(header)
        .map_err(|_| DecodeError(format!("the header `type` is not UTF-8; known are {known}")))
}

/// The value of a record of a type of events.
///
/// # Errors
/// That it is a tombstone.
pub fn event_value<'a>(record: &'a Received, event_type: &str) -> Result<&'a [u8], DecodeError> {
    record.value().ok_or_else(|| {
        DecodeError(format!(
            "the record is a tombstone (it has no value), and events of type {event_type} have one"
        ))
    })
}

/// The error for a type of events that is none of `known`.
pub fn unknown_event(event_type: &str, known: &str) -> DecodeError {
    DecodeError(format!("events of type {event_type:?} are not known; known are {known}"))
}

/// A value that is written as JSON.
#[derive(Debug)]
pub struct JsonRef<'a, T>(pub &'a T);

impl<T: Serialize> Encode for JsonRef<'_, T> {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        to_json(self.0)
    }
}

/// Writes JSON, for the code of `derive(Event)`.
///
/// # Errors
/// For a value that JSON has no form for, such as a map whose keys are no strings.
pub fn to_json<T: Serialize + ?Sized>(event: &T) -> Result<Option<Bytes>, EncodeError> {
    let json = serde_json::to_vec(event);
    json.map(|json| Some(json.into()))
        .map_err(|error| EncodeError(format!("it has no form in JSON: {error}")))
}

impl Encode for Raw {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        Ok(Some(self.0.clone()))
    }
}

impl Encode for Text {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        Ok(Some(Bytes::copy_from_slice(self.0.as_bytes())))
    }
}

impl<T: Serialize> Encode for Json<T> {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        to_json(&self.0)
    }
}

#[cfg(feature = "proto")]
impl<T: prost::Message> Encode for Proto<T> {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        Ok(Some(self.0.encode_to_vec().into()))
    }
}

impl<P: Encode> Encode for Option<P> {
    fn encode(&self) -> Result<Option<Bytes>, EncodeError> {
        self.as_ref().map_or(Ok(None), Encode::encode)
    }

    fn event_type(&self) -> Option<&str> {
        self.as_ref().and_then(Encode::event_type)
    }
}
