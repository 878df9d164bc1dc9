//! SASL authentication of a node to another one: Kafka's requests, from a thread that blocks.

use std::io::{self, Write};

use mainstem_config::SaslListener;
use mainstem_controller::MetadataImage;
use mainstem_lines::OneLine;
use mainstem_security::jaas::JaasConfig;
use mainstem_security::scram::ScramMechanism;
use mainstem_security::{ClientExchange, ClientStep, Mechanism, Secret, SecurityError};
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::messages::sasl_authenticate_request::SaslAuthenticateRequest;
use mainstem_wire::messages::sasl_authenticate_response::SaslAuthenticateResponse;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;
use mainstem_wire::messages::sasl_handshake_response::SaslHandshakeResponse;
use mainstem_wire::{ApiKey, ErrorCode, Message, frame};

use super::super::channel::Channel;
use super::{ListenerSecurityError, invalid, read_frame};
use mainstem_runtime::random;

/// The version of both requests that is spoken; its headers have no tagged fields.
const VERSION: i16 = 1;
/// Limit of the tokens of this side in one exchange; SCRAM has two.
const TOKENS_MAX: usize = 8;
/// Limit of the length of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// User and password of this node.
pub(super) struct Login {
    mechanism: Mechanism,
    user: String,
    password: Secret,
}

impl Login {
    /// By the JAAS text of a mechanism of the listener.
    ///
    /// # Errors
    /// When it is malformed, or has no user and password.
    pub(super) fn new(
        listener: &str,
        sasl: &SaslListener,
        mechanism: &str,
    ) -> Result<Login, ListenerSecurityError> {
        let failed = |source| ListenerSecurityError::Sasl {
            listener: listener.to_lowercase(),
            mechanism: mechanism.to_lowercase(),
            source,
        };
        let text = sasl
            .mechanisms
            .iter()
            .find(|known| known.name == mechanism)
            .and_then(|known| known.jaas_config.as_ref());
        let missing = || {
            let why = "username and password are missing, with which this node proves itself to the others";
            failed(SecurityError::Jaas(why.to_owned()))
        };
        let jaas = JaasConfig::parse(text.ok_or_else(missing)?.expose()).map_err(failed)?;
        let login = jaas.login().filter(|login| !login.is_token).ok_or_else(missing)?;
        let mechanism = mechanism.parse().map_err(failed)?;
        Ok(Login { mechanism, user: login.user, password: login.password })
    }

    /// By a user of SCRAM.
    pub(super) fn of(mechanism: ScramMechanism, user: &str, password: Secret) -> Login {
        Login { mechanism: Mechanism::Scram(mechanism), user: user.to_owned(), password }
    }

    /// The other nodes have to know the user before there are metadata.
    ///
    /// # Errors
    /// When they cannot.
    pub(super) fn check(&self, first: &MetadataImage) -> Result<(), String> {
        let Mechanism::Scram(mechanism) = self.mechanism else { return Ok(()) };
        match first.scram_credential(mechanism, &self.user) {
            Some(_) => Ok(()),
            None => Err(format!(
                "the user {} of {mechanism} is not in bootstrap.checkpoint of the metadata's log directory, and users of \
                 the metadata cannot open the connections by which nodes agree on the metadata; format each node with \
                 `kafka-storage.sh format --add-scram`, or use PLAIN or certificates between nodes",
                self.user
            )),
        }
    }

    /// Proves it on a connection that has just begun.
    ///
    /// # Errors
    /// The connection's; of the kind `InvalidData` when it is refused.
    pub(super) fn prove(&self, channel: &mut Channel) -> io::Result<()> {
        let handshake = SaslHandshakeRequest { mechanism: self.mechanism.name().into() };
        let answer = ask(channel, ApiKey::SaslHandshake, &handshake)?;
        let response: SaslHandshakeResponse<'_> = open(&answer)?;
        if response.error_code != ErrorCode::NONE.code() {
            let known = response.mechanisms.join(", ");
            return Err(self.refused(&format!(
                "it does not take {}, but {}",
                self.mechanism,
                OneLine(&known)
            )));
        }
        let nonce = u128::from_ne_bytes(random::bytes());
        let mut exchange =
            ClientExchange::new(self.mechanism, self.user.clone(), self.password.clone(), nonce);
        let mut challenge = Vec::new();
        for _ in 0..TOKENS_MAX {
            let step = exchange.step(&challenge).map_err(|error| self.refused(&error.to_string()))?;
            let ClientStep::Send(token) = step else { return Ok(()) };
            let request = SaslAuthenticateRequest { auth_bytes: token[..].into(), ..Default::default() };
            let answer = ask(channel, ApiKey::SaslAuthenticate, &request)?;
            let response: SaslAuthenticateResponse<'_> = open(&answer)?;
            if response.error_code != ErrorCode::NONE.code() {
                let why = response.error_message.unwrap_or_else(|| "it gives no reason".into());
                return Err(self.refused(&OneLine(&why).to_string()));
            }
            challenge = response.auth_bytes.to_vec();
        }
        Err(self.refused("it does not come to an end"))
    }

    fn refused(&self, why: &str) -> io::Error {
        invalid(format!("{} as user {}: {why}", self.mechanism, self.user))
    }
}

fn ask<'a>(channel: &mut Channel, api: ApiKey, request: &impl Message<'a>) -> io::Result<Vec<u8>> {
    let header = RequestHeader {
        request_api_key: api.key(),
        request_api_version: VERSION,
        ..RequestHeader::default()
    };
    let mut out = Vec::new();
    frame::write_request(&mut out, &header, request).map_err(io::Error::other)?;
    channel.writer.write_all(&out)?;
    read_frame(&mut channel.reader, ANSWER_BYTES_MAX)
}

fn open<'a, M: Message<'a>>(answer: &'a [u8]) -> io::Result<M> {
    let mut decoder = frame::request_decoder(answer);
    let malformed = |_| invalid("what answers there does not speak Kafka's protocol");
    ResponseHeader::decode(&mut decoder, 0).map_err(malformed)?;
    M::decode(&mut decoder, VERSION).map_err(malformed)
}
