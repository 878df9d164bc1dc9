//! Responses on their way to a socket: encoded bytes, and ranges of segment files between them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mainstem_log::FileRange;

use crate::answers::{AnswerMemory, AnswerShare, LARGE_ANSWER_BYTES};
use crate::buffers::{self, BUFFER_BYTES};
use crate::cold_reads::{ColdRead, ColdReads};
use crate::connection::CloseReason;
use crate::transport::{self, SEALED_AT_ONCE, Transport};

/// Bytes of a file range that are read from the disk before they are sent: more would often be read long before a slow
/// reader takes them.
const COLD_BYTES_MAX: usize = 256 * 1024;

/// A response that is being built grows by this part of itself, so that it allocates few bytes that it does not need.
const GROWTH_PART: usize = 8;

/// Sent bytes from which on it pays to move the unsent ones to the front.
const COMPACT_BYTES_MIN: usize = 32 * 1024;

/// One or more encoded responses.
#[derive(Default)]
pub struct ResponseBuffer {
    /// Encoded bytes.
    pub bytes: Vec<u8>,
    /// File ranges by the index in `bytes` before which they go, ascending.
    files: VecDeque<(usize, FileRange)>,
    sent: usize,
    /// The running read of the front range, and its number of bytes.
    cold: Option<(ColdRead, usize)>,
    /// Bytes of the front range that were just read.
    warm: usize,
    /// The time for which the connection is not read after these responses (throttling).
    pub mute: Option<Duration>,
    /// The reason for which one of these responses could not be encoded. The connection has to end, as no later response may
    /// overtake it.
    pub unencodable: Option<String>,
    /// Time that background threads worked on a request that is answered later.
    pub in_background: Duration,
    /// The share of a large response in the memory for all of them. It begins before the response is built, and ends when its
    /// connection counts it.
    pub share: Option<AnswerShare>,
}

impl ResponseBuffer {
    /// An empty one with a pooled buffer.
    pub fn pooled() -> Self {
        let mut response = ResponseBuffer::default();
        response.bytes = buffers::take();
        response
    }

    /// Adds time of work in the background.
    pub fn worked_for(mut self, time: Duration) -> Self {
        self.in_background += time;
        self
    }

    /// Places a file range before the byte at `index`.
    pub fn insert_file(&mut self, index: usize, range: FileRange) {
        assert!(self.files.back().is_none_or(|(last, _)| *last <= index), "ranges come in order");
        self.files.push_back((index, range));
    }

    /// Returns true if everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.files.is_empty()
    }

    /// Bytes of memory that wait to be sent (file ranges hold none).
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Appends another buffer's responses behind these.
    pub fn append(&mut self, mut other: ResponseBuffer) {
        if self.is_empty() {
            std::mem::swap(self, &mut other);
            return;
        }
        self.mute = self.mute.max(other.mute);
        self.unencodable = self.unencodable.take().or(other.unencodable.take());
        self.absorb(other.share.take());
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.files.extend(other.files.drain(..).map(|(at, range)| (base + at, range)));
    }

    /// Takes over a share of the memory for large responses, if there is one.
    pub fn absorb(&mut self, share: Option<AnswerShare>) {
        match &mut self.share {
            Some(own) => own.absorb(share),
            None => self.share = share,
        }
    }

    /// Reserves memory for `more` bytes and some that follow them, after it was added to the share. Returns false, and reserves
    /// none, if there is no memory.
    pub fn reserve(&mut self, more: usize) -> bool {
        let needed = self.bytes.len() + more;
        if needed <= self.bytes.capacity() {
            return true;
        }
        let wanted = needed + (needed / GROWTH_PART).max(BUFFER_BYTES);
        let capacity = match &mut self.share {
            Some(share) if needed > LARGE_ANSWER_BYTES => share.grow(needed, wanted),
            Some(_) => Some(wanted.min(LARGE_ANSWER_BYTES)),
            None => Some(wanted),
        };
        if let Some(capacity) = capacity {
            self.bytes.reserve_exact(wanted.min(capacity) - self.bytes.len());
        }
        capacity.is_some()
    }

    /// Reserves memory for bytes without which there is no response. It may be of any size if no other response is held.
    ///
    /// # Errors
    /// The reason for which the connection has to end, if there is no memory.
    pub fn reserve_for_refusal(&mut self, more: usize) -> Result<(), String> {
        if self.reserve(more) {
            return Ok(());
        }
        let needed = self.bytes.len() + more;
        let wanted = needed + BUFFER_BYTES;
        if self.share.as_mut().is_none_or(|share| share.set(wanted)) {
            self.bytes.reserve_exact(wanted - self.bytes.len());
            return Ok(());
        }
        Err(CloseReason::NoMemoryForAnswer(needed).to_string())
    }

    /// Releases memory that a large response has reserved and does not need.
    pub fn trim(&mut self) {
        if self.bytes.capacity() - self.bytes.len() > BUFFER_BYTES {
            self.bytes.shrink_to_fit();
        }
        if let Some(share) = &mut self.share {
            share.set(self.bytes.capacity().min(share.bytes() as usize));
        }
    }

    /// Counts the memory of a response that was built in the background, until its connection does.
    ///
    /// # Errors
    /// The reason for which the connection has to end, if there is no memory. The response is dropped then.
    pub fn count(&mut self, memory: &Arc<AnswerMemory>) -> Result<(), String> {
        self.trim();
        let bytes = self.backlog();
        let mut share = self.share.take().unwrap_or_else(|| memory.begin());
        if bytes > LARGE_ANSWER_BYTES && !share.set(bytes) {
            self.bytes = Vec::new();
            return Err(CloseReason::NoMemoryForAnswer(bytes).to_string());
        }
        self.share = Some(share).filter(|share| share.bytes() > 0);
        Ok(())
    }

    /// Lets go of memory that a short response does not need; for responses that wait behind others.
    pub fn settle(&mut self) {
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
    pub fn poll_send(
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

    /// Sends encoded bytes and the file ranges between them as one piece. A sealed connection copies them in any case, and a
    /// record and a system call for each part would cost more than the copy.
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
            let left = most - piece.len();
            let until = self.files.front().map_or(self.bytes.len(), |(at, _)| *at);
            if self.sent < until {
                let end = until.min(self.sent + left);
                piece.extend_from_slice(&self.bytes[self.sent..end]);
                self.sent = end;
                continue;
            }
            let Poll::Ready(resident) = self.poll_resident(cold_reads, left, context) else { break };
            let resident = resident?;
            let (_, front) =
                self.files.front().expect("bytes up to the range are sent, and something is left");
            let read = transport::read_range(front, resident, piece)?;
            self.advance_file(read);
        }
        Ok(())
    }

    /// Marks bytes of the front range as sent.
    fn advance_file(&mut self, sent: usize) {
        self.warm = self.warm.saturating_sub(sent);
        let (_, front) = self.files.front_mut().expect("the caller has sent from it");
        front.position += sent as u64;
        front.len -= sent;
        if front.len == 0 {
            self.files.pop_front();
        }
    }

    /// Returns how many of the range's next bytes are in memory, at least one and at most a turn's. A helper reads the others
    /// first, because a read from the disk would block the whole loop.
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
    use mainstem_runtime::clock::Clock;

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
    fn memory_is_counted_before_it_is_reserved() {
        let memory = AnswerMemory::new(8 << 20, Clock::start());
        let (mut response, mut second) = (ResponseBuffer::default(), ResponseBuffer::default());
        response.share = Some(memory.begin());
        let piece = [7; 100_000];
        while response.reserve(piece.len()) {
            response.bytes.extend_from_slice(&piece);
            let counted = memory.used() as usize;
            let capacity = response.bytes.capacity();
            assert!(capacity <= LARGE_ANSWER_BYTES.max(counted), "{capacity} of {counted}");
            assert!(capacity <= response.bytes.len() * 9 / 8 + BUFFER_BYTES + piece.len());
        }
        assert!(response.bytes.len() > 8_200_000 && memory.is_contended());
        assert!(response.reserve_for_refusal(200_000).is_ok(), "one that is alone may be of any size");
        let mut other = memory.begin();
        assert!(!other.take(1));
        second.share = Some(other);
        assert!(second.reserve_for_refusal(500_000).is_ok(), "small ones do not count");
        assert!(second.reserve_for_refusal(600_000).is_err());
        drop(response);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_is_counted_nowhere_is_dropped_if_there_is_no_memory() {
        let memory = AnswerMemory::new(1 << 20, Clock::start());
        let mut first = response(1_000_000);
        assert!(first.count(&memory).is_ok() && memory.used() == 1_000_000);
        let (mut small, mut large) = (response(LARGE_ANSWER_BYTES), response(LARGE_ANSWER_BYTES + 1));
        assert!(small.count(&memory).is_ok() && small.share.is_none());
        assert!(large.count(&memory).is_err() && large.bytes.capacity() == 0);
        first.append(small);
        drop(first);
        assert!(response(2_000_000).count(&memory).is_ok(), "one that is alone may be of any size");
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn no_more_is_sent_than_was_read_from_the_disk() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let cold_reads = ColdReads::new(Vec::new());
        let mut response = ResponseBuffer::default();
        let file = crate::testing::cold_file(1);
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
