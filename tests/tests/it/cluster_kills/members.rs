//! Members of groups that commit the offsets of records they have read, and an observer of committed offsets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_client::{
    Admin, ClientConfig, ConsumerConfig, Error, GroupConfig, GroupConsumer, GroupEvent, GroupOffsets,
    GroupProtocol, Isolation, Position, TopicPartition,
};
use mainstem_replication::history::{Operation, Outcome};

use crate::cluster_kills::run::{Phase, Run, group_name, number, partitions};

/// The interval of commits, and of the check whether the run is over.
const COMMIT_EVERY: Duration = Duration::from_millis(50);
/// The interval at which committed offsets are observed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A member of a group.
pub(crate) struct Member {
    pub(crate) run: Arc<Run>,
    pub(crate) client: ClientConfig,
    pub(crate) group: u64,
    pub(crate) topic: &'static str,
    pub(crate) isolation: Isolation,
    pub(crate) protocol: GroupProtocol,
}

/// The configuration of members in a run.
pub(crate) fn config(
    client: &ClientConfig,
    group: u64,
    topic: &'static str,
    isolation: Isolation,
) -> GroupConfig {
    let consumer = ConsumerConfig {
        isolation,
        max_wait: Duration::from_millis(100),
        ..ConsumerConfig::new(client.clone())
    };
    GroupConfig {
        auto_commit: None,
        start: Position::Beginning,
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_millis(500),
        ..GroupConfig::new(group_name(group), [topic], consumer)
    }
}

impl Member {
    /// Reads and commits until the run stops.
    pub(crate) async fn go_on(self) {
        while !self.run.is_in(Phase::Stop) {
            let process = self.run.process();
            let config =
                config(&self.client, self.group, self.topic, self.isolation).protocol(self.protocol.clone());
            let mut consumer = GroupConsumer::new(config).expect("the settings agree");
            if let Err(error) = self.go_on_as(process, &mut consumer).await {
                assert!(!matches!(error, Error::OutOfRange { .. }), "group {}: {error}", self.group);
                eprintln!("member {process} of group {}: {error}", self.group);
            }
            // A consumer that has failed may not be able to leave.
            let _ = consumer.close_within(Duration::from_secs(2)).await;
        }
    }

    async fn go_on_as(&self, process: i32, consumer: &mut GroupConsumer) -> Result<(), Error> {
        let read = match self.isolation {
            Isolation::ReadCommitted => Operation::ReadCommitted,
            Isolation::ReadUncommitted => Operation::Read,
        };
        let (mut done, mut committed_at) = (BTreeMap::new(), Instant::now());
        while !self.run.is_in(Phase::Stop) {
            if committed_at.elapsed() > COMMIT_EVERY {
                self.commit(process, consumer.offsets().clone(), &mut done).await;
                committed_at = Instant::now();
            }
            let Ok(event) = tokio::time::timeout(COMMIT_EVERY, consumer.next_event()).await else { continue };
            match event? {
                GroupEvent::Assigned(assigned) => {
                    for (partition, committed) in assigned {
                        let offset = committed.map_or(0, |committed| committed.offset);
                        let place = (number(&partition), offset);
                        self.run.record(process, Operation::Assign, Outcome::Ok, place, self.group);
                    }
                }
                GroupEvent::Batch(batch) => {
                    self.run.record_batch(process, &batch, read);
                    done.insert(batch.partition().clone(), batch.next_offset());
                }
                GroupEvent::Revoking(revoking) => {
                    self.commit(process, consumer.offsets().clone(), &mut done).await;
                    consumer.finish_revocation(revoking);
                }
                _ => done.clear(),
            }
        }
        Ok(())
    }

    /// Commits the offsets of done records. A failed commit is not repeated: if its member keeps the partition, the
    /// group may not get to the end, and the test fails.
    async fn commit(&self, process: i32, offsets: GroupOffsets, done: &mut BTreeMap<TopicPartition, i64>) {
        let record = |outcome| {
            for (partition, offset) in done.iter() {
                let place = (number(partition), *offset);
                self.run.record(process, Operation::Commit, outcome, place, self.group);
            }
        };
        record(Outcome::Invoke);
        let committed = offsets.commit(done).await;
        record(if committed.is_ok() { Outcome::Ok } else { Outcome::Info });
        if let Err(error) = committed {
            eprintln!("member {process} of group {} at {} ms: {error}", self.group, self.run.now_ms());
        }
        done.clear();
    }
}

/// Observes the committed offsets of these groups, for the topics they read, until the run stops.
pub(crate) async fn watch_commits(run: Arc<Run>, client: ClientConfig, groups: Vec<(u64, &'static str)>) {
    let admin = Admin::new(client);
    let process = run.process();
    while !run.is_in(Phase::Stop) {
        for &(group, topic) in &groups {
            look_at_commits(&run, &admin, process, group, topic).await;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Notes the committed offsets as events. Returns them, as far as the cluster answers.
pub(crate) async fn look_at_commits(
    run: &Run,
    admin: &Admin,
    process: i32,
    group: u64,
    topic: &'static str,
) -> Option<BTreeMap<TopicPartition, i64>> {
    for partition in partitions(topic) {
        run.record(process, Operation::Committed, Outcome::Invoke, (number(&partition), -1), group);
    }
    // The producer gets its answer before all partitions know of the end of its transaction. The read waits for offsets that were
    // committed by then.
    let wanted = partitions(topic).collect();
    let found = admin.stable_group_offsets(&group_name(group), &wanted).await.ok()?;
    let found: BTreeMap<_, _> = found.into_iter().map(|(partition, one)| (partition, one.offset)).collect();
    for partition in partitions(topic) {
        let offset = found.get(&partition).copied().unwrap_or(-1);
        run.record(process, Operation::Committed, Outcome::Ok, (number(&partition), offset), group);
    }
    Some(found)
}
