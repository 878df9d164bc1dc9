//! The codec against Kafka's own generated classes: random messages of every version, made on either side, are read
//! and written by the other, with equal bytes.
//!
//! It needs a JDK and Kafka's jars: in the folder that `MAINSTEM_KAFKA_JARS` names, or in
//! `target/interop/kafka-4.3.0/lib`. Without them the tests print that they are skipped; under `CI=true` they fail.

use std::collections::BTreeMap;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use mainstem_testkit::java::KafkaJars;
use mainstem_wire::catalogue::{MESSAGES, MessageInfo, MessageKind};
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::sample::{Rng, Sampler};
use mainstem_wire::{ApiKey, ErrorCode};

const SAMPLES_PER_VERSION: u64 = 40;

#[test]
fn kafka_reads_and_writes_what_is_made_here() {
    let Some(peer) = Peer::start() else { return };
    let sampler = Sampler::new();
    let mut questions = Vec::new();
    for_each_sample(|message, version, seed| {
        let bytes = sampler.message(message.name, version, &mut Rng(seed));
        questions.push(Question::new('E', message, version, &bytes));
    });
    peer.ask(questions, |question, answer| assert_eq!(answer, Ok(question.operand.clone()), "{question:?}"));
}

#[test]
fn what_kafka_makes_is_read_and_written_here() {
    let Some(peer) = Peer::start() else { return };
    let mut questions = Vec::new();
    for_each_sample(|message, version, seed| {
        questions.push(Question::new('G', message, version, &seed.to_be_bytes()));
    });
    peer.ask(questions, |question, answer| {
        let bytes = answer.unwrap_or_else(|error| panic!("{question:?}: {error}"));
        assert_eq!(question.message.reencode(&bytes, question.version), Ok(bytes), "{question:?}");
    });
}

/// Messages that are written in another version than they were read in: fields that the version lacks are dropped or refused, as in
/// Kafka.
#[test]
fn versions_drop_and_refuse_fields_as_kafka_does() {
    let Some(peer) = Peer::start() else { return };
    let sampler = Sampler::new();
    let mut questions = Vec::new();
    for_each_sample(|message, version, seed| {
        let mut rng = Rng(seed);
        let to = message.oldest + rng.below((message.newest - message.oldest + 1) as u64) as i16;
        let bytes = sampler.message(message.name, version, &mut rng);
        questions.push(Question::new('C', message, version, &[&to.to_be_bytes(), &bytes[..]].concat()));
    });
    peer.ask(questions, |question, answer| {
        let (to, bytes) = question.operand.split_first_chunk::<2>().unwrap();
        let mut ours = Vec::new();
        let outcome = (question.message.recode)(bytes, question.version, i16::from_be_bytes(*to), &mut ours);
        match (answer, outcome) {
            (Ok(theirs), Ok(())) => assert_eq!(ours, theirs, "{question:?}"),
            (Err(_), Err(_)) => {}
            (theirs, ours) => panic!("{question:?}: Kafka says {theirs:?}, we {ours:?}"),
        }
    });
}

#[test]
fn a_message_in_which_nothing_is_set_is_the_same() {
    let Some(peer) = Peer::start() else { return };
    let mut questions = Vec::new();
    for message in MESSAGES {
        for version in message.oldest..=message.newest {
            questions.push(Question::new('D', message, version, &[]));
        }
    }
    peer.ask(questions, |question, answer| {
        let mut ours = Vec::new();
        let outcome = (question.message.encode_default)(question.version, &mut ours);
        match (answer, outcome) {
            (Ok(theirs), Ok(())) => assert_eq!(ours, theirs, "{question:?}"),
            (Err(_), Err(_)) => {}
            (theirs, ours) => panic!("{question:?}: Kafka says {theirs:?}, we {ours:?}"),
        }
    });
}

/// The prefix of coordinator records and of the consumer protocol, and the frame of metadata records.
#[test]
fn prefixes_and_frames_are_the_same() {
    let Some(peer) = Peer::start() else { return };
    let sampler = Sampler::new();
    let mut questions = Vec::new();
    for_each_sample(|message, version, seed| {
        let bytes = sampler.message(message.name, version, &mut Rng(seed));
        if !matches!(message.kind, MessageKind::Request | MessageKind::Response | MessageKind::Header) {
            questions.push(Question::new('P', message, version, &bytes));
        }
    });
    peer.ask(questions, |question, answer| {
        let theirs = answer.unwrap_or_else(|error| panic!("{question:?}: {error}"));
        if question.message.kind == MessageKind::Metadata {
            let (record, version) = MetadataRecord::decode(&theirs).unwrap();
            assert_eq!((record.name(), version), (question.message.name, question.version));
            let mut ours = Vec::new();
            record.encode(&mut ours, version).unwrap();
            return assert_eq!(ours, theirs, "{question:?}");
        }
        let prefix = match question.message.kind {
            MessageKind::CoordinatorKey => question.message.key.unwrap(),
            _ => question.version,
        };
        assert_eq!([&prefix.to_be_bytes(), &question.operand[..]].concat(), theirs, "{question:?}");
    });
}

#[test]
fn apis_versions_and_error_codes_are_the_same() {
    let Some(peer) = Peer::start() else { return };
    let question = Question::new('F', &MESSAGES[0], 0, &[]);
    peer.ask(vec![question], |_, answer| {
        let theirs = String::from_utf8(answer.unwrap()).unwrap();
        assert_eq!(facts(), theirs.replace('\r', ""));
    });
}

/// The same lines as the peer writes.
fn facts() -> String {
    let mut facts = String::new();
    for key in ApiKey::ALL {
        let (versions, advertised) = (key.versions(), key.advertised_versions());
        facts += &format!(
            "api {} {} {}-{} advertised {}-{} headers",
            key.key(),
            key.name(),
            versions.start(),
            versions.end(),
            advertised.start(),
            advertised.end()
        );
        for version in versions {
            facts +=
                &format!(" {}/{}", key.request_header_version(version), key.response_header_version(version));
        }
        facts.push('\n');
    }
    for error in ErrorCode::ALL {
        facts += &format!("error {} {} {}\n", error.code(), error.name(), error.is_retriable());
    }
    facts
}

fn for_each_sample(mut body: impl FnMut(&'static MessageInfo, i16, u64)) {
    for message in MESSAGES {
        for version in message.oldest..=message.newest {
            (0..SAMPLES_PER_VERSION).for_each(|seed| body(message, version, seed));
        }
    }
}

/// A task for the peer.
struct Question {
    operation: char,
    message: &'static MessageInfo,
    version: i16,
    operand: Vec<u8>,
}

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} version {} {:02x?}", self.operation, self.message.name, self.version, self.operand)
    }
}

impl Question {
    fn new(operation: char, message: &'static MessageInfo, version: i16, operand: &[u8]) -> Self {
        Question { operation, message, version, operand: operand.to_vec() }
    }

    fn write_to(&self, out: &mut impl Write) -> std::io::Result<()> {
        let name = self.message.name.as_bytes();
        let len = 1 + 2 + name.len() + 2 + self.operand.len();
        out.write_all(&(len as u32).to_be_bytes())?;
        out.write_all(&[self.operation as u8])?;
        out.write_all(&(name.len() as u16).to_be_bytes())?;
        out.write_all(name)?;
        out.write_all(&self.version.to_be_bytes())?;
        out.write_all(&self.operand)
    }
}

/// The JVM.
struct Peer {
    process: Child,
}

impl Peer {
    /// Starts the JVM; none where it cannot run, which is printed. Under `CI=true` that is a failure.
    fn start() -> Option<Peer> {
        let jars = KafkaJars::or_skip(KafkaJars::NEWEST, "codec_differential")?;
        let mut peer = jars.program(&workspace_root().join("tests/codec-differential/CodecPeer.java"), 256);
        let process = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("java runs");
        Some(Peer { process })
    }

    /// Writes all questions while it reads the answers, and checks each answer.
    fn ask(mut self, questions: Vec<Question>, mut check: impl FnMut(&Question, Result<Vec<u8>, String>)) {
        let mut input = BufWriter::new(self.process.stdin.take().expect("stdin is piped"));
        let mut output = BufReader::new(self.process.stdout.take().expect("stdout is piped"));
        let unblock = KillOnPanic(&mut self.process);
        std::thread::scope(|scope| {
            let questions = &questions;
            // A failed write means that the peer has ended, which the missing answer shows.
            scope.spawn(move || questions.iter().try_for_each(|question| question.write_to(&mut input)));
            // It is dropped before the scope joins the writer. Otherwise a peer whose output is not read would block that for ever.
            let _unblock = unblock;
            for question in questions {
                check(question, read_answer(&mut output));
            }
        });
        assert!(self.process.wait().expect("the peer can be waited for").success());
    }
}

struct KillOnPanic<'p>(&'p mut Child);

impl Drop for KillOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.kill();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read_answer(output: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut len = [0; 4];
    output.read_exact(&mut len).expect("the peer answers every question");
    let mut answer = vec![0; u32::from_be_bytes(len) as usize];
    output.read_exact(&mut answer).expect("the peer answers in full");
    match answer.split_first() {
        Some((0, bytes)) => Ok(bytes.to_vec()),
        Some((_, text)) => Err(String::from_utf8_lossy(text).into_owned()),
        None => panic!("an empty answer"),
    }
}

fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests sit in the workspace")
}

/// The table has no two messages with the same name, so that the peer finds the right one.
#[test]
fn names_are_unique() {
    let mut seen = BTreeMap::new();
    for message in MESSAGES {
        assert!(seen.insert(message.name, ()).is_none(), "{} is there twice", message.name);
    }
}
