//! Members of groups: replicas that come to this node or leave it as the metadata say, and the leaders that make it so in their groups.
//!
//! The metadata say which replicas a partition is to have. Each node that is among them opens a replica without members, and gets the
//! log from the group's leader. The leader changes the members step by step, and reports when they are those that are wanted. Then the
//! metadata name no others, and each other node removes its replica.

mod at_start;
mod following;
mod lost;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_controller::MetadataImage;
use mainstem_replication::GroupId;
use mainstem_runtime::supervised::{self, Role};
use mainstem_runtime::sync::{Condvar, Thread};
use parking_lot::Mutex;

pub(crate) use at_start::held_in;
pub use at_start::set_aside_at_start;
pub use following::{Following, follow};
pub(crate) use following::{set_aside, wanted};
pub(crate) use lost::is_lost;

use crate::partition::{Partition, Progress};
use crate::placing::PartitionKey;
use crate::store::Store;

/// Time between two steps of a leader.
const STEP_EVERY: Duration = Duration::from_millis(100);
/// The same while one of them is in a joint configuration, which two majorities have to decide about.
const STEP_EVERY_OF_JOINT: Duration = Duration::from_millis(10);
/// Time between two messages about one replica that does not come.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Time after which a move is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(600);

/// The groups that are led here and may not have the members that are wanted.
#[derive(Default)]
pub struct Members {
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<Thread>>,
    losses: lost::Losses,
    /// When it was said last that a replica does not come.
    said: Mutex<BTreeMap<PartitionKey, Instant>>,
}

#[derive(Default)]
struct State {
    groups: BTreeMap<GroupId, UnderWay>,
    generation: u64,
    stopped: bool,
}

/// A group whose members are not those that are wanted.
struct UnderWay {
    partition: Arc<Partition>,
    /// The version of what is wanted.
    version: u32,
    since: Instant,
    /// Another one than before says that there is new work.
    generation: u64,
    /// It was said that it takes long.
    is_said: bool,
}

impl Members {
    /// Has the leader of a partition look after its members: it leads since now, or others are wanted.
    pub fn look_after(&self, store: &Arc<Store>, partition: &Arc<Partition>) {
        let Some((group, version)) = partition.group_id().zip(partition.wants_members()) else { return };
        let mut state = self.state.lock();
        if state.stopped {
            return;
        }
        state.generation += 1;
        let generation = state.generation;
        let known = state.groups.remove(&group).filter(|known| known.version == version);
        let (since, is_said) =
            known.map_or((store.clock.instant(), false), |known| (known.since, known.is_said));
        let partition = partition.clone();
        state.groups.insert(group, UnderWay { partition, version, since, generation, is_said });
        drop(state);
        self.changed.notify_all();
        self.start(store);
    }

    /// Notes that a replica of this node could not be opened. `is_lost`: nothing that the node could do brings it back.
    pub fn note_unopened(&self, key: PartitionKey, incarnation: u32, is_lost: bool, now: Instant) {
        self.losses.note(key, incarnation, is_lost, now);
    }

    /// The replicas of a node that are lost and that the metadata still want, with their incarnations: others are to take their place.
    pub fn lost(&self, image: &MetadataImage, node: i32) -> Vec<(PartitionKey, u32)> {
        let is_wanted = |(topic, index): &PartitionKey, incarnation: u32| {
            let known = image.topic_by_id(*topic).zip(usize::try_from(*index).ok());
            let known = known.and_then(|(topic, at)| topic.partitions.get(at));
            known.is_some_and(|known| known.incarnation(node) == Some(incarnation))
        };
        self.losses.lost().into_iter().filter(|(key, own)| is_wanted(key, *own)).collect()
    }

    /// The time of the first loss; `None`: there is none.
    pub fn lost_since(&self) -> Option<Instant> {
        self.losses.since()
    }

    /// Returns true if it may be said that a replica does not come to this node: once a minute.
    fn may_say(&self, key: PartitionKey, now: Instant) -> bool {
        let mut said = self.said.lock();
        let is_due = |at: &Instant| now.saturating_duration_since(*at) >= SAID_EVERY;
        let may = said.get(&key).is_none_or(is_due);
        if may {
            said.insert(key, now);
        }
        may
    }

    /// The number of groups that are led here and do not have the members that are wanted yet.
    pub fn under_way(&self) -> usize {
        self.state.lock().groups.len()
    }

    /// The number of those that have been so for longer than ten minutes.
    pub fn stuck(&self, now: Instant) -> usize {
        self.state.lock().groups.values().filter(|group| group.is_stuck(now)).count()
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    fn start(&self, store: &Arc<Store>) {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return;
        }
        let own = store.clone();
        let role = Role::Tidies("replicas that move stay where they are");
        match supervised::spawn(&store.panics, "members", role, move || own.members.run(&own)) {
            Ok(started) => *thread = Some(started),
            Err(error) => tracing::error!("no thread can be made that moves replicas: {error}"),
        }
    }

    fn run(&self, store: &Store) {
        let mut pause = STEP_EVERY;
        while let Some(groups) = self.next(store, pause) {
            pause = STEP_EVERY;
            for (group, generation, partition) in groups {
                match partition.reconcile() {
                    Progress::Ended => self.end(group, generation),
                    Progress::UnderWay => self.say_if_stuck(group, store.clock.instant()),
                    Progress::Joint => pause = STEP_EVERY_OF_JOINT,
                }
            }
        }
    }

    /// The groups to look after, when it is time; `None` at the end.
    fn next(&self, store: &Store, pause: Duration) -> Option<Vec<(GroupId, u64, Arc<Partition>)>> {
        let mut state = self.state.lock();
        let due = store.clock.instant() + pause;
        while !state.stopped && !store.clock.wait_until(&self.changed, &mut state, due) {}
        while !state.stopped && state.groups.is_empty() {
            self.changed.wait(&mut state);
        }
        let all = state.groups.iter().map(|(group, one)| (*group, one.generation, one.partition.clone()));
        (!state.stopped).then(|| all.collect())
    }

    /// A group has nothing to do, unless it has got something since.
    fn end(&self, group: GroupId, generation: u64) {
        let mut state = self.state.lock();
        if state.groups.get(&group).is_some_and(|known| known.generation == generation) {
            state.groups.remove(&group);
        }
    }

    /// Says once that a group's members have not come to be those that are wanted for a long time.
    fn say_if_stuck(&self, group: GroupId, now: Instant) {
        let mut state = self.state.lock();
        let Some(known) = state.groups.get_mut(&group).filter(|known| known.is_stuck(now) && !known.is_said)
        else {
            return;
        };
        known.is_said = true;
        let partition = known.partition.clone();
        drop(state);
        let missing: Vec<_> = partition.missing_members().iter().map(ToString::to_string).collect();
        let (topic, index, missing) = (&partition.topic, partition.index, missing.join(", "));
        tracing::warn!(
            "{topic}-{index}: the move waits for more than ten minutes for replicas [{missing}]: they do not answer, or do not \
             come near enough; their nodes' logs say why"
        );
    }
}

impl UnderWay {
    fn is_stuck(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= STUCK_AFTER
    }
}
