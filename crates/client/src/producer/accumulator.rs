//! All records that a producer has not delivered yet: the queues of all partitions, and which of them have records.
//!
//! Pure: time and chance are given.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mainstem_records::{ProducerEpoch, ProducerId};

use super::batch::record_bytes;
use super::delivery::{Delivery, Promise};
use super::partitioner::{Sticky, next_partition, partition_of_key};
use super::queue::{BatchIds, PartitionQueue, QueueConfig};
use super::record::Record;
use super::transaction::Name;
use crate::cluster::Topic;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The interval of looks for idle queues; a queue that is idle at two of them is forgotten (Kafka's `metadata.max.idle.ms`).
const IDLE_MS: u64 = 300_000;

/// The time, by two clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Milliseconds since the producer was made.
    pub(crate) mono_ms: u64,
    /// Milliseconds since 1970.
    pub(crate) wall_ms: i64,
}

/// The queues of a producer.
#[derive(Debug)]
pub(crate) struct Accumulator {
    pub(crate) config: QueueConfig,
    pub(crate) ids: BatchIds,
    queues: Vec<PartitionQueue>,
    topics: HashMap<Arc<str>, TopicQueues>,
    /// The partition that was looked up last, with its place in `queues`: mostly it is also the next one.
    last: Option<(TopicPartition, usize)>,
    /// Queues that are not empty.
    active: BTreeSet<usize>,
    /// Places whose queues were forgotten.
    free: Vec<usize>,
    /// Producer ids under which forgotten queues have used sequence numbers, with the newest epochs of these.
    forgotten: HashMap<ProducerId, ProducerEpoch>,
    /// The time of the next look for idle queues.
    idle_look_ms: u64,
    /// The error of a failed batch, for its transaction.
    failure: Option<Error>,
    /// The number of flushes that run, and of senders that wait for memory: meanwhile no batch waits for more records.
    pub(crate) flushes: usize,
}

#[derive(Debug, Default)]
struct TopicQueues {
    /// Places in `queues` by partition.
    places: HashMap<i32, usize>,
    sticky: Sticky,
}

/// The queues that may send, and the time of the next look.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Queues whose first batch may be sent.
    pub(crate) ready: Vec<usize>,
    /// The first time at which that may change by itself.
    pub(crate) next_ms: Option<u64>,
}

impl Accumulator {
    pub(crate) fn new(config: QueueConfig) -> Accumulator {
        Accumulator {
            config,
            ids: BatchIds::default(),
            queues: Vec::new(),
            topics: HashMap::new(),
            last: None,
            active: BTreeSet::new(),
            free: Vec::new(),
            forgotten: HashMap::new(),
            idle_look_ms: IDLE_MS,
            failure: None,
            flushes: 0,
        }
    }

    /// Appends a record to the queue of its partition. `chance` chooses the partition if the record does not. `now` and `chance`
    /// are called only if needed. Also returns true if there is something new to send.
    pub(crate) fn append(
        &mut self,
        topic: &Topic,
        record: &Record,
        now: impl FnOnce() -> Now,
        chance: impl FnOnce() -> u32,
    ) -> Result<(Delivery, bool), Error> {
        let partition = match (record.partition, &record.key) {
            (Some(partition), _) => topic.partition(partition)?.index,
            (None, Some(key)) if !topic.partitions.is_empty() => {
                partition_of_key(key, topic.partitions.len()) as i32
            }
            _ => self.choose(topic, record, chance)?,
        };
        let place = self.place(&topic.name, partition);
        let queue = &mut self.queues[place];
        let needs_time = record.timestamp_ms.is_none() || queue.begins_with(record, &self.config);
        let now = if needs_time { now() } else { Now { mono_ms: 0, wall_ms: 0 } };
        let appended = queue.append(record, now.wall_ms, now.mono_ms, &self.config, &mut self.ids);
        let appended = appended.map_err(|error| Error::Invalid(error.to_string()))?;
        self.active.insert(place);
        Ok(appended)
    }

    /// The partition for a record without a partition of its own.
    fn choose(&mut self, topic: &Topic, record: &Record, chance: impl FnOnce() -> u32) -> Result<i32, Error> {
        let (bytes, config) = (record_bytes(record), &self.config);
        let TopicQueues { places, sticky } = self.topics.entry(topic.name.clone()).or_default();
        let queue = |partition: i32| places.get(&partition).map(|place| &self.queues[*place]);
        let begins = |partition| queue(partition).is_none_or(|queue| queue.begins_with(record, config));
        if let Some(partition) = sticky.stay(topic, bytes, config.batch_bytes, begins) {
            return Ok(partition);
        }
        let waiting = |partition| queue(partition).map_or(0, PartitionQueue::waiting);
        Ok(sticky.go(next_partition(topic, waiting, chance())?, bytes))
    }

    /// The place of a partition's queue.
    fn place(&mut self, topic: &Arc<str>, partition: i32) -> usize {
        if let Some((key, place)) = &self.last
            && key.partition == partition
            && Arc::ptr_eq(&key.topic, topic)
        {
            return *place;
        }
        let queues = self.topics.entry(topic.clone()).or_default();
        let place = *queues.places.entry(partition).or_insert_with(|| {
            let used_before = self.forgotten.iter().map(|(id, epoch)| (*id, *epoch)).collect();
            let queue = PartitionQueue::reopened(topic.clone(), partition, used_before);
            match self.free.pop() {
                Some(place) => {
                    self.queues[place] = queue;
                    place
                }
                None => {
                    self.queues.push(queue);
                    self.queues.len() - 1
                }
            }
        });
        self.last = Some((TopicPartition { topic: topic.clone(), partition }, place));
        place
    }

    /// Fails records whose time is over; `trouble` returns the reason why nothing can be sent to a partition at present. Returns
    /// the bytes of memory that are free now.
    pub(crate) fn expire(
        &mut self,
        now_ms: u64,
        trouble: impl Fn(&TopicPartition) -> Option<Error>,
    ) -> usize {
        let queues = &mut self.queues;
        let mut freed = 0;
        for place in &self.active {
            freed += queues[*place].expire(now_ms, &self.config, &trouble);
            self.failure = self.failure.take().or(queues[*place].take_failure());
        }
        self.active.retain(|place| !queues[*place].is_empty());
        freed
    }

    /// Forgets partitions to which nothing was written for some minutes, and topics without any others. `current`: the producer id
    /// and epoch of transactions.
    pub(crate) fn forget_idle(&mut self, now_ms: u64, current: Option<Name>) {
        if now_ms < self.idle_look_ms {
            return;
        }
        self.idle_look_ms = now_ms + IDLE_MS;
        self.last = None;
        let Accumulator { topics, queues, free, forgotten, .. } = self;
        topics.retain(|_, topic| {
            topic.places.retain(|_, place| {
                let queue = &mut queues[*place];
                if !queue.is_idle(current) {
                    return true;
                }
                if let Some((id, epoch)) = queue.epoch() {
                    let newest = forgotten.entry(id).or_insert(epoch);
                    *newest = epoch.max(*newest);
                }
                *queue = PartitionQueue::new("".into(), 0);
                free.push(*place);
                false
            });
            !topic.places.is_empty()
        });
        if topics.is_empty() {
            *queues = Vec::new();
            *free = Vec::new();
        }
    }

    /// The queues that may send, beginning with the one at `first`, so that none is always the last.
    pub(crate) fn due(&self, now_ms: u64, first: usize) -> Due {
        let mut due = Due::default();
        for place in self.active.range(first..).chain(self.active.range(..first)) {
            let queue = &self.queues[*place];
            let mut times = [queue.next_deadline_ms(), None];
            match queue.ready_at(self.flushes > 0, &self.config) {
                Some(at) if at <= now_ms => due.ready.push(*place),
                at => times[1] = at,
            }
            due.next_ms = times.into_iter().flatten().chain(due.next_ms).min();
        }
        due
    }

    /// Topics with a batch that waits or is under way.
    pub(crate) fn topics(&self) -> BTreeSet<&Arc<str>> {
        self.active.iter().map(|place| self.queues[*place].place().0).collect()
    }

    /// A queue by its place.
    pub(crate) fn queue(&self, place: usize) -> &PartitionQueue {
        &self.queues[place]
    }

    /// A queue by its place, with the state that all queues share.
    pub(crate) fn queue_mut(&mut self, place: usize) -> (&mut PartitionQueue, &QueueConfig, &mut BatchIds) {
        (&mut self.queues[place], &self.config, &mut self.ids)
    }

    /// Updates the state of a queue that may have become empty.
    pub(crate) fn settle(&mut self, place: usize) {
        self.failure = self.failure.take().or(self.queues[place].take_failure());
        if self.queues[place].is_empty() {
            self.active.remove(&place);
        }
    }

    /// Returns true if a queue has used up the epochs of this producer id.
    pub(crate) fn has_used_up(&self, producer_id: ProducerId) -> bool {
        self.active.iter().any(|place| self.queues[*place].has_used_up(producer_id))
    }

    /// The error of a batch that has failed since the last call.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Fails batches that wait; those under way come back. Returns the bytes of memory that are free now.
    pub(crate) fn discard(&mut self, error: &Error) -> usize {
        let mut freed = 0;
        for place in self.active.clone() {
            freed += self.queues[place].discard(error);
            self.settle(place);
        }
        freed
    }

    /// Returns true if no batch waits and none is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Fails all batches for good.
    pub(crate) fn abandon(&mut self, error: &Error) {
        std::mem::take(&mut self.active).into_iter().for_each(|place| self.queues[place].abandon(error));
    }

    /// The promises of all batches without an outcome.
    pub(crate) fn promises(&self) -> Vec<Arc<Promise>> {
        self.active.iter().flat_map(|place| self.queues[*place].promises()).collect()
    }
}

#[cfg(test)]
mod tests {
    use mainstem_records::ProducerFields;
    use mainstem_wire::Uuid;

    use super::super::transaction::name_of;
    use super::*;
    use crate::ProducerConfig;
    use crate::cluster::Partition;
    use crate::config::ClientConfig;

    fn topic(partitions: i32) -> Topic {
        let partition =
            |index| Partition { index, leader: Some(1), leader_epoch: 0, replicas: vec![], isr: vec![] };
        let partitions = (0..partitions).map(partition).collect();
        Topic { name: "t".into(), id: Uuid::default(), is_internal: false, partitions }
    }

    fn accumulator() -> Accumulator {
        let config = ProducerConfig::new(ClientConfig::new("a:1").unwrap());
        Accumulator::new(ProducerConfig { batch_bytes: 1_000, ..config }.queue())
    }

    fn append(accumulator: &mut Accumulator, topic: &Topic, record: &Record, chance: u32) {
        let now = || Now { mono_ms: 0, wall_ms: 0 };
        let _ = accumulator.append(topic, record, now, || chance).unwrap();
    }

    fn waiting<const N: usize>(accumulator: &Accumulator) -> [usize; N] {
        let queues = &accumulator.topics["t"].places;
        std::array::from_fn(|partition| {
            queues.get(&(partition as i32)).map_or(0, |place| accumulator.queues[*place].waiting())
        })
    }

    #[test]
    fn records_without_a_key_go_where_little_waits() {
        let topic = topic(2);
        // Of the chances 0 to 4, one is for the first partition, as three batches wait there.
        for (chance, expected) in [(0, [4, 0]), (1, [3, 1]), (4, [3, 1]), (5, [4, 0])] {
            let mut accumulator = accumulator();
            for _ in 0..3 {
                append(&mut accumulator, &topic, &Record::new("t", vec![b'x'; 900]).partition(0), 0);
            }
            append(&mut accumulator, &topic, &Record::new("t", vec![b'x'; 900]), chance);
            assert_eq!(waiting(&accumulator), expected, "chance {chance}");
        }
    }

    #[test]
    fn the_next_partition_begins_with_a_batch_of_its_own() {
        let (topic, mut accumulator) = (topic(2), accumulator());
        // Three records fit into a batch, with their overhead.
        for chance in [0, 1, 1, 2, 2, 2] {
            append(&mut accumulator, &topic, &Record::new("t", vec![b'x'; 300]), chance);
        }
        assert_eq!(waiting(&accumulator), [1, 1]);
        assert!(
            accumulator
                .queues
                .iter()
                .all(|queue| queue.begins_with(&Record::new("t", vec![b'x'; 300]), &accumulator.config))
        );
    }

    /// Sends the waiting batch of a partition and has it written. Returns the sequence numbers that it was sent under.
    fn send(accumulator: &mut Accumulator, partition: i32, producer: Name) -> ProducerFields {
        let place = accumulator.topics["t"].places[&partition];
        let (queue, config, _) = accumulator.queue_mut(place);
        let batch = queue.take(Some(producer), config);
        let (id, bytes) = (batch.id, batch.contents.build().unwrap());
        let (sent, _) = mainstem_records::Batch::split_first(&bytes).unwrap();
        let fields = ProducerFields {
            producer_id: sent.producer_id(),
            producer_epoch: sent.producer_epoch(),
            base_sequence: sent.base_sequence(),
        };
        queue.built(id, bytes);
        queue.succeeded(id, super::super::queue::Written { base_offset: Some(0), append_time_ms: None });
        accumulator.settle(place);
        fields
    }

    #[test]
    fn what_is_idle_is_forgotten_and_its_numbers_go_on_in_the_next_epoch() {
        let (topic, mut accumulator) = (topic(3), accumulator());
        accumulator.config.idempotent = true;
        let record = |partition| Record::new("t", "x").partition(partition);
        for partition in 0..3 {
            append(&mut accumulator, &topic, &record(partition), 0);
        }
        let (idle, used) = ([0, 1].map(|one| send(&mut accumulator, one, name_of(7, 0))), 2);
        assert!(idle.iter().all(|one| (one.producer_epoch, one.base_sequence) == (0, 0)));
        accumulator.forget_idle(IDLE_MS, None);
        assert_eq!(accumulator.topics["t"].places.len(), 3, "they were used since the last look");
        accumulator.forget_idle(IDLE_MS + 1, None);
        assert_eq!(accumulator.topics["t"].places.len(), 3, "it is not time for a look");
        accumulator.forget_idle(2 * IDLE_MS, None);
        assert_eq!(accumulator.topics["t"].places.keys().collect::<Vec<_>>(), [&used], "the one that waits");
        append(&mut accumulator, &topic, &record(0), 0);
        let again = send(&mut accumulator, 0, name_of(7, 0));
        assert_eq!((again.producer_epoch, again.base_sequence), (1, 0));
        assert_eq!(accumulator.queues.len(), 3, "its place is used again");
        send(&mut accumulator, used, name_of(7, 0));
        append(&mut accumulator, &topic, &record(used), 0);
        assert_eq!(
            send(&mut accumulator, used, name_of(7, 0)).base_sequence,
            1,
            "numbers of a queue that was not forgotten continue"
        );
        for look in 3..5 {
            accumulator.forget_idle(look * IDLE_MS, None);
        }
        assert!(accumulator.topics.is_empty() && accumulator.queues.is_empty());
        append(&mut accumulator, &topic, &record(1), 0);
        assert_eq!(send(&mut accumulator, 1, name_of(7, 0)).producer_epoch, 2);
        for look in 5..7 {
            accumulator.forget_idle(look * IDLE_MS, None);
        }
        append(&mut accumulator, &topic, &record(1), 0);
        assert_eq!(
            send(&mut accumulator, 1, name_of(8, 0)).producer_epoch,
            0,
            "another producer id begins from zero"
        );
    }

    #[test]
    fn numbers_of_the_epoch_that_transactions_have_are_kept() {
        let (topic, mut accumulator) = (topic(1), accumulator());
        (accumulator.config.idempotent, accumulator.config.is_transactional) = (true, true);
        append(&mut accumulator, &topic, &Record::new("t", "x").partition(0), 0);
        send(&mut accumulator, 0, name_of(7, 3));
        for look in 1..4 {
            accumulator.forget_idle(look * IDLE_MS, Some(name_of(7, 3)));
            assert_eq!(accumulator.topics.len(), 1);
        }
        accumulator.forget_idle(4 * IDLE_MS, Some(name_of(7, 4)));
        assert!(accumulator.topics.is_empty());
    }
}
