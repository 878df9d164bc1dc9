//! A response that keeps its bytes, so that what is read from it can borrow them.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Message, Request};

use crate::error::Error;

/// The response to a request of kind `R`.
///
/// Decoding borrows from the bytes that arrived: records of a fetch are never copied.
pub(crate) struct Reply<R> {
    frame: Bytes,
    /// The position at which the body starts.
    body: usize,
    version: i16,
    broker: Arc<str>,
    request: PhantomData<fn() -> R>,
}

impl<R> Reply<R> {
    /// Takes a response frame without its length; checks header and correlation id.
    pub(crate) fn open<'q>(
        frame: Bytes,
        version: i16,
        correlation_id: i32,
        broker: &Arc<str>,
    ) -> Result<Reply<R>, Error>
    where
        R: Request<'q>,
    {
        let mut decoder = Decoder::new(&frame);
        let header = ResponseHeader::decode(&mut decoder, R::KEY.response_header_version(version))
            .map_err(|error| malformed::<R>(broker, &error))?;
        if header.correlation_id != correlation_id {
            return Err(Error::Malformed {
                broker: broker.to_string(),
                api: R::KEY.name(),
                reason: format!("it answers request {}, not {correlation_id}", header.correlation_id),
            });
        }
        let body = frame.len() - decoder.remaining();
        Ok(Reply { frame, body, version, broker: broker.clone(), request: PhantomData })
    }

    /// Decodes the response.
    ///
    /// # Errors
    /// [`Error::Malformed`] names the field that is wrong.
    pub(crate) fn read<'q, 'r>(&'r self) -> Result<R::Response<'r>, Error>
    where
        R: Request<'q>,
    {
        let mut decoder = Decoder::new(&self.frame[self.body..]);
        R::Response::decode(&mut decoder, self.version).map_err(|error| malformed::<R>(&self.broker, &error))
    }

    /// The error code of a response that begins with one, whichever its version is.
    pub(crate) fn leading_code(&self) -> Option<i16> {
        self.frame[self.body..].first_chunk().map(|two| i16::from_be_bytes(*two))
    }

    /// The same response, which is of another version than was asked for. Its header has to be the same in both.
    pub(crate) fn as_version(&self, version: i16) -> Reply<R> {
        Reply {
            frame: self.frame.clone(),
            body: self.body,
            version,
            broker: self.broker.clone(),
            request: PhantomData,
        }
    }

    /// The bytes of the response, for parts that outlive it.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.frame
    }

    /// The version of the response.
    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    /// Address of the broker that answered.
    pub(crate) fn broker(&self) -> &Arc<str> {
        &self.broker
    }

    /// Turns an error code of the response into an error that names the operation.
    pub(crate) fn check(
        &self,
        code: i16,
        message: Option<&str>,
        what: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        let code = ErrorCode::from(code);
        let message = message.filter(|message| !message.is_empty()).unwrap_or(code.message());
        Err(Error::Broker {
            code,
            message: message.trim_end_matches('.').to_owned(),
            what: what(),
            broker: self.broker.to_string(),
        })
    }
}

fn malformed<'q, R: Request<'q>>(broker: &Arc<str>, error: &DecodeError) -> Error {
    Error::Malformed { broker: broker.to_string(), api: R::KEY.name(), reason: error.to_string() }
}
