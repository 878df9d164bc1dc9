//! Authorization as Apache Kafka has it: every served API, asked by one principal for each operation that a rule can
//! allow or deny alone, and by some for each shape of a rule.
//!
//! One program sends Kafka and Mainstem the same requests. Kafka's answers are in `permissions/kafka-4.3.0.txt`,
//! where a change of them can be read; every run compares ours with that file. With `TEST_KAFKA_LIVE=1` Kafka is run
//! too, and has to answer as in the file; `UPDATE_EXPECT=1` writes the file from Kafka.

mod answers;
mod names;
mod principals;
mod probes;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_tests::kafka_node::{Home, NEWEST};
use mainstem_tests::wait::eventually;

use principals::{PASSWORD, Principal, ROOT};

/// Settings of both brokers, beside the address of the one listener.
fn settings(lenient: bool) -> Vec<(&'static str, String)> {
    vec![
        ("listener.security.protocol.map", "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned()),
        ("sasl.enabled.mechanisms", "PLAIN".to_owned()),
        ("listener.name.plaintext.plain.sasl.jaas.config", principals::jaas()),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
        ("super.users", format!("User:{ROOT};User:ANONYMOUS")),
        ("allow.everyone.if.no.acl.found", lenient.to_string()),
        // A topic cannot be created by being named. So principals that may create it get another answer, and nothing changes.
        ("default.replication.factor", "3".to_owned()),
        ("num.partitions", "1".to_owned()),
        ("transaction.state.log.num.partitions", "4".to_owned()),
    ]
}

#[test]
fn rules_decide_as_in_kafka() {
    compare(false);
}

/// The same with `allow.everyone.if.no.acl.found`.
#[test]
fn rules_decide_as_in_kafka_where_what_no_rule_concerns_is_allowed() {
    compare(true);
}

fn compare(lenient: bool) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let answers = kafkas(lenient).expect("Kafka is there");
        std::fs::write(golden(lenient), answers).unwrap();
    }
    let expected = std::fs::read_to_string(golden(lenient)).unwrap();
    if std::env::var_os("TEST_KAFKA_LIVE").is_some()
        && let Some(answers) = kafkas(lenient)
    {
        assert_same(&answers, &expected, "Kafka");
    }
    assert_same(&ours(lenient), &expected, "Mainstem");
}

fn golden(lenient: bool) -> PathBuf {
    let name = if lenient { "kafka-4.3.0-lenient.txt" } else { "kafka-4.3.0.txt" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/permissions").join(name)
}

fn ours(lenient: bool) -> String {
    let mut setup = Setup::new("permissions");
    for (key, value) in settings(lenient) {
        setup = setup.set(key, value);
    }
    let mut broker = setup.start();
    let table = table(&broker.address(), lenient);
    broker.assert_healthy();
    table
}

fn kafkas(lenient: bool) -> Option<String> {
    let home = Home::new("permissions", &NEWEST)?;
    home.set(&[("sasl.mechanism.inter.broker.protocol", "PLAIN".to_owned())]);
    home.set(&settings(lenient));
    // The directories are set by `format` in Kafka, and not compared.
    home.set(&[("log.dirs", home.path("one").display().to_string())]);
    home.format(&["--feature", "eligible.leader.replicas.version=0"]);
    let _kafka = home.start_kafka();
    Some(table(&home.bootstrap(), lenient))
}

/// The answers to every principal for every probe: each answer with the principals that get it.
fn table(address: &str, lenient: bool) -> String {
    let principals = if lenient { principals::of_few_rules() } else { principals::all() };
    let mut root = log_in(address, ROOT);
    let ids = names::create_all(&mut root);
    principals::create_rules(&mut root, &principals);
    let mut clients: Vec<Client> =
        principals.iter().map(|principal| log_in(address, &principal.user)).collect();
    let mut table = String::new();
    for probe in probes::all(&ids) {
        probes::ensure_doomed_groups(&mut root);
        let mut by_answer: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (principal, client) in principals.iter().zip(&mut clients) {
            (probe.before)(&mut root);
            let answer = match (probe.ask)(client) {
                Ok(answer) => answers::essence(&answer, &ids),
                Err(error) => {
                    *client = log_in(address, &principal.user);
                    format!("closed: {:?}", error.kind())
                }
            };
            by_answer.entry(answer).or_default().push(&principal.name);
        }
        writeln!(table, "{}", probe.name).unwrap();
        write_answers(&mut table, &by_answer);
    }
    table
}

/// The most frequent answer is that of all others.
fn write_answers(table: &mut String, by_answer: &BTreeMap<String, Vec<&str>>) {
    let most = by_answer.iter().max_by_key(|(_, who)| who.len()).map(|(answer, _)| answer);
    for (answer, who) in by_answer {
        let who = if Some(answer) == most { "all others".to_owned() } else { principals::summary(who) };
        writeln!(table, "  {who}\n    {answer}").unwrap();
    }
}

/// Connects as a user, and tries again while the broker does not know the user yet.
fn log_in(address: &str, user: &str) -> Client {
    eventually("a login", || {
        let mut client = Client::connect(address).ok()?;
        client.log_in(user, PASSWORD).ok()?;
        Some(client)
    })
}

/// Shows each probe that differs.
fn assert_same(found: &str, expected: &str, who: &str) {
    if found == expected {
        return;
    }
    let (found, expected) = (sections(found), sections(expected));
    let mut said = String::new();
    for name in expected.keys().chain(found.keys().filter(|name| !expected.contains_key(*name))) {
        let (found, expected) = (found.get(name), expected.get(name));
        if found != expected {
            let [found, expected] = [found, expected].map(|text| text.map_or("  nothing\n", String::as_str));
            write!(said, "{name}\n{who} says\n{found}the file says\n{expected}").unwrap();
        }
    }
    panic!("{who} answers otherwise than Kafka did:\n{said}");
}

/// The lines of each probe.
fn sections(table: &str) -> BTreeMap<&str, String> {
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    let mut name = "";
    for line in table.lines() {
        if line.starts_with(' ') {
            *sections.entry(name).or_default() += &format!("{line}\n");
        } else {
            name = line;
        }
    }
    sections
}

/// Every served API is asked, or listed with the reason why not.
#[test]
fn every_served_api_is_in_the_table() {
    let mut asked: Vec<i16> = probes::all(&names::Ids::default()).iter().map(|probe| probe.api).collect();
    asked.extend(probes::LEFT_OUT.iter().map(|(api, _why)| api.key()));
    let broker = Setup::new("permissions-apis").start();
    for (api, _) in broker.connect().api_versions() {
        assert!(asked.contains(&api), "no principal asks API {api}");
    }
}

impl Principal {
    fn new(name: String, rules: Vec<principals::Rule>) -> Principal {
        Principal { user: String::new(), name, rules }
    }
}
