//! AlterReplicaLogDirs (34), v1-2: move partitions into other log directories (KIP-113). It is answered when the
//! moves are requested; DescribeLogDirs reports their progress.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::dir::LogDir;
use mainstem_wire::messages::alter_replica_log_dirs_request::AlterReplicaLogDirsRequest;
use mainstem_wire::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: AlterReplicaLogDirsRequest<'_> = body(decoder, context.version)?;
    let allowed = authorize(context, Operation::Alter, Resource::Cluster);
    let mut results: BTreeMap<&str, Vec<AlterReplicaLogDirPartitionResult<'_>>> = BTreeMap::new();
    for ((topic, index), path) in wanted(&request) {
        let moved = allowed.and_then(|()| move_partition(broker, topic, index, path));
        results.entry(topic).or_default().push(AlterReplicaLogDirPartitionResult {
            partition_index: index,
            error_code: moved.err().map_or(0, ErrorCode::code),
            ..Default::default()
        });
    }
    let results = results.into_iter().map(|(topic, partitions)| AlterReplicaLogDirTopicResult {
        topic_name: topic.into(),
        partitions,
        ..Default::default()
    });
    let response = AlterReplicaLogDirsResponse { results: results.collect(), ..Default::default() };
    Ok(respond(context, response, out))
}

/// The directory for each partition. If a request names two, the later one counts.
fn wanted<'r>(request: &'r AlterReplicaLogDirsRequest<'_>) -> BTreeMap<(&'r str, i32), &'r str> {
    let mut wanted = BTreeMap::new();
    for dir in &request.dirs {
        for topic in &dir.topics {
            wanted.extend(topic.partitions.iter().map(|index| ((&*topic.name, *index), &*dir.path)));
        }
    }
    wanted
}

fn move_partition(broker: &Arc<Broker>, topic: &str, index: i32, path: &str) -> Result<(), ErrorCode> {
    let to = destination(broker, path)?;
    let topic = broker.store.topics.by_name(topic).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let partition = topic.partition(index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    if partition.queue().is_some() {
        // An attached queue cannot be moved.
        return Err(ErrorCode::INVALID_REPLICA_ASSIGNMENT);
    }
    // An offline partition has no ends, and nothing to copy.
    partition.ends()?;
    if partition.is_replicated() {
        // The positions of its consumers are in the journal of the directory.
        return Err(ErrorCode::INVALID_REPLICA_ASSIGNMENT);
    }
    broker.store.moves.request(&broker.store, topic.id, partition, to)
}

fn destination<'b>(broker: &'b Broker, path: &str) -> Result<&'b Arc<LogDir>, ErrorCode> {
    let path: PathBuf = Path::new(path).components().collect();
    if broker.store.dirs.unopened().iter().any(|failure| failure.path == path) {
        return Err(ErrorCode::KAFKA_STORAGE_ERROR);
    }
    let found = broker.store.dirs.data().iter().find(|dir| dir.path() == path);
    let dir = found.ok_or(ErrorCode::LOG_DIR_NOT_FOUND)?;
    if dir.failure().is_some() {
        Err(ErrorCode::KAFKA_STORAGE_ERROR)
    } else if broker.store.dirs.is_cordoned(&broker.config(), dir) {
        Err(ErrorCode::INVALID_REPLICA_ASSIGNMENT)
    } else {
        Ok(dir)
    }
}
