//! Errors and refusals, each with what to do about it.

use std::io;
use std::path::PathBuf;

use mainstem_lines::{OneLine, Sentence};
use mainstem_queue::QueueError;
use prost::Message as _;
use tonic::{Code, Status};

use crate::proto;
use crate::resume::JournalId;
use crate::sequence::SequenceFault;
use crate::tls_words;

/// The reason why a subscription cannot continue by itself. No consumer skips lost events without being asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The publisher has another journal than the one that was read.
    #[error(
        "the journal {was} that was read is not there any more, but {now}: the publisher's directory was lost or replaced; restore \
         it, or start the consumer again to read the new one from where a new consumer begins"
    )]
    JournalReplaced {
        /// The journal that was read.
        was: JournalId,
        /// The journal that the publisher has.
        now: JournalId,
    },
    /// Events that were received are not in the journal any more, or have been replaced by others (KIP-320).
    #[error(
        "events from offset {at} on that were received are not in the journal any more: the publisher lost them or runs on an older \
         copy; restore it, or go on by `mainstem direct reset --to-offset {at} --execute`"
    )]
    Diverged {
        /// The first offset that may have another event.
        at: i64,
    },
    /// The offset to read is not in the journal.
    #[error("offset {offset} is not in the journal, which has {start} to {end}: {}", out_of_range(*offset, *start))]
    OutOfRange {
        /// The requested offset.
        offset: i64,
        /// The first offset of the journal.
        start: i64,
        /// The offset behind the last visible event.
        end: i64,
    },
    /// Another connection has taken the place of this instance.
    #[error(
        "another connection has the place of this instance, or it has not given slices back within 30 s; give each process a name of \
         its own (or none), and pin no slice twice"
    )]
    Fenced,
}

/// The reason why an offset is not in a journal that begins at `start`, and what to do.
fn out_of_range(offset: i64, start: i64) -> &'static str {
    match offset < start {
        true => {
            "retention took events that were not done; go on by `mainstem direct reset --to-earliest --execute`"
        }
        false => {
            "it is behind the end; name an offset up to there, or go on behind the last event by `mainstem direct reset --to-latest \
             --execute`"
        }
    }
}

/// A failure of a journal, a publisher or a consumer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// An error of the journal's queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// An operation on a file beside the queue failed.
    #[error("{}: {what} failed: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file beside the queue has other contents than were written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage, and what to do.
        reason: String,
    },
    /// An event that no frame could hold.
    #[error("an event of {bytes} bytes is larger than a frame may be ({max}); split it")]
    TooLarge {
        /// The size of its batch.
        bytes: usize,
        /// The most that a frame may hold.
        max: usize,
    },
    /// The arguments or the configuration make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The address can be reached from other machines, and the publisher has neither TLS nor
    /// [`Publisher::insecure`](crate::Publisher::insecure).
    #[error(
        "{address} can be reached from elsewhere; give the publisher a certificate (Publisher::tls), or say that it is to be open to \
         all (Publisher::insecure)"
    )]
    Exposed {
        /// The address.
        address: String,
    },
    /// The publisher cannot listen at the address.
    #[error("cannot serve at {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// No connection could be made, or it was lost.
    #[error("cannot reach the publisher at {}: {}", OneLine(address), Sentence(reason))]
    Unreachable {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// No TLS connection can be made: a certificate is not accepted or cannot be read, or the other end does not speak TLS. Another
    /// attempt fails again until that changes.
    #[error("cannot reach the publisher at {} by TLS: {}", OneLine(address), Sentence(reason))]
    Tls {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The publisher refuses the call.
    #[error("the publisher at {} refuses: {}", OneLine(address), Sentence(message))]
    Status {
        /// The address.
        address: String,
        /// The status of gRPC.
        code: Code,
        /// The publisher's message.
        message: String,
    },
    /// The subscription cannot continue by itself.
    #[error("stream {} of {}: {refused}", OneLine(stream), OneLine(address))]
    Refused {
        /// The address.
        address: String,
        /// The stream.
        stream: String,
        /// The reason.
        refused: Refused,
    },
    /// The publisher does not speak the protocol.
    #[error(
        "stream {} of {}: the publisher does not keep to the protocol: {}",
        OneLine(stream),
        OneLine(address),
        Sentence(fault)
    )]
    Fault {
        /// The address.
        address: String,
        /// The stream.
        stream: String,
        /// The fault.
        fault: String,
    },
    /// The journal was closed, or its thread has ended.
    #[error("the journal is closed")]
    Closed,
}

/// A result of this crate.
pub type Result<T, E = DirectError> = std::result::Result<T, E>;

impl DirectError {
    pub(crate) fn io(what: &'static str, path: &std::path::Path, source: io::Error) -> DirectError {
        DirectError::Io { what, path: path.to_owned(), source }
    }

    /// Returns true if another attempt may succeed: the publisher is away or overloaded.
    pub fn may_pass(&self) -> bool {
        match self {
            DirectError::Status { code, .. } => matches!(
                code,
                Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled
            ),
            DirectError::Queue(_)
            | DirectError::Io { .. }
            | DirectError::Damaged { .. }
            | DirectError::TooLarge { .. }
            | DirectError::Invalid(_)
            | DirectError::Exposed { .. }
            | DirectError::Bind { .. }
            | DirectError::Refused { .. }
            | DirectError::Fault { .. }
            | DirectError::Closed => false,
            // Certificates may be replaced, too.
            _ => true,
        }
    }
}

/// Returns the message of a status that is no [`Refused`], and true if the connection ended and no publisher sent the status.
pub(crate) fn words_of(status: &Status) -> (String, bool) {
    let is_of_connection = std::error::Error::source(status).is_some();
    let words = match status.message() {
        _ if is_of_connection => causes(status),
        "" if status.code() == Code::Unimplemented => {
            "it does not know this call: another service is there, or one of another version".to_owned()
        }
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    };
    (Sentence(&words).to_string(), is_of_connection)
}

/// Returns an error with its causes; for an error of TLS, what is wrong with the certificate or the connection.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(words) = tls_words::words(error) {
        return words;
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    Sentence(&text).to_string()
}

impl From<SequenceFault> for String {
    fn from(fault: SequenceFault) -> String {
        fault.to_string()
    }
}

impl Refused {
    /// Encodes the refusal as a gRPC status.
    pub(crate) fn to_status(&self) -> Status {
        use proto::refusal::Reason;
        let reason = match *self {
            Refused::JournalReplaced { was, now } => Reason::JournalReplaced(proto::JournalReplaced {
                was: was.0.to_vec().into(),
                now: now.0.to_vec().into(),
            }),
            Refused::Diverged { at } => Reason::Diverged(proto::Diverged { at }),
            Refused::OutOfRange { offset, start, end } => {
                Reason::OutOfRange(proto::OutOfRange { offset, start, end })
            }
            Refused::Fenced => Reason::Fenced(proto::Fenced {}),
        };
        let details = proto::Refusal { reason: Some(reason) }.encode_to_vec();
        let code = match self {
            Refused::OutOfRange { .. } => Code::OutOfRange,
            Refused::Fenced => Code::Aborted,
            _ => Code::FailedPrecondition,
        };
        Status::with_details(code, self.to_string(), details.into())
    }

    /// Decodes the refusal of a gRPC status, if it has one.
    pub(crate) fn of_status(status: &Status) -> Option<Refused> {
        use proto::refusal::Reason;
        if status.details().is_empty() {
            return None;
        }
        let id = |bytes: &[u8]| bytes.try_into().ok().map(JournalId);
        Some(match proto::Refusal::decode(status.details()).ok()?.reason? {
            Reason::JournalReplaced(replaced) => {
                Refused::JournalReplaced { was: id(&replaced.was)?, now: id(&replaced.now)? }
            }
            Reason::Diverged(diverged) => Refused::Diverged { at: diverged.at },
            Reason::OutOfRange(out) => {
                Refused::OutOfRange { offset: out.offset, start: out.start, end: out.end }
            }
            Reason::Fenced(_) => Refused::Fenced,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_words_has_some() {
        let words = |status: Status| words_of(&status);
        let (another, is_of_connection) = words(Status::unimplemented(""));
        assert!(another.contains("another service is there") && !is_of_connection, "{another}");
        assert_eq!(words(Status::new(Code::NotFound, "no stream")), ("no stream".to_owned(), false));
        assert!(!words(Status::new(Code::ResourceExhausted, "")).0.is_empty());
    }

    #[test]
    fn retention_is_blamed_for_what_it_took_alone() {
        let said = |offset| Refused::OutOfRange { offset, start: 10, end: 20 }.to_string();
        assert!(said(9).contains("retention took events"), "{}", said(9));
        let behind = said(21);
        assert!(!behind.contains("retention") && behind.contains("behind the end"), "{behind}");
    }
}
