//! Named tailers of attached queues, as consumer groups.
//!
//! A tailer's position is stored in its queue's directory and nowhere else. To Kafka's clients the tailer is a group of its name: Stable
//! with one member while a local process reads under it, Empty otherwise. Then its position can be reset as that of any group. The name
//! belongs to local processes: remote members are refused. The coordinator may still know a group of that name, with what it has read of
//! other topics. This module only covers the queues.

use std::sync::Arc;

use mainstem_lines::OneLine;
use mainstem_queue::{QueueError, TailerInfo};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use mainstem_wire::messages::list_groups_response::ListedGroup;

use mainstem_store::attached::Attached;
use mainstem_store::store::Store;

const STABLE: &str = "Stable";
const EMPTY: &str = "Empty";
/// The group type of tailers in ListGroups.
const CLASSIC: &str = "classic";
const PROTOCOL_TYPE: &str = "consumer";
/// The protocol name that such groups are shown with.
const PROTOCOL: &str = "tailer";

/// A tailer that is a group.
pub struct TailerGroup {
    /// Its queue.
    pub queue: Arc<Attached>,
    /// Its state.
    pub tailer: TailerInfo,
}

/// The tailers of a name, one in each queue at most.
pub fn find(store: &Store, group: &str) -> Vec<TailerGroup> {
    let of = |queue: &Arc<Attached>| {
        let tailer = queue.queue().find_tailer(group).ok().flatten()?;
        Some(TailerGroup { queue: queue.clone(), tailer })
    };
    store.attached.iter().filter_map(of).collect()
}

/// The tailer of a name in the queue that is a topic.
pub fn find_in(store: &Store, group: &str, topic: &str) -> Option<TailerGroup> {
    let queue = store.attached.iter().find(|queue| **queue.topic() == *topic)?;
    let tailer = queue.queue().find_tailer(group).ok().flatten()?;
    Some(TailerGroup { queue: queue.clone(), tailer })
}

/// Refuses remote members of a group that is a tailer.
///
/// # Errors
/// GROUP_MAX_SIZE_REACHED: only its tailer may be a member of the group. Clients do not try again.
pub fn check_join(store: &Store, group: &str) -> Result<(), ErrorCode> {
    match store.attached.is_empty() || find(store, group).is_empty() {
        true => Ok(()),
        false => {
            tracing::warn!(
                group = %OneLine(group),
                "a remote consumer of a group that is a named tailer of an attached queue was refused: take another group id"
            );
            Err(ErrorCode::GROUP_MAX_SIZE_REACHED)
        }
    }
}

/// The answer to a heartbeat that [`check_join`] refuses.
pub fn refused_heartbeat(error: ErrorCode) -> ConsumerGroupHeartbeatResponse<'static> {
    let message = "The group is a named tailer of an attached queue, which local processes alone read under: take another group id.";
    ConsumerGroupHeartbeatResponse {
        error_code: error.code(),
        error_message: Some(message.into()),
        ..Default::default()
    }
}

impl TailerGroup {
    /// Moves the tailer to an offset, for a reset of offsets.
    ///
    /// # Errors
    /// UNKNOWN_MEMBER_ID while it is live, as Kafka answers for a group that has members.
    pub fn reset(&self, offset: i64) -> Result<(), ErrorCode> {
        self.queue.queue().move_tailer(&self.tailer.name, offset).map_err(|error| match error {
            QueueError::TailerInUse { .. } => ErrorCode::UNKNOWN_MEMBER_ID,
            other => self.failed(&other),
        })
    }

    /// Removes the tailer.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP while it is live.
    pub fn remove(&self) -> Result<(), ErrorCode> {
        let removed = self.queue.queue().remove_tailer(&self.tailer.name);
        removed.map(drop).map_err(|error| match error {
            QueueError::TailerInUse { .. } => ErrorCode::NON_EMPTY_GROUP,
            other => self.failed(&other),
        })
    }

    fn failed(&self, error: &QueueError) -> ErrorCode {
        tracing::error!(topic = %self.queue.topic(), tailer = self.tailer.name, "{error}");
        ErrorCode::UNKNOWN_SERVER_ERROR
    }
}

fn state(tailers: &[TailerGroup]) -> &'static str {
    match tailers.iter().any(|group| group.tailer.is_live) {
        true => STABLE,
        false => EMPTY,
    }
}

/// Adds the tailers to the groups of the coordinator, as far as they pass the filters.
pub fn list(store: &Store, listed: &mut Vec<ListedGroup<'static>>, (states, types): (&[String], &[String])) {
    let passes = |filter: &[String], value: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
    };
    if store.attached.is_empty() || !passes(types, CLASSIC) {
        return;
    }
    let tailers = store.attached.iter().flat_map(|queue| queue.queue().tailers().unwrap_or_default());
    let mut names: Vec<String> = tailers.map(|tailer| tailer.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let state = state(&find(store, &name));
        listed.retain(|group| *group.group_id != *name);
        if passes(states, state) {
            listed.push(ListedGroup {
                group_id: name.into(),
                protocol_type: PROTOCOL_TYPE.into(),
                group_state: state.into(),
                group_type: CLASSIC.into(),
                ..Default::default()
            });
        }
    }
}

/// Describes a group as a tailer if there is one of its name, unless the coordinator's group has members.
pub fn describe(store: &Store, group: &mut DescribedGroup<'static>) {
    if store.attached.is_empty() || !group.members.is_empty() {
        return;
    }
    let tailers = find(store, &group.group_id);
    if tailers.is_empty() {
        return;
    }
    let live: Vec<_> = tailers.iter().filter(|group| group.tailer.is_live).collect();
    let topics: Vec<&str> = live.iter().map(|group| &**group.queue.topic()).collect();
    let member = (!live.is_empty()).then(|| DescribedGroupMember {
        member_id: format!("tailer-{}", group.group_id).into(),
        client_id: group.group_id.clone(),
        client_host: "/127.0.0.1".into(),
        member_metadata: subscription(&topics).into(),
        member_assignment: assignment(&topics).into(),
        ..Default::default()
    });
    *group = DescribedGroup {
        group_id: group.group_id.clone(),
        group_state: state(&tailers).into(),
        protocol_type: PROTOCOL_TYPE.into(),
        protocol_data: if live.is_empty() { "".into() } else { PROTOCOL.into() },
        members: member.into_iter().collect(),
        ..Default::default()
    };
}

/// The bytes of ConsumerProtocolSubscription, v0: topics, and no data.
fn subscription(topics: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    put_count(&mut bytes, topics.len());
    topics.iter().for_each(|topic| put_text(&mut bytes, topic));
    bytes.extend_from_slice(&(-1i32).to_be_bytes());
    bytes
}

/// The bytes of ConsumerProtocolAssignment, v0: the one partition of each topic, and no data.
fn assignment(topics: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    put_count(&mut bytes, topics.len());
    for topic in topics {
        put_text(&mut bytes, topic);
        put_count(&mut bytes, 1);
        bytes.extend_from_slice(&0i32.to_be_bytes());
    }
    bytes.extend_from_slice(&(-1i32).to_be_bytes());
    bytes
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend_from_slice(&(count as i32).to_be_bytes());
}

/// A topic's name has 249 characters at most.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as i16).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}
