//! Frames: a 32-bit length, then a header and a body. Splits what was received, opens requests, builds responses.

use thiserror::Error;

use crate::messages::request_header::RequestHeader;
use crate::messages::response_header::ResponseHeader;
use crate::{ApiKey, DecodeError, Decoder, EncodeError, Encoder, Hole, Message, request_memory_budget};

/// Bytes of the length before each frame.
pub const LENGTH_BYTES: usize = 4;

/// A frame or a request header that cannot be answered: the connection is to be closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length is below zero or above what the caller allows.
    #[error("a frame of {len} bytes, where at most {max} are allowed")]
    Length {
        /// The length that was claimed.
        len: i64,
        /// The most bytes allowed.
        max: usize,
    },
    /// The header names an API that is not in the table.
    #[error("a request for the unknown API {0}")]
    UnknownApi(i16),
    /// The header names a version that cannot be decoded. (A newer ApiVersions is no error, see [`Version`].)
    #[error("a request for version {version} of {}", api_key.name())]
    UnsupportedVersion {
        /// The API of the request.
        api_key: ApiKey,
        /// The version of the request.
        version: i16,
    },
    /// The header is malformed.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

/// Takes one frame from the front of `buffer`. Returns its body, and the bytes that it took with its length; None if the frame
/// is not complete. `max` bounds the body, in bytes, and is checked before the body has arrived.
pub fn split_frame(buffer: &[u8], max: usize) -> Result<Option<(&[u8], usize)>, FrameError> {
    let Some(len) = frame_len(buffer, max)? else { return Ok(None) };
    let end = LENGTH_BYTES + len;
    Ok(buffer.get(LENGTH_BYTES..end).map(|body| (body, end)))
}

/// The length of the body of the frame at the front of `buffer`; none if its four bytes are not complete.
pub fn frame_len(buffer: &[u8], max: usize) -> Result<Option<usize>, FrameError> {
    let Some((prefix, _)) = buffer.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let len = i32::from_be_bytes(*prefix);
    match usize::try_from(len) {
        Ok(len) if len <= max => Ok(Some(len)),
        _ => Err(FrameError::Length { len: len.into(), max }),
    }
}

/// The version of a request, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The body is in this version and is answered in it.
    Known(i16),
    /// A version of ApiVersions that is newer than those known. It is answered in version 0 with
    /// UNSUPPORTED_VERSION and the supported versions of ApiVersions itself (KIP-511); the body is not decoded.
    NewerApiVersions,
}

/// A request whose header has been read.
#[derive(Debug, Clone)]
pub struct OpenRequest<'a> {
    /// The API that is called.
    pub api_key: ApiKey,
    /// The version of the body, or why it cannot be read.
    pub version: Version,
    /// The header.
    pub header: RequestHeader<'a>,
    /// The body comes next.
    pub body: Decoder<'a>,
}

impl<'a> OpenRequest<'a> {
    /// The version in which the response goes out.
    pub fn response_version(&self) -> i16 {
        match self.version {
            Version::Known(version) => version,
            Version::NewerApiVersions => 0,
        }
    }

    /// Decodes the body. Bytes after it are let pass, as in Kafka.
    pub fn decode<M: Message<'a>>(&mut self) -> Result<M, DecodeError> {
        M::decode(&mut self.body, self.header.request_api_version)
    }
}

/// A decoder of what a peer asks for, with the budget that [`request_memory_budget`] gives.
pub fn request_decoder(bytes: &[u8]) -> Decoder<'_> {
    Decoder::with_budget(bytes, request_memory_budget(bytes.len()))
}

/// Reads the header of a request from the body of a frame. The request may take the memory that [`request_decoder`] allows.
pub fn open_request(body: &[u8]) -> Result<OpenRequest<'_>, FrameError> {
    let mut peek = Decoder::new(body);
    let key = peek.i16("RequestHeader.RequestApiKey")?;
    let version = peek.i16("RequestHeader.RequestApiVersion")?;
    let api_key = ApiKey::try_from(key).map_err(|unknown| FrameError::UnknownApi(unknown.0))?;
    let known = match api_key {
        _ if api_key.has_version(version) => Version::Known(version),
        ApiKey::ApiVersions if version > 0 => Version::NewerApiVersions,
        _ => return Err(FrameError::UnsupportedVersion { api_key, version }),
    };
    let mut decoder = request_decoder(body);
    let header = RequestHeader::decode(&mut decoder, api_key.request_header_version(version))?;
    Ok(OpenRequest { api_key, version: known, header, body: decoder })
}

/// Appends a complete response frame: length, header, body. The length counts the holes, which are given back.
/// After an error the buffer is as it was.
pub fn write_response<'a, M: Message<'a>>(
    buffer: &mut Vec<u8>,
    api_key: ApiKey,
    version: i16,
    correlation_id: i32,
    response: &M,
) -> Result<Vec<Hole>, EncodeError> {
    let header = ResponseHeader { correlation_id, ..ResponseHeader::default() };
    write_frame(buffer, &header, api_key.response_header_version(version), response, version)
}

/// Appends a complete request frame; the header names API and version already. For clients and tests.
pub fn write_request<'a, M: Message<'a>>(
    buffer: &mut Vec<u8>,
    header: &RequestHeader<'_>,
    request: &M,
) -> Result<Vec<Hole>, EncodeError> {
    let version = header.request_api_version;
    let flexible = M::is_flexible(version);
    write_frame(buffer, header, if flexible { 2 } else { 1 }, request, version)
}

fn write_frame<'h, 'a, H: Message<'h>, M: Message<'a>>(
    buffer: &mut Vec<u8>,
    header: &H,
    header_version: i16,
    message: &M,
    version: i16,
) -> Result<Vec<Hole>, EncodeError> {
    let start = begin_frame(buffer);
    let mut encoder = Encoder::new(buffer);
    let written =
        header.encode(&mut encoder, header_version).and_then(|()| message.encode(&mut encoder, version));
    let holes = encoder.into_holes();
    let finished = written.and_then(|()| finish_frame(buffer, start, &holes));
    if finished.is_err() {
        buffer.truncate(start);
    }
    finished.map(|()| holes)
}

/// Appends room for a frame's length; gives the place for [`finish_frame`].
pub fn begin_frame(buffer: &mut Vec<u8>) -> usize {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; LENGTH_BYTES]);
    start
}

/// Puts the length of the frame that began at `start` into its place; it counts the holes of the frame.
pub fn finish_frame(buffer: &mut [u8], start: usize, holes: &[Hole]) -> Result<(), EncodeError> {
    let missing: usize = holes.iter().map(|hole| hole.len).sum();
    let len = buffer.len() - start - LENGTH_BYTES + missing;
    let prefix =
        i32::try_from(len).map_err(|_| EncodeError::new("Frame.length", crate::Unencodable::Length(len)))?;
    buffer[start..start + LENGTH_BYTES].copy_from_slice(&prefix.to_be_bytes());
    Ok(())
}
