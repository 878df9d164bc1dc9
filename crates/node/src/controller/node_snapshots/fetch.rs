//! Fetching a snapshot that the leader offers, range by range: what is asked, what is answered, and what becomes of the file.

use std::time::Duration;

use mainstem_controller::MetadataStateMachine;
use mainstem_controller::snapshot_format::QuorumRecords;
use mainstem_replication::snapshots::{ReceiveError, Received, SnapshotContent, SnapshotFile, SnapshotOffer};

use super::{Controller, NodeSnapshots, Replicated};
use crate::controller::ControllerError;
use crate::controller::snapshot::load_bytes;
use mainstem_links::{CallError, CallKind};
use mainstem_store::partition::SnapshotStepError;

/// A question for a range of a snapshot of the metadata, from node to node.
pub(crate) const SNAPSHOT: CallKind = CallKind(4);

/// Time in which one range must arrive.
const RANGE_TIME: Duration = Duration::from_secs(2);
/// Pause before a question is asked again that had no answer.
const RETRY: Duration = Duration::from_millis(100);
/// Time without any answer after which a fetch fails; the leader offers a snapshot again.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The first byte of an answer with a range, and of one without.
const RANGE: u8 = 1;
const NOT_HERE: u8 = 0;

/// A question for a range of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) end_offset: i64,
    pub(crate) epoch: i32,
    /// CRC-32C of the whole file.
    pub(crate) crc: u32,
    pub(crate) position: u64,
    pub(crate) len: u32,
}

impl Question {
    fn encode(&self) -> Vec<u8> {
        let Question { end_offset, epoch, crc, position, len } = self;
        let mut out = Vec::with_capacity(28);
        out.extend_from_slice(&end_offset.to_be_bytes());
        out.extend_from_slice(&epoch.to_be_bytes());
        out.extend_from_slice(&crc.to_be_bytes());
        out.extend_from_slice(&position.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out
    }

    /// `None` where it makes no sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Question> {
        let (end_offset, rest) = bytes.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (crc, rest) = rest.split_first_chunk()?;
        let (position, rest) = rest.split_first_chunk()?;
        let question = Question {
            end_offset: i64::from_be_bytes(*end_offset),
            epoch: i32::from_be_bytes(*epoch),
            crc: u32::from_be_bytes(*crc),
            position: u64::from_be_bytes(*position),
            len: u32::from_be_bytes(rest.try_into().ok()?),
        };
        (question.end_offset >= 0 && question.epoch >= 0).then_some(question)
    }
}

/// The answer with the bytes of a range; `None`: there is no such snapshot.
pub(crate) fn encode_answer(range: Option<&[u8]>) -> Vec<u8> {
    match range {
        Some(bytes) => [&[RANGE], bytes].concat(),
        None => vec![NOT_HERE],
    }
}

fn decode_answer(mut answer: Vec<u8>) -> Option<Vec<u8>> {
    (answer.first() == Some(&RANGE)).then(|| answer.split_off(1))
}

/// Why a snapshot was not fetched, or not used.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("it is not wanted any more")]
    Over,
    #[error("the leader has it no more")]
    Gone,
    #[error("there is no answer: {0}")]
    Call(#[from] CallError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error("it has the right checksum and cannot be used: {0}")]
    Unusable(#[from] ControllerError),
    #[error("the log could not begin behind it: {0}")]
    Step(#[from] SnapshotStepError),
}

impl From<std::io::Error> for FetchError {
    fn from(error: std::io::Error) -> Self {
        FetchError::Receive(ReceiveError::Io(error))
    }
}

impl Controller {
    /// Fetches a snapshot that was offered, and has the log begin behind it. What fails the leader offers again, or another one.
    pub(crate) fn fetch_offered(&self, replicated: &Replicated, offer: &SnapshotOffer) {
        if self.log.ends().is_ok_and(|ends| ends.high_watermark >= offer.start.offset) {
            return;
        }
        let (end_offset, bytes) = (offer.start.offset, offer.len);
        tracing::info!(end_offset, bytes, "a snapshot of the metadata is fetched from the leader");
        let fetched = self
            .receive(replicated, offer)
            .and_then(|received| self.begin_behind(&replicated.snapshots, &received));
        match fetched {
            Ok(true) => tracing::info!(end_offset, "the metadata log begins behind a snapshot of the leader"),
            Ok(false) => tracing::info!(end_offset, "the snapshot that was fetched is not needed any more"),
            Err(error @ (FetchError::Over | FetchError::Gone)) => {
                tracing::info!(end_offset, "the snapshot is not fetched: {error}");
            }
            Err(error) => {
                tracing::warn!(end_offset, "a snapshot of the leader: {error}; it is offered again")
            }
        }
    }

    fn receive(&self, replicated: &Replicated, offer: &SnapshotOffer) -> Result<Received, FetchError> {
        let offers = &replicated.news.offers;
        let SnapshotFile { end_offset, epoch, .. } =
            SnapshotFile::at(&replicated.snapshots.path, offer.start);
        let mut receiving = replicated.snapshots.files.lock().receive(offer.clone())?;
        let mut answered = self.clock.instant();
        while let Some((position, len)) = receiving.next_range() {
            if offers.is_over(offer) {
                return Err(FetchError::Over);
            }
            let question = Question { end_offset, epoch, crc: offer.crc, position, len };
            match self.ask_for_range(replicated, &question) {
                Ok(answer) => {
                    receiving.take(position, &decode_answer(answer).ok_or(FetchError::Gone)?)?;
                    answered = self.clock.instant();
                }
                Err(error) if self.clock.elapsed(answered) >= FETCH_TIMEOUT => return Err(error.into()),
                Err(_) => offers.pause(RETRY),
            }
        }
        Ok(receiving.check()?)
    }

    /// Asks the node that leads the metadata now.
    fn ask_for_range(&self, replicated: &Replicated, question: &Question) -> Result<Vec<u8>, CallError> {
        let leader = self.log.leadership().leader.filter(|leader| *leader != self.local.id);
        let Some(leader) = leader else { return Err(CallError::NotConnected) };
        replicated.links.call_blocking(leader, SNAPSHOT, question.encode(), RANGE_TIME)
    }

    /// Has the log begin behind a snapshot that is here whole. Returns false where it is not needed.
    fn begin_behind(&self, snapshots: &NodeSnapshots, received: &Received) -> Result<bool, FetchError> {
        let offer = received.offer();
        let bytes = received.bytes()?;
        // Once the log has gone there is nothing else.
        let mut trial = MetadataStateMachine::default();
        let named = SnapshotFile::at(&snapshots.path, offer.start);
        load_bytes(&named, &bytes, &mut trial, &mut QuorumRecords::default())?;
        drop((trial, bytes));
        let mut files = snapshots.files.lock();
        let file = files.finish(received)?;
        // After an error it is not known whether the next start needs it.
        let is_begun = self.log.begin_behind_snapshot(offer)?;
        if is_begun {
            let SnapshotOffer { start, len, crc, .. } = *offer;
            snapshots.serve(&files, file, SnapshotContent { start, len, crc });
            if let Ok(ends) = self.log.ends() {
                files.remove_old(ends.log_start)?;
            }
        } else {
            files.remove(&file)?;
        }
        Ok(is_begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_arrive_and_garbage_does_not() {
        let question = Question { end_offset: 4711, epoch: 3, crc: 0xdead_beef, position: 1 << 33, len: 5 };
        let bytes = question.encode();
        assert_eq!(Question::decode(&bytes), Some(question));
        for len in 0..bytes.len() {
            assert_eq!(Question::decode(&bytes[..len]), None, "cut at {len}");
        }
        assert_eq!(Question::decode(&[&bytes[..], &[0]].concat()), None, "too long");
        assert_eq!(Question::decode(&[0xff; 28]), None, "before all offsets");
        let range = Some(&b"range"[..]);
        assert_eq!(decode_answer(encode_answer(range)).as_deref(), range);
        for nothing in [encode_answer(None), Vec::new(), vec![7, 1]] {
            assert_eq!(decode_answer(nothing), None);
        }
    }
}
