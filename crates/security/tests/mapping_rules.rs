//! `ssl.principal.mapping.rules` compared with Kafka's own SslPrincipalMapper: random rules and names, made from a seed.
//!
//! `mapping_rules/java_answers.txt` has pairs with the answers of Kafka 4.3.0 on Java 17: rules, subject and answer, with tabs
//! between them. With a JDK and Kafka's jars (`MAINSTEM_KAFKA_JARS`, or `target/interop/kafka-4.3.0/lib`) new pairs are made
//! and compared in each run; `TEST_SEED` makes those of a run again, and `UPDATE_EXPECT=1` writes the file again. Without
//! them the test says that it is skipped; under `CI=true` it fails.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod mapping_rules {
    pub(crate) mod generator;
}

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use mainstem_security::mapping::PrincipalMapping;
use mainstem_testkit::java::KafkaJars;

use mapping_rules::generator::{Generator, Pair};

/// Pairs of the file.
const FIXED: usize = 2500;
/// Pairs of the file whose rules only Kafka accepts.
const FIXED_REFUSED_HERE: usize = 480;
/// The seed that they are made from.
const FIXED_SEED: u64 = 1;
/// Pairs that are compared beside the file.
const RANDOM: u32 = 5000;

/// In the form of the file.
fn answer(pair: &Pair) -> String {
    match PrincipalMapping::parse(&pair.rules) {
        Err(_) => "refused".to_owned(),
        Ok(mapping) => mapping.name(&pair.subject).map_or("none".to_owned(), |name| format!("={name}")),
    }
}

/// Checks that our answers are Kafka's, except for a few rules that are refused here. Only Java's patterns have their features, or Java
/// notices a replacement that it cannot make only when a name matches. Returns how many those are.
fn compare(pairs: &[Pair], kafkas: &[String], whence: &str) -> usize {
    assert_eq!(pairs.len(), kafkas.len(), "{whence}: an answer for each pair");
    let (mut named, mut refused_here) = (0, 0);
    for (pair, kafkas) in pairs.iter().zip(kafkas) {
        let ours = answer(pair);
        if ours == "refused" && kafkas != "refused" {
            refused_here += 1;
            continue;
        }
        assert_eq!(&ours, kafkas, "{whence}: {:?} of {:?}: ours, and Kafka's", pair.rules, pair.subject);
        named += usize::from(ours.starts_with('='));
    }
    let count = pairs.len();
    eprintln!("{whence}: {count} pairs, {named} names, {refused_here} refused here alone");
    // About a half have a name and a fifth are refused. In the smallest sample, of 1250 pairs, each bound is five standard
    // deviations away from that or more.
    assert!(named * 3 > count, "{whence}: of {count} pairs {named} have a name");
    assert!(refused_here * 4 < count, "{whence}: of {count} pairs {refused_here} are refused here alone");
    refused_here
}

#[test]
fn names_are_those_of_kafka() {
    let text = include_str!("mapping_rules/java_answers.txt");
    let (mut pairs, mut answers) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let [rules, subject, answer] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?} has three parts")
        };
        pairs.push(Pair { rules: rules.to_owned(), subject: subject.to_owned() });
        answers.push(answer.to_owned());
    }
    assert_eq!(pairs.len(), FIXED);
    assert_eq!(compare(&pairs, &answers, "java_answers.txt"), FIXED_REFUSED_HERE);
}

#[test]
fn random_names_are_those_of_kafka() {
    let Some(jars) = KafkaJars::or_skip(KafkaJars::NEWEST, "random_names_are_those_of_kafka") else { return };
    if std::env::var("UPDATE_EXPECT").is_ok_and(|value| value == "1") {
        return write_file(&jars);
    }
    let seed = mainstem_testkit::seed();
    let pairs = Generator::new(seed).pairs(mainstem_testkit::cases(RANDOM) as usize);
    compare(&pairs, &ask_kafka(&jars, &pairs), &format!("TEST_SEED={seed}"));
}

fn write_file(jars: &KafkaJars) {
    let pairs = Generator::new(FIXED_SEED).pairs(FIXED);
    let answers = ask_kafka(jars, &pairs);
    let lines = pairs.iter().zip(&answers);
    let text: String =
        lines.map(|(pair, answer)| format!("{}\t{}\t{answer}\n", pair.rules, pair.subject)).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mapping_rules/java_answers.txt");
    std::fs::write(file, text).unwrap();
}

/// An answer of Kafka for each pair.
fn ask_kafka(jars: &KafkaJars, pairs: &[Pair]) -> Vec<String> {
    let mut process = jars
        .program(&workspace().join("tests/mapping-rules/MapNames.java"), 256)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("java runs");
    let lines: String = pairs.iter().map(|Pair { rules, subject }| format!("{rules}\t{subject}\n")).collect();
    let mut input = process.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap().expect("Kafka's mapper reads all pairs");
    assert!(output.status.success(), "Kafka's mapper fails: {}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("a crate is two levels below the workspace")
}
