//! The bytes that a connection has received and not yet served.
//!
//! Requests that fit a pooled buffer are read many at a time. A larger one moves into an allocation of its own when it
//! has filled a pooled buffer, and grows with what arrives, within the budget of all connections.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::BufMut;
use mainstem_wire::frame::{self, FrameError, LENGTH_BYTES};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::buffers::{self, BUFFER_BYTES, RequestMemory, Reservation};

/// The largest incomplete request that is kept in an allocation of its own size. So many slow connections do not hold a whole
/// pooled buffer each.
const SMALL_REST_MAX: usize = 4 * 1024;

/// Received bytes, the first of which begins a request frame.
pub(crate) struct Input {
    buffer: Vec<u8>,
    consumed: usize,
    large: Option<LargeRequest>,
    frame_bytes_max: usize,
}

/// The inputs of a read beside the socket.
pub(crate) struct FillContext<'a> {
    /// The memory for a large request.
    pub(crate) memory: &'a Arc<RequestMemory>,
    pub(crate) peer: IpAddr,
    /// The time as the connection knows it.
    pub(crate) now: Instant,
}

/// Bytes by which a large request first grows; each further step doubles it, up to [`STEP_BYTES_MAX`] more.
const FIRST_STEP_BYTES: usize = 256 * 1024;
const STEP_BYTES_MAX: usize = 4 << 20;

/// A request that is being read into an allocation of its own.
struct LargeRequest {
    reservation: Reservation,
    frame_bytes: usize,
    /// Bytes of the frame for which memory is reserved.
    granted: usize,
    progress: Progress,
}

/// The progress of a large request, by which its sender is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Bytes that it has announced.
    pub(crate) frame_bytes: usize,
    /// The time at which it began to reserve memory.
    pub(crate) since: Instant,
    /// The time since which its sender could send and has sent nothing, as attempts to read have found.
    pub(crate) starved_since: Option<Instant>,
    /// It waits for memory: nothing is read from its sender.
    pub(crate) waits_for_memory: bool,
}

impl Input {
    /// An input that takes frames of up to `frame_bytes_max` bytes behind their length.
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        Input { buffer: Vec::new(), consumed: 0, large: None, frame_bytes_max }
    }

    /// Sets the largest frame, in bytes, from now on.
    pub(crate) fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// The next complete frame without its length prefix, if it is all there.
    pub(crate) fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let waiting = &self.buffer[self.consumed..];
        let Some((body, taken)) = frame::split_frame(waiting, self.frame_bytes_max)? else { return Ok(None) };
        self.consumed += taken;
        Ok(Some(body))
    }

    /// Length of the frame at the front, as far as it is known.
    fn frame_length(&self) -> Result<Option<usize>, FrameError> {
        frame::frame_len(&self.buffer[self.consumed..], self.frame_bytes_max)
    }

    /// Reads once from the socket. Returns the bytes read, 0 at the end of the stream.
    ///
    /// Call it only when [`next_frame`](Self::next_frame) has returned `None`.
    pub(crate) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        socket: &mut S,
        fill: FillContext<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_capacity(&fill, context));
        let now = fill.now;
        let free = self.large.as_ref().map_or(BUFFER_BYTES, |large| large.granted) - self.buffer.len();
        let mut spare = (&mut self.buffer).limit(free);
        let filled = pin!(socket.read_buf(&mut spare)).poll(context);
        if let Some(large) = &mut self.large {
            match filled {
                // Only what was tried and not there is the sender's fault: its loop may have been busy.
                Poll::Pending => _ = large.progress.starved_since.get_or_insert(now),
                Poll::Ready(_) => large.progress.starved_since = None,
            }
        }
        filled
    }

    /// Makes sure that at least one more byte fits.
    fn poll_capacity(&mut self, fill: &FillContext<'_>, context: &Context<'_>) -> Poll<()> {
        if self.large.is_some() {
            return self.poll_grow(context);
        }
        if self.buffer.capacity() != BUFFER_BYTES {
            self.replace_buffer(buffers::take());
        } else if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        if self.buffer.len() < BUFFER_BYTES {
            return Poll::Ready(());
        }
        // An announced length was checked when next_frame said that the frame is not complete.
        let frame_bytes = LENGTH_BYTES + self.frame_length().ok().flatten().unwrap_or(0);
        let now = fill.now;
        self.large = Some(LargeRequest {
            reservation: fill.memory.begin(fill.peer),
            frame_bytes,
            granted: 0,
            progress: Progress { frame_bytes, since: now, starved_since: None, waits_for_memory: false },
        });
        self.poll_grow(context)
    }

    /// Reserves memory for the next step of a large request when the granted bytes are used up.
    fn poll_grow(&mut self, context: &Context<'_>) -> Poll<()> {
        let large = self.large.as_mut().expect("only a large request grows");
        if self.buffer.len() < large.granted {
            return Poll::Ready(());
        }
        let step = large.granted.clamp(FIRST_STEP_BYTES, STEP_BYTES_MAX);
        let granted = large.frame_bytes.min(large.granted + step);
        large.progress.waits_for_memory =
            large.reservation.poll_grow(granted - large.granted, context).is_pending();
        if large.progress.waits_for_memory {
            large.progress.starved_since = None;
            return Poll::Pending;
        }
        let is_first = std::mem::replace(&mut large.granted, granted) == 0;
        match is_first {
            true => self.replace_buffer(Vec::with_capacity(granted)),
            false => self.buffer.reserve_exact(granted - self.buffer.len()),
        }
        Poll::Ready(())
    }

    fn replace_buffer(&mut self, mut buffer: Vec<u8>) {
        buffer.extend_from_slice(&self.buffer[self.consumed..]);
        self.consumed = 0;
        buffers::give(std::mem::replace(&mut self.buffer, buffer));
    }

    /// Gives back what is not needed until the next read; call it when no further frame is complete.
    pub(crate) fn rest(&mut self) {
        if self.buffer.capacity() == 0 {
            return;
        }
        let left = self.buffer.len() - self.consumed;
        if left == 0 {
            self.large = None;
            self.replace_buffer(Vec::new());
        } else if self.large.is_none() && left <= SMALL_REST_MAX && self.buffer.capacity() == BUFFER_BYTES {
            self.replace_buffer(Vec::with_capacity(left));
        }
    }

    /// Returns true if no bytes are held: the connection is between requests.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.len() == self.consumed
    }

    /// The progress of a request that is larger than a pooled buffer.
    pub(crate) fn large_progress(&self) -> Option<Progress> {
        self.large.as_ref().map(|large| large.progress)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        buffers::give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn fill_context(memory: &Arc<RequestMemory>) -> FillContext<'_> {
        FillContext { memory, peer: Ipv4Addr::LOCALHOST.into(), now: Instant::now() }
    }

    fn fill(input: &mut Input, mut bytes: &[u8]) {
        let memory = RequestMemory::new(1 << 20);
        let mut context = Context::from_waker(std::task::Waker::noop());
        while !bytes.is_empty() {
            let filled = input.poll_fill(&mut bytes, fill_context(&memory), &mut context);
            assert!(matches!(filled, Poll::Ready(Ok(1..))));
        }
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        [&(body.len() as i32).to_be_bytes(), body].concat()
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut input = Input::new(1 << 20);
        fill(&mut input, &[frame(b"one"), frame(b""), frame(b"three")[..5].to_vec()].concat());
        assert_eq!(input.next_frame(), Ok(Some(&b"one"[..])));
        assert_eq!(input.next_frame(), Ok(Some(&b""[..])));
        assert_eq!(input.next_frame(), Ok(None));
        input.rest();
        assert!(input.buffer.capacity() < BUFFER_BYTES, "five bytes do not hold a pooled buffer");
        fill(&mut input, &frame(b"three")[5..]);
        assert_eq!(input.next_frame(), Ok(Some(&b"three"[..])));
        input.rest();
        assert!(input.is_empty() && input.buffer.capacity() == 0);
    }

    #[test]
    fn a_large_frame_is_read_into_its_own_size() {
        let mut input = Input::new(1 << 20);
        let body = vec![7; 3 * BUFFER_BYTES];
        let bytes = frame(&body);
        fill(&mut input, &bytes[..10]);
        assert_eq!(input.next_frame(), Ok(None));
        fill(&mut input, &bytes[10..]);
        assert_eq!(input.next_frame(), Ok(Some(&body[..])));
        assert_eq!(input.large_progress().map(|progress| progress.frame_bytes), Some(bytes.len()));
        input.rest();
        assert!(input.large_progress().is_none());
    }

    #[test]
    fn what_is_announced_reserves_nothing_until_it_arrives() {
        let memory = RequestMemory::new(64 << 20);
        let mut input = Input::new(100 << 20);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut fill = |input: &mut Input, mut bytes: &[u8]| {
            while !bytes.is_empty() {
                let filled = input.poll_fill(&mut bytes, fill_context(&memory), &mut context);
                assert!(matches!(filled, Poll::Ready(Ok(1..))));
            }
        };
        fill(&mut input, &(100i32 << 20).to_be_bytes());
        assert_eq!(input.next_frame(), Ok(None));
        assert!(input.large_progress().is_none() && memory.used() == 0, "four bytes cost nothing");
        fill(&mut input, &[0; BUFFER_BYTES]);
        assert_eq!(memory.used(), FIRST_STEP_BYTES as u64);
        fill(&mut input, &[0; 8 << 20]);
        assert!(memory.used() <= (8 << 20) + (STEP_BYTES_MAX + BUFFER_BYTES) as u64);
    }

    #[test]
    fn absurd_lengths_are_refused_before_anything_is_allocated() {
        for length in [-1, i32::MAX] {
            let mut input = Input::new(1 << 20);
            fill(&mut input, &length.to_be_bytes());
            assert_eq!(input.next_frame(), Err(FrameError::Length { len: length.into(), max: 1 << 20 }));
        }
    }
}
