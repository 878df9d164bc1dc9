//! Answers of this node to others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mainstem_coordination::transactions::MarkerOutcome;
use mainstem_links::{CallHandler, CallKind, CallReply};
use mainstem_log::TransactionMarker;
use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use mainstem_store::copies::COPY;
use mainstem_wire::ErrorCode;

use crate::cluster::calls::{Answer, Answered, Ask, Who, decode_forwarded, encode};
use crate::cluster::forwarding::encode_answer;
use crate::cluster::{ASK, CLOCK, Cluster, FORWARD, in_own_thread};
use crate::controller::SNAPSHOT;
use crate::markers;
use crate::node::Node;
use crate::verification;

/// Serves a request of a client that another node hands on, given by its sender and its body. Returns the bytes of the response;
/// `None` where it is not served here.
pub(crate) type ServeForwarded = Box<dyn Fn(&Who, &[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Time in which markers of another node's coordinator are written.
const MARKER_TIME: Duration = Duration::from_secs(10);

/// A node as its links see it.
pub struct Answers {
    node: Weak<Node>,
    serve: Arc<ServeForwarded>,
}

impl Answers {
    /// Answers for this node, which it does not keep alive. Requests that are handed on go to `serve`.
    pub fn new(node: &Arc<Node>, serve: ServeForwarded) -> Arc<Answers> {
        Arc::new(Answers { node: Arc::downgrade(node), serve: Arc::new(serve) })
    }
}

impl CallHandler for Answers {
    fn call(&self, from: i32, kind: CallKind, body: Vec<u8>, reply: CallReply) {
        let Some(node) = self.node.upgrade() else { return };
        let serve = self.serve.clone();
        // Each waits for the disk, or for other nodes.
        let work = move || {
            let Some(cluster) = &node.cluster else { return };
            let answer = match kind {
                ASK => match serde_json::from_slice::<Ask>(&body) {
                    Ok(ask) if ask.is_of(from) => encode(&answer(&node, cluster, from, ask)),
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
                    Some((who, body)) if who.node == from => {
                        let response = serve(&who, body);
                        encode_answer(node.controller.image().next_offset(), response.as_deref())
                    }
                    // It is not handed on twice, and no node speaks for the clients of another one.
                    _ => return,
                },
                SNAPSHOT => match node.controller.answer_snapshot(from, &body) {
                    Some(range) => range,
                    None => return,
                },
                COPY => match node.local.store.copies.answer(&node.local.store, from, &body) {
                    Some(answer) => answer,
                    None => return,
                },
                CLOCK => node.local.clock.wall_ms().to_be_bytes().to_vec(),
                _ => return,
            };
            reply.answer(&answer);
        };
        in_own_thread(work);
    }
}

/// Answers a question, which may take its time.
fn answer(node: &Arc<Node>, cluster: &Cluster, from: i32, ask: Ask) -> Answered {
    match ask {
        Ask::Markers(note) => {
            let marker = TransactionMarker {
                producer_id: ProducerId::new(note.producer_id),
                producer_epoch: ProducerEpoch::new(note.producer_epoch),
                coordinator_epoch: CoordinatorEpoch::new(note.coordinator_epoch),
                committed: note.committed,
                transaction_version: note.transaction_version,
            };
            cluster.answered(Ok(Answer::Marked(write_markers(node, marker, note.partitions))))
        }
        Ask::Verify(note) => cluster.answered(verification::answer(node, &note).map(Answer::Verified)),
        ask => cluster.answer(from, ask),
    }
}

/// Writes the markers of another node's coordinator into partitions that this node leads. Returns the code of what became of each;
/// that a partition is gone, no node says of another one.
pub fn write_markers(
    node: &Arc<Node>,
    marker: TransactionMarker,
    partitions: Vec<(String, i32)>,
) -> Vec<(String, i32, i16)> {
    let (sender, marked) = mainstem_runtime::sync::channel();
    let count = partitions.len();
    for (at, (topic, index)) in partitions.iter().enumerate() {
        let sender = sender.clone();
        // The question may be over.
        let on_written = move |outcome| _ = sender.send((at, outcome));
        markers::write_here(node, topic, *index, marker, Box::new(on_written));
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
