//! Questions of rustls about a peer's certificate, and their answers.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::faults;
use super::refusal::Refusal;
use super::trust::{Role, Shown, Trust, parsed};
use crate::SecurityError;

type Proof = Result<HandshakeSignatureValid, Error>;

/// Returns the error for a signature that is not the key's, with the certificate's fault; `tell` makes the error.
fn proven(proof: Proof, certificate: &CertificateDer<'_>, tell: fn(Refusal) -> Error) -> Proof {
    proof.map_err(|error| match error {
        Error::InvalidCertificate(_) => tell(match parsed(certificate) {
            Ok(info) => Refusal::of_peer(&info, faults::of_proof(&info)),
            Err(unreadable) => unreadable,
        }),
        other => other,
    })
}

/// Accepts every certificate whose key the server has.
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
    ) -> Proof {
        let algorithms = &self.0.signature_verification_algorithms;
        let proof = verify_tls12_signature(message, certificate, signed, algorithms);
        proven(proof, certificate, Refusal::within)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Proof {
        let algorithms = &self.0.signature_verification_algorithms;
        let proof = verify_tls13_signature(message, certificate, signed, algorithms);
        proven(proof, certificate, Refusal::within)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A server's view of its clients.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    trust: Trust,
    subjects: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
    is_mandatory: bool,
}

impl ClientVerifier {
    pub(super) fn new(
        trusted: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
        is_mandatory: bool,
    ) -> Result<ClientVerifier, SecurityError> {
        let trust = Trust::new(trusted)?;
        Ok(ClientVerifier { subjects: trust.subjects(), trust, provider, is_mandatory })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let shown = Shown { end_entity, intermediates, now, role: Role::Client };
        let algorithms = self.provider.signature_verification_algorithms.all;
        self.trust.check(&shown, algorithms).map_err(Refusal::beside)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Proof {
        let algorithms = &self.provider.signature_verification_algorithms;
        let proof = verify_tls12_signature(message, certificate, signed, algorithms);
        proven(proof, certificate, Refusal::beside)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Proof {
        let algorithms = &self.provider.signature_verification_algorithms;
        let proof = verify_tls13_signature(message, certificate, signed, algorithms);
        proven(proof, certificate, Refusal::beside)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A client's view of its server.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
    checks_names: bool,
}

impl ServerVerifier {
    pub(super) fn new(
        trusted: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
        checks_names: bool,
    ) -> Result<ServerVerifier, SecurityError> {
        Ok(ServerVerifier { trust: Trust::new(trusted)?, provider, checks_names })
    }

    fn check(&self, shown: &Shown<'_>, name: &ServerName<'_>) -> Result<(), Refusal> {
        let info = self.trust.check(shown, self.provider.signature_verification_algorithms.all)?;
        if self.checks_names {
            let parsed = ParsedCertificate::try_from(shown.end_entity);
            let is_named = parsed.and_then(|parsed| verify_server_name(&parsed, name));
            is_named.map_err(|_| Refusal::of_peer(&info, faults::of_name(&info, &name.to_str())))?;
        }
        Ok(())
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Shown { end_entity, intermediates, now, role: Role::Server };
        self.check(&shown, server_name).map_err(Refusal::within)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Proof {
        let algorithms = &self.provider.signature_verification_algorithms;
        let proof = verify_tls12_signature(message, certificate, signed, algorithms);
        proven(proof, certificate, Refusal::within)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Proof {
        let algorithms = &self.provider.signature_verification_algorithms;
        let proof = verify_tls13_signature(message, certificate, signed, algorithms);
        proven(proof, certificate, Refusal::within)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
