//! Answers from memory. They are valid while this node still leads: a majority has to confirm that first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_records::LeaderEpoch;
use mainstem_store::partition::{Durable, Partition};
use mainstem_wire::ErrorCode;
use tokio::sync::oneshot;

use super::{Asked, Coordinator, Driver, RequestOrigin};

impl<C: Coordinator> Driver<C> {
    /// The lease by which a reply about a key has to be confirmed ([`Self::confirm`]). Get it before the coordinator is asked. `None` if
    /// its partition has one replica, which always leads, or is not loaded.
    pub fn lease(&self, key: &str) -> Option<(Arc<Partition>, LeaderEpoch)> {
        self.has_peers.then_some(())?;
        let core = self.core.lock();
        let index = core.machine.partition_for(key);
        let epoch = core.epochs.get(&index).copied()?;
        drop(core);
        let partition = self.partition(index).filter(|one| one.is_replicated())?;
        Some((partition, epoch))
    }

    /// Holds a reply from memory until a majority has confirmed that this node still leads: another coordinator may have acknowledged newer
    /// requests. If it does not lead, `refusal` is the reply. A reply that comes later follows a write, and needs no confirmation.
    pub fn confirm(
        (partition, epoch): (Arc<Partition>, LeaderEpoch),
        asked: Asked<C::Reply>,
        refusal: C::Reply,
    ) -> Asked<C::Reply> {
        let Asked::Now(reply) = asked else { return asked };
        let (sender, receiver) = oneshot::channel();
        let confirmed = move |result: Result<(), ErrorCode>| {
            // The connection may be gone.
            let _ = sender.send(if result.is_ok() { reply } else { refusal });
        };
        partition.when_confirmed(epoch, Durable::Call(Box::new(confirmed)));
        Asked::Later(receiver)
    }

    /// The leases of the partitions of some keys, or of all that are loaded.
    fn leases(&self, keys: Keys) -> Vec<(Arc<Partition>, LeaderEpoch)> {
        if !self.has_peers {
            return Vec::new();
        }
        let core = self.core.lock();
        let epochs: BTreeMap<i32, LeaderEpoch> = match keys {
            Keys::All => core.epochs.iter().map(|(index, epoch)| (*index, *epoch)).collect(),
            Keys::These(keys) => {
                let indexes = keys.iter().map(|key| core.machine.partition_for(key));
                indexes.filter_map(|index| Some((index, *core.epochs.get(&index)?))).collect()
            }
        };
        drop(core);
        let lease = |(index, epoch)| {
            let partition = self.partition(index).filter(|one| one.is_replicated())?;
            Some((partition, epoch))
        };
        epochs.into_iter().filter_map(lease).collect()
    }

    /// Asks about one key, and has a reply from memory confirmed ([`Self::confirm`]).
    pub fn ask_confirmed(
        &self,
        origin: &RequestOrigin<'_>,
        (request, key): (C::Request<'_>, &str),
        refusal: C::Reply,
    ) -> Asked<C::Reply> {
        let lease = self.lease(key);
        let asked = self.ask(origin, request);
        match lease {
            Some(lease) => Self::confirm(lease, asked, refusal),
            None => asked,
        }
    }

    /// Calls `ask` to read from memory, then waits for the majority. If `ask` reads key by key, it holds the coordinator up no longer than
    /// one key takes.
    pub fn confirmed_here<T>(&self, keys: Keys, ask: impl FnOnce(&Driver<C>) -> T) -> (T, Overtaken) {
        let leases = self.leases(keys);
        let answers = ask(self);
        (answers, Overtaken::wait(leases))
    }

    /// Asks a request that is answered immediately.
    pub fn ask_here(&self, origin: &RequestOrigin<'_>, request: C::Request<'_>) -> C::Reply {
        let Asked::Now(reply) = self.ask(origin, request) else {
            unreachable!("what is in memory is not waited for")
        };
        reply
    }
}

/// The keys of a request that is answered from memory.
pub enum Keys {
    /// All groups, or transactional ids, that this node coordinates.
    All,
    /// These groups, or transactional ids.
    These(Vec<String>),
}

/// Partitions of a coordinator's topic that this node may not have led any more when it was asked: other nodes may have changed the state
/// of their keys since.
#[derive(Debug, Default)]
pub struct Overtaken(BTreeSet<i32>);

impl Overtaken {
    /// Returns true if a key may have another coordinator.
    pub fn has<C: Coordinator>(&self, coordinator: &Driver<C>, key: &str) -> bool {
        !self.0.is_empty() && self.0.contains(&coordinator.partition_for(key))
    }

    /// Waits for the answers of all majorities.
    fn wait(leases: Vec<(Arc<Partition>, LeaderEpoch)>) -> Overtaken {
        let mut overtaken = Overtaken::default();
        for (index, confirmed) in ask_majorities(leases) {
            if !confirmed.blocking_recv().unwrap_or(false) {
                overtaken.0.insert(index);
            }
        }
        overtaken
    }
}

/// Asks all majorities whether this node still leads partitions, before it waits for the first answer.
fn ask_majorities(leases: Vec<(Arc<Partition>, LeaderEpoch)>) -> Vec<(i32, oneshot::Receiver<bool>)> {
    let ask = |(partition, epoch): (Arc<Partition>, LeaderEpoch)| {
        let (sender, receiver) = oneshot::channel();
        // The connection may be gone.
        let confirmed = move |result: Result<(), ErrorCode>| _ = sender.send(result.is_ok());
        partition.when_confirmed(epoch, Durable::Call(Box::new(confirmed)));
        (partition.index, receiver)
    };
    leases.into_iter().map(ask).collect()
}
