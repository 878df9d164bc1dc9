//! Messages for failed TLS connections, with what to do: those of `mainstem-security`, which a broker has too.

use std::error::Error as StdError;
use std::io;

use mainstem_lines::Sentence;
use mainstem_security::tls::Refusal;
use rustls::{AlertDescription, Error};

/// Parts of a broker's messages that name Kafka's keys, each with its replacement here.
const TRUST_STORE: [(&str, &str); 2] = [
    ("not in the trust store", "not among the trusted authorities"),
    (
        "add it to ssl.truststore.*, or have it issued by an authority that is in there",
        "trust it, or have it issued by one of them",
    ),
];

/// Returns the TLS error among the causes of an error, if there is one.
pub(crate) fn error_of_tls<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(of_tls) = error.downcast_ref() {
            return Some(of_tls);
        }
        // An I/O error's source is its inner error's source. The inner error itself has to be looked at too.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Returns a consumer's message for an error of TLS; `None` for any other.
pub(crate) fn words(error: &(dyn StdError + 'static)) -> Option<String> {
    let of_alert = || alert_of(error).map(Error::AlertReceived).map(|alert| of_consumer(&alert));
    error_of_tls(error).map(of_consumer).or_else(of_alert)
}

/// The words of rustls before the name of an alert.
const ALERT: &str = "received fatal alert: ";
/// Alerts with which a publisher refuses a client's certificate.
const ALERTS: [AlertDescription; 10] = [
    AlertDescription::CertificateRequired,
    AlertDescription::NoCertificate,
    AlertDescription::UnknownCA,
    AlertDescription::CertificateExpired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
];

/// Returns the alert that has ended an HTTP/2 connection, which keeps only the text of an error.
fn alert_of(error: &(dyn StdError + 'static)) -> Option<AlertDescription> {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<io::Error>()
            && let Some(name) = error.to_string().strip_prefix(ALERT)
        {
            return ALERTS.into_iter().find(|alert| format!("{alert:?}") == name);
        }
        next = error.source();
    }
    None
}

/// Returns a consumer's message for an error of TLS.
fn of_consumer(error: &Error) -> String {
    if let Some(refusal) = Refusal::of(error) {
        return of_refusal(refusal);
    }
    let certificate = "certificate of this client";
    match error {
        Error::InvalidMessage(_) | Error::AlertReceived(AlertDescription::UnexpectedMessage) => {
            format!("what came is no TLS ({error}): the publisher may not speak TLS at this port")
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
                format!("the publisher asks for a {certificate}, and none was shown: show one (Address::identity)")
            }
            AlertDescription::UnknownCA => {
                "the publisher does not trust the authority of this client's certificate: show one of an authority that it trusts"
                    .to_owned()
            }
            AlertDescription::CertificateExpired => {
                "the publisher refuses this client's certificate, which has expired: have it renewed".to_owned()
            }
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied
            | AlertDescription::HandshakeFailure
            | AlertDescription::DecryptError => {
                format!("the publisher does not accept the {certificate} ({alert:?}): its log says why")
            }
            other => format!("the publisher has ended the handshake ({other:?}): its log may say why"),
        },
        other => Sentence(&other.to_string()).to_string(),
    }
}

/// Returns a publisher's message for a failed handshake. The call has to be on the thread of the handshake.
pub(crate) fn of_publisher(error: &io::Error) -> String {
    let Some(of_tls) = error_of_tls(error) else { return Sentence(&error.to_string()).to_string() };
    if let Some(refusal) = Refusal::take(of_tls) {
        return of_refusal(&refusal);
    }
    match of_tls {
        Error::NoCertificatesPresented => {
            "the client has shown no certificate, and the publisher asks for one: have it show one".to_owned()
        }
        Error::AlertReceived(alert) => {
            format!("the client has ended it, as where it does not accept the certificate ({alert:?})")
        }
        other => Sentence(&other.to_string()).to_string(),
    }
}

/// Rewrites a refusal for this crate, which has no trust store.
fn of_refusal(refusal: &Refusal) -> String {
    let words = TRUST_STORE.iter().fold(refusal.to_string(), |words, (kafka, own)| words.replace(kafka, own));
    let words = words.replace("to ssl.truststore.*", "to them");
    Sentence(&words).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_tls_is_found_behind_other_errors() {
        let of_tls = || io::Error::new(io::ErrorKind::InvalidData, Error::DecryptError);
        let is_of_tls = |error: &(dyn StdError + 'static)| error_of_tls(error).is_some();
        assert!(is_of_tls(&of_tls()));
        assert!(is_of_tls(&tonic::ConnectError(Box::new(io::Error::other(of_tls())))));
        assert!(!is_of_tls(&tonic::ConnectError(Box::new(io::Error::from(
            io::ErrorKind::ConnectionRefused
        )))));
    }

    #[test]
    fn an_alert_of_which_the_text_is_left_is_known() {
        let of_text = |alert: AlertDescription| {
            let text = Error::AlertReceived(alert).to_string();
            words(&tonic::ConnectError(Box::new(io::Error::new(io::ErrorKind::InvalidData, text))))
        };
        for alert in ALERTS {
            let said = of_text(alert).unwrap_or_default();
            assert!(said.contains("the publisher"), "{alert:?}: {said}");
        }
        assert_eq!(words(&io::Error::other("something else")), None);
    }

    #[test]
    fn alerts_say_what_to_do() {
        for (alert, words) in [
            (AlertDescription::CertificateRequired, "show one (Address::identity)"),
            (AlertDescription::UnknownCA, "show one of an authority that it trusts"),
            (AlertDescription::CertificateExpired, "have it renewed"),
            (AlertDescription::BadCertificate, "its log says why"),
            (AlertDescription::UnexpectedMessage, "may not speak TLS at this port"),
            (AlertDescription::ProtocolVersion, "its log may say why"),
        ] {
            let said = of_consumer(&Error::AlertReceived(alert));
            assert!(said.contains(words), "{alert:?}: {said}");
        }
    }
}
