//! The reason why a certificate is refused, as a message for the person who has to replace it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError};

use super::faults::Fault;
use crate::x509::CertificateInfo;
use mainstem_lines::OneLine;

/// A peer's certificate that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    subject: Option<String>,
    what: String,
    kind: Kind,
}

/// A kind of refusal, as an alert reports it to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Malformed,
    Expired,
    NotValidYet,
    UnknownIssuer,
    BadSignature,
    /// It is for another purpose, or not secure enough.
    Unsuitable,
    OtherName,
}

impl Refusal {
    pub(super) fn of_peer(info: &CertificateInfo, fault: Fault) -> Refusal {
        Refusal { subject: Some(info.subject.clone()), what: fault.what, kind: fault.kind }
    }

    pub(super) fn unreadable(what: &str) -> Refusal {
        let what = format!("it cannot be read ({what}): have it issued again");
        Refusal { subject: None, what, kind: Kind::Malformed }
    }

    fn as_alert(&self) -> Error {
        Error::InvalidCertificate(match self.kind {
            Kind::Malformed => CertificateError::BadEncoding,
            Kind::Expired => CertificateError::Expired,
            Kind::NotValidYet => CertificateError::NotValidYet,
            Kind::UnknownIssuer => CertificateError::UnknownIssuer,
            Kind::BadSignature => CertificateError::BadSignature,
            Kind::Unsuitable => CertificateError::InvalidPurpose,
            Kind::OtherName => CertificateError::NotValidForName,
        })
    }

    /// The error of a verifier whose session takes the message from [`Refusal::take`]: rustls's own errors have the right alert, but no
    /// message.
    pub(super) fn beside(self) -> Error {
        let error = self.as_alert();
        LAST.set(Some(self));
        error
    }

    /// The error of a verifier whose sessions may be driven by others: it carries the message, and the alert says less.
    pub(super) fn within(self) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    /// The refusal with which a session ends: rustls calls verifiers on the thread on which it returns their errors. It is that of a
    /// verifier that reports the reason to its peer by the alert ([`client_verifier`](super::client_verifier)).
    pub fn take(error: &Error) -> Option<Refusal> {
        let last = LAST.take();
        Refusal::of(error).cloned().or_else(|| last.filter(|refusal| refusal.as_alert() == *error))
    }

    /// The refusal that an error of [`TlsClient::config`](super::TlsClient::config)'s sessions has.
    pub fn of(error: &Error) -> Option<&Refusal> {
        let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return None };
        other.0.downcast_ref()
    }
}

thread_local! {
    static LAST: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject.as_deref() {
            None => f.write_str("the peer's certificate")?,
            Some("") => f.write_str("the certificate without a subject")?,
            Some(subject) => write!(f, "the certificate {}", OneLine(subject))?,
        }
        write!(f, " is refused: {}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(subject: &str) -> Refusal {
        Refusal { subject: Some(subject.to_owned()), what: "x".to_owned(), kind: Kind::Expired }
    }

    #[test]
    fn what_a_peer_calls_itself_ends_no_line() {
        assert_eq!(refusal("CN=a\nb").to_string(), r"the certificate CN=a\nb is refused: x");
        assert_eq!(refusal("").to_string(), "the certificate without a subject is refused: x");
    }

    #[test]
    fn words_are_taken_once_and_by_their_own_error() {
        let refusal = refusal("CN=a");
        let error = refusal.clone().beside();
        assert_eq!(Refusal::take(&error), Some(refusal.clone()));
        assert_eq!(Refusal::take(&error), None);
        let _ = refusal.clone().beside();
        assert_eq!(Refusal::take(&Error::DecryptError), None);
        assert_eq!(Refusal::take(&error), None);
        let within = refusal.clone().within();
        assert_eq!((Refusal::of(&within), Refusal::take(&within)), (Some(&refusal), Some(refusal.clone())));
    }
}
