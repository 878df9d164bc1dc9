//! The parts of an answer that are compared: all that a principal can learn from it, without values that differ in each run.
//!
//! Answers are parsed from their `{:?}` text, so that no API needs code of its own.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use mainstem_wire::{ErrorCode, Uuid};

use crate::permissions::names::{Ids, NO_TOPIC};

/// Fields that differ in each run, or that no rule affects.
const PASSED_OVER: &[&str] = &[
    "throttle_time_ms",
    "error_message",
    "batch_index_error_message",
    "message",
    "unknown_tagged_fields",
    "base_offset",
    "log_append_time_ms",
    "log_start_offset",
    "high_watermark",
    "last_stable_offset",
    "offset",
    "timestamp",
    "end_offset",
    "leader_epoch",
    "low_watermark",
    "committed_leader_epoch",
    "brokers",
    "nodes",
    "node_endpoints",
    "cluster_id",
    "controller_id",
    "leader_id",
    "replica_nodes",
    "isr_nodes",
    "current_leader",
    "snapshot_id",
    "diverging_epoch",
    "preferred_read_replica",
    "host",
    "port",
    "node_id",
    "eligible_leader_replicas",
    "last_known_elr",
    "record_errors",
    "session_id",
    "partition_index",
    "producer_id",
    "producer_epoch",
    "transaction_start_time_ms",
    "transaction_timeout_ms",
    "last_timestamp",
    "current_txn_start_offset",
    "coordinator_epoch",
    "last_sequence",
    "group_epoch",
    "assignment_epoch",
    "heartbeat_interval_ms",
    "log_dir",
    "partition_size",
    "offset_lag",
    "total_bytes",
    "usable_bytes",
    "push_interval_ms",
    "telemetry_max_bytes",
    "client_instance_id",
    "subscription_id",
    "accepted_compression_types",
    "delta_temporality",
    "generation_id",
];

/// Lists that are compared as "some" or none: their contents depend on the release.
const ONLY_WHETHER: &[&str] =
    &["configs", "api_keys", "supported_features", "finalized_features", "current_voters"];

/// Operations by the bits of `*_authorized_operations`.
const OPERATIONS: [&str; 16] = [
    "?",
    "Any",
    "All",
    "Read",
    "Write",
    "Create",
    "Delete",
    "Alter",
    "Describe",
    "ClusterAction",
    "DescribeConfigs",
    "AlterConfigs",
    "IdempotentWrite",
    "CreateTokens",
    "DescribeTokens",
    "TwoPhaseCommit",
];

const EVERY_OPERATION_OF_TOPICS: i32 = 0b1101_1111_1000;
const EVERY_OPERATION_OF_GROUPS: i32 = 0b1101_0100_1000;

#[derive(Debug)]
enum Value {
    Fields(Vec<(String, Value)>),
    List(Vec<Value>),
    Scalar(String),
}

/// An answer in one line. Lists are sorted by their elements, as Kafka walks hash tables.
pub(crate) fn essence(debug: &str, ids: &Ids) -> String {
    let mut reader = Reader { rest: debug.chars().peekable() };
    let value = reader.value();
    let essence = write(&value, ids);
    if essence.is_empty() { "ok".to_owned() } else { essence }
}

/// The text of a value; empty where it has nothing of interest.
fn write(value: &Value, ids: &Ids) -> String {
    match value {
        Value::Scalar(text) => scalar(text, ids),
        Value::List(values) => {
            let mut written: Vec<String> = values.iter().map(|value| write(value, ids)).collect();
            written.iter_mut().filter(|text| text.is_empty()).for_each(|text| "ok".clone_into(text));
            written.sort();
            written.join(" | ")
        }
        Value::Fields(fields) => {
            let written = fields.iter().filter_map(|(name, value)| field(name, value, ids));
            written.collect::<Vec<_>>().join(" ")
        }
    }
}

fn field(name: &str, value: &Value, ids: &Ids) -> Option<String> {
    if PASSED_OVER.contains(&name) {
        return None;
    }
    match value {
        Value::Scalar(text) if name.ends_with("error_code") => {
            let code: i16 = text.parse().unwrap();
            (code != 0).then(|| ErrorCode::from(code).name().to_owned())
        }
        Value::Scalar(text) if name.ends_with("authorized_operations") => {
            let bits: i32 = text.parse().unwrap();
            (bits != i32::MIN).then(|| format!("may({})", operations(bits)))
        }
        Value::List(values) if ONLY_WHETHER.contains(&name) => {
            (!values.is_empty()).then(|| format!("some {name}"))
        }
        Value::List(values) if values.is_empty() => None,
        Value::List(_) => Some(format!("{name}[{}]", write(value, ids))),
        Value::Fields(_) => Some(write(value, ids)).filter(|text| !text.is_empty()),
        Value::Scalar(_) => {
            let text = write(value, ids);
            let is_name = text.starts_with(['"', '#']);
            match text.as_str() {
                // Internal topics, and topics that are only validated.
                "" | "#another" => None,
                _ if is_name => Some(
                    text.strip_prefix('"')
                        .and_then(|text| text.strip_suffix('"'))
                        .unwrap_or(&text)
                        .to_owned(),
                ),
                _ => Some(format!("{name}={text}")),
            }
        }
    }
}

fn operations(bits: i32) -> String {
    match bits {
        EVERY_OPERATION_OF_TOPICS => return "all of a topic".to_owned(),
        EVERY_OPERATION_OF_GROUPS => return "all of a group".to_owned(),
        _ => {}
    }
    let named = OPERATIONS.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    named.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

/// The text of a scalar; defaults are left out.
fn scalar(text: &str, ids: &Ids) -> String {
    if let Some((name, _)) = ids.topics.iter().find(|(_, id)| id.to_string() == text) {
        return format!("#{name}");
    }
    if text.len() == 22 && text.parse::<Uuid>().is_ok_and(|id| !id.is_zero()) {
        return if text == NO_TOPIC.to_string() { "#none" } else { "#another" }.to_owned();
    }
    match text {
        "None" | "0" | "-1" | "false" | "\"\"" | "AAAAAAAAAAAAAAAAAAAAAA" => String::new(),
        _ if text.starts_with("Bytes(0 ") => String::new(),
        _ if text.starts_with("Bytes(") => "some".to_owned(),
        _ => text.to_owned(),
    }
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Reader<'_> {
    fn value(&mut self) -> Value {
        self.skip_space();
        match self.rest.peek() {
            Some('[') => Value::List(self.list()),
            Some('"') => Value::Scalar(self.quoted()),
            _ => self.named(),
        }
    }

    /// A number, a name, `Name { .. }`, `Some(..)`, or `Name(..)`.
    fn named(&mut self) -> Value {
        let mut name = String::new();
        while let Some(next) = self.rest.next_if(|next| !",]})([{ ".contains(*next)) {
            name.push(next);
        }
        self.skip_space();
        match self.rest.peek() {
            Some('{') => Value::Fields(self.fields()),
            Some('(') if name == "Some" => {
                self.rest.next();
                let inner = self.value();
                assert_eq!(self.rest.next(), Some(')'));
                inner
            }
            Some('(') => {
                let mut text = name;
                for next in self.rest.by_ref() {
                    text.push(next);
                    if next == ')' {
                        break;
                    }
                }
                Value::Scalar(text)
            }
            _ => Value::Scalar(name),
        }
    }

    fn list(&mut self) -> Vec<Value> {
        self.rest.next();
        let mut values = Vec::new();
        loop {
            self.skip_space();
            match self.rest.peek() {
                Some(']') => break,
                Some(',') => {
                    self.rest.next();
                }
                Some(_) => values.push(self.value()),
                None => panic!("a list has no end"),
            }
        }
        self.rest.next();
        values
    }

    fn fields(&mut self) -> Vec<(String, Value)> {
        self.rest.next();
        let mut fields = Vec::new();
        loop {
            self.skip_space();
            match self.rest.peek() {
                Some('}') => break,
                Some(',') => {
                    self.rest.next();
                }
                Some(_) => {
                    let mut name = String::new();
                    while let Some(next) = self.rest.next_if(|next| *next != ':') {
                        name.push(next);
                    }
                    self.rest.next();
                    fields.push((name, self.value()));
                }
                None => panic!("a structure has no end"),
            }
        }
        self.rest.next();
        fields
    }

    fn quoted(&mut self) -> String {
        let mut text = String::from('"');
        self.rest.next();
        while let Some(next) = self.rest.next() {
            text.push(next);
            match next {
                '\\' => text.extend(self.rest.next()),
                '"' => break,
                _ => {}
            }
        }
        text
    }

    fn skip_space(&mut self) {
        while self.rest.next_if(|next| next.is_whitespace()).is_some() {}
    }
}

#[test]
fn an_answer_is_read_as_it_is_printed() {
    let debug = r#"R { throttle_time_ms: 7, error_code: 29, topics: [T { name: Some("a, \"b\""), ids: [3, 1] }, T { name: None, ids: [] }], records: Some(Bytes(3 bytes)), topic_authorized_operations: 264 }"#;
    let mut text = String::new();
    write!(text, "{}", essence(debug, &Ids::default())).unwrap();
    assert_eq!(
        text,
        r#"TOPIC_AUTHORIZATION_FAILED topics[a, \"b\" ids[1 | 3] | ok] records=some may(Read+Describe)"#
    );
}
