//! The driver of the metadata state machine: its records go into `__cluster_metadata-0`, what they change is carried out here.
//!
//! Changes are made one at a time, on threads that may wait: decide, append, wait until the records are on disk, apply,
//! open or close logs, and only then answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc;

use mainstem_config::{BrokerConfig, Quorum};
use mainstem_controller::{
    ConfigResource, Decision, DirectoryAssignment, MetadataChange, MetadataImage, MetadataStateMachine,
    NodeStart, Permit, ProducerIds, ResourceKind, TopicImage, names,
};
use mainstem_log::dir::{FoundPartition, LastStop, LogDir};
use mainstem_log::partition_dir::{SetAside, TopicPartition};
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity};
use mainstem_records::{BatchBuilder, BatchOptions};
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
use parking_lot::{Mutex, RwLock};

use crate::broker::Broker;
use crate::cluster::Cluster;
use crate::coordinators;
use crate::links::{Links, Rates};
use crate::random;
use crate::resources::Refused;
use crate::scratch::with_scratch;
use crate::server;
use crate::settings::TopicSettings;
use crate::storage::log_dirs::LogDirs;
use crate::storage::opening::{Unopened, open_all};
use crate::storage::partition::{Durable, NoLog, Partition};
use crate::storage::placing::{PartitionKey, place_all};
use crate::storage::replicas::{Journals, OpenReplica};
use crate::supervised::AbortOnPanic;

mod bootstrap;
pub(crate) mod cluster;
mod error;
mod replicated;
mod snapshot;
pub(crate) mod snapshots;
mod takeover;

pub use bootstrap::bootstrap_file;
pub(crate) use bootstrap::bootstrap_users;
pub use error::ControllerError;
use replicated::Replicated;
use snapshot::SinceSnapshot;
use snapshots::QuorumRecords;

/// Kafka's id of the metadata topic: the number one.
const METADATA_TOPIC_ID: Uuid = Uuid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// Leader epoch of the first metadata batch of a new cluster. While one node writes them all it does not change.
const FIRST_METADATA_EPOCH: i32 = 1;

/// Largest batch of metadata: about 40 bytes for each partition of a node that starts after a crash, and 100 for each
/// of the 10,000 that a request may create.
const METADATA_BATCH_BYTES_MAX: u32 = 256 << 20;

/// Partitions that were on their way into another log directory.
pub(crate) type InterruptedMoves = Vec<(PartitionKey, Arc<LogDir>)>;

/// The node's metadata and the way to change it.
pub(crate) struct Controller {
    machine: RwLock<MetadataStateMachine>,
    log: Arc<Partition>,
    /// Held from a decision until it is carried out: one change at a time.
    turn: Mutex<()>,
    /// The leader epoch of what is appended.
    epoch: i32,
    /// What snapshots keep for Kafka.
    quorum: QuorumRecords,
    since_snapshot: Mutex<SinceSnapshot>,
    producer_ids: Mutex<ProducerIds>,
    /// Topics whose logs could not be opened when they were created or grown.
    unserved: Mutex<Vec<Uuid>>,
    /// Records for a log that is empty, until the start takes them on.
    bootstrap: Mutex<Vec<Vec<u8>>>,
    /// With other nodes.
    replicated: Option<Replicated>,
}

impl Controller {
    /// Opens the metadata log in its directory and replays it. `accept_unprotected`: records that ask for protection that
    /// is not served are passed over.
    ///
    /// # Errors
    /// When it cannot be opened or read, or says what cannot be obeyed.
    pub(crate) fn new(
        config: &BrokerConfig,
        dir: &Arc<LogDir>,
        accept_unprotected: bool,
    ) -> Result<Self, ControllerError> {
        let identity = PartitionIdentity {
            topic: names::CLUSTER_METADATA.into(),
            topic_id: METADATA_TOPIC_ID.0,
            partition: 0,
        };
        let settings = metadata_settings(config);
        let opened = Log::open(dir, &identity, settings.log.clone(), 0);
        let (log, _) = opened
            .map_err(|source| ControllerError::Open { partition: identity.topic_partition(), source })?;
        let mut machine = MetadataStateMachine::new(dir.cluster_id(), config.clone());
        let loaded = snapshot::load(&log, &mut machine)?;
        takeover::check(machine.image(), config, accept_unprotected)?;
        let bootstrap = match machine.image().next_offset() {
            0 => bootstrap::read(dir)?,
            _ => Vec::new(),
        };
        takeover::check_users(bootstrap::users(&bootstrap), config, accept_unprotected)?;
        let log = Partition::new(identity.topic, 0, dir.clone(), settings, log, loaded.epoch);
        let producer_ids = Mutex::default();
        Ok(Controller {
            machine: RwLock::new(machine),
            log,
            turn: Mutex::new(()),
            epoch: loaded.epoch,
            quorum: loaded.quorum,
            since_snapshot: Mutex::new(loaded.since),
            producer_ids,
            unserved: Mutex::default(),
            bootstrap: Mutex::new(bootstrap),
            replicated: None,
        })
    }

    /// Opens this node's replica of a cluster's metadata log. Nothing is applied yet.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn in_cluster(
        config: &BrokerConfig,
        dir: &Arc<LogDir>,
        quorum: &Quorum,
        (links, journals): (&Arc<Links>, &Journals),
    ) -> Result<Self, ControllerError> {
        let identity = PartitionIdentity {
            topic: names::CLUSTER_METADATA.into(),
            topic_id: METADATA_TOPIC_ID.0,
            partition: 0,
        };
        let (replicated, news) = Replicated::new();
        let settings = metadata_settings(config);
        let opened = Log::open(dir, &identity, settings.log.clone(), 0);
        let (log, _) = opened
            .map_err(|source| ControllerError::Open { partition: identity.topic_partition(), source })?;
        let bootstrap = bootstrap::read(dir)?;
        takeover::check_users(bootstrap::users(&bootstrap), config, false)?;
        let voters: Vec<i32> = quorum.ids().collect();
        let opening = OpenReplica {
            dir,
            journals,
            identity: &identity,
            voters: &voters,
            own: config.node_id,
            events: news,
            links,
            broadcast_commit: true,
        };
        let log = opening.open(log, settings)?;
        opening.register(&log);
        Ok(Controller {
            machine: RwLock::new(MetadataStateMachine::new(dir.cluster_id(), config.clone())),
            log,
            turn: Mutex::new(()),
            epoch: FIRST_METADATA_EPOCH,
            quorum: QuorumRecords::default(),
            since_snapshot: Mutex::new(SinceSnapshot::new()),
            producer_ids: Mutex::default(),
            unserved: Mutex::default(),
            bootstrap: Mutex::new(bootstrap),
            replicated: Some(replicated),
        })
    }

    /// The leader epoch of the metadata log.
    pub(crate) fn epoch(&self) -> i32 {
        match &self.replicated {
            None => self.epoch,
            Some(_) => self.log.leadership().epoch,
        }
    }

    /// What is committed.
    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        self.machine.read().shared_image()
    }

    /// The metadata log.
    pub(crate) fn log(&self) -> &Arc<Partition> {
        &self.log
    }

    /// Finds the partitions, notes this start and opens the logs of all topics; what belongs to none is set aside. A
    /// partition whose log cannot be opened is offline; the others are served. Returns the moves that the last stop cut
    /// short.
    ///
    /// # Errors
    /// When the start cannot be noted, too little is left of the log directories, or there are fewer descriptors than
    /// logs.
    pub(crate) fn start(&self, broker: &Broker) -> Result<InterruptedMoves, ControllerError> {
        self.check_empty(&broker.dirs)?;
        self.machine.write().limit_partitions(broker.dirs.partitions_max());
        server::reconfigure(broker, self.machine.read().config().clone());
        let placed = place_all(&broker.dirs, &self.image(), broker.node.id);
        if let Some(reason) = broker.dirs.fatal_failure() {
            return Err(ControllerError::Directories(reason));
        }
        self.take_on_users()?;
        self.change(MetadataStateMachine::abort_transaction, |_| {}).map_err(ControllerError::Register)?;
        let attached: Vec<_> = broker.attached.iter().map(|queue| queue.metadata()).collect();
        let attach = |machine: &mut MetadataStateMachine| machine.attach_topics(&attached);
        let decided = self.change(attach, |_| {}).map_err(ControllerError::Register)?;
        decided.map_err(|error| ControllerError::Attach(error.message))?;
        let assign = |machine: &mut MetadataStateMachine| {
            machine.assign_directories(broker.node.id, &placed.assignments)
        };
        self.change(assign, |_| {}).map_err(ControllerError::Assign)?;
        let start = self.node_start(broker);
        let epoch = self.change(|machine| machine.register_node(&start), |_| {});
        let epoch = epoch.map_err(ControllerError::Register)?;
        broker.dirs.all().for_each(|dir| dir.set_broker_epoch(epoch));
        let shorter = self.serve_all(broker, &placed.refused)?;
        self.raise_leader_epochs(broker, &shorter)?;
        Ok(placed.moves)
    }

    /// Registers this node in its cluster, and then does what [`Self::start`] does. Waits for the metadata leader, and says
    /// for whom.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_in_cluster(
        &self,
        broker: &Arc<Broker>,
        cluster: &Cluster,
    ) -> Result<InterruptedMoves, ControllerError> {
        self.machine.write().limit_partitions(broker.dirs.partitions_max());
        self.begin_to_apply(broker)
            .map_err(|_| ControllerError::Register(ErrorCode::UNKNOWN_SERVER_ERROR))?;
        let epoch = cluster.register(broker, &self.node_start(broker))?;
        broker.dirs.all().for_each(|dir| dir.set_broker_epoch(epoch));
        self.carry_out_from_now(|| {
            let config = self.machine.read().config().clone();
            takeover::check(&self.image(), &config, false)?;
            if let Some(authorization) = broker.security.authorization() {
                authorization.load(&self.image());
            }
            server::reconfigure(broker, config);
            set_replication_rates(broker);
            let placed = place_all(&broker.dirs, &self.image(), broker.node.id);
            if let Some(reason) = broker.dirs.fatal_failure() {
                return Err(ControllerError::Directories(reason));
            }
            cluster.report_directories(broker, &placed.assignments);
            let opened = self.serve_all(broker, &placed.refused)?;
            cluster.report_shorter(broker, &opened);
            Ok(placed.moves)
        })
    }

    /// This start, as it is registered.
    fn node_start(&self, broker: &Broker) -> NodeStart {
        let unclean = broker
            .dirs
            .online()
            .filter(|dir| matches!(dir.last_stop(), LastStop::UncleanSameBoot | LastStop::UncleanOtherBoot));
        NodeStart {
            node_id: broker.node.id,
            rack: self.machine.read().config().rack.clone(),
            incarnation_id: random::uuid(),
            endpoints: broker.node.advertised.clone(),
            log_dirs: online_directories(broker),
            cordoned_dirs: cordoned_directories(broker),
            unclean_dirs: unclean.map(|dir| Uuid(dir.directory_id())).collect(),
        }
    }

    /// Puts quotas and subscriptions into force and opens the logs of all topics. Returns those that are shorter than they
    /// were left.
    fn serve_all(
        &self,
        broker: &Broker,
        refused: &HashSet<PartitionKey>,
    ) -> Result<Vec<(Uuid, i32)>, ControllerError> {
        broker.quotas.update(self.image().client_quotas());
        let image = self.image();
        for name in image.configured(ResourceKind::ClientMetrics) {
            let resource = ConfigResource::new(ResourceKind::ClientMetrics, name);
            broker.telemetry.subscribe(name, image.configs(&resource));
        }
        drop(image);
        let topics: Vec<TopicImage> = self.image().topics().cloned().collect();
        let opened = open_all(broker, &topics, Unopened::Offline(refused));
        match opened.refused.into_iter().next() {
            Some((_, error)) => Err(error),
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
    fn raise_leader_epochs(&self, broker: &Broker, shorter: &[(Uuid, i32)]) -> Result<(), ControllerError> {
        if shorter.is_empty() {
            return Ok(());
        }
        let decide =
            |machine: &mut MetadataStateMachine| machine.raise_leader_epochs(broker.node.id, shorter);
        self.change(decide, |_| {}).map_err(ControllerError::Register)?;
        let image = self.image();
        for (id, index) in shorter {
            let served = broker.topics.by_id(id);
            if let Some(partition) = served.as_ref().and_then(|topic| topic.partition(*index))
                && let Some(known) = image.topic_by_id(*id).map(|topic| &topic.partitions[*index as usize])
            {
                partition.set_leader_epoch(known.leader_epoch);
                tracing::warn!(
                    topic = %partition.topic,
                    partition = index,
                    "the log is shorter than it was left; readers who are ahead of it get an error"
                );
            }
        }
        Ok(())
    }

    /// Notes that a partition is in another log directory now. What cannot be noted the next start finds out.
    pub(crate) fn note_directory(&self, broker: &Arc<Broker>, assignment: DirectoryAssignment) {
        if let Some(cluster) = &broker.cluster {
            return cluster.report_directories(broker, &[assignment]);
        }
        if let Err(error) =
            self.change(|machine| machine.assign_directories(machine.node_id(), &[assignment]), |_| {})
        {
            tracing::warn!("the new place of a partition could not be noted in the metadata log: {error}");
        }
    }

    /// Notes which log directories are left, so that new partitions go into them.
    pub(crate) fn note_online_directories(&self, broker: &Arc<Broker>) {
        let online = online_directories(broker);
        if let Some(cluster) = &broker.cluster {
            return cluster.report_online(broker, &online);
        }
        if let Err(error) =
            self.change(|machine| machine.directories_online(machine.node_id(), &online), |_| {})
        {
            tracing::error!("which log directories are left could not be noted in the metadata log: {error}");
        }
    }

    /// Notes which log directories take no new partitions.
    pub(crate) fn note_cordoned_directories(&self, broker: &Arc<Broker>) {
        let cordoned = cordoned_directories(broker);
        if let Some(cluster) = &broker.cluster {
            return cluster.report_cordoned(broker, &cordoned);
        }
        if let Err(error) =
            self.change(|machine| machine.directories_cordoned(machine.node_id(), &cordoned), |_| {})
        {
            tracing::error!(
                "which log directories are cordoned could not be noted in the metadata log: {error}"
            );
        }
    }

    /// CreateTopics.
    pub(crate) fn create_topics(
        &self,
        broker: &Arc<Broker>,
        request: &CreateTopicsRequest<'_>,
        permit: Permit<'_>,
    ) -> Vec<CreatableTopicResult<'static>> {
        let decide =
            |machine: &mut MetadataStateMachine| machine.create_topics(request, &mut random_bits, permit);
        let reply = self.change(decide, |changes| carry_out(broker, changes));
        let mut topics = reply.map_or_else(|error| refuse_topics(request, error), |response| response.topics);
        if !request.validate_only {
            topics.iter_mut().for_each(|topic| report_unopened(broker, topic));
        }
        topics
    }

    /// Tries again to serve what could not be served when it was created.
    pub(crate) fn serve_the_unserved(&self, broker: &Arc<Broker>) {
        let ids = self.unserved.lock().clone();
        if !ids.is_empty() {
            self.while_nothing_is_applied(|| {
                let _turn = self.turn.lock();
                let topics: Vec<_> =
                    ids.iter().filter_map(|id| self.image().topic_by_id(*id).cloned()).collect();
                self.unserved.lock().clear();
                serve(broker, &topics);
            });
        }
    }

    /// Creates topics that a client named and that are not there, as `auto.create.topics.enable` wants it.
    pub(crate) fn create_missing_topics(
        &self,
        broker: &Arc<Broker>,
        names: &[&str],
        permit: Permit<'_>,
    ) -> Vec<CreatableTopicResult<'static>> {
        // Of the metadata leader in a cluster.
        let decide = |machine: &mut MetadataStateMachine| {
            machine.create_missing_topics(names, &mut random_bits, permit)
        };
        let reply = self.change(decide, |changes| carry_out(broker, changes));
        reply.map_or_else(
            |error| names.iter().map(|name| refuse_topic(name, error)).collect(),
            |response| response.topics,
        )
    }

    /// Creates a coordinator's topic where it is missing. It counts against no quota: as in Kafka the broker asks
    /// for it in its own name.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE, with the reason.
    pub(crate) fn ensure_internal_topic(&self, broker: &Arc<Broker>, topic: &str) -> Result<(), Refused> {
        if broker.topics.by_name(topic).is_some() {
            return Ok(());
        }
        let created = match &broker.cluster {
            Some(cluster) => cluster.create_missing_topics(broker, &[topic], None),
            None => self.create_missing_topics(broker, &[topic], &mut |_| true),
        };
        let result = created.into_iter().next();
        match result.map(|result| (ErrorCode::from(result.error_code), result.error_message)) {
            None | Some((ErrorCode::NONE | ErrorCode::TOPIC_ALREADY_EXISTS, _)) => Ok(()),
            Some((error, message)) => {
                tracing::error!("{topic} could not be created: {error}");
                let message = message.map_or_else(|| error.message().to_owned(), |text| text.into_owned());
                Err(Refused { error: ErrorCode::COORDINATOR_NOT_AVAILABLE, message })
            }
        }
    }

    /// DeleteTopics.
    pub(crate) fn delete_topics(
        &self,
        broker: &Arc<Broker>,
        request: &DeleteTopicsRequest<'_>,
        version: i16,
        permit: Permit<'_>,
    ) -> Result<Vec<DeletableTopicResult<'static>>, ErrorCode> {
        let decide = |machine: &mut MetadataStateMachine| machine.delete_topics(request, version, permit);
        Ok(self.change(decide, |changes| carry_out(broker, changes))?.responses)
    }

    /// CreatePartitions.
    pub(crate) fn create_partitions(
        &self,
        broker: &Arc<Broker>,
        request: &CreatePartitionsRequest<'_>,
        permit: Permit<'_>,
    ) -> Result<Vec<CreatePartitionsTopicResult<'static>>, ErrorCode> {
        let decide = |machine: &mut MetadataStateMachine| machine.create_partitions(request, permit);
        Ok(self.change(decide, |changes| carry_out(broker, changes))?.results)
    }

    /// IncrementalAlterConfigs.
    pub(crate) fn alter_configs(
        &self,
        broker: &Arc<Broker>,
        request: &IncrementalAlterConfigsRequest<'_>,
    ) -> Result<Vec<AlterConfigsResourceResponse<'static>>, ErrorCode> {
        let decide = |machine: &mut MetadataStateMachine| machine.alter_configs(request);
        Ok(self.change(decide, |changes| carry_out(broker, changes))?.responses)
    }

    /// AlterClientQuotas.
    pub(crate) fn alter_client_quotas(
        &self,
        broker: &Arc<Broker>,
        request: &AlterClientQuotasRequest<'_>,
    ) -> Result<Vec<AlteredQuota<'static>>, ErrorCode> {
        // Looked up before the state machine is asked, since the resolver may take its time.
        let parts = request.entries.iter().flat_map(|entry| &entry.entity);
        let ips =
            parts.filter(|part| part.entity_type == "ip").filter_map(|part| part.entity_name.as_deref());
        let known = broker.quotas.resolvable(ips);
        let resolves = |ip: &str| known.iter().any(|name| name == ip);
        Ok(self.decide(broker, |machine| machine.alter_client_quotas(request, &resolves))?.entries)
    }

    /// Makes the change that the state machine decides on, and does what it asks of this node. What the reply says is durable.
    ///
    /// # Errors
    /// When the metadata log cannot be written.
    pub(crate) fn decide<R>(
        &self,
        broker: &Arc<Broker>,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
    ) -> Result<R, ErrorCode> {
        self.change(decide, |changes| carry_out(broker, changes))
    }

    /// A producer id out of the block that is there; `None` where taking one would wait.
    pub(crate) fn known_producer_id(&self) -> Option<i64> {
        self.producer_ids.try_lock()?.take()
    }

    /// A producer id; when the block is used up, the next one is taken durably first.
    pub(crate) fn next_producer_id(&self, broker: &Arc<Broker>) -> Result<i64, ErrorCode> {
        let mut ids = self.producer_ids.lock();
        if let Some(id) = ids.take() {
            return Ok(id);
        }
        if let Some(cluster) = &broker.cluster {
            ids.add(cluster.producer_ids(broker)?);
            return Ok(ids.take().expect("a block that was just added is not empty"));
        }
        let block = self.change(|machine| machine.allocate_producer_ids(machine.node_id()), |_| {})?;
        ids.add(block.map_err(|error| error.code)?);
        Ok(ids.take().expect("a block that was just added is not empty"))
    }

    /// Decides a change, makes it durable, applies it and carries it out.
    fn change<R>(
        &self,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
        carry_out: impl FnOnce(&[MetadataChange]),
    ) -> Result<R, ErrorCode> {
        if let Some(replicated) = &self.replicated {
            // Changes are carried out where they are applied.
            return self.change_replicated(replicated, decide);
        }
        let _turn = self.turn.lock();
        let decision = {
            let _undo = RollbackOnPanic(self);
            decide(&mut self.machine.write())
        };
        let _guard = AbortOnPanic("the metadata, its log and what is served might differ");
        if let Err(error) = self.write(&decision.records, decision.base_offset) {
            self.machine.write().rollback();
            return Err(error);
        }
        let changes = self.machine.write().committed(decision.reply_at);
        carry_out(&changes);
        Ok(decision.reply)
    }

    /// Appends records as one batch and waits until it is on disk.
    fn write(&self, records: &[Vec<u8>], base_offset: i64) -> Result<(), ErrorCode> {
        if records.is_empty() {
            return Ok(());
        }
        let mut batch = BatchBuilder::new(BatchOptions::default());
        let wall_ms = crate::clock::wall_ms();
        for value in records {
            batch.append(wall_ms, None, Some(value), &[]).map_err(|_| ErrorCode::POLICY_VIOLATION)?;
        }
        let bytes = batch.build().map_err(|_| ErrorCode::POLICY_VIOLATION)?;
        let appended = with_scratch(|scratch| {
            self.log.append(&bytes, Origin::Coordinator, &crate::clock::Clock::start(), scratch)
        });
        let appended = appended.map_err(|refused| refused.code())?.appended;
        self.since_snapshot.lock().count(bytes.len(), wall_ms);
        assert_eq!(appended.base_offset, base_offset, "the state machine and its log count alike");
        let (told, durable) = mpsc::sync_channel(1);
        let tell = move |result| {
            // The receiver waits below for as long as it takes.
            let _ = told.send(result);
        };
        self.log.when_durable(appended.last_offset + 1, Durable::Call(Box::new(tell)));
        durable.recv().unwrap_or(Err(ErrorCode::KAFKA_STORAGE_ERROR))
    }
}

/// A decision that panics is none: what is committed stays as it is.
struct RollbackOnPanic<'a>(&'a Controller);

impl Drop for RollbackOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.machine.write().rollback();
        }
    }
}

/// A topic that exists and is not served yet is no success.
fn report_unopened(broker: &Broker, topic: &mut CreatableTopicResult<'static>) {
    if topic.error_code == 0 && broker.topics.by_name(&topic.name).is_none() {
        topic.error_code = ErrorCode::KAFKA_STORAGE_ERROR.code();
        topic.error_message = Some("The topic was created; its files cannot be opened yet.".into());
    }
}

fn online_directories(broker: &Broker) -> Vec<Uuid> {
    broker.dirs.online().map(|dir| Uuid(dir.directory_id())).collect()
}

/// By `cordoned.log.dirs`, whether they are online or not.
fn cordoned_directories(broker: &Broker) -> Vec<Uuid> {
    let config = broker.config();
    let cordoned = broker.dirs.data().iter().filter(|dir| broker.dirs.is_cordoned(&config, dir));
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

/// Does what changes of the metadata ask of this node.
fn carry_out(broker: &Arc<Broker>, changes: &[MetadataChange]) {
    let mut grown: Vec<Uuid> = Vec::new();
    for change in changes {
        match change {
            MetadataChange::PartitionCreated { topic_id, .. } if !grown.contains(topic_id) => {
                grown.push(*topic_id)
            }
            MetadataChange::TopicDeleted { topic } => delete(broker, topic),
            MetadataChange::ConfigChanged { resource, .. } => reconfigure(broker, resource),
            _ => {}
        }
    }
    if changes.iter().any(|change| matches!(change, MetadataChange::ScramChanged { .. })) {
        broker.security.scram_changed();
    }
    if let Some(authorization) = broker.security.authorization() {
        let mut acls = changes.iter().filter_map(acl_of).peekable();
        if acls.peek().is_some() {
            authorization.changed(&broker.controller.image(), acls);
        }
    }
    if changes.contains(&MetadataChange::QuotaChanged) {
        update_quotas(broker);
    }
    let image = broker.controller.image();
    let topics: Vec<TopicImage> = grown.iter().filter_map(|id| image.topic_by_id(*id).cloned()).collect();
    drop(image);
    serve(broker, &topics);
    if changes.iter().any(|change| matches!(change, MetadataChange::FeatureChanged { .. })) {
        broker.transactions.set_version(broker);
    }
}

fn acl_of(change: &MetadataChange) -> Option<Uuid> {
    match change {
        MetadataChange::AclChanged { id } => Some(*id),
        _ => None,
    }
}

/// Serves topics, also those of coordinators. Those whose logs cannot be opened now (no space, no descriptors) are tried
/// again.
fn serve(broker: &Arc<Broker>, topics: &[TopicImage]) {
    let mut unserved = broker.controller.unserved.lock();
    unserved.retain(|id| !topics.iter().any(|topic| topic.id == *id));
    for (id, error) in open_all(broker, topics, Unopened::Refused).refused {
        tracing::error!("{error}; it is tried again");
        unserved.push(id);
    }
    let served = topics.iter().filter(|topic| !unserved.contains(&topic.id));
    let coordinators: Vec<_> = served.filter_map(|topic| broker.topics.by_id(&topic.id)).collect();
    drop(unserved);
    broker.groups.topics_changed(topics);
    if let Some(cluster) = &broker.cluster {
        return cluster.topics_served(broker, &coordinators);
    }
    for topic in coordinators {
        coordinators::load(broker, &topic.name, &topic.partitions);
    }
}

/// Has clients measured against the quotas that are committed. A copy, since host names may have to be looked up.
fn update_quotas(broker: &Broker) {
    let quotas = broker.controller.image().client_quotas().clone();
    broker.quotas.update(&quotas);
}

/// What a topic's partitions run with.
pub(crate) fn settings_of(broker: &Broker, topic: &TopicImage) -> Arc<TopicSettings> {
    let image = broker.controller.image();
    let own = image.configs(&ConfigResource::new(ResourceKind::Topic, topic.name.clone()));
    let replicas = topic.partitions.first().map_or(1, |partition| partition.replicas.len());
    TopicSettings::resolve(own, &broker.config(), replicas)
}

/// Has links keep to the rates that were set for this node and for others.
fn set_replication_rates(broker: &Broker) {
    let Some(cluster) = &broker.cluster else { return };
    let (image, replication) = (broker.controller.image(), broker.config().replication.clone());
    let set_for = |name: String| {
        let configs = image.configs(&ConfigResource::new(ResourceKind::Broker, name));
        configs.get("follower.replication.throttled.rate").and_then(|text| text.trim().parse::<u64>().ok())
    };
    // What is in this node's file stands for what is in those of others.
    let own = broker.node.id.to_string();
    let in_file = replication.follower_throttled_rate.filter(|_| set_for(own).is_none());
    let rate_of = |node: i32| set_for(node.to_string()).or_else(|| set_for(String::new())).or(in_file);
    let followers = cluster.quorum.ids().filter_map(|node| Some((node, rate_of(node)?))).collect();
    cluster.links.set_rates(Rates { leader: replication.leader_throttled_rate, followers });
}

fn reconfigure(broker: &Broker, resource: &ConfigResource) {
    let topics: Vec<TopicImage> = match resource.kind {
        ResourceKind::Topic => broker.controller.image().topic(&resource.name).cloned().into_iter().collect(),
        ResourceKind::Broker => {
            server::reconfigure(broker, broker.controller.machine.read().config().clone());
            set_replication_rates(broker);
            broker.groups.reconfigure(broker);
            broker.controller.image().topics().cloned().collect()
        }
        ResourceKind::ClientMetrics => {
            let image = broker.controller.image();
            broker.telemetry.subscribe(&resource.name, image.configs(resource));
            Vec::new()
        }
        ResourceKind::Group => {
            broker.groups.reconfigure(broker);
            Vec::new()
        }
    };
    for topic in topics {
        let settings = settings_of(broker, &topic);
        if let Some(served) = broker.topics.by_id(&topic.id) {
            served.partitions.iter().for_each(|partition| partition.set_settings(settings.clone()));
        }
    }
}

fn delete(broker: &Arc<Broker>, image: &TopicImage) {
    // A topic whose logs could not be opened is not served, but may have left directories.
    let partitions =
        broker.topics.remove(&image.id).map(|topic| topic.partitions.clone()).unwrap_or_default();
    let now = broker.clock.now();
    coordinators::unload(broker, &image.name, &partitions);
    // Closed without a sync: the records are not needed any more.
    partitions.iter().for_each(|partition| drop(partition.take_log(NoLog::Gone)));
    if let Some(cluster) = &broker.cluster {
        cluster.journals.forget(image.id.0);
    }
    let delay_ms = partitions.first().map_or(0, |partition| partition.settings().log.file_delete_delay_ms);
    let due_ms = now.mono_ms.saturating_add(delay_ms);
    let name: Arc<str> = image.name.as_str().into();
    let names: Vec<_> =
        (0..).take(image.partitions.len()).map(|index| TopicPartition::new(name.clone(), index)).collect();
    for dir in broker.dirs.online() {
        if let Err(error) = dir.set_aside(&names, SetAside::Delete, due_ms) {
            tracing::error!(topic = image.name, "its files could not be set aside: {error}");
        }
    }
    broker.groups.topic_deleted(broker, &image.name);
}
