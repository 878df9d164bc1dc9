//! Whom to believe: who trusted certificates issued, and as in Java certificates that are themselves trusted.

use std::collections::HashSet;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ExtendedKeyPurpose, RootCertStore,
    SignatureScheme,
};

use crate::SecurityError;
use crate::x509::CertificateInfo;

/// The certificates of a trust store, as issuers and by themselves.
#[derive(Debug)]
struct Trust {
    roots: Arc<RootCertStore>,
    own: HashSet<Vec<u8>>,
}

impl Trust {
    fn new(trusted: &[CertificateDer<'static>]) -> Result<Trust, SecurityError> {
        let mut roots = RootCertStore::empty();
        for certificate in trusted {
            roots.add(certificate.clone()).map_err(|error| unusable(&error))?;
        }
        let own = trusted.iter().map(|certificate| certificate.to_vec()).collect();
        Ok(Trust { roots: Arc::new(roots), own })
    }

    /// Whether a certificate is one of the trusted ones; an error if it is, and may not be used now or for this.
    fn is_own(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
        is_for: fn(&CertificateInfo) -> bool,
    ) -> Result<bool, Error> {
        if !self.own.contains(certificate.as_ref()) {
            return Ok(false);
        }
        let info = CertificateInfo::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if seconds < info.not_before {
            return Err(CertificateError::NotValidYet.into());
        }
        if seconds > info.not_after {
            return Err(CertificateError::Expired.into());
        }
        if !is_for(&info) {
            return Err(CertificateError::InvalidPurpose.into());
        }
        Ok(true)
    }
}

fn unusable(reason: &dyn std::fmt::Display) -> SecurityError {
    SecurityError::TlsMaterial { what: "the trust store".to_owned(), reason: reason.to_string() }
}

/// Believes every certificate, if the server has its key.
#[derive(Debug)]
pub(super) struct AnyServer(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A server's view of its clients.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    trust: Trust,
    webpki: Arc<dyn ClientCertVerifier>,
    is_mandatory: bool,
}

impl ClientVerifier {
    pub(super) fn new(
        trusted: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
        is_mandatory: bool,
    ) -> Result<ClientVerifier, SecurityError> {
        let trust = Trust::new(trusted)?;
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&trust.roots), provider);
        let webpki = builder.build().map_err(|error| unusable(&error))?;
        Ok(ClientVerifier { trust, webpki, is_mandatory })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.trust.is_own(end_entity, now, CertificateInfo::is_for_clients)? {
            return Ok(ClientCertVerified::assertion());
        }
        self.webpki.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// A client's view of its server.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    trust: Trust,
    webpki: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
    checks_names: bool,
}

impl ServerVerifier {
    pub(super) fn new(
        trusted: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
        checks_names: bool,
    ) -> Result<ServerVerifier, SecurityError> {
        let trust = Trust::new(trusted)?;
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&trust.roots), Arc::clone(&provider));
        let webpki = builder.build().map_err(|error| unusable(&error))?;
        Ok(ServerVerifier { trust, webpki, provider, checks_names })
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_own = self.trust.is_own(end_entity, now, CertificateInfo::is_for_servers)?;
        if !is_own && self.checks_names {
            return self.webpki.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if !is_own {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &self.trust.roots,
                intermediates,
                now,
                algorithms,
            )?;
            let info = CertificateInfo::parse(end_entity).map_err(|_| CertificateError::BadEncoding)?;
            if !info.is_for_servers() {
                return Err(CertificateError::InvalidPurposeContext {
                    required: ExtendedKeyPurpose::ServerAuth,
                    presented: Vec::new(),
                }
                .into());
            }
        }
        if self.checks_names {
            verify_server_name(&parsed, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
