//! Conversations of a connection, as transcripts: the client sends the lines with `>`.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use mainstem_wire::Decoder;
use mainstem_wire::messages::metadata_request::MetadataRequest;
use mainstem_wire::messages::request_header::RequestHeader;

use super::*;
use crate::plain::PlainUsers;
use crate::sasl::{DecoyShape, TokenCredential};
use crate::scram::{ScramCredential, ScramMechanism};
use crate::{ClientExchange, ClientStep, Secret};

const SCRAM_256: Mechanism = Mechanism::Scram(ScramMechanism::Sha256);

struct Broker {
    plain: PlainUsers,
    credential: ScramCredential,
}

impl Credentials for Broker {
    fn plain(&self) -> Option<&PlainUsers> {
        Some(&self.plain)
    }

    fn scram(&self, _: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
        (user == "alice").then_some(Cow::Borrowed(&self.credential))
    }

    fn token(&self, _: ScramMechanism, id: &str) -> Option<TokenCredential> {
        let credential = self.credential.clone();
        (id == "token").then(|| TokenCredential {
            credential,
            owner: "alice".to_owned(),
            expires_at_ms: 1500,
        })
    }

    fn decoy(&self, _: ScramMechanism) -> DecoyShape {
        DecoyShape { key: Secret::from("a key"), iterations: 4096, salt_bytes: 4, is_text: false }
    }
}

/// A client at a broker; everything they say is written down.
struct Talk {
    broker: Broker,
    rules: Arc<SaslRules>,
    authenticator: Authenticator,
    session: Option<Session>,
    now: Now,
    correlation_id: i32,
    script: String,
    last: Option<(ApiKey, i16)>,
}

impl Talk {
    fn new(max_reauth_ms: u64) -> Talk {
        let secret = Secret::from("secret");
        let mechanism = ScramMechanism::Sha256;
        let rules = Arc::new(SaslRules {
            mechanisms: vec![SCRAM_256, Mechanism::Plain],
            max_reauth_ms: Mechanism::ALL.into_iter().map(|each| (each, max_reauth_ms)).collect(),
        });
        Talk {
            broker: Broker {
                plain: PlainUsers::new([("alice", &secret), ("bob", &secret)]),
                credential: ScramCredential::new(mechanism, &secret, *b"salt", 4096).unwrap(),
            },
            authenticator: Authenticator::new(Arc::clone(&rules)),
            rules,
            session: None,
            now: Now { monotonic_ms: 5000, wall_ms: 1000 },
            correlation_id: 0,
            script: String::new(),
            last: None,
        }
    }

    fn say(&mut self, line: impl std::fmt::Display) {
        writeln!(self.script, "{line}").unwrap();
    }

    /// Sends a request of the client; returns the token of the answer.
    fn send<'a, M: Message<'a>>(&mut self, api_key: ApiKey, version: i16, shown: &str, body: &M) -> Vec<u8> {
        self.correlation_id += 1;
        let header = RequestHeader {
            request_api_key: api_key.key(),
            request_api_version: version,
            correlation_id: self.correlation_id,
            ..RequestHeader::default()
        };
        let mut frame = Vec::new();
        frame::write_request(&mut frame, &header, body).unwrap();
        self.say(format_args!("> {} v{version} {shown}", api_key.name()));
        self.last = Some((api_key, version));
        self.frame(&frame[frame::LENGTH_BYTES..])
    }

    fn frame(&mut self, body: &[u8]) -> Vec<u8> {
        let mut random = || 0xabc;
        let context = StepContext { now: self.now, credentials: &self.broker, random: &mut random };
        match self.authenticator.step(body, context) {
            Step::Reply(reply) => self.reply(&reply),
            Step::Ask { software } => {
                self.say(format_args!("< the broker's ApiVersions, for {software:?}"));
                Vec::new()
            }
            Step::Done { reply, session } => {
                let token = self.reply(&reply);
                let expiry = session.expires_at_ms();
                self.say(format_args!("= {}, until {expiry:?}", session.principal));
                match &mut self.session {
                    Some(before) => before.renew(session),
                    none => *none = Some(session),
                }
                token
            }
            Step::Fail(failure) => {
                if let Some(reply) = &failure.reply {
                    self.reply(reply);
                }
                let kind = if failure.is_refusal { "refused" } else { "closed" };
                self.say(format_args!("! {kind}: {}", failure.detail));
                Vec::new()
            }
        }
    }

    fn reply(&mut self, frame: &[u8]) -> Vec<u8> {
        let body = &frame[frame::LENGTH_BYTES..];
        let Some((api_key, version)) = self.last else {
            self.say(format_args!("< {:?}", String::from_utf8_lossy(body)));
            return body.to_vec();
        };
        let header_bytes = if api_key.response_header_version(version) > 0 { 5 } else { 4 };
        assert_eq!(body[..4], self.correlation_id.to_be_bytes());
        let mut decoder = Decoder::new(&body[header_bytes..]);
        if api_key == ApiKey::SaslHandshake {
            let response = SaslHandshakeResponse::decode(&mut decoder, version).unwrap();
            self.say(format_args!("< {:?} {:?}", ErrorCode(response.error_code), response.mechanisms));
            return Vec::new();
        }
        let response = SaslAuthenticateResponse::decode(&mut decoder, version).unwrap();
        let text = response.error_message.as_deref().unwrap_or_default();
        let token = String::from_utf8_lossy(&response.auth_bytes).into_owned();
        let (code, lifetime) = (ErrorCode(response.error_code), response.session_lifetime_ms);
        self.say(format_args!("< {code:?} {text:?} {token:?} {lifetime} ms"));
        response.auth_bytes.into_owned()
    }

    fn versions(&mut self, name: &str) {
        let body = ApiVersionsRequest {
            client_software_name: Cow::Owned(name.to_owned()),
            client_software_version: Cow::Borrowed("4.3.0"),
            ..ApiVersionsRequest::default()
        };
        self.send(ApiKey::ApiVersions, 4, name, &body);
    }

    fn handshake(&mut self, version: i16, mechanism: &str) {
        let body = SaslHandshakeRequest { mechanism: Cow::Owned(mechanism.to_owned()) };
        self.send(ApiKey::SaslHandshake, version, mechanism, &body);
    }

    fn token(&mut self, version: i16, token: &[u8]) -> Vec<u8> {
        let body = SaslAuthenticateRequest { auth_bytes: Cow::Owned(token.to_vec()), ..Default::default() };
        let shown = String::from_utf8_lossy(token).replace('\0', "|");
        self.send(ApiKey::SaslAuthenticate, version, &shown, &body)
    }

    fn scram(&mut self, version: i16, mut client: ClientExchange) {
        let mut challenge = Vec::new();
        while let Ok(ClientStep::Send(token)) = client.step(&challenge) {
            challenge = self.token(version, &token);
            if challenge.is_empty() {
                return;
            }
        }
    }

    /// A handshake on a connection that is authenticated.
    fn again(&mut self, mechanism: &str) {
        let session = self.session.as_mut().expect("there is a session");
        let admission = session.admit(ApiKey::SaslHandshake, self.now);
        let authenticator = Authenticator::again(Arc::clone(&self.rules), session);
        let at = self.now.monotonic_ms;
        self.say(format_args!("{admission:?} at {at}"));
        if admission != Admission::Renew {
            return;
        }
        self.authenticator = authenticator;
        self.handshake(1, mechanism);
    }

    fn check(&self, expect: Expect) {
        expect.assert_eq(&self.script);
    }
}

fn alice(password: &str) -> ClientExchange {
    ClientExchange::new(SCRAM_256, "alice", Secret::from(password), 0x1)
}

#[test]
fn plain() {
    let mut talk = Talk::new(0);
    talk.versions("apache-kafka-java");
    talk.handshake(1, "PLAIN");
    talk.token(2, b"\0alice\0secret");
    talk.check(expect![[r#"
        > ApiVersions v4 apache-kafka-java
        < the broker's ApiVersions, for Some(("apache-kafka-java", "4.3.0"))
        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 |alice|secret
        < NONE(0) "" "" 0 ms
        = User:alice, until None
    "#]]);
}

#[test]
fn scram() {
    let mut talk = Talk::new(60_000);
    talk.handshake(1, "SCRAM-SHA-256");
    talk.scram(1, alice("secret"));
    talk.check(expect![[r#"
        > SaslHandshake v1 SCRAM-SHA-256
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v1 n,,n=alice,r=00000000000000000000000000000001
        < NONE(0) "" "r=0000000000000000000000000000000100000000000000000000000000000abc,s=c2FsdA==,i=4096" 0 ms
        > SaslAuthenticate v1 c=biws,r=0000000000000000000000000000000100000000000000000000000000000abc,p=tCF5Gprg/KdsjyV2KtvjlqzrBDt9HTcE1AfyikDSQKM=
        < NONE(0) "" "v=sujPapjMeALoMh+GZjKQVK5QfwlolvMcnu3ZlvLfopk=" 60000 ms
        = User:alice, until Some(65000)
    "#]]);
}

#[test]
fn old_clients_send_bare_tokens() {
    let mut talk = Talk::new(0);
    talk.handshake(0, "PLAIN");
    talk.last = None;
    talk.frame(b"\0alice\0secret");
    let mut talk = {
        let script = talk.script;
        Talk { script, ..Talk::new(0) }
    };
    talk.handshake(0, "PLAIN");
    talk.last = None;
    talk.frame(b"\0alice\0wrong");
    talk.check(expect![[r#"
        > SaslHandshake v0 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        < ""
        = User:alice, until None
        > SaslHandshake v0 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        ! refused: Authentication failed: Invalid username or password
    "#]]);
}

#[test]
fn refusals_are_reported() {
    let mut script = String::new();
    let mut attempt = |mechanism: &str, act: &dyn Fn(&mut Talk)| {
        let mut talk = Talk { script: std::mem::take(&mut script), ..Talk::new(0) };
        talk.handshake(1, mechanism);
        act(&mut talk);
        talk.say("");
        script = talk.script;
    };
    attempt("GSSAPI", &|_| ());
    attempt("SCRAM-SHA-512", &|_| ());
    attempt("PLAIN", &|talk| {
        talk.token(2, b"\0alice\0wrong");
    });
    attempt("PLAIN", &|talk| {
        talk.token(0, b"\0mallory\0secret");
    });
    attempt("SCRAM-SHA-256", &|talk| talk.scram(2, alice("wrong")));
    attempt("SCRAM-SHA-256", &|talk| {
        talk.token(2, b"n,a=root,n=alice,r=x");
    });
    attempt("PLAIN", &|talk| talk.handshake(1, "PLAIN"));
    expect![[r#"
        > SaslHandshake v1 GSSAPI
        < UNSUPPORTED_SASL_MECHANISM(33) ["SCRAM-SHA-256", "PLAIN"]
        ! refused: Unsupported SASL mechanism GSSAPI

        > SaslHandshake v1 SCRAM-SHA-512
        < UNSUPPORTED_SASL_MECHANISM(33) ["SCRAM-SHA-256", "PLAIN"]
        ! refused: Unsupported SASL mechanism SCRAM-SHA-512

        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 |alice|wrong
        < SASL_AUTHENTICATION_FAILED(58) "Authentication failed: Invalid username or password" "" 0 ms
        ! refused: Authentication failed: Invalid username or password

        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v0 |mallory|secret
        < SASL_AUTHENTICATION_FAILED(58) "Authentication failed: Invalid username or password" "" 0 ms
        ! refused: Authentication failed: Invalid username or password

        > SaslHandshake v1 SCRAM-SHA-256
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 n,,n=alice,r=00000000000000000000000000000001
        < NONE(0) "" "r=0000000000000000000000000000000100000000000000000000000000000abc,s=c2FsdA==,i=4096" 0 ms
        > SaslAuthenticate v2 c=biws,r=0000000000000000000000000000000100000000000000000000000000000abc,p=3gH+1vQIQTQxU+oNv4vqpJwOs5OIFiUmdK8ORfHlbas=
        < SASL_AUTHENTICATION_FAILED(58) "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256" "" 0 ms
        ! refused: Invalid client credentials

        > SaslHandshake v1 SCRAM-SHA-256
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 n,a=root,n=alice,r=x
        < SASL_AUTHENTICATION_FAILED(58) "Authentication failed: Client requested an authorization id that is different from username" "" 0 ms
        ! refused: Authentication failed: Client requested an authorization id that is different from username

        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslHandshake v1 PLAIN
        < ILLEGAL_SASL_STATE(34) []
        ! closed: Unexpected Kafka request of type SaslHandshake during SASL authentication.

    "#]].assert_eq(&script);
}

#[test]
fn anything_else_closes() {
    let mut script = String::new();
    let mut attempt = |act: &dyn Fn(&mut Talk)| {
        let mut talk = Talk { script: std::mem::take(&mut script), ..Talk::new(0) };
        act(&mut talk);
        talk.say("");
        script = talk.script;
    };
    let metadata = |talk: &mut Talk| {
        talk.send(ApiKey::Metadata, 12, "", &MetadataRequest::default());
    };
    attempt(&metadata);
    attempt(&|talk| {
        talk.handshake(1, "PLAIN");
        metadata(talk);
    });
    attempt(&|talk| {
        talk.token(2, b"\0alice\0secret");
    });
    attempt(&|talk| {
        talk.versions("java");
        talk.versions("java");
    });
    attempt(&|talk| {
        talk.versions("not a name");
        talk.versions("java");
    });
    attempt(&|talk| {
        talk.frame(b"\x60\x82\x01\x00 a token of GSSAPI");
    });
    attempt(&|talk| {
        talk.frame(b"");
    });
    attempt(&|talk| {
        talk.frame(b"GET / HTTP/1.1\r\n");
    });
    expect![[r#"
        > Metadata v12 
        ! closed: Unexpected Kafka request of type Metadata during SASL handshake.

        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > Metadata v12 
        ! closed: Unexpected Kafka request of type Metadata during SASL authentication.

        > SaslAuthenticate v2 |alice|secret
        ! closed: Unexpected Kafka request of type SaslAuthenticate during SASL handshake.

        > ApiVersions v4 java
        < the broker's ApiVersions, for Some(("java", "4.3.0"))
        > ApiVersions v4 java
        ! closed: Unexpected Kafka request of type ApiVersions during SASL handshake.

        > ApiVersions v4 not a name
        < the broker's ApiVersions, for None
        > ApiVersions v4 java
        < the broker's ApiVersions, for Some(("java", "4.3.0"))

        ! closed: no request of Kafka's: a request for the unknown API 24706

        ! closed: no request of Kafka's: RequestHeader.RequestApiKey at byte 0: 2 bytes are needed where 0 remain

        ! closed: no request of Kafka's: a request for the unknown API 18245

    "#]].assert_eq(&script);
}

#[test]
fn sessions_are_renewed() {
    let mut talk = Talk::new(2000);
    talk.handshake(1, "SCRAM-SHA-256");
    talk.scram(2, alice("secret"));
    talk.now.monotonic_ms += 1900;
    talk.again("SCRAM-SHA-256");
    talk.scram(2, alice("secret"));
    talk.now.monotonic_ms += 999;
    talk.again("SCRAM-SHA-256");
    talk.check(expect![[r#"
        > SaslHandshake v1 SCRAM-SHA-256
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 n,,n=alice,r=00000000000000000000000000000001
        < NONE(0) "" "r=0000000000000000000000000000000100000000000000000000000000000abc,s=c2FsdA==,i=4096" 0 ms
        > SaslAuthenticate v2 c=biws,r=0000000000000000000000000000000100000000000000000000000000000abc,p=tCF5Gprg/KdsjyV2KtvjlqzrBDt9HTcE1AfyikDSQKM=
        < NONE(0) "" "v=sujPapjMeALoMh+GZjKQVK5QfwlolvMcnu3ZlvLfopk=" 2000 ms
        = User:alice, until Some(7000)
        Renew at 6900
        > SaslHandshake v1 SCRAM-SHA-256
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 n,,n=alice,r=00000000000000000000000000000001
        < NONE(0) "" "r=0000000000000000000000000000000100000000000000000000000000000abc,s=c2FsdA==,i=4096" 0 ms
        > SaslAuthenticate v2 c=biws,r=0000000000000000000000000000000100000000000000000000000000000abc,p=tCF5Gprg/KdsjyV2KtvjlqzrBDt9HTcE1AfyikDSQKM=
        < NONE(0) "" "v=sujPapjMeALoMh+GZjKQVK5QfwlolvMcnu3ZlvLfopk=" 2000 ms
        = User:alice, until Some(8900)
        Serve at 7899
    "#]]);
    let session = talk.session.as_mut().unwrap();
    let mut admit = |monotonic_ms| session.admit(ApiKey::Produce, Now { monotonic_ms, wall_ms: 0 });
    assert_eq!(admit(8900), Admission::Serve);
    assert_eq!(admit(8901), Admission::Expired);
}

#[test]
fn a_renewal_keeps_mechanism_and_principal() {
    let mut talk = Talk::new(2000);
    talk.handshake(1, "PLAIN");
    talk.token(2, b"\0alice\0secret");
    talk.now.monotonic_ms += 1000;
    talk.again("PLAIN");
    talk.token(2, b"\0bob\0secret");
    talk.now.monotonic_ms += 1000;
    talk.again("SCRAM-SHA-256");
    talk.scram(2, alice("secret"));
    talk.now.monotonic_ms += 1000;
    talk.again("PLAIN");
    talk.token(2, b"\0alice\0wrong");
    talk.now.monotonic_ms += 1000;
    talk.again("SCRAM-SHA-512");
    talk.check(expect![[r#"
        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 |alice|secret
        < NONE(0) "" "" 2000 ms
        = User:alice, until Some(7000)
        Renew at 6000
        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 |bob|secret
        < SASL_AUTHENTICATION_FAILED(58) "Cannot change principals during re-authentication from User.alice: User.bob" "" 0 ms
        ! refused: Cannot change principals during re-authentication from User.alice: User.bob
        Renew at 7000
        > SaslHandshake v1 SCRAM-SHA-256
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 n,,n=alice,r=00000000000000000000000000000001
        < SASL_AUTHENTICATION_FAILED(58) "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism 'PLAIN'" "" 0 ms
        ! refused: SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism 'PLAIN'
        Renew at 8000
        > SaslHandshake v1 PLAIN
        < NONE(0) ["SCRAM-SHA-256", "PLAIN"]
        > SaslAuthenticate v2 |alice|wrong
        < SASL_AUTHENTICATION_FAILED(58) "Authentication failed: Invalid username or password" "" 0 ms
        ! refused: Authentication failed: Invalid username or password
        Renew at 9000
        > SaslHandshake v1 SCRAM-SHA-512
        < UNSUPPORTED_SASL_MECHANISM(33) ["SCRAM-SHA-256", "PLAIN"]
        ! refused: Unsupported SASL mechanism SCRAM-SHA-512
    "#]]);
}

#[test]
fn a_session_ends_with_its_token() {
    for (max_reauth_ms, lifetime) in [(0, 500), (200, 200), (9000, 500)] {
        let mut talk = Talk::new(max_reauth_ms);
        talk.handshake(1, "SCRAM-SHA-256");
        let client =
            crate::scram::ScramClient::new(ScramMechanism::Sha256, "token", Secret::from("secret"), 1);
        talk.scram(2, ClientExchange::Scram(Box::new(client.with_token())));
        let session = talk.session.expect("the token is good");
        assert_eq!((session.lifetime_ms, session.by_token), (lifetime, true));
        assert_eq!(session.expires_at_ms(), Some(5000 + lifetime));
        assert_eq!(session.principal, KafkaPrincipal::user("alice"));
    }
    let mut lasting = Talk::new(0);
    lasting.handshake(1, "PLAIN");
    lasting.token(2, b"\0alice\0secret");
    let mut session = lasting.session.unwrap();
    let late = Now { monotonic_ms: u64::MAX, wall_ms: 0 };
    assert_eq!(session.admit(ApiKey::Fetch, late), Admission::Serve);
    assert_eq!(session.admit(ApiKey::SaslHandshake, late), Admission::Serve, "and is answered with 34");
}

#[test]
fn out_of_place() {
    assert_eq!(handshake_out_of_place().error_code, 34);
    assert_eq!(authenticate_out_of_place().error_code, 34);
}

proptest::proptest! {
    #[test]
    fn any_frames(data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        crate::fuzz::authenticator(&data);
        crate::fuzz::jaas(&data);
    }

    /// Frames that begin as requests do.
    #[test]
    fn any_bodies(bodies in proptest::collection::vec((0usize..4, 0u8..3, proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60)), 1..6)) {
        let mut data = Vec::new();
        for (kind, version, body) in bodies {
            let key: &[u8] = [&[0, 17][..], &[0, 18], &[0, 36], &[]][kind];
            let mut frame = key.to_vec();
            if !key.is_empty() {
                frame.extend([0, version, 0, 0, 0, 1, 0xff, 0xff]);
            }
            if kind == 0 && body.len() % 2 == 0 {
                frame.extend(b"\0\x05PLAIN");
            }
            frame.extend(body);
            data.extend(u16::try_from(frame.len()).unwrap().to_be_bytes());
            data.extend(frame);
        }
        crate::fuzz::authenticator(&data);
    }

    #[test]
    fn any_jaas(text in "([ab.]{1,3}|required|[ =;\"'\\\\/*-]|[0-9]{1,3}|\\PC){0,40}") {
        crate::fuzz::jaas(text.as_bytes());
    }
}
