//! Answers field by field, as Apache Kafka gives them: every served API in every version, with ordinary, empty,
//! repeated, unknown and failing contents.
//!
//! One recorder sends Kafka and Mainstem the same requests, which the table of schemas and `answers/contents.rs`
//! make. Kafka's answers are in `answers/kafka-4.3.0.txt`; every run compares ours with them. A difference is a
//! fault, or a section of `answers/differences.txt` with the sentence of `docs/deviations.md` that says why. With
//! `TEST_KAFKA_LIVE=1` Kafka is run too, and has to answer as in the file; only that needs its jars.
//! `UPDATE_EXPECT=1` writes differences.txt, and both together write both files.

mod configs;
mod contents;
mod settle;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::batch;
use mainstem_tests::kafka_node::{Home, NEWEST};
use mainstem_tests::tree::Schemas;
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::{ApiKey, Uuid};

use contents::{Contents, GROUP, Kind, TOPIC};

/// APIs that are served, and not asked.
const LEFT_OUT: [(ApiKey, &str); 4] = [
    (ApiKey::GetTelemetrySubscriptions, "Kafka serves it only with a plug-in that takes metrics"),
    (ApiKey::PushTelemetry, "as before"),
    (ApiKey::AddRaftVoter, "Kafka waits for a voter that is not there, for as long as the request says"),
    (ApiKey::RemoveRaftVoter, "the only voter would be gone"),
];

/// Settings of both brokers, beside the address of the one listener.
const SETTINGS: [(&str, &str); 4] = [
    ("auto.create.topics.enable", "false"),
    ("num.partitions", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("transaction.state.log.num.partitions", "4"),
];

/// The longest wait for an answer: no request here has to wait for anything.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Answers by request: `Fetch ordinary`, then a line for each range of versions with equal answers.
type Answers = BTreeMap<String, Vec<String>>;

#[test]
fn every_field_of_every_answer_is_as_in_kafka() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let is_live = std::env::var_os("TEST_KAFKA_LIVE").is_some();
    if update && is_live {
        fs::write(file("kafka-4.3.0.txt"), print(&kafkas().expect("Kafka is there"))).unwrap();
    }
    let expected = parse(&fs::read_to_string(file("kafka-4.3.0.txt")).unwrap());
    if is_live
        && !update
        && let Some(answers) = kafkas()
    {
        let differing: Vec<_> = differences(&expected, &answers).into_keys().collect();
        assert!(differing.is_empty(), "Kafka answers otherwise than the file says: {differing:?}");
    }
    let found = differences(&expected, &ours());
    let known = Known::read("differences.txt");
    if update {
        known.write_updated(&found);
    }
    Known::read("differences.txt").judge(&found);
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers").join(name)
}

fn ours() -> Answers {
    let mut setup = Setup::new("answers");
    for (key, value) in SETTINGS {
        setup = setup.set(key, value);
    }
    let mut broker = setup.start();
    let served: Vec<_> = broker.connect().api_versions().into_iter().map(|(api, _)| api).collect();
    for api in served.iter().map(|key| ApiKey::try_from(*key).unwrap()) {
        let is_asked = asked().any(|one| one == api) || LEFT_OUT.iter().any(|(one, _)| *one == api);
        assert!(is_asked, "nothing is asked of {}", api.name());
    }
    let answers = record(&broker.address());
    broker.assert_healthy();
    answers
}

fn kafkas() -> Option<Answers> {
    let home = Home::new("answers", &NEWEST)?;
    home.set(&SETTINGS.map(|(key, value)| (key, value.to_owned())));
    home.set(&[("log.dirs", home.path("one").display().to_string())]);
    home.format(&["--feature", "eligible.leader.replicas.version=0"]);
    let _kafka = home.start_kafka();
    Some(record(&home.bootstrap()))
}

/// The APIs that are asked, by Mainstem's table.
fn asked() -> impl Iterator<Item = ApiKey> {
    let file = include_str!("../answers/apis.txt");
    let named = file.lines().map(|name| ApiKey::ALL.iter().find(|api| api.name() == name));
    named.map(|api| *api.expect("the file names APIs"))
}

/// Sends all requests.
fn record(address: &str) -> Answers {
    let schemas = Schemas::new();
    let topic_id = prepare(&mut Client::connect(address).unwrap());
    let mut answers = Answers::new();
    for api in asked() {
        for kind in Kind::ALL {
            let mut by_text: Vec<(String, Vec<i16>)> = Vec::new();
            for version in api.versions() {
                let contents = Contents { api: api.name(), version, kind, topic_id };
                let text = ask(address, &schemas, api, &contents);
                match by_text.last_mut().filter(|(before, _)| *before == text) {
                    Some((_, versions)) => versions.push(version),
                    None => by_text.push((text, vec![version])),
                }
            }
            let lines = by_text.into_iter().map(|(text, versions)| {
                let (first, last) = (versions[0], versions[versions.len() - 1]);
                match first == last {
                    true => format!("v{first}: {text}"),
                    false => format!("v{first}-{last}: {text}"),
                }
            });
            answers.insert(format!("{} {}", api.name(), kind.name()), lines.collect());
        }
        if api == ApiKey::JoinGroup {
            wait_for_groups(&mut Client::connect(address).unwrap(), topic_id);
        }
    }
    answers
}

/// Waits until every group that JoinGroup began is listed. A new member gets its id before the record of its group is
/// written (KIP-394). The group is listed when that record is committed, in Kafka as here.
fn wait_for_groups(client: &mut Client, topic_id: Uuid) {
    let api = ApiKey::JoinGroup;
    let begun = [Kind::Ordinary, Kind::Repeated].into_iter().flat_map(|kind| {
        let contents = move |version| Contents { api: api.name(), version, kind, topic_id };
        api.versions().map(move |version| contents(version).new_group())
    });
    let begun: Vec<_> = begun.collect();
    eventually("the groups that were begun are listed", || {
        let listed = client.call(&ListGroupsRequest::default(), *ApiKey::ListGroups.versions().end());
        let is_listed = |id: &String| listed.groups.iter().any(|group| *group.group_id == **id);
        begun.iter().all(is_listed).then_some(())
    });
}

fn ask(address: &str, schemas: &Schemas, api: ApiKey, contents: &Contents) -> String {
    let (api_name, version) = (api.name(), contents.version);
    let body = schemas.write(&format!("{api_name}Request"), version, &|path| contents.say(path));
    let mut client = Client::connect(address).unwrap();
    client.set_read_timeout(TIMEOUT).unwrap();
    match client.ask_bytes(api, version, &body) {
        Ok(answer) => {
            let value = schemas.read(&format!("{api_name}Response"), version, &answer);
            let value = value.unwrap_or_else(|error| panic!("{api_name} v{version}: {error}"));
            settle::settled(api_name, value, contents.topic_id).to_string()
        }
        Err(error) => format!("closed: {:?}", error.kind()),
    }
}

/// Creates the resources of ordinary requests.
fn prepare(client: &mut Client) -> Uuid {
    let id = client.create_topic(TOPIC, 3, &[]).unwrap();
    for partition in 0..3 {
        eventually("a leader", || client.produce(TOPIC, partition, -1, &batch(&[b"a record"])).ok());
    }
    eventually("the group's coordinator", || client.find_coordinator(GROUP).ok());
    eventually("a commit", || client.commit(GROUP, TOPIC, 0, 1).ok());
    eventually("the transaction's coordinator", || {
        let coordinator_keys = vec!["x".into()];
        let request = FindCoordinatorRequest { key_type: 1, coordinator_keys, ..Default::default() };
        (client.call(&request, 6).coordinators[0].error_code == 0).then_some(())
    });
    eventually("a transactional id", || {
        let request = InitProducerIdRequest {
            transactional_id: Some("x".into()),
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        (client.call(&request, 4).error_code == 0).then_some(())
    });
    for version in ApiKey::DeleteTopics.versions() {
        for kind in [Kind::Ordinary, Kind::Repeated] {
            let name = format!("doomed-{version}-{}", kind.name());
            client.create_topic(&name, 1, &[]).unwrap();
        }
    }
    id
}

fn print(answers: &Answers) -> String {
    let mut text = String::new();
    for (name, lines) in answers {
        writeln!(text, "{name}").unwrap();
        lines.iter().for_each(|line| writeln!(text, "  {line}").unwrap());
    }
    text
}

fn parse(text: &str) -> Answers {
    let mut answers = Answers::new();
    let mut name = String::new();
    for line in text.lines() {
        match line.strip_prefix("  ") {
            Some(line) => answers.entry(name.clone()).or_default().push(line.to_owned()),
            None => line.clone_into(&mut name),
        }
    }
    answers
}

/// Differing answers: lines of the first that the second lacks, and the reverse.
fn differences(expected: &Answers, found: &Answers) -> Answers {
    let nothing = Vec::new();
    let mut differences = Answers::new();
    for name in expected.keys().chain(found.keys()) {
        let [kafka, ours] = [expected, found].map(|answers| answers.get(name).unwrap_or(&nothing));
        if kafka != ours {
            let kafkas = kafka.iter().filter(|line| !ours.contains(line)).map(|line| format!("kafka {line}"));
            let oursown =
                ours.iter().filter(|line| !kafka.contains(line)).map(|line| format!("ours  {line}"));
            differences.insert(name.clone(), kafkas.chain(oursown).collect());
        }
    }
    differences
}

/// The intended differences, each with sentences of `docs/deviations.md`.
struct Known {
    /// The file of the differences.
    file: &'static str,
    sections: Answers,
}

/// The prefix of a reason.
const WHY: &str = "why: ";

/// The text in place of a reason that is still to be found.
const UNKNOWN: &str = "?";

impl Known {
    fn read(name: &'static str) -> Known {
        Known { file: name, sections: parse(&fs::read_to_string(file(name)).unwrap_or_default()) }
    }

    /// Writes the file with these differences.
    fn write_updated(&self, found: &Answers) {
        fs::write(file(self.file), self.updated(found)).unwrap();
    }

    /// The reasons of a section, one for each kind of difference.
    fn reasons(&self, name: &str) -> impl Iterator<Item = &str> {
        self.sections.get(name).into_iter().flatten().filter_map(|line| line.strip_prefix(WHY))
    }

    /// The text of the file with these differences. Known reasons are kept.
    fn updated(&self, found: &Answers) -> String {
        let with_reason = found.iter().map(|(name, lines)| {
            let mut all: Vec<_> = self.reasons(name).map(|why| format!("{WHY}{why}")).collect();
            if all.is_empty() {
                all.push(format!("{WHY}{UNKNOWN}"));
            }
            all.extend(lines.iter().cloned());
            (name.clone(), all)
        });
        print(&with_reason.collect())
    }

    /// Asserts that every difference is known, that no known one is gone, and that the page has all reasons.
    fn judge(&self, found: &Answers) {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/deviations.md");
        let page = fs::read_to_string(page).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let mut said = String::new();
        for (name, lines) in found {
            let known = self.sections.get(name).into_iter().flatten().filter(|line| !line.starts_with(WHY));
            if !known.eq(lines.iter()) {
                writeln!(said, "{name} is answered otherwise than by Kafka:\n  {}", lines.join("\n  "))
                    .unwrap();
                continue;
            }
            if self.reasons(name).next().is_none() {
                writeln!(said, "{name}: {} does not say why", self.file).unwrap();
            }
            for why in self.reasons(name).filter(|why| *why == UNKNOWN || !page.contains(*why)) {
                writeln!(said, "{name}: docs/deviations.md does not say {why:?}").unwrap();
            }
        }
        for name in self.sections.keys().filter(|name| !found.contains_key(*name)) {
            writeln!(said, "{name} is answered as by Kafka now, and still in {}", self.file).unwrap();
        }
        assert!(said.is_empty(), "{said}");
    }
}
