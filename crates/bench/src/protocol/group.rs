//! FindCoordinator (10) version 6 and the classic group protocol: JoinGroup (11) version 9, SyncGroup (14) version 5,
//! Heartbeat (12) version 4, OffsetCommit (8) and OffsetFetch (9) version 9, LeaveGroup (13) version 5.

use anyhow::{Result, ensure};

use super::{
    FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP, check,
};
use crate::bytes::{Reader, Writer};
use crate::connection::Connection;

const PROTOCOL_TYPE: &str = "consumer";
const PROTOCOL_NAME: &str = "range";
/// The defaults of Kafka's own consumer: `session.timeout.ms`, `max.poll.interval.ms`.
const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 300_000;

/// A group, its one topic, and who this member is in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Membership {
    pub(crate) group: String,
    pub(crate) topic: String,
    pub(crate) member_id: String,
    pub(crate) generation: i32,
}

/// The answer to FindCoordinator.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(crate) error_code: i16,
    /// The port of the node; 0 with an error.
    pub(crate) port: u16,
}

/// Asks for the coordinator of a group, which makes the broker create `__consumer_offsets`.
pub(crate) fn find_coordinator(connection: &mut Connection, group: &str) -> Result<Coordinator> {
    let mut reader = connection.call(FIND_COORDINATOR, |writer| {
        writer.i8(0); // a group
        writer.compact_len(1);
        writer.compact_string(group);
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == 1, "FindCoordinator was answered for other groups");
    reader.compact_string()?; // key
    reader.i32()?; // node id
    reader.compact_string()?; // host
    let port = u16::try_from(reader.i32()?).unwrap_or(0);
    Ok(Coordinator { error_code: reader.i16()?, port })
}

/// The answer to JoinGroup.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) error_code: i16,
    pub(crate) generation: i32,
    pub(crate) member_id: String,
    pub(crate) is_leader: bool,
    /// Member ids, given to the leader alone.
    pub(crate) members: Vec<String>,
}

pub(crate) fn join(connection: &mut Connection, membership: &Membership) -> Result<Joined> {
    let reader = connection.call(JOIN_GROUP, |writer| {
        writer.compact_string(&membership.group);
        writer.i32(SESSION_TIMEOUT_MS);
        writer.i32(REBALANCE_TIMEOUT_MS);
        writer.compact_string(&membership.member_id);
        writer.compact_null(); // group instance id
        writer.compact_string(PROTOCOL_TYPE);
        writer.compact_len(1);
        writer.compact_string(PROTOCOL_NAME);
        writer.compact_bytes(&subscription(&membership.topic));
        writer.no_tags();
        writer.compact_null(); // reason
        writer.no_tags();
    })?;
    read_joined(reader)
}

fn read_joined(mut reader: Reader<'_>) -> Result<Joined> {
    reader.i32()?; // throttle time
    let error_code = reader.i16()?;
    let generation = reader.i32()?;
    reader.compact_string()?; // protocol type
    reader.compact_string()?; // protocol name
    let leader = reader.compact_string()?;
    reader.i8()?; // skip assignment
    let member_id = reader.compact_string()?;
    let mut members = Vec::new();
    for _ in 0..reader.compact_len()? {
        members.push(reader.compact_string()?.to_owned());
        reader.compact_string()?; // group instance id
        reader.compact_bytes()?; // subscription
        reader.skip_tags()?;
    }
    Ok(Joined {
        error_code,
        generation,
        is_leader: leader == member_id,
        member_id: member_id.to_owned(),
        members,
    })
}

/// Sends the leader's assignments (none from a follower); returns the error code and this member's partitions.
pub(crate) fn sync(
    connection: &mut Connection,
    membership: &Membership,
    assignments: &[(String, Vec<i32>)],
) -> Result<(i16, Vec<i32>)> {
    let mut reader = connection.call(SYNC_GROUP, |writer| {
        write_member(writer, membership);
        writer.compact_string(PROTOCOL_TYPE);
        writer.compact_string(PROTOCOL_NAME);
        writer.compact_len(assignments.len());
        for (member_id, partitions) in assignments {
            writer.compact_string(member_id);
            writer.compact_bytes(&assignment(&membership.topic, partitions));
            writer.no_tags();
        }
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    let code = reader.i16()?;
    reader.compact_string()?; // protocol type
    reader.compact_string()?; // protocol name
    Ok((code, read_assignment(reader.compact_bytes()?)?))
}

/// Sends a heartbeat. Returns the error code.
pub(crate) fn heartbeat(connection: &mut Connection, membership: &Membership) -> Result<i16> {
    let mut reader = connection.call(HEARTBEAT, |writer| {
        write_member(writer, membership);
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    reader.i16()
}

/// Commits the positions of (partition, position) pairs.
pub(crate) fn commit(
    connection: &mut Connection,
    membership: &Membership,
    positions: &[(i32, i64)],
) -> Result<()> {
    let reader = connection.call(OFFSET_COMMIT, |writer| write_commit(writer, membership, positions))?;
    read_committed(reader, positions.len())
}

/// Sends a commit, whose answer is taken by [`take_committed`] in the order of the commits.
pub(crate) fn send_commit(
    connection: &mut Connection,
    membership: &Membership,
    positions: &[(i32, i64)],
) -> Result<()> {
    connection.send(OFFSET_COMMIT, |writer| write_commit(writer, membership, positions))
}

/// Takes the answer to the oldest commit of so many partitions.
pub(crate) fn take_committed(connection: &mut Connection, partitions: usize) -> Result<()> {
    let reader = connection.wait_response(OFFSET_COMMIT)?;
    read_committed(reader, partitions)
}

fn write_commit(writer: &mut Writer, membership: &Membership, positions: &[(i32, i64)]) {
    write_member(writer, membership);
    writer.compact_len(1);
    writer.compact_string(&membership.topic);
    writer.compact_len(positions.len());
    for &(partition, position) in positions {
        writer.i32(partition);
        writer.i64(position);
        writer.i32(-1); // leader epoch: not known
        writer.compact_string(""); // metadata
        writer.no_tags();
    }
    writer.no_tags();
    writer.no_tags();
}

fn read_committed(mut reader: Reader<'_>, partitions: usize) -> Result<()> {
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == 1, "OffsetCommit was answered for other topics");
    reader.compact_string()?;
    ensure!(reader.compact_len()? == partitions, "OffsetCommit was answered for other partitions");
    for _ in 0..partitions {
        reader.i32()?; // partition
        check(OFFSET_COMMIT, reader.i16()?)?;
        reader.skip_tags()?;
    }
    Ok(())
}

/// Fetches all positions of a group. Returns the error code, and the positions by partition of its one topic.
pub(crate) fn fetch(connection: &mut Connection, group: &str) -> Result<(i16, Vec<(i32, i64)>)> {
    let mut reader = connection.call(OFFSET_FETCH, |writer| {
        writer.compact_len(1);
        writer.compact_string(group);
        writer.compact_null(); // member id
        writer.i32(-1); // member epoch
        writer.compact_null(); // all topics
        writer.no_tags();
        writer.i8(0); // stable offsets are not asked for
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == 1, "OffsetFetch was answered for other groups");
    reader.compact_string()?;
    let mut positions = Vec::new();
    for _ in 0..reader.compact_len()? {
        reader.compact_string()?;
        for _ in 0..reader.compact_len()? {
            let (partition, position) = (reader.i32()?, reader.i64()?);
            reader.i32()?; // leader epoch
            reader.compact_string()?; // metadata
            check(OFFSET_FETCH, reader.i16()?)?;
            reader.skip_tags()?;
            positions.push((partition, position));
        }
        reader.skip_tags()?;
    }
    Ok((reader.i16()?, positions))
}

pub(crate) fn leave(connection: &mut Connection, membership: &Membership) -> Result<()> {
    let mut reader = connection.call(LEAVE_GROUP, |writer| {
        writer.compact_string(&membership.group);
        writer.compact_len(1);
        writer.compact_string(&membership.member_id);
        writer.compact_null(); // group instance id
        writer.compact_null(); // reason
        writer.no_tags();
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    check(LEAVE_GROUP, reader.i16()?)
}

/// The fields with which Heartbeat, SyncGroup and OffsetCommit begin.
fn write_member(writer: &mut Writer, membership: &Membership) {
    writer.compact_string(&membership.group);
    writer.i32(membership.generation);
    writer.compact_string(&membership.member_id);
    writer.compact_null(); // group instance id
}

/// ConsumerProtocolSubscription version 0: the topics and no user data.
fn subscription(topic: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.i16(0);
    writer.i32(1);
    writer.string(topic);
    writer.i32(-1);
    writer.as_bytes().to_vec()
}

/// ConsumerProtocolAssignment version 0: the partitions of one topic and no user data.
fn assignment(topic: &str, partitions: &[i32]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.i16(0);
    writer.i32(1);
    writer.string(topic);
    writer.i32(partitions.len() as i32);
    for &partition in partitions {
        writer.i32(partition);
    }
    writer.i32(-1);
    writer.as_bytes().to_vec()
}

/// Returns the partitions of an assignment; none if it is empty, as after an error.
fn read_assignment(bytes: &[u8]) -> Result<Vec<i32>> {
    let mut reader = Reader::new(bytes);
    let mut partitions = Vec::new();
    if reader.is_empty() {
        return Ok(partitions);
    }
    reader.i16()?;
    for _ in 0..reader.i32()? {
        reader.string()?;
        for _ in 0..reader.i32()? {
            partitions.push(reader.i32()?);
        }
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_round_trip() {
        for partitions in [vec![], vec![0, 2, 5]] {
            assert_eq!(read_assignment(&assignment("topic", &partitions)).unwrap(), partitions);
        }
        assert_eq!(read_assignment(&[]).unwrap(), Vec::<i32>::new());
        assert!(read_assignment(&assignment("topic", &[1, 2])[..15]).is_err());
    }
}
