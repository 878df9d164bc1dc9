//! The registration of this node at the metadata leader, for which a start waits, and what it says while it does.

use std::sync::Arc;
use std::time::Duration;

use mainstem_controller::NodeStart;
use mainstem_wire::ErrorCode;

use super::calls::{Answer, Answered, Ask, StartNote};
use super::{Cluster, LEADER_TIMEOUT, RETRY, is_transient};
use crate::controller::ControllerError;
use mainstem_store::error::StoreError;
use mainstem_store::placing::InterruptedMoves;

/// Interval at which a start that waits checks the free space on its disks.
const SPACE_CHECK_EVERY: Duration = Duration::from_millis(500);
/// Interval of the log messages that name the nodes which a start waits for.
const SAID_EVERY: Duration = Duration::from_secs(5);

impl Cluster {
    /// Registers this node in its cluster, and opens the logs of all topics. Waits for the metadata leader, and says for whom.
    ///
    /// # Errors
    /// As [`Controller::start`](crate::controller::Controller::start).
    pub fn join(self: &Arc<Self>) -> Result<InterruptedMoves, ControllerError> {
        let begun = self.controller.begin_to_apply();
        begun.map_err(|_| ControllerError::Register(ErrorCode::UNKNOWN_SERVER_ERROR))?;
        let epoch = self.register(&self.controller.node_start())?;
        self.local.store.dirs.note_mounts();
        let moves = self.controller.start_registered(
            epoch,
            |assignments| self.report_directories(assignments),
            |shorter| self.report_shorter(shorter),
        )?;
        self.note_own_address();
        Ok(moves)
    }

    /// Registers this node: waits for the metadata leader for as long as it takes. Returns the broker epoch.
    ///
    /// # Errors
    /// When it is refused, or all other nodes are of another cluster, or the start was broken off, or the node stops.
    pub(crate) fn register(&self, start: &NodeStart) -> Result<i64, ControllerError> {
        let registered = self.register_in_time(start);
        self.links.awaited().clear();
        registered
    }

    fn register_in_time(&self, start: &NodeStart) -> Result<i64, ControllerError> {
        let ask = Ask::Register(StartNote::of(start));
        let mut said = self.local.clock.instant();
        loop {
            if self.local.opening.is_broken_off() || self.local.stopping.is_stopping() {
                return Err(StoreError::BrokenOff.into());
            }
            let answered = match self.controller.leader() {
                Some(node) => self.ask_as_leader(node, &ask),
                None => Answered::NotHere,
            };
            let leaders_disk = answered == Answered::Refused(ErrorCode::KAFKA_STORAGE_ERROR.code());
            match answered {
                Answered::Is { answer: Answer::Epoch(epoch), at } if self.wait_at_start(at) => {
                    *self.registered.lock() = Some((epoch, start.clone()));
                    return Ok(epoch);
                }
                Answered::Refused(code) if code == ErrorCode::UNSUPPORTED_VERSION.code() => {
                    let supported = self.controller.view().mainstem_versions();
                    return Err(ControllerError::Level { supported });
                }
                Answered::Refused(code) if !is_transient(ErrorCode(code)) => {
                    return Err(ControllerError::Register(ErrorCode(code)));
                }
                _ => {}
            }
            // Where some do not answer, they may be of this node's cluster, and it waits for them.
            if let Some(others) = self.links.other_clusters() {
                let named = others.iter().map(|(node, cluster)| format!("node {node} of {cluster}"));
                let theirs = named.collect::<Vec<_>>().join(", ");
                return Err(ControllerError::OtherCluster {
                    own: self.links.cluster_id().to_owned(),
                    theirs,
                });
            }
            let (stage, reason) = match self.controller.leader().filter(|_| leaders_disk) {
                Some(leader) => waits_for_disk_of(leader),
                None => self.why_not_registered(),
            };
            if self.local.clock.elapsed(said) >= SAID_EVERY {
                said = self.local.clock.instant();
                tracing::warn!("{reason}");
            }
            self.links.awaited().waits(stage, reason, self.links.now_ms());
            mainstem_runtime::sync::sleep(RETRY);
        }
    }

    /// The stage at which a start that is not registered yet waits, and why, for a person.
    fn why_not_registered(&self) -> (&'static str, String) {
        match self.local.store.dirs.all().find(|dir| dir.is_full()) {
            Some(dir) => (
                "waiting for room on a disk",
                format!(
                    "the start waits for room on the disk of log directory {}, for the metadata",
                    dir.path().display()
                ),
            ),
            None => ("waiting for the metadata quorum", self.missing_majority()),
        }
    }

    /// The nodes that are not reached, since when, and why: missing where there is no metadata leader.
    pub fn missing_majority(&self) -> String {
        let connected = self.links.connected();
        let is_missing = |id: &i32| *id != self.own && !connected.contains(id);
        let voters = self.voters();
        let missing: Vec<_> = voters.iter().copied().filter(is_missing).collect();
        let nodes = voters.len();
        let (awaited, now_ms) = (self.links.awaited(), self.links.now_ms());
        let described = missing.iter().filter_map(|id| self.node(*id));
        let described =
            described.map(|voter| awaited.describe(&voter, now_ms)).collect::<Vec<_>>().join(", ");
        match missing.len() {
            0 => "waiting for the nodes to elect a metadata leader".to_owned(),
            count if count * 2 >= nodes => format!(
                "no metadata leader: a majority of the {nodes} nodes is needed, and these cannot be reached: {described}; \
                 start them, or look at the network between the nodes"
            ),
            _ => format!(
                "waiting for the nodes to elect a metadata leader; these cannot be reached: {described}"
            ),
        }
    }

    /// Waits until this node knows the metadata up to an offset. On a disk that was full that needs free space again, which nothing
    /// else checks during a start.
    fn wait_at_start(&self, at: i64) -> bool {
        let local = &self.local;
        let deadline = local.clock.instant() + LEADER_TIMEOUT;
        let ends = || local.opening.is_broken_off() || local.stopping.is_stopping();
        while local.clock.instant() < deadline && !ends() {
            if self.controller.wait_for_image(at, SPACE_CHECK_EVERY).is_ok() {
                return true;
            }
            local.store.dirs.all().for_each(|dir| dir.retry_after_disk_full(local.clock.mono_ms()));
        }
        false
    }
}

/// The stage at which a start waits for the disk of the metadata leader, and why, for a person.
fn waits_for_disk_of(leader: i32) -> (&'static str, String) {
    let reason = format!(
        "the start waits for node {leader}, the metadata leader, which cannot write the metadata log: its log says why; free \
         space on its disk, or stop it so that another node leads"
    );
    ("waiting for the disk of the metadata leader", reason)
}
