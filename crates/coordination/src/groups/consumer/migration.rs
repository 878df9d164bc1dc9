//! Changes of a group's protocol while it works (KIP-848): classic to consumer when the first member of the new protocol joins, back when
//! the last one leaves.
//!
//! A consumer group still serves its members of the classic protocol. Assignments stay, so no member has to stop. Until the change is
//! durable the group is not served: clients try again.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::super::api::Reply;
use super::super::classic::{ClassicGroup, State};
use super::super::group::{Group, Protocol};
use super::super::io::Io;
use super::super::log::CoordinatorRecord;
use super::super::member::{Member as ClassicMemberOf, MemberId};
use super::super::{rebalance, records, refused};
use super::append::write_conversion;
use super::change::{Change, GroupEpoch, TargetEpoch};
use super::embedded;
use super::group::ConsumerGroup;
use super::member::{ClassicMember, Current, MemberState, Profile, topic_names};
use super::partitions::{Assignment, Owned, Partition};
use super::refusal::Refusal;
use super::write::{Answer, Conversion};

/// A classic group that has become a consumer group, with the records to write.
pub(crate) struct Upgraded {
    pub(crate) records: Vec<CoordinatorRecord>,
    pub(crate) before: Box<Protocol>,
}

/// Makes a consumer group from a classic one. Members that wait in a request are asked to join again.
///
/// # Errors
/// GROUP_ID_NOT_FOUND if that is not allowed or not possible; then the group does not change.
pub(crate) fn upgrade(group: &mut Group, io: &mut Io<'_>) -> Result<Upgraded, Refusal> {
    let Protocol::Classic(classic) = &mut group.protocol else {
        unreachable!("only classic groups are upgraded")
    };
    if classic.state == State::Dead {
        return Err(Refusal::new(ErrorCode::COORDINATOR_NOT_AVAILABLE, "The group is being deleted."));
    }
    if classic.pending_writes > 0 {
        let message = "A record of the group is being written: try again.";
        return Err(Refusal::new(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, message));
    }
    let changes = if classic.state == State::Empty { Vec::new() } else { consumer_changes(classic, io)? };
    release(classic, io);
    let mut consumer = ConsumerGroup::new(classic.id.clone());
    let mut records = vec![records::group_tombstone(&classic.id)];
    for change in changes {
        records.push(change.record(&consumer.id));
        consumer.apply(change);
    }
    let before = io.exchange(group, Protocol::Consumer(consumer));
    Ok(Upgraded { records, before: Box::new(before) })
}

/// Answers all waiting requests of a classic group, and cancels its time-outs.
fn release(classic: &mut ClassicGroup, io: &mut Io<'_>) {
    io.cancel_join_timer(classic);
    io.cancel_sync_timer(classic);
    let pending: Vec<MemberId> = classic.pending_joins.keys().cloned().collect();
    for id in pending {
        rebalance::remove_pending(classic, io, &id);
    }
    let id = classic.id.clone();
    for member in classic.members.values_mut() {
        if let Some(waiter) = member.awaiting_join.take() {
            io.refuse_join(waiter, &member.id, ErrorCode::REBALANCE_IN_PROGRESS);
        }
        if let Some(token) = member.awaiting_sync.take() {
            io.refuse_sync(token, ErrorCode::REBALANCE_IN_PROGRESS);
        }
        member.is_new = false;
        io.cancel_session(&id, &member.id, &mut member.session);
    }
    // Should the change fail, members find an unfinished generation and join again.
    if classic.state == State::PreparingRebalance || classic.state == State::CompletingRebalance {
        classic.pending_syncs.clear();
        classic.transition_to(State::Stable, io.now.wall_ms);
    }
}

/// Returns the records of the consumer group that a classic one becomes.
fn consumer_changes(classic: &ClassicGroup, io: &Io<'_>) -> Result<Vec<Change>, Refusal> {
    let refusal = |reason: String| {
        let message = format!("Group {} cannot become a consumer group: {reason}.", classic.id);
        Refusal::new(ErrorCode::GROUP_ID_NOT_FOUND, message)
    };
    may_upgrade(classic, io).map_err(|reason| refusal(reason.to_owned()))?;
    let generation = classic.generation;
    let (mut profiles, mut targets, mut currents) = (Vec::new(), Vec::new(), Vec::new());
    let (mut taken, mut topics) = (BTreeSet::new(), BTreeSet::new());
    for member in classic.members.values() {
        let converted = convert(classic, io, member);
        let (profile, assigned) =
            converted.map_err(|reason| refusal(format!("member {}: {reason}", member.id)))?;
        topics.extend(profile.topics.iter().cloned());
        // A client's assignor may have given a partition to two members; here only one can have it.
        let assigned: Assignment = assigned.iter().filter(|at| taken.insert(**at)).copied().collect();
        profiles.push(Change::Profile(member.id.clone(), Some(profile)));
        currents.push(Change::Current(member.id.clone(), Some(taken_over(&assigned, generation))));
        targets.push(Change::Target(member.id.clone(), Some(assigned)));
    }
    let metadata_hash = io.cluster.group_hash(topics.iter().map(|name| &**name));
    let mut changes = profiles;
    changes.push(Change::Group(Some(GroupEpoch { epoch: generation, metadata_hash })));
    changes.extend(targets);
    changes.push(Change::TargetEpoch(Some(TargetEpoch { epoch: generation, timestamp_ms: 0 })));
    changes.extend(currents);
    Ok(changes)
}

/// Refuses the upgrade of a classic group if not all of its members can be in a consumer group.
///
/// # Errors
/// Why not.
fn may_upgrade(classic: &ClassicGroup, io: &Io<'_>) -> Result<(), &'static str> {
    let config = &io.config.consumer;
    if !config.migration_policy.allows_upgrade() {
        Err("group.consumer.migration.policy does not allow it")
    } else if !classic.uses_consumer_protocol() {
        Err("its members are no consumers")
    } else if classic.members.len() > config.max_size {
        Err("it has more members than group.consumer.max.size")
    } else {
        Ok(())
    }
}

/// Returns the current assignment of a member whose generation becomes its epoch.
fn taken_over(assigned: &Assignment, generation: i32) -> Current {
    Current {
        epoch: generation,
        previous_epoch: generation,
        state: MemberState::Stable,
        assigned: assigned.iter().map(|at: &Partition| (*at, generation)).collect(),
        revoking: Owned::default(),
    }
}

/// Returns a classic member as a member of a consumer group, with its partitions.
fn convert(
    group: &ClassicGroup,
    io: &Io<'_>,
    member: &ClassicMemberOf,
) -> Result<(Profile, Assignment), &'static str> {
    // Before its first generation ends a group has chosen no protocol: the member's first choice is used.
    let chosen = group.protocol_name.as_deref().map(|name| member.metadata(name));
    let metadata = chosen.or_else(|| member.protocols.first().map(|first| first.metadata.clone()));
    let subscription = metadata.as_deref().and_then(embedded::subscription);
    let subscription = subscription.ok_or("its subscription is malformed")?;
    let assigned = match &*member.assignment {
        [] => Assignment::default(),
        bytes => embedded::assigned(bytes, io.cluster)?,
    };
    let profile = Profile {
        instance_id: member.instance_id.clone(),
        rack_id: subscription.rack_id.as_deref().filter(|rack| !rack.is_empty()).map(Into::into),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        topics: topic_names(subscription.topics.iter().map(|topic| &**topic)),
        regex: None,
        rebalance_timeout_ms: member.rebalance_timeout_ms,
        server_assignor: None,
        classic: Some(Box::new(ClassicMember {
            session_timeout_ms: member.session_timeout_ms,
            protocols: member.protocols.clone(),
        })),
    };
    Ok((profile, assigned))
}

/// Returns true if only classic members remain without these members, and the group may become a classic group.
pub(crate) fn may_downgrade_without(group: &ConsumerGroup, io: &Io<'_>, leaving: &[MemberId]) -> bool {
    let leaves = |id: &MemberId| leaving.contains(id);
    let mut stays = group.members().values().filter(|member| !leaves(&member.id)).peekable();
    let left = group.members().len() - leaving.len();
    stays.peek().is_some() && stays.all(|member| member.uses_classic_protocol()) && may_be_classic(io, left)
}

/// Returns true if a static member that rejoins as a classic one was the last of the consumer protocol.
pub(crate) fn may_downgrade_with(group: &ConsumerGroup, io: &Io<'_>, replaced: &MemberId) -> bool {
    let others_are_classic = group.counts().classic == group.members().len() - 1;
    let was_consumer = group.member(replaced).is_some_and(|member| !member.uses_classic_protocol());
    others_are_classic && was_consumer && may_be_classic(io, group.members().len())
}

fn may_be_classic(io: &Io<'_>, members: usize) -> bool {
    let max = usize::try_from(io.config.group_max_size).unwrap_or(0);
    io.config.consumer.migration_policy.allows_downgrade() && members <= max
}

/// Makes a classic group from a consumer group whose last members of the consumer protocol leave; the rest rebalances. Returns false if
/// that is not possible: then the group does not change, and the caller sends `answer`.
pub(crate) fn downgrade(
    group: &mut Group,
    io: &mut Io<'_>,
    leaving: &[MemberId],
    answer: Option<Answer>,
) -> bool {
    downgrade_after(
        group,
        io,
        Downgrade { leaving, rebalance: true, records: Vec::new(), undo: Vec::new() },
        answer,
    )
}

/// Downgrades a group that had to wait until its records were written.
pub(crate) fn downgrade_if_due(group: &mut Group, io: &mut Io<'_>) {
    if let Protocol::Consumer(consumer) = &group.protocol
        && consumer.pending_writes == 0
        && may_downgrade_without(consumer, io, &[])
    {
        downgrade(group, io, &[], None);
    }
}

/// A change back to the classic protocol, with the earlier changes of the turn.
pub(crate) struct Downgrade<'a> {
    pub(crate) leaving: &'a [MemberId],
    /// The target is not that of the group's epoch, or members leave.
    pub(crate) rebalance: bool,
    pub(crate) records: Vec<CoordinatorRecord>,
    pub(crate) undo: Vec<Change>,
}

/// Downgrades a group at the end of a turn.
pub(crate) fn downgrade_after(
    group: &mut Group,
    io: &mut Io<'_>,
    downgrade: Downgrade<'_>,
    answer: Option<Answer>,
) -> bool {
    let Protocol::Consumer(consumer) = &mut group.protocol else { return false };
    // Appends in flight must be in the log, or undone, before the group changes.
    if consumer.pending_writes > 0 {
        return false;
    }
    let Some(classic) = classic_group(consumer, io, downgrade.leaving) else { return false };
    super::timers::cancel_all(consumer, io);
    let mut records = downgrade.records;
    records.extend(consumer.tombstones().iter().map(|tombstone| tombstone.record(&consumer.id)));
    records.push(records::group_metadata(&classic, |member| member.assignment.clone()));
    let before = Box::new(io.exchange(group, Protocol::Classic(classic)));
    let conversion = Conversion { before, rebalance: downgrade.rebalance };
    write_conversion(group, io, records, downgrade.undo, conversion, answer);
    true
}

/// The classic group of a consumer group's classic members, each with its target; None if they have no protocol in
/// common.
fn classic_group(consumer: &ConsumerGroup, io: &Io<'_>, leaving: &[MemberId]) -> Option<ClassicGroup> {
    let mut group = ClassicGroup::new(consumer.id.clone(), io.now.wall_ms);
    group.generation = consumer.epoch();
    group.state = State::Stable;
    for (id, member) in consumer.members().iter().filter(|(id, _)| !leaving.contains(id)) {
        let classic = member.profile.classic.as_ref()?;
        let nothing = Assignment::default();
        let target = consumer.target(id).unwrap_or(&nothing);
        let version = embedded::version(&classic.protocols.first()?.metadata)?;
        let assignment = embedded::assignment(target.by_topic(), version, io.cluster);
        let member = ClassicMemberOf {
            id: Arc::clone(id),
            instance_id: member.profile.instance_id.clone(),
            client_id: member.profile.client_id.clone(),
            client_host: member.profile.client_host.clone(),
            rebalance_timeout_ms: member.profile.rebalance_timeout_ms,
            session_timeout_ms: classic.session_timeout_ms,
            protocols: classic.protocols.clone(),
            assignment: assignment.into(),
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
            session: None,
        };
        group.add(embedded::CONSUMER, member);
    }
    group.protocol_name = Some(group.select_protocol()?);
    group.subscribe(io.free_bytes());
    Some(group)
}

/// A classic member joins an empty consumer group: it becomes an empty classic one, and the member tries again.
pub(crate) fn make_empty_classic(
    group: &mut Group,
    io: &mut Io<'_>,
    waiter: super::super::member::JoinWaiter,
    id: &str,
) {
    let Protocol::Consumer(consumer) = &mut group.protocol else { return };
    let retry = refused::join(id, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
    if consumer.pending_writes > 0 {
        return io.reply(waiter.token, retry);
    }
    let mut records: Vec<CoordinatorRecord> =
        consumer.tombstones().iter().map(|tombstone| tombstone.record(&consumer.id)).collect();
    let classic = ClassicGroup::new(consumer.id.clone(), io.now.wall_ms);
    records.push(records::created_group(&classic));
    let before = Box::new(io.exchange(group, Protocol::Classic(classic)));
    let conversion = Conversion { before, rebalance: false };
    let answer: (_, Reply) = (waiter.token, retry);
    write_conversion(group, io, records, Vec::new(), conversion, Some(answer));
}
