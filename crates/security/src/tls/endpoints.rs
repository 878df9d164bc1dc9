//! The TLS settings of a server and of a client, from which sessions begin.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert, ServerSessionMemoryCache};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme};

use super::material::TlsMaterial;
use super::names;
use super::properties::{ClientAuth, TlsProperties};
use super::session::TlsSession;
use super::verify::{AnyServer, ClientVerifier, ServerVerifier};
use crate::SecurityError;

/// Sessions that a listener remembers to be resumed.
pub const SESSIONS_MAX: usize = 1024;

/// Begins sessions at a listener.
#[derive(Debug, Clone)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

/// Begins sessions with servers.
#[derive(Debug, Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

fn unusable(error: &rustls::Error) -> SecurityError {
    SecurityError::TlsProperty(format!("the ssl.* properties allow no session: {error}"))
}

fn provider(properties: &TlsProperties) -> Result<Arc<CryptoProvider>, SecurityError> {
    let (cipher_suites, _) = names::cipher_suites(&properties.cipher_suites)?;
    Ok(Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() }))
}

impl TlsServer {
    /// Makes the settings of a listener's sessions.
    ///
    /// # Errors
    /// When there is no key, or client certificates are required without a trust store.
    pub fn new(properties: &TlsProperties, material: &TlsMaterial) -> Result<TlsServer, SecurityError> {
        if material.identities.is_empty() {
            let what = "a listener with SSL needs ssl.keystore.location, or ssl.keystore.key with \
                        ssl.keystore.certificate.chain";
            return Err(SecurityError::TlsProperty(what.to_owned()));
        }
        let provider = provider(properties)?;
        let versions = names::protocols(&properties.enabled_protocols)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| unusable(&error))?;
        let builder = match (properties.client_auth, &material.trusted) {
            (ClientAuth::None, _) => builder.with_client_cert_verifier(Arc::new(NoClientAuth)),
            (auth, Some(trusted)) => {
                let is_mandatory = auth == ClientAuth::Required;
                builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(
                    trusted,
                    provider,
                    is_mandatory,
                )?))
            }
            // Java would trust the authorities of its own list, which issue certificates to everyone.
            (_, None) => {
                let what = "ssl.client.auth needs ssl.truststore.location or ssl.truststore.certificates, which say \
                            whose certificates are accepted";
                return Err(SecurityError::TlsProperty(what.to_owned()));
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Keys::of(material)));
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS_MAX);
        config.max_early_data_size = 0;
        Ok(TlsServer { config: Arc::new(config) })
    }

    #[cfg(test)]
    pub(super) fn with_records_of(self, bytes: usize) -> TlsServer {
        let mut config = ServerConfig::clone(&self.config);
        config.max_fragment_size = Some(bytes);
        TlsServer { config: Arc::new(config) }
    }

    /// Begins a session with a client.
    ///
    /// # Errors
    /// Never in practice: the configuration was checked.
    pub fn session(&self) -> Result<TlsSession, SecurityError> {
        TlsSession::server(Arc::clone(&self.config)).map_err(|error| unusable(&error))
    }
}

impl TlsClient {
    /// Makes the settings of a client's sessions.
    ///
    /// # Errors
    /// When there is no trust store, or the properties contradict each other.
    pub fn new(properties: &TlsProperties, material: &TlsMaterial) -> Result<TlsClient, SecurityError> {
        let trusted = material.trusted.as_deref().ok_or_else(|| {
            SecurityError::TlsProperty("a client with SSL needs certificates to trust".to_owned())
        })?;
        let provider = provider(properties)?;
        let versions = names::protocols(&properties.enabled_protocols)?;
        let verifier = ServerVerifier::new(trusted, Arc::clone(&provider), properties.checks_names)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match material.identities.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_resolver(Arc::new(Keys::of(material))),
        };
        Ok(TlsClient { config: Arc::new(config) })
    }

    /// Makes the settings of sessions for inspection: every certificate is accepted whose key the server has. Only public data may be sent
    /// in them.
    ///
    /// # Errors
    /// When the properties contradict each other.
    pub fn observing(properties: &TlsProperties, material: &TlsMaterial) -> Result<TlsClient, SecurityError> {
        let provider = provider(properties)?;
        let versions = names::protocols(&properties.enabled_protocols)?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)));
        let config = match material.identities.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_resolver(Arc::new(Keys::of(material))),
        };
        Ok(TlsClient { config: Arc::new(config) })
    }

    /// Begins a session with a server of this host name or address.
    ///
    /// # Errors
    /// When the host is neither.
    pub fn session(&self, host: &str) -> Result<TlsSession, SecurityError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            SecurityError::TlsProperty(format!(
                "{host} is neither a host's name nor an address: write a name beyond ASCII in its ASCII form (xn--...)"
            ))
        })?;
        TlsSession::client(Arc::clone(&self.config), name).map_err(|error| unusable(&error))
    }

    /// The configuration for other drivers of rustls.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

/// Verifies servers for another driver of rustls, as the sessions of [`TlsClient::config`] do: an error has its
/// [`Refusal`](super::Refusal::of).
///
/// # Errors
/// When one of the trusted certificates cannot be used.
pub fn server_verifier(
    trusted: &[CertificateDer<'static>],
) -> Result<Arc<dyn ServerCertVerifier>, SecurityError> {
    Ok(Arc::new(ServerVerifier::new(trusted, Arc::new(aws_lc_rs::default_provider()), true)?))
}

/// Verifies clients, which have to show a certificate, for another driver of rustls. The alert of an error gives the client the reason;
/// [`Refusal::take`](super::Refusal::take) has the message, on the thread on which the session has returned it.
///
/// # Errors
/// When one of the trusted certificates cannot be used.
pub fn client_verifier(
    trusted: &[CertificateDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, SecurityError> {
    Ok(Arc::new(ClientVerifier::new(trusted, Arc::new(aws_lc_rs::default_provider()), true)?))
}

/// The keys of a store: the first one that the peer can check is used.
#[derive(Debug)]
struct Keys(Vec<Arc<CertifiedKey>>);

impl Keys {
    fn of(material: &TlsMaterial) -> Keys {
        Keys(material.identities.iter().map(|identity| Arc::clone(&identity.key)).collect())
    }

    fn choose(&self, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.iter().find(|key| key.key.choose_scheme(schemes).is_some()).map(Arc::clone)
    }
}

impl ResolvesServerCert for Keys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.signature_schemes())
    }
}

impl ResolvesClientCert for Keys {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.choose(schemes)
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}
