//! Connections that are encrypted, to brokers that prove their identity.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mainstem_security::tls::{Refusal, TlsClient, TlsMaterial, TlsProperties};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, Error as RustlsError};

use crate::connection::ConnectionOptions;
use crate::error::Error;

/// The authorities that a client trusts, and the certificate that it shows, if any. TLS 1.2 and 1.3.
///
/// ```no_run
/// use mainstem_client::{ClientConfig, Tls};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::trusting(&std::fs::read_to_string("ca.pem")?)?;
/// let config = ClientConfig::new("broker.example:9093")?.tls(tls);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls {
    client: Arc<TlsClient>,
}

impl Tls {
    /// Trusts brokers with a certificate of the authorities in this text, in PEM, for the host that is connected to.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no certificate in it.
    pub fn trusting(authorities: &str) -> Result<Tls, Error> {
        Tls::of(&[("ssl.truststore.certificates", authorities)])
    }

    /// The same, and shows a certificate (a chain, the client's own first) with its key (PKCS#8), all in PEM.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them cannot be read, or the key does not fit the certificate.
    pub fn mutual(authorities: &str, chain: &str, key: &str) -> Result<Tls, Error> {
        Tls::of(&[
            ("ssl.truststore.certificates", authorities),
            ("ssl.keystore.certificate.chain", chain),
            ("ssl.keystore.key", key),
        ])
    }

    /// Trusts brokers with a certificate of an authority that this system trusts.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the system has none.
    pub fn system() -> Result<Tls, Error> {
        Tls::of(&[])
    }

    fn of(properties: &[(&str, &str)]) -> Result<Tls, Error> {
        let get = |key: &str| match key {
            "ssl.truststore.type" | "ssl.keystore.type" => Some("PEM".to_owned()),
            _ => properties.iter().find(|(known, _)| *known == key).map(|(_, value)| (*value).to_owned()),
        };
        Tls::from_properties(&get)
    }

    /// The same from Kafka's `ssl.*` client properties; `get` returns the value of a key, none if it is not set. Reads the stores.
    /// Without a trust store, the authorities are those that this system trusts. A store is a regular file of at most 16 MiB.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they contradict each other, or a store cannot be used.
    pub fn from_properties(get: &dyn Fn(&str) -> Option<String>) -> Result<Tls, Error> {
        let invalid = |error: mainstem_security::SecurityError| Error::Invalid(error.to_string());
        let properties = TlsProperties::read(get).map_err(invalid)?;
        let read = |path: &str| mainstem_files::read(Path::new(path)).map_err(|error| error.to_string());
        let mut material = properties.load(&read).map_err(invalid)?;
        if material.trusted.is_none() {
            trust_system(&mut material)?;
        }
        let client = TlsClient::new(&properties, &material).map_err(invalid)?;
        Ok(Tls { client: Arc::new(client) })
    }

    /// Begins a session with a broker, HOST:PORT, within the time for connecting.
    pub(crate) async fn connect(
        &self,
        broker: &str,
        stream: TcpStream,
        options: &ConnectionOptions,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let host = broker.rsplit_once(':').map_or(broker, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
        let failed = |reason: String| Error::Connect { broker: broker.to_owned(), reason };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::Invalid(format!("{host} is neither a host's name nor an address")))?;
        let begun = TlsConnector::from(self.client.config()).connect(name, stream);
        match tokio::time::timeout(options.connect_timeout, begun).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(refusal(broker, &error).unwrap_or_else(|| failed(error.to_string()))),
            Err(_) => Err(failed(format!("no TLS session within {:?}", options.connect_timeout))),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn trust_system(material: &mut TlsMaterial) -> Result<(), Error> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map_or_else(|| "it has none".to_owned(), ToString::to_string);
        return Err(Error::Invalid(format!(
            "no authority of this system is known to be trusted ({why}): name those of the broker \
             (ssl.truststore.location)"
        )));
    }
    material.trusted = Some(found.certs);
    Ok(())
}

/// The error of a session that one side has ended because it does not trust the other. Another attempt would end alike.
pub(crate) fn refusal(broker: &str, error: &io::Error) -> Option<Error> {
    let error = error.get_ref()?.downcast_ref::<RustlsError>()?;
    let (broker, what) = (broker.to_owned(), "TLS".to_owned());
    // This error itself says what to do.
    if let Some(refused) = Refusal::of(error) {
        return Some(Error::NotAuthenticated { broker, what, reason: refused.to_string() });
    }
    let advice = match error {
        RustlsError::InvalidMessage(_) | RustlsError::AlertReceived(AlertDescription::UnexpectedMessage) => {
            "; the broker may not speak TLS at this port"
        }
        RustlsError::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::HandshakeFailure
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::CertificateExpired
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown,
        ) => "; show a certificate that the broker trusts (ssl.keystore.location)",
        _ => "",
    };
    Some(Error::NotAuthenticated { broker, what, reason: format!("{error}{advice}") })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn refusals(path: &Path) -> Vec<String> {
        let of = |key: &str| {
            let get = |asked: &str| match asked {
                "ssl.truststore.type" | "ssl.keystore.type" => Some("PEM".to_owned()),
                asked => (asked == key).then(|| path.to_str().unwrap().to_owned()),
            };
            Tls::from_properties(&get).expect_err("it cannot be read").to_string()
        };
        ["ssl.truststore.location", "ssl.keystore.location"].map(of).into()
    }

    #[test]
    fn files_that_have_no_end_or_are_none_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::File::create(at("large")).unwrap().set_len(mainstem_files::FILE_BYTES_MAX + 1).unwrap();
        for (path, what) in [
            (at("pipe"), "it is a pipe, and no regular file; name a regular file"),
            (at(""), "it is a directory, and no regular file; name a regular file"),
            ("/dev/zero".into(), "it is a device, and no regular file; name a regular file"),
            (
                at("large"),
                "it has more than 16 MiB, which nothing of this kind has; look whether another file",
            ),
        ] {
            for why in refusals(&path) {
                assert!(why.contains(what) && why.contains(path.to_str().unwrap()), "{why}");
            }
        }
    }
}
