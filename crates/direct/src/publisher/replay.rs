//! Replays: all events of some keys once more, found by a scan of the journal from its start, beside the subscription.
//!
//! A replay costs one chunk of the journal in memory. The next chunk is read when the connection can take the events of this one,
//! so it reads no faster than its consumer.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::Stream as FuturesStream;
use mainstem_lines::OneLine;
use tokio::sync::watch;
use tonic::Status;

use super::places::Place;
use crate::chunk::{Chunk, FilterPipeline, Share, first_batches};
use crate::journal::{FRAME_BYTES_MAX, OlderReader};
use crate::member::Granted;
use crate::proto::{self, criterion::Matches};
use crate::resume::{Epoch, JournalId, JournalView, RUNS_MAX, Received};
use crate::slices::SliceRange;
use crate::stream::Stream;

/// The most replays at one time; a consumer that is refused tries again.
pub(super) const REPLAYS_MAX: usize = 16;
/// The most chunks without an event of the keys before an empty frame says so.
const CHUNKS_UNSAID_MAX: usize = 64;

/// A scan under way.
pub(super) struct Replaying {
    stream: Arc<Stream>,
    pipeline: Arc<FilterPipeline>,
    share: Share,
    older: OlderReader,
    /// The end of the last frame.
    said_to: i64,
    /// The next offset to read.
    position: i64,
    until: i64,
    stops: watch::Receiver<bool>,
    _place: Place,
}

impl Replaying {
    /// Begins a replay.
    ///
    /// # Errors
    /// The request makes no sense, or the journal does not have its offsets any more.
    pub(super) fn open(
        stream: Arc<Stream>,
        request: &proto::ReplayRequest,
        granted: Granted,
        stops: watch::Receiver<bool>,
        place: Place,
    ) -> Result<Replaying, Status> {
        let consumer = &request.consumer;
        let known = stream.subscriptions().into_iter().find(|one| one.name() == consumer);
        let known = known.ok_or_else(|| {
            let (stream, consumer) = (OneLine(stream.name()), OneLine(consumer));
            Status::not_found(format!("stream {stream} has no consumer {consumer:?}"))
        })?;
        let kept = known.settings().borrow().filter.clone();
        let filters: Vec<proto::Filter> =
            granted.filter.into_iter().chain(request.filter.clone()).chain([of_keys(request)?]).collect();
        let pipeline = stream
            .pipelines()
            .pipeline(&filters, kept.as_ref(), granted.peer)
            .map_err(|error| error.to_status())?;
        let view = stream.journal().view();
        check(&view, request)?;
        // Events before the start were not there when the consumer first came, or retention has removed them.
        let position = request.from.max(view.start).min(request.until);
        let older = OlderReader::new(stream.journal().clone(), stream.past().clone());
        Ok(Replaying {
            stream,
            pipeline,
            share: Share::new(SliceRange::ALL, Vec::new()),
            older,
            said_to: request.from,
            position,
            until: request.until,
            stops,
            _place: place,
        })
    }

    /// The frames of the replay.
    pub(super) fn frames(self) -> impl FuturesStream<Item = Result<proto::Replayed, Status>> {
        futures_util::stream::try_unfold(self, |mut replaying| async move {
            Ok(replaying.next().await?.map(|frame| (frame, replaying)))
        })
    }

    /// Returns the next frame; `None` behind the last one.
    async fn next(&mut self) -> Result<Option<proto::Replayed>, Status> {
        for _ in 0..CHUNKS_UNSAID_MAX {
            if self.position >= self.until {
                break;
            }
            if *self.stops.borrow() {
                return Err(Status::unavailable("the publisher stops"));
            }
            let chunk = self.older.read(self.position).await?;
            let began = Instant::now();
            let (batches, next) = self.events_of(&chunk)?;
            self.older.end_turn(began.elapsed(), batches.len());
            self.position = next.min(self.until);
            if !batches.is_empty() {
                return Ok(Some(self.say(batches)));
            }
        }
        Ok((self.said_to < self.position).then(|| self.say(Bytes::new())))
    }

    fn say(&mut self, batches: Bytes) -> proto::Replayed {
        let from = std::mem::replace(&mut self.said_to, self.position);
        proto::Replayed { from, next: self.position, batches }
    }

    /// Returns the events of the keys in a chunk, as many as a frame may have, and the offset behind them.
    fn events_of(&self, chunk: &Chunk) -> Result<(Bytes, i64), Status> {
        let seen = chunk.passed_through(&self.pipeline, self.stream.journal().counters());
        let own = seen.and_then(|seen| self.share.of(&seen, self.position, self.until));
        let position = self.position;
        let own = own.map_err(|reason| {
            Status::data_loss(format!("events from offset {position} on cannot be read: {reason}"))
        })?;
        if own.len() <= FRAME_BYTES_MAX {
            return Ok((own, chunk.next));
        }
        first_batches(&own, FRAME_BYTES_MAX).map_err(|next| {
            let max = FRAME_BYTES_MAX;
            let reason =
                format!("the batch before offset {next} has more than a frame may have ({max} bytes)");
            Status::out_of_range(reason)
        })
    }
}

/// Lets only events of the keys pass.
fn of_keys(request: &proto::ReplayRequest) -> Result<proto::Filter, Status> {
    if request.keys.is_empty() {
        return Err(Status::invalid_argument("a replay is of one key at least"));
    }
    let keys = Matches::Keys(proto::Keys { any: request.keys.clone() });
    Ok(crate::filter::criteria::only([proto::Criterion { matches: Some(keys) }]))
}

/// Refuses a request for another journal, or beyond the events that both ends have.
fn check(view: &JournalView, request: &proto::ReplayRequest) -> Result<(), Status> {
    let proto::ReplayRequest { epoch, from, until, .. } = *request;
    let id = <[u8; 16]>::try_from(&request.journal_id[..])
        .map_err(|_| Status::invalid_argument("a journal's id has 16 bytes"))?;
    if request.epochs.len() > RUNS_MAX {
        return Err(Status::invalid_argument(format!("more than {RUNS_MAX} runs of a journal are named")));
    }
    if !(0..=until).contains(&from) {
        return Err(Status::invalid_argument(format!("nothing is from offset {from} to {until}")));
    }
    let runs = request.epochs.iter().map(Epoch::of_proto).collect();
    let received = Received { journal: JournalId(id), epoch, offset: until, runs };
    view.check_received(&received).map_err(|refused| refused.to_status())?;
    // The rest of an interrupted replay must not be gone.
    match from {
        0 => Ok(()),
        from => view.check_offset(from).map_err(|refused| refused.to_status()),
    }
}
