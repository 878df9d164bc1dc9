//! Replicas that come to nodes, leave them, and are replaced: what an operator asks of the metadata leader, as faults have it. In the end
//! each node has a replica of each partition again.
//!
//! The operator draws from a generator of its own, so that it does not change the rest of a run.

mod seen;

use super::Cluster;
use crate::faults::FaultKind;
use crate::node::Node;
use mainstem_controller::{LostReplica, MetadataImage, PartitionImage, TopicImage};
use mainstem_log::PartitionIdentity;
use mainstem_log::sim::Random;
use mainstem_node::node::Node as BrokerNode;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use parking_lot::Mutex;
use seen::Seen;
use std::sync::Arc;

/// Sets the generator apart from that of the world.
const SEED_OF_REPLICAS: u64 = 0x7265_706c_6963_6173;
/// Timeout of a request, in ms.
const ANSWER_MAX_MS: u64 = 6_000;
/// Percent of the moves that are cancelled, unless they end before.
const CANCEL_PERCENT: u64 = 50;
/// Longest time until a move is cancelled, in ms.
const CANCEL_MAX_MS: u64 = 1_200;
/// Percent of the removals that take one replica away, where one could also move to another node.
const SHRINK_PERCENT: u64 = 50;
/// The name of a removal in counts.
const REMOVED: &str = "replica removed";
/// Percent of the removals that prefer a partition which some node lacks.
const AGAIN_PERCENT: u64 = 80;
/// Percent of the removals behind which the operator asks for more, and the longest time until then, in ms.
const FOLLOWED_PERCENT: u64 = 70;
const FOLLOWED_MAX_MS: u64 = 5_000;
/// Fewer voters than these could not replace one of them: they need it.
const REPLACEABLE_MIN: usize = 3;
/// Time between two requests that give partitions back to all nodes, in ms.
const RESTORE_EVERY_MS: u64 = 500;
/// Time after the end of all faults until each node has each partition again, at most, in ms.
const RESTORED_MAX_MS: u64 = 30_000;

/// The operator, and what was seen of replicas.
pub(crate) struct Replicas {
    random: Random,
    partitions: Vec<PartitionIdentity>,
    nodes: i32,
    asked: Option<Asked>,
    /// A move that is to be cancelled: time in ms, and partition.
    cancel: Option<(u64, usize)>,
    /// The fault that follows a removal: time in ms, kind, and node.
    follows: Option<(u64, FaultKind, usize)>,
    restores: bool,
    next_restore_ms: u64,
    seen: Seen,
}

/// A request on its way.
struct Asked {
    until_ms: u64,
    /// The name under which it counts once it is granted.
    name: &'static str,
    answer: Arc<Mutex<Option<ErrorCode>>>,
}

/// A request of the operator.
#[derive(Debug)]
enum Change {
    /// Partitions get these replicas; `None`: those that they had before the move under way.
    Assign(Vec<(PartitionIdentity, Option<Vec<i32>>)>),
    /// A node's replica of a partition is another one from now on, unless the partition has changed since this version.
    Replace { node: i32, partition: PartitionIdentity, version: u32 },
}

impl Replicas {
    pub(crate) fn new(seed: u64, nodes: usize, partitions: Vec<PartitionIdentity>) -> Replicas {
        Replicas {
            random: Random::new(seed ^ SEED_OF_REPLICAS),
            nodes: i32::try_from(nodes).expect("a few nodes"),
            asked: None,
            cancel: None,
            follows: None,
            restores: false,
            next_restore_ms: 0,
            seen: Seen::new(nodes, partitions.len()),
            partitions,
        }
    }

    /// Has all partitions given back to all nodes.
    pub(crate) fn restore(&mut self) {
        (self.restores, self.cancel, self.follows) = (true, None, None);
    }

    /// Draws what follows a removal, before which there may have been nothing to add and no place to move to.
    fn draw_follower(&mut self, now_ms: u64) {
        if self.restores || !self.random.chance(FOLLOWED_PERCENT) {
            return;
        }
        let kind = if self.random.chance(50) { FaultKind::MemberAdd } else { FaultKind::MemberRemove };
        let node = self.random.below(self.nodes.unsigned_abs().into()) as usize;
        self.follows = Some((now_ms + self.random.below(FOLLOWED_MAX_MS), kind, node));
    }

    fn all_nodes(&self) -> Vec<i32> {
        (1..=self.nodes).collect()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.random.below(from.len().max(1) as u64) as usize)
    }
}

/// The nodes that a partition is to have replicas on.
fn target(partition: &PartitionImage) -> Vec<i32> {
    partition.wanted().into_iter().map(|(node, _)| node).collect()
}

/// A partition of these metadata.
fn find<'a>(image: &'a MetadataImage, of: &PartitionIdentity) -> Option<&'a PartitionImage> {
    image.topic(&of.topic)?.partitions.get(of.partition as usize)
}

impl Cluster {
    /// Looks at all replicas, and lets the operator act.
    pub(super) fn turn_replicas(&mut self) {
        self.look_at_replicas();
        self.take_granted();
        let now_ms = self.world.now_ms;
        let followed = self.replicas.follows.take_if(|(at_ms, ..)| *at_ms <= now_ms);
        let fault = self.world.member_fault.take().or(followed.map(|(_, kind, node)| (kind, node)));
        // With `write.caching` a majority has to have everything that was acknowledged, and only one node may lack some of it.
        self.world.moves_replicas = self.world.nodes[0].write_caching()
            && (self.replicas.asked.is_some()
                || (0..self.replicas.partitions.len()).any(|one| self.is_moving(one)));
        if self.replicas.asked.is_some() || self.world.nodes.iter().any(Node::may_lack) {
            return;
        }
        if self.replicas.restores {
            if now_ms >= self.replicas.next_restore_ms {
                self.replicas.next_restore_ms = now_ms + RESTORE_EVERY_MS;
                self.give_back();
            }
        } else if let Some((kind, node)) = fault {
            self.begin_member_fault(kind, node);
        } else if let Some((_, partition)) = self.replicas.cancel.take_if(|(at_ms, _)| *at_ms <= now_ms) {
            let partition = self.replicas.partitions[partition].clone();
            self.ask_for("move cancelled", Change::Assign(vec![(partition, None)]));
        }
    }

    /// The metadata of the node that decides, if there is one.
    fn deciding(&self) -> Option<Arc<MetadataImage>> {
        Some(self.world.deciding()?.0.controller.image())
    }

    fn begin_member_fault(&mut self, kind: FaultKind, node: usize) {
        let Some(image) = self.deciding() else { return };
        let node = node as i32 + 1;
        let (name, change) = match kind {
            FaultKind::MemberReplace => ("replacement granted", self.draw_replacement(&image, node)),
            FaultKind::MemberAdd => ("replicas added", self.draw_addition(&image)),
            _ => self.draw_removal(&image, node),
        };
        if let Some(change) = change {
            self.ask_for(name, change);
        }
    }

    /// A random partition that some node lacks, if there is one.
    fn draw_lacking(&mut self, image: &MetadataImage) -> Option<usize> {
        let lacks = |number: &usize| {
            let partition = find(image, &self.replicas.partitions[*number]);
            partition.is_some_and(|partition| target(partition).len() < self.replicas.nodes as usize)
        };
        let lacking: Vec<_> = (0..self.replicas.partitions.len()).filter(lacks).collect();
        self.replicas.pick(&lacking).copied()
    }

    /// A partition that some node lacks gets replicas on all nodes.
    fn draw_addition(&mut self, image: &MetadataImage) -> Option<Change> {
        let number = self.draw_lacking(image)?;
        let all = self.replicas.all_nodes();
        let mut nodes = target(find(image, &self.replicas.partitions[number])?);
        nodes.extend(all.into_iter().filter(|node| !nodes.contains(node)).collect::<Vec<_>>());
        Some(self.assignment(number, nodes))
    }

    /// A random partition loses a replica, at best that of a node, or it moves to another node.
    fn draw_removal(&mut self, image: &MetadataImage, node: i32) -> (&'static str, Option<Change>) {
        const MOVED: &str = "replica moved";
        let prefers_lacking = self.replicas.random.chance(AGAIN_PERCENT);
        let lacking = self.draw_lacking(image).filter(|_| prefers_lacking);
        let any = self.replicas.random.below(self.replicas.partitions.len() as u64) as usize;
        let number = lacking.unwrap_or(any);
        let Some(partition) = find(image, &self.replicas.partitions[number]) else { return (MOVED, None) };
        let mut nodes = target(partition);
        let absent: Vec<_> =
            self.replicas.all_nodes().into_iter().filter(|node| !nodes.contains(node)).collect();
        let gone = nodes.iter().position(|known| *known == node);
        let gone = gone.unwrap_or_else(|| self.replicas.random.below(nodes.len() as u64) as usize);
        let least = (self.replicas.nodes as usize / 2 + 1).max(self.world.min_insync);
        let may_shrink = nodes.len() > least;
        if may_shrink && (absent.is_empty() || self.replicas.random.chance(SHRINK_PERCENT)) {
            nodes.remove(gone);
            return (REMOVED, Some(self.assignment(number, nodes)));
        }
        let Some(new) = self.replicas.pick(&absent) else { return (MOVED, None) };
        nodes[gone] = *new;
        (MOVED, Some(self.assignment(number, nodes)))
    }

    /// Gives a partition these replicas, and cancels that later, or not.
    fn assignment(&mut self, number: usize, nodes: Vec<i32>) -> Change {
        if self.replicas.random.chance(CANCEL_PERCENT) {
            let at_ms = self.world.now_ms + 100 + self.replicas.random.below(CANCEL_MAX_MS);
            self.replicas.cancel = Some((at_ms, number));
        }
        Change::Assign(vec![(self.replicas.partitions[number].clone(), Some(nodes))])
    }

    /// A node's replica of a random partition is replaced, where the others have everything without it.
    fn draw_replacement(&mut self, image: &MetadataImage, node: i32) -> Option<Change> {
        let count = self.replicas.partitions.len();
        let may_lose = |number: &usize| {
            let partition = find(image, &self.replicas.partitions[*number]);
            partition.is_some_and(|partition| {
                partition.incarnation(node).is_some() && self.may_lose_one(*number, partition)
            })
        };
        let candidates: Vec<_> = (0..count).filter(may_lose).collect();
        let number = *self.replicas.pick(&candidates)?;
        let partition = self.replicas.partitions[number].clone();
        let version = find(image, &partition)?.wanted_version();
        Some(Change::Replace { node, partition, version })
    }

    /// Returns true if all replicas that are wanted are in service and vote, and the others are a majority without one of them.
    fn may_lose_one(&self, number: usize, partition: &PartitionImage) -> bool {
        target(partition).len() >= REPLACEABLE_MIN
            && self.why_unsettled(number, partition).is_none()
            && self.world.nodes.iter().all(|node| node.in_service().is_some())
    }

    /// Asks for all replicas of partitions that lack some.
    fn give_back(&mut self) {
        let Some(image) = self.deciding() else { return };
        let all = self.replicas.all_nodes();
        let lacks = |of: &&PartitionIdentity| {
            find(&image, of).is_some_and(|partition| {
                let mut nodes = target(partition);
                nodes.sort_unstable();
                nodes != all
            })
        };
        let lacking = self.replicas.partitions.iter().filter(lacks);
        let assigned: Vec<_> = lacking.map(|of| (of.clone(), Some(all.clone()))).collect();
        if !assigned.is_empty() {
            self.ask_for("replicas given back", Change::Assign(assigned));
        }
    }

    /// Sends a request to the metadata leader, if there is one.
    fn ask_for(&mut self, name: &'static str, change: Change) {
        let Some((node, group)) = self.world.deciding() else { return };
        tracing::debug!(now_ms = self.world.now_ms, ?change, "asked for");
        let (own, answer) = (node.clone(), Arc::new(Mutex::new(None)));
        let given = answer.clone();
        let run = move || *given.lock() = Some(carry_out(&own, change));
        group.spawn("operator-of-replicas", run).expect("a thread");
        self.replicas.asked = Some(Asked { until_ms: self.world.now_ms + ANSWER_MAX_MS, name, answer });
    }

    fn take_granted(&mut self) {
        let Some(Asked { until_ms, name, answer }) = &self.replicas.asked else { return };
        let answer = *answer.lock();
        match answer {
            None if self.world.now_ms < *until_ms => return,
            Some(ErrorCode::NONE) => {
                self.done.add(name);
                if *name == REMOVED {
                    self.replicas.draw_follower(self.world.now_ms);
                }
            }
            Some(ErrorCode::UNSUPPORTED_VERSION) => self.done.add("move refused"),
            // It may be granted now or later.
            _ => {}
        }
        self.replicas.asked = None;
    }

    /// Returns true if each node has a replica of each partition, all of them vote, and the metadata say so.
    ///
    /// # Panics
    /// If that takes too long after the end of all faults.
    pub(super) fn has_all_replicas(&self, healed_ms: u64) -> bool {
        let mut partitions = 0..self.replicas.partitions.len();
        let unsettled = partitions.find_map(|number| self.why_not_everywhere(number));
        let is_late = self.are_replicas_due(healed_ms);
        assert!(!is_late || unsettled.is_none(), "a move does not end: {}", unsettled.unwrap_or_default());
        unsettled.is_none()
    }

    /// Returns true if each node has to have all replicas by now.
    pub(super) fn are_replicas_due(&self, healed_ms: u64) -> bool {
        self.world.now_ms >= healed_ms + RESTORED_MAX_MS
    }

    fn is_moving(&self, number: usize) -> bool {
        self.why_not_everywhere(number).is_some()
    }

    /// The reason for which a partition is not on all nodes, with what the metadata and the leader say of it.
    fn why_not_everywhere(&self, number: usize) -> Option<String> {
        let of = &self.replicas.partitions[number];
        let image = self.replicas.seen.image()?;
        let partition = find(image, of)?;
        let mut nodes = target(partition);
        nodes.sort_unstable();
        let why = match nodes == self.replicas.all_nodes() {
            true => self.why_unsettled(number, partition)?,
            false => "it is not wanted everywhere",
        };
        let leader = self.world.leader(number);
        let configuration = leader.and_then(|leader| self.world.nodes[leader].configuration(number));
        let owns: Vec<_> = self.world.nodes.iter().map(|node| node.own_replica(number)).collect();
        Some(format!(
            "{}: {why}; metadata {partition:?}; leader {leader:?} has {configuration:?}; replicas {owns:?}",
            of.topic_partition()
        ))
    }

    /// The reason for which a partition has not exactly the wanted replicas.
    fn why_unsettled(&self, number: usize, partition: &PartitionImage) -> Option<&'static str> {
        if partition.is_moving() || !partition.removing.is_empty() || !partition.adding.is_empty() {
            return Some("a move is under way");
        }
        let wanted = seen::replicas(&partition.wanted());
        let Some(leader) = self.world.leader(number).map(|leader| &self.world.nodes[leader]) else {
            return Some("it has no leader");
        };
        let Some(term) = leader.leads_settled(number) else { return Some("its leader is new") };
        let Some(configuration) = leader.configuration(number) else { return Some("its leader is gone") };
        let has_others = !configuration.voters_outgoing.is_empty() || !configuration.learners.is_empty();
        if has_others || seen::sorted(&configuration.voters) != wanted {
            return Some("its group has other members");
        }
        let is_there = |node: &Node| {
            let own = node.own_replica(number);
            own == wanted.iter().copied().find(|id| id.node() == node.id().node())
        };
        if !self.world.nodes.iter().all(is_there) {
            return Some("a node has another replica than is wanted");
        }
        let is_reported =
            partition.group.as_ref().is_none_or(|group| u64::try_from(group.settled_epoch) == Ok(term));
        (!is_reported).then_some("its leader has not reported")
    }
}

/// Makes a change at a node that decides, as its APIs do.
fn carry_out(node: &BrokerNode, change: Change) -> ErrorCode {
    let controller = &node.controller;
    match change {
        Change::Assign(partitions) => {
            let topics = partitions.iter().map(|(partition, replicas)| {
                let partition_index = partition.partition;
                let of = ReassignablePartition {
                    partition_index,
                    replicas: replicas.clone(),
                    ..Default::default()
                };
                let name = (&*partition.topic).into();
                ReassignableTopic { name, partitions: vec![of], ..Default::default() }
            });
            let request = AlterPartitionReassignmentsRequest {
                topics: topics.collect(),
                allow_replication_factor_change: true,
                ..Default::default()
            };
            let answer = controller
                .decide(|machine| machine.alter_partition_reassignments(controller.view(), &request));
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => return error,
            };
            let results = answer.responses.iter().flat_map(|topic| &topic.partitions);
            let failed =
                results.map(|result| ErrorCode(result.error_code)).find(|code| *code != ErrorCode::NONE);
            failed.unwrap_or(ErrorCode::NONE)
        }
        Change::Replace { node, partition, version } => {
            let answer = controller.decide(|machine| {
                let image = machine.image();
                // Nothing that was decided before is on its way any more.
                let is_known = machine.ahead_offset() == image.next_offset();
                let topic = image.topic(&partition.topic).filter(|_| is_known);
                let same = topic.filter(|topic| {
                    topic.partitions[partition.partition as usize].wanted_version() == version
                });
                let lost = |topic: &TopicImage| {
                    let number = partition.partition;
                    let incarnation = topic.partitions[number as usize].incarnation(node)?;
                    Some(LostReplica { topic_id: topic.id, partition: number, incarnation })
                };
                let named: Vec<_> = same.and_then(lost).into_iter().collect();
                machine.replace_replicas(controller.view(), node, &named)
            });
            answer.err().unwrap_or(ErrorCode::NONE)
        }
    }
}
