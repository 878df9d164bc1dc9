//! Stores that Java 17 and OpenSSL 3 made, and damaged ones.
//!
//! ```console
//! keytool -genkeypair -alias broker -keyalg EC -dname "CN=broker, OU=a\,b, O=c" -ext san=dns:localhost,ip:127.0.0.1 -keystore java.p12 -storepass secret1 -validity 36500
//! keytool -J-Dkeystore.pkcs12.legacy -importkeystore -srckeystore java.p12 ... -destkeystore legacy.p12
//! keytool -importkeystore -srckeystore java.p12 ... -destkeystore java.jks -deststoretype JKS
//! keytool -keypasswd -alias broker -keystore jks-keypass.jks -new otherkey ...
//! keytool -importcert -noprompt -alias ca -file broker.crt -keystore trust.p12 (and trust.jks)
//! keytool -J-Dkeystore.pkcs12.legacy -importkeystore -srckeystore trust.p12 ... -destkeystore trust-legacy.p12
//! openssl pkcs12 -export [-legacy] [-nokeys] -in broker.crt -inkey key.pem -out openssl.p12 (and so on)
//! openssl pkcs12 -legacy -in legacy.p12 -nodes | openssl pkcs12 -export -out converted.p12
//! openssl pkcs8 -topk8 -v2 aes-256-cbc -in key.pem -out key-enc.pem (and des3, to key-des3.pem)
//! ```

use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::x509::CertificateInfo;

macro_rules! fixtures {
    ($($name:literal)*) => {
        const FIXTURES: &[(&str, &[u8])] = &[$(($name, include_bytes!(concat!("fixtures/", $name)))),*];
    };
}

fixtures! {
    "java.p12" "rsa.p12" "legacy.p12" "java.jks" "jks-keypass.jks" "trust.p12" "trust.jks" "openssl.p12"
    "openssl-trust.p12" "openssl-legacy.p12" "trust-legacy.p12" "converted.p12" "key.pem" "key-enc.pem"
    "key-des3.pem" "key-sec1.pem" "broker.crt"
}

fn fixture(name: &str) -> &'static [u8] {
    FIXTURES.iter().find(|(own, _)| *own == name).unwrap().1
}

fn shown(name: &str, store: Option<&str>, key: Option<&str>) -> String {
    let secret = |text: Option<&str>| text.map(Secret::from);
    let (store, key) = (secret(store), secret(key));
    let passwords = StorePasswords { store: store.as_ref(), key: key.as_ref() };
    let subject = |bytes: &Vec<u8>| CertificateInfo::parse(bytes).unwrap().subject;
    match KeyStore::open(name, fixture(name), passwords) {
        Err(error) => error.to_string(),
        Ok(store) => {
            let keys = store.keys.iter().map(|entry| {
                let chain: Vec<String> = entry.chain.iter().map(subject).collect();
                format!(" {} {:?} {} bytes {chain:?}", entry.alias, entry.form, entry.key.len())
            });
            let trusted =
                store.trusted.iter().map(|(alias, bytes)| format!(" trusts {alias} {:?}", subject(bytes)));
            format!("{name}:{}", keys.chain(trusted).collect::<String>())
        }
    }
}

#[test]
fn stores_of_java_and_openssl() {
    let mut lines = Vec::new();
    for (name, _) in FIXTURES.iter().filter(|(name, _)| !name.ends_with(".pem")) {
        lines.push(shown(name, Some("secret1"), None));
    }
    lines.push(shown("jks-keypass.jks", Some("secret1"), Some("otherkey")));
    lines.push(shown("key.pem", None, None));
    lines.push(shown("key-enc.pem", None, Some("secret1")));
    lines.push(shown("key-des3.pem", None, Some("secret1")));
    lines.push(shown("key-sec1.pem", None, None));
    expect![[r#"
        java.p12: broker Pkcs8 67 bytes ["CN=broker,OU=a\\,b,O=c"]
        rsa.p12: broker Pkcs8 1216 bytes ["CN=rsa"]
        key store legacy.p12: it is encrypted with RC2, which is too weak: convert it by OpenSSL 3: openssl pkcs12 -legacy -in legacy.p12 -nodes | openssl pkcs12 -export -out NEW.p12
        java.jks: broker Pkcs8 67 bytes ["CN=broker,OU=a\\,b,O=c"]
        key store jks-keypass.jks: the key's password is wrong
        trust.p12: trusts ca "CN=broker,OU=a\\,b,O=c"
        trust.jks: trusts ca "CN=broker,OU=a\\,b,O=c"
        openssl.p12: openssl Pkcs8 67 bytes ["CN=broker,OU=a\\,b,O=c"]
        openssl-trust.p12:
        key store openssl-legacy.p12: it is encrypted with triple DES, which is too weak: convert it by OpenSSL 3: openssl pkcs12 -legacy -in openssl-legacy.p12 -nodes | openssl pkcs12 -export -out NEW.p12
        key store trust-legacy.p12: it is encrypted with RC2, which is too weak: convert it by Java 17 or later: keytool -importkeystore -srckeystore trust-legacy.p12 -destkeystore NEW.p12
        converted.p12:  Pkcs8 67 bytes ["CN=broker,OU=a\\,b,O=c"]
        broker.crt: trusts kafka0 "CN=broker,OU=a\\,b,O=c"
        jks-keypass.jks: broker Pkcs8 67 bytes ["CN=broker,OU=a\\,b,O=c"]
        key.pem: kafka Pkcs8 67 bytes []
        key-enc.pem: kafka Pkcs8 67 bytes []
        key store key-des3.pem: its key is encrypted with triple DES, which is too weak: convert it by openssl pkcs8 -topk8
        key-sec1.pem: kafka Sec1 121 bytes []"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn wrong_and_absent_passwords() {
    let mut lines = Vec::new();
    for name in ["java.p12", "legacy.p12", "java.jks", "openssl.p12"] {
        lines.push(shown(name, Some("secret2"), None));
        lines.push(shown(name, None, None));
        lines.push(shown(name, Some("secret1"), Some("secret2")));
    }
    lines.push(shown("key-enc.pem", None, None));
    lines.push(shown("key-enc.pem", None, Some("secret2")));
    lines.push(shown("trust.jks", None, None));
    expect![[r#"
        key store java.p12: the password is wrong, or the file is damaged
        java.p12:
        key store java.p12: the password is wrong
        key store legacy.p12: the password is wrong, or the file is damaged
        legacy.p12:
        key store legacy.p12: it is encrypted with RC2, which is too weak: convert it by OpenSSL 3: openssl pkcs12 -legacy -in legacy.p12 -nodes | openssl pkcs12 -export -out NEW.p12
        key store java.jks: the password is wrong, or the file is damaged
        java.jks:
        key store java.jks: the key's password is wrong
        key store openssl.p12: the password is wrong, or the file is damaged
        openssl.p12:
        key store openssl.p12: the password is wrong
        key store key-enc.pem: its key is encrypted, and ssl.key.password is not set
        key store key-enc.pem: the password is wrong
        trust.jks: trusts ca "CN=broker,OU=a\\,b,O=c""#]]
    .assert_eq(&lines.join("\n"));
}

/// The same key and certificate in all formats.
#[test]
fn one_key_in_all_formats() {
    let secret = Secret::from("secret1");
    let passwords = StorePasswords { store: Some(&secret), key: None };
    let open = |name| KeyStore::open(name, fixture(name), passwords).unwrap();
    let first = open("java.p12").keys.remove(0);
    for name in ["java.jks", "openssl.p12", "converted.p12"] {
        let entry = open(name).keys.remove(0);
        assert_eq!(entry.chain, first.chain, "{name}");
        let keys = [&first, &entry].map(|entry| {
            aws_lc_rs::signature::EcdsaKeyPair::from_pkcs8(
                &aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1_SIGNING,
                entry.key.expose(),
            )
            .unwrap()
        });
        use aws_lc_rs::signature::KeyPair as _;
        assert_eq!(keys[0].public_key().as_ref(), keys[1].public_key().as_ref(), "{name}");
    }
}

#[test]
fn what_is_no_store() {
    let open = |bytes: &[u8]| {
        KeyStore::open("f", bytes, StorePasswords::default())
            .map(|store| store.keys.len() + store.trusted.len())
    };
    let check = |bytes: &[u8], text: &str| {
        assert_eq!(open(bytes).unwrap_err().to_string(), format!("key store f: {text}"))
    };
    check(b"", "it is neither PEM, PKCS12 nor JKS");
    check(b"hello", "it is neither PEM, PKCS12 nor JKS");
    check(
        &[0xce; 8],
        "it is a JCEKS store, which is not supported: convert it by keytool -importkeystore to PKCS12",
    );
    check(&[0xfe, 0xed, 0xfe, 0xed], "it is damaged, or not what it seems: it ends too early");
    check(&[0x30, 3, 2, 1, 4], "it is PKCS12 of a version other than 3");
    check(b"-----BEGIN CERTIFICATE-----", "BEGIN CERTIFICATE has no END CERTIFICATE");
    check(
        b"-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----",
        "what BEGIN CERTIFICATE begins is not Base64",
    );
    let key = fixture("key.pem");
    check(&[key, key].concat(), "Expected one private key, but found 2");
    let line = String::from_utf8(fixture("broker.crt").to_vec()).unwrap().replace(['\r', '\n'], " ");
    assert_eq!(open(line.as_bytes()), Ok(1), "spaces for the ends of lines");
}

/// Part of a store, or one with a byte changed, is refused, or is a store; it takes no longer than a whole one.
fn damaged(name: &str, cut: usize, at: usize, byte: u8) {
    let secret = Secret::from("secret1");
    let mut bytes = fixture(name).to_vec();
    bytes.truncate(cut.min(bytes.len()));
    if let Some(place) = bytes.get_mut(at) {
        *place = byte;
    }
    for store in [None, Some(&secret)] {
        let _ = KeyStore::open_within(&bytes, StorePasswords { store, key: Some(&secret) }, 10_000);
    }
}

#[test]
fn half_a_store() {
    for (name, bytes) in FIXTURES {
        for cut in (0..bytes.len()).step_by(37) {
            damaged(name, cut, usize::MAX, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(96)))]

    #[test]
    fn a_changed_byte(fixture in 0..FIXTURES.len(), at in 0usize..2500, byte: u8) {
        damaged(FIXTURES[fixture].0, usize::MAX, at, byte);
    }

    #[test]
    fn any_bytes(head in 0usize..4, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let heads: [&[u8]; 4] = [b"", &[0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2], &[0x30], b"-----BEGIN "];
        crate::fuzz::key_store(&[heads[head], &bytes].concat());
        crate::fuzz::certificate(&bytes);
    }
}

#[test]
fn a_path_in_a_command_is_one_word_of_the_shell() {
    let secret = Secret::from("secret1".to_owned());
    let passwords = StorePasswords { store: Some(&secret), key: None };
    let refused = KeyStore::open("my stores/trust-legacy.p12", fixture("trust-legacy.p12"), passwords);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("-srckeystore 'my stores/trust-legacy.p12' -dest"), "{error}");
}
