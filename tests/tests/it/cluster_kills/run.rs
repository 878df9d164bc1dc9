//! State that all actors of a run share: the history, and the progress.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_client::{FetchedBatch, Isolation, TopicPartition};
use mainstem_replication::history::{Event, NO_PARTITION, Operation, Outcome};
use mainstem_tests::cluster::Cluster;

/// The topic that producers write to, and transactional loops read.
pub(crate) const IN: &str = "kills-in";
/// The topic that transactional loops write to.
pub(crate) const OUT: &str = "kills-out";
pub(crate) const PARTITIONS: i32 = 6;

/// Groups whose members commit, with the topic and isolation level that they read.
pub(crate) const GROUPS: [(u64, &str, Isolation); 2] =
    [(1, IN, Isolation::ReadUncommitted), (2, OUT, Isolation::ReadCommitted)];
/// The group of our own transactional loop.
pub(crate) const LOOP: u64 = 3;

/// The name of a group.
pub(crate) fn group_name(group: u64) -> String {
    format!("kills-group-{group}")
}

/// Longer than any cluster and client should need to recover. Real clients have limits of their own: a request fails
/// after 3 s, and a record without an acknowledgement after 30 s. A transaction without an end is aborted at most 70
/// s after its begin (`transaction.timeout.ms`, and its coordinator looks every 10 s).
pub(crate) const RESUME_MAX: Duration = Duration::from_secs(90);
/// The longest wait until all programs of real clients have begun, on a busy machine.
const BEGUN_MAX: Duration = Duration::from_secs(300);
/// Commits after which a member counts as making progress: the offsets of all partitions may have been on their way before.
const COMMITS: u64 = 2 * PARTITIONS as u64;
/// The range of values of a program: more than it writes in a run.
const VALUES_OF_A_PROGRAM: u64 = 1 << 32;
/// The interval at which a condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Load,
    /// Nothing is written any more; existing records are read.
    Drain,
    Stop,
}

/// The progress of real clients, by the names of their programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The newest value at that time.
    value: u64,
    /// The newest acknowledged value of each producer in each partition.
    acknowledged: BTreeMap<String, [u64; PARTITIONS as usize]>,
    /// The number of offsets that each member and each loop has committed.
    pub(crate) commits: BTreeMap<String, u64>,
}

impl Progress {
    /// Clients without progress. Producers need an acknowledgement of a newer value in each partition. Members and
    /// loops with a known start need more commits than may have been on their way.
    fn without_progress_since(&self, before: &Progress) -> Vec<String> {
        let is_new = |value: &u64| *value > before.value;
        let producers = self.acknowledged.iter().filter(|(_, values)| !values.iter().all(is_new));
        let is_without_progress = |(member, commits): &(&String, &u64)| {
            before.commits.get(*member).is_some_and(|before| **commits < before + COMMITS)
        };
        let members = self.commits.iter().filter(is_without_progress);
        producers.map(|(name, _)| name).chain(members.map(|(name, _)| name)).cloned().collect()
    }
}

/// The history, and counts from it.
#[derive(Debug)]
pub(crate) struct Run {
    begin: Instant,
    events: Mutex<Vec<Event>>,
    phase: AtomicU8,
    next_value: AtomicU64,
    next_process: AtomicI32,
    appends: AtomicU64,
    transactions: AtomicU64,
    /// For each partition of the producers' topic, the time at which the newest acknowledged record was sent, in ms.
    acknowledged_ms: [AtomicU64; PARTITIONS as usize],
    clients: Mutex<Progress>,
    /// The number of looks at the notes of each program, by its name.
    looks: Mutex<BTreeMap<String, u64>>,
    /// Errors that programs of real clients have noted.
    errors: Mutex<Vec<String>>,
}

impl Run {
    pub(crate) fn new() -> Run {
        Run {
            begin: Instant::now(),
            events: Mutex::default(),
            phase: AtomicU8::new(Phase::Load as u8),
            next_value: AtomicU64::new(1),
            next_process: AtomicI32::new(1),
            appends: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            acknowledged_ms: Default::default(),
            clients: Mutex::default(),
            looks: Mutex::default(),
            errors: Mutex::default(),
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    pub(crate) fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::SeqCst) == phase as u8
    }

    /// A number that no other process has. An actor that does not know the outcome of its last operation continues under a new one.
    pub(crate) fn process(&self) -> i32 {
        self.next_process.fetch_add(1, Ordering::SeqCst)
    }

    /// A unique value, for a record or a transaction.
    pub(crate) fn value(&self) -> u64 {
        self.next_value.fetch_add(1, Ordering::SeqCst)
    }

    /// The first of the values that a program writes by itself; no other value is in that range.
    pub(crate) fn values(&self) -> u64 {
        self.next_value.fetch_add(VALUES_OF_A_PROGRAM, Ordering::SeqCst)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    pub(crate) fn record(
        &self,
        process: i32,
        operation: Operation,
        outcome: Outcome,
        place: (i32, i64),
        value: u64,
    ) {
        let (partition, offset) = place;
        let at_ms = self.now_ms();
        let event = Event { at_ms, process, operation, outcome, partition, offset, value };
        self.events.lock().expect("no actor panics with it").push(event);
        if (operation, outcome) == (Operation::CommitTransaction, Outcome::Ok) {
            self.transactions.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The same for a transaction.
    pub(crate) fn record_transaction(
        &self,
        process: i32,
        operation: Operation,
        outcome: Outcome,
        transaction: u64,
    ) {
        self.record(process, operation, outcome, (NO_PARTITION, -1), transaction);
    }

    /// Counts an acknowledged append that was sent at a time.
    pub(crate) fn acknowledge(&self, partition: i32, sent_ms: u64) {
        self.appends.fetch_add(1, Ordering::SeqCst);
        self.acknowledged_ms[partition as usize].fetch_max(sent_ms, Ordering::SeqCst);
    }

    /// Begins to wait for progress of a real client's producer and member.
    pub(crate) fn expect_progress(&self, producer: String, member: String) {
        self.clients
            .lock()
            .expect("no actor panics with it")
            .acknowledged
            .insert(producer, Default::default());
        self.expect_commits(member);
    }

    /// The same for one that only commits offsets: a member of a group, or a transactional loop.
    pub(crate) fn expect_commits(&self, name: String) {
        self.clients.lock().expect("no actor panics with it").commits.insert(name, 0);
    }

    /// Notes an acknowledged value of a real client's producer.
    pub(crate) fn acknowledged(&self, producer: &str, partition: i32, value: u64) {
        let mut clients = self.clients.lock().expect("no actor panics with it");
        let newest = clients.acknowledged.get_mut(producer).expect("its progress is expected");
        let newest = &mut newest[partition as usize];
        *newest = value.max(*newest);
    }

    /// Notes a committed offset of a real client's member or loop.
    pub(crate) fn committed(&self, name: &str) {
        let mut clients = self.clients.lock().expect("no actor panics with it");
        *clients.commits.get_mut(name).expect("its progress is expected") += 1;
    }

    /// Notes that the history has all notes of a program from before a look at them.
    pub(crate) fn looked_at(&self, program: &str) {
        *self.looks.lock().expect("no actor panics with it").entry(program.to_owned()).or_default() += 1;
    }

    /// The progress of real clients.
    pub(crate) fn progress(&self) -> Progress {
        let value = self.value();
        Progress { value, ..self.clients.lock().expect("no actor panics with it").clone() }
    }

    /// Notes an error of a real client's program.
    pub(crate) fn report(&self, error: String) {
        eprintln!("{error}");
        self.errors.lock().expect("no actor panics with it").push(error);
    }

    /// All errors that programs of real clients have noted.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.errors.lock().expect("no actor panics with it").clone()
    }

    /// Notes the records that a consumer got.
    pub(crate) fn record_batch(
        &self,
        process: i32,
        batch: &FetchedBatch,
        operation: Operation,
    ) -> Vec<(i64, u64)> {
        let partition = number(batch.partition());
        let records = batch.records().map(|record| {
            let record = record.expect("a batch of a broker can be read");
            (record.offset, value_of(record.value.expect("records here have values")))
        });
        let records: Vec<_> = records.collect();
        for &(offset, value) in &records {
            self.record(process, operation, Outcome::Ok, (partition, offset), value);
        }
        records
    }

    /// Waits for so many more acknowledged appends.
    pub(crate) async fn wait_for_appends(&self, count: u64, cluster: &Cluster) {
        let until = self.appends.load(Ordering::SeqCst) + count;
        let has_come = || self.appends.load(Ordering::SeqCst) >= until;
        self.wait_for("more acknowledgements", RESUME_MAX, cluster, has_come).await;
    }

    /// Waits until each partition has an acknowledged append that was sent after a time.
    pub(crate) async fn wait_until_acknowledged_after(&self, ms: u64, cluster: &Cluster) {
        let is_after = |sent: &AtomicU64| sent.load(Ordering::SeqCst) > ms;
        let all = || self.acknowledged_ms.iter().all(is_after);
        self.wait_for("acknowledgements in all partitions", RESUME_MAX, cluster, all).await;
    }

    /// Waits until all programs of real clients have begun.
    pub(crate) async fn wait_for_begun_clients(&self, cluster: &Cluster) {
        self.wait_for_clients(&self.progress(), BEGUN_MAX, cluster).await;
    }

    /// Waits until all real clients have made progress since then.
    pub(crate) async fn wait_for_clients_after(&self, before: &Progress, cluster: &Cluster) {
        self.wait_for_clients(before, RESUME_MAX, cluster).await;
    }

    /// The same within a time. Prints the last clients to make progress.
    async fn wait_for_clients(&self, before: &Progress, within: Duration, cluster: &Cluster) {
        let (begun, mut last) = (Instant::now(), Vec::new());
        let has_gone_on = || {
            let without_progress =
                self.clients.lock().expect("no actor panics with it").without_progress_since(before);
            if without_progress.is_empty() {
                return true;
            }
            last = without_progress;
            false
        };
        self.wait_for(&format!("progress of real clients since {before:?}"), within, cluster, has_gone_on)
            .await;
        if !last.is_empty() {
            eprintln!("real clients have gone on after {:?}, the last: {}", begun.elapsed(), last.join(", "));
        }
    }

    /// Waits until all that programs of real clients have written down by now is in the history.
    pub(crate) async fn wait_for_notes(&self, cluster: &Cluster) {
        let looks = || self.looks.lock().expect("no actor panics with it").clone();
        let before = looks();
        // One look may have begun before, so that two are needed.
        let are_taken =
            || looks().iter().all(|(name, now)| *now >= before.get(name).copied().unwrap_or(0) + 2);
        self.wait_for("looks at what programs write down", RESUME_MAX, cluster, are_taken).await;
    }

    async fn wait_for(
        &self,
        what: &str,
        within: Duration,
        cluster: &Cluster,
        mut has_come: impl FnMut() -> bool,
    ) {
        let deadline = Instant::now() + within;
        while !has_come() {
            let ages = self.acknowledged_ms.each_ref().map(|sent| sent.load(Ordering::SeqCst));
            assert!(
                Instant::now() < deadline,
                "no {what} within {within:?}; the newest of each partition were sent at {ages:?} of {} ms\n{:?}\n{}",
                self.now_ms(),
                self.clients.lock().expect("no actor panics with it"),
                cluster.tails()
            );
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// All events.
    pub(crate) fn history(&self) -> Vec<Event> {
        self.events.lock().expect("no actor panics with it").clone()
    }

    /// Acknowledged appends of producers, and committed transactions.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.appends.load(Ordering::SeqCst), self.transactions.load(Ordering::SeqCst))
    }
}

/// The number of a partition in the history.
pub(crate) fn number(partition: &TopicPartition) -> i32 {
    partition.partition + if &*partition.topic == OUT { 100 } else { 0 }
}

/// All partitions of a topic.
pub(crate) fn partitions(topic: &str) -> impl Iterator<Item = TopicPartition> {
    (0..PARTITIONS).map(move |partition| TopicPartition::new(topic, partition))
}

/// The bytes of a record.
pub(crate) fn bytes_of(value: u64) -> Vec<u8> {
    format!("{value:<200}").into_bytes()
}

/// The value of a record.
pub(crate) fn value_of(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).expect("records here are text");
    text.trim_end().parse().expect("records here are numbers")
}
