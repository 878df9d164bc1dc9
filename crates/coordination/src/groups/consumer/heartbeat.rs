//! ConsumerGroupHeartbeat (68), v0-1: a member joins, reports its partitions, and gets its next assignment (KIP-848).

use std::sync::Arc;

use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::consumer_group_heartbeat_response::{
    Assignment as ResponseAssignment, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::super::config::GroupConfig;
use super::super::member::MemberId;
use super::super::records;
use super::super::request_context::RequestContext;
use super::change::Change;
use super::member::{Current, Member, Profile, topic_names};
use super::partitions::{Assignment, Owned};
use super::patterns::MatchedPatterns;
use super::reconcile::Reconciliation;
use super::refusal::Refusal;
use super::regex::PATTERN_BYTES_MAX;
use super::subscription::{self, Matching, Subscribed};
use super::target;
use super::turn::Turn;
use mainstem_config::Assignor;

/// The epoch with which a member joins.
pub(crate) const JOIN: i32 = 0;
/// The epoch with which a member leaves.
pub(crate) const LEAVE: i32 = -1;
/// The epoch with which a static member leaves temporarily.
pub(crate) const LEAVE_STATIC: i32 = -2;
/// From this version on the member draws its own id (KIP-1082).
const MEMBER_ID_SINCE: i16 = 1;

/// A heartbeat with the parts that are used more than once.
pub(crate) struct Beat<'a> {
    pub(crate) request: &'a ConsumerGroupHeartbeatRequest<'a>,
    pub(crate) context: RequestContext<'a>,
    /// 16 random bytes: the member's id if it brings none.
    pub(crate) random: [u8; 16],
    pub(crate) matching: Matching<'a>,
    /// The partitions that the member reports as its own.
    pub(crate) owned: Option<Assignment>,
}

impl<'a> Beat<'a> {
    pub(crate) fn new(
        request: &'a ConsumerGroupHeartbeatRequest<'a>,
        context: RequestContext<'a>,
        random: [u8; 16],
        patterns: Option<&'a MatchedPatterns>,
    ) -> Self {
        let matching = patterns.map_or(Matching::Here(context.visible), Matching::Ahead);
        let owned = request.topic_partitions.as_ref().map(|topics| {
            let topics = topics.iter();
            topics.flat_map(|topic| topic.partitions.iter().map(|index| (topic.topic_id, *index))).collect()
        });
        Self { request, context, random, matching, owned }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.request.member_epoch, LEAVE | LEAVE_STATIC)
    }

    /// Returns true if the request has all fields: the member joins, or has lost an answer.
    fn is_full(&self) -> bool {
        let request = self.request;
        let subscribes = request.subscribed_topic_names.is_some() || request.subscribed_topic_regex.is_some();
        request.rebalance_timeout_ms != -1 && subscribes && self.owned.is_some()
    }

    /// Returns the profile with the fields of the request; omitted fields stay as they were.
    pub(crate) fn update(&self, before: &Profile) -> Profile {
        let request = self.request;
        let mut profile = Profile {
            client_id: self.context.client_id.into(),
            client_host: self.context.client_host.into(),
            classic: None,
            ..before.clone()
        };
        if let Some(instance) = &request.instance_id {
            profile.instance_id = Some((&**instance).into());
        }
        if let Some(rack) = &request.rack_id {
            profile.rack_id = Some((&**rack).into());
        }
        if request.rebalance_timeout_ms != -1 {
            profile.rebalance_timeout_ms = request.rebalance_timeout_ms;
        }
        if let Some(assignor) = &request.server_assignor {
            profile.server_assignor = Some((&**assignor).into());
        }
        if let Some(names) = &request.subscribed_topic_names {
            profile.topics = topic_names(names.iter().map(|name| &**name));
        }
        if let Some(regex) = &request.subscribed_topic_regex {
            profile.regex = (!regex.is_empty()).then(|| (&**regex).into());
        }
        profile
    }
}

/// Checks a request as far as that is possible without its group.
///
/// # Errors
/// INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION (a pattern that is too long).
pub(crate) fn validate(beat: &Beat<'_>, config: &GroupConfig) -> Result<(), Refusal> {
    let request = beat.request;
    let epoch = request.member_epoch;
    let invalid = |message: &str| Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    let is_blank = |text: Option<&str>| text.is_some_and(|text| text.trim().is_empty());
    let needs_id = beat.context.api_version >= MEMBER_ID_SINCE || epoch > JOIN || epoch == LEAVE;
    if needs_id && is_blank(Some(&request.member_id)) {
        return invalid("MemberId is empty: from version 1 on a member draws its own id before it joins.");
    }
    if is_blank(Some(&request.group_id)) {
        return invalid("GroupId is empty: set group.id.");
    }
    if is_blank(request.instance_id.as_deref()) || is_blank(request.rack_id.as_deref()) {
        return invalid("InstanceId and RackId must be left out or not be empty.");
    }
    if epoch < LEAVE_STATIC {
        return invalid("MemberEpoch is below -2, which no member has.");
    }
    if epoch == LEAVE_STATIC && request.instance_id.is_none() {
        return invalid("MemberEpoch -2 is for static members: InstanceId is missing.");
    }
    if epoch == JOIN {
        validate_join(beat)?;
    }
    validate_assignor(request, config)?;
    validate_sizes(beat, config)
}

fn validate_join(beat: &Beat<'_>) -> Result<(), Refusal> {
    let request = beat.request;
    let invalid = |message: &str| Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    if request.rebalance_timeout_ms == -1 {
        return invalid("RebalanceTimeoutMs is missing: a member says it when it joins.");
    }
    if beat.owned.as_ref().is_none_or(|owned| !owned.is_empty()) {
        return invalid("TopicPartitions must be empty when a member joins: it has none yet.");
    }
    if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
        return invalid(
            "SubscribedTopicNames and SubscribedTopicRegex are both missing: a member says one when it joins.",
        );
    }
    Ok(())
}

fn validate_assignor(
    request: &ConsumerGroupHeartbeatRequest<'_>,
    config: &GroupConfig,
) -> Result<(), Refusal> {
    let Some(name) = request.server_assignor.as_deref() else { return Ok(()) };
    let offered = &config.consumer.assignors;
    if Assignor::named(name).is_some_and(|assignor| offered.contains(&assignor)) {
        return Ok(());
    }
    let names: Vec<&str> = offered.iter().map(|assignor| assignor.name()).collect();
    let message = format!("The assignor {name:?} is not served here; there are: {}.", names.join(", "));
    Err(Refusal::new(ErrorCode::UNSUPPORTED_ASSIGNOR, message))
}

/// Checks that the names and the subscription fit into records and limits.
fn validate_sizes(beat: &Beat<'_>, config: &GroupConfig) -> Result<(), Refusal> {
    let request = beat.request;
    let too_large = |what: &str| {
        let message = format!("{what} is longer than the coordinator keeps: make it shorter.");
        Err(Refusal::new(ErrorCode::INVALID_REQUEST, message))
    };
    let names = [&*request.group_id, &request.member_id, beat.context.client_id, beat.context.client_host];
    let optional = [request.instance_id.as_deref(), request.rack_id.as_deref()];
    if !names.into_iter().chain(optional.into_iter().flatten()).all(records::fits) {
        return too_large("A name of the member");
    }
    if request.subscribed_topic_regex.as_ref().is_some_and(|regex| regex.len() > PATTERN_BYTES_MAX) {
        let message = format!("SubscribedTopicRegex has more than {PATTERN_BYTES_MAX} bytes.");
        return Err(Refusal::new(ErrorCode::INVALID_REGULAR_EXPRESSION, message));
    }
    let topics = request.subscribed_topic_names.iter().flatten();
    if topics.map(|name| name.len() + size_of::<Box<str>>()).sum::<usize>() > config.member_protocol_bytes_max
    {
        return too_large("SubscribedTopicNames");
    }
    Ok(())
}

/// Serves the heartbeat of a member that stays.
///
/// # Errors
/// Errors of the member; the turn must be aborted.
pub(crate) fn beat(
    turn: &mut Turn<'_>,
    beat: &Beat<'_>,
) -> Result<ConsumerGroupHeartbeatResponse<'static>, Refusal> {
    let id = member_id(turn, beat)?;
    let before = find(turn, beat, &id)?;
    let profile = beat.update(&before.profile);
    if turn.group.member(&id).is_none_or(|member| member.profile != profile) {
        turn.put(Change::Profile(id.clone(), Some(profile.clone())));
    }
    let subscribed = subscription::update(turn, &before.profile, &profile, beat.matching)?;
    target::update_epoch(turn, subscribed.bump);
    target::update_target(turn);
    reconcile(turn, &id, subscribed, beat.owned.as_ref())?;
    let current = &turn.group.member(&id).expect("it was found or put there").current;
    let tell = beat.request.member_epoch == JOIN
        || beat.is_full()
        || !current.assigned.same_partitions(&before.current.assigned);
    Ok(ConsumerGroupHeartbeatResponse {
        member_id: Some(id.to_string().into()),
        member_epoch: current.epoch,
        heartbeat_interval_ms: turn.config.consumer.of(&turn.group.id).heartbeat_interval_ms,
        assignment: tell.then(|| Box::new(assignment(&current.assigned))),
        ..Default::default()
    })
}

/// The member as it was before the request.
pub(crate) struct Before {
    pub(crate) profile: Profile,
    pub(crate) current: Current,
}

impl Before {
    fn none() -> Self {
        Self { profile: Profile::default(), current: Current::default() }
    }

    fn of(member: &Member) -> Self {
        Self { profile: member.profile.clone(), current: member.current.clone() }
    }
}

/// The member's id, unless the group is full: that of the request, or a new one.
fn member_id(turn: &Turn<'_>, beat: &Beat<'_>) -> Result<MemberId, Refusal> {
    let id = &*beat.request.member_id;
    refuse_if_full(turn, id)?;
    Ok(if id.is_empty() { Uuid(beat.random).to_string().into() } else { id.into() })
}

/// Refuses a new member if the group has `group.consumer.max.size` members.
pub(crate) fn refuse_if_full(turn: &Turn<'_>, id: &str) -> Result<(), Refusal> {
    let max = turn.config.consumer.max_size;
    if turn.group.members().len() < max || turn.group.member(id).is_some() {
        return Ok(());
    }
    let message = format!("The group has {max} members, as many as group.consumer.max.size allows.");
    Err(Refusal::new(ErrorCode::GROUP_MAX_SIZE_REACHED, message))
}

/// Finds the member, or checks that it may join.
fn find(turn: &mut Turn<'_>, beat: &Beat<'_>, id: &MemberId) -> Result<Before, Refusal> {
    let request = beat.request;
    let joining = request.member_epoch == JOIN;
    let found = match request.instance_id.as_deref() {
        None => dynamic_member(turn, id, joining)?,
        Some(instance) => static_member(turn, id, instance, joining, false)?,
    };
    if !joining {
        check_epoch(&found.current, request.member_epoch, beat.owned.as_ref())?;
    }
    Ok(found)
}

/// A member without an instance id.
pub(crate) fn dynamic_member(turn: &Turn<'_>, id: &str, joining: bool) -> Result<Before, Refusal> {
    match turn.group.member(id) {
        Some(member) => Ok(Before::of(member)),
        None if joining => Ok(Before::none()),
        None => Err(unknown_member(turn, id)),
    }
}

/// Finds or replaces a member with an instance id (KIP-345). A joining member replaces one that has left temporarily. If one of the two is
/// of the classic protocol, it may always do so.
pub(crate) fn static_member(
    turn: &mut Turn<'_>,
    id: &MemberId,
    instance: &str,
    joining: bool,
    classic: bool,
) -> Result<Before, Refusal> {
    let Some(holder) = turn.group.static_member(instance) else {
        return if joining { dynamic_member(turn, id, true) } else { Err(unknown_member(turn, id)) };
    };
    if !joining {
        return if holder.id == *id {
            Ok(Before::of(holder))
        } else {
            Err(fenced_instance(id, instance, holder))
        };
    }
    // The answer to its join was lost, and it joins once more under its own id (KIP-1082). Kafka refuses that until its session ends.
    if holder.id == *id && !holder.uses_classic_protocol() {
        return Ok(Before::of(holder));
    }
    if !classic && !holder.uses_classic_protocol() && holder.current.epoch != LEAVE_STATIC {
        let message = format!(
            "Instance id {instance} is held by member {}: stop that one, or wait until its session ends.",
            holder.id
        );
        return Err(Refusal::new(ErrorCode::UNRELEASED_INSTANCE_ID, message));
    }
    let old = holder.id.clone();
    Ok(replace(turn, &old, id))
}

/// Gives the place and the state of a static member to its next incarnation.
fn replace(turn: &mut Turn<'_>, old: &MemberId, new: &MemberId) -> Before {
    let holder = turn.group.member(old).expect("the caller found it");
    let profile = holder.profile.clone();
    let current = Current { epoch: 0, previous_epoch: 0, ..holder.current.clone() };
    let target = turn.group.target(old).cloned().unwrap_or_default();
    remove(turn, old);
    turn.put(Change::Profile(new.clone(), Some(profile.clone())));
    turn.put(Change::Target(new.clone(), Some(target)));
    turn.put(Change::Current(new.clone(), Some(current.clone())));
    Before { profile, current }
}

/// Removes a member from the group's records.
pub(crate) fn remove(turn: &mut Turn<'_>, id: &MemberId) {
    turn.put(Change::Current(id.clone(), None));
    turn.put(Change::Target(id.clone(), None));
    turn.put(Change::Profile(id.clone(), None));
}

/// Checks that the member is in the epoch that it names. It may be one epoch behind if an answer was lost: then it reports no partitions
/// beyond those that it was given.
fn check_epoch(current: &Current, epoch: i32, owned: Option<&Assignment>) -> Result<(), Refusal> {
    let lost_answer = || {
        epoch == current.previous_epoch
            && owned.is_some_and(|owned| owned.iter().all(|at| current.assigned.contains(at)))
    };
    if epoch == current.epoch || (epoch < current.epoch && lost_answer()) {
        return Ok(());
    }
    let message = format!(
        "The member is in epoch {} and not in {epoch}: it must drop all partitions and join again.",
        current.epoch
    );
    Err(Refusal::new(ErrorCode::FENCED_MEMBER_EPOCH, message))
}

pub(crate) fn unknown_member(turn: &Turn<'_>, id: &str) -> Refusal {
    let message = format!("Member {id} is not in group {}: it must join again.", turn.group.id);
    Refusal::new(ErrorCode::UNKNOWN_MEMBER_ID, message)
}

pub(crate) fn fenced_instance(id: &str, instance: &str, holder: &Member) -> Refusal {
    let message = format!(
        "Instance id {instance} belongs to member {} now, not to {id}: no two members may use it at once.",
        holder.id
    );
    Refusal::new(ErrorCode::FENCED_INSTANCE_ID, message)
}

/// Reconciles the member with its target by one step.
pub(crate) fn reconcile(
    turn: &mut Turn<'_>,
    id: &MemberId,
    subscribed: Subscribed,
    owned: Option<&Assignment>,
) -> Result<(), Refusal> {
    let nothing = Assignment::default();
    let step = Reconciliation {
        group: turn.group,
        topics: turn.topics,
        member: turn.group.member(id).expect("it was found or put there"),
        target: turn.group.target(id).unwrap_or(&nothing),
        target_epoch: turn.group.assignment_epoch(),
        subscription_changed: subscribed.changed,
        owned,
    };
    let next = step.next().map_err(|_| {
        let message = "The member's state is of a later version: it must drop all partitions and join again.";
        Refusal::new(ErrorCode::FENCED_MEMBER_EPOCH, message)
    })?;
    if let Some(next) = next {
        turn.put(Change::Current(Arc::clone(id), Some(next)));
    }
    Ok(())
}

fn assignment(assigned: &Owned) -> ResponseAssignment<'static> {
    let topic = |(topic_id, partitions, _)| TopicPartitions { topic_id, partitions, ..Default::default() };
    ResponseAssignment { topic_partitions: assigned.by_topic().map(topic).collect(), ..Default::default() }
}
