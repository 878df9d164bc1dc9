//! Responses on their way to a socket: encoded bytes, and ranges of segment files between them.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mainstem_log::FileRange;

use crate::net::buffers;
use crate::net::transport::{self, SEALED_AT_ONCE, Transport};
use crate::storage::cold_reads::{ColdRead, ColdReads};

/// Bytes of a file range that are read from the disk before they are sent: more would often be read long before a slow
/// reader takes them.
const COLD_BYTES_MAX: usize = 256 * 1024;

/// Sent bytes from which on it pays to move the unsent ones to the front.
const COMPACT_BYTES_MIN: usize = 32 * 1024;

/// One or more encoded responses.
#[derive(Default)]
pub(crate) struct ResponseBuffer {
    /// Encoded bytes.
    pub(crate) bytes: Vec<u8>,
    /// File ranges by the index in `bytes` before which they go, ascending.
    files: VecDeque<(usize, FileRange)>,
    sent: usize,
    /// What is being read of the front range, and how many bytes.
    cold: Option<(ColdRead, usize)>,
    /// Bytes of the front range that were just read.
    warm: usize,
    /// How long the connection is not read after these responses (throttling).
    pub(crate) mute: Option<Duration>,
    /// Why one of these responses could not be encoded: the connection has to end, as no later response may overtake it.
    pub(crate) unencodable: Option<String>,
    /// How long threads in the background were at a request that is answered later.
    pub(crate) in_background: Duration,
}

impl ResponseBuffer {
    /// An empty one with a pooled buffer.
    pub(crate) fn pooled() -> Self {
        let mut response = ResponseBuffer::default();
        response.bytes = buffers::take();
        response
    }

    /// The same after so much work in the background.
    pub(crate) fn worked_for(mut self, time: Duration) -> Self {
        self.in_background += time;
        self
    }

    /// Places a file range before the byte at `index`.
    pub(crate) fn insert_file(&mut self, index: usize, range: FileRange) {
        assert!(self.files.back().is_none_or(|(last, _)| *last <= index), "ranges come in order");
        self.files.push_back((index, range));
    }

    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.files.is_empty()
    }

    /// Bytes of memory that wait to be sent (file ranges hold none).
    pub(crate) fn backlog(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Appends another buffer's responses behind these.
    pub(crate) fn append(&mut self, mut other: ResponseBuffer) {
        if self.is_empty() {
            std::mem::swap(self, &mut other);
            return;
        }
        self.mute = self.mute.max(other.mute);
        self.unencodable = self.unencodable.take().or(other.unencodable.take());
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.files.extend(other.files.drain(..).map(|(at, range)| (base + at, range)));
    }

    /// Lets go of memory that a short response does not need; for responses that wait behind others.
    pub(crate) fn settle(&mut self) {
        if self.bytes.capacity() >= 4 * self.bytes.len() {
            let settled = self.bytes.as_slice().to_vec();
            buffers::give(std::mem::replace(&mut self.bytes, settled));
        }
    }

    /// Lets go of what is sent. Without it, the buffer of a client that is always a little behind would grow for as
    /// long as it is connected. Done when half is sent, so that each byte is moved once at most.
    fn compact(&mut self) {
        if self.sent < COMPACT_BYTES_MIN || self.sent < self.bytes.len() - self.sent {
            return;
        }
        self.bytes.drain(..self.sent);
        self.files.iter_mut().for_each(|(at, _)| *at -= self.sent);
        self.sent = 0;
    }

    /// Sends up to `turn` bytes, which it lowers by what it sent. Ready when all is sent or the turn is used up.
    pub(crate) fn poll_send(
        &mut self,
        transport: &mut Transport,
        cold_reads: &ColdReads,
        turn: &mut usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.compact();
        while !self.is_empty() && *turn > 0 {
            let sent = ready!(self.poll_send_some(transport, cold_reads, *turn, context))?;
            *turn = turn.saturating_sub(sent);
        }
        if self.is_empty() {
            self.reset();
            ready!(transport.poll_flush(context))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send_some(
        &mut self,
        transport: &mut Transport,
        cold_reads: &ColdReads,
        turn: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let until = self.files.front().map_or(self.bytes.len(), |(at, _)| *at);
        if transport.is_sealed() && !self.files.is_empty() {
            return self.poll_send_gathered(transport, cold_reads, turn, context);
        }
        if self.sent < until {
            let sent = ready!(transport.poll_send(&self.bytes[self.sent..until], context))?;
            self.sent += sent;
            return Poll::Ready(Ok(sent));
        }
        let resident = ready!(self.poll_resident(cold_reads, turn, context))?;
        let (_, front) = self.files.front().expect("bytes up to the range are sent, and something is left");
        let sent = ready!(transport.poll_send_file(front, resident, context))?;
        self.advance_file(sent);
        Poll::Ready(Ok(sent))
    }

    /// Sends encoded bytes and what is between them from files as one piece: it is copied in any case where it is sealed, and
    /// a record and a system call for each part would cost more than the copy.
    fn poll_send_gathered(
        &mut self,
        transport: &mut Transport,
        cold_reads: &ColdReads,
        turn: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        // What is gathered is sealed at once: nothing may be ahead of it.
        ready!(transport.poll_flush(context))?;
        let mut piece = buffers::take();
        let result = self.gather(&mut piece, cold_reads, turn, context);
        if result.is_ok() && piece.is_empty() {
            buffers::give(piece);
            return Poll::Pending;
        }
        let sent =
            result.map_or_else(|error| Poll::Ready(Err(error)), |()| transport.poll_send(&piece, context));
        if let Poll::Ready(Ok(sent)) = sent {
            assert_eq!(sent, piece.len(), "a session that holds nothing seals all of a piece");
        }
        buffers::give(piece);
        sent
    }

    /// Fills a piece with what is in memory; an empty one has to wait for the disk.
    fn gather(
        &mut self,
        piece: &mut Vec<u8>,
        cold_reads: &ColdReads,
        turn: usize,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let most = turn.min(SEALED_AT_ONCE);
        while piece.len() < most && !self.is_empty() {
            let room = most - piece.len();
            let until = self.files.front().map_or(self.bytes.len(), |(at, _)| *at);
            if self.sent < until {
                let end = until.min(self.sent + room);
                piece.extend_from_slice(&self.bytes[self.sent..end]);
                self.sent = end;
                continue;
            }
            let Poll::Ready(resident) = self.poll_resident(cold_reads, room, context) else { break };
            let resident = resident?;
            let (_, front) =
                self.files.front().expect("bytes up to the range are sent, and something is left");
            let read = transport::read_range(front, resident, piece)?;
            self.advance_file(read);
        }
        Ok(())
    }

    /// So many bytes of the front range are sent.
    fn advance_file(&mut self, sent: usize) {
        self.warm = self.warm.saturating_sub(sent);
        let (_, front) = self.files.front_mut().expect("the caller has sent from it");
        front.position += sent as u64;
        front.len -= sent;
        if front.len == 0 {
            self.files.pop_front();
        }
    }

    /// How many of the next bytes of the front range, at most a turn's, come from memory, at least one; what does not is read
    /// by a helper first, since a read from the disk would hold up the whole loop.
    fn poll_resident(
        &mut self,
        cold_reads: &ColdReads,
        turn: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let (_, front) = self.files.front().expect("the caller sends a range");
        let length = front.len.min(turn);
        if self.cold.is_none() && self.warm == 0 {
            if front.recent || front.file.resident(front.position, length as u64) == Some(true) {
                return Poll::Ready(Ok(length));
            }
            let chunk = FileRange { len: length.min(COLD_BYTES_MAX), ..front.clone() };
            let bytes = chunk.len;
            self.cold = Some((cold_reads.request(chunk), bytes));
        }
        if let Some((read, bytes)) = &self.cold {
            let result = ready!(read.poll(context));
            self.warm = *bytes;
            self.cold = None;
            result?;
        }
        Poll::Ready(Ok(self.warm.min(length)))
    }

    fn reset(&mut self) {
        buffers::give(std::mem::take(&mut self.bytes));
        self.sent = 0;
    }
}

impl Drop for ResponseBuffer {
    fn drop(&mut self) {
        buffers::give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn response(bytes: usize) -> ResponseBuffer {
        let mut response = ResponseBuffer::default();
        response.bytes.resize(bytes, 7);
        response
    }

    #[test]
    fn a_reader_that_is_always_behind_does_not_make_the_buffer_grow() {
        let mut output = response(100_000);
        for _ in 0..1000 {
            // The socket takes all but a rest, then the next response comes.
            output.sent = output.bytes.len() - 1000;
            output.compact();
            output.append(response(100_000));
            assert!(
                output.bytes.len() <= 200_000,
                "{} bytes for a backlog of {}",
                output.bytes.len(),
                output.backlog()
            );
            assert_eq!(output.backlog(), 101_000);
        }
    }

    #[test]
    fn no_more_is_sent_than_was_read_from_the_disk() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let cold_reads = ColdReads::new();
        let mut response = ResponseBuffer::default();
        let file = crate::storage::cold_reads::tests::cold_file(1);
        response.insert_file(
            0,
            FileRange {
                file,
                position: 0,
                len: 10 << 20,
                directory: None,
                recent: false,
                aborted: Vec::new(),
            },
        );
        let resident = |response: &mut ResponseBuffer, turn| {
            let polled = poll_fn(|context| response.poll_resident(&cold_reads, turn, context));
            runtime.block_on(polled).expect("the file can be read")
        };
        assert_eq!(resident(&mut response, 1000), 1000);
        assert_eq!(resident(&mut response, 1 << 20), 1000, "a later turn may be longer");
        assert_eq!(resident(&mut response, 10), 10, "or shorter");
        response.warm = 0;
        assert_eq!(resident(&mut response, 1 << 20), COLD_BYTES_MAX);
    }

    #[test]
    fn a_waiting_response_takes_what_it_needs() {
        let mut response = ResponseBuffer::pooled();
        response.bytes.extend_from_slice(b"short");
        response.settle();
        assert!(response.bytes.capacity() < 100 && response.bytes == b"short");
    }
}
