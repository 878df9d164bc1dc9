//! The metadata publisher: what changes of the metadata ask of this node is done here, in their order, on a thread of its
//! own, without any lock of the controller.
//!
//! ```text
//!  decide ─▶ append ─▶ commit ─▶ image ─▶ publish ─▶ carry out ─▶ the reply
//!  └─ the controller's lock ──────────────┘          └─ this thread ─┘
//! ```
//!
//! A change is judged by the image as it is when its turn comes, which may be ahead of it: what is not there any more is not
//! opened. What fails (no space, no descriptors) is tried again until it succeeds, or is not wanted any more; changes behind
//! it do not wait for that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_controller::{ConfigResource, MetadataChange, ResourceKind, TopicImage};
use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::{SetAside, TopicPartition};
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use super::replicated::end_process;
use super::{Controller, takeover, without_effect};
use crate::coordinators;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::supervised::{self, Role};
use mainstem_runtime::sync;
use mainstem_store::members::follow;
use mainstem_store::opening::{Unopened, open_all};
use mainstem_store::partition::NoLog;

/// Pause before what failed is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(500);

/// Time for which a stop waits for the change that is being carried out. Then logs may stay open, and the next start checks them.
const END_TIME: Duration = Duration::from_secs(10);

/// The same for a stop in a hurry.
const HURRIED_END_TIME: Duration = Duration::from_secs(1);

/// Interval at which a stop checks whether it should hurry.
const HURRY_CHECK: Duration = Duration::from_millis(50);

/// Queue to the thread, and those that wait for it.
pub(crate) struct Publisher {
    clock: Clock,
    state: Mutex<State>,
    /// Something is queued, or it ends.
    queued: sync::Condvar,
    /// Something was carried out, or it has ended.
    moved: sync::Condvar,
    thread: Mutex<Option<sync::Thread>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Committed>,
    /// Offset of the image when the last change was handed over.
    handed_over: i64,
    /// Everything below is carried out. Before the thread runs that is everything: the start does it all at once.
    published: i64,
    /// True while the thread runs.
    is_running: bool,
    ends: bool,
}

/// Changes that brought the image to an offset.
struct Committed {
    changes: Vec<MetadataChange>,
    upto: i64,
}

/// Next action of the thread.
enum Next {
    CarryOut(Committed),
    TryAgain,
    End,
}

impl Publisher {
    /// Nothing is published, and no thread runs.
    pub(crate) fn new(clock: Clock) -> Publisher {
        let (state, queued, moved, thread) = Default::default();
        Publisher { clock, state, queued, moved, thread }
    }

    /// Takes over changes, which brought the image to `upto`. In the order in which they were made.
    pub(crate) fn publish(&self, changes: Vec<MetadataChange>, upto: i64) {
        let mut state = self.state.lock();
        if state.ends || upto <= state.handed_over {
            return;
        }
        let is_idle = state.published == state.handed_over;
        state.handed_over = upto;
        if !state.is_running || (changes.is_empty() && is_idle) {
            state.published = upto;
            self.moved.notify_all();
        } else {
            state.queue.push_back(Committed { changes, upto });
            self.queued.notify_one();
        }
    }

    /// Waits until all changes up to an offset are carried out on this node, or until the time is over.
    ///
    /// # Errors
    /// REQUEST_TIMED_OUT, also when this node stops: the change is made, and the next start carries it out.
    pub(crate) fn wait(&self, upto: i64, deadline: Option<Instant>) -> Result<(), ErrorCode> {
        let mut state = self.state.lock();
        while state.published < upto {
            let is_over = match deadline {
                _ if state.ends => true,
                Some(deadline) => self.clock.wait_until(&self.moved, &mut state, deadline),
                None => {
                    self.moved.wait(&mut state);
                    false
                }
            };
            if is_over && state.published < upto {
                return Err(ErrorCode::REQUEST_TIMED_OUT);
            }
        }
        Ok(())
    }

    /// Begins to carry out what is published from now on: what the image was before, `from`, is in force.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn begin(&self, controller: &Arc<Controller>, from: i64) -> std::io::Result<()> {
        {
            let mut state = self.state.lock();
            (state.published, state.handed_over, state.is_running) = (from, from, true);
        }
        let own = controller.clone();
        let run = move || own.publisher.run(&own);
        let role = Role::Vital("what this node serves might differ from the metadata");
        match supervised::spawn(&controller.local.panics, "metadata-publisher", role, run) {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => {
                self.state.lock().is_running = false;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends after the change that is being carried out. Returns false if that takes too long, or longer than a stop in a
    /// hurry waits: then a log may be opened yet.
    pub(crate) fn end(&self, hurry: &AtomicBool) -> bool {
        let begun = self.clock.instant();
        let allowed = || if hurry.load(Ordering::Acquire) { HURRIED_END_TIME } else { END_TIME };
        let mut state = self.state.lock();
        state.ends = true;
        self.queued.notify_all();
        self.moved.notify_all();
        while state.is_running && self.clock.elapsed(begun) < allowed() {
            let look_at = self.clock.instant() + HURRY_CHECK;
            self.clock.wait_until(&self.moved, &mut state, look_at);
        }
        let has_ended = !state.is_running;
        drop(state);
        if let Some(thread) = self.thread.lock().take().filter(|_| has_ended) {
            let _ = thread.join();
        }
        has_ended
    }

    fn run(&self, of: &Controller) {
        let mut left = Left::default();
        loop {
            match self.next(left.due) {
                Next::CarryOut(Committed { changes, upto }) => {
                    left.carry_out(of, &changes);
                    self.state.lock().published = upto;
                    self.moved.notify_all();
                }
                Next::TryAgain => left.try_again(of),
                Next::End => break,
            }
        }
        self.state.lock().is_running = false;
        self.moved.notify_all();
    }

    fn next(&self, due: Option<Instant>) -> Next {
        let mut state = self.state.lock();
        loop {
            if state.ends {
                return Next::End;
            }
            if due.is_some_and(|due| due <= self.clock.instant()) {
                return Next::TryAgain;
            }
            if let Some(committed) = state.queue.pop_front() {
                return Next::CarryOut(committed);
            }
            match due {
                Some(due) => _ = self.clock.wait_until(&self.queued, &mut state, due),
                None => self.queued.wait(&mut state),
            }
        }
    }
}

impl Controller {
    /// Ends the publisher. Returns false if it is busy with a change yet.
    pub fn end_publishing(&self, hurry: &AtomicBool) -> bool {
        self.publisher.end(hurry)
    }
}

/// Changes that could not be carried out yet.
#[derive(Default)]
struct Left {
    /// Topics whose logs could not be opened, or not all of them.
    unserved: Vec<Uuid>,
    /// Topics with replicas that do not come or go yet as the metadata say.
    unfollowed: Vec<Uuid>,
    /// Files of deleted topics that could not be set aside.
    undeleted: Vec<Deletion>,
    /// When it is tried again.
    due: Option<Instant>,
}

/// Partitions of a deleted topic in a directory.
struct Deletion {
    dir: Arc<LogDir>,
    partitions: Arc<[TopicPartition]>,
    /// When their files may go.
    due_ms: u64,
}

impl Left {
    /// Does what changes of the metadata ask of this node.
    fn carry_out(&mut self, of: &Controller, changes: &[MetadataChange]) {
        let (mut grown, mut changed): (Vec<Uuid>, Vec<Uuid>) = Default::default();
        for change in changes {
            match change {
                MetadataChange::PartitionCreated { topic_id, .. } if !grown.contains(topic_id) => {
                    grown.push(*topic_id)
                }
                MetadataChange::PartitionChanged { topic_id, .. } if !changed.contains(topic_id) => {
                    changed.push(*topic_id)
                }
                MetadataChange::TopicDeleted { topic } => self.delete(of, topic),
                MetadataChange::ConfigChanged { resource, .. } => reconfigure(of, resource),
                _ => {}
            }
        }
        if changes.iter().any(|change| matches!(change, MetadataChange::ScramChanged { .. })) {
            of.local.host().into_iter().for_each(|host| host.credentials_changed());
        }
        if let Some(authorization) = &of.local.authorization {
            let mut acls = changes.iter().filter_map(acl_of).peekable();
            if acls.peek().is_some() {
                authorization.changed(&of.image(), acls);
            }
        }
        if changes.contains(&MetadataChange::QuotaChanged) {
            of.local.quotas.update(of.image().client_quotas());
        }
        self.serve(of, &grown);
        self.follow_members(of, &changed);
        // A node that is unregistered leaves the group of the metadata log, too.
        let is_of_nodes = |change: &MetadataChange| {
            matches!(change, MetadataChange::ControllerChanged { .. } | MetadataChange::BrokerChanged { .. })
        };
        if changes.iter().any(is_of_nodes) {
            of.follow_controllers();
        }
        if changes.iter().any(|change| matches!(change, MetadataChange::FeatureChanged { .. })) {
            if let Err(error) = takeover::check_features(&of.image(), of.view()) {
                end_process(&error.to_string());
            }
            of.local.transactions.set_version(&of.image());
            of.local.store.raise_to_level(of.image().mainstem_version());
        }
        self.set_due(&of.local.clock);
    }

    /// Tries again what could not be carried out.
    fn try_again(&mut self, of: &Controller) {
        self.undeleted.retain(|deletion| !deletion.is_done(of));
        let unserved = self.unserved.clone();
        self.serve(of, &unserved);
        let unfollowed = std::mem::take(&mut self.unfollowed);
        self.follow_members(of, &unfollowed);
        self.set_due(&of.local.clock);
    }

    fn set_due(&mut self, clock: &Clock) {
        let is_done = self.unserved.is_empty() && self.unfollowed.is_empty() && self.undeleted.is_empty();
        self.due = (!is_done).then(|| clock.instant() + RETRY_EVERY);
    }

    /// Serves topics, also those of coordinators, as far as they are in the image. Those whose logs cannot be opened now (no
    /// space, no descriptors) are tried again.
    fn serve(&mut self, of: &Controller, ids: &[Uuid]) {
        if ids.is_empty() {
            return;
        }
        let image = of.image();
        let topics: Vec<TopicImage> = ids.iter().filter_map(|id| image.topic_by_id(*id).cloned()).collect();
        let is_tried_again = |topic: &&TopicImage| self.unserved.contains(&topic.id);
        let first_tried = topics.iter().filter(|topic| !is_tried_again(topic));
        without_effect::warn(&image, &of.local.config(), first_tried);
        drop(image);
        self.unserved.retain(|id| !ids.contains(id));
        for (id, error) in
            open_all(&of.local.store, &topics, &|topic| of.settings_of(topic), Unopened::Refused).refused
        {
            tracing::error!("{error}; it is tried again");
            self.unserved.push(id);
        }
        let served = topics.iter().filter(|topic| !self.unserved.contains(&topic.id));
        let coordinators: Vec<_> =
            served.filter_map(|topic| of.local.store.topics.by_id(&topic.id)).collect();
        of.local.groups.topics_changed(&topics);
        if of.is_replicated() {
            // The node may be gone, after a stop that this thread was too slow for.
            if let Some(events) = of.events() {
                events.topics_served(&coordinators);
            }
            return;
        }
        for topic in coordinators {
            coordinators::load(&of.local, &topic.name, &topic.partitions);
        }
    }

    /// Has the replicas of topics come and go as the metadata say.
    fn follow_members(&mut self, of: &Controller, ids: &[Uuid]) {
        if !of.is_replicated() || ids.is_empty() {
            return;
        }
        let image = of.image();
        let topics: Vec<TopicImage> = ids.iter().filter_map(|id| image.topic_by_id(*id).cloned()).collect();
        drop(image);
        for topic in topics.iter().filter(|topic| topic.partitions.iter().any(|one| one.group.is_some())) {
            let following = follow(&of.local.store, topic, &of.settings_of(topic));
            if !following.is_done && !self.unfollowed.contains(&topic.id) {
                self.unfollowed.push(topic.id);
            }
            let served = of.local.store.topics.by_id(&topic.id).filter(|_| following.has_changed);
            // The node may be gone, after a stop that this thread was too slow for.
            if let Some((events, served)) = of.events().zip(served) {
                events.topics_served(&[served]);
            }
        }
    }

    fn delete(&mut self, of: &Controller, image: &TopicImage) {
        // A topic whose logs could not be opened is not served, but may have left directories.
        let partitions =
            of.local.store.topics.remove(&image.id).map(|topic| topic.partitions.clone()).unwrap_or_default();
        let now = of.local.clock.now();
        coordinators::unload(&of.local, &image.name, &partitions);
        // Closed without a sync: the records are not needed any more.
        partitions.iter().for_each(|partition| drop(partition.take_log(NoLog::Gone)));
        if let Some(peers) = &of.local.store.peers {
            peers.journals.forget(image.id.0);
        }
        let delay_ms =
            partitions.first().map_or(0, |partition| partition.settings().log.file_delete_delay_ms);
        let due_ms = now.mono_ms.saturating_add(delay_ms);
        let name: Arc<str> = image.name.as_str().into();
        let names: Arc<[_]> = (0..)
            .take(image.partitions.len())
            .map(|index| TopicPartition::new(name.clone(), index))
            .collect();
        let in_dir = |dir: &Arc<LogDir>| Deletion { dir: dir.clone(), partitions: names.clone(), due_ms };
        let deletions = of.local.store.dirs.online().map(in_dir);
        self.undeleted.extend(deletions.filter(|deletion| !deletion.is_done(of)));
        of.local.groups.topic_deleted(&image.name);
    }
}

impl Deletion {
    /// Sets the files aside. Returns false if that has to be tried again.
    fn is_done(&self, of: &Controller) -> bool {
        // A directory that has failed is looked through at the next start.
        let Some(first) = self.partitions.first().filter(|_| self.dir.failure().is_none()) else {
            return true;
        };
        // A later topic of this name has the place of what was set aside before.
        let taken = of.local.store.topics.by_name(&first.topic).map_or(0, |topic| topic.partitions.len());
        let left: Vec<_> = self.partitions.iter().skip(taken).cloned().collect();
        if left.is_empty() {
            return true;
        }
        match self.dir.set_aside(&left, SetAside::Delete, self.due_ms) {
            Ok(()) => true,
            Err(error) => {
                let topic = &*first.topic;
                tracing::error!(topic, "its files could not be set aside: {error}; it is tried again");
                false
            }
        }
    }
}

fn acl_of(change: &MetadataChange) -> Option<Uuid> {
    match change {
        MetadataChange::AclChanged { id } => Some(*id),
        _ => None,
    }
}

fn reconfigure(of: &Controller, resource: &ConfigResource) {
    let image = of.image();
    let topics: Vec<TopicImage> = match resource.kind {
        ResourceKind::Topic => image.topic(&resource.name).cloned().into_iter().collect(),
        ResourceKind::Broker => {
            of.reconfigure();
            of.rates_changed();
            of.local.groups.reconfigure(&of.local.config(), &of.image());
            image.topics().cloned().collect()
        }
        ResourceKind::ClientMetrics => {
            if let Some(host) = of.local.host() {
                host.subscription_changed(&resource.name, image.configs(resource));
            }
            Vec::new()
        }
        ResourceKind::Group => {
            of.local.groups.reconfigure(&of.local.config(), &image);
            Vec::new()
        }
    };
    without_effect::warn(&image, &of.local.config(), &topics);
    drop(image);
    for topic in topics {
        let settings = of.settings_of(&topic);
        if let Some(served) = of.local.store.topics.by_id(&topic.id) {
            served.partitions.iter().for_each(|partition| partition.set_settings(settings.clone()));
        }
    }
}
