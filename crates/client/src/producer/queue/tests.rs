//! Transcripts of single faults, and random histories against a broker that keeps Kafka's rules of the sequence.

use mainstem_records::{Batch as View, Scratch};
use proptest::prelude::*;

use super::*;

fn config() -> QueueConfig {
    QueueConfig {
        batch_bytes: 200,
        linger_ms: 5,
        delivery_timeout_ms: 1_000,
        retry_backoff_ms: 10,
        retry_backoff_max_ms: 40,
        in_flight_max: 5,
        idempotent: true,
        is_transactional: false,
        options: BatchOptions::default(),
    }
}

fn broker_error(code: ErrorCode) -> Error {
    Error::Broker { code, message: String::new(), what: String::new(), broker: String::new() }
}

fn lost() -> Error {
    Error::ConnectionLost { broker: String::new(), api: "Produce", reason: String::new() }
}

/// A queue with the state that a producer shares among queues.
struct Fixture {
    queue: PartitionQueue,
    config: QueueConfig,
    ids: BatchIds,
    now_ms: u64,
    /// The producer id and its first epoch.
    producer: Name,
}

impl Fixture {
    fn new() -> Fixture {
        let queue = PartitionQueue::new("t".into(), 0);
        Fixture { queue, config: config(), ids: BatchIds::default(), now_ms: 0, producer: name_of(7, 0) }
    }

    /// A queue with a broker that knows the producer.
    fn known() -> Fixture {
        let mut fixture = Fixture::new();
        fixture.queue.is_known = true;
        fixture
    }

    fn append(&mut self, value: &str) -> Delivery {
        let record = Record::new("t", value.to_owned());
        self.queue.append(&record, 0, self.now_ms, &self.config, &mut self.ids).unwrap().0
    }

    /// A batch of its own for each value: the queue is to send at once.
    fn send(&mut self, value: &str) -> (Delivery, Sendable) {
        let delivery = self.append(value);
        (delivery, self.take().expect("nothing holds it back"))
    }

    fn take(&mut self) -> Option<Sendable> {
        let ready = self.queue.ready_at(true, &self.config)?;
        (ready <= self.now_ms).then(|| {
            let unsent = self.queue.take(Some(self.producer), &self.config);
            self.queue.built(unsent.id, unsent.contents.build().unwrap()).unwrap()
        })
    }

    fn fail(&mut self, sent: &Sendable, error: Error) {
        self.queue.failed(sent.id, error, self.now_ms, &self.config, &mut self.ids);
    }
}

fn place(sent: &Sendable) -> (i16, i32) {
    let batch = View::split_first(&sent.bytes).unwrap().0;
    assert!(batch.verify_crc());
    (batch.producer_epoch(), batch.base_sequence())
}

fn values(sent: &Sendable) -> Vec<String> {
    let batch = View::split_first(&sent.bytes).unwrap().0;
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).unwrap();
    records.map(|record| String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap()).collect()
}

#[test]
fn records_wait_for_company_until_the_batch_is_full_or_the_time_is_over() {
    let mut fixture = Fixture::known();
    let _ = fixture.append("a");
    assert_eq!(fixture.queue.ready_at(false, &fixture.config), Some(5));
    let _ = fixture.append(&"b".repeat(150));
    let _ = fixture.append(&"c".repeat(150));
    assert_eq!(fixture.queue.ready_at(false, &fixture.config), Some(0), "a second batch was begun");
    assert_eq!(values(&fixture.take().unwrap()).len(), 2);
}

#[test]
fn the_first_batch_goes_alone() {
    let mut fixture = Fixture::new();
    let (_, first) = fixture.send("a");
    let _ = fixture.append("b");
    assert!(fixture.take().is_none(), "a broker would take it for the first");
    fixture.queue.succeeded(first.id, Written { base_offset: Some(0), append_time_ms: None });
    assert_eq!(place(&fixture.take().unwrap()), (0, 1));
}

#[test]
fn a_batch_that_goes_again_keeps_its_number_and_goes_before_those_behind_it() {
    let mut fixture = Fixture::known();
    let (_, first) = fixture.send("a");
    let (_, second) = fixture.send("b");
    assert_eq!((place(&first), place(&second)), ((0, 0), (0, 1)));
    fixture.fail(&first, lost());
    fixture.fail(&second, broker_error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
    let _ = fixture.append("c");
    assert!(fixture.take().is_none(), "it waits for its back-off, and the rest waits for it");
    fixture.now_ms = 10;
    let again = fixture.take().unwrap();
    assert_eq!((place(&again), values(&again)), ((0, 0), vec!["a".to_owned()]));
    assert!(fixture.take().is_none());
    fixture.queue.succeeded(again.id, Written { base_offset: Some(3), append_time_ms: None });
    assert_eq!(place(&fixture.take().unwrap()), (0, 1));
}

#[test]
fn after_a_failure_for_good_the_rest_continues_under_the_next_epoch() {
    let mut fixture = Fixture::known();
    let (refused, first) = fixture.send("a");
    let (kept, second) = fixture.send("b");
    fixture.fail(&first, broker_error(ErrorCode::INVALID_RECORD));
    assert_eq!(refused.poll_outcome().unwrap().unwrap_err().code(), Some(ErrorCode::INVALID_RECORD));
    fixture.fail(&second, broker_error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
    fixture.now_ms = 10;
    let again = fixture.take().unwrap();
    assert_eq!((place(&again), values(&again)), ((1, 0), vec!["b".to_owned()]));
    fixture.queue.succeeded(again.id, Written { base_offset: Some(0), append_time_ms: None });
    assert_eq!(kept.poll_outcome().unwrap().unwrap().offset, Some(0));
    assert_eq!(place(&fixture.send("c").1), (1, 1));
}

#[test]
fn what_may_be_written_is_not_renumbered() {
    let mut fixture = Fixture::known();
    let (_, first) = fixture.send("a");
    let (_, second) = fixture.send("b");
    fixture.fail(&first, broker_error(ErrorCode::INVALID_RECORD));
    fixture.fail(&second, lost());
    fixture.now_ms = 10;
    let probe = fixture.take().unwrap();
    assert_eq!(place(&probe), (0, 1), "the broker is asked first");
    fixture.fail(&probe, broker_error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
    fixture.now_ms = 40;
    assert_eq!(place(&fixture.take().unwrap()), (1, 0));
}

#[test]
fn a_broker_that_has_forgotten_the_producer_gets_the_first_batch_alone() {
    let mut fixture = Fixture::known();
    let (_, first) = fixture.send("a");
    fixture.fail(&first, broker_error(ErrorCode::UNKNOWN_PRODUCER_ID));
    fixture.now_ms = 10;
    let again = fixture.take().unwrap();
    assert_eq!(place(&again), (1, 0));
    let _ = fixture.append("b");
    assert!(fixture.take().is_none(), "the broker would take it for the first");
    fixture.queue.succeeded(again.id, Written { base_offset: Some(0), append_time_ms: None });
    assert_eq!(place(&fixture.take().unwrap()), (1, 1));
}

#[test]
fn behind_the_last_epoch_comes_another_producer_id() {
    let mut fixture = Fixture::known();
    fixture.producer = name_of(7, i16::MAX);
    let (_, first) = fixture.send("a");
    let (_, second) = fixture.send("b");
    fixture.fail(&first, broker_error(ErrorCode::INVALID_RECORD));
    fixture.fail(&second, lost());
    assert!(fixture.queue.has_used_up(ProducerId::new(7)));
    fixture.producer = name_of(8, 0);
    assert!(!fixture.queue.has_used_up(ProducerId::new(8)), "one is enough");
    fixture.now_ms = 10;
    let probe = fixture.take().unwrap();
    assert_eq!(place(&probe), (i16::MAX, 1), "it may be written under the old one");
    fixture.fail(&probe, broker_error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
    fixture.now_ms = 40;
    let again = fixture.take().unwrap();
    assert_eq!((place(&again), values(&again)), ((0, 0), vec!["b".to_owned()]));
    assert_eq!(View::split_first(&again.bytes).unwrap().0.producer_id(), 8);
}

#[test]
fn a_batch_that_is_too_large_goes_in_halves_with_the_same_numbers() {
    let mut fixture = Fixture::known();
    let deliveries: Vec<Delivery> = ["a", "b", "c"].iter().map(|value| fixture.append(value)).collect();
    let whole = fixture.take().unwrap();
    let (_, behind) = fixture.send("d");
    fixture.fail(&whole, broker_error(ErrorCode::MESSAGE_TOO_LARGE));
    fixture.fail(&behind, broker_error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
    fixture.now_ms = 100;
    for (number, offset, expected) in [(0, 10, vec!["a"]), (1, 11, vec!["b", "c"]), (3, 13, vec!["d"])] {
        let part = fixture.take().unwrap();
        assert_eq!(
            (place(&part), values(&part)),
            ((0, number), expected.into_iter().map(str::to_owned).collect())
        );
        fixture.queue.succeeded(part.id, Written { base_offset: Some(offset), append_time_ms: None });
    }
    assert_eq!(deliveries[2].poll_outcome().unwrap().unwrap().offset, Some(12));
}

#[test]
fn a_record_that_is_too_large_alone_fails() {
    let mut fixture = Fixture::known();
    let (delivery, sent) = fixture.send("a");
    fixture.fail(&sent, broker_error(ErrorCode::MESSAGE_TOO_LARGE));
    assert_eq!(delivery.poll_outcome().unwrap().unwrap_err().code(), Some(ErrorCode::MESSAGE_TOO_LARGE));
}

#[test]
fn no_delivery_waits_longer_than_the_delivery_may_take() {
    let mut fixture = Fixture::known();
    let (under_way, _) = fixture.send("a");
    let waiting = fixture.append("b");
    assert_eq!(fixture.queue.next_deadline_ms(), Some(1_000));
    assert!(fixture.queue.expire(999, &fixture.config, |_| None) == 0 && waiting.poll_outcome().is_none());
    assert!(fixture.queue.expire(1_000, &fixture.config, |_| None) > 0);
    for delivery in [under_way, waiting] {
        assert!(matches!(delivery.poll_outcome(), Some(Err(Error::TimedOut { last: None, .. }))));
    }
}

/// The error of a batch that was sent is that of its last attempt; no other cause is known to hold it back.
#[test]
fn who_has_waited_too_long_is_reported_what_for() {
    for is_sent in [false, true] {
        let mut fixture = Fixture::known();
        let delivery = fixture.append("a");
        if is_sent {
            let sent = fixture.take().expect("nothing holds it back");
            fixture.fail(&sent, broker_error(ErrorCode::NOT_ENOUGH_REPLICAS));
        }
        let _ = fixture.queue.expire(1_000, &fixture.config, |key| {
            assert_eq!(*key, TopicPartition::new("t", 0));
            Some(lost())
        });
        let Some(Err(Error::TimedOut { last, .. })) = delivery.poll_outcome() else { panic!("{delivery:?}") };
        let expected = if is_sent { broker_error(ErrorCode::NOT_ENOUGH_REPLICAS) } else { lost() };
        assert_eq!(last, Some(Box::new(expected)));
    }
}

/// The class of the error says what can be done: only abort, or nothing at all.
#[test]
fn in_a_transaction_what_fails_a_record_fails_the_transaction() {
    let refused = broker_error(ErrorCode::INVALID_RECORD);
    let of_transaction = Error::TransactionFailed { reason: Box::new(refused.clone()) };
    let fenced = broker_error(ErrorCode::PRODUCER_FENCED);
    for (is_transactional, error, expected) in
        [(true, &refused, &of_transaction), (true, &fenced, &fenced), (false, &refused, &refused)]
    {
        let mut fixture = Fixture::known();
        fixture.config.is_transactional = is_transactional;
        let (delivery, sent) = fixture.send("a");
        fixture.fail(&sent, error.clone());
        assert_eq!(delivery.poll_outcome(), Some(Err(expected.clone())));
        assert_eq!(fixture.queue.take_failure().as_ref(), Some(error), "the transaction gets the error");
    }
    let mut fixture = Fixture::known();
    fixture.config.is_transactional = true;
    let (under_way, _) = fixture.send("a");
    let waiting = fixture.append("b");
    let _ = fixture.queue.expire(1_000, &fixture.config, |_| None);
    for delivery in [under_way, waiting] {
        let late = delivery.poll_outcome().unwrap().unwrap_err();
        assert_eq!(late.class(), crate::ErrorClass::Abortable, "{late}");
    }
}

/// A partition's leader with Kafka's rules of the sequence, for one producer.
#[derive(Default)]
struct Leader {
    log: Vec<String>,
    /// It has a batch of the producer; before that, it takes any number for the first.
    knows: bool,
    epoch: i16,
    /// First number, count and offset of the last five batches.
    recent: VecDeque<(i32, i32, i64)>,
    next: i32,
}

impl Leader {
    fn append(&mut self, bytes: &Bytes) -> Result<i64, ErrorCode> {
        let batch = View::split_first(bytes).unwrap().0;
        let (epoch, first, count) = (batch.producer_epoch(), batch.base_sequence(), batch.record_count());
        if epoch < self.epoch {
            return Err(ErrorCode::INVALID_PRODUCER_EPOCH);
        }
        if !self.knows {
            self.next = first;
        }
        if epoch > self.epoch {
            if first != 0 && self.knows {
                return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
            }
            (self.epoch, self.next) = (epoch, first);
            self.recent.clear();
        }
        if let Some((.., offset)) = self.recent.iter().find(|(f, c, _)| (*f, *c) == (first, count)) {
            return Ok(*offset);
        }
        // Kafka's does so since 1.0, also for a batch that is older than those it remembers.
        if first != self.next {
            return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
        }
        let offset = self.log.len() as i64;
        self.log.extend(values(&Sendable { id: 0, bytes: bytes.clone() }));
        (self.next, self.knows) = (first + count, true);
        self.recent.push_back((first, count, offset));
        if self.recent.len() > 5 {
            self.recent.pop_front();
        }
        Ok(offset)
    }
}

/// A leader that has resigned has written a batch and does not say so. The next one would forget the batch after five
/// others.
#[test]
fn a_batch_without_an_answer_is_not_left_behind_by_more_than_a_leader_remembers() {
    let mut world = World::new(Fixture::new());
    let send_and_serve = |world: &mut World| {
        world.run_all([Step::Append, Step::Send, Step::Serve(Fate::Well)]);
    };
    send_and_serve(&mut world);
    world.run_all([Step::Append, Step::Send, Step::Move { served_first: 1 }]);
    for _ in 0..11 {
        send_and_serve(&mut world);
    }
    assert_eq!(world.leader.log.len(), 6, "four batches follow the one that may be there");
    world.run(Step::Return { answered: true });
    world.settle();
    world.check();
    assert_eq!((world.leader.log.len(), world.leader.epoch), (13, 0));
}

/// The events that may happen next.
#[derive(Debug, Clone)]
enum Step {
    Append,
    Send,
    /// The oldest request of the connection reaches the broker, which answers so.
    Serve(Fate),
    /// Requests that have not been served are lost with the connection, and so are answers.
    Disconnect {
        served_first: u8,
    },
    /// Another node leads, with all that its predecessor wrote. The predecessor answers nothing for now.
    Move {
        served_first: u8,
    },
    /// The oldest request of an earlier leader comes back.
    Return {
        answered: bool,
    },
    Wait(u16),
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Well,
    NotLeader,
    TooLarge,
    Refused,
    StorageError { appended: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fate = prop_oneof![
        8 => Just(Fate::Well),
        1 => Just(Fate::NotLeader),
        1 => Just(Fate::TooLarge),
        1 => Just(Fate::Refused),
        1 => any::<bool>().prop_map(|appended| Fate::StorageError { appended }),
    ];
    let step = prop_oneof![
        4 => Just(Step::Append),
        5 => Just(Step::Send),
        5 => fate.prop_map(Step::Serve),
        1 => (0u8..6).prop_map(|served_first| Step::Disconnect { served_first }),
        1 => (0u8..6).prop_map(|served_first| Step::Move { served_first }),
        1 => any::<bool>().prop_map(|answered| Step::Return { answered }),
        2 => (0u16..400).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    fixture: Fixture,
    leader: Leader,
    connection: VecDeque<Sendable>,
    /// Requests that earlier leaders have not answered.
    left_behind: VecDeque<Sendable>,
    deliveries: Vec<Delivery>,
}

impl World {
    fn run_all(&mut self, steps: impl IntoIterator<Item = Step>) {
        steps.into_iter().for_each(|step| self.run(step));
    }

    fn new(fixture: Fixture) -> World {
        World {
            fixture,
            leader: Leader::default(),
            connection: VecDeque::new(),
            left_behind: VecDeque::new(),
            deliveries: Vec::new(),
        }
    }

    /// The connection's requests. The leader has served so many of them, and their answers are not read.
    fn cut(&mut self, served_first: u8) -> VecDeque<Sendable> {
        let requests = std::mem::take(&mut self.connection);
        for sent in requests.iter().take(usize::from(served_first)) {
            let _ = self.leader.append(&sent.bytes);
        }
        requests
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Append => {
                let value = self.deliveries.len().to_string();
                let delivery = self.fixture.append(&value);
                self.deliveries.push(delivery);
            }
            Step::Send => self.connection.extend(self.fixture.take()),
            Step::Serve(fate) => {
                if let Some(sent) = self.connection.pop_front() {
                    self.serve(&sent, fate);
                }
            }
            Step::Disconnect { served_first } => {
                for sent in self.cut(served_first) {
                    self.fixture.fail(&sent, lost());
                }
            }
            Step::Move { served_first } => {
                let requests = self.cut(served_first);
                self.left_behind.extend(requests);
            }
            Step::Return { answered } => {
                if let Some(sent) = self.left_behind.pop_front() {
                    let is_none = || broker_error(ErrorCode::NOT_LEADER_OR_FOLLOWER);
                    self.fixture.fail(&sent, if answered { is_none() } else { lost() });
                }
            }
            Step::Wait(ms) => {
                self.fixture.now_ms += u64::from(ms);
                self.fixture.queue.expire(self.fixture.now_ms, &self.fixture.config, |_| None);
            }
        }
    }

    fn serve(&mut self, sent: &Sendable, fate: Fate) {
        let refused = match fate {
            Fate::Well => None,
            Fate::NotLeader => Some(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Fate::TooLarge => Some(ErrorCode::MESSAGE_TOO_LARGE),
            Fate::Refused => Some(ErrorCode::INVALID_RECORD),
            Fate::StorageError { appended } => {
                if appended {
                    let _ = self.leader.append(&sent.bytes);
                }
                Some(ErrorCode::KAFKA_STORAGE_ERROR)
            }
        };
        match refused.map_or_else(|| self.leader.append(&sent.bytes), Err) {
            Ok(offset) => {
                let written = Written { base_offset: Some(offset), append_time_ms: None };
                self.fixture.queue.succeeded(sent.id, written);
            }
            Err(code) => self.fixture.fail(sent, broker_error(code)),
        }
    }

    /// The faults end; all waiting batches are sent.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.fixture.queue.is_empty() {
                return;
            }
            self.run(Step::Send);
            self.run(Step::Serve(Fate::Well));
            self.run(Step::Return { answered: true });
            self.fixture.now_ms += 1;
        }
        panic!("the queue does not come to an end");
    }

    fn check(&self) {
        let log: Vec<usize> = self.leader.log.iter().map(|value| value.parse().unwrap()).collect();
        assert!(log.is_sorted_by(|a, b| a < b), "a duplicate or a change of order: {log:?}");
        for (at, delivery) in self.deliveries.iter().enumerate() {
            match delivery.poll_outcome().expect("everything is decided") {
                Ok(Delivered { offset: Some(offset), .. }) => assert_eq!(log[offset as usize], at),
                Ok(Delivered { offset: None, .. }) => assert!(log.contains(&at), "{at} is not in the log"),
                Err(error) if error.code() == Some(ErrorCode::INVALID_RECORD) => {}
                Err(error) if error.code() == Some(ErrorCode::MESSAGE_TOO_LARGE) => {}
                Err(Error::TimedOut { .. }) => {}
                Err(error) => panic!("{at} failed: {error}"),
            }
        }
    }
}

use super::super::delivery::Delivered;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(2_000)))]

    #[test]
    fn nothing_is_duplicated_or_reordered(steps in steps()) {
        let mut world = World::new(Fixture::new());
        world.run_all(steps);
        world.settle();
        world.check();
    }
}
