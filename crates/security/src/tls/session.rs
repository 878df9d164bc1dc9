//! One session over buffers that the caller owns. The only file that knows rustls' unbuffered API, which its next version
//! replaces.

use std::fmt;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, ClientConfig, CommonState, HandshakeKind, ServerConfig};

use super::names::{cipher_suite_name, protocol_name};
use super::refusal::Refusal;
use crate::mapping::PrincipalMapping;
use crate::x509::CertificateInfo;
use crate::{KafkaPrincipal, SecurityError};

/// The most bytes of one record in clear.
const RECORD_BYTES_MAX: usize = 16_384;
/// The most bytes of a record besides its data: header, nonce, type, tag.
const RECORD_OVERHEAD: usize = 64;

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsState {
    /// The handshake is not over: send the outgoing bytes, wait for more.
    Handshaking,
    /// Data may be sent in both directions.
    Open,
    /// The peer sends nothing more.
    PeerClosed,
}

/// The reason why a session ends. An alert for the peer, if any, is in the outgoing buffer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TlsError {
    /// The peer does not speak TLS.
    #[error("what the peer sent is not TLS: it may be configured with PLAINTEXT or SASL_PLAINTEXT")]
    NotTls,
    /// The peer's certificate is not accepted.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The peer refused the session, or broke the protocol.
    #[error("{}", words(.0))]
    Session(rustls::Error),
    /// The keys are used up, or the session is not open yet.
    #[error("the session cannot send data")]
    CannotSend,
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        match Refusal::take(&error) {
            Some(refusal) => TlsError::Refused(Box::new(refusal)),
            None => TlsError::Session(error),
        }
    }
}

/// The message for an error, placed before that of rustls if that alone does not say whose certificate is meant.
fn words(error: &rustls::Error) -> String {
    use AlertDescription as Alert;
    let what = match error {
        rustls::Error::AlertReceived(Alert::CertificateRequired) => "the peer asks for a certificate: ",
        rustls::Error::AlertReceived(Alert::UnknownCA) => {
            "the peer does not trust who issued the certificate that it was shown: "
        }
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            "the certificate that the peer was shown has expired, or is not valid yet: "
        }
        rustls::Error::AlertReceived(Alert::UnsupportedCertificate) => {
            "the certificate that the peer was shown is not made for this, or not well enough: "
        }
        rustls::Error::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown) => {
            "the peer does not accept the certificate that it was shown, and says itself why: "
        }
        _ => "",
    };
    format!("{what}{error}")
}

/// A session.
pub struct TlsSession {
    side: Side,
    is_peer_closed: bool,
    /// True if anything of the peer was understood.
    has_begun: bool,
    /// Received and not used up: a part of a record, or of a message in several records. rustls has to see it again on every call, in
    /// sealing too. Empty, and without memory, most of the time.
    held: Vec<u8>,
}

enum Side {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

/// The result of one turn of rustls.
enum Turn {
    Again,
    /// There is something to be sent.
    Encoded,
    Stop(TlsState),
    Failed(TlsError),
}

/// Keys are not shown.
impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Server(_) => "server",
            Side::Client(_) => "client",
        };
        f.debug_struct("TlsSession")
            .field("side", &side)
            .field("protocol", &self.protocol())
            .finish_non_exhaustive()
    }
}

/// Appends a record of the handshake.
fn encode<Data>(mut data: EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) {
    let start = outgoing.len();
    let mut size = RECORD_OVERHEAD;
    loop {
        outgoing.resize(start + size, 0);
        match data.encode(&mut outgoing[start..]) {
            Ok(written) => {
                outgoing.truncate(start + written);
                return;
            }
            Err(EncodeError::InsufficientSize(error)) => size = error.required_size,
            Err(EncodeError::AlreadyEncoded) => {
                outgoing.truncate(start);
                return;
            }
        }
    }
}

/// One turn; both sides have the method, but no trait for it.
macro_rules! turn {
    ($connection:expr, $incoming:expr, $outgoing:expr, $plain:expr, $is_peer_closed:expr) => {{
        let UnbufferedStatus { discard, state } = $connection.process_tls_records($incoming);
        let mut discarded = discard;
        let turn = match state {
            Err(error) => Turn::Failed(error.into()),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut turn = Turn::Again;
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            $plain.extend_from_slice(record.payload);
                            discarded += record.discard;
                        }
                        Err(error) => turn = Turn::Failed(error.into()),
                    }
                }
                turn
            }
            Ok(ConnectionState::EncodeTlsData(data)) => {
                encode(data, $outgoing);
                Turn::Encoded
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Turn::Again
            }
            Ok(ConnectionState::BlockedHandshake) => Turn::Stop(TlsState::Handshaking),
            Ok(ConnectionState::WriteTraffic(_)) => Turn::Stop(TlsState::Open),
            Ok(ConnectionState::PeerClosed) => {
                *$is_peer_closed = true;
                Turn::Again
            }
            Ok(ConnectionState::Closed) => Turn::Stop(TlsState::PeerClosed),
            Ok(_) => Turn::Failed(TlsError::CannotSend),
        };
        (discarded, turn)
    }};
}

/// Seals data if the session is open. Held bytes were looked at before and have nothing new.
macro_rules! write_traffic {
    ($connection:expr, $held:expr, $outgoing:expr, |$traffic:ident| $write:expr) => {{
        let mut used = 0;
        let result = loop {
            let UnbufferedStatus { state, discard } = $connection.process_tls_records(&mut $held[used..]);
            used += discard;
            match state {
                Ok(ConnectionState::WriteTraffic(mut $traffic)) => break $write,
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, $outgoing);
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => {}
                Err(error) => break Err(error.into()),
                Ok(_) => break Err(TlsError::CannotSend),
            }
        };
        $held.drain(..used);
        result
    }};
}

impl TlsSession {
    pub(super) fn server(config: Arc<ServerConfig>) -> Result<TlsSession, rustls::Error> {
        let connection = UnbufferedServerConnection::new(config)?;
        Ok(TlsSession::new(Side::Server(Box::new(connection))))
    }

    pub(super) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<TlsSession, rustls::Error> {
        let connection = UnbufferedClientConnection::new(config, name)?;
        Ok(TlsSession::new(Side::Client(Box::new(connection))))
    }

    fn new(side: Side) -> TlsSession {
        TlsSession { side, is_peer_closed: false, has_begun: false, held: Vec::new() }
    }

    /// Continues the handshake with received bytes, all of which are used up or kept; a client begins without any. Appends the bytes to
    /// send, and data that the peer sent after the handshake's end. Signs or verifies signatures: not for a loop that carries data.
    ///
    /// # Errors
    /// When there can be no session; an alert for the peer is appended.
    pub fn handshake(
        &mut self,
        incoming: &mut [u8],
        outgoing: &mut Vec<u8>,
        plain: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        // The first byte of a record is its type; a request of Kafka's begins with the zeros of its length.
        if !self.has_begun && incoming.first().is_some_and(|first| !(0x14..=0x17).contains(first)) {
            return Err(TlsError::NotTls);
        }
        let is_first_answer = !self.has_begun && matches!(self.side, Side::Client(_));
        self.has_begun |= !incoming.is_empty();
        match self.process(incoming, outgoing, plain) {
            // A listener without TLS sends this alert before anything else.
            Err(TlsError::Session(rustls::Error::AlertReceived(AlertDescription::UnexpectedMessage)))
                if is_first_answer =>
            {
                Err(TlsError::NotTls)
            }
            result => result,
        }
    }

    /// Opens all whole records that were received and appends their data; the rest is held, a record at most except for messages that the
    /// peer splits. May append bytes to send, such as an answer to new keys.
    ///
    /// # Errors
    /// When a record is not the peer's, or breaks the protocol.
    pub fn open(
        &mut self,
        incoming: &mut [u8],
        outgoing: &mut Vec<u8>,
        plain: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        self.process(incoming, outgoing, plain)
    }

    fn process(
        &mut self,
        incoming: &mut [u8],
        outgoing: &mut Vec<u8>,
        plain: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        let mut held = std::mem::take(&mut self.held);
        if held.is_empty() {
            let (consumed, result) = self.run(incoming, outgoing, plain);
            self.held = incoming[consumed..].to_vec();
            return result;
        }
        held.extend_from_slice(incoming);
        let (consumed, result) = self.run(&mut held, outgoing, plain);
        if consumed < held.len() {
            held.drain(..consumed);
            self.held = held;
        }
        result
    }

    /// Uses up what it can.
    fn run(
        &mut self,
        incoming: &mut [u8],
        outgoing: &mut Vec<u8>,
        plain: &mut Vec<u8>,
    ) -> (usize, Result<TlsState, TlsError>) {
        let mut consumed = 0;
        let mut failed = None;
        loop {
            let (discarded, turn) = self.turn(&mut incoming[consumed..], outgoing, plain);
            consumed += discarded;
            match (turn, failed.take()) {
                // The alert comes after the error; the failed bytes must not be read again behind it.
                (Turn::Encoded, Some(error)) => return (incoming.len(), Err(error)),
                (Turn::Again | Turn::Encoded, before) => failed = before,
                (_, Some(error)) => return (incoming.len(), Err(error)),
                (Turn::Failed(error), None) => failed = Some(error),
                (Turn::Stop(_), None) if self.is_peer_closed => return (consumed, Ok(TlsState::PeerClosed)),
                (Turn::Stop(state), None) => return (consumed, Ok(state)),
            }
        }
    }

    fn turn(&mut self, incoming: &mut [u8], outgoing: &mut Vec<u8>, plain: &mut Vec<u8>) -> (usize, Turn) {
        let closed = &mut self.is_peer_closed;
        match &mut self.side {
            Side::Server(connection) => turn!(connection, incoming, outgoing, plain, closed),
            Side::Client(connection) => turn!(connection, incoming, outgoing, plain, closed),
        }
    }

    /// Seals all of the data into records and appends them. The caller bounds how much is sealed ahead of the socket.
    ///
    /// # Errors
    /// When the handshake is not over, or the keys are used up.
    pub fn seal(&mut self, data: &[u8], outgoing: &mut Vec<u8>) -> Result<(), TlsError> {
        let records = data.len().div_ceil(RECORD_BYTES_MAX).max(1);
        self.write(outgoing, data.len() + records * RECORD_OVERHEAD, Some(data))
    }

    /// Appends the close_notify alert: no more data will be sent.
    ///
    /// # Errors
    /// When the handshake is not over.
    pub fn close(&mut self, outgoing: &mut Vec<u8>) -> Result<(), TlsError> {
        self.write(outgoing, RECORD_OVERHEAD, None)
    }

    fn write(
        &mut self,
        outgoing: &mut Vec<u8>,
        capacity: usize,
        data: Option<&[u8]>,
    ) -> Result<(), TlsError> {
        let mut capacity = capacity;
        loop {
            let written = match &mut self.side {
                Side::Server(connection) => write_traffic!(connection, self.held, outgoing, |traffic| {
                    append(outgoing, capacity, |buffer| match data {
                        Some(data) => traffic.encrypt(data, buffer),
                        None => traffic.queue_close_notify(buffer),
                    })
                }),
                Side::Client(connection) => write_traffic!(connection, self.held, outgoing, |traffic| {
                    append(outgoing, capacity, |buffer| match data {
                        Some(data) => traffic.encrypt(data, buffer),
                        None => traffic.queue_close_notify(buffer),
                    })
                }),
            };
            match written? {
                None => return Ok(()),
                Some(required) => capacity = required,
            }
        }
    }

    #[cfg(test)]
    pub(super) fn holds_more_than(&self, bytes: usize) -> bool {
        self.held.len() > bytes
    }

    /// Returns true if the handshake is not over.
    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// The name of the protocol, as in `TLSv1.3`; none before it is agreed upon.
    pub fn protocol(&self) -> Option<&'static str> {
        self.common().protocol_version().map(protocol_name)
    }

    /// The name of the cipher suite, once there is one.
    pub fn cipher_suite(&self) -> Option<String> {
        self.common().negotiated_cipher_suite().map(|suite| cipher_suite_name(suite.suite()))
    }

    /// Returns true if the session resumes an earlier one, without certificates and signatures.
    pub fn is_resumed(&self) -> bool {
        self.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The peer's certificate, in DER.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.common().peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// The peer's certificates, its own first, in DER.
    pub fn peer_certificates(&self) -> impl Iterator<Item = &[u8]> {
        self.common().peer_certificates().into_iter().flatten().map(AsRef::as_ref)
    }

    /// The principal of the peer by its certificate and the rules; anonymous without one.
    ///
    /// # Errors
    /// When no rule applies: the peer is to be refused.
    pub fn principal(&self, mapping: &PrincipalMapping) -> Result<KafkaPrincipal, SecurityError> {
        let Some(certificate) = self.peer_certificate() else { return Ok(KafkaPrincipal::anonymous()) };
        let subject = CertificateInfo::parse(certificate)?.subject;
        let name = mapping.name(&subject);
        name.map(KafkaPrincipal::user).ok_or(SecurityError::Unmapped(subject))
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }
}

/// Appends up to `capacity` bytes to a buffer. If that is not enough, nothing is appended, and the required capacity is returned.
fn append(
    outgoing: &mut Vec<u8>,
    capacity: usize,
    write: impl FnOnce(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<Option<usize>, TlsError> {
    let start = outgoing.len();
    outgoing.resize(start + capacity, 0);
    match write(&mut outgoing[start..]) {
        Ok(written) => {
            outgoing.truncate(start + written);
            Ok(None)
        }
        Err(error) => {
            outgoing.truncate(start);
            match error {
                EncryptError::InsufficientSize(error) => Ok(Some(error.required_size)),
                EncryptError::EncryptExhausted => Err(TlsError::CannotSend),
            }
        }
    }
}
