//! Fetching a copy that the leader of a partition offers, until it is in the place of the log.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainstem_links::CallError;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::{ImportError, LogError};
use mainstem_replication::copies::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use mainstem_replication::copies::question::{Answer, Part, Question, RANGE_BYTES_MAX};
use mainstem_replication::snapshots::{SnapshotContent, SnapshotOffer};
use mainstem_replication::{GroupId, ReplicaError};

use super::received::{Found, Next, Receiving, ReceivingError};
use super::{COPY, Copies, FREE_PART};
use crate::partition::{CopyTarget, Partition};
use crate::store::Store;

/// Time in which one range must arrive.
const RANGE_TIME: Duration = Duration::from_secs(10);
/// Pause before a question is asked again that had no answer.
const RETRY: Duration = Duration::from_millis(100);
/// Pause before a source is asked again that is as fast as it may be.
const LATER: Duration = Duration::from_millis(20);
/// Time without an answer after which a fetch ends; the leader offers a copy again.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a copy is not in the place of a log.
#[derive(Debug, thiserror::Error)]
enum PullError {
    #[error("it is not wanted any more")]
    Over,
    #[error("the leader does not offer it any more")]
    Gone,
    #[error("the journal of {} has not got its new format yet", dir.display())]
    Format { dir: PathBuf },
    #[error("its manifest makes no sense: {0}")]
    Manifest(#[from] ManifestError),
    #[error("its manifest is not that of the offer")]
    NotOffered,
    #[error("{needed} bytes of it are not here, and the disk of {} has {free} free, of which {reserve} stay free; make space there", dir.display())]
    NoSpace { dir: PathBuf, needed: u64, free: u64, reserve: u64 },
    #[error("there is no answer: {0}")]
    Call(#[from] CallError),
    #[error("an answer makes no sense")]
    Answer,
    #[error(transparent)]
    Receiving(#[from] ReceivingError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

impl From<LogError> for PullError {
    fn from(error: LogError) -> Self {
        PullError::Receiving(ReceivingError::Log(error))
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_owned();
    move |source| LogError::Io { action, path, source }
}

/// One copy on its way.
struct Pull<'a> {
    copies: &'a Copies,
    store: &'a Store,
    group: GroupId,
    partition: &'a Arc<Partition>,
    offer: SnapshotOffer,
}

impl Copies {
    /// Fetches the copy that was offered last for a partition, and puts it in the place of the log.
    pub(super) fn carry_out_fetch(&self, store: &Store, group: GroupId, partition: &Arc<Partition>) {
        let Some(offer) = self.state.lock().offers.get(&group).cloned() else { return };
        let pull = Pull { copies: self, store, group, partition, offer: offer.clone() };
        self.counters.fetching.fetch_add(1, Ordering::Relaxed);
        let ended = pull.run();
        self.counters.fetching.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        // Of another one that has come meanwhile nothing is needed where this one is in its place: the leader finds that out.
        if matches!(ended, Ok(true)) || state.offers.get(&group) == Some(&offer) {
            state.offers.remove(&group);
        }
        state.attempts.insert(group, store.clock.mono_ms());
        drop(state);
        let (topic, index, end) = (&partition.topic, partition.index, offer.start.offset);
        match ended {
            Ok(true) => {
                self.counters.installed.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%topic, partition = index, end, "a copy of the leader's log is in the place of the log");
            }
            Ok(false) => {
                tracing::info!(%topic, partition = index, end, "the copy that was fetched is not needed any more");
            }
            Err(error @ (PullError::Over | PullError::Gone)) => {
                tracing::info!(%topic, partition = index, end, "the copy is not fetched: {error}");
            }
            Err(error) => {
                pull.note_error(&error);
                tracing::warn!(%topic, partition = index, end, "a copy of the leader's log: {error}; it is offered again");
            }
        }
    }
}

impl Pull<'_> {
    /// Returns false where the copy is not needed any more.
    fn run(&self) -> Result<bool, PullError> {
        let target = self.target()?;
        self.wait_for_format(&target)?;
        let (topic, index) = (&self.partition.topic, self.partition.index);
        let manifest = Arc::new(self.fetch_manifest()?);
        let name = TopicPartition { topic: topic.clone(), partition: index };
        let found = Found::look(&target.dir, &name, &manifest)?;
        self.check_space(&target, found.needed_by(&manifest)?)?;
        if found.is_some() {
            self.copies.counters.resumed.fetch_add(1, Ordering::Relaxed);
        }
        let mut receiving = Receiving::begin((&target.dir, &name), found, manifest.clone())?;
        let (end, bytes, missing) = (manifest.start.offset, manifest.len(), receiving.missing());
        tracing::info!(%topic, partition = index, end, bytes, missing, "a copy of the leader's log is fetched");
        let fetched = self.fetch_files(&mut receiving);
        if let Err(error) = fetched {
            if !matches!(error, PullError::Receiving(_)) {
                receiving.sync()?;
            }
            return Err(error);
        }
        let path = receiving.path().to_owned();
        let finished =
            receiving.finish((target.config.clone(), self.store.clock.mono_ms()), &self.copies.checking);
        if let Err(ImportError::Damaged { .. }) = &finished {
            // It is fetched again.
            target.dir.remove_future(&path).map_err(failed("remove", &path))?;
        }
        let copy = finished?;
        Ok(self.partition.install_copy(&self.offer, copy, &self.store.clock)?)
    }

    /// Waits until the journal can say that a copy is in place: soon after its first start at the level of copies.
    fn wait_for_format(&self, target: &CopyTarget) -> Result<(), PullError> {
        let begin = self.store.clock.instant();
        while !self.store.peers.as_ref().is_some_and(|peers| peers.journals.may_replace(&target.dir)) {
            if self.store.clock.elapsed(begin) >= FETCH_TIMEOUT {
                return Err(PullError::Format { dir: target.dir.path().to_owned() });
            }
            self.pause(RETRY)?;
        }
        Ok(())
    }

    /// The follower, for as long as it needs the copy that was offered.
    fn target(&self) -> Result<CopyTarget, PullError> {
        let is_last_offer = self.copies.state.lock().offers.get(&self.group) == Some(&self.offer);
        let target = self.partition.copy_target().filter(|_| is_last_offer && !self.copies.is_stopped());
        target.filter(|target| target.high_watermark < self.offer.start.offset).ok_or(PullError::Over)
    }

    fn fetch_manifest(&self) -> Result<Manifest, PullError> {
        let len = usize::try_from(self.offer.len).ok().filter(|len| *len <= MANIFEST_BYTES_MAX);
        let len = len.ok_or(PullError::NotOffered)?;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let wanted = (len - bytes.len()).min(RANGE_BYTES_MAX as usize) as u32;
            let question = Question {
                group: self.group,
                manifest: self.offer.crc,
                part: Part::Manifest,
                position: bytes.len() as u64,
                len: wanted,
                is_comparison: false,
            };
            let answer = self.ask(&question)?;
            match Answer::decode(&answer).ok_or(PullError::Answer)? {
                Answer::Range { bytes: range, .. } if range.len() == wanted as usize => {
                    bytes.extend_from_slice(range);
                }
                Answer::Gone => return Err(PullError::Gone),
                _ => return Err(PullError::Answer),
            }
        }
        let manifest = Manifest::decode(&bytes)?;
        let is_offered = SnapshotContent::of(self.offer.start, &bytes).crc == self.offer.crc
            && manifest.start == self.offer.start
            && manifest.group == self.group
            && manifest.configuration == self.offer.configuration.in_order();
        is_offered.then_some(manifest).ok_or(PullError::NotOffered)
    }

    fn check_space(&self, target: &CopyTarget, needed: u64) -> Result<(), PullError> {
        let (storage, path) = (target.dir.storage(), target.dir.path());
        let measured = storage.free_space(path).and_then(|free| Ok((free, storage.total_space(path)?)));
        let (free, total) = measured.map_err(failed("measure", path))?;
        let reserve = total / FREE_PART;
        match free >= needed.saturating_add(reserve) {
            true => Ok(()),
            false => Err(PullError::NoSpace { dir: path.to_owned(), needed, free, reserve }),
        }
    }

    fn fetch_files(&self, receiving: &mut Receiving) -> Result<(), PullError> {
        while let Some(question) = receiving.question() {
            let answer = self.ask(&question)?;
            match receiving.take(&Answer::decode(&answer).ok_or(PullError::Answer)?)? {
                Next::Received(bytes) => {
                    self.copies.counters.received_bytes.fetch_add(bytes, Ordering::Relaxed);
                    self.keep_pace(bytes)?;
                }
                Next::Compared(bytes) => self.keep_pace(bytes)?,
                Next::Later => self.pause(LATER)?,
                Next::Gone => return Err(PullError::Gone),
            }
        }
        Ok(())
    }

    /// Pauses behind bytes that have come, so that they have the rate of this node.
    fn keep_pace(&self, bytes: u64) -> Result<(), PullError> {
        let (pace, clock) = (&self.copies.pace, &self.store.clock);
        let throttled = self.throttled_rate()?;
        pace.note_received(clock.instant(), bytes, throttled);
        loop {
            let is_throttled = self.throttled_rate()?.is_some();
            match pace.pause(clock.instant(), is_throttled) {
                Duration::ZERO => return Ok(()),
                // A throttle may change meanwhile, and another copy be offered.
                pause => self.pause(pause.min(RETRY))?,
            }
        }
    }

    /// The rate of Kafka's throttles for this copy, if any counts.
    fn throttled_rate(&self) -> Result<Option<u64>, PullError> {
        let leader = self.target()?.leader;
        Ok(leader.and_then(|leader| self.partition.throttled_rate(leader, self.store.node)))
    }

    fn pause(&self, time: Duration) -> Result<(), PullError> {
        match self.copies.pause(self.store, time) {
            true => self.target().map(drop),
            false => Err(PullError::Over),
        }
    }

    /// Asks the node that leads the partition now, until there is an answer.
    fn ask(&self, question: &Question) -> Result<Vec<u8>, PullError> {
        let Some(peers) = &self.store.peers else { return Err(PullError::Over) };
        let begin = self.store.clock.instant();
        loop {
            let leader = self.target()?.leader.filter(|leader| *leader != self.store.node);
            let answered = match leader {
                Some(leader) => {
                    let holds = || !self.copies.is_stopped();
                    peers.links.call_while(leader, COPY, question.encode(), RANGE_TIME, holds)
                }
                None => Err(CallError::NotConnected),
            };
            match answered {
                Ok(answer) => return Ok(answer),
                Err(error) if self.store.clock.elapsed(begin) >= FETCH_TIMEOUT => return Err(error.into()),
                Err(_) => self.pause(RETRY)?,
            }
        }
    }

    /// A disk that cannot be used takes its directory offline.
    fn note_error(&self, error: &PullError) {
        if let PullError::Receiving(ReceivingError::Log(LogError::Io { source, .. }))
        | PullError::Import(ImportError::Log(LogError::Io { source, .. })) = error
            && let Some(target) = self.partition.copy_target()
        {
            target.dir.note_error(source);
        }
    }
}
