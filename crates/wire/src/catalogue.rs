//! Every message with a function that decodes and encodes it again: what round trips, fuzz bodies and the differential
//! test iterate over.

use thiserror::Error;

use crate::{DecodeError, Decoder, EncodeError, Encoder, Message, messages};

include!(concat!(env!("OUT_DIR"), "/catalogue.rs"));

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum MessageKind {
    Request,
    Response,
    Header,
    Data,
    CoordinatorKey,
    CoordinatorValue,
    Metadata,
}

/// Takes bytes, the version they are in, the version to write, and a buffer.
pub type Recode = fn(&[u8], i16, i16, &mut Vec<u8>) -> Result<(), CodecError>;

/// One message of the table.
#[derive(Debug, Clone, Copy)]
pub struct MessageInfo {
    /// The name in Kafka's schema.
    pub name: &'static str,
    /// Its purpose.
    pub kind: MessageKind,
    /// The API key or record type.
    pub key: Option<i16>,
    /// The oldest stable version.
    pub oldest: i16,
    /// The newest stable version.
    pub newest: i16,
    /// Decodes all bytes in one version and appends the message in another.
    pub recode: Recode,
    /// Appends the message with nothing set, in a version.
    pub encode_default: fn(i16, &mut Vec<u8>) -> Result<(), CodecError>,
}

impl MessageInfo {
    /// The message called `name`, if the table has it.
    pub fn find(name: &str) -> Option<&'static MessageInfo> {
        MESSAGES.iter().find(|message| message.name == name)
    }

    /// Decodes all bytes in a version and writes the message again.
    pub fn reencode(&self, bytes: &[u8], version: i16) -> Result<Vec<u8>, CodecError> {
        let mut out = Vec::with_capacity(bytes.len());
        (self.recode)(bytes, version, version, &mut out)?;
        Ok(out)
    }
}

/// A message that did not survive.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CodecError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

fn recode<'a, M: Message<'a>>(
    bytes: &'a [u8],
    from: i16,
    to: i16,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let mut decoder = Decoder::new(bytes);
    let message = M::decode(&mut decoder, from)?;
    decoder.finish(M::NAME)?;
    message.encode(&mut Encoder::new(out), to)?;
    Ok(())
}

fn encode_default<'a, M: Message<'a>>(version: i16, out: &mut Vec<u8>) -> Result<(), CodecError> {
    M::default().encode(&mut Encoder::new(out), version)?;
    Ok(())
}
