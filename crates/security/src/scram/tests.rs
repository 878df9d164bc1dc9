//! The RFC's own exchange, both halves against each other, and attacks.

use std::borrow::Cow;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::plain::PlainUsers;
use crate::sasl::{Credentials, DecoyShape, Identity, Progress, Refusal, TokenCredential};
use crate::{ClientStep, Secret, SecurityError};

/// The users of a broker: a name, a credential, and whether it is a token.
#[derive(Default)]
struct Users(Vec<(String, ScramCredential, bool)>);

impl Users {
    fn with(mechanism: ScramMechanism, name: &str, password: &str) -> Users {
        let salt = b"a salt of 18 bytes".as_slice();
        let credential = ScramCredential::new(mechanism, &Secret::from(password), salt, 4096).unwrap();
        Users(vec![(name.to_owned(), credential, false)])
    }

    fn find(&self, name: &str, token: bool) -> Option<&ScramCredential> {
        self.0.iter().find(|(user, _, is_token)| user == name && *is_token == token).map(|found| &found.1)
    }
}

impl Credentials for Users {
    fn plain(&self) -> Option<&PlainUsers> {
        None
    }

    fn scram(&self, _: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
        self.find(user, false).map(Cow::Borrowed)
    }

    fn token(&self, _: ScramMechanism, id: &str) -> Option<TokenCredential> {
        let credential = self.find(id, true)?.clone();
        Some(TokenCredential { credential, owner: "owner".to_owned(), expires_at_ms: 99 })
    }

    fn decoy(&self, _: ScramMechanism) -> DecoyShape {
        DecoyShape { key: Secret::from("a key"), iterations: 8192, salt_bytes: 18, is_text: false }
    }
}

const SHA256: ScramMechanism = ScramMechanism::Sha256;

/// Makes a whole exchange; returns the result of each side.
fn exchange(
    mechanism: ScramMechanism,
    users: &Users,
    mut client: ScramClient,
) -> Result<Identity, (Vec<String>, Refusal)> {
    let mut server = ScramServer::new(mechanism, 7);
    let mut sent = Vec::new();
    let mut token = Vec::new();
    loop {
        let ClientStep::Send(message) = client.step(&token).expect("the server is honest") else {
            panic!("the client is done before the server")
        };
        match server.step(&message, users) {
            Ok(Progress::Challenge(reply)) => {
                sent.push(String::from_utf8(reply.clone()).unwrap());
                token = reply;
            }
            Ok(Progress::Complete(last, identity)) => {
                assert_eq!(client.step(&last), Ok(ClientStep::Done));
                return Ok(identity);
            }
            Err(refusal) => return Err((sent, refusal)),
        }
    }
}

/// RFC 7677, 3.
#[test]
fn the_exchange_of_the_rfc() {
    let mut client =
        ScramClient::new(SHA256, "user", Secret::from("pencil"), 0).with_nonce("rOprNGfwEbeRWgbNEkqO");
    let send = |text: &str| Ok(ClientStep::Send(text.as_bytes().to_vec()));
    assert_eq!(client.step(b""), send("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"));
    let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let first = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
    let proof = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
    assert_eq!(client.step(first.as_bytes()), send(&proof));
    let signature = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
    assert_eq!(client.step(signature), Ok(ClientStep::Done));
    assert!(matches!(client.step(signature), Err(SecurityError::ExchangeOver(_))));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computed with Python's hashlib: pbkdf2_hmac, then the two keys.
#[test]
fn credentials_are_what_another_program_computes() {
    let check = |mechanism, stored: Expect, server: Expect| {
        let credential = ScramCredential::new(mechanism, &Secret::from("pässword"), *b"salt", 4096).unwrap();
        stored.assert_eq(&hex(credential.stored_key.expose()));
        server.assert_eq(&hex(credential.server_key.expose()));
    };
    check(
        SHA256,
        expect!["49c6552e47541d948e1a31012ffd344e15f4adca5a249d67acc18413282f5763"],
        expect!["82e23a16013595184a469e943826f1d5b35510cbfe580642ba520f16b1ff8ceb"],
    );
    check(
        ScramMechanism::Sha512,
        expect![
            "ecebf2bb3908432b8ff945931d20ec720942958b874620803c07984e7cb3dd11205b20346a8a631c4de1c3b26508df8742f014c83fb344ac104244128e629c9c"
        ],
        expect![
            "b55cbe687f8ac9a082477ad6c8751c226148e1be5cb3918a122a7d84d5660720ae877a019bee3cda6341e6a44c1a5223ba161b077d2d396977a2aa7d13716b42"
        ],
    );
    for iterations in [0, 4095, 16_385, u32::MAX] {
        assert!(ScramCredential::new(SHA256, &Secret::from("x"), *b"salt", iterations).is_err());
    }
}

#[test]
fn an_unknown_user_cannot_be_distinguished_from_a_wrong_password() {
    let users = Users::with(SHA256, "alice", "right");
    let attempt = |name: &str| {
        exchange(SHA256, &users, ScramClient::new(SHA256, name, Secret::from("wrong"), 1)).unwrap_err()
    };
    let (known, known_refusal) = attempt("alice");
    let (unknown, unknown_refusal) = attempt("bob");
    assert_eq!((known.len(), unknown.len()), (1, 1), "both fail in the second step");
    assert_eq!((known_refusal.is_shown, unknown_refusal.is_shown), (false, false));
    assert_eq!(known_refusal.detail, "Invalid client credentials");
    assert_eq!(unknown_refusal.detail, "Authentication failed: Invalid user credentials");
    assert_eq!(unknown[0].split(",i=").next().unwrap().len(), known[0].split(",i=").next().unwrap().len());
    assert_eq!(attempt("bob").0, unknown, "a decoy is always the same");
    assert_ne!(attempt("carol").0, unknown, "and each user has one of its own");
}

#[test]
fn a_decoy_looks_like_the_others() {
    let shape = DecoyShape { key: Secret::from("k"), iterations: 5000, salt_bytes: 26, is_text: true };
    let decoy = ScramCredential::decoy(SHA256, "bob", &shape);
    assert_eq!((decoy.salt.len(), decoy.iterations), (26, 5000));
    assert!(decoy.salt.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()));
    let odd = DecoyShape { salt_bytes: 100, iterations: 1, is_text: false, ..shape };
    let decoy = ScramCredential::decoy(SHA256, "bob", &odd);
    assert_eq!((decoy.salt.len(), decoy.iterations), (64, 4096));
}

#[test]
fn a_credential_that_cannot_be_used_is_a_decoy() {
    for spoil in [
        |credential: &mut ScramCredential| credential.iterations = 4095,
        |credential: &mut ScramCredential| credential.stored_key = Secret::from("short"),
        |credential: &mut ScramCredential| credential.server_key = Secret::default(),
    ] {
        let mut users = Users::with(SHA256, "alice", "right");
        spoil(&mut users.0[0].1);
        let client = ScramClient::new(SHA256, "alice", Secret::from("right"), 1);
        let (sent, refusal) = exchange(SHA256, &users, client).unwrap_err();
        assert_eq!(sent.len(), 1);
        assert!(refusal.detail.contains("stored credential") && !refusal.is_shown);
    }
}

#[test]
fn a_token_is_no_user_and_a_user_no_token() {
    let mut users = Users::with(SHA256, "id", "hmac");
    users.0[0].2 = true;
    let client = || ScramClient::new(SHA256, "id", Secret::from("hmac"), 1);
    let identity = exchange(SHA256, &users, client().with_token()).unwrap();
    assert_eq!(identity, Identity { name: "owner".to_owned(), by_token: true, expires_at_ms: Some(99) });
    exchange(SHA256, &users, client()).unwrap_err();
    users.0[0].2 = false;
    exchange(SHA256, &users, client()).unwrap();
    exchange(SHA256, &users, client().with_token()).unwrap_err();
}

/// Returns the server's answer to a client's first message.
fn first(message: &str) -> String {
    let users = Users::with(SHA256, "a=b,c", "x");
    match ScramServer::new(SHA256, 0xabc).step(message.as_bytes(), &users) {
        Ok(Progress::Challenge(reply)) => String::from_utf8(reply).unwrap(),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => format!("{}{}", if refusal.is_shown { "shown: " } else { "" }, refusal.detail),
    }
}

#[test]
fn first_messages() {
    let good = "r=n00000000000000000000000000000abc,s=YSBzYWx0IG9mIDE4IGJ5dGVz,i=4096";
    for message in [
        "n,,n=a=3Db=2Cc,r=n",
        "n,,m=x=y,n=a=3Db=2Cc,r=n,ext=1",
        "n,,n=a=3Db=2Cc,r=n,tokenauth=false",
        "n,,n=a=3Db=2Cc,r=n,tokenauth=true,tokenauth=no",
    ] {
        assert_eq!(first(message), good, "{message}");
    }
    // Kafka compares the authorization id without decoding it.
    let other =
        "shown: Authentication failed: Client requested an authorization id that is different from username";
    assert_eq!(first("n,a=a=3Db=2Cc,n=a=3Db=2Cc,r=n"), other);
    assert_eq!(first("n,a=root,n=bob,r=n"), other);
    assert!(first("n,a=bob,n=bob,r=n").starts_with("r=n0000"));
    for message in [
        "",
        "n",
        "n,",
        "n,,",
        "y,,n=a,r=n",
        "p=tls-unique,,n=a,r=n",
        "n,,n=,r=n",
        "n,,n=a,r=",
        "n,,n=a",
        "n,,r=n,n=a",
        "n,,n=a=2D,r=n",
        "n,,n=a=,r=n",
        "n,,n=a,r=n ,x=y",
        "n,,n=a,r=n,x",
        "n,,n=a,r=n,x=",
        "n,,n=a,r=n,=y",
        "n,,n=a,r=n,x1=y",
        "n,,n=a,r=n,",
        "n,,n=ä,r=n",
        "n,,n=a\0,r=n",
        "n,a=,n=a,r=n",
        "n,a==,n=a,r=n",
        "n,b,n=a,r=n",
        "n,,m=,n=a,r=n",
    ] {
        assert_eq!(first(message), "Invalid SCRAM client first message format", "{message:?}");
    }
}

#[test]
fn a_client_believes_only_what_is_proved() {
    let answers = |first: &str, last: &str| {
        let mut client = ScramClient::new(SHA256, "user", Secret::from("pencil"), 0).with_nonce("abc");
        client.step(b"").unwrap();
        match client.step(first.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(_) => client.step(last.as_bytes()).unwrap_err().to_string(),
        }
    };
    let good = "r=abcd,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    let check = |first: &str, last: &str, expect: Expect| expect.assert_eq(&answers(first, last));
    check(
        good,
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        expect![
            "the broker could not prove that it knows the SCRAM-SHA-256 credentials: check whom the connection leads to"
        ],
    );
    check(
        good,
        "v=",
        expect![
            "the broker could not prove that it knows the SCRAM-SHA-256 credentials: check whom the connection leads to"
        ],
    );
    check(
        good,
        "e=other-error",
        expect![
            "the broker refused the SCRAM-SHA-256 exchange with other-error: check user name and password"
        ],
    );
    check(good, "ok", expect!["the broker's SCRAM-SHA-256 message is malformed: it is not v=.. or e=.."]);
    check(
        "r=xyz,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "",
        expect![
            "the broker's SCRAM-SHA-256 message is malformed: the nonce does not begin with the client's"
        ],
    );
    for iterations in ["0", "1", "4095", "1000001", "99999999999999999999999999"] {
        let error = answers(&format!("r=abcd,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={iterations}"), "");
        assert!(error.contains("where 4096 to 1000000 are accepted"), "{error}");
    }
    for first in
        ["", "r=abcd", "r=abcd,s=W,i=4096", "r=abcd,s=,i=", "r=abcd,s=,i=-1", "r=abcd,s=,i=4096,x", "e=no"]
    {
        assert!(answers(first, "").ends_with("malformed: it is not r=..,s=..,i=.."), "{first}");
    }
}

/// An observed proof is of no use on another connection, nor a second time.
#[test]
fn what_was_seen_cannot_be_said_again() {
    let users = Users::with(SHA256, "alice", "right");
    let mut client = ScramClient::new(SHA256, "alice", Secret::from("right"), 1);
    let ClientStep::Send(first) = client.step(b"").unwrap() else { panic!() };
    let mut server = ScramServer::new(SHA256, 7);
    let Ok(Progress::Challenge(challenge)) = server.step(&first, &users) else { panic!() };
    let ClientStep::Send(proof) = client.step(&challenge).unwrap() else { panic!() };
    let mut other = ScramServer::new(SHA256, 8);
    other.step(&first, &users).unwrap();
    assert!(other.step(&proof, &users).unwrap_err().detail.contains("nonce"), "another connection");
    assert!(matches!(server.step(&proof, &users), Ok(Progress::Complete(..))));
    assert!(server.step(&proof, &users).is_err(), "a second time");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(32)))]

    #[test]
    fn both_halves_agree(
        name in "[\\x01-\\x7f]{1,20}",
        password in "\\PC{1,30}",
        wrong in "\\PC{1,30}",
        nonce: u128,
        is_512: bool,
    ) {
        let mechanism = ScramMechanism::ALL[usize::from(is_512)];
        let users = Users::with(mechanism, &name, &password);
        let client = |password: &str| ScramClient::new(mechanism, name.clone(), Secret::from(password), nonce);
        let identity = exchange(mechanism, &users, client(&password)).expect("the password is right");
        prop_assert_eq!(identity.name, name.clone());
        prop_assume!(wrong != password);
        prop_assert!(exchange(mechanism, &users, client(&wrong)).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_answered(messages in proptest::collection::vec("[nracpvsimex=,0-9A-Za-z+/]{0,60}", 3)) {
        let users = Users::with(SHA256, "a", "x");
        let mut server = ScramServer::new(SHA256, 1);
        for message in &messages {
            if let Ok(progress) = server.step(message.as_bytes(), &users) {
                prop_assert!(matches!(progress, Progress::Challenge(_)));
            }
        }
        crate::fuzz::scram_client(messages.join("\n").as_bytes());
    }
}
