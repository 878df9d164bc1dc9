//! Certificates and keys of both ends: given in memory, or in files that are read again when they change.
//!
//! A publisher looks at its files every second. New contents are checked before they count. If they cannot be used, the earlier
//! ones stay, and the log says why. Existing connections continue, new ones use the new contents. A consumer reads its files for
//! each connection, by the same rule.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_security::tls::{client_verifier, server_verifier};
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use crate::error::causes;

/// The name of HTTP/2 in ALPN.
const HTTP2: &[u8] = b"h2";

/// Certificates or a key, in PEM.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

/// The state of a file that changes with its contents: length, inode, and time of the last change in seconds and
/// nanoseconds.
type Fingerprint = (u64, u64, i64, i64);

impl fmt::Debug for Pem {
    /// Without the text, which may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Text(_) => f.write_str("Text"),
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Pem {
    fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Pem::Text(text) => Ok(text.clone()),
            Pem::File(path) => mainstem_files::read(path)
                .map_err(|error| format!("{} cannot be read: {error}", path.display())),
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let text = self.read()?;
        let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        let certificates =
            certificates.map_err(|error| format!("a certificate cannot be read from {self}: {error}"))?;
        match certificates.is_empty() {
            true => Err(format!("there is no certificate in {self}")),
            false => Ok(certificates),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let key = PrivateKeyDer::from_pem_slice(&self.read()?);
        key.map_err(|error| format!("a key cannot be read from {self}: {error}"))
    }

    /// Returns `None` for text, and for a file that cannot be looked at.
    fn fingerprint(&self) -> Option<Fingerprint> {
        let Pem::File(path) = self else { return None };
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.len(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Text(_) => f.write_str("what was given"),
            Pem::File(path) => path.display().fmt(f),
        }
    }
}

/// The certificate of a publisher, and the authorities of client certificates that it wants.
#[derive(Debug, Clone)]
pub(crate) struct ServerPem {
    pub(crate) certificate: Pem,
    pub(crate) key: Pem,
    pub(crate) client_authorities: Option<Pem>,
}

impl ServerPem {
    /// Loads the TLS configuration, and checks that the key fits the certificate.
    fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| causes(&error))?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let verifier = client_verifier(&authorities.certificates()?);
                builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
            }
        };
        let config = builder.with_single_cert(self.certificate.certificates()?, self.key.key()?);
        let mut config = config.map_err(|error| causes(&error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Arc::new(config))
    }

    fn fingerprints(&self) -> [Option<Fingerprint>; 3] {
        let authorities = self.client_authorities.as_ref().and_then(Pem::fingerprint);
        [self.certificate.fingerprint(), self.key.fingerprint(), authorities]
    }
}

/// The TLS configuration of a publisher, which follows its files.
#[derive(Debug)]
pub(crate) struct ServerTls {
    pem: ServerPem,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    config: Arc<ServerConfig>,
    /// The files as they were last read, usable or not.
    read: [Option<Fingerprint>; 3],
    /// The files as they were at the last look.
    seen: [Option<Fingerprint>; 3],
}

impl ServerTls {
    /// Loads the configuration.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(crate) fn new(pem: ServerPem) -> Result<ServerTls, String> {
        let read = pem.fingerprints();
        let now = Now { config: pem.load()?, read, seen: read };
        Ok(ServerTls { pem, now: Mutex::new(now) })
    }

    /// Returns the configuration for the next connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.now.lock().config.clone()
    }

    /// Reads the files again if they have changed, and did not change since the last look: a certificate and its key change one
    /// after the other. If they can be used, new connections do; otherwise the earlier ones stay.
    pub(crate) fn look(&self) {
        let seen = self.pem.fingerprints();
        {
            let mut now = self.now.lock();
            let is_settled = std::mem::replace(&mut now.seen, seen) == seen;
            if !is_settled || seen == now.read {
                return;
            }
            now.read = seen;
        }
        match self.pem.load() {
            Ok(config) => {
                self.now.lock().config = config;
                tracing::info!(
                    "the certificate, its key or the authorities of clients have changed: new connections use them"
                );
            }
            Err(reason) => tracing::warn!(
                "the certificate, its key or the authorities of clients have changed and cannot be used: {reason}; new connections go \
                 on with those before them"
            ),
        }
    }
}

/// The configuration of a connection, and the verifier of the publisher's certificate.
type Usable = (ClientTlsConfig, Arc<dyn ServerCertVerifier>);

/// The certificate of a client, and the authorities that it trusts.
#[derive(Clone, Default)]
pub(crate) struct ClientTls {
    authorities: Vec<Pem>,
    identity: Option<(Pem, Pem)>,
    /// The configuration of the last connection.
    usable: Arc<Mutex<Option<Usable>>>,
}

impl fmt::Debug for ClientTls {
    /// Leaves out what was read, which has a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientTls { authorities, identity, .. } = self;
        f.debug_struct("ClientTls").field("authorities", authorities).field("identity", identity).finish()
    }
}

impl ClientTls {
    pub(crate) fn trust(mut self, authorities: Pem) -> ClientTls {
        self.authorities.push(authorities);
        ClientTls { usable: Arc::default(), ..self }
    }

    pub(crate) fn identity(self, certificate: Pem, key: Pem) -> ClientTls {
        ClientTls { identity: Some((certificate, key)), usable: Arc::default(), ..self }
    }

    /// Configures a connection with the present files. If they cannot be used, with those of the last connection.
    ///
    /// # Errors
    /// The reason why no configuration can be used.
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Result<Endpoint, String> {
        let with = |(config, verifier): Usable| {
            endpoint.clone().tls_config_with_verifier(config, verifier).map_err(|error| causes(&error))
        };
        let now = self.read().and_then(|config| Ok((with(config.clone())?, config)));
        match now {
            Ok((endpoint, config)) => {
                *self.usable.lock() = Some(config);
                Ok(endpoint)
            }
            Err(reason) => {
                let Some(before) = self.usable.lock().clone() else { return Err(reason) };
                tracing::warn!(
                    "certificates or a key for {} cannot be used as they are now: {reason}; those before them are",
                    endpoint.uri()
                );
                with(before)
            }
        }
    }

    fn read(&self) -> Result<Usable, String> {
        let mut config = ClientTlsConfig::new();
        let mut trusted = Vec::new();
        for authorities in &self.authorities {
            trusted.extend(authorities.certificates()?);
        }
        let verifier = server_verifier(&trusted).map_err(|error| error.to_string())?;
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate.read()?, key.read()?));
        }
        Ok((config, verifier))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn refusals(path: &std::path::Path) -> Vec<String> {
        let file = || Pem::File(path.to_owned());
        let endpoint = Endpoint::from_static("https://localhost:1");
        let client = ClientTls::default();
        let clients = [client.clone().trust(file()), client.identity(file(), file())];
        let of_clients = clients.map(|tls| tls.of(&endpoint).expect_err("it cannot be read"));
        let server = ServerPem { certificate: file(), key: file(), client_authorities: None };
        let of_server = ServerTls::new(server).expect_err("it cannot be read");
        of_clients.into_iter().chain([of_server]).collect()
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
