//! A replay: all events of some keys once more, from the journal's start to the instance's position.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use mainstem_lines::{OneLine, Sentence};
use tonic::{Request, Streaming};

use super::inbox::Fault;
use super::{Consumer, DEAD_AFTER, RETRY_FIRST, fault_of, jittered, longer};
use crate::error::{DirectError, Result};
use crate::proto;
use crate::sequence::Sequence;

/// Replayed events of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// The first offset.
    pub from: i64,
    /// The offset behind the last one. No other event of the keys is in between.
    pub next: i64,
    /// Record batches of Kafka's format, whose CRCs were not checked.
    pub batches: Bytes,
    /// The ranges of the batches in these bytes.
    pub ranges: Vec<Range<usize>>,
}

/// A replay under way. Until it is dropped, the instance returns nothing else.
#[derive(Debug)]
pub struct Replay<'a> {
    consumer: &'a mut Consumer,
    request: proto::ReplayRequest,
    sequence: Sequence,
    frames: Option<Streaming<proto::Replayed>>,
    /// The wait before the next connection.
    wait: Duration,
}

impl Consumer {
    /// Reads all events of keys once more, from the journal's start up to the last event that this instance returned. Then the keys
    /// continue where they were, so that each of their events is seen in its order. The filters of the consumer and the stream's
    /// transformation apply.
    ///
    /// The position does not move. The instance returns no other event until the replay is dropped. If it has to give slices back
    /// meanwhile, it has 30 s for that.
    ///
    /// # Errors
    /// [`DirectError::Invalid`] if the instance has no slices, and so no position.
    pub fn replay<K: Into<Bytes>>(&mut self, keys: impl IntoIterator<Item = K>) -> Result<Replay<'_>> {
        let (Some(until), Some(journal)) = (self.position, self.inbox.journal()) else {
            return Err(DirectError::Invalid(
                "a replay goes up to where the instance is, and it has no slices now".to_owned(),
            ));
        };
        let request = proto::ReplayRequest {
            stream: self.config.stream.clone(),
            consumer: self.config.consumer.clone(),
            journal_id: journal.id.0.to_vec().into(),
            epoch: journal.epoch_before(until),
            epochs: journal.runs_before(until).iter().map(|run| run.to_proto()).collect(),
            from: 0,
            until,
            keys: keys.into_iter().map(Into::into).collect(),
            filter: self.config.filter.clone(),
        };
        Ok(Replay { consumer: self, request, sequence: Sequence::new(0), frames: None, wait: RETRY_FIRST })
    }
}

impl Replay<'_> {
    /// Waits for the next events; `None` at the end. The future may be dropped at any time, and loses nothing. After a lost connection
    /// the replay connects again and resumes at its position.
    ///
    /// # Errors
    /// The reason why it cannot continue.
    pub async fn next(&mut self) -> Result<Option<Replayed>> {
        loop {
            if self.sequence.next() >= self.request.until {
                return Ok(None);
            }
            let reason = match self.frame().await {
                Ok(replayed) => {
                    self.wait = RETRY_FIRST;
                    return Ok(Some(replayed));
                }
                Err(Fault::Fatal(error)) => return Err(error),
                // The consumer has had a connection.
                Err(Fault::Tls(error)) => error.to_string(),
                Err(Fault::Lost { reason, .. }) => reason,
            };
            let config = &self.consumer.config;
            let (stream, at) = (OneLine(&config.stream), OneLine(&config.address.at));
            let (reason, wait) = (Sentence(&reason), self.wait);
            tracing::warn!("a replay of stream {stream} of {at}: {reason}; again in {} ms", wait.as_millis());
            (self.frames, self.wait) = (None, longer(config, wait));
            tokio::time::sleep(jittered(wait)).await;
        }
    }

    async fn frame(&mut self) -> Result<Replayed, Fault> {
        let config = &self.consumer.config;
        let lost = |reason: String| Fault::Lost { was_opened: true, reason };
        let frames = match &mut self.frames {
            Some(frames) => frames,
            None => {
                let mut client = config.address.connect().await.map_err(|error| lost(error.to_string()))?;
                let asked = proto::ReplayRequest { from: self.sequence.next(), ..self.request.clone() };
                let request: Request<_> = config.address.request(asked).map_err(Fault::Fatal)?;
                let answered = tokio::time::timeout(DEAD_AFTER, client.replay(request)).await;
                let answer = answered.map_err(|_| lost("it did not answer within 15 s".to_owned()))?;
                self.frames.insert(answer.map_err(|status| fault_of(config, &status, false))?.into_inner())
            }
        };
        let frame = tokio::time::timeout(DEAD_AFTER, frames.message()).await;
        let frame = frame.map_err(|_| lost("nothing came for 15 s".to_owned()))?;
        let Some(frame) = frame.map_err(|status| fault_of(config, &status, true))? else {
            return Err(lost("the publisher has ended it before its end".to_owned()));
        };
        let proto::Replayed { from, next, batches } = frame;
        if next > self.request.until {
            return Err(lost(format!("it goes to offset {next}, and was to end at {}", self.request.until)));
        }
        let ranges = self.sequence.accept(from, next, &batches).map_err(|fault| lost(fault.to_string()))?;
        Ok(Replayed { from, next, batches, ranges })
    }
}
