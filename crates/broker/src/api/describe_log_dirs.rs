//! DescribeLogDirs (35), v1-5: the log directories, their partitions, and copies on their way into them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use mainstem_log::dir::{DirFailure, LogDir};
use mainstem_wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use mainstem_wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResponse, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_store::attached::Attached;
use mainstem_store::partition::{Extent, Partition};

/// The value for unknown bytes.
const UNKNOWN_BYTES: i64 = -1;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeLogDirsRequest<'_> = body(decoder, context.version)?;
    let response = match authorize(context, Operation::Describe, Resource::Cluster) {
        Ok(()) => DescribeLogDirsResponse { results: describe(broker, &request), ..Default::default() },
        Err(error) => DescribeLogDirsResponse { error_code: error.code(), ..Default::default() },
    };
    Ok(respond(context, response, out))
}

fn describe(broker: &Broker, request: &DescribeLogDirsRequest<'_>) -> Vec<DescribeLogDirsResult<'static>> {
    let found = find_all(broker, &Wanted::of(request));
    let offline = broker.store.dirs.unopened().iter().map(offline);
    let known = broker.store.dirs.data().iter().map(|dir| match dir.failure() {
        Some(failure) => self::offline(failure),
        None => online(broker, dir, &found),
    });
    let wanted = Wanted::of(request);
    let queues = broker.store.attached.iter().filter(|queue| wanted.names(queue.topic(), 0));
    known.chain(offline).chain(queues.map(|queue| attached(broker, queue))).collect()
}

/// The partitions asked for; all of them if none are named.
struct Wanted<'a>(Option<HashSet<(&'a str, i32)>>);

impl<'a> Wanted<'a> {
    fn of(request: &'a DescribeLogDirsRequest<'_>) -> Self {
        Wanted(request.topics.as_ref().map(|topics| {
            let named =
                topics.iter().flat_map(|topic| topic.partitions.iter().map(|index| (&*topic.topic, *index)));
            named.collect()
        }))
    }

    fn has(&self, partition: &Partition) -> bool {
        self.names(&partition.topic, partition.index)
    }

    fn names(&self, topic: &str, index: i32) -> bool {
        self.0.as_ref().is_none_or(|wanted| wanted.contains(&(topic, index)))
    }
}

/// Partitions by directory and topic.
type Found = BTreeMap<([u8; 16], Arc<str>), Vec<DescribeLogDirsPartition<'static>>>;

fn find_all(broker: &Broker, wanted: &Wanted<'_>) -> Found {
    let mut found = Found::new();
    let mut note = |dir: &LogDir, partition: &Partition, size: u64, offset_lag: i64, is_future_key: bool| {
        found.entry((dir.directory_id(), partition.topic.clone())).or_default().push(
            DescribeLogDirsPartition {
                partition_index: partition.index,
                partition_size: bytes(size),
                offset_lag,
                is_future_key,
                ..Default::default()
            },
        );
    };
    for partition in broker.store.partitions().iter().filter(|partition| wanted.has(partition)) {
        if let Ok(Extent { dir: Some(dir), bytes, ends, .. }) = partition.extent() {
            note(&dir, partition, bytes, (ends.high_watermark - ends.log_end).max(0), false);
        }
    }
    for copy in broker.store.moves.progress().iter().filter(|copy| wanted.has(&copy.partition)) {
        note(&copy.to, &copy.partition, copy.size, copy.lag, true);
    }
    found
}

fn online(broker: &Broker, dir: &LogDir, found: &Found) -> DescribeLogDirsResult<'static> {
    let id = dir.directory_id();
    let own = found.iter().filter(|((directory, _), _)| *directory == id);
    let topics = own.map(|((_, topic), partitions)| DescribeLogDirsTopic {
        name: topic.to_string().into(),
        partitions: partitions.clone(),
        ..Default::default()
    });
    let space = |space: std::io::Result<u64>| space.map_or(UNKNOWN_BYTES, bytes);
    DescribeLogDirsResult {
        log_dir: dir.path().display().to_string().into(),
        topics: topics.collect(),
        total_bytes: space(dir.storage().total_space(dir.path())),
        usable_bytes: space(dir.storage().free_space(dir.path())),
        is_cordoned: broker.store.dirs.is_cordoned(&broker.config(), dir),
        ..Default::default()
    }
}

/// An attached queue is a directory of its own.
fn attached(broker: &Broker, queue: &Attached) -> DescribeLogDirsResult<'static> {
    let path = queue.queue().directory();
    let storage = broker.store.dirs.metadata().storage().clone();
    let space = |space: std::io::Result<u64>| space.map_or(UNKNOWN_BYTES, bytes);
    let partition = DescribeLogDirsPartition {
        partition_index: 0,
        partition_size: bytes(queue.size().0),
        ..Default::default()
    };
    let topic = DescribeLogDirsTopic {
        name: queue.topic().to_string().into(),
        partitions: vec![partition],
        ..Default::default()
    };
    DescribeLogDirsResult {
        log_dir: path.display().to_string().into(),
        topics: vec![topic],
        total_bytes: space(storage.total_space(path)),
        usable_bytes: space(storage.free_space(path)),
        ..Default::default()
    }
}

fn offline(failure: &DirFailure) -> DescribeLogDirsResult<'static> {
    DescribeLogDirsResult {
        error_code: ErrorCode::KAFKA_STORAGE_ERROR.code(),
        log_dir: failure.path.display().to_string().into(),
        ..Default::default()
    }
}

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
