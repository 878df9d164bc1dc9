//! Certificates compared with Java: the verdicts of a listener on a client's, and of a client on a server's.
//!
//! `certificates/cases.txt` names the cases. `certificates/pem` has the certificates that a peer shows and those that the other end trusts
//! (made by `certificates/make.sh`). `certificates/java.txt` has Java's verdicts; its first line names the release. Every run compares our
//! own ends with them. A difference is a fault, or a section of `certificates/differences.txt` with the sentence of `docs/deviations.md`
//! that gives the reason. `certificates/messages.txt` has the message of each refusal. `UPDATE_EXPECT=1` writes both. With
//! `TEST_JAVA_LIVE=1` the JDK of this machine is asked too, and has to agree with the file if it is of that release; together with
//! `UPDATE_EXPECT=1` its answers are written.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod certificates {
    pub(crate) mod ends;
    pub(crate) mod known;
}

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use certificates::ends::{Case, own_store, verdict, verdict_without_key};
use certificates::known::{Difference, Known};
use expect_test::expect;
use mainstem_testkit::java;

/// A case, in the words of `cases.txt`.
type Verdicts = Vec<(String, String)>;

const ACCEPTED: &str = "accepted";

#[test]
fn certificates_are_judged_as_by_java() {
    let is_update = std::env::var("UPDATE_EXPECT").is_ok_and(|value| value == "1");
    if std::env::var_os("TEST_JAVA_LIVE").is_some() {
        ask_java(is_update);
    }
    let javas = parse(&read("java.txt"));
    let cases: Vec<String> = read("cases.txt").lines().map(str::to_owned).collect();
    assert!(javas.iter().map(|(case, _)| case).eq(&cases), "java.txt has an answer for each case");
    let ours: Verdicts = cases.iter().map(|case| (case.clone(), verdict(&Case::parse(case)))).collect();
    let refused = ours.iter().filter(|(_, said)| said != ACCEPTED);
    let messages: String = refused.map(|(case, said)| format!("{case}: {said}\n")).collect();
    let differing: BTreeMap<String, Difference> = javas
        .into_iter()
        .zip(ours)
        .filter(|((_, java), (_, ours))| (java == ACCEPTED) != (ours == ACCEPTED))
        .map(|((case, java), (_, ours))| (case, Difference { java, ours }))
        .collect();
    let known = Known::parse(&read("differences.txt"));
    if is_update {
        fs::write(file("messages.txt"), &messages).unwrap();
        fs::write(file("differences.txt"), known.updated(&differing)).unwrap();
    }
    assert_eq!(read("messages.txt"), messages, "the words of the refusals");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deviations.md");
    Known::parse(&read("differences.txt")).judge(&differing, &fs::read_to_string(page).unwrap());
}

/// Checks that each message is a sentence with advice, without debug output or a type name of the source.
#[test]
fn refusals_are_words() {
    let messages = read("messages.txt");
    for line in messages.lines() {
        let (_, said) = line.split_once(": ").unwrap();
        for dump in ["Other", "Error", "Context", "Some(", "DnsName(", "::", "{", "UNIX", "\""] {
            let is_address = dump == "::" && said.contains("::1");
            assert!(!said.contains(dump) || is_address, "{line} is no sentence: it has {dump:?}");
        }
        assert!(said.contains(": "), "{line} says what to do");
    }
    assert!(messages.lines().count() > 100, "there are refusals");
}

#[test]
fn who_has_not_the_key_of_a_certificate_is_refused() {
    let words = "the certificate CN=plain,O=Org is refused: the peer did not prove that it has its key: give the peer the key that \
                 belongs to it";
    for host in [None, Some("localhost")] {
        assert_eq!(verdict_without_key(host), words);
    }
}

#[test]
fn own_certificates_that_cannot_be_used() {
    let said = ["plain", "version-1", "rsa-1024", "ecdsa-secp256k1", "ed448", "rsa-pss-key"].map(own_store);
    expect![[r#"
        accepted
        the key kafka: its certificate cannot be used: it is of version 1 of X.509: have it issued as version 3, with extensions
        the key kafka: its certificate cannot be used: its RSA key has 1024 bits, at least 2048 are needed: have it issued again for a larger one
        the key kafka: its certificate cannot be used: its key is of the curve secp256k1, which is not supported: have it issued again for one of P-256, P-384 or P-521
        the key kafka: its certificate cannot be used: its key is of the kind Ed448, which is not supported: have it issued again for one of RSA, ECDSA or Ed25519
        the key kafka: its certificate cannot be used: its key is for RSA-PSS alone, which is not supported: have it issued again for a plain RSA key, which signs by RSA-PSS too"#]]
    .assert_eq(&said.join("\n"));
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap_or_default()
}

fn parse(text: &str) -> Verdicts {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    // An address has colons, and no blank behind them.
    lines.map(|line| line.split_once(": ").unwrap()).map(|(case, said)| (case.into(), said.into())).collect()
}

fn ask_java(is_update: bool) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates/Handshakes.java");
    let flags = ["-Duser.timezone=UTC", "-Duser.language=en", "-Dfile.encoding=UTF-8", "-Xmx256m"];
    let mut command = Command::new(java::program("java"));
    let output = command.args(flags).arg(program).arg(file("")).output().expect("a JDK is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    if is_update {
        fs::write(file("java.txt"), &said).unwrap();
    }
    let kept = read("java.txt");
    let (kept_by, said_by) = (kept.lines().next().unwrap(), said.lines().next().unwrap());
    if release(kept_by) != release(said_by) {
        // Past the capture of tests that pass.
        let _ = writeln!(std::io::stderr(), "skipped: java.txt is of {kept_by}, and here is {said_by}");
        return;
    }
    let (kept, said) = (parse(&kept), parse(&said));
    let differing: Vec<_> = said.iter().filter(|answer| !kept.contains(answer)).collect();
    assert!(differing.is_empty(), "{said_by} answers otherwise than java.txt says: {differing:#?}");
    assert_eq!(kept.len(), said.len(), "answers for the same cases");
}

/// The number of a release of Java, from a first line as `# OpenJDK 64-Bit Server VM 17.0.15+6, Debian`. Its updates should agree, and a
/// difference is worth knowing.
fn release(line: &str) -> &str {
    let version = line.split(' ').find(|word| word.contains('.')).expect("the line has a version");
    version.split('.').next().unwrap()
}
