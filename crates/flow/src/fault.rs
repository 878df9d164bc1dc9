//! Faults: the errors of handlers.

use std::error::Error as StdError;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind};

use mainstem_client::ErrorClass;

use mainstem_lines::Sentence;

use crate::FaultClass;

/// The reason why a handler has not done its work. Any error becomes one by `?`, and one in a box by [`Fault::of`]. Its class is that of
/// the outermost of it and its causes which has one, or else [`FaultClass::Failed`]:
///
/// - [`FaultClass::Transient`] for an error of this project's client that may pass ([`ErrorClass::Retriable`]), and for an [`io::Error`] by
///   which a connection was lost or could not be made. Drivers of databases have such an error among their causes.
/// - [`FaultClass::Stop`] for an error of the client after which it cannot continue ([`ErrorClass::Fatal`]).
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
    /// Makes the fault of an error in a box, such as an `anyhow::Error` or a `Box<dyn Error + Send + Sync>`. It has the class and the
    /// causes that the error would have by `?`.
    ///
    /// ```
    /// use anyhow::Context as _;
    /// use mainstem_flow::{Fault, FaultClass};
    ///
    /// fn rate() -> anyhow::Result<u64> {
    ///     let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    ///     Err(lost).context("the rates cannot be read")
    /// }
    ///
    /// fn total(cents: u64) -> Result<u64, Fault> {
    ///     Ok(cents * rate().map_err(Fault::of)?)
    /// }
    /// let fault = total(1).unwrap_err();
    /// assert_eq!(fault.class(), FaultClass::Transient);
    /// assert!(fault.cause().starts_with("the rates cannot be read\ncaused by: "));
    /// ```
    pub fn of(error: impl AsRef<dyn StdError + Send + Sync>) -> Fault {
        Fault::with_causes(error.as_ref())
    }

    /// The attempt has failed; it is tried again some times.
    pub fn failed(cause: impl fmt::Display) -> Fault {
        Fault { class: FaultClass::Failed, cause: cause.to_string() }
    }

    /// Something that the message needs is away: the message is tried again until it succeeds.
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

    /// Says whether the message is tried again, becomes a dead letter, or ends the application.
    pub fn class(&self) -> FaultClass {
        self.class
    }

    /// The error, with all of its causes on lines of their own.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    fn with_causes(error: &(dyn StdError + 'static)) -> Fault {
        let class = class_of(error);
        let mut cause = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            // Writing to a String cannot fail.
            let _ = write!(cause, "{CAUSED_BY}{inner}");
            source = inner.source();
        }
        Fault { class, cause }
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
        Fault::with_causes(&error)
    }
}

/// Between an error and its cause.
const CAUSED_BY: &str = "\ncaused by: ";

/// An error with its causes, as a line of the log shows it: the words may be those of a message.
pub(crate) fn in_line(cause: &str) -> String {
    Sentence(&cause.replace(CAUSED_BY, "; caused by: ")).to_string()
}

/// The class that an error or one of its causes says, outermost first.
fn class_of(error: &(dyn StdError + 'static)) -> FaultClass {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(class) = said_class(error) {
            return class;
        }
        // The inner error of an `io::Error` is none of its sources; the sources of that inner error are.
        let made_of = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = made_of.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    FaultClass::Failed
}

fn said_class(error: &(dyn StdError + 'static)) -> Option<FaultClass> {
    if let Some(error) = error.downcast_ref::<mainstem_client::Error>() {
        return match error.class() {
            ErrorClass::Retriable => Some(FaultClass::Transient),
            ErrorClass::Fatal => Some(FaultClass::Stop),
            ErrorClass::Permanent | ErrorClass::Abortable => Some(FaultClass::Failed),
        };
    }
    let error = error.downcast_ref::<io::Error>()?;
    is_lost(error.kind()).then_some(FaultClass::Transient)
}

/// Returns true for the kinds of error by which a connection ends, or cannot be made, if the peer is away or was restarted.
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
        let unknown = mainstem_client::Error::Unknown("x".into());
        assert_eq!(Fault::from(unknown).class(), FaultClass::Failed);
    }

    #[test]
    fn an_error_in_a_box_is_what_it_is_without() {
        let lost = || io::Error::from(ErrorKind::ConnectionReset);
        let boxed = |error| -> Box<dyn StdError + Send + Sync> { Box::new(error) };
        for fault in [
            Fault::of(boxed(lost())),
            Fault::of(anyhow::Error::from(lost())),
            Fault::of(anyhow::Error::from(lost()).context("the rates")),
        ] {
            assert_eq!(fault.class(), FaultClass::Transient, "{fault}");
        }
        let closed = Fault::of(anyhow::Error::from(mainstem_client::Error::Closed).context("sending"));
        assert_eq!(closed.class(), FaultClass::Stop);
        assert_eq!(closed.cause().lines().count(), 2, "{closed}");
        assert_eq!(Fault::of(anyhow::anyhow!("no")).class(), FaultClass::Failed);
    }

    #[test]
    fn a_cause_says_what_it_is() {
        let lost = || io::Error::from(ErrorKind::ConnectionReset);
        assert_eq!(Fault::from(NoRate("EUR", lost())).class(), FaultClass::Transient);
        assert_eq!(Fault::from(io::Error::other(NoRate("EUR", lost()))).class(), FaultClass::Transient);
        assert_eq!(Fault::from(io::Error::other(lost())).class(), FaultClass::Transient);
        let closed = || mainstem_client::Error::Closed;
        assert_eq!(Fault::from(closed()).class(), FaultClass::Stop);
        assert_eq!(Fault::from(io::Error::other(closed())).class(), FaultClass::Stop);
    }
}
