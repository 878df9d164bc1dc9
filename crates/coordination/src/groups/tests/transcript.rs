//! Transcripts: the input is commands, the output the same commands with the coordinator's effects below each.
//!
//! Beside requests there are `wait MS` (time passes; each time-out fires at its time), `wall MS` (only the wall clock jumps), `hold`
//! (appends wait from now on) with `ok N` and `fail N ERROR`, `reload` (the coordinator dies and another one takes over from the log,
//! perhaps with another `group.max.size`), `unload`, `topic-deleted T`, and `end N commit` or `end N abort` (the marker of producer N is
//! written; it has an outcome like any append).

use std::collections::HashMap;
use std::fmt::Write as _;

use expect_test::Expect;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_describe_response::{
    Assignment as DescribedAssignment, DescribedGroup as DescribedConsumers,
};
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response::DescribedGroup;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_response::LeaveGroupResponse;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_groups_response::ListGroupsResponse;
use mainstem_wire::messages::offset_commit_response::OffsetCommitResponse;
use mainstem_wire::messages::offset_delete_response::OffsetDeleteResponse;
use mainstem_wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use mainstem_wire::messages::txn_offset_commit_response::TxnOffsetCommitResponse;

use super::cluster::{Cluster, PARTITION};
use super::consumer::immediate_targets;
use super::script::{self, Words, short};
use crate::groups::consumer::change::Change;
use crate::groups::consumer::partitions::Owned;
use crate::groups::records::{self, Record};
use crate::groups::{
    CoordinatorRecord, Effect, GroupConfig, GroupCoordinator, ListFilter, MatchedPatterns, Reply, Request,
    Ticket, Token,
};

/// A short initial delay, so that it differs from the other time-outs.
pub(super) fn config() -> GroupConfig {
    GroupConfig {
        group_initial_rebalance_delay_ms: 3_000,
        memory_bytes_for_members: 0,
        ..GroupConfig::default()
    }
}

/// Runs a script and compares the transcript.
#[track_caller]
pub(super) fn check(script: &str, expect: Expect) {
    check_with(config(), script, expect);
}

/// The same under another configuration.
#[track_caller]
pub(super) fn check_with(config: GroupConfig, script: &str, expect: Expect) {
    expect.assert_eq(&short(&play(config, script).out));
}

/// A coordinator after a script, which computes targets whenever the epoch of a group moves.
pub(in crate::groups) fn played(script: &str) -> GroupCoordinator {
    play(immediate_targets(), script).cluster.coordinator
}

fn play(config: GroupConfig, script: &str) -> Player {
    let mut player =
        Player { cluster: Cluster::new(config), labels: HashMap::new(), hold: false, out: String::new() };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        player.line(line);
    }
    player
}

struct Player {
    cluster: Cluster,
    labels: HashMap<Token, String>,
    hold: bool,
    out: String,
}

impl Player {
    /// Plays a line. `~` before it keeps it out of the transcript, `#` makes it a remark.
    fn line(&mut self, line: &str) {
        let before = self.out.len();
        let command = line.strip_prefix('~');
        writeln!(self.out, "> {line}").expect("a string takes everything");
        if !line.starts_with('#') {
            self.play(&Words::parse(command.unwrap_or(line)));
            self.settle();
            self.cluster.coordinator.check();
        }
        if command.is_some() {
            self.out.truncate(before);
        }
    }

    fn play(&mut self, words: &Words<'_>) {
        let arg = words.label;
        match words.verb {
            "wait" => self.wait(arg.parse().expect("milliseconds")),
            "wall" => self.cluster.now.wall_ms += arg.parse::<i64>().expect("milliseconds"),
            "hold" => self.hold = true,
            "ok" => self.finish(arg, Ok(())),
            "fail" => self.finish(arg, Err(script::error(words.rest[0]))),
            "unload" => self.cluster.coordinator.unload(self.cluster.now, PARTITION),
            "begin-load" => drop(self.cluster.coordinator.begin_load(PARTITION)),
            "reload" => {
                let now = self.cluster.now;
                self.cluster.coordinator.unload(now, PARTITION);
                self.settle();
                if let Ok(max) = arg.parse() {
                    self.cluster.config.group_max_size = max;
                }
                self.cluster.reload();
            }
            "topic" => {
                let partitions = words.rest[0].parse().expect("a number of partitions");
                self.cluster.set_topic(arg, partitions);
            }
            "end" => self.end(words),
            "topic-deleted" => self.cluster.coordinator.topic_deleted(self.cluster.now, arg),
            _ => self.request(words),
        }
    }

    fn request(&mut self, words: &Words<'_>) {
        let group = words.group();
        let version = |default| words.number("v", default);
        let names = |key| words.option(key).iter().map(|name| (*name).into()).collect();
        let (version, request) = match words.verb {
            "join" => {
                // Numbers are drawn for members without an id only, so that ids in scripts are dense.
                let random = if words.id().is_empty() { self.cluster.random() } else { [0; 16] };
                (version(9), Request::JoinGroup { request: script::join(words), random })
            }
            "sync" => (version(5), Request::SyncGroup(script::sync(words))),
            "beat" => (version(4), Request::Heartbeat(heartbeat(words))),
            "leave" => (version(5), Request::LeaveGroup(script::leave(words, version(5)))),
            "commit" => (version(9), Request::OffsetCommit(script::commit(words))),
            "txn" => (version(5), Request::TxnOffsetCommit(script::transactional_commit(words))),
            "fetch" => {
                let require_stable = words.rest.contains(&"stable");
                (version(9), Request::OffsetFetch { group: script::fetch(words), require_stable })
            }
            "list" => {
                let (states_filter, types_filter) = (names("states"), names("types"));
                let request = ListGroupsRequest { states_filter, types_filter, ..Default::default() };
                (version(5), Request::ListGroups { filter: ListFilter::of(&request), after: None })
            }
            "describe" => {
                let request = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
                (version(6), Request::DescribeGroups(request))
            }
            "hb" => {
                let random = if words.id().is_empty() { self.cluster.random() } else { [0; 16] };
                let id_of = |topic: &str| self.cluster.topics[topic].0;
                let request = script::consumer_heartbeat(words, id_of);
                let patterns = match words.rest.contains(&"unmatched") {
                    true => Some(MatchedPatterns::default()),
                    false => self.cluster.matched(&request),
                };
                (version(1), Request::ConsumerGroupHeartbeat { request, random, patterns })
            }
            "consumers" => {
                let request =
                    ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
                (version(1), Request::ConsumerGroupDescribe(request))
            }
            "delete" => (version(2), Request::DeleteGroup(group)),
            "offset-delete" => (version(0), Request::OffsetDelete(script::delete_offsets(words))),
            other => panic!("no command is called {other}"),
        };
        let token = self.cluster.send(version, words.text("client", "c"), request);
        self.labels.insert(token, words.label.to_owned());
    }

    fn end(&mut self, words: &Words<'_>) {
        let line = match self.cluster.end_transaction(script::end(words)) {
            Ok(()) if self.hold => {
                let ticket = self.cluster.unfinished().last().expect("the marker");
                format!("  marker #{}", ticket.number)
            }
            Ok(()) => return,
            Err(error) => format!("  {}", error.name()),
        };
        writeln!(self.out, "{line}").expect("a string takes everything");
    }

    fn wait(&mut self, ms: u64) {
        let end = self.cluster.now.mono_ms + ms;
        while let Some(at) = self.cluster.coordinator.next_deadline_ms().filter(|at| *at <= end) {
            self.cluster.advance(at.saturating_sub(self.cluster.now.mono_ms));
            self.cluster.coordinator.tick(self.cluster.now);
            let before = self.out.len();
            self.settle();
            if self.out.len() > before {
                self.out.insert_str(before, &format!("  at {}\n", self.cluster.now.mono_ms));
            }
        }
        self.cluster.advance(end - self.cluster.now.mono_ms);
    }

    fn finish(&mut self, number: &str, outcome: Result<(), ErrorCode>) {
        let number: u64 = number.parse().expect("a ticket's number");
        self.cluster.finish(Ticket { partition: PARTITION, number }, outcome);
    }

    /// Writes down the coordinator's effects, and lets appends succeed unless they are held.
    fn settle(&mut self) {
        loop {
            for effect in self.cluster.effects() {
                let line = match &effect {
                    Effect::Append { ticket, producer, records, .. } => {
                        let records: Vec<String> =
                            records.iter().map(|written| record(&self.cluster, written)).collect();
                        let number = if self.hold { format!(" #{}", ticket.number) } else { String::new() };
                        let by = producer.map(|producer| format!(" by {}", producer.id)).unwrap_or_default();
                        format!("append{number}{by} {}", records.join("; "))
                    }
                    Effect::Reply { token, reply } => {
                        format!("{}: {}", self.labels[token], answer(&self.cluster, reply))
                    }
                };
                writeln!(self.out, "  {line}").expect("a string takes everything");
            }
            let unfinished = self.cluster.unfinished().next();
            match unfinished {
                Some(ticket) if !self.hold => self.cluster.finish(ticket, Ok(())),
                _ => return,
            }
        }
    }
}

fn heartbeat(words: &Words<'_>) -> HeartbeatRequest<'static> {
    HeartbeatRequest {
        group_id: words.group().to_owned().into(),
        generation_id: words.number("gen", 1),
        member_id: words.id().into(),
        group_instance_id: words.option("instance").map(|id| id.to_owned().into()),
        ..Default::default()
    }
}

/// A record as the log's reader sees it.
pub(super) fn record(cluster: &Cluster, record: &CoordinatorRecord) -> String {
    match records::decode(&record.key, record.value.as_deref()).expect("our own record") {
        Record::Offset { key, value: None } => format!("{} {}-{} gone", key.group, key.topic, key.partition),
        Record::Offset { key, value: Some(value) } => {
            format!("{} {}-{}={}", key.group, key.topic, key.partition, value.offset)
        }
        Record::Group { key, value: None } => format!("{} gone", key.group),
        Record::Group { key, value: Some(value) } => {
            let members = value.members.iter().map(|member| {
                format!("{}={}", member.member_id, script::assignment_text(&member.assignment))
            });
            format!(
                "{} generation {} [{}]",
                key.group,
                value.generation,
                members.collect::<Vec<_>>().join(" ")
            )
        }
        Record::Consumer { group, change } => changed(cluster, &group, &change),
        Record::Other => "something else".to_owned(),
    }
}

/// An answer in a line.
pub(super) fn answer(cluster: &Cluster, reply: &Reply) -> String {
    match reply {
        Reply::JoinGroup(response) => joined(response),
        Reply::SyncGroup(response) => synced(response),
        Reply::Heartbeat(response) => name(response.error_code).to_owned(),
        Reply::LeaveGroup(response) => left(response),
        Reply::OffsetCommit(response) => committed(response),
        Reply::TxnOffsetCommit(response) => transactionally_committed(response),
        Reply::OffsetFetch(answer) => fetched(&answer.response()),
        Reply::ListGroups(part) => listed(&part.response),
        Reply::DescribeGroups(groups) => {
            groups.iter().map(|group| described(&group.response())).collect::<Vec<_>>().join("; ")
        }
        Reply::DeleteGroup(error) => error.name().to_owned(),
        Reply::OffsetDelete(response) => deleted(response),
        Reply::ConsumerGroupHeartbeat(response) => beaten(cluster, response),
        Reply::ConsumerGroupDescribe(groups) => {
            let shown = groups.iter().map(|group| consumers(cluster, &group.response()));
            shown.collect::<Vec<_>>().join("; ")
        }
    }
}

/// A change of a consumer group, as in its record.
fn changed(cluster: &Cluster, group: &str, change: &Change) -> String {
    let owned = |owned: &Owned| {
        let partitions = owned
            .iter()
            .map(|((topic, index), epoch)| format!("{}-{index}@{epoch}", cluster.topic_name(*topic)));
        partitions.collect::<Vec<_>>().join(" ")
    };
    match change {
        Change::Group(Some(epoch)) => format!("{group} epoch {}", epoch.epoch),
        Change::Group(None) => format!("{group} epoch gone"),
        Change::PartitionMetadata(_) => format!("{group} partition metadata gone"),
        Change::Profile(id, Some(profile)) => {
            let regex = profile.regex.as_ref().map(|regex| format!(" /{regex}/")).unwrap_or_default();
            let instance = profile.instance_id.as_ref().map(|id| format!("/{id}")).unwrap_or_default();
            let classic = if profile.classic.is_some() { " classic" } else { "" };
            format!("{group} member {id}{instance}{classic} [{}]{regex}", profile.topics.join(" "))
        }
        Change::Profile(id, None) => format!("{group} member {id} gone"),
        Change::TargetEpoch(Some(epoch)) => format!("{group} target epoch {}", epoch.epoch),
        Change::TargetEpoch(None) => format!("{group} target epoch gone"),
        Change::Target(id, Some(target)) => {
            let partitions =
                target.iter().map(|(topic, index)| format!("{}-{index}", cluster.topic_name(*topic)));
            format!("{group} target {id} [{}]", partitions.collect::<Vec<_>>().join(" "))
        }
        Change::Target(id, None) => format!("{group} target {id} gone"),
        Change::Current(id, Some(current)) => {
            let revoking = if current.revoking.is_empty() {
                String::new()
            } else {
                format!(" revoking [{}]", owned(&current.revoking))
            };
            format!(
                "{group} current {id} {}<-{} {:?} [{}]{revoking}",
                current.epoch,
                current.previous_epoch,
                current.state,
                owned(&current.assigned)
            )
        }
        Change::Current(id, None) => format!("{group} current {id} gone"),
        Change::Regex(regex, Some(resolved)) => format!("{group} /{regex}/ [{}]", resolved.topics.join(" ")),
        Change::Regex(regex, None) => format!("{group} /{regex}/ gone"),
    }
}

fn beaten(cluster: &Cluster, response: &ConsumerGroupHeartbeatResponse<'_>) -> String {
    if response.error_code != 0 {
        return name(response.error_code).to_owned();
    }
    let assignment = response.assignment.as_ref().map(|assignment| {
        let partitions = assignment.topic_partitions.iter().flat_map(|topic| {
            let name = cluster.topic_name(topic.topic_id);
            topic.partitions.iter().map(move |index| format!("{name}-{index}"))
        });
        format!(", has [{}]", partitions.collect::<Vec<_>>().join(" "))
    });
    format!(
        "{} in epoch {}{}",
        response.member_id.as_deref().unwrap_or("null"),
        response.member_epoch,
        assignment.unwrap_or_default()
    )
}

fn consumers(cluster: &Cluster, group: &DescribedConsumers<'_>) -> String {
    if group.error_code != 0 {
        return name(group.error_code).to_owned();
    }
    let list = |assignment: &DescribedAssignment<'_>| {
        let partitions = assignment.topic_partitions.iter().flat_map(|topic| {
            assert_eq!(topic.topic_name, cluster.topic_name(topic.topic_id));
            topic.partitions.iter().map(|index| format!("{}-{index}", topic.topic_name))
        });
        partitions.collect::<Vec<_>>().join(" ")
    };
    let members = group.members.iter().map(|member| {
        let kind = if member.member_type == 0 { " classic" } else { "" };
        format!(
            "{}{kind} {} [{}] -> [{}]",
            member.member_id,
            member.member_epoch,
            list(&member.assignment),
            list(&member.target_assignment)
        )
    });
    format!(
        "{} epoch {} target {} {}: {}",
        group.group_state,
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name,
        members.collect::<Vec<_>>().join("; ")
    )
}

fn name(code: i16) -> &'static str {
    ErrorCode(code).name()
}

fn joined(response: &JoinGroupResponse<'_>) -> String {
    if response.error_code != 0 {
        return format!("{} {:?}", name(response.error_code), response.member_id);
    }
    let members = response.members.iter().map(|member| match &member.group_instance_id {
        Some(instance) => format!("{}/{instance}", member.member_id),
        None => member.member_id.to_string(),
    });
    format!(
        "joined as {}: generation {}, {}, leader {}, members [{}]{}",
        response.member_id,
        response.generation_id,
        response.protocol_name.as_deref().unwrap_or("null"),
        response.leader,
        members.collect::<Vec<_>>().join(" "),
        if response.skip_assignment { ", skips the assignment" } else { "" },
    )
}

fn synced(response: &SyncGroupResponse<'_>) -> String {
    if response.error_code != 0 {
        return name(response.error_code).to_owned();
    }
    format!(
        "synced {} {}: {:?}",
        response.protocol_type.as_deref().unwrap_or("null"),
        response.protocol_name.as_deref().unwrap_or("null"),
        script::assignment_text(&response.assignment)
    )
}

fn left(response: &LeaveGroupResponse<'_>) -> String {
    let members = response.members.iter().map(|member| {
        let instance = member.group_instance_id.as_deref().map(|id| format!("/{id}")).unwrap_or_default();
        format!(" {}{instance} {}", member.member_id, name(member.error_code))
    });
    format!("left {}{}", name(response.error_code), members.collect::<String>())
}

fn committed(response: &OffsetCommitResponse<'_>) -> String {
    let partitions = response.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| {
            format!("{}-{} {}", topic.name, partition.partition_index, name(partition.error_code))
        })
    });
    partitions.collect::<Vec<_>>().join(", ")
}

fn transactionally_committed(response: &TxnOffsetCommitResponse<'_>) -> String {
    let partitions = response.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| {
            format!("{}-{} {}", topic.name, partition.partition_index, name(partition.error_code))
        })
    });
    partitions.collect::<Vec<_>>().join(", ")
}

fn fetched(response: &OffsetFetchResponseGroup<'_>) -> String {
    if response.error_code != 0 {
        return name(response.error_code).to_owned();
    }
    let partitions = response.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| {
            let metadata = partition.metadata.as_deref().unwrap_or("null");
            let metadata = if metadata.is_empty() { String::new() } else { format!(":{metadata}") };
            let error = if partition.error_code == 0 { "" } else { name(partition.error_code) };
            format!(
                "{}-{}={}{metadata}{error}",
                topic.name, partition.partition_index, partition.committed_offset
            )
        })
    });
    format!("offsets [{}]", partitions.collect::<Vec<_>>().join(" "))
}

fn listed(response: &ListGroupsResponse<'_>) -> String {
    let groups = response.groups.iter().map(|group| {
        format!("{} {} {:?} {}", group.group_id, group.group_state, group.protocol_type, group.group_type)
    });
    let mut groups: Vec<String> = groups.collect();
    groups.sort();
    format!("{} [{}]", name(response.error_code), groups.join(", "))
}

fn described(group: &DescribedGroup<'_>) -> String {
    if group.error_code != 0 {
        let message = group.error_message.as_deref().unwrap_or_default();
        return format!("{} {} {message}", group.group_state, name(group.error_code));
    }
    let members = group.members.iter().map(|member| {
        let instance = member.group_instance_id.as_deref().map(|id| format!("/{id}")).unwrap_or_default();
        let assignment = String::from_utf8_lossy(&member.member_assignment);
        let metadata = member.member_metadata.len();
        format!(
            "{}{instance} {}{} metadata {metadata} bytes, assigned {assignment:?}",
            member.member_id, member.client_id, member.client_host
        )
    });
    format!(
        "{} {:?} {:?} [{}]",
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        members.collect::<Vec<_>>().join("; ")
    )
}

fn deleted(response: &OffsetDeleteResponse<'_>) -> String {
    let partitions = response.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| {
            format!(" {}-{} {}", topic.name, partition.partition_index, name(partition.error_code))
        })
    });
    format!("{}{}", name(response.error_code), partitions.collect::<String>())
}
