//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use crate::jaas::JaasConfig;
use crate::mapping::PrincipalMapping;
use crate::plain::PlainUsers;
use crate::scram::{ScramClient, ScramCredential, ScramMechanism};
use crate::store::{KeyStore, StorePasswords};
use crate::tls::{TlsClient, TlsProperties, TlsServer, TlsState};
use crate::x509::CertificateInfo;
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

/// Takes frames of a connection, each after its length in two bytes, big-endian. Only the right password is accepted, nothing is answered
/// after the end, and an answered failure is a whole frame.
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

/// Takes messages of a SCRAM server, one on each line: a client accepts only a server with the right signature.
pub fn scram_client(data: &[u8]) {
    let mut client = ScramClient::new(ScramMechanism::Sha256, "alice", Secret::from("pencil"), 1);
    client.step(b"").expect("the first step takes nothing");
    for message in data.split(|byte| *byte == b'\n').take(3) {
        // A large number of iterations takes more time than a fuzzer has.
        let digits = message.rsplit(|byte| *byte == b'=').next().unwrap_or_default();
        if digits.iter().filter(|byte| byte.is_ascii_digit()).count() > 4 {
            return;
        }
        assert_ne!(client.step(message), Ok(crate::ClientStep::Done), "no peer knew the password");
    }
}

/// Checks that any text is a JAAS configuration or an error that repeats no value.
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

/// Checks that any bytes are a key store or are refused, with the password `secret1` and without.
pub fn key_store(data: &[u8]) {
    let secret = Secret::from("secret1");
    for store in [None, Some(&secret)] {
        let passwords = StorePasswords { store, key: Some(&secret) };
        if let Ok(store) = KeyStore::open_within(data, passwords, 20_000) {
            let bytes: usize = store.keys.iter().map(|entry| entry.key.len()).sum();
            assert!(bytes <= data.len(), "what is encrypted is not shorter than what it was");
        }
    }
}

/// Checks that any bytes are a certificate or are refused.
pub fn certificate(data: &[u8]) {
    if let Ok(info) = CertificateInfo::parse(data) {
        assert!(info.subject.len() <= 8 * data.len(), "a name is not longer than its parts, escaped");
        let _ = (info.is_valid_at(0), info.is_for_clients(), info.is_for_servers());
        assert!(info.hosts().len() <= info.alternative_names.len());
        let _ = info.key.fault().map(|fault| fault.to_string());
    }
}

/// The first line is `ssl.principal.mapping.rules`, the second a subject.
pub fn mapping_rules(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (rules, subject) = text.split_once('\n').unwrap_or((text, "CN=a,OU=b"));
    if rules.len() < 300
        && subject.len() < 300
        && let Ok(mapping) = PrincipalMapping::parse(rules)
    {
        let name = mapping.name(subject);
        assert!(name.is_none_or(|name| name.len() <= 1000 * 300 * 301), "replacing is bounded");
    }
}

/// Bytes that a peer may send to a listener, and to a client, instead of a handshake.
pub fn tls(data: &[u8]) {
    static ENDS: LazyLock<(TlsServer, TlsClient)> = LazyLock::new(|| {
        let get = |key: &str| match key {
            "ssl.keystore.location" => Some("keys".to_owned()),
            "ssl.truststore.location" => Some("trust".to_owned()),
            "ssl.keystore.password" | "ssl.truststore.password" => Some("secret1".to_owned()),
            "ssl.client.auth" => Some("required".to_owned()),
            _ => None,
        };
        let read = |path: &str| {
            let keys = path == "keys";
            let trust = include_bytes!("store/fixtures/trust.jks").as_slice();
            Ok(if keys { include_bytes!("store/fixtures/java.p12").as_slice() } else { trust }.to_vec())
        };
        let properties = TlsProperties::read(&get).expect("the properties are valid");
        let material = properties.load(&read).expect("the stores are good");
        let server = TlsServer::new(&properties, &material).expect("there is a key");
        (server, TlsClient::new(&properties, &material).expect("there is trust"))
    });
    let (server, client) = &*ENDS;
    let sessions = [server.session(), client.session("localhost")];
    for mut session in sessions.into_iter().map(|session| session.expect("a session begins")) {
        let (mut outgoing, mut plain) = (Vec::new(), Vec::new());
        let _ = session.handshake(&mut [], &mut outgoing, &mut plain);
        let mut incoming = data.to_vec();
        if let Ok(state) = session.handshake(&mut incoming, &mut outgoing, &mut plain) {
            assert_eq!(state, TlsState::Handshaking, "neither has a key");
            assert!(session.seal(b"data", &mut outgoing).is_err());
        }
        assert!(plain.is_empty() && outgoing.len() < 10_000);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_hold() {
        let run = |name: &str, body: fn(&[u8])| {
            let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            let mut count = 0;
            for entry in std::fs::read_dir(dir).unwrap() {
                body(&std::fs::read(entry.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 0);
        };
        run("authenticator", super::authenticator);
        run("scram_client", super::scram_client);
        run("jaas", super::jaas);
        run("key_store", super::key_store);
        run("certificate", super::certificate);
        run("mapping_rules", super::mapping_rules);
        run("tls", super::tls);
    }
}
