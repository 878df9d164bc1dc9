//! The commands of a transcript: one a line, `verb LABEL word...`, read into requests.

use std::collections::HashMap;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;

use crate::transactions::Request;

/// The words of a command: `key=value` pairs, and the rest in order.
pub(super) struct Words<'s> {
    pub(super) verb: &'s str,
    pub(super) label: &'s str,
    pairs: HashMap<&'s str, &'s str>,
    pub(super) rest: Vec<&'s str>,
}

impl<'s> Words<'s> {
    pub(super) fn parse(line: &'s str) -> Self {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a command has a verb");
        let label = words.next().unwrap_or_default();
        let (mut pairs, mut rest) = (HashMap::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some((key, value)) => {
                    pairs.insert(key, value);
                }
                None => rest.push(word),
            }
        }
        Self { verb, label, pairs, rest }
    }

    pub(super) fn text(&self, key: &str, default: &'s str) -> &'s str {
        self.pairs.get(key).copied().unwrap_or(default)
    }

    pub(super) fn option(&self, key: &str) -> Option<&'s str> {
        self.pairs.get(key).copied()
    }

    pub(super) fn number<N: std::str::FromStr>(&self, key: &str, default: N) -> N {
        self.option(key).map_or(default, |text| text.parse().ok().expect("a number"))
    }

    fn has(&self, word: &str) -> bool {
        self.rest.contains(&word)
    }

    fn list(&self, key: &str) -> Vec<&'s str> {
        self.option(key).map(|list| list.split(',').collect()).unwrap_or_default()
    }

    /// `id=t`; the transactional id of most commands.
    fn id(&self) -> String {
        self.text("id", "t").to_owned()
    }
}

/// The request of a command, and the version that it is sent in unless the command says another.
pub(super) fn request(words: &Words<'_>) -> (i16, Request<'static>) {
    let (version, request) = match words.verb {
        "init" => (5, init(words)),
        "add" => (5, Request::AddPartitions(add(words))),
        "offsets" => (4, Request::AddOffsets(offsets(words))),
        "end" => (5, Request::EndTxn(end(words))),
        "describe" => (0, Request::DescribeTransactions(describe(words))),
        "list" => (2, Request::ListTransactions(list(words))),
        other => panic!("no command is called {other}"),
    };
    (words.number("v", version), request)
}

/// `id=t timeout=60000 pid=N epoch=N 2pc keep`, or `idempotent` in place of the transactional id.
fn init(words: &Words<'_>) -> Request<'static> {
    let request = InitProducerIdRequest {
        transactional_id: (!words.has("idempotent")).then(|| words.id().into()),
        transaction_timeout_ms: words.number("timeout", 60_000),
        producer_id: words.number("pid", -1),
        producer_epoch: words.number("epoch", -1),
        ..Default::default()
    };
    Request::InitProducerId { request, enable_2pc: words.has("2pc"), keep_prepared_txn: words.has("keep") }
}

/// `id=t pid=1000 epoch=0 verify t-0 t-1`
pub(super) fn add(words: &Words<'_>) -> AddPartitionsToTxnTransaction<'static> {
    let partitions = words.rest.iter().filter_map(|word| word.rsplit_once('-'));
    let topic = |(topic, partition): (&str, &str)| AddPartitionsToTxnTopic {
        name: topic.to_owned().into(),
        partitions: vec![partition.parse().expect("a partition")],
        ..Default::default()
    };
    AddPartitionsToTxnTransaction {
        transactional_id: words.id().into(),
        producer_id: words.number("pid", 1_000),
        producer_epoch: words.number("epoch", 0),
        verify_only: words.has("verify"),
        topics: partitions.map(topic).collect(),
        ..Default::default()
    }
}

/// `id=t pid=1000 epoch=0 g=group`
fn offsets(words: &Words<'_>) -> AddOffsetsToTxnRequest<'static> {
    AddOffsetsToTxnRequest {
        transactional_id: words.id().into(),
        producer_id: words.number("pid", 1_000),
        producer_epoch: words.number("epoch", 0),
        group_id: words.text("g", "g").to_owned().into(),
        ..Default::default()
    }
}

/// `commit` or `abort`, and `id=t pid=1000 epoch=0`
fn end(words: &Words<'_>) -> EndTxnRequest<'static> {
    assert!(words.has("commit") != words.has("abort"), "a transaction ends in one way");
    EndTxnRequest {
        transactional_id: words.id().into(),
        producer_id: words.number("pid", 1_000),
        producer_epoch: words.number("epoch", 0),
        committed: words.has("commit"),
        ..Default::default()
    }
}

/// `ids=t,u`
fn describe(words: &Words<'_>) -> DescribeTransactionsRequest<'static> {
    let ids = words.option("ids").unwrap_or("t").split(',');
    DescribeTransactionsRequest {
        transactional_ids: ids.map(|id| id.to_owned().into()).collect(),
        ..Default::default()
    }
}

/// `states=Ongoing,Empty pids=1000 duration=MS pattern=P`
fn list(words: &Words<'_>) -> ListTransactionsRequest<'static> {
    let producers = words.list("pids").into_iter().map(|id| id.parse().expect("a producer id"));
    ListTransactionsRequest {
        state_filters: words.list("states").into_iter().map(|state| state.to_owned().into()).collect(),
        producer_id_filters: producers.collect(),
        duration_filter: words.number("duration", -1),
        transactional_id_pattern: words.option("pattern").map(|pattern| pattern.to_owned().into()),
        ..Default::default()
    }
}

/// An error by its name.
pub(super) fn error(name: &str) -> ErrorCode {
    *ErrorCode::ALL.iter().find(|error| error.name() == name).expect("an error of Kafka's")
}
