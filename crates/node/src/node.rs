//! One node of a cluster, or the only one: where a change is decided here, or asked of the metadata leader.

use std::sync::Arc;

use mainstem_controller::{DirectoryAssignment, ProducerIds};
use mainstem_requests::refused::Refused;
use mainstem_store::placing::InterruptedMoves;
use mainstem_wire::ErrorCode;
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::controller::{Controller, ControllerError, cordoned_directories, online_directories};
use crate::coordinators;
use crate::local::Local;
use crate::work::Workers;

/// A node, with the others if there are any.
pub struct Node {
    /// The parts that need no other node.
    pub local: Arc<Local>,
    /// The metadata.
    pub controller: Arc<Controller>,
    /// The other nodes; `None` without.
    pub cluster: Option<Arc<Cluster>>,
    pub(crate) workers: Workers,
    producer_ids: Mutex<ProducerIds>,
}

impl Node {
    /// A node whose coordinator of transactions has its work done.
    pub(crate) fn new(
        local: Arc<Local>,
        controller: Arc<Controller>,
        cluster: Option<Arc<Cluster>>,
    ) -> Arc<Node> {
        let (workers, producer_ids) = (Workers::new(), Mutex::default());
        let node = Arc::new(Node { local, controller, cluster, workers, producer_ids });
        crate::work::begin(&node);
        node
    }

    /// Finds the partitions, notes this start or registers it with the metadata leader, and opens the logs of all topics. Returns
    /// the moves that the last stop cut short.
    ///
    /// # Errors
    /// As [`Controller::start`] and [`Cluster::join`].
    pub fn start(&self) -> Result<InterruptedMoves, ControllerError> {
        let interrupted = match &self.cluster {
            Some(cluster) => cluster.join()?,
            None => self.controller.start()?,
        };
        let (local, controller) = (&self.local, &self.controller);
        let topics: Vec<_> = controller.image().topics().cloned().collect();
        local.groups.topics_changed(&topics);
        // The publisher may be at work already: each takes what is newest.
        local.groups.reconfigure(&local.config(), &controller.image());
        local.transactions.set_version(&controller.image());
        match self.controller.events() {
            Some(events) => events.topics_served(&local.store.topics.all()),
            None => coordinators::served(local, |topic, partitions| {
                coordinators::load(local, topic, partitions);
            }),
        }
        Ok(interrupted)
    }

    /// Unloads the coordinators: who waits in a group, now only for other members, is answered to look for another coordinator.
    pub fn unload_coordinators(&self) {
        let local = &self.local;
        coordinators::served(local, |topic, partitions| coordinators::unload(local, topic, partitions));
        self.workers.stop();
    }

    /// Notes that a partition is in another log directory now. What cannot be noted the next start finds out.
    pub fn note_directory(&self, assignment: DirectoryAssignment) {
        if let Some(cluster) = &self.cluster {
            return cluster.report_directories(&[assignment]);
        }
        if let Err(error) =
            self.controller.commit(|machine| machine.assign_directories(self.local.id, &[assignment]))
        {
            tracing::warn!("the new place of a partition could not be noted in the metadata log: {error}");
        }
    }

    /// Notes which log directories are left, so that new partitions go into them.
    pub fn note_online_directories(&self) {
        let online = online_directories(&self.local);
        if let Some(cluster) = &self.cluster {
            return cluster.report_online(&online);
        }
        if let Err(error) =
            self.controller.commit(|machine| machine.directories_online(self.local.id, &online))
        {
            tracing::error!("which log directories are left could not be noted in the metadata log: {error}");
        }
    }

    /// Notes which log directories take no new partitions.
    pub fn note_cordoned_directories(&self) {
        let cordoned = cordoned_directories(&self.local);
        if let Some(cluster) = &self.cluster {
            return cluster.report_cordoned(&cordoned);
        }
        if let Err(error) =
            self.controller.commit(|machine| machine.directories_cordoned(self.local.id, &cordoned))
        {
            tracing::error!(
                "which log directories are cordoned could not be noted in the metadata log: {error}"
            );
        }
    }

    /// Creates a coordinator's topic where it is missing. It counts against no quota: as in Kafka the broker asks
    /// for it in its own name.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE, with the reason.
    pub fn ensure_internal_topic(&self, topic: &str) -> Result<(), Refused> {
        if self.local.store.topics.by_name(topic).is_some() {
            return Ok(());
        }
        let created = match &self.cluster {
            Some(cluster) => cluster.create_missing_topics(&[topic], None),
            None => self.controller.create_missing_topics(&[topic], &mut |_| true),
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

    /// Takes a producer id from the current block; `None` if that would have to wait.
    pub(crate) fn known_producer_id(&self) -> Option<i64> {
        self.producer_ids.try_lock()?.take()
    }

    /// A producer id; when the block is used up, the next one is taken durably first.
    pub fn next_producer_id(&self) -> Result<i64, ErrorCode> {
        let mut ids = self.producer_ids.lock();
        if let Some(id) = ids.take() {
            return Ok(id);
        }
        if let Some(cluster) = &self.cluster {
            ids.add(cluster.producer_ids()?);
            return Ok(ids.take().expect("a block that was just added is not empty"));
        }
        let block = self.controller.commit(|machine| machine.allocate_producer_ids(self.local.id))?;
        ids.add(block.map_err(|error| error.code)?);
        Ok(ids.take().expect("a block that was just added is not empty"))
    }
}
