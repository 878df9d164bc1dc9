//! Transcripts: the input is commands, the output the same commands with the coordinator's effects below each.
//!
//! Beside requests there are `wait MS` (time passes; each deadline fires at its time), `wall MS` (only the wall clock jumps), `hold`
//! (appends wait from now on) with `ok N` and `fail N ERROR`, `hold-markers` with `mark N t-0`, `mark N t-0 Gone` and `mark N t-0 ERROR`,
//! `hold-ids` with `id N` and `no-id N ERROR`, `go` (nothing waits any more), `crash N` (the coordinator dies, and another one takes over
//! from the log, in which the oldest N appends that waited are), `reload`, `unload`, `begin-load` and `version N` (the feature
//! `transaction.version`).

use std::collections::HashMap;
use std::fmt::Write as _;

use expect_test::Expect;
use mainstem_records::{LeaderEpoch, ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_partitions_to_txn_response::AddPartitionsToTxnResult;
use mainstem_wire::messages::describe_transactions_response::TransactionState;
use mainstem_wire::messages::list_transactions_response::ListTransactionsResponse;

use super::cluster::{Cluster, Marker, PARTITION, WALL_MS};
use super::script::{self, Words};
use crate::transactions::image::{Image, Partitions};
use crate::transactions::records::{self, Record};
use crate::transactions::state::State;
use crate::transactions::{
    CoordinatorRecord, Effect, MarkerOutcome, MarkerTicket, Markers, ProducerIdTicket, Reply, Ticket, Token,
    TransactionConfig, TransactionCoordinator,
};

/// Runs a script and compares the transcript.
#[track_caller]
pub(super) fn check(script: &str, expect: Expect) {
    check_with(TransactionConfig::default(), script, expect);
}

/// The same under another configuration.
#[track_caller]
pub(super) fn check_with(config: TransactionConfig, script: &str, expect: Expect) {
    check_after(config, Vec::new(), script, expect);
}

/// The same after these records.
#[track_caller]
pub(super) fn check_after(
    config: TransactionConfig,
    log: Vec<CoordinatorRecord>,
    script: &str,
    expect: Expect,
) {
    expect.assert_eq(&play(config, log, script).out);
}

/// A coordinator after a script.
pub(in crate::transactions) fn played(script: &str) -> TransactionCoordinator {
    play(TransactionConfig::default(), Vec::new(), script).cluster.coordinator
}

fn play(config: TransactionConfig, log: Vec<CoordinatorRecord>, script: &str) -> Player {
    let mut player = Player {
        cluster: Cluster::new(config, log),
        labels: HashMap::new(),
        holds: Holds::default(),
        out: String::new(),
    };
    player.settle();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        player.line(line);
    }
    player
}

/// A record that is in the log before the script begins. If it has partitions, its transaction began at the start of the wall clock, with a
/// time-out of a minute.
pub(super) fn stored(id: &str, state: State, producer: (i64, i16), partitions: &[&str]) -> CoordinatorRecord {
    let mut image = Image {
        producer_id: ProducerId::new(producer.0),
        previous_producer_id: ProducerId::new(producer.0),
        producer_epoch: ProducerEpoch::new(producer.1),
        timeout_ms: 60_000,
        state,
        updated_ms: WALL_MS,
        ..Image::unwritten()
    };
    for (topic, index) in partitions.iter().filter_map(|partition| partition.rsplit_once('-')) {
        let indexes = image.partitions.entry(topic.into()).or_default();
        indexes.insert(index.parse().expect("a partition"));
        image.started_ms = WALL_MS;
    }
    records::image(id, &image, 1)
}

/// The kinds of work that wait for commands.
#[derive(Default)]
struct Holds {
    appends: bool,
    markers: bool,
    ids: bool,
}

struct Player {
    cluster: Cluster,
    labels: HashMap<Token, String>,
    holds: Holds,
    out: String,
}

impl Player {
    /// Plays a line. `~` before it keeps it out of the transcript, `#` makes it a remark.
    fn line(&mut self, line: &str) {
        let before = self.out.len();
        let command = line.strip_prefix('~');
        writeln!(self.out, "> {line}").expect("a string takes everything");
        if !line.starts_with('#') {
            self.play(&Words::parse(command.unwrap_or(line)));
            self.settle();
            self.cluster.coordinator.check();
        }
        if command.is_some() {
            self.out.truncate(before);
        }
    }

    fn play(&mut self, words: &Words<'_>) {
        let arg = words.label;
        let now = self.cluster.now;
        match words.verb {
            "wait" => self.wait(arg.parse().expect("milliseconds")),
            "wall" => self.cluster.now.wall_ms += arg.parse::<i64>().expect("milliseconds"),
            "hold" => self.holds.appends = true,
            "hold-markers" => self.holds.markers = true,
            "hold-ids" => self.holds.ids = true,
            "go" => self.holds = Holds::default(),
            "ok" => self.cluster.finish(ticket(arg), Ok(())),
            "fail" => self.cluster.finish(ticket(arg), Err(script::error(words.rest[0]))),
            "mark" => self.mark(words),
            "id" => self.cluster.give_id(ProducerIdTicket(number(arg)), Ok(())),
            "no-id" => {
                let error = script::error(words.rest[0]);
                self.cluster.give_id(ProducerIdTicket(number(arg)), Err(error));
            }
            "crash" => self.cluster.crash(arg.parse().expect("a number of appends")),
            "reload" => {
                for effect in self.cluster.resign() {
                    self.write(&effect);
                }
            }
            "unload" => self.cluster.coordinator.unload(now, PARTITION),
            "begin-load" => drop(self.cluster.coordinator.begin_load(PARTITION, LeaderEpoch::new(1))),
            "version" => {
                let level = arg.parse().expect("a level");
                self.cluster.config.transaction_version = level;
                self.cluster.coordinator.set_transaction_version(level);
            }
            _ => {
                let (version, request) = script::request(words);
                let token = self.cluster.send(version, request);
                self.labels.insert(token, words.label.to_owned());
            }
        }
    }

    fn mark(&mut self, words: &Words<'_>) {
        let (topic, partition) = words.rest[0].rsplit_once('-').expect("topic-partition");
        let outcome = match words.rest.get(1) {
            None => MarkerOutcome::Written,
            Some(&"Gone") => MarkerOutcome::Gone,
            Some(name) => MarkerOutcome::Failed(script::error(name)),
        };
        let ticket = MarkerTicket { partition: PARTITION, number: number(words.label) };
        let partition = partition.parse().expect("a partition");
        self.cluster.mark(&Marker { ticket, topic: topic.to_owned(), partition }, outcome);
    }

    fn wait(&mut self, ms: u64) {
        let end = self.cluster.now.mono_ms + ms;
        while let Some(at) = self.cluster.coordinator.next_deadline_ms().filter(|at| *at <= end) {
            self.cluster.advance(at.saturating_sub(self.cluster.now.mono_ms));
            self.cluster.coordinator.tick(self.cluster.now);
            let before = self.out.len();
            self.settle();
            if self.out.len() > before {
                self.out.insert_str(before, &format!("  at {}\n", self.cluster.now.mono_ms));
            }
        }
        self.cluster.advance(end - self.cluster.now.mono_ms);
    }

    /// Writes down the coordinator's effects, and lets those succeed that are not held.
    fn settle(&mut self) {
        loop {
            for effect in self.cluster.effects() {
                self.write(&effect);
            }
            let append = self.cluster.pending.keys().next().copied().filter(|_| !self.holds.appends);
            let asked = self.cluster.asked.iter().next().copied().filter(|_| !self.holds.ids);
            let marker = self.cluster.markers.keys().next().cloned().filter(|_| !self.holds.markers);
            if let Some(ticket) = append {
                self.cluster.finish(ticket, Ok(()));
            } else if let Some(ticket) = asked {
                self.cluster.give_id(ticket, Ok(()));
            } else if let Some(marker) = marker {
                self.cluster.mark(&marker, MarkerOutcome::Written);
            } else {
                return;
            }
        }
    }

    fn write(&mut self, effect: &Effect) {
        let numbered = |number: u64, held: bool| if held { format!(" #{number}") } else { String::new() };
        let line = match effect {
            Effect::Append { ticket, records, .. } => {
                let records: Vec<String> = records.iter().map(record).collect();
                format!("append{} {}", numbered(ticket.number, self.holds.appends), records.join("; "))
            }
            Effect::WriteMarkers(markers) => {
                let number = numbered(markers.ticket.number, self.holds.markers);
                format!("markers{number} {}", marks(markers))
            }
            Effect::NewProducerId { ticket } => {
                format!("wants a producer id{}", numbered(ticket.0, self.holds.ids))
            }
            Effect::Reply { token, reply } => {
                let label = self.labels.get(token).map_or("none", String::as_str);
                format!("{label}: {}", answer(reply))
            }
        };
        writeln!(self.out, "  {line}").expect("a string takes everything");
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a ticket's number")
}

fn ticket(text: &str) -> Ticket {
    Ticket { partition: PARTITION, number: number(text) }
}

/// A record as the log's reader sees it.
fn record(record: &CoordinatorRecord) -> String {
    match records::decode(&record.key, record.value.as_deref()) {
        Record::Transaction { id, image: Some(image) } => format!("{id} {}", written(&image)),
        Record::Transaction { id, image: None } => format!("{id} gone"),
        other => panic!("{other:?} is not ours"),
    }
}

fn written(image: &Image) -> String {
    let next = if image.next_producer_id == ProducerId::NONE {
        String::new()
    } else {
        format!(", next {}", image.next_producer_id)
    };
    let previous = if [image.producer_id, ProducerId::NONE].contains(&image.previous_producer_id) {
        String::new()
    } else {
        format!(", before {}", image.previous_producer_id)
    };
    format!(
        "{} {}/{}{next}{previous} [{}]",
        image.state.name(),
        image.producer_id,
        image.producer_epoch,
        partitions(&image.partitions)
    )
}

fn partitions(partitions: &Partitions) -> String {
    let names = partitions
        .iter()
        .flat_map(|(topic, indexes)| indexes.iter().map(move |index| format!("{topic}-{index}")));
    names.collect::<Vec<_>>().join(" ")
}

fn marks(markers: &Markers) -> String {
    let names = markers
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|index| format!("{}-{index}", topic.name)));
    format!(
        "{} {} {}/{} version {} coordinator {} [{}]",
        markers.transactional_id,
        if markers.committed { "commit" } else { "abort" },
        markers.producer_id,
        markers.producer_epoch,
        markers.transaction_version,
        markers.coordinator_epoch,
        names.collect::<Vec<_>>().join(" ")
    )
}

fn name(code: i16) -> &'static str {
    ErrorCode(code).name()
}

/// An answer in a line.
pub(super) fn answer(reply: &Reply) -> String {
    match reply {
        Reply::InitProducerId(response) if response.error_code == 0 => {
            format!("producer {}/{}", response.producer_id, response.producer_epoch)
        }
        Reply::InitProducerId(response) => {
            assert_eq!((response.producer_id, response.producer_epoch), (-1, -1));
            name(response.error_code).to_owned()
        }
        Reply::AddPartitions(result) => added(result),
        Reply::AddOffsets(response) => name(response.error_code).to_owned(),
        Reply::EndTxn(response) if response.producer_id == -1 => {
            assert_eq!(response.producer_epoch, -1);
            name(response.error_code).to_owned()
        }
        Reply::EndTxn(response) => format!(
            "{}, go on as {}/{}",
            name(response.error_code),
            response.producer_id,
            response.producer_epoch
        ),
        Reply::DescribeTransactions(response) => {
            response.transaction_states.iter().map(described).collect::<Vec<_>>().join("; ")
        }
        Reply::ListTransactions(response) => listed(response),
    }
}

fn added(result: &AddPartitionsToTxnResult<'_>) -> String {
    let partitions = result.topic_results.iter().flat_map(|topic| {
        topic.results_by_partition.iter().map(|partition| {
            format!("{}-{} {}", topic.name, partition.partition_index, name(partition.partition_error_code))
        })
    });
    partitions.collect::<Vec<_>>().join(", ")
}

fn described(transaction: &TransactionState<'_>) -> String {
    if transaction.error_code != 0 {
        return format!("{} {}", transaction.transactional_id, name(transaction.error_code));
    }
    let partitions = transaction
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|index| format!("{}-{index}", topic.topic)));
    format!(
        "{} {} {}/{} timeout {} since {} [{}]",
        transaction.transactional_id,
        transaction.transaction_state,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.transaction_timeout_ms,
        transaction.transaction_start_time_ms,
        partitions.collect::<Vec<_>>().join(" ")
    )
}

fn listed(response: &ListTransactionsResponse<'_>) -> String {
    let transactions = response.transaction_states.iter().map(|transaction| {
        format!(
            "{} {} {}",
            transaction.transactional_id, transaction.producer_id, transaction.transaction_state
        )
    });
    let transactions = transactions.collect::<Vec<_>>().join(", ");
    let unknown = response.unknown_state_filters.join(" ");
    let unknown = if unknown.is_empty() { unknown } else { format!(", no states: {unknown}") };
    format!("{} [{transactions}]{unknown}", name(response.error_code))
}
