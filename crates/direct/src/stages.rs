//! Trace events of the stages between an event's append and its handler, for measurements.
//!
//! ```text
//! append ──▶ synced ──▶ (session wakes) ──▶ handed to HTTP/2 ──▶ written to the socket ──▶ received ──▶ handler
//! ```
//!
//! `mainstem-bench direct --shares` subscribes to them, and computes the share of each stage in a lag. If no subscriber asks for
//! [`STAGES`], each costs one comparison per sync, frame or write, never per event.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::Stream;
use mainstem_lines::OneLine;
use tonic::Status;
use tracing::{Level, enabled, trace};

use crate::proto::{FromPublisher, Records, from_publisher::Frame};

/// The target of the trace events. Each has the field `stage`, and beside it:
///
/// | stage | fields | when |
/// |---|---|---|
/// | `synced` | `next` | what is before that offset is on the disk, and is made visible next |
/// | `handed` | `consumer`, `peer`, `from`, `next`, `woken_ns` | a frame goes to HTTP/2; its making began so long before |
/// | `written` | `peer` | the system has taken bytes for a connection |
/// | `received` | `consumer`, `from`, `next` | a frame has come to a consumer |
pub const STAGES: &str = "mainstem_direct::stages";

pub(crate) fn synced(next: i64) {
    trace!(target: STAGES, stage = "synced", next);
}

pub(crate) fn written(peer: SocketAddr) {
    trace!(target: STAGES, stage = "written", %peer);
}

pub(crate) fn received(consumer: &str, records: &Records) {
    trace!(target: STAGES, stage = "received", consumer = &*OneLine(consumer).to_string(), from = records.from, next = records.next);
}

/// The frames of a session on their way to its connection.
pub(crate) struct Frames {
    pub(crate) frames: Pin<Box<dyn Stream<Item = Result<FromPublisher, Status>> + Send>>,
    pub(crate) consumer: String,
    pub(crate) peer: Option<SocketAddr>,
}

impl Frames {
    fn handed(&self, began: Instant, frame: &FromPublisher) {
        let (Some(Frame::Records(records)), Some(peer)) = (&frame.frame, self.peer) else { return };
        let woken_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let consumer = &*OneLine(&self.consumer).to_string();
        let (from, next) = (records.from, records.next);
        trace!(target: STAGES, stage = "handed", consumer, %peer, from, next, woken_ns);
    }
}

impl Stream for Frames {
    type Item = Result<FromPublisher, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let began = enabled!(target: STAGES, Level::TRACE).then(Instant::now);
        let polled = self.frames.as_mut().poll_next(context);
        if let (Some(began), Poll::Ready(Some(Ok(frame)))) = (began, &polled) {
            self.handed(began, frame);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;

    /// The lines that were written.
    static WRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());

    struct Captured;

    impl Write for Captured {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            WRITTEN.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_name_of_a_consumer_is_traced_as_it_can_be_shown() {
        let json = tracing_subscriber::fmt().json().with_max_level(Level::TRACE).with_writer(|| Captured);
        tracing::subscriber::with_default(json.finish(), || {
            received("a\u{9b}b\u{202e}\nc", &Records::default());
        });
        let line = String::from_utf8(WRITTEN.lock().unwrap().clone()).unwrap();
        let line = line.strip_suffix('\n').unwrap();
        assert!(line.contains(r"a\\u{9b}b\\u{202e}\\nc"), "{line}");
        assert!(!line.contains(mainstem_lines::is_hidden), "{line:?}");
    }
}
