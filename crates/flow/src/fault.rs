//! What a handler fails with.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind};

use crate::FaultClass;

/// Why a handler has not done its work. Any error becomes one by `?`: it is [`FaultClass::Failed`], or
/// [`FaultClass::Transient`] where the client says that the same request may succeed later, or a connection was lost.
///
/// It is no `std::error::Error` itself, so that every such error can be turned into one.
///
/// ```
/// use mainstem_flow::{Fault, FaultClass};
///
/// fn total(cents: u64, rate: u64) -> Result<u64, Fault> {
///     cents.checked_mul(rate).ok_or_else(|| Fault::poison("the total overflows"))
/// }
/// assert_eq!(total(u64::MAX, 2).unwrap_err().class(), FaultClass::Poison);
/// let parsed = (|| Ok::<u64, Fault>("x".parse::<u64>()?))();
/// assert_eq!(parsed.unwrap_err().class(), FaultClass::Failed);
/// ```
pub struct Fault {
    class: FaultClass,
    cause: String,
}

impl Fault {
    /// The attempt has failed; it is tried again some times.
    pub fn failed(cause: impl fmt::Display) -> Fault {
        Fault { class: FaultClass::Failed, cause: cause.to_string() }
    }

    /// Something that the message needs is away: it is tried again for as long as that takes.
    pub fn transient(cause: impl fmt::Display) -> Fault {
        Fault { class: FaultClass::Transient, cause: cause.to_string() }
    }

    /// No attempt will ever succeed: the message becomes a dead letter at once.
    pub fn poison(cause: impl fmt::Display) -> Fault {
        Fault { class: FaultClass::Poison, cause: cause.to_string() }
    }

    /// The application has to end; the message stays unfinished.
    pub fn stop(cause: impl fmt::Display) -> Fault {
        Fault { class: FaultClass::Stop, cause: cause.to_string() }
    }

    /// What it is.
    pub fn class(&self) -> FaultClass {
        self.class
    }

    /// The error, with all of its causes on lines of their own.
    pub fn cause(&self) -> &str {
        &self.cause
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.class, self.cause)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Fault {
    fn from(error: E) -> Fault {
        let class = class_of(&error);
        let mut cause = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            // Writing to a String cannot fail.
            let _ = write!(cause, "\ncaused by: {inner}");
            source = inner.source();
        }
        Fault { class, cause }
    }
}

fn class_of(error: &dyn Any) -> FaultClass {
    let client = error.downcast_ref::<mainstem_client::Error>().is_some_and(|error| error.is_retriable());
    let io = error.downcast_ref::<io::Error>().is_some_and(|error| is_lost(error.kind()));
    if client || io { FaultClass::Transient } else { FaultClass::Failed }
}

/// What a peer that is away, or was restarted, ends connections with.
fn is_lost(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the rate of {0} cannot be found")]
    struct NoRate(&'static str, #[source] io::Error);

    #[test]
    fn an_error_brings_its_causes() {
        let fault = Fault::from(NoRate("EUR", io::Error::other("no such table")));
        assert_eq!(
            (fault.class(), fault.cause()),
            (FaultClass::Failed, "the rate of EUR cannot be found\ncaused by: no such table")
        );
    }

    #[test]
    fn what_is_away_is_waited_for() {
        assert_eq!(Fault::from(io::Error::from(ErrorKind::ConnectionRefused)).class(), FaultClass::Transient);
        assert_eq!(Fault::from(io::Error::from(ErrorKind::NotFound)).class(), FaultClass::Failed);
        let late = mainstem_client::Error::TimedOut {
            what: "x".into(),
            after: std::time::Duration::ZERO,
            last: None,
        };
        assert_eq!(Fault::from(late).class(), FaultClass::Transient);
        assert_eq!(Fault::from(mainstem_client::Error::Closed).class(), FaultClass::Failed);
    }
}
