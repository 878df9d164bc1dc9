//! The client's half.

use std::num::NonZeroU32;

use super::messages::{self, ServerFinal, ServerFirst};
use super::{ScramMechanism, nonce_text, xor};
use crate::sasl::ClientStep;
use crate::{Secret, SecurityError};

/// The most iterations that a client accepts from a server: about a second of hashing. Kafka makes credentials of up to 16,384; other
/// brokers have more.
pub const ITERATIONS_CLIENT_MAX: u32 = 1_000_000;

/// The client's half of one exchange.
#[derive(Debug)]
pub struct ScramClient {
    mechanism: ScramMechanism,
    user: String,
    password: Secret,
    has_token: bool,
    nonce: String,
    state: State,
}

#[derive(Debug)]
enum State {
    Start,
    /// Waits for salt and iterations, with the message that was sent.
    First {
        bare: String,
    },
    /// Waits for the signature, which has to be this one.
    Final {
        signature: Secret,
    },
    Over,
}

impl ScramClient {
    /// A user's exchange; the nonce is 128 random bits that were never used before.
    pub fn new(
        mechanism: ScramMechanism,
        user: impl Into<String>,
        password: Secret,
        nonce: u128,
    ) -> ScramClient {
        let (user, nonce) = (user.into(), nonce_text(nonce));
        ScramClient { mechanism, user, password, has_token: false, nonce, state: State::Start }
    }

    /// Makes user and password a delegation token's id and HMAC (KIP-48).
    #[must_use]
    pub fn with_token(self) -> ScramClient {
        ScramClient { has_token: true, ..self }
    }

    #[cfg(test)]
    pub(super) fn with_nonce(self, nonce: &str) -> ScramClient {
        ScramClient { nonce: nonce.to_owned(), ..self }
    }

    /// Answers the server's message; the first call has none. After an error the exchange is over.
    ///
    /// # Errors
    /// When the message is malformed, refuses, or its sender does not know the credentials.
    pub fn step(&mut self, message: &[u8]) -> Result<ClientStep, SecurityError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Start => {
                let extension = if self.has_token { ",tokenauth=true" } else { "" };
                let bare = format!("n={},r={}{extension}", messages::to_saslname(&self.user), self.nonce);
                let token = format!("n,,{bare}").into_bytes();
                self.state = State::First { bare };
                Ok(ClientStep::Send(token))
            }
            State::First { bare } => {
                let (token, signature) = self.prove(message, &bare)?;
                self.state = State::Final { signature };
                Ok(ClientStep::Send(token))
            }
            State::Final { signature } => self.check(message, &signature),
            State::Over => Err(SecurityError::ExchangeOver(self.mechanism.name())),
        }
    }

    fn malformed(&self, what: &'static str) -> SecurityError {
        SecurityError::ScramMessage { mechanism: self.mechanism, what }
    }

    /// The final message, and the signature that has to answer it.
    fn prove(&self, message: &[u8], bare: &str) -> Result<(Vec<u8>, Secret), SecurityError> {
        let text = messages::ascii(message).ok_or_else(|| self.malformed("it is not ASCII"))?;
        let first = ServerFirst::parse(text).ok_or_else(|| self.malformed("it is not r=..,s=..,i=.."))?;
        if !first.nonce.starts_with(&self.nonce) {
            return Err(self.malformed("the nonce does not begin with the client's"));
        }
        let rounds = self.rounds(first.iterations)?;
        let hash = self.mechanism.hash();
        let salted = Secret::new(hash.pbkdf2(self.password.expose(), &first.salt, rounds));
        let client_key = Secret::new(hash.hmac(salted.expose(), &[b"Client Key"]));
        let stored_key = Secret::new(hash.digest(client_key.expose()));
        let server_key = Secret::new(hash.hmac(salted.expose(), &[b"Server Key"]));
        let without_proof = format!("c=biws,r={}", first.nonce);
        let signed: [&[u8]; 5] = [bare.as_bytes(), b",", message, b",", without_proof.as_bytes()];
        let client_signature = hash.hmac(stored_key.expose(), &signed);
        let proof = xor(client_key.expose(), &client_signature);
        let token = format!("{without_proof},p={}", messages::to_base64(&proof)).into_bytes();
        Ok((token, Secret::new(hash.hmac(server_key.expose(), &signed))))
    }

    fn rounds(&self, iterations: &str) -> Result<NonZeroU32, SecurityError> {
        let allowed = ScramMechanism::ITERATIONS_MIN..=ITERATIONS_CLIENT_MAX;
        let number = iterations.parse::<NonZeroU32>().ok().filter(|n| allowed.contains(&n.get()));
        number.ok_or_else(|| SecurityError::ScramIterations {
            mechanism: self.mechanism,
            iterations: iterations.chars().take(20).collect(),
            min: *allowed.start(),
            max: *allowed.end(),
        })
    }

    fn check(&self, message: &[u8], signature: &Secret) -> Result<ClientStep, SecurityError> {
        match ServerFinal::parse(message).ok_or_else(|| self.malformed("it is not v=.. or e=.."))? {
            ServerFinal::Error(error) => {
                let error = error.chars().take(100).collect();
                Err(SecurityError::ScramRefused { mechanism: self.mechanism, error })
            }
            ServerFinal::Signature(given) if Secret::new(given.clone()) == *signature => Ok(ClientStep::Done),
            ServerFinal::Signature(_) => Err(SecurityError::ScramServer(self.mechanism)),
        }
    }
}
