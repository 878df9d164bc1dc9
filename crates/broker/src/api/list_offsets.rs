//! ListOffsets (2), v1-11: the ends of partitions, and the offset for a timestamp.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mainstem_log::placement::DirectoryId;
use mainstem_records::LeaderEpoch;
use mainstem_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsRequest};
use mainstem_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::background::OwnedBody;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use crate::turns::in_background;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_store::partition::{Partition, TimeSearch};

/// The next offset that will be readable.
const LATEST: i64 = -1;
/// The log start.
const EARLIEST: i64 = -2;
/// The record with the largest time stamp (KIP-734), from version 7.
const MAX_TIMESTAMP: i64 = -3;
/// The start of this node's local log (KIP-405), from version 8.
const EARLIEST_LOCAL: i64 = -4;
/// The end of tiered storage (KIP-1005), from version 9. There is none: unknown offset.
const LATEST_TIERED: i64 = -5;
/// The first offset that is not yet in tiered storage (KIP-1023), from version 11. It is unknown, too.
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// `isolation_level` of a reader of all records.
const READ_UNCOMMITTED: i8 = 0;
/// `isolation_level` of a reader of no open transactions.
const READ_COMMITTED: i8 = 1;

/// The most timestamps that are looked up in one turn of their log directory: other requests get turns in between.
const SEARCHES_OF_A_TURN: usize = 64;

/// The count of a partition that is answered already. A partition that is named more than once is refused, once.
const ANSWERED: u32 = 0;

/// Version from which an answer has a leader epoch.
const LEADER_EPOCH_SINCE: i16 = 4;

/// Version from which clients know of OFFSET_NOT_AVAILABLE (KIP-207).
const OFFSET_NOT_AVAILABLE_SINCE: i16 = 5;

/// Time stamp and leader epoch of an answer that has none.
const NONE: i64 = -1;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request: ListOffsetsRequest<'_> = body(decoder, context.version)?;
    // The ends are known. A timestamp is looked up in indexes, which may have to come from the disk.
    let searches = Searches::of(broker, &context, &request);
    if searches.is_empty() {
        return Ok(answer(broker, &context, &request, &Searched::new(), out));
    }
    let body = OwnedBody::copy(broker, &behind);
    let response = Box::pin(searches.answer(broker.clone(), context, body));
    Ok(Handled::Later { response, holds: true })
}

/// Returns true if a timestamp has to be looked up.
fn is_searched(timestamp: i64) -> bool {
    timestamp >= 0 || timestamp == MAX_TIMESTAMP
}

fn isolation(request: &ListOffsetsRequest<'_>) -> Result<bool, ErrorCode> {
    match request.isolation_level {
        READ_UNCOMMITTED => Ok(false),
        READ_COMMITTED => Ok(true),
        // As in Kafka, which has no code for it.
        _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
    }
}

/// The place of a partition in a request: the index of its topic, and its index in that.
type Place = (usize, usize);

/// The results of lookups.
type Searched = HashMap<Place, Result<Found, ErrorCode>>;

/// A timestamp to look up in a partition.
struct Search {
    place: Place,
    partition: Arc<Partition>,
    wanted: ListOffsetsPartition<'static>,
}

/// The timestamps to look up, by the log directory with the indexes. Partitions that are named more than once are
/// refused, and not looked up.
#[derive(Default)]
struct Searches {
    by_directory: BTreeMap<Option<DirectoryId>, Vec<Search>>,
    committed: bool,
}

/// The number of times that each partition is named.
fn asked<'r>(request: &'r ListOffsetsRequest<'_>) -> HashMap<(&'r str, i32), u32> {
    let mut asked = HashMap::new();
    for topic in &request.topics {
        for wanted in &topic.partitions {
            *asked.entry((&*topic.name, wanted.partition_index)).or_insert(0) += 1;
        }
    }
    asked
}

impl Searches {
    fn of(broker: &Broker, context: &RequestContext, request: &ListOffsetsRequest<'_>) -> Self {
        let mut searches = Searches::default();
        let mut partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
        let Ok(committed) = isolation(request) else { return searches };
        if !partitions.any(|wanted| is_searched(wanted.timestamp)) {
            return searches;
        }
        searches.committed = committed;
        let asked = asked(request);
        for (topic_at, topic) in request.topics.iter().enumerate() {
            if authorize(context, Operation::Describe, Resource::Topic(&topic.name)).is_err() {
                continue;
            }
            for (at, wanted) in topic.partitions.iter().enumerate() {
                let is_once = asked[&(&*topic.name, wanted.partition_index)] == 1;
                if is_once && is_searched(wanted.timestamp) {
                    searches.add((topic_at, at), locate(broker, context, &topic.name, wanted), wanted);
                }
            }
        }
        searches
    }

    fn add(
        &mut self,
        place: Place,
        partition: Result<Arc<Partition>, ErrorCode>,
        wanted: &ListOffsetsPartition<'_>,
    ) {
        let Ok(partition) = partition else { return };
        let wanted = ListOffsetsPartition {
            partition_index: wanted.partition_index,
            current_leader_epoch: wanted.current_leader_epoch,
            timestamp: wanted.timestamp,
            ..Default::default()
        };
        let of_directory = self.by_directory.entry(partition.directory()).or_default();
        of_directory.push(Search { place, partition, wanted });
    }

    fn is_empty(&self) -> bool {
        self.by_directory.is_empty()
    }

    /// Bytes of their memory while they wait.
    fn bytes(&self) -> usize {
        self.by_directory.values().map(|searches| size_of_val(searches.as_slice())).sum()
    }

    /// Looks in one log directory after the other, a few partitions in a turn, then answers.
    async fn answer(
        self,
        broker: Arc<Broker>,
        context: RequestContext,
        body: OwnedBody,
    ) -> Result<ResponseBuffer, String> {
        let (version, committed) = (context.version, self.committed);
        let _memory = broker.net.request_memory.take(self.bytes());
        let (mut searched, mut took) = (Searched::new(), Duration::ZERO);
        for (directory, searches) in self.by_directory {
            let mut searches = searches.into_iter();
            while searches.len() > 0 {
                let of_turn: Vec<_> = searches.by_ref().take(SEARCHES_OF_A_TURN).collect();
                let work = move || {
                    let look = |search: Search| {
                        let found = find_in(&search.partition, &search.wanted, version, committed);
                        (search.place, found)
                    };
                    of_turn.into_iter().map(look).collect::<Vec<_>>()
                };
                let (found, time) = broker.background.read(&context, directory, work).await;
                searched.extend(found);
                took += time;
            }
        }
        let (of_request, of_broker) = (context.clone(), broker.clone());
        let encode = move || {
            let request = crate::respond::body(&mut body.decoder(), version);
            let request = request.expect("it was decoded before");
            let mut out = ResponseBuffer::default();
            answer(&of_broker, &of_request, &request, &searched, &mut out);
            out
        };
        let (out, encoded_for) = in_background(&context, encode).await;
        Ok(out.worked_for(took + encoded_for))
    }
}

fn answer(
    broker: &Broker,
    context: &RequestContext,
    request: &ListOffsetsRequest<'_>,
    searched: &Searched,
    out: &mut ResponseBuffer,
) -> Handled {
    let mut asked = asked(request);
    let isolation = isolation(request);
    let topics = request.topics.iter().enumerate().filter_map(|(topic_at, topic)| {
        let allowed = authorize(context, Operation::Describe, Resource::Topic(&topic.name));
        let find = |at, wanted: &ListOffsetsPartition<'_>, committed| {
            if let Some(found) = searched.get(&(topic_at, at)) {
                return *found;
            }
            let partition = locate(broker, context, &topic.name, wanted)?;
            match is_searched(wanted.timestamp) {
                // The partition did not exist at the time of the lookup.
                true => Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
                false => find_in(&partition, wanted, context.version, committed),
            }
        };
        let partitions = topic.partitions.iter().enumerate().filter_map(|(at, wanted)| {
            let found = match asked.insert((&*topic.name, wanted.partition_index), ANSWERED) {
                Some(ANSWERED) => return None,
                Some(1) | None => allowed.and(isolation).and_then(|committed| find(at, wanted, committed)),
                Some(_) => allowed.and(Err(ErrorCode::INVALID_REQUEST)),
            };
            Some(encode(context, wanted.partition_index, found))
        });
        let partitions: Vec<_> = partitions.collect();
        // A partition that is named again was answered before.
        (topic.partitions.is_empty() || !partitions.is_empty()).then(|| ListOffsetsTopicResponse {
            name: topic.name.clone(),
            partitions,
            ..Default::default()
        })
    });
    let response = ListOffsetsResponse { topics: topics.collect(), ..Default::default() };
    respond(context, response, out)
}

/// An offset with its timestamp and leader epoch, if it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    offset: i64,
    timestamp: i64,
    leader_epoch: LeaderEpoch,
}

impl Found {
    fn end(offset: i64, leader_epoch: LeaderEpoch) -> Self {
        Found { offset, timestamp: NONE, leader_epoch }
    }

    fn nothing() -> Self {
        Found::end(NONE, LeaderEpoch::NONE)
    }
}

/// Returns true if a version may ask for this special timestamp. A real one is 0 or above.
fn is_known(timestamp: i64, version: i16) -> bool {
    let needs = match timestamp {
        EARLIEST_PENDING_UPLOAD => 11,
        LATEST_TIERED => 9,
        EARLIEST_LOCAL => 8,
        MAX_TIMESTAMP => 7,
        EARLIEST | LATEST | 0.. => 1,
        _ => return false,
    };
    version >= needs
}

/// Finds an offset in a partition.
fn locate(
    broker: &Broker,
    context: &RequestContext,
    topic: &str,
    wanted: &ListOffsetsPartition<'_>,
) -> Result<Arc<Partition>, ErrorCode> {
    if !is_known(wanted.timestamp, context.version) {
        return Err(ErrorCode::UNSUPPORTED_VERSION);
    }
    broker.store.topics.partition(topic, wanted.partition_index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
}

fn find_in(
    partition: &Partition,
    wanted: &ListOffsetsPartition<'_>,
    version: i16,
    committed: bool,
) -> Result<Found, ErrorCode> {
    let leader_epoch = partition.lead(LeaderEpoch::new(wanted.current_leader_epoch))?;
    let is_of_the_end = !matches!(wanted.timestamp, EARLIEST | EARLIEST_LOCAL);
    if is_of_the_end && !partition.is_settled() {
        // KIP-207: the records that earlier leaders have committed are not known yet.
        return Err(match version {
            OFFSET_NOT_AVAILABLE_SINCE.. => ErrorCode::OFFSET_NOT_AVAILABLE,
            _ => ErrorCode::LEADER_NOT_AVAILABLE,
        });
    }
    let ends = partition.ends()?;
    let readable = if committed { ends.last_stable } else { ends.high_watermark };
    let epoch_at = |offset| partition.epoch_of(offset).unwrap_or(LeaderEpoch::NONE);
    match wanted.timestamp {
        LATEST => Ok(Found::end(readable, leader_epoch)),
        EARLIEST => Ok(Found::end(ends.log_start, epoch_at(ends.log_start))),
        EARLIEST_LOCAL => Ok(Found::end(ends.local_log_start, epoch_at(ends.local_log_start))),
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => Ok(Found::nothing()),
        timestamp => {
            let found = partition.search_time(match timestamp {
                MAX_TIMESTAMP => TimeSearch::Latest,
                timestamp => TimeSearch::AtLeast(timestamp),
            })?;
            // Records beyond the readable end are not reported.
            Ok(found.filter(|found| found.offset < readable).map_or_else(Found::nothing, |found| Found {
                offset: found.offset,
                timestamp: found.timestamp,
                leader_epoch: epoch_at(found.offset),
            }))
        }
    }
}

fn encode(
    context: &RequestContext,
    partition_index: i32,
    found: Result<Found, ErrorCode>,
) -> ListOffsetsPartitionResponse<'static> {
    match found {
        Ok(found) => ListOffsetsPartitionResponse {
            partition_index,
            timestamp: found.timestamp,
            offset: found.offset,
            leader_epoch: if context.version >= LEADER_EPOCH_SINCE {
                found.leader_epoch.get()
            } else {
                LeaderEpoch::NONE.get()
            },
            ..Default::default()
        },
        Err(error) => {
            ListOffsetsPartitionResponse { partition_index, error_code: error.code(), ..Default::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_store::testing::Leader;

    fn find(leader: &Leader, timestamp: i64, version: i16) -> Result<Found, ErrorCode> {
        let wanted = ListOffsetsPartition { timestamp, current_leader_epoch: -1, ..Default::default() };
        find_in(&leader.partition, &wanted, version, false)
    }

    /// KIP-207: until its first entry is committed, a leader does not know which earlier entries are. At the start of
    /// the partition it knows.
    #[test]
    fn a_leader_names_no_end_before_its_first_entry_is_committed() {
        let leader = Leader::of_voters(3);
        leader.append(&[1; 8]);
        for timestamp in [LATEST, MAX_TIMESTAMP, LATEST_TIERED, 0] {
            assert_eq!(find(&leader, timestamp, 4), Err(ErrorCode::LEADER_NOT_AVAILABLE), "{timestamp}");
            assert_eq!(find(&leader, timestamp, 5), Err(ErrorCode::OFFSET_NOT_AVAILABLE), "{timestamp}");
        }
        assert_eq!(find(&leader, EARLIEST, 5).map(|found| found.offset), Ok(0));
        let first_entry = 1;
        [2, 3].iter().for_each(|node| leader.acknowledged_by(*node, first_entry));
        assert_eq!(find(&leader, LATEST, 5), Ok(Found::end(0, LeaderEpoch::new(1))), "the record is not");
        [2, 3].iter().for_each(|node| leader.acknowledged_by(*node, first_entry + 1));
        assert_eq!(find(&leader, LATEST, 5), Ok(Found::end(1, LeaderEpoch::new(1))));
    }
}
