//! Requests of this node to others with their answers, and its reports to the metadata leader.

use std::sync::Arc;

use mainstem_controller::{DirectoryAssignment, ProducerIdBlock};
use mainstem_wire::messages::create_topics_response::CreatableTopicResult;
use mainstem_wire::{ErrorCode, Uuid};

use super::calls::{self, Answer, Answered, Ask, Who, encode};
use super::{ANSWER_TIME, ASK, Cluster, LEADER_TIMEOUT, OnCurrent, RETRY, in_own_thread, is_transient};
use mainstem_requests::context::RequestContext;

impl Cluster {
    /// Asks a node and waits for its answer.
    pub(crate) fn ask(&self, node: i32, ask: &Ask) -> Answered {
        if node == self.own {
            return self.answer(self.own, ask.clone());
        }
        self.ask_while(node, ask, || true)
    }

    /// Asks the node that leads the metadata. One that leads no more may be paused or cut off: it is not waited for when another one
    /// is known to lead.
    pub(crate) fn ask_as_leader(&self, node: i32, ask: &Ask) -> Answered {
        match node == self.own {
            true => self.ask(node, ask),
            false => self.ask_while(node, ask, || self.may_lead(node)),
        }
    }

    /// Returns true if `node` may lead the metadata: no other node is known to. A node that does not know the leader for a moment
    /// keeps waiting for its answer, since what it has asked for may be done.
    pub(crate) fn may_lead(&self, node: i32) -> bool {
        self.controller.leader().is_none_or(|leader| leader == node)
    }

    /// Asks another node, and waits for its answer as long as something holds.
    pub(crate) fn ask_while(&self, node: i32, ask: &Ask, holds: impl Fn() -> bool) -> Answered {
        match self.links.call_while(node, ASK, encode(ask), ANSWER_TIME, holds) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or(Answered::NotHere),
            Err(_) => Answered::NotHere,
        }
    }

    /// Asks another node; the answer goes to a function on a thread of its own.
    pub(crate) fn ask_then(&self, node: i32, ask: &Ask, then: impl FnOnce(Answered) + Send + 'static) {
        let on_answer = move |result: Result<Vec<u8>, _>| {
            let answered = result.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            in_own_thread(move || then(answered.unwrap_or(Answered::NotHere)));
        };
        self.links.call_then(node, ASK, encode(ask), Box::new(on_answer));
    }

    /// Asks the node that leads the metadata by then, and waits until this node knows what it has changed.
    ///
    /// # Errors
    /// What it refuses with; NOT_CONTROLLER where there is none for too long.
    pub(crate) fn ask_leader(&self, ask: &Ask) -> Result<Answer, ErrorCode> {
        let deadline = self.local.clock.instant() + LEADER_TIMEOUT;
        loop {
            let answered = match self.controller.leader() {
                Some(node) => self.ask_as_leader(node, ask),
                None => Answered::NotHere,
            };
            match answered {
                Answered::Is { answer, at } => {
                    let left = deadline.saturating_duration_since(self.local.clock.instant());
                    self.controller.wait_for_image(at, left)?;
                    return Ok(answer);
                }
                Answered::Refused(code) if ErrorCode(code) != ErrorCode::NOT_CONTROLLER => {
                    return Err(ErrorCode(code));
                }
                _ if self.local.stopping.is_stopping() || self.local.clock.instant() >= deadline => {
                    return Err(ErrorCode::NOT_CONTROLLER);
                }
                _ => mainstem_runtime::sync::sleep(RETRY),
            }
        }
    }

    /// Calls a function when this node knows all that the metadata leader knew when this was called; with false if that could not
    /// be found out.
    pub(crate) fn when_current(self: &Arc<Self>, then: OnCurrent) {
        self.catching_up.lock().push(then);
        let cluster = self.clone();
        self.asking.run(Box::new(move || {
            // All that wait have one question together.
            let waiting = std::mem::take(&mut *cluster.catching_up.lock());
            if waiting.is_empty() {
                return;
            }
            // It asks for nothing, and is answered by the leader alone.
            let nothing = Ask::CreateMissing { names: Vec::new(), who: None };
            let is_current = cluster.ask_leader(&nothing).is_ok();
            waiting.into_iter().for_each(|then| then(is_current));
        }));
    }

    /// A block of producer ids.
    ///
    /// # Errors
    /// The metadata leader's.
    pub(crate) fn producer_ids(&self) -> Result<ProducerIdBlock, ErrorCode> {
        match self.ask_leader(&Ask::ProducerIds { node: self.own }) {
            Ok(Answer::ProducerIds(from, to)) => Ok(from..to),
            Ok(_) => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
            // As from Kafka: the code on which producers try again.
            Err(error) if is_transient(error) => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            Err(error) => Err(error),
        }
    }

    /// Creates topics that are missing: for a client, or for a coordinator.
    pub fn create_missing_topics(
        &self,
        names: &[&str],
        context: Option<&RequestContext>,
    ) -> Vec<CreatableTopicResult<'static>> {
        let who = context.map(|context| Who::of(&self.local, context));
        let named = names.iter().map(|name| (*name).to_owned()).collect();
        let created = match self.ask_leader(&Ask::CreateMissing { names: named, who }) {
            Ok(Answer::Created(created)) => created,
            Ok(_) => Vec::new(),
            Err(error) => {
                let refused =
                    |name: &&str| ((*name).to_owned(), error.code(), Some(error.message().to_owned()));
                names.iter().map(refused).collect()
            }
        };
        let result = |(name, error_code, message): (String, i16, Option<String>)| CreatableTopicResult {
            name: name.into(),
            error_code,
            error_message: message.map(Into::into),
            ..Default::default()
        };
        created.into_iter().map(result).collect()
    }

    /// Has the metadata note where partitions of this node are.
    pub(crate) fn report_directories(self: &Arc<Self>, assignments: &[DirectoryAssignment]) {
        let image = self.controller.image();
        let is_new = |to: &&DirectoryAssignment| {
            let topic = image.topic_by_id(to.topic_id);
            let index = usize::try_from(to.partition).ok();
            let partition = topic.zip(index).and_then(|(topic, index)| topic.partitions.get(index));
            let own = partition.and_then(|known| known.replicas.iter().position(|id| *id == self.own));
            let known = partition.zip(own).and_then(|(known, own)| known.directories.get(own));
            known != Some(&to.directory)
        };
        let new: Vec<_> = assignments.iter().filter(is_new).copied().collect();
        drop(image);
        if !new.is_empty() {
            let assignments = calls::assignments_on_their_way(&new);
            self.report(Ask::Directories { node: self.own, assignments });
        }
    }

    /// Has the metadata note which log directories are left.
    pub(crate) fn report_online(self: &Arc<Self>, online: &[Uuid]) {
        let directories = online.iter().map(|id| id.0).collect();
        self.report(Ask::Online { node: self.own, directories });
    }

    /// Has the metadata note which log directories take no new partitions.
    pub(crate) fn report_cordoned(self: &Arc<Self>, cordoned: &[Uuid]) {
        let known = self.controller.image().broker(self.own).map(|node| node.cordoned_log_dirs.clone());
        if known.as_deref() != Some(cordoned) {
            let directories = cordoned.iter().map(|id| id.0).collect();
            self.report(Ask::Cordoned { node: self.own, directories });
        }
    }

    /// Reports groups that have the members that are wanted.
    pub(crate) fn report_settled(self: &Arc<Self>, partitions: Vec<(calls::Id, i32, i32, u32)>) {
        self.report(Ask::Settled { node: self.own, partitions });
    }

    /// Reports replicas that are lost.
    pub(crate) fn report_lost(self: &Arc<Self>, replicas: Vec<(calls::Id, i32, u32)>) {
        self.report(Ask::Lost { node: self.own, replicas });
    }

    /// Reports logs that are shorter than before the stop, so that consumers notice (KIP-320).
    pub(crate) fn report_shorter(self: &Arc<Self>, shorter: &[(Uuid, i32)]) {
        if !shorter.is_empty() {
            let partitions = shorter.iter().map(|(topic, index)| (topic.0, *index)).collect();
            self.report(Ask::Shorter { node: self.own, partitions });
        }
    }

    /// Sends a report to the metadata leader, again until it has answered or the broker stops.
    pub(super) fn report(self: &Arc<Self>, ask: Ask) {
        let own = self.clone();
        self.reporting.run(Box::new(move || {
            while !own.local.stopping.is_stopping() {
                match own.ask_leader(&ask) {
                    Err(error) if is_transient(error) => mainstem_runtime::sync::sleep(RETRY),
                    Err(error) => return tracing::error!("the metadata leader refuses {ask:?}: {error}"),
                    Ok(Answer::Joined(Err(why))) => {
                        return tracing::error!(
                            "the metadata leader does not note where this node is: {why}"
                        );
                    }
                    Ok(_) => return,
                }
            }
        }));
    }
}
