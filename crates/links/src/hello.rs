//! The first request on a link, and its answer: the identities of the two nodes.
//!
//! Both are frames of Kafka's protocol with a private API key, so that a link may begin on a listener that serves Kafka's
//! requests too. docs/format.md has the diagrams.

use std::io::{self, Read};

/// The API key of a hello: far from Kafka's own ones.
const HELLO_API_KEY: i16 = 0x4D53;
/// The version of frames of this release.
const HELLO_VERSION: i16 = 1;
/// Limit of the length of a hello or its answer, in bytes. A longer one is not read.
pub(crate) const HELLO_BYTES_MAX: usize = 1024;

/// Returns true if a request, given without its length, is a hello.
pub fn is_hello(frame: &[u8]) -> bool {
    frame.starts_with(&HELLO_API_KEY.to_be_bytes())
}

/// The first words of the node that dials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The cluster of the node that dials.
    pub cluster_id: String,
    /// Its `node.id`.
    pub node: i32,
    /// See [`super::LinkIdentity::generation`].
    pub generation: u64,
    /// The node that it wants to reach.
    pub to: i32,
}

/// The answer of the other node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Id of the sender's cluster; empty if the peer may not know it.
    pub cluster_id: String,
    /// The sender's node id.
    pub node: i32,
    /// Why it takes no link; empty: it does.
    pub refusal: String,
}

/// Why bytes are no hello, or no answer to one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It ends too early, or is something else.
    #[error("what came is not the beginning of a link between nodes")]
    Malformed,
    /// A version that this release does not know.
    #[error(
        "it speaks version {0} of links, this node version {HELLO_VERSION}; start the same release on both"
    )]
    Version(i16),
}

impl Hello {
    /// The whole frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&HELLO_API_KEY.to_be_bytes());
        out.extend_from_slice(&HELLO_VERSION.to_be_bytes());
        // Correlation id, and no client id.
        out.extend_from_slice(&0_i32.to_be_bytes());
        out.extend_from_slice(&(-1_i16).to_be_bytes());
        put_string(&self.cluster_id, &mut out);
        out.extend_from_slice(&self.node.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.to.to_be_bytes());
        with_length(out)
    }

    /// Reads a frame without its length.
    pub fn decode(frame: &[u8]) -> Result<Hello, HelloError> {
        let mut fields = Fields(frame);
        let key = fields.i16()?;
        let version = fields.i16()?;
        if key != HELLO_API_KEY || frame.len() > HELLO_BYTES_MAX {
            return Err(HelloError::Malformed);
        }
        if version != HELLO_VERSION {
            return Err(HelloError::Version(version));
        }
        fields.take::<4>()?;
        if fields.i16()? != -1 {
            return Err(HelloError::Malformed);
        }
        let cluster_id = fields.string()?;
        let node = i32::from_be_bytes(fields.take()?);
        let generation = u64::from_be_bytes(fields.take()?);
        let to = i32::from_be_bytes(fields.take()?);
        fields.end()?;
        Ok(Hello { cluster_id, node, generation, to })
    }
}

impl Welcome {
    /// The whole frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = 0_i32.to_be_bytes().to_vec();
        out.extend_from_slice(&HELLO_VERSION.to_be_bytes());
        put_string(&self.cluster_id, &mut out);
        out.extend_from_slice(&self.node.to_be_bytes());
        put_string(&self.refusal, &mut out);
        with_length(out)
    }

    /// Reads a frame without its length.
    pub fn decode(frame: &[u8]) -> Result<Welcome, HelloError> {
        let mut fields = Fields(frame);
        fields.take::<4>()?;
        let version = fields.i16()?;
        if version != HELLO_VERSION {
            return Err(HelloError::Version(version));
        }
        let cluster_id = fields.string()?;
        let node = i32::from_be_bytes(fields.take()?);
        let refusal = fields.string()?;
        fields.end()?;
        Ok(Welcome { cluster_id, node, refusal })
    }
}

/// Reads a frame of a hello or its answer, without its length; what is longer is of somebody else.
pub fn read_frame(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > HELLO_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, HelloError::Malformed));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

fn with_length(frame: Vec<u8>) -> Vec<u8> {
    let mut out = (frame.len() as u32).to_be_bytes().to_vec();
    out.extend(frame);
    out
}

/// Cuts what is too long: only messages are.
fn put_string(text: &str, out: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(HELLO_BYTES_MAX / 2)];
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], HelloError> {
        self.bytes(N)?.try_into().map_err(|_| HelloError::Malformed)
    }

    fn i16(&mut self) -> Result<i16, HelloError> {
        self.take().map(i16::from_be_bytes)
    }

    fn string(&mut self) -> Result<String, HelloError> {
        let len = usize::from(u16::from_be_bytes(self.take()?));
        String::from_utf8(self.bytes(len)?.to_vec()).map_err(|_| HelloError::Malformed)
    }

    fn end(self) -> Result<(), HelloError> {
        if self.0.is_empty() { Ok(()) } else { Err(HelloError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_shorter_or_longer() {
        let hello = Hello { cluster_id: "c".into(), node: 2, generation: 7, to: 1 };
        let frame = hello.encode();
        assert!(is_hello(&frame[4..]));
        assert_eq!(Hello::decode(&frame[4..]), Ok(hello));
        for len in 4..frame.len() {
            assert_eq!(Hello::decode(&frame[4..len]), Err(HelloError::Malformed));
        }
        assert_eq!(Hello::decode(&[&frame[4..], b"!"].concat()), Err(HelloError::Malformed));
        let welcome = Welcome { cluster_id: "c".into(), node: 1, refusal: "no\u{e9}".repeat(400) };
        let frame = welcome.encode();
        let read = Welcome::decode(&frame[4..]).expect("what is too long was cut");
        assert!(welcome.refusal.starts_with(&read.refusal) && !read.refusal.is_empty());
        assert!(frame.len() <= HELLO_BYTES_MAX);
    }
}
