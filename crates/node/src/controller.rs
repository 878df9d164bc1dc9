//! The driver of the metadata state machine: its records go into `__cluster_metadata-0`, what they change is carried out here.
//!
//! A change is decided and appended under one lock, on a thread that may wait. When its records are on disk they are applied to
//! the image, and the [`Publisher`] carries them out: it opens or closes logs, and puts settings into force. Only then the
//! change is answered: a client can use at once what the answer says is there.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use mainstem_config::BrokerConfig;
use mainstem_controller::snapshot_format::QuorumRecords;
use mainstem_controller::{
    ConfigResource, Decision, DirectoryAssignment, MetadataImage, MetadataStateMachine, NodeStart, NodeView,
    Permit, ResourceKind, TopicImage, names,
};
use mainstem_log::dir::{FoundPartition, LastStop, LogDir};
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity};
use mainstem_records::{BatchBuilder, BatchOptions, LeaderEpoch};
use mainstem_wire::messages::alter_client_quotas_request::AlterClientQuotasRequest;
use mainstem_wire::messages::alter_client_quotas_response::EntryData as AlteredQuota;
use mainstem_wire::messages::create_partitions_request::CreatePartitionsRequest;
use mainstem_wire::messages::create_partitions_response::CreatePartitionsTopicResult;
use mainstem_wire::messages::create_topics_request::CreateTopicsRequest;
use mainstem_wire::messages::create_topics_response::CreatableTopicResult;
use mainstem_wire::messages::delete_topics_request::DeleteTopicsRequest;
use mainstem_wire::messages::delete_topics_response::DeletableTopicResult;
use mainstem_wire::messages::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use mainstem_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use crate::local::Local;
use mainstem_links::Links;
use mainstem_replication::{ReplicaId, WantedMembers};
use mainstem_runtime::clock::Clock;
use mainstem_runtime::random;
use mainstem_runtime::supervised::AbortOnPanic;
use mainstem_runtime::sync;
use mainstem_store::error::StoreError;
use mainstem_store::journals::Journals;
use mainstem_store::log_dirs::LogDirs;
use mainstem_store::members::set_aside_at_start;
use mainstem_store::opening::{Unopened, open_all};
use mainstem_store::partition::{Durable, Partition};
use mainstem_store::placing::{InterruptedMoves, PartitionKey, place_all};
use mainstem_store::replicas::{Founding, OpenReplica};
use mainstem_store::scratch::with_scratch;
use mainstem_store::settings::TopicSettings;
use mainstem_store::topics::Topic;

mod bootstrap;
mod error;
mod node_snapshots;
mod publisher;
mod replicated;
mod shared;
mod snapshot;
pub mod snapshots;
mod takeover;
mod without_effect;

pub use bootstrap::{bootstrap_file, bootstrap_users};
pub use error::ControllerError;
use node_snapshots::NodeSnapshots;
pub(crate) use node_snapshots::SNAPSHOT;
use publisher::Publisher;
use replicated::{News, Replicated};
use shared::SharedMachine;
use snapshot::{SinceSnapshot, SnapshotCounts};

/// Kafka's id of the metadata topic: the number one.
const METADATA_TOPIC_ID: Uuid = Uuid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// Leader epoch of the first metadata batch of a new cluster. While one node writes them all it does not change.
const FIRST_METADATA_EPOCH: i32 = 1;

/// Largest batch of metadata: about 40 bytes for each partition of a node that starts after a crash, and 100 for each
/// of the 10,000 that a request may create.
const METADATA_BATCH_BYTES_MAX: u32 = 256 << 20;

/// Receiver of events of the metadata of a node that has others.
pub(crate) trait MetadataEvents: Send + Sync {
    /// This node decides in a moment.
    fn begins_to_decide(&self);

    /// This node decides from now on.
    fn decides(&self);

    /// Topics are served from now on.
    fn topics_served(&self, topics: &[Arc<Topic>]);

    /// The rates of replication may have changed.
    fn rates_changed(&self);

    /// The metadata may name other nodes of the cluster.
    fn controllers_changed(&self);
}

/// The level of `mainstem.version` from which lost replicas are replaced.
pub(crate) const LEVEL_OF_REPLACEMENTS: i16 = 2;

/// The node's metadata and the way to change it.
pub struct Controller {
    /// The node whose metadata they are.
    local: Arc<Local>,
    clock: Clock,
    machine: SharedMachine,
    /// Configuration and limits that this node adds to the metadata where it decides.
    view: NodeView,
    log: Arc<Partition>,
    /// Held from a decision until its records are appended, and while what is on disk is applied.
    turn: Mutex<()>,
    publisher: Publisher,
    /// The leader epoch of what is appended.
    epoch: i32,
    /// Records of the quorum that snapshots keep for Kafka.
    quorum: QuorumRecords,
    since_snapshot: Mutex<SinceSnapshot>,
    /// Snapshots that were written and loaded.
    pub snapshot_counts: SnapshotCounts,
    /// Records for a log that is empty, until the start takes them on.
    bootstrap: Mutex<Vec<Vec<u8>>>,
    /// With other nodes.
    replicated: Option<Replicated>,
    /// See [`Self::set_events`].
    events: OnceLock<Weak<dyn MetadataEvents>>,
}

impl Controller {
    /// Opens the metadata log in its directory and replays it. `accept_unprotected`: records that ask for protection that
    /// is not served are passed over.
    ///
    /// # Errors
    /// When it cannot be opened or read, or says what cannot be obeyed.
    pub fn new(
        view: NodeView,
        dir: &Arc<LogDir>,
        accept_unprotected: bool,
        local: Arc<Local>,
    ) -> Result<Arc<Self>, ControllerError> {
        let clock = local.clock.clone();
        let identity = PartitionIdentity {
            topic: names::CLUSTER_METADATA.into(),
            topic_id: METADATA_TOPIC_ID.0,
            partition: 0,
        };
        let settings = metadata_settings(view.start());
        let opened = Log::open(dir, &identity, settings.log.clone(), clock.mono_ms());
        let (log, _) =
            opened.map_err(|source| StoreError::Open { partition: identity.topic_partition(), source })?;
        let mut machine = MetadataStateMachine::default();
        let loaded = snapshot::load(&log, &mut machine, &clock)?;
        takeover::check(machine.image(), &view, view.start(), accept_unprotected)?;
        let bootstrap = match machine.image().next_offset() {
            0 => bootstrap::read(dir)?,
            _ => Vec::new(),
        };
        takeover::check_users(bootstrap::users(&bootstrap), view.start(), accept_unprotected)?;
        let log =
            Partition::new(identity.topic, 0, dir.clone(), settings, log, LeaderEpoch::new(loaded.epoch));
        Ok(Arc::new(Controller {
            local,
            machine: SharedMachine::new(machine),
            view,
            log,
            turn: Mutex::new(()),
            epoch: loaded.epoch,
            quorum: loaded.quorum,
            since_snapshot: Mutex::new(loaded.since),
            snapshot_counts: SnapshotCounts::new(loaded.snapshot_bytes, clock.clone()),
            publisher: Publisher::new(clock.clone()),
            bootstrap: Mutex::new(bootstrap),
            replicated: None,
            events: OnceLock::new(),
            clock,
        }))
    }

    /// Opens this node's replica of a cluster's metadata log. What its newest snapshot holds is known, and nothing is applied yet.
    /// `founding`: the replica, and the voters with which the log begins where the journal does not know it; none of a node that joins.
    ///
    /// # Errors
    /// When log or snapshot cannot be opened.
    pub fn in_cluster(
        view: NodeView,
        dir: &Arc<LogDir>,
        founding: Founding,
        (links, journals): (&Arc<Links>, &Journals),
        local: Arc<Local>,
    ) -> Result<Arc<Self>, ControllerError> {
        let identity = PartitionIdentity {
            topic: names::CLUSTER_METADATA.into(),
            topic_id: METADATA_TOPIC_ID.0,
            partition: 0,
        };
        let clock = links.clock().clone();
        let news = Arc::<News>::default();
        let settings = metadata_settings(view.start());
        let opened = Log::open(dir, &identity, settings.log.clone(), clock.mono_ms());
        let (log, _) =
            opened.map_err(|source| StoreError::Open { partition: identity.topic_partition(), source })?;
        let bootstrap = bootstrap::read(dir)?;
        takeover::check_users(bootstrap::users(&bootstrap), view.start(), false)?;
        let opening = OpenReplica {
            dir,
            journals,
            identity: &identity,
            founding,
            events: news.clone(),
            links,
            broadcast_commit: true,
        };
        let log = opening.open(log, settings)?;
        log.believe_changes();
        let mut machine = MetadataStateMachine::default();
        let (snapshots, snapshot_bytes) = NodeSnapshots::open(&log, &mut machine)?;
        takeover::check_features(machine.image(), &view)?;
        opening.register(&log);
        let since_snapshot = SinceSnapshot::new(machine.image().next_offset(), &clock);
        Ok(Arc::new(Controller {
            local,
            machine: SharedMachine::new(machine),
            view,
            log,
            turn: Mutex::new(()),
            epoch: FIRST_METADATA_EPOCH,
            quorum: QuorumRecords::default(),
            since_snapshot: Mutex::new(since_snapshot),
            snapshot_counts: SnapshotCounts::new(snapshot_bytes, clock.clone()),
            publisher: Publisher::new(clock.clone()),
            bootstrap: Mutex::new(bootstrap),
            replicated: Some(Replicated::new(news, snapshots, links.clone(), clock.clone())),
            events: OnceLock::new(),
            clock,
        }))
    }

    /// Has events go to a receiver, which this does not keep alive. Only the first call counts.
    pub(crate) fn set_events(&self, events: Weak<dyn MetadataEvents>) {
        let _ = self.events.set(events);
    }

    /// The receiver of events; `None` without other nodes, and when the node is gone.
    pub(crate) fn events(&self) -> Option<Arc<dyn MetadataEvents>> {
        self.events.get()?.upgrade()
    }

    /// Puts the configuration into force that the node has under the values that are committed.
    pub(crate) fn reconfigure(&self) {
        if let Some(host) = self.local.host() {
            host.reconfigure(self.config());
        }
    }

    /// The leader epoch of the metadata log.
    pub fn epoch(&self) -> i32 {
        match &self.replicated {
            None => self.epoch,
            Some(_) => self.log.leadership().epoch.get(),
        }
    }

    /// Asserts what holds of the state machine, see [`MetadataStateMachine::check`].
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.machine.read().check();
    }

    /// Returns the committed metadata.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.machine.image()
    }

    /// Configuration and limits that this node adds to the metadata, for proposals.
    pub fn view(&self) -> &NodeView {
        &self.view
    }

    /// The configuration under the values that are committed.
    fn config(&self) -> BrokerConfig {
        self.view.config(&self.image()).into_owned()
    }

    /// The metadata log.
    pub fn log(&self) -> &Arc<Partition> {
        &self.log
    }

    /// Finds the partitions, notes this start and opens the logs of all topics; what belongs to none is set aside. A
    /// partition whose log cannot be opened is offline; the others are served. Returns the moves that the last stop cut
    /// short.
    ///
    /// # Errors
    /// When the start cannot be noted, too little is left of the log directories, or there are fewer descriptors than
    /// logs.
    pub fn start(self: &Arc<Self>) -> Result<InterruptedMoves, ControllerError> {
        self.check_empty(&self.local.store.dirs)?;
        self.reconfigure();
        let placed = place_all(&self.local.store.dirs, &self.image(), self.local.id);
        if let Some(reason) = self.local.store.dirs.fatal_failure() {
            return Err(ControllerError::Directories(reason));
        }
        self.take_on_users()?;
        self.commit(|machine| machine.draw_decoy_secret(&self.view, bootstrap::random_secret))
            .map_err(ControllerError::Register)?;
        self.reconfigure();
        self.commit(MetadataStateMachine::abort_transaction).map_err(ControllerError::Register)?;
        let attached: Vec<_> = self.local.store.attached.iter().map(|queue| queue.metadata()).collect();
        let attach = |machine: &mut MetadataStateMachine| machine.attach_topics(&self.view, &attached);
        let decided = self.commit(attach).map_err(ControllerError::Register)?;
        decided.map_err(|error| ControllerError::Attach(error.message))?;
        let assign = |machine: &mut MetadataStateMachine| {
            machine.assign_directories(self.local.id, &placed.assignments)
        };
        self.commit(assign).map_err(ControllerError::Assign)?;
        let start = self.node_start();
        let epoch = self.commit(|machine| machine.register_node(&self.view, &start));
        let epoch = epoch.flatten().map_err(ControllerError::Register)?;
        self.local.store.dirs.all().for_each(|dir| dir.set_broker_epoch(epoch));
        let shorter = self.serve_all(&placed.refused)?;
        self.raise_leader_epochs(&shorter)?;
        self.begin_publishing()?;
        Ok(placed.moves)
    }

    /// Starts the publisher: it carries out all changes from the current image on, which is in force already.
    fn begin_publishing(self: &Arc<Self>) -> Result<(), ControllerError> {
        let image = self.image();
        without_effect::warn(&image, &self.local.config(), image.topics());
        let from = image.next_offset();
        drop(image);
        let begun = self.publisher.begin(self, from);
        begun.map_err(|_| ControllerError::Register(ErrorCode::UNKNOWN_SERVER_ERROR))
    }

    /// Opens the logs of all topics for a node that is registered in its cluster: as [`Self::start`] does. `report` is called
    /// with the places of this node's partitions before, `shorter` with the logs that are shorter than they were left.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_registered(
        self: &Arc<Self>,
        epoch: i64,
        report: impl FnOnce(&[DirectoryAssignment]),
        report_shorter: impl FnOnce(&[(Uuid, i32)]),
    ) -> Result<InterruptedMoves, ControllerError> {
        let local = &self.local;
        local.store.dirs.all().for_each(|dir| dir.set_broker_epoch(epoch));
        self.while_nothing_is_applied(|| {
            takeover::check(&self.image(), &self.view, &self.config(), false)?;
            local.store.raise_to_level(self.image().mainstem_version());
            if let Some(authorization) = &local.authorization {
                authorization.load(&self.image());
            }
            self.reconfigure();
            self.rates_changed();
            self.follow_controllers();
            set_aside_at_start(&local.store, &self.image());
            let placed = place_all(&local.store.dirs, &self.image(), local.id);
            self.note_lost(&placed.lost);
            if let Some(reason) = local.store.dirs.fatal_failure() {
                return Err(ControllerError::Directories(reason));
            }
            report(&placed.assignments);
            report_shorter(&self.serve_all(&placed.refused)?);
            self.begin_publishing()?;
            Ok(placed.moves)
        })
    }

    /// Notes replicas of which the log directory is not there any more.
    fn note_lost(&self, lost: &[PartitionKey]) {
        if !lost.is_empty() && self.image().mainstem_version() >= LEVEL_OF_REPLACEMENTS {
            let seconds = self.config().replication.lost_replica_timeout_ms / 1_000;
            tracing::warn!(
                replicas = lost.len(),
                "replicas of this node are in a log directory that is not there: they are replaced by new ones in {seconds} s \
                 (mainstem.lost.replica.timeout.ms). Stop this node before that, and mount the disk, if it is not lost"
            );
        }
        let image = self.image();
        for (topic, index) in lost {
            let partition = image.topic_by_id(*topic).zip(usize::try_from(*index).ok());
            let partition = partition.and_then(|(topic, at)| topic.partitions.get(at));
            if let Some(incarnation) = partition.and_then(|known| known.incarnation(self.local.id)) {
                let now = self.local.clock.instant();
                self.local.store.members.note_unopened((*topic, *index), incarnation, true, now);
            }
        }
    }

    /// Has the group of the metadata log get the members that the metadata name, and the node link to them.
    pub(crate) fn follow_controllers(&self) {
        self.want_quorum();
        if let Some(events) = self.events() {
            events.controllers_changed();
        }
    }

    /// Has the leader of the metadata log look after its members: those that the metadata name vote, or follow.
    pub(crate) fn want_quorum(&self) {
        let image = self.image();
        if image.controllers_version() == 0 {
            return;
        }
        let mut wanted = WantedMembers::default();
        for (node, controller) in image.controllers() {
            let replica = ReplicaId::new(node, controller.incarnation);
            let members = if controller.votes { &mut wanted.voters } else { &mut wanted.learners };
            members.push(replica);
        }
        self.log.want_members(wanted, image.controllers_version());
        let store = &self.local.store;
        store.members.look_after(store, &self.log);
    }

    fn rates_changed(&self) {
        if let Some(events) = self.events() {
            events.rates_changed();
        }
    }

    /// This start, as it is registered.
    pub(crate) fn node_start(&self) -> NodeStart {
        let unclean =
            self.local.store.dirs.online().filter(|dir| {
                matches!(dir.last_stop(), LastStop::UncleanSameBoot | LastStop::UncleanOtherBoot)
            });
        NodeStart {
            node_id: self.local.id,
            rack: self.config().rack,
            incarnation_id: random::uuid(),
            endpoints: self.local.advertised.clone(),
            log_dirs: online_directories(&self.local),
            cordoned_dirs: cordoned_directories(&self.local),
            unclean_dirs: unclean.map(|dir| Uuid(dir.directory_id())).collect(),
            features: self.view.feature_ranges(),
        }
    }

    /// Puts quotas and subscriptions into force and opens the logs of all topics. Returns those that are shorter than they
    /// were left.
    fn serve_all(&self, refused: &HashSet<PartitionKey>) -> Result<Vec<(Uuid, i32)>, ControllerError> {
        self.local.quotas.update(self.image().client_quotas());
        let image = self.image();
        for name in image.configured(ResourceKind::ClientMetrics) {
            let resource = ConfigResource::new(ResourceKind::ClientMetrics, name);
            if let Some(host) = self.local.host() {
                host.subscription_changed(name, image.configs(&resource));
            }
        }
        drop(image);
        let topics: Vec<TopicImage> = self.image().topics().cloned().collect();
        let opened = open_all(
            &self.local.store,
            &topics,
            &|topic| self.settings_of(topic),
            Unopened::Offline(refused),
        );
        match opened.refused.into_iter().next() {
            Some((_, error)) => Err(error.into()),
            None => Ok(opened.shorter),
        }
    }

    /// A metadata log that has lost all of its records would have every partition set aside.
    fn check_empty(&self, dirs: &LogDirs) -> Result<(), ControllerError> {
        if self.image().next_offset() > 0 {
            return Ok(());
        }
        let is_topics = |found: &FoundPartition| &*found.partition.topic != names::CLUSTER_METADATA;
        let has_partitions =
            |dir: &&Arc<LogDir>| dir.partitions().is_ok_and(|found| found.iter().any(is_topics));
        match dirs.online().find(has_partitions) {
            Some(dir) => Err(ControllerError::MetadataEmpty {
                path: dir.path().to_owned(),
                metadata: dirs.metadata().path().to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Readers of a log that was left in order and is shorter now may be ahead of it, as after an unclean stop.
    fn raise_leader_epochs(&self, shorter: &[(Uuid, i32)]) -> Result<(), ControllerError> {
        if shorter.is_empty() {
            return Ok(());
        }
        let decide = |machine: &mut MetadataStateMachine| {
            machine.raise_leader_epochs(&self.view, self.view.node_id(), shorter)
        };
        self.commit(decide).map_err(ControllerError::Register)?;
        let image = self.image();
        for (id, index) in shorter {
            let served = self.local.store.topics.by_id(id);
            if let Some(partition) = served.as_ref().and_then(|topic| topic.partition(*index))
                && let Some(known) = image.topic_by_id(*id).map(|topic| &topic.partitions[*index as usize])
            {
                partition.set_leader_epoch(LeaderEpoch::new(known.leader_epoch));
                tracing::warn!(
                    topic = %partition.topic,
                    partition = index,
                    "the log is shorter than it was left; readers who are ahead of it get an error"
                );
            }
        }
        Ok(())
    }

    /// CreateTopics.
    pub fn create_topics(
        &self,
        request: &CreateTopicsRequest<'_>,
        permit: Permit<'_>,
    ) -> Vec<CreatableTopicResult<'static>> {
        let decide = |machine: &mut MetadataStateMachine| {
            machine.create_topics(&self.view, request, &mut random_bits, permit)
        };
        let reply = self.decide(decide);
        let mut topics = reply.map_or_else(|error| refuse_topics(request, error), |response| response.topics);
        if !request.validate_only {
            topics.iter_mut().for_each(|topic| self.report_unopened(topic));
        }
        topics
    }

    /// Creates topics that a client named and that are not there, as `auto.create.topics.enable` wants it.
    pub fn create_missing_topics(
        &self,
        names: &[&str],
        permit: Permit<'_>,
    ) -> Vec<CreatableTopicResult<'static>> {
        // Of the metadata leader in a cluster.
        let decide = |machine: &mut MetadataStateMachine| {
            machine.create_missing_topics(&self.view, names, &mut random_bits, permit)
        };
        self.decide(decide).map_or_else(
            |error| names.iter().map(|name| refuse_topic(name, error)).collect(),
            |response| response.topics,
        )
    }

    /// DeleteTopics.
    pub fn delete_topics(
        &self,
        request: &DeleteTopicsRequest<'_>,
        version: i16,
        permit: Permit<'_>,
    ) -> Result<Vec<DeletableTopicResult<'static>>, ErrorCode> {
        let decide =
            |machine: &mut MetadataStateMachine| machine.delete_topics(&self.view, request, version, permit);
        Ok(self.decide(decide)?.responses)
    }

    /// CreatePartitions.
    pub fn create_partitions(
        &self,
        request: &CreatePartitionsRequest<'_>,
        permit: Permit<'_>,
    ) -> Result<Vec<CreatePartitionsTopicResult<'static>>, ErrorCode> {
        let decide =
            |machine: &mut MetadataStateMachine| machine.create_partitions(&self.view, request, permit);
        Ok(self.decide(decide)?.results)
    }

    /// IncrementalAlterConfigs.
    pub fn alter_configs(
        &self,
        request: &IncrementalAlterConfigsRequest<'_>,
    ) -> Result<Vec<AlterConfigsResourceResponse<'static>>, ErrorCode> {
        let decide = |machine: &mut MetadataStateMachine| machine.alter_configs(&self.view, request);
        Ok(self.decide(decide)?.responses)
    }

    /// AlterClientQuotas.
    pub fn alter_client_quotas(
        &self,
        request: &AlterClientQuotasRequest<'_>,
    ) -> Result<Vec<AlteredQuota<'static>>, ErrorCode> {
        // Looked up before the state machine is asked, since the resolver may take its time.
        let parts = request.entries.iter().flat_map(|entry| &entry.entity);
        let ips =
            parts.filter(|part| part.entity_type == "ip").filter_map(|part| part.entity_name.as_deref());
        let known = self.local.quotas.resolvable(ips);
        let resolves = |ip: &str| known.iter().any(|name| name == ip);
        Ok(self.decide(|machine| machine.alter_client_quotas(request, &resolves))?.entries)
    }

    /// A topic that exists and is not served yet is no success.
    fn report_unopened(&self, topic: &mut CreatableTopicResult<'static>) {
        if topic.error_code == 0 && self.local.store.topics.by_name(&topic.name).is_none() {
            topic.error_code = ErrorCode::KAFKA_STORAGE_ERROR.code();
            topic.error_message = Some("The topic was created; its files cannot be opened yet.".into());
        }
    }

    /// The values that a topic's partitions run with.
    pub(crate) fn settings_of(&self, topic: &TopicImage) -> Arc<TopicSettings> {
        let image = self.image();
        let own = image.configs(&ConfigResource::new(ResourceKind::Topic, topic.name.clone()));
        let replicas = topic.replication_factor();
        TopicSettings::resolve(own, &self.local.config(), (replicas, names::is_internal(&topic.name)))
    }

    /// Makes the change that the state machine decides on, and has it carried out here. What the reply says is durable, and
    /// in force on this node as far as it could be.
    ///
    /// # Errors
    /// When the metadata log cannot be written; REQUEST_TIMED_OUT where the change is made, and the node stops before it is
    /// carried out.
    pub fn decide<R>(
        &self,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
    ) -> Result<R, ErrorCode> {
        let deadline = self.commit_time().map(|time| self.clock.instant() + time);
        let (reply, reply_at) = self.change(decide)?;
        self.publisher.wait(reply_at, deadline)?;
        Ok(reply)
    }

    /// Makes a change that asks nothing of this node. What the reply says is durable.
    ///
    /// # Errors
    /// When the metadata log cannot be written.
    pub fn commit<R>(
        &self,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
    ) -> Result<R, ErrorCode> {
        self.change(decide).map(|(reply, _)| reply)
    }

    /// Decides a change, makes it durable and applies it. With the reply comes the offset up to which the image has to be
    /// for it.
    fn change<R>(
        &self,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
    ) -> Result<(R, i64), ErrorCode> {
        if let Some(replicated) = &self.replicated {
            return self.change_replicated(replicated, decide);
        }
        let (decision, durable) = {
            let _turn = self.turn.lock();
            let decision = {
                let _undo = RollbackOnPanic::new(self);
                self.machine.decide(decide)
            };
            let _guard = AbortOnPanic(MIGHT_DIFFER);
            if let Err(error) = self.append(&decision.records, decision.base_offset) {
                self.roll_back_to(decision.base_offset);
                return Err(error);
            }
            let durable = self.when_durable(decision.reply_at);
            (decision, durable)
        };
        let durable = durable.recv().unwrap_or(Err(ErrorCode::KAFKA_STORAGE_ERROR));
        let _turn = self.turn.lock();
        let _guard = AbortOnPanic(MIGHT_DIFFER);
        match durable {
            Ok(()) => self.apply_durable(decision.reply_at)?,
            Err(error) => {
                // The log takes nothing more: what was decided after this has failed too, or will.
                self.machine.decide(MetadataStateMachine::rollback);
                return Err(error);
            }
        }
        Ok((decision.reply, decision.reply_at))
    }

    /// Applies what was decided up to an offset, and is on disk. Under the turn.
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR where it was forgotten, since the log has failed with what came after it.
    fn apply_durable(&self, upto: i64) -> Result<(), ErrorCode> {
        if self.machine.read().ahead_offset() < upto {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let (changes, applied) = self.machine.apply(|machine| {
            // A later decision may have been here before.
            let changes = machine.committed(upto);
            (changes, machine.image().next_offset())
        });
        self.publisher.publish(changes, applied);
        Ok(())
    }

    /// Forgets what was decided from an offset on. What was decided before is in the log. Under the turn.
    fn roll_back_to(&self, offset: i64) {
        let is_ahead = self.image().next_offset() < offset;
        if is_ahead && matches!(self.when_durable(offset).recv(), Ok(Ok(()))) {
            // Nothing was forgotten, or all of it.
            let _ = self.apply_durable(offset);
        }
        self.machine.decide(MetadataStateMachine::rollback);
    }

    /// Time for which a decision waits to be carried out. On one node there is no limit: only this node is waited for, and an
    /// earlier answer would claim that what it names can be used. A directory that hangs may delay that; other requests have
    /// their own threads.
    fn commit_time(&self) -> Option<Duration> {
        self.replicated.as_ref().map(|_| replicated::COMMIT_TIME)
    }

    /// Appends records as one batch.
    fn append(&self, records: &[Vec<u8>], base_offset: i64) -> Result<(), ErrorCode> {
        if records.is_empty() {
            return Ok(());
        }
        let wall_ms = self.clock.wall_ms();
        let bytes = batch_of(records, wall_ms)?;
        let appended =
            with_scratch(|scratch| self.log.append(&bytes, Origin::Coordinator, &self.clock, scratch));
        let appended = appended.map_err(|refused| refused.code())?.appended;
        self.since_snapshot.lock().count(bytes.len(), wall_ms);
        assert_eq!(appended.base_offset, base_offset, "the state machine and its log count alike");
        Ok(())
    }

    /// Returns a receiver of the result when the log is durable up to an offset.
    fn when_durable(&self, upto: i64) -> sync::Receiver<Result<(), ErrorCode>> {
        let (sender, durable) = sync::channel();
        let tell = move |result| {
            // The receiver may be gone.
            let _ = sender.send(result);
        };
        self.log.when_durable(upto, Durable::Call(Box::new(tell)));
        durable
    }
}

/// Records as one batch.
///
/// # Errors
/// POLICY_VIOLATION where they are too large for one.
fn batch_of(records: &[Vec<u8>], wall_ms: i64) -> Result<Vec<u8>, ErrorCode> {
    let too_large = |_| ErrorCode::POLICY_VIOLATION;
    let mut batch = BatchBuilder::new(BatchOptions::default());
    for value in records {
        batch.append(wall_ms, None, Some(value), &[]).map_err(too_large)?;
    }
    batch.build().map_err(too_large)
}

/// Why the process ends after a panic in the midst of a change.
const MIGHT_DIFFER: &str = "the metadata and its log might differ";

/// A decision that panics is none: what is committed, or was decided before, stays as it is.
struct RollbackOnPanic<'a> {
    controller: &'a Controller,
    /// End offset of the log.
    decided: i64,
}

impl<'a> RollbackOnPanic<'a> {
    fn new(controller: &'a Controller) -> Self {
        RollbackOnPanic { controller, decided: controller.machine.read().ahead_offset() }
    }
}

impl Drop for RollbackOnPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        match &self.controller.replicated {
            None => self.controller.roll_back_to(self.decided),
            // What is in the log is applied when it is committed.
            Some(replicated) => self.controller.stop_deciding(replicated),
        }
    }
}

pub(crate) fn online_directories(local: &Local) -> Vec<Uuid> {
    local.store.dirs.online().map(|dir| Uuid(dir.directory_id())).collect()
}

/// By `cordoned.log.dirs`, whether they are online or not.
pub(crate) fn cordoned_directories(local: &Local) -> Vec<Uuid> {
    let config = local.config();
    let cordoned = local.store.dirs.data().iter().filter(|dir| local.store.dirs.is_cordoned(&config, dir));
    cordoned.map(|dir| Uuid(dir.directory_id())).collect()
}

fn random_bits() -> u128 {
    u128::from_ne_bytes(random::bytes())
}

/// The metadata log keeps what no snapshot holds. A segment is closed when a snapshot is due, so that it can go with the
/// next one. A change is one batch whatever its size: a start after a crash has a record for each partition of the node.
fn metadata_settings(config: &BrokerConfig) -> Arc<TopicSettings> {
    let interval = i64::try_from(config.metadata_log.max_snapshot_interval_ms).unwrap_or(i64::MAX);
    let log = LogConfig {
        segment_ms: if interval > 0 { interval } else { LogConfig::default().segment_ms },
        retention_ms: None,
        retention_bytes: None,
        max_message_bytes: METADATA_BATCH_BYTES_MAX,
        ..LogConfig::default()
    };
    Arc::new(TopicSettings::of_log(Arc::new(log), false, 1))
}

fn refuse_topics(request: &CreateTopicsRequest<'_>, error: ErrorCode) -> Vec<CreatableTopicResult<'static>> {
    request.topics.iter().map(|topic| refuse_topic(&topic.name, error)).collect()
}

fn refuse_topic(name: &str, error: ErrorCode) -> CreatableTopicResult<'static> {
    CreatableTopicResult {
        name: name.to_owned().into(),
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    }
}
