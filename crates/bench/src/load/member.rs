//! Membership in a consumer group by the classic protocol: join, sync, heartbeats, commit, leave.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::SETUP_MAX;
use crate::connection::Connection;
use crate::protocol::group::{self, Membership};
use crate::protocol::{Api, HEARTBEAT, JOIN_GROUP, SYNC_GROUP, check, error};
use crate::secure::Endpoint;

/// The default of Kafka's own consumer.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// The interval while the group is still incomplete, and between attempts at a coordinator that is loading.
const SETUP_INTERVAL: Duration = Duration::from_millis(20);

/// A member with its own connection to the coordinator.
#[derive(Debug)]
pub(crate) struct Member {
    connection: Connection,
    membership: Membership,
}

/// The number of members of a group, and of the partitions that they share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    pub(crate) members: u32,
    pub(crate) partitions: i32,
}

/// Joins until the group has all its members; returns the member and its partitions.
pub(crate) fn join(
    endpoint: impl Into<Endpoint>,
    group: &str,
    topic: &str,
    shares: Shares,
) -> Result<(Member, Vec<i32>)> {
    let mut member = Member {
        connection: Connection::open(endpoint)?,
        membership: Membership {
            group: group.to_owned(),
            topic: topic.to_owned(),
            member_id: String::new(),
            generation: -1,
        },
    };
    let deadline = Instant::now() + SETUP_MAX;
    loop {
        let partitions = member.join_once(shares)?;
        if !partitions.is_empty() {
            return Ok((member, partitions));
        }
        ensure!(
            Instant::now() < deadline,
            "the group has not {} members within {SETUP_MAX:?}",
            shares.members
        );
    }
}

impl Shares {
    /// The partitions of the member at `index`: whole ranges, as equal as they can be.
    pub(crate) fn deal(self, index: u32) -> Vec<i32> {
        let Self { members, partitions } = self;
        (0..partitions).filter(|partition| partition * members as i32 / partitions == index as i32).collect()
    }
}

impl Member {
    /// Joins one generation of the group. An incomplete group assigns no partitions, and its members wait for the next generation.
    fn join_once(&mut self, shares: Shares) -> Result<Vec<i32>> {
        let joined = group::join(&mut self.connection, &self.membership)?;
        match joined.error_code {
            error::NONE => {}
            error::MEMBER_ID_REQUIRED => {
                self.membership.member_id = joined.member_id;
                return Ok(Vec::new());
            }
            code => return wait_if_loading(JOIN_GROUP, code),
        }
        self.membership.member_id = joined.member_id;
        self.membership.generation = joined.generation;
        let assignments = if joined.is_leader { assign(&joined.members, shares) } else { Vec::new() };
        let (code, partitions) = group::sync(&mut self.connection, &self.membership, &assignments)?;
        match code {
            error::NONE if partitions.is_empty() => self.await_next_generation(),
            error::NONE => Ok(partitions),
            code => wait_if_loading(SYNC_GROUP, code),
        }
    }

    fn await_next_generation(&mut self) -> Result<Vec<i32>> {
        let deadline = Instant::now() + SETUP_MAX;
        loop {
            match group::heartbeat(&mut self.connection, &self.membership)? {
                error::REBALANCE_IN_PROGRESS => return Ok(Vec::new()),
                code => check(HEARTBEAT, code)?,
            }
            ensure!(Instant::now() < deadline, "no other member joined within {SETUP_MAX:?}");
            thread::sleep(SETUP_INTERVAL);
        }
    }

    /// Sends heartbeats until the other end of the channel is dropped. A rebalance is an error: no member joins or leaves during a run.
    pub(crate) fn keep_alive(mut self, finished: Receiver<()>) -> Result<Self> {
        loop {
            match finished.recv_timeout(HEARTBEAT_INTERVAL) {
                Err(RecvTimeoutError::Disconnected) => return Ok(self),
                Ok(()) | Err(RecvTimeoutError::Timeout) => {
                    check(HEARTBEAT, group::heartbeat(&mut self.connection, &self.membership)?)?;
                }
            }
        }
    }

    pub(crate) fn commit(&mut self, positions: &[(i32, i64)]) -> Result<()> {
        group::commit(&mut self.connection, &self.membership, positions)
    }

    pub(crate) fn leave(mut self) -> Result<()> {
        group::leave(&mut self.connection, &self.membership)
    }
}

fn assign(member_ids: &[String], shares: Shares) -> Vec<(String, Vec<i32>)> {
    let is_complete = member_ids.len() == shares.members as usize;
    (0..shares.members)
        .zip(member_ids)
        .map(|(index, id)| (id.clone(), if is_complete { shares.deal(index) } else { Vec::new() }))
        .collect()
}

/// An error that passes leads to another attempt (no partitions yet), any other is final.
fn wait_if_loading(api: Api, code: i16) -> Result<Vec<i32>> {
    match code {
        error::COORDINATOR_LOAD_IN_PROGRESS
        | error::COORDINATOR_NOT_AVAILABLE
        | error::NOT_COORDINATOR
        | error::REBALANCE_IN_PROGRESS => thread::sleep(SETUP_INTERVAL),
        code => check(api, code)?,
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deal(members: u32, index: u32) -> Vec<i32> {
        Shares { members, partitions: 6 }.deal(index)
    }

    #[test]
    fn partitions_are_dealt_once_each() {
        assert_eq!(deal(1, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!((deal(2, 0), deal(2, 1)), (vec![0, 1, 2], vec![3, 4, 5]));
        for members in 1..=6 {
            let mut all: Vec<i32> = (0..members).flat_map(|index| deal(members, index)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..6).collect::<Vec<_>>(), "{members} members");
        }
    }

    #[test]
    fn an_incomplete_group_is_dealt_nothing() {
        let ids = ["a".to_owned(), "b".to_owned()];
        let shares = Shares { members: 2, partitions: 6 };
        assert_eq!(assign(&ids[..1], shares), [("a".to_owned(), vec![])]);
        assert_eq!(assign(&ids, shares)[1], ("b".to_owned(), vec![3, 4, 5]));
    }
}
