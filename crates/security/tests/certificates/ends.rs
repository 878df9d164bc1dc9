//! Handshakes in memory: our own end, and a peer that shows it a certificate.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use mainstem_security::tls::{TlsClient, TlsProperties, TlsServer, TlsSession, TlsState};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConnection, ResolvesClientCert};
use rustls::crypto::aws_lc_rs::{default_provider, sign::any_supported_type};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert, ServerConnection};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{
    ClientConfig, Connection, DigitallySignedStruct, Error, ServerConfig, SignatureAlgorithm, SignatureScheme,
};

/// A line of `cases.txt`.
#[derive(Debug)]
pub(crate) struct Case {
    name: String,
    /// The host that a client connects to; None if the certificate is the client's.
    host: Option<String>,
}

impl Case {
    pub(crate) fn parse(line: &str) -> Case {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [name, "client"] => Case { name: name.to_owned(), host: None },
            [name, "server", host] => Case { name: name.to_owned(), host: Some(host.to_owned()) },
            _ => panic!("{line:?} is no case"),
        }
    }
}

/// `accepted`, or the message of our own end.
pub(crate) fn verdict(case: &Case) -> String {
    let shown = pem(&case.name).unwrap();
    let trusted = pem(&format!("{}.trust", case.name)).unwrap_or_else(|| pem("root.trust").unwrap());
    let (session, peer) = match &case.host {
        None => {
            let server = server(&trusted);
            (server.session(), client_peer(&shown))
        }
        Some(host) => {
            let client = client(&trusted);
            (client.session(host), server_peer(&shown))
        }
    };
    match session {
        Ok(session) => handshake(session, peer),
        Err(error) => error.to_string(),
    }
}

/// The message of our own end for a peer that shows another one's certificate.
pub(crate) fn verdict_without_key(host: Option<&str>) -> String {
    let chain =
        pem("plain").unwrap().split_off(pem("plain").unwrap().find("-----BEGIN CERTIFICATE").unwrap());
    let shown =
        pem("ecdsa-p256").unwrap().split("-----BEGIN CERTIFICATE").next().unwrap().to_owned() + &chain;
    let trusted = pem("root.trust").unwrap();
    match host {
        None => handshake(server(&trusted).session().unwrap(), client_peer(&shown)),
        Some(host) => handshake(client(&trusted).session(host).unwrap(), server_peer(&shown)),
    }
}

/// The refusal of its own key store by our end, if the store cannot be used.
pub(crate) fn own_store(name: &str) -> String {
    let properties = properties(&[("ssl.keystore.location", name)]);
    properties.load(&store).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

fn pem(name: &str) -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates/pem");
    fs::read_to_string(folder.join(format!("{name}.pem"))).ok()
}

fn properties(settings: &[(&str, &str)]) -> TlsProperties {
    let of_stores = [("ssl.keystore.type", "PEM"), ("ssl.truststore.type", "PEM")];
    let get = |key: &str| {
        let found = settings.iter().chain(&of_stores).find(|(known, _)| *known == key);
        found.map(|(_, value)| (*value).to_owned())
    };
    TlsProperties::read(&get).unwrap()
}

fn store(name: &str) -> Result<Vec<u8>, String> {
    pem(name).map(String::into_bytes).ok_or_else(|| "there is no such file".to_owned())
}

fn server(trusted: &str) -> TlsServer {
    let properties = properties(&[
        ("ssl.keystore.location", "plain"),
        ("ssl.truststore.certificates", trusted),
        ("ssl.client.auth", "required"),
    ]);
    TlsServer::new(&properties, &properties.load(&store).unwrap()).unwrap()
}

fn client(trusted: &str) -> TlsClient {
    let properties = properties(&[("ssl.truststore.certificates", trusted)]);
    TlsClient::new(&properties, &properties.load(&store).unwrap()).unwrap()
}

/// Lets both talk until our own end has decided.
fn handshake(mut session: TlsSession, mut peer: Connection) -> String {
    let (mut incoming, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let mut outgoing = Vec::new();
        match session.handshake(&mut incoming, &mut outgoing, &mut plain) {
            Ok(TlsState::Open) => return "accepted".to_owned(),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
        let mut outgoing = outgoing.as_slice();
        while !outgoing.is_empty() {
            peer.read_tls(&mut outgoing).unwrap();
        }
        peer.process_new_packets().unwrap_or_else(|error| panic!("the peer ends the session: {error}"));
        incoming.clear();
        while peer.wants_write() {
            peer.write_tls(&mut incoming).unwrap();
        }
    }
    panic!("the handshake does not end")
}

fn client_peer(shown: &str) -> Connection {
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Believing))
        .with_client_cert_resolver(Arc::new(Showing::parse(shown)));
    ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap().into()
}

fn server_peer(shown: &str) -> Connection {
    let config = ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Showing::parse(shown)));
    ServerConnection::new(config.into()).unwrap().into()
}

/// Shows a chain, whatever rustls or our key stores would make of it.
#[derive(Debug)]
struct Showing(Arc<CertifiedKey>);

impl Showing {
    fn parse(shown: &str) -> Showing {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(shown.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(shown.as_bytes()).unwrap();
        let key = any_supported_type(&key).unwrap_or_else(|_| Arc::new(NoKey));
        Showing(Arc::new(CertifiedKey::new(chain, key)))
    }
}

impl ResolvesServerCert for Showing {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

impl ResolvesClientCert for Showing {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Replaces a key of a kind that rustls does not sign with: its certificate is to be refused before its signature is looked at.
#[derive(Debug)]
struct NoKey;

impl SigningKey for NoKey {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(NoKey))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::RSA
    }
}

impl Signer for NoKey {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(vec![0; 256])
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::RSA_PSS_SHA256
    }
}

/// Accepts our own end.
#[derive(Debug)]
struct Believing;

impl ServerCertVerifier for Believing {
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
