//! The server's half.

use super::messages::{self, ClientFinal, ClientFirst};
use super::{ScramCredential, ScramMechanism, nonce_text, xor};
use crate::Secret;
use crate::sasl::{Credentials, Identity, Progress, Refusal};

/// The server's half of one exchange.
#[derive(Debug)]
pub(crate) struct ScramServer {
    mechanism: ScramMechanism,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Waits for the client's first message, with its part of the nonce.
    First { nonce: String },
    /// Waits for the proof.
    Final(Box<Challenged>),
    /// Ended, in one way or the other.
    Over,
}

/// The state after the server's challenge, to check the proof.
#[derive(Debug)]
struct Challenged {
    identity: Identity,
    credential: ScramCredential,
    /// The reason why the exchange fails whatever the proof: the credential is a decoy.
    is_doomed: Option<&'static str>,
    nonce: String,
    /// `client-first-message-bare "," server-first-message`
    signed: String,
}

impl ScramServer {
    /// Waits for the client's first message. The nonce is 128 random bits that were never used before.
    pub(crate) fn new(mechanism: ScramMechanism, nonce: u128) -> ScramServer {
        ScramServer { mechanism, state: State::First { nonce: nonce_text(nonce) } }
    }

    /// Answers a message of the client. After an error the exchange is over.
    pub(crate) fn step(
        &mut self,
        message: &[u8],
        credentials: &dyn Credentials,
    ) -> Result<Progress, Refusal> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::First { nonce } => {
                let challenged = challenge(self.mechanism, message, &nonce, credentials)?;
                let reply = server_first(&challenged);
                self.state = State::Final(Box::new(challenged));
                Ok(Progress::Challenge(reply.into_bytes()))
            }
            State::Final(challenged) => verify(self.mechanism, message, *challenged),
            State::Over => Err(Refusal::shown("Unexpected challenge in Sasl server state COMPLETE")),
        }
    }
}

fn challenge(
    mechanism: ScramMechanism,
    message: &[u8],
    server_nonce: &str,
    credentials: &dyn Credentials,
) -> Result<Challenged, Refusal> {
    let first = ClientFirst::parse(message)
        .ok_or_else(|| Refusal::hidden("Invalid SCRAM client first message format"))?;
    // The decoy is made for everyone, so that a known user takes as long as an unknown one.
    let decoy = ScramCredential::decoy(mechanism, &first.name, &credentials.decoy(mechanism));
    let (identity, found) = look_up(mechanism, &first, credentials);
    if !first.authorization_id.is_empty() && first.authorization_id != first.name {
        return Err(Refusal::shown(
            "Authentication failed: Client requested an authorization id that is different from username",
        ));
    }
    let is_doomed = match &found {
        None if first.has_token => Some("Token Authentication failed: Invalid tokenId"),
        None => Some("Authentication failed: Invalid user credentials"),
        Some(credential) if !credential.is_usable(mechanism) => {
            Some("the stored credential has too few iterations or keys of a wrong length")
        }
        Some(_) => None,
    };
    let credential = found.filter(|_| is_doomed.is_none()).unwrap_or(decoy);
    let nonce = format!("{}{server_nonce}", first.nonce);
    let mut challenged = Challenged { identity, credential, is_doomed, nonce, signed: first.bare.to_owned() };
    challenged.signed = format!("{},{}", challenged.signed, server_first(&challenged));
    Ok(challenged)
}

/// Looks up the identity that the client claims, and the credential to check it by. A token's id is never looked up as a user's name, nor
/// the reverse.
fn look_up(
    mechanism: ScramMechanism,
    first: &ClientFirst<'_>,
    credentials: &dyn Credentials,
) -> (Identity, Option<ScramCredential>) {
    let name = first.name.clone();
    if !first.has_token {
        let found = credentials.scram(mechanism, &name).map(std::borrow::Cow::into_owned);
        return (Identity { name, by_token: false, expires_at_ms: None }, found);
    }
    match credentials.token(mechanism, &name) {
        Some(token) => {
            let expires_at_ms = Some(token.expires_at_ms);
            (Identity { name: token.owner, by_token: true, expires_at_ms }, Some(token.credential))
        }
        None => (Identity { name, by_token: true, expires_at_ms: None }, None),
    }
}

fn server_first(challenged: &Challenged) -> String {
    let Challenged { nonce, credential, .. } = challenged;
    format!("r={nonce},s={},i={}", messages::to_base64(&credential.salt), credential.iterations)
}

fn verify(mechanism: ScramMechanism, message: &[u8], challenged: Challenged) -> Result<Progress, Refusal> {
    let last = ClientFinal::parse(message)
        .ok_or_else(|| Refusal::hidden("Invalid SCRAM client final message format"))?;
    if last.nonce != challenged.nonce {
        return Err(Refusal::hidden("Invalid client nonce in the final client message."));
    }
    let hash = mechanism.hash();
    let Challenged { identity, credential, is_doomed, signed, .. } = challenged;
    let signed: [&[u8]; 3] = [signed.as_bytes(), b",", last.without_proof.as_bytes()];
    let client_signature = hash.hmac(credential.stored_key.expose(), &signed);
    let is_proved = last.proof.len() == hash.len() && {
        let client_key = Secret::new(xor(&client_signature, &last.proof));
        Secret::new(hash.digest(client_key.expose())) == credential.stored_key
    };
    if let Some(reason) = is_doomed {
        return Err(Refusal::hidden(reason));
    }
    if !is_proved {
        return Err(Refusal::hidden("Invalid client credentials"));
    }
    let signature = hash.hmac(credential.server_key.expose(), &signed);
    Ok(Progress::Complete(format!("v={}", messages::to_base64(&signature)).into_bytes(), identity))
}
