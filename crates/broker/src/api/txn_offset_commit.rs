//! TxnOffsetCommit (28), v0-5: offsets that become valid when a producer's transaction commits (KIP-98, KIP-447).

use std::sync::Arc;

use mainstem_coordination::groups::{Producer, Reply, Request, txn_offset_commit};
use mainstem_log::{VerificationGuard, VerificationRequest};
use mainstem_records::{NO_SEQUENCE, ProducerEpoch, ProducerId};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestTopic,
};
use mainstem_wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::background::OwnedBody;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::groups::{Asked, OFFSETS_TOPIC};
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_node::verification::{Refusals, Terms, Verification, Wanted};
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_store::partition::Partition;

/// The most verifications by the coordinator for one request, while the producer's last transaction is ending.
const VERIFICATIONS_MAX: usize = 10;

/// Topics that the coordinator was not asked about.
type RefusedTopics = Vec<TxnOffsetCommitResponseTopic<'static>>;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request: TxnOffsetCommitRequest<'_> = body(decoder, context.version)?;
    let verified = match verify(broker, &context, &request) {
        Verified::Now(verified) => verified,
        Verified::Later(guarded, waiting) => {
            let body = OwnedBody::copy(broker, &behind);
            let later = commit_later(broker.clone(), context, body, (guarded, waiting));
            return Ok(Handled::Later { response: Box::pin(later), holds: true });
        }
    };
    let (asked, refused) = commit(broker, &context, request, verified);
    match asked {
        Asked::Now(reply) => Ok(encode(&context, reply, refused, out)),
        later => {
            let response = Box::pin(answer_later(context, later, refused));
            Ok(Handled::Later { response, holds: true })
        }
    }
}

/// A guard for the group's partition of `__consumer_offsets`. It is the transaction's if the coordinator confirms it.
struct Guarded {
    partition: Arc<Partition>,
    producer_id: ProducerId,
    guard: VerificationGuard,
}

/// The verification that the transaction may have its partition.
enum Verified {
    /// It is complete.
    Now(Result<VerificationGuard, ErrorCode>),
    /// The coordinator has not answered yet.
    Later(Guarded, Verification),
}

/// Verifies that the transaction may have the group's partition of `__consumer_offsets`. It is called again if a
/// guard was void before the coordinator had answered: then the producer's last transaction ended there meanwhile.
fn verify(broker: &Arc<Broker>, context: &RequestContext, request: &TxnOffsetCommitRequest<'_>) -> Verified {
    let mut verified = Err(ErrorCode::CONCURRENT_TRANSACTIONS);
    for _ in 0..VERIFICATIONS_MAX {
        let (guarded, verification) = match ask(broker, context, request) {
            Ok(None) => return Verified::Now(Ok(VerificationGuard::NONE)),
            Ok(Some(asked)) => asked,
            Err(error) => return Verified::Now(Err(error)),
        };
        let refusals = match verification.now() {
            Ok(refusals) => refusals,
            Err(waiting) => return Verified::Later(guarded, waiting),
        };
        verified = guarded.judge(&refusals);
        if verified.is_err() || guarded.partition.is_verification(guarded.producer_id, guarded.guard) {
            return Verified::Now(verified);
        }
    }
    Verified::Now(verified)
}

impl Guarded {
    fn judge(&self, refusals: &Refusals) -> Result<VerificationGuard, ErrorCode> {
        refusals.of(OFFSETS_TOPIC, self.partition.index).map(|()| self.guard)
    }
}

/// Asks the coordinator. `None` if the transaction has the partition already.
fn ask(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &TxnOffsetCommitRequest<'_>,
) -> Result<Option<(Guarded, Verification)>, ErrorCode> {
    let id = &*request.transactional_id;
    authorize(context, Operation::Write, Resource::TransactionalId(id))?;
    authorize(context, Operation::Read, Resource::Group(&request.group_id))?;
    let index = broker.groups.partition_for(&request.group_id);
    // Without the partition the groups' coordinator answers with the error.
    let Some(partition) = broker.store.topics.partition(OFFSETS_TOPIC, index) else { return Ok(None) };
    let terms = Terms::of_offset_commit(context.version);
    let producer = Producer {
        id: ProducerId::new(request.producer_id),
        epoch: ProducerEpoch::new(request.producer_epoch),
    };
    let first = VerificationRequest {
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        base_sequence: NO_SEQUENCE,
        supports_epoch_bump: terms.adds,
    };
    let guard =
        partition.begin_verification(&first, &broker.clock).map_err(|refused| match refused.code() {
            // The client then looks for the group's coordinator.
            ErrorCode::NOT_LEADER_OR_FOLLOWER => ErrorCode::NOT_COORDINATOR,
            other => other,
        })?;
    let Some(guard) = guard else { return Ok(None) };
    let wanted = Wanted::from([(OFFSETS_TOPIC.into(), vec![index])]);
    let guarded = Guarded { partition, producer_id: producer.id, guard };
    Ok(Some((guarded, Verification::ask(&broker.node, context, terms, (id, producer), &wanted))))
}

/// Makes the groups' coordinator commit the permitted offsets.
fn commit(
    broker: &Arc<Broker>,
    context: &RequestContext,
    mut request: TxnOffsetCommitRequest<'_>,
    verified: Result<VerificationGuard, ErrorCode>,
) -> (Asked, RefusedTopics) {
    let is_denied = matches!(
        verified,
        Err(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED | ErrorCode::GROUP_AUTHORIZATION_FAILED)
    );
    let mut refused = Vec::new();
    if !is_denied {
        request.topics.retain_mut(|topic| {
            refused.extend(take_refused(broker, context, topic));
            refused.extend(take_tailer(broker, &request.group_id, topic));
            !topic.partitions.is_empty()
        });
    }
    if request.topics.is_empty() && !refused.is_empty() {
        return (Asked::Now(Reply::TxnOffsetCommit(TxnOffsetCommitResponse::default())), refused);
    }
    let guard = match verified {
        Ok(guard) => guard,
        Err(error) => {
            let response = txn_offset_commit::refused(&request, error, context.version);
            return (Asked::Now(Reply::TxnOffsetCommit(response)), refused);
        }
    };
    let request = Request::TxnOffsetCommit(request);
    (broker.groups.ask_verified(&origin(context), request, guard), refused)
}

/// Removes the partitions that do not exist or that the client may not read, and answers them.
fn take_refused(
    broker: &Broker,
    context: &RequestContext,
    topic: &mut TxnOffsetCommitRequestTopic<'_>,
) -> Option<TxnOffsetCommitResponseTopic<'static>> {
    let allowed = authorize(context, Operation::Read, Resource::Topic(&topic.name));
    let known = broker.store.topics.by_name(&topic.name);
    let error = allowed.err().unwrap_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let exists = |index: i32| known.as_ref().is_some_and(|known| known.partition(index).is_some());
    let refuse = |partition_index| TxnOffsetCommitResponsePartition {
        partition_index,
        error_code: error.code(),
        ..Default::default()
    };
    let refused: Vec<_> = topic
        .partitions
        .extract_if(.., |partition| allowed.is_err() || !exists(partition.partition_index))
        .map(|partition| refuse(partition.partition_index))
        .collect();
    let name = topic.name.to_string().into();
    (!refused.is_empty()).then(|| TxnOffsetCommitResponseTopic {
        name,
        partitions: refused,
        ..Default::default()
    })
}

/// Refuses the partition of an attached queue in which the group is a named tailer: its position is part of no transaction.
fn take_tailer(
    broker: &Broker,
    group: &str,
    topic: &mut TxnOffsetCommitRequestTopic<'_>,
) -> Option<TxnOffsetCommitResponseTopic<'static>> {
    tailers::find_in(&broker.store, group, &topic.name)?;
    let partitions = topic.partitions.drain(..).map(|partition| TxnOffsetCommitResponsePartition {
        partition_index: partition.partition_index,
        error_code: ErrorCode::UNKNOWN_MEMBER_ID.code(),
        ..Default::default()
    });
    let partitions: Vec<_> = partitions.collect();
    (!partitions.is_empty()).then(|| TxnOffsetCommitResponseTopic {
        name: topic.name.to_string().into(),
        partitions,
        ..Default::default()
    })
}

async fn commit_later(
    broker: Arc<Broker>,
    context: RequestContext,
    owned: OwnedBody,
    waiting: (Guarded, Verification),
) -> Result<ResponseBuffer, String> {
    let mut verified = Err(ErrorCode::CONCURRENT_TRANSACTIONS);
    let mut waiting = Some(waiting);
    for _ in 0..VERIFICATIONS_MAX {
        let Some((guarded, asked)) = waiting.take() else { break };
        let refusals = asked.later().await.map_err(|_| "the coordinator ended".to_owned())?;
        let mut decoder = owned.decoder();
        let request = body(&mut decoder, context.version).expect("it was decoded before");
        verified = guarded.judge(&refusals);
        if verified.is_ok() && !guarded.partition.is_verification(guarded.producer_id, guarded.guard) {
            // The producer's last transaction has ended here meanwhile, and its guard with it.
            (verified, waiting) = match verify(&broker, &context, &request) {
                Verified::Now(verified) => (verified, None),
                Verified::Later(guarded, again) => {
                    (Err(ErrorCode::CONCURRENT_TRANSACTIONS), Some((guarded, again)))
                }
            };
        }
    }
    let (asked, refused) = {
        let mut decoder = owned.decoder();
        let request = body(&mut decoder, context.version).expect("it was decoded before");
        commit(&broker, &context, request, verified)
    };
    answer_later(context, asked, refused).await
}

async fn answer_later(
    context: RequestContext,
    asked: Asked,
    refused: RefusedTopics,
) -> Result<ResponseBuffer, String> {
    let reply = asked.reply().await.map_err(|_| "the coordinator ended".to_owned())?;
    let mut out = ResponseBuffer::pooled();
    encode(&context, reply, refused, &mut out);
    Ok(out)
}

fn encode(
    context: &RequestContext,
    reply: Reply,
    refused: RefusedTopics,
    out: &mut ResponseBuffer,
) -> Handled {
    let Reply::TxnOffsetCommit(mut response) = reply else {
        unreachable!("the coordinator answers in kind, not {reply:?}")
    };
    response.topics.extend(refused);
    respond(context, response, out)
}
