//! Answers of this node to questions about the metadata and about the partitions that it leads.

use mainstem_controller::FeatureRanges;
use mainstem_requests::context::{Operation, Resource, authorize, may_create};
use mainstem_wire::{ErrorCode, Uuid};

use super::Cluster;
use super::calls::{Answer, Answered, Ask, Who, assignments_of, lost_of, settled_of};
use crate::local::Local;

impl Cluster {
    /// Answers a question of a node, this one included, which may take its time. Those about transactions are answered by
    /// [`Answers`](crate::answers::Answers).
    pub(crate) fn answer(&self, from: i32, ask: Ask) -> Answered {
        let answered = match ask {
            Ask::Leaders(led) => {
                self.note_led(from, &led);
                Ok(Answer::Done)
            }
            Ask::OutOfSync { node, partitions } => {
                self.note_out_of_sync(node, &partitions);
                Ok(Answer::Done)
            }
            Ask::Transfer { topic, partition, to, who } => may_transfer(&self.local, who.as_ref())
                .and_then(|()| self.transfer(Uuid(topic), partition, to)),
            _ if !self.controller.decides() => return Answered::NotHere,
            ask => self.decide(ask),
        };
        self.answered(answered)
    }

    /// An answer with the offset up to which the metadata have to be known for it to show.
    pub(crate) fn answered(&self, answer: Result<Answer, ErrorCode>) -> Answered {
        match answer {
            Ok(answer) => Answered::Is { answer, at: self.controller.image().next_offset() },
            Err(ErrorCode::NOT_CONTROLLER) => Answered::NotHere,
            Err(error) => Answered::Refused(error.code()),
        }
    }

    /// Serves a request to the metadata leader.
    fn decide(&self, ask: Ask) -> Result<Answer, ErrorCode> {
        let controller = &self.controller;
        let done = |()| Answer::Done;
        match ask {
            Ask::Register(note) => {
                let start = note.start().ok_or(ErrorCode::INVALID_REGISTRATION)?;
                let epoch =
                    controller.commit(|machine| machine.register_node(controller.view(), &start))??;
                self.members.lock().seen(start.node_id, self.local.clock.mono_ms());
                Ok(Answer::Epoch(epoch))
            }
            Ask::Alive { node, broker_epoch, features } => self.alive(node, broker_epoch, &features),
            Ask::Leaving { node, broker_epoch } => {
                self.left(node, broker_epoch);
                Ok(Answer::Done)
            }
            Ask::ProducerIds { node } => {
                let block = controller.commit(|machine| machine.allocate_producer_ids(node))?;
                let block = block.map_err(|error| error.code)?;
                Ok(Answer::ProducerIds(block.start, block.end))
            }
            Ask::Directories { node, assignments } => {
                let assignments = assignments_of(&assignments);
                controller.commit(|machine| machine.assign_directories(node, &assignments)).map(done)
            }
            Ask::Online { node, directories } => {
                let online: Vec<_> = directories.into_iter().map(Uuid).collect();
                if online.is_empty() {
                    return Err(ErrorCode::INVALID_REQUEST);
                }
                controller.commit(|machine| machine.directories_online(node, &online)).map(done)
            }
            Ask::Cordoned { node, directories } => {
                let cordoned: Vec<_> = directories.into_iter().map(Uuid).collect();
                controller.commit(|machine| machine.directories_cordoned(node, &cordoned)).map(done)
            }
            Ask::Shorter { node, partitions } => {
                let shorter: Vec<_> = partitions.into_iter().map(|(id, index)| (Uuid(id), index)).collect();
                let view = controller.view();
                controller.commit(|machine| machine.raise_leader_epochs(view, node, &shorter)).map(done)
            }
            Ask::Settled { .. } | Ask::Lost { .. } => self.note_members(&ask).map(done),
            Ask::Join(note) => self.join_controller(&note),
            Ask::CreateMissing { names, who } => {
                let context = who.map(|who| who.context(&self.local)).transpose()?;
                // The node that was asked has judged, too.
                let is_denied =
                    |name: &&str| context.as_ref().is_some_and(|context| !may_create(context, name));
                let (denied, names): (Vec<&str>, Vec<&str>) =
                    names.iter().map(String::as_str).partition(|name| is_denied(name));
                let created = match &context {
                    None => controller.create_missing_topics(&names, &mut |_| true),
                    Some(context) => {
                        let mut mutations = self.local.quotas.mutations(context, 0);
                        controller.create_missing_topics(&names, &mut |count| mutations.permit(count))
                    }
                };
                let result = created.into_iter().map(|result| {
                    let message = result.error_message.map(|message| message.into_owned());
                    (result.name.into_owned(), result.error_code, message)
                });
                let error = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
                let denied = denied
                    .into_iter()
                    .map(|name| (name.to_owned(), error.code(), Some(error.message().to_owned())));
                Ok(Answer::Created(result.chain(denied).collect()))
            }
            _ => Err(ErrorCode::INVALID_REQUEST),
        }
    }

    /// Takes a report about members of groups over into the metadata.
    fn note_members(&self, ask: &Ask) -> Result<(), ErrorCode> {
        let (controller, view) = (&self.controller, self.controller.view());
        match ask {
            Ask::Settled { node, partitions } => {
                let notes = settled_of(*node, partitions);
                controller.commit(|machine| machine.note_settled(view, &notes))
            }
            Ask::Lost { node, replicas } => {
                let lost = lost_of(replicas);
                controller.commit(|machine| machine.replace_replicas(view, *node, &lost))
            }
            _ => Err(ErrorCode::INVALID_REQUEST),
        }
    }

    /// Takes note of a heartbeat.
    fn alive(&self, node: i32, broker_epoch: i64, features: &FeatureRanges) -> Result<Answer, ErrorCode> {
        if !self.seen(node, broker_epoch) {
            return Err(ErrorCode::STALE_BROKER_EPOCH);
        }
        self.note_features(node, broker_epoch, features);
        Ok(Answer::Done)
    }

    /// Has the registration of a node name its features, where an older release that led has left them out.
    fn note_features(&self, node: i32, broker_epoch: i64, features: &FeatureRanges) {
        let image = self.controller.image();
        let is_news = image.broker(node).is_some_and(|broker| broker.features != *features);
        if features.is_empty() || !is_news {
            return;
        }
        // Nothing waits for it, and the next heartbeat tries it again.
        let _ = self.controller.propose(|machine| machine.note_features(node, broker_epoch, features));
    }

    fn transfer(&self, topic: Uuid, partition: i32, to: i32) -> Result<Answer, ErrorCode> {
        let topic = self.local.store.topics.by_id(&topic).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?;
        let partition = topic.partition(partition).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        match partition.transfer(to) {
            true => Ok(Answer::Done),
            false => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }
}

/// Refuses to hand over a partition for a client that may not ask for it. The node that was asked has judged, too.
///
/// # Errors
/// CLUSTER_AUTHORIZATION_FAILED.
pub fn may_transfer(local: &Local, who: Option<&Who>) -> Result<(), ErrorCode> {
    let Some(who) = who else { return Ok(()) };
    authorize(&who.context(local)?, Operation::Alter, Resource::Cluster)
}
