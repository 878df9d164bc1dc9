//! `mainstem security check`: the certificates and mechanisms that a listener shows to clients.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use mainstem_broker::config::{Properties, files};
use mainstem_security::tls::{TlsClient, TlsError, TlsMaterial, TlsProperties, TlsSession, TlsState};
use mainstem_security::x509::{CertificateInfo, fingerprint};
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;
use mainstem_wire::messages::sasl_handshake_response::SaslHandshakeResponse;
use mainstem_wire::{ApiKey, Decoder, ErrorCode, Message, frame};
use serde_json::{Value, json};

use crate::output::{print, print_json, shown};
use crate::{target, timestamp};

/// The longest wait for a connection, a read or a write.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const MS_PER_DAY: i64 = 86_400_000;
/// Days before the end of a certificate from which the command warns.
const DAYS_LEFT_MIN: i64 = 30;

/// Arguments of `security check`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The listener.
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// A file of Kafka's client properties. The command says whether its `ssl.truststore.*` trusts the listener, and
    /// shows its `ssl.keystore.*` to a listener that asks for a certificate.
    #[arg(long, env = target::CONFIG_VARIABLE, value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A TLS session.
struct Tls {
    protocol: String,
    cipher: String,
    /// The certificates, each with its fingerprint.
    chain: Vec<(CertificateInfo, String)>,
    /// The verdict of the trust store; none without a trust store.
    trusted: Option<Result<(), String>>,
}

/// The ways in which clients log in.
#[derive(Debug, PartialEq, Eq)]
enum Logins {
    Sasl(Vec<String>),
    /// No SASL.
    None,
    /// The listener requires a certificate: none was shown, or it was refused.
    Certificate(String),
}

/// Runs the command. Fails if the listener would refuse a client, or a client with these properties the listener.
pub(super) fn run(arguments: &Check) -> Result<()> {
    let address = arguments.address.as_str();
    let host = address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']));
    let host = host.with_context(|| format!("{address:?} is not HOST:PORT, such as localhost:9093"))?;
    let named = match &arguments.command_config {
        Some(path) => {
            let named = || path.display().to_string();
            let properties =
                Properties::parse(&files::read_given(path).with_context(named)?).with_context(named)?;
            target::resolved(&properties).with_context(named)?
        }
        None => Properties::default(),
    };
    let (tls, logins) = look(address, host, &named)?;
    match arguments.json {
        true => print_json(&as_json(address, tls.as_ref(), &logins))?,
        false => print(&as_text(address, tls.as_ref(), &logins))?,
    }
    let Some(tls) = &tls else { return Ok(()) };
    let now = timestamp::now_ms();
    if let Some(ended) = tls.chain.iter().find(|(certificate, _)| !certificate.is_valid_at(now / 1000)) {
        bail!("the certificate of {} is not valid now", ended.0.subject);
    }
    match &tls.trusted {
        Some(Err(why)) => bail!("clients with these properties refuse the listener: {why}"),
        _ => Ok(()),
    }
}

fn look(address: &str, host: &str, named: &Properties) -> Result<(Option<Tls>, Logins)> {
    let get = |key: &str| named.get(key).map(str::to_owned);
    let properties = TlsProperties::read(&get)?;
    let read = |path: &str| files::read(Path::new(path)).map_err(|error| error.to_string());
    let material = properties.load(&read)?;
    let observing = TlsClient::observing(&properties, &material)?;
    let mut session = observing.session(host)?;
    let Some(mut secured) = Secured::begin(address, &mut session)? else {
        let mut stream = connect(address)?;
        return Ok((None, logins(&mut |bytes| exchange(&mut stream, bytes))?));
    };
    let shown = |certificate| Ok((CertificateInfo::parse(certificate)?, fingerprint(certificate)));
    let chain = session.peer_certificates().map(shown).collect::<Result<_>>()?;
    let tls = Tls {
        protocol: session.protocol().unwrap_or("unknown").to_owned(),
        cipher: session.cipher_suite().unwrap_or_else(|| "unknown".to_owned()),
        chain,
        trusted: believed(address, host, (&properties, &material))?,
    };
    let logins = logins(&mut |bytes| secured.exchange(&mut session, bytes))?;
    Ok((Some(tls), logins))
}

/// The objection of the trust store to the listener's certificate, if it has one; none without a trust store.
fn believed(
    address: &str,
    host: &str,
    (properties, material): (&TlsProperties, &TlsMaterial),
) -> Result<Option<Result<(), String>>> {
    if material.trusted.is_none() {
        return Ok(None);
    }
    let mut session = TlsClient::new(properties, material)?.session(host)?;
    Ok(Some(match Secured::begin(address, &mut session) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }))
}

fn connect(address: &str) -> Result<TcpStream> {
    let what = || format!("cannot connect to {address}");
    let mut last = None;
    for found in address.to_socket_addrs().with_context(what)? {
        match TcpStream::connect_timeout(&found, IO_TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(IO_TIMEOUT))?;
                stream.set_write_timeout(Some(IO_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("the host has no address"), Into::into)).with_context(what)
}

/// A connection with a TLS session.
struct Secured {
    stream: TcpStream,
}

impl Secured {
    /// None where the listener does not speak TLS.
    fn begin(address: &str, session: &mut TlsSession) -> Result<Option<Secured>> {
        let mut stream = connect(address)?;
        let (mut outgoing, mut plain) = (Vec::new(), Vec::new());
        let mut incoming = vec![0; ANSWER_BYTES_MAX];
        let mut received = 0;
        loop {
            let state = session.handshake(&mut incoming[..received], &mut outgoing, &mut plain);
            let sent = stream.write_all(&std::mem::take(&mut outgoing));
            match state {
                Ok(TlsState::Handshaking) => {}
                Ok(_) => return Ok(Some(Secured { stream })),
                Err(TlsError::NotTls) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            sent?;
            received = match stream.read(&mut incoming) {
                // A listener without TLS closes on bytes that are no request to it.
                Ok(0) => return Ok(None),
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error).with_context(|| format!("{address} does not answer")),
            };
        }
    }

    fn exchange(&mut self, session: &mut TlsSession, request: &[u8]) -> Result<Vec<u8>> {
        let mut outgoing = Vec::new();
        session.seal(request, &mut outgoing)?;
        self.stream.write_all(&outgoing)?;
        let (mut plain, mut incoming) = (Vec::new(), vec![0; ANSWER_BYTES_MAX]);
        loop {
            if let Some(answer) = whole(&plain)? {
                return Ok(answer);
            }
            let received = self.stream.read(&mut incoming)?;
            ensure!(received > 0, "the listener closed the connection");
            outgoing.clear();
            session.open(&mut incoming[..received], &mut outgoing, &mut plain)?;
            self.stream.write_all(&outgoing)?;
        }
    }
}

fn exchange(stream: &mut TcpStream, request: &[u8]) -> Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut plain = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(answer) = whole(&plain)? {
            return Ok(answer);
        }
        let received = stream.read(&mut piece)?;
        ensure!(received > 0, "the listener closed the connection: it may not be Kafka's");
        plain.extend_from_slice(&piece[..received]);
    }
}

/// The first frame of the bytes, without its length.
fn whole(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(length) = frame::frame_len(bytes, ANSWER_BYTES_MAX)? else { return Ok(None) };
    Ok(bytes.get(frame::LENGTH_BYTES..frame::LENGTH_BYTES + length).map(<[u8]>::to_vec))
}

/// Asks for an unknown mechanism; the listener's refusal names those that it has.
fn logins(exchange: &mut dyn FnMut(&[u8]) -> Result<Vec<u8>>) -> Result<Logins> {
    let header = RequestHeader {
        request_api_key: ApiKey::SaslHandshake.key(),
        request_api_version: 1,
        client_id: Some("mainstem".into()),
        ..Default::default()
    };
    let mut request = Vec::new();
    frame::write_request(&mut request, &header, &SaslHandshakeRequest { mechanism: "?".into() })?;
    let answer = match exchange(&request) {
        Ok(answer) => answer,
        // In TLS 1.3 the first read tells a client that its certificate is missing or refused.
        Err(error) if error.is::<TlsError>() => return Ok(Logins::Certificate(error.to_string())),
        Err(error) => return Err(error),
    };
    let mut decoder = Decoder::new(&answer);
    ResponseHeader::decode(&mut decoder, 0)?;
    let response = SaslHandshakeResponse::decode(&mut decoder, 1)?;
    match ErrorCode::from(response.error_code) {
        ErrorCode::UNSUPPORTED_SASL_MECHANISM => {
            Ok(Logins::Sasl(response.mechanisms.iter().map(ToString::to_string).collect()))
        }
        ErrorCode::ILLEGAL_SASL_STATE => Ok(Logins::None),
        error => bail!("the listener answers a SaslHandshake with {error}"),
    }
}

fn day(seconds: i64) -> String {
    timestamp::format(seconds.saturating_mul(1000)).chars().take_while(|letter| *letter != 'T').collect()
}

fn days_left(certificate: &CertificateInfo) -> i64 {
    (certificate.not_after.saturating_mul(1000) - timestamp::now_ms()).div_euclid(MS_PER_DAY)
}

fn as_text(address: &str, tls: Option<&Tls>, logins: &Logins) -> String {
    let mut text = format!("{address}\n");
    match tls {
        None => text += "TLS          no\n",
        Some(tls) => {
            let _ = writeln!(text, "TLS          {}, {}", tls.protocol, tls.cipher);
            for (certificate, fingerprint) in &tls.chain {
                let left = days_left(certificate);
                let urgent = if left < DAYS_LEFT_MIN { "  <- renew it" } else { "" };
                let _ = writeln!(text, "certificate  {}", shown(&certificate.subject));
                let _ = writeln!(text, "  issuer     {}", shown(&certificate.issuer));
                let _ = writeln!(text, "  hosts      {}", shown(&certificate.hosts().join(", ")));
                let _ = writeln!(text, "  until      {} ({left} days){urgent}", day(certificate.not_after));
                let _ = writeln!(text, "  fingerprint {fingerprint}");
            }
            let trusted = match &tls.trusted {
                None => "not asked: --command-config names a trust store",
                Some(Ok(())) => "yes",
                Some(Err(_)) => "no",
            };
            let _ = writeln!(text, "believed     {trusted}");
        }
    }
    let _ = match logins {
        Logins::Sasl(mechanisms) => write!(text, "mechanisms   {}", shown(&mechanisms.join(", "))),
        Logins::None if tls.is_some() => write!(text, "mechanisms   none: a certificate, or nothing"),
        Logins::None => write!(text, "mechanisms   none: clients prove nothing"),
        Logins::Certificate(why) => {
            write!(text, "mechanisms   not shown without a certificate: {}", shown(why))
        }
    };
    text
}

fn as_json(address: &str, tls: Option<&Tls>, logins: &Logins) -> Value {
    let certificate = |(certificate, fingerprint): &(CertificateInfo, String)| {
        json!({
            "subject": certificate.subject,
            "issuer": certificate.issuer,
            "hosts": certificate.hosts(),
            "not_before": timestamp::format(certificate.not_before.saturating_mul(1000)),
            "not_after": timestamp::format(certificate.not_after.saturating_mul(1000)),
            "days_left": days_left(certificate),
            "fingerprint": fingerprint,
        })
    };
    let tls = tls.map(|tls| {
        json!({
            "protocol": tls.protocol,
            "cipher": tls.cipher,
            "certificates": tls.chain.iter().map(certificate).collect::<Vec<_>>(),
            "believed": tls.trusted.as_ref().map(Result::is_ok),
        })
    });
    let mechanisms = match logins {
        Logins::Sasl(mechanisms) => json!(mechanisms),
        Logins::None => json!([]),
        Logins::Certificate(_) => Value::Null,
    };
    json!({ "address": address, "tls": tls, "mechanisms": mechanisms })
}
