//! Authentication of a connection at its broker (SASL: KIP-43, KIP-152), before any other request.

use std::fmt;
use std::time::Duration;

use mainstem_lines::OneLine;
use mainstem_security::jaas::JaasConfig;
use mainstem_security::scram::ScramMechanism;
use mainstem_security::{ClientExchange, ClientStep, Mechanism, Secret, SecurityError};
use mainstem_wire::messages::sasl_authenticate_request::SaslAuthenticateRequest;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;

use crate::connection::Connection;
use crate::error::Error;

/// An exchange has at most so many tokens of the client; SCRAM has two.
const TOKENS_MAX: usize = 8;

/// User and password, and the mechanism that shows them to brokers.
///
/// PLAIN sends the password in clear to any server that answers, so that it is only for networks that are trusted. SCRAM sends
/// a proof of it, and the broker has to prove that it knows the user as well. Requests after that are in clear unless the
/// connection is encrypted: see [`Tls`](crate::Tls). A session that a broker limits (`connections.max.reauth.ms`, KIP-368) is
/// renewed before its end.
///
/// ```
/// use mainstem_client::{ClientConfig, Sasl};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let config = ClientConfig::new("10.0.0.1:9092")?.sasl(Sasl::scram_sha_512("alice", "secret"));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Sasl {
    mechanism: Mechanism,
    user: String,
    password: Secret,
}

impl Sasl {
    /// User and password for a mechanism by its registered name: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such mechanism here.
    pub fn new(mechanism: &str, user: impl Into<String>, password: impl Into<String>) -> Result<Sasl, Error> {
        let mechanism =
            mechanism.parse().map_err(|error: SecurityError| Error::Invalid(error.to_string()))?;
        Ok(Sasl { mechanism, user: user.into(), password: Secret::from(password.into()) })
    }

    /// User and password for PLAIN (RFC 4616).
    pub fn plain(user: impl Into<String>, password: impl Into<String>) -> Sasl {
        Sasl { mechanism: Mechanism::Plain, user: user.into(), password: Secret::from(password.into()) }
    }

    /// User and password for SCRAM-SHA-256 (RFC 7677).
    pub fn scram_sha_256(user: impl Into<String>, password: impl Into<String>) -> Sasl {
        Sasl { mechanism: Mechanism::Scram(ScramMechanism::Sha256), ..Sasl::plain(user, password) }
    }

    /// User and password for SCRAM-SHA-512.
    pub fn scram_sha_512(user: impl Into<String>, password: impl Into<String>) -> Sasl {
        Sasl { mechanism: Mechanism::Scram(ScramMechanism::Sha512), ..Sasl::plain(user, password) }
    }

    /// The same from Kafka's client properties: `sasl.mechanism`, and user and password in `sasl.jaas.config`.
    pub(crate) fn from_properties(get: &dyn Fn(&str) -> Option<String>) -> Result<Sasl, Error> {
        let invalid = |error: SecurityError| Error::Invalid(error.to_string());
        let Some(name) = get("sasl.mechanism").filter(|name| name != "GSSAPI") else {
            let what = "sasl.mechanism is GSSAPI, also when it is not set, which is not supported: set it to PLAIN, \
                        SCRAM-SHA-256 or SCRAM-SHA-512";
            return Err(Error::Invalid(what.to_owned()));
        };
        let mechanism: Mechanism = name.parse().map_err(invalid)?;
        let Some(text) = get("sasl.jaas.config") else {
            let what = format!(
                "sasl.jaas.config is missing: set it to the login module of {name} with username and password"
            );
            return Err(Error::Invalid(what));
        };
        let login = JaasConfig::parse(&text).map_err(invalid)?.login();
        let Some(login) = login.filter(|login| !login.is_token) else {
            let what = "sasl.jaas.config has no username and password, or those of a delegation token";
            return Err(Error::Invalid(what.to_owned()));
        };
        Ok(Sasl { mechanism, user: login.user, password: login.password })
    }

    /// Authenticates a connection on which nothing but ApiVersions was asked, or authenticates it again. Returns the time for which
    /// the broker lets the session last; none if it does not end.
    pub(crate) async fn authenticate(&self, connection: &Connection) -> Result<Option<Duration>, Error> {
        self.choose_mechanism(connection).await?;
        let nonce = rand::random();
        let password = self.password.clone();
        let mut exchange = ClientExchange::new(self.mechanism, self.user.clone(), password, nonce);
        let (mut challenge, mut lasts) = (Vec::new(), None);
        for _ in 0..TOKENS_MAX {
            let (after, step) = step(exchange, challenge).await?;
            exchange = after;
            let token = match step.map_err(|error| self.failed(connection, &error.to_string()))? {
                ClientStep::Done => return Ok(lasts),
                ClientStep::Send(token) => token,
            };
            (challenge, lasts) = self.send(connection, &token).await?;
        }
        Err(self.failed(connection, "the broker does not come to an end"))
    }

    async fn choose_mechanism(&self, connection: &Connection) -> Result<(), Error> {
        let request = SaslHandshakeRequest { mechanism: self.mechanism.name().into() };
        let reply = connection.call(&request).await?;
        let response = reply.read()?;
        let offered = match response.mechanisms.is_empty() {
            true => String::new(),
            false => format!(" (the broker has {})", response.mechanisms.join(", ")),
        };
        reply.check(response.error_code, None, || format!("cannot authenticate by {self}{offered}"))
    }

    /// Sends a token. Returns the broker's token, and the time for which the session lasts.
    async fn send(
        &self,
        connection: &Connection,
        token: &[u8],
    ) -> Result<(Vec<u8>, Option<Duration>), Error> {
        let request =
            SaslAuthenticateRequest { auth_bytes: token.into(), ..SaslAuthenticateRequest::default() };
        let reply = connection.call(&request).await?;
        let response = reply.read()?;
        let message = response.error_message.as_deref();
        reply.check(response.error_code, message, || format!("cannot authenticate by {self}"))?;
        let lasts = u64::try_from(response.session_lifetime_ms).ok().filter(|ms| *ms > 0);
        Ok((response.auth_bytes.to_vec(), lasts.map(Duration::from_millis)))
    }

    fn failed(&self, connection: &Connection, reason: &str) -> Error {
        Error::NotAuthenticated {
            broker: connection.broker().to_owned(),
            what: self.to_string(),
            reason: reason.to_owned(),
        }
    }
}

/// The mechanism and the user, without the password.
impl fmt::Display for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as user {}", self.mechanism, OneLine(&self.user))
    }
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sasl({self})")
    }
}

/// One step of an exchange, on a thread that may compute for long: SCRAM hashes a password thousands of times.
async fn step(
    mut exchange: ClientExchange,
    challenge: Vec<u8>,
) -> Result<(ClientExchange, Result<ClientStep, SecurityError>), Error> {
    let computed = tokio::task::spawn_blocking(move || {
        let step = exchange.step(&challenge);
        (exchange, step)
    });
    computed.await.map_err(|error| match error.is_panic() {
        true => Error::Panicked { what: "the authentication".to_owned() },
        false => Error::Closed,
    })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::sync::Arc;

    use bytes::{Buf, BytesMut};
    use mainstem_security::plain::PlainUsers;
    use mainstem_security::scram::ScramCredential;
    use mainstem_security::{
        Authenticator, Credentials, DecoyShape, Now, SaslRules, Step, StepContext, TokenCredential,
    };
    use mainstem_wire::ErrorCode;
    use mainstem_wire::frame::{open_request, split_frame};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::ClientConfig;
    use crate::error::ErrorClass;
    use crate::testing::{answer, versions};

    /// Knows alice, whose password is `secret`.
    struct Users {
        plain: PlainUsers,
        scram: Vec<(ScramMechanism, ScramCredential)>,
    }

    impl Users {
        fn new() -> Users {
            let password = Secret::from("secret");
            let scram = |mechanism| {
                (mechanism, ScramCredential::new(mechanism, &password, *b"some salt", 4096).unwrap())
            };
            Users {
                plain: PlainUsers::new([("alice", &password)]),
                scram: vec![scram(ScramMechanism::Sha256), scram(ScramMechanism::Sha512)],
            }
        }
    }

    impl Credentials for Users {
        fn plain(&self) -> Option<&PlainUsers> {
            Some(&self.plain)
        }

        fn scram(&self, mechanism: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
            let found = self.scram.iter().find(|(of, _)| *of == mechanism && user == "alice");
            found.map(|(_, credential)| Cow::Borrowed(credential))
        }

        fn token(&self, _: ScramMechanism, _: &str) -> Option<TokenCredential> {
            None
        }

        fn decoy(&self, _: ScramMechanism) -> DecoyShape {
            DecoyShape { key: Secret::from("a key"), iterations: 4096, salt_bytes: 9, is_text: true }
        }
    }

    /// A broker that authenticates each connection and then closes it.
    async fn broker(mechanisms: &[Mechanism]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let rules = Arc::new(SaslRules { mechanisms: mechanisms.to_vec(), ..SaslRules::default() });
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Authenticator::new(Arc::clone(&rules))));
            }
        });
        address
    }

    async fn serve(mut socket: TcpStream, mut authenticator: Authenticator) {
        let (users, mut buffer) = (Users::new(), BytesMut::new());
        loop {
            while let Some((frame, taken)) = split_frame(&buffer, 1 << 20).unwrap() {
                let mut random = rand::random::<u128>;
                let context = StepContext { now: Now::default(), credentials: &users, random: &mut random };
                let reply = match authenticator.step(frame, context) {
                    Step::Reply(reply) | Step::Done { reply, .. } => reply,
                    Step::Ask { .. } => answer(&open_request(frame).unwrap(), &versions()).unwrap(),
                    Step::Fail(failure) => failure.reply.unwrap_or_default(),
                };
                socket.write_all(&reply).await.unwrap();
                buffer.advance(taken);
            }
            if socket.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
    }

    async fn connect(address: &str, sasl: Sasl) -> Result<Connection, Error> {
        let config = ClientConfig::new(address).unwrap().sasl(sasl);
        Connection::open(address, config.connection()).await
    }

    #[tokio::test]
    async fn every_mechanism_lets_in_who_knows_the_password_and_no_other() {
        let address = broker(&Mechanism::ALL).await;
        for mechanism in Mechanism::ALL {
            let sasl = |user, password| Sasl::new(mechanism.name(), user, password).unwrap();
            connect(&address, sasl("alice", "secret")).await.unwrap();
            for (user, password) in [("alice", "Secret"), ("bob", "secret"), ("Alice", "secret")] {
                let refused = connect(&address, sasl(user, password)).await.unwrap_err();
                assert_eq!(refused.code(), Some(ErrorCode::SASL_AUTHENTICATION_FAILED), "{refused}");
                assert_eq!(refused.class(), ErrorClass::Fatal);
                let text = refused.to_string();
                assert!(text.contains(&format!("by {mechanism} as user {user}")), "{text}");
                assert!(!text.contains(password), "{text}");
            }
        }
    }

    #[tokio::test]
    async fn a_mechanism_that_is_not_offered_is_refused_with_those_that_are() {
        let address = broker(&[Mechanism::Scram(ScramMechanism::Sha512)]).await;
        let refused = connect(&address, Sasl::plain("alice", "secret")).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::UNSUPPORTED_SASL_MECHANISM), "{refused}");
        assert!(!refused.is_retriable());
        assert!(refused.to_string().contains("the broker has SCRAM-SHA-512"), "{refused}");
    }

    #[test]
    fn only_known_mechanisms_can_be_named() {
        let wrong = Sasl::new("GSSAPI", "alice", "secret").unwrap_err();
        assert!(wrong.to_string().contains("use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"), "{wrong}");
    }
}
