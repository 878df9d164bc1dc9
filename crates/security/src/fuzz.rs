//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use std::borrow::Cow;
use std::sync::Arc;

use crate::jaas::JaasConfig;
use crate::plain::PlainUsers;
use crate::scram::{ScramClient, ScramCredential, ScramMechanism};
use crate::{
    Authenticator, Credentials, DecoyShape, Mechanism, Now, SaslRules, Secret, Step, StepContext,
    TokenCredential,
};

/// One user of each kind, with the password `secret`.
struct OneUser {
    plain: PlainUsers,
    credential: ScramCredential,
}

impl OneUser {
    fn new() -> OneUser {
        let secret = Secret::from("secret");
        let credential =
            ScramCredential::from_salted_password(ScramMechanism::Sha256, &secret, *b"salt", 4096);
        OneUser { plain: PlainUsers::new([("alice", &secret)]), credential }
    }
}

impl Credentials for OneUser {
    fn plain(&self) -> Option<&PlainUsers> {
        Some(&self.plain)
    }

    fn scram(&self, mechanism: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
        (mechanism == ScramMechanism::Sha256 && user == "alice").then_some(Cow::Borrowed(&self.credential))
    }

    fn token(&self, _: ScramMechanism, _: &str) -> Option<TokenCredential> {
        None
    }

    fn decoy(&self, _: ScramMechanism) -> DecoyShape {
        DecoyShape { key: Secret::from("decoy"), iterations: 4096, salt_bytes: 26, is_text: false }
    }
}

/// Frames of a connection, each after its length in two bytes, big-endian. Only the right password lets in, nothing is
/// answered after the end, and a failure that is told is a whole frame.
pub fn authenticator(data: &[u8]) {
    let credentials = OneUser::new();
    let rules = Arc::new(SaslRules { mechanisms: Mechanism::ALL.to_vec(), ..SaslRules::default() });
    let mut authenticator = Authenticator::new(Arc::clone(&rules));
    let mut rest = data;
    let mut is_over = false;
    while let [high, low, tail @ ..] = rest {
        let (frame, tail) = tail.split_at(usize::from(u16::from_be_bytes([*high, *low])).min(tail.len()));
        rest = tail;
        let context = StepContext { now: Now::default(), credentials: &credentials, random: &mut || 0x5eed };
        let step = authenticator.step(frame, context);
        let frame = match &step {
            Step::Reply(frame) => Some(frame),
            Step::Ask { .. } => None,
            Step::Done { reply, session } => {
                assert_eq!(session.principal.to_string(), "User:alice");
                Some(reply)
            }
            Step::Fail(failure) => failure.reply.as_ref(),
        };
        if let Some(frame) = frame {
            let (length, body) = frame.split_first_chunk().expect("a frame has a length");
            assert_eq!(u32::from_be_bytes(*length) as usize, body.len());
        }
        assert!(!is_over || matches!(&step, Step::Fail(failure) if failure.reply.is_none()), "{step:?}");
        is_over |= matches!(step, Step::Done { .. } | Step::Fail(_));
    }
}

/// Messages of a SCRAM server, one to a line: a client that does not hear the right signature does not believe.
pub fn scram_client(data: &[u8]) {
    let mut client = ScramClient::new(ScramMechanism::Sha256, "alice", Secret::from("pencil"), 1);
    client.step(b"").expect("the first step takes nothing");
    for message in data.split(|byte| *byte == b'\n').take(3) {
        // A large number is obeyed, in time that a fuzzer does not have.
        let digits = message.rsplit(|byte| *byte == b'=').next().unwrap_or_default();
        if digits.iter().filter(|byte| byte.is_ascii_digit()).count() > 4 {
            return;
        }
        assert_ne!(client.step(message), Ok(crate::ClientStep::Done), "nobody knew the password");
    }
}

/// Any text is a JAAS configuration or an error that repeats no value.
pub fn jaas(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match JaasConfig::parse(text) {
        Ok(config) => {
            let shown =
                format!("{config:?} {:?} {:?}", config.plain_users(), config.login().map(|l| l.password));
            assert!(shown.len() < 1000 + 40 * text.len());
        }
        Err(error) => assert!(error.to_string().len() < 400 + 2 * text.len()),
    }
}
