//! Errors that keep an application from starting, or end it.

use mainstem_lines::Sentence;

use crate::fault::in_line;

/// An error that keeps an application from starting, or ends it without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its routes or settings make no sense together.
    #[error("{}", Sentence(.0))]
    Invalid(String),
    /// The brokers refuse what it needs, or cannot be reached.
    #[error(transparent)]
    Client(#[from] mainstem_client::Error),
    /// A publisher refuses what it needs, or has lost what was read.
    #[cfg(feature = "direct")]
    #[error(transparent)]
    Direct(#[from] mainstem_direct::DirectError),
    /// A handler has asked to move to another offset of a stream ([`Cx::seek`](crate::Cx::seek)), and its publisher refuses. The next start
    /// begins where the application was.
    #[cfg(feature = "direct")]
    #[error("{partition} cannot continue at offset {offset}, as a handler has asked to: {source}")]
    Seek {
        /// The partition: a publisher of the stream.
        partition: mainstem_client::TopicPartition,
        /// The offset.
        offset: i64,
        /// Why.
        source: mainstem_direct::DirectError,
    },
    /// A message is no event of the type that a [`Reader`](crate::Reader) was asked for.
    #[error("{partition} at offset {offset} cannot be decoded: {}", in_line(cause))]
    Undecodable {
        /// The partition of the message.
        partition: mainstem_client::TopicPartition,
        /// Its offset; the reader continues behind it.
        offset: i64,
        /// The reason, such as a missing field.
        cause: String,
    },
    /// A handler has asked for the end, by [`Fault::stop`](crate::Fault::stop).
    #[error("{partition} at offset {offset}: the handler stops the application: {}", in_line(cause))]
    Stopped {
        /// The partition of the message.
        partition: mainstem_client::TopicPartition,
        /// The message's offset: the next start begins there at the latest.
        offset: i64,
        /// The handler's words.
        cause: String,
    },
    /// The task of a partition has panicked, by a fault of this crate, or of the destructor of a handler's future that was dropped at its
    /// time limit.
    #[error("the task of {partition} panicked: {}", in_line(cause))]
    Panicked {
        /// The partition: the next owner resumes at the committed offset.
        partition: mainstem_client::TopicPartition,
        /// The words of the panic.
        cause: String,
    },
}

/// The result of an application and of its parts.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;
