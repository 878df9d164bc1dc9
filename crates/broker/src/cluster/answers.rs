//! What this node answers to others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mainstem_coordination::transactions::MarkerOutcome;
use mainstem_log::TransactionMarker;
use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use mainstem_wire::{ErrorCode, Uuid};

use super::calls::{Answer, Answered, Ask, Who, assignments_of, decode_forwarded, encode};
use super::{ASK, CLOCK, Cluster, FORWARD, SNAPSHOT, forward};
use crate::broker::Broker;
use crate::coordinators::markers;
use crate::coordinators::verification;
use crate::resources::may_create;
use mainstem_links::{CallHandler, CallKind, CallReply};
use mainstem_requests::context::{Operation, Resource, authorize};

/// How long markers of another node's coordinator may take.
const MARKER_TIME: Duration = Duration::from_secs(10);

/// The node as the links see it.
pub(crate) struct Answers(Weak<Broker>);

impl Answers {
    pub(crate) fn new(broker: &Arc<Broker>) -> Arc<Answers> {
        Arc::new(Answers(Arc::downgrade(broker)))
    }
}

impl CallHandler for Answers {
    fn call(&self, from: i32, kind: CallKind, body: Vec<u8>, reply: CallReply) {
        let Some(broker) = self.0.upgrade() else { return };
        // Each waits for the disk, or for other nodes.
        let work = move || {
            let Some(cluster) = broker.cluster.clone() else { return };
            let answer = match kind {
                ASK => match serde_json::from_slice::<Ask>(&body) {
                    Ok(ask) if ask.is_of(from) => encode(&answer(&broker, &cluster, from, ask)),
                    Ok(_) => {
                        tracing::warn!(from, "a question of another node is asked for a third one: refused");
                        encode(&Answered::Refused(ErrorCode::INVALID_REQUEST.code()))
                    }
                    Err(error) => {
                        tracing::warn!(from, "a question of another node makes no sense: {error}");
                        encode(&Answered::Refused(ErrorCode::INVALID_REQUEST.code()))
                    }
                },
                FORWARD => match decode_forwarded(&body) {
                    Some((who, body)) if who.node == from => forward::serve_here(&broker, &who, body),
                    // It is not handed on twice, and no node speaks for the clients of another one.
                    _ => return,
                },
                SNAPSHOT => match broker.controller.answer_snapshot(from, &body) {
                    Some(range) => range,
                    None => return,
                },
                CLOCK => broker.clock.wall_ms().to_be_bytes().to_vec(),
                _ => return,
            };
            reply.answer(&answer);
        };
        super::forward::in_own_thread(work);
    }
}

/// Answers a question, which may take its time.
pub(super) fn answer(broker: &Arc<Broker>, cluster: &Cluster, from: i32, ask: Ask) -> Answered {
    let answered = match ask {
        Ask::Leaders(led) => {
            cluster.note_led(from, &led);
            Ok(Answer::Done)
        }
        Ask::OutOfSync { node, partitions } => {
            cluster.note_out_of_sync(node, &partitions);
            Ok(Answer::Done)
        }
        Ask::Markers(note) => {
            let marker = TransactionMarker {
                producer_id: ProducerId::new(note.producer_id),
                producer_epoch: ProducerEpoch::new(note.producer_epoch),
                coordinator_epoch: CoordinatorEpoch::new(note.coordinator_epoch),
                committed: note.committed,
                transaction_version: note.transaction_version,
            };
            Ok(Answer::Marked(write_markers(broker, marker, note.partitions)))
        }
        Ask::Verify(note) => verification::answer(broker, &note).map(Answer::Verified),
        Ask::Transfer { topic, partition, to, who } => {
            may_transfer(broker, who.as_ref()).and_then(|()| transfer(broker, Uuid(topic), partition, to))
        }
        _ if !broker.controller.decides() => return Answered::NotHere,
        ask => decide(broker, cluster, ask),
    };
    match answered {
        Ok(answer) => Answered::Is { answer, at: broker.controller.image().next_offset() },
        Err(ErrorCode::NOT_CONTROLLER) => Answered::NotHere,
        Err(error) => Answered::Refused(error.code()),
    }
}

/// What the metadata leader is asked.
fn decide(broker: &Arc<Broker>, cluster: &Cluster, ask: Ask) -> Result<Answer, ErrorCode> {
    let controller = &broker.controller;
    let done = |()| Answer::Done;
    match ask {
        Ask::Register(note) => {
            let start = note.start().ok_or(ErrorCode::INVALID_REGISTRATION)?;
            let epoch = controller.commit(|machine| machine.register_node(controller.view(), &start))?;
            cluster.members.lock().heard(start.node_id, broker.clock.mono_ms());
            Ok(Answer::Epoch(epoch))
        }
        Ask::Alive { node, broker_epoch } => match cluster.heard(broker, node, broker_epoch) {
            true => Ok(Answer::Done),
            false => Err(ErrorCode::STALE_BROKER_EPOCH),
        },
        Ask::Leaving { node, broker_epoch } => {
            cluster.left(broker, node, broker_epoch);
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
        Ask::CreateMissing { names, who } => {
            let context = who.map(|who| who.context(broker)).transpose()?;
            // The node that was asked has judged, too.
            let is_denied = |name: &&str| context.as_ref().is_some_and(|context| !may_create(context, name));
            let (denied, names): (Vec<&str>, Vec<&str>) =
                names.iter().map(String::as_str).partition(|name| is_denied(name));
            let created = match &context {
                None => controller.create_missing_topics(&names, &mut |_| true),
                Some(context) => {
                    let mut mutations = broker.quotas.mutations(context, 0);
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

fn write_markers(
    broker: &Arc<Broker>,
    marker: TransactionMarker,
    partitions: Vec<(String, i32)>,
) -> Vec<(String, i32, i16)> {
    let (sender, marked) = std::sync::mpsc::channel();
    let count = partitions.len();
    for (at, (topic, index)) in partitions.iter().enumerate() {
        let sender = sender.clone();
        // The question may be over.
        let told = move |outcome| _ = sender.send((at, outcome));
        markers::write_here(broker, topic, *index, marker, Box::new(told));
    }
    let mut outcomes = vec![ErrorCode::REQUEST_TIMED_OUT.code(); count];
    for _ in 0..count {
        let Ok((at, outcome)) = marked.recv_timeout(MARKER_TIME) else { break };
        outcomes[at] = match outcome {
            MarkerOutcome::Written => 0,
            // The coordinator's node finds out whether it is gone: this one may have been started just now, and know nothing yet.
            MarkerOutcome::Gone => ErrorCode::NOT_LEADER_OR_FOLLOWER.code(),
            MarkerOutcome::Failed(error) => error.code(),
        };
    }
    partitions.into_iter().zip(outcomes).map(|((topic, index), code)| (topic, index, code)).collect()
}

/// The node that was asked has judged, too.
fn may_transfer(broker: &Broker, who: Option<&Who>) -> Result<(), ErrorCode> {
    let Some(who) = who else { return Ok(()) };
    authorize(&who.context(broker)?, Operation::Alter, Resource::Cluster)
}

fn transfer(broker: &Broker, topic: Uuid, partition: i32, to: i32) -> Result<Answer, ErrorCode> {
    let topic = broker.store.topics.by_id(&topic).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?;
    let partition = topic.partition(partition).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    match partition.transfer(to) {
        true => Ok(Answer::Done),
        false => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::ApiKey;

    use super::*;
    use crate::EmbeddedBroker;

    #[test]
    fn the_leader_of_a_partition_judges_who_wants_it_to_hand_over() {
        let embedded = EmbeddedBroker::start(&[
            ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            ("super.users", "User:admin"),
        ]);
        let of = |principal: &str| Who {
            node: 2,
            principal: principal.into(),
            listener: "PLAINTEXT".into(),
            peer: "127.0.0.1:5".into(),
            client_id: None,
            api: ApiKey::ElectLeaders as i16,
            version: 2,
            correlation_id: 1,
            denied: Default::default(),
        };
        let may = |who: Option<&Who>| may_transfer(embedded.broker(), who);
        assert_eq!(may(Some(&of("User:a"))), Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED));
        assert_eq!((may(Some(&of("User:admin"))), may(None)), (Ok(()), Ok(())));
    }

    /// A node that was started just now takes questions before it knows of any topic.
    #[test]
    fn that_a_partition_is_gone_is_no_answer_to_another_node() {
        let embedded = EmbeddedBroker::start(&[]);
        let marker = TransactionMarker {
            producer_id: ProducerId::new(1),
            producer_epoch: ProducerEpoch::new(2),
            coordinator_epoch: CoordinatorEpoch::new(3),
            committed: true,
            transaction_version: 2,
        };
        let marked = write_markers(embedded.broker(), marker, vec![("not-here".to_owned(), 4)]);
        assert_eq!(marked, [("not-here".to_owned(), 4, ErrorCode::NOT_LEADER_OR_FOLLOWER.code())]);
    }
}
