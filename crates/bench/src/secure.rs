//! Encrypted connections with a login: the certificates and users of a broker of a run, and the driver's half of TLS and SCRAM.
//!
//! Every process has a certificate authority of its own. A broker gets a certificate of it, and an administrator who logs in by PLAIN. The
//! administrator creates the user of SCRAM as soon as the broker answers.

use std::collections::HashMap;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::{digest, hmac, pbkdf2};
use base64::prelude::{BASE64_STANDARD, Engine};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, RsaKeySize};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::bytes::Writer;
use crate::connection::Connection;
use crate::protocol::{ALTER_SCRAM, SASL_AUTHENTICATE, SASL_HANDSHAKE, check, error};

/// The user of loads.
const USER: &str = "bench";
/// The administrator, who creates that user.
const ADMIN: &str = "admin";
const PASSWORD: &str = "a-password-of-benchmarks";
const SCRAM: &str = "SCRAM-SHA-512";
/// As AlterUserScramCredentials has it.
const SCRAM_SHA_512: i8 = 2;
/// Kafka's default.
const ITERATIONS: u32 = 4_096;
const SALT: &[u8] = b"salt of the benchmarks";
/// Bytes of a socket that are read at once.
const READ_BYTES: usize = 64 << 10;
const KEY_STORE: &str = "keystore.pem";
const TRUST_STORE: &str = "truststore.pem";

/// The address of a broker, and whether its connections are encrypted and begin with a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) is_secured: bool,
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self { address, is_secured: false }
    }
}

/// The key of a broker's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateKey {
    P256,
    Rsa2048,
}

/// The issuer of the certificates of this process's brokers.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    config: Arc<ClientConfig>,
}

static AUTHORITY: OnceLock<Authority> = OnceLock::new();

fn authority() -> Result<&'static Authority> {
    if let Some(authority) = AUTHORITY.get() {
        return Ok(authority);
    }
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    // No handshake resumes a session: each is measured in whole.
    config.resumption = Resumption::disabled();
    let made =
        Authority { issuer: Issuer::new(params, key), pem: certificate.pem(), config: Arc::new(config) };
    Ok(AUTHORITY.get_or_init(|| made))
}

/// Writes the stores of a broker, and the properties of Kafka's tools, into its folder; returns its settings.
pub(crate) fn prepare(directory: &Path, key: CertificateKey) -> Result<Vec<String>> {
    let authority = authority()?;
    let key = match key {
        CertificateKey::P256 => KeyPair::generate()?,
        CertificateKey::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048)?,
    };
    let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    let certificate = params.signed_by(&key, &authority.issuer)?;
    let store = directory.join(KEY_STORE);
    fs::write(&store, key.serialize_pem() + &certificate.pem())?;
    fs::write(directory.join(TRUST_STORE), &authority.pem)?;
    fs::write(directory.join("client.properties"), client_properties(directory))?;
    let plain = "org.apache.kafka.common.security.plain.PlainLoginModule";
    Ok(vec![
        "ssl.keystore.type=PEM".to_owned(),
        format!("ssl.keystore.location={}", store.display()),
        // Kafka uses it to connect to itself.
        "ssl.truststore.type=PEM".to_owned(),
        format!("ssl.truststore.location={}", directory.join(TRUST_STORE).display()),
        format!("sasl.enabled.mechanisms=PLAIN,{SCRAM}"),
        "sasl.mechanism.inter.broker.protocol=PLAIN".to_owned(),
        format!(
            "listener.name.sasl_ssl.plain.sasl.jaas.config={plain} required username=\"{ADMIN}\" \
             password=\"{PASSWORD}\" user_{ADMIN}=\"{PASSWORD}\";"
        ),
        format!(
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={SCRAM_MODULE} required username=\"{USER}\" \
             password=\"{PASSWORD}\";"
        ),
    ])
}

const SCRAM_MODULE: &str = "org.apache.kafka.common.security.scram.ScramLoginModule";

fn client_properties(directory: &Path) -> String {
    format!(
        "security.protocol=SASL_SSL
sasl.mechanism={SCRAM}
sasl.jaas.config={SCRAM_MODULE} required username=\"{USER}\" password=\"{PASSWORD}\";
ssl.truststore.type=PEM
ssl.truststore.location={}
",
        directory.join(TRUST_STORE).display()
    )
}

/// A session of TLS over a socket, of which all received bytes are taken.
#[derive(Debug)]
pub(crate) struct TlsStream {
    session: Box<ClientConnection>,
    socket: BufReader<TcpStream>,
}

impl TlsStream {
    pub(crate) fn open(socket: TcpStream) -> Result<Self> {
        let name = ServerName::try_from("localhost").context("a name of a host")?;
        let mut session = Box::new(ClientConnection::new(authority()?.config.clone(), name)?);
        session.set_buffer_limit(None);
        let mut stream = Self { session, socket: BufReader::with_capacity(READ_BYTES, socket) };
        while stream.session.is_handshaking() {
            stream.session.complete_io(&mut Both(&mut stream.socket))?;
        }
        Ok(stream)
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.socket.get_ref()
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.session.writer().write_all(bytes)?;
        while self.session.wants_write() {
            self.session.write_tls(self.socket.get_mut())?;
        }
        Ok(())
    }

    /// Reads once from the socket, and appends all that was decrypted; returns false at its end.
    pub(crate) fn read(
        &mut self,
        mut append: impl FnMut(usize, &mut dyn Read) -> Result<()>,
    ) -> Result<bool> {
        loop {
            if self.session.read_tls(&mut self.socket)? == 0 {
                return Ok(false);
            }
            let state = self.session.process_new_packets()?;
            append(state.plaintext_bytes_to_read(), &mut self.session.reader())?;
            if self.socket.buffer().is_empty() {
                return Ok(!state.peer_has_closed());
            }
        }
    }
}

/// A buffered socket that is written to as well.
struct Both<'a>(&'a mut BufReader<TcpStream>);

impl Read for Both<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Both<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Makes the user of loads, as the administrator.
pub(crate) fn create_user(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open_encrypted(address)?;
    begin(&mut connection, "PLAIN")?;
    authenticate(&mut connection, format!("\0{ADMIN}\0{PASSWORD}").as_bytes())?;
    let salted = salted_password(SALT, ITERATIONS)?;
    let mut reader = connection.call(ALTER_SCRAM, |writer| {
        writer.compact_len(0); // deletions
        writer.compact_len(1);
        writer.compact_string(USER);
        writer.i8(SCRAM_SHA_512);
        writer.i32(ITERATIONS as i32);
        writer.compact_bytes(SALT);
        writer.compact_bytes(&salted);
        writer.no_tags();
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == 1, "AlterUserScramCredentials was answered for other users");
    reader.compact_string()?;
    check(ALTER_SCRAM, reader.i16()?)
}

/// Logs in by SCRAM-SHA-512.
pub(crate) fn log_in(connection: &mut Connection) -> Result<()> {
    begin(connection, SCRAM)?;
    let mut nonce = [0; 18];
    aws_lc_rs::rand::fill(&mut nonce).ok().context("no random bytes")?;
    let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
    let first_bare = format!("n={USER},r={nonce}");
    let first = authenticate(connection, format!("n,,{first_bare}").as_bytes())?;
    let part = |text: &str, name: char| {
        let found = text.split(',').find_map(|part| part.strip_prefix(&format!("{name}=")));
        found.map(str::to_owned).with_context(|| format!("a message of SCRAM without {name}: {text}"))
    };
    let (all_nonces, iterations) = (part(&first, 'r')?, part(&first, 'i')?.parse()?);
    ensure!(all_nonces.starts_with(&nonce), "the nonce of another exchange");
    let salted = salted_password(&BASE64_STANDARD.decode(part(&first, 's')?)?, iterations)?;
    let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, key), text);
    let client_key = sign(&salted, b"Client Key");
    let stored_key = digest::digest(&digest::SHA512, client_key.as_ref());
    let without_proof = format!("c=biws,r={all_nonces}");
    let exchange = format!("{first_bare},{first},{without_proof}");
    let signature = sign(stored_key.as_ref(), exchange.as_bytes());
    let proof: Vec<u8> =
        client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, other)| key ^ other).collect();
    let last =
        authenticate(connection, format!("{without_proof},p={}", BASE64_STANDARD.encode(&proof)).as_bytes())?;
    let server_key = sign(&salted, b"Server Key");
    let verifier = BASE64_STANDARD.encode(sign(server_key.as_ref(), exchange.as_bytes()));
    ensure!(part(&last, 'v')? == verifier, "the broker does not know the password");
    Ok(())
}

fn begin(connection: &mut Connection, mechanism: &str) -> Result<()> {
    let mut reader = connection.call(SASL_HANDSHAKE, |writer| writer.string(mechanism))?;
    check(SASL_HANDSHAKE, reader.i16()?)
}

/// Sends one message of the exchange. Returns its answer.
fn authenticate(connection: &mut Connection, bytes: &[u8]) -> Result<String> {
    let mut reader = connection.call(SASL_AUTHENTICATE, |writer: &mut Writer| {
        writer.compact_bytes(bytes);
        writer.no_tags();
    })?;
    let (code, message) = (reader.i16()?, reader.compact_string()?);
    ensure!(code == error::NONE, "SaslAuthenticate was answered with Kafka's error code {code}: {message}");
    Ok(String::from_utf8(reader.compact_bytes()?.to_vec())?)
}

/// Salted passwords by salt and iterations.
type SaltedPasswords = HashMap<(Vec<u8>, u32), Vec<u8>>;

/// Returns the salted password. This is the costly half of a login, and made once for each salt, as by a client with many connections.
fn salted_password(salt: &[u8], iterations: u32) -> Result<Vec<u8>> {
    static KNOWN: OnceLock<Mutex<SaltedPasswords>> = OnceLock::new();
    let rounds = NonZeroU32::new(iterations).context("no iterations of SCRAM")?;
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let salted = known.entry((salt.to_vec(), iterations)).or_insert_with(|| {
        let mut salted = vec![0; digest::SHA512_OUTPUT_LEN];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, rounds, salt, PASSWORD.as_bytes(), &mut salted);
        salted
    });
    Ok(salted.clone())
}
