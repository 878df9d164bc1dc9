//! Snapshots of the metadata in a cluster. Each node writes its own of what it has applied, and removes its log before the last
//! snapshot but one. If a node needs records which are gone from the leader's log, the leader offers its newest snapshot. The
//! node fetches it over the link, and its log restarts at the snapshot's end.
//!
//! ```text
//!  this node:   image ─▶ mark in the journal ─▶ file, renamed when it is on disk ─▶ log start ─▶ segments go
//!  from others: offer ─▶ ranges ─▶ length, checksum, records checked; synced, renamed ─▶ log restarts ─▶ image
//! ```
//!
//! The process may end after any step. A mark without a file has no effect. A file without the log start is one snapshot more. The
//! next start ignores a file that was received and is ahead of the log. If the journal says that the log restarts, the next
//! start completes that. One thread does all of it, `metadata-snapshots`, without a lock of the controller.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstem_controller::snapshot_format::{QuorumRecords, encode};
use mainstem_controller::{MetadataChange, MetadataStateMachine};
use mainstem_log::storage::Storage;
use mainstem_replication::journal::Start;
use mainstem_replication::snapshots::{SnapshotContent, SnapshotFile, SnapshotOffer, Snapshots, read_range};
use parking_lot::Mutex;

use super::replicated::{Replicated, end_process};
use super::snapshot::{SinceSnapshot, load_bytes};
use super::snapshots::read_bytes;
use super::{Controller, ControllerError};
use mainstem_runtime::supervised::{self, Role};
use mainstem_runtime::sync;
use mainstem_store::partition::{Durable, Partition, SnapshotStepError};

mod fetch;

use fetch::Question;
pub(crate) use fetch::SNAPSHOT;

/// Interval of the checks whether a snapshot is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time for which a check waits until the content of a snapshot is durable on this node.
const DURABLE_TIME: Duration = Duration::from_millis(500);

/// A leader keeps so much of its log for nodes that are away, as a multiple of what comes between two snapshots.
const LOG_KEPT_FACTOR: u64 = 2;

/// The last snapshot that a leader has offered, for the thread that fetches it.
#[derive(Default)]
pub(crate) struct Offers {
    state: Mutex<OffersState>,
    woken: sync::Condvar,
}

#[derive(Default)]
struct OffersState {
    offered: Option<SnapshotOffer>,
    ends: bool,
}

/// Nothing is fetched or written any more.
struct Ended;

impl Offers {
    /// Takes note of an offer, in the place of the one before.
    pub(crate) fn put(&self, offer: SnapshotOffer) {
        self.state.lock().offered = Some(offer);
        self.woken.notify_one();
    }

    fn end(&self) {
        self.state.lock().ends = true;
        self.woken.notify_one();
    }

    /// Waits for an offer, or until the time is over.
    fn wait(&self, time: Duration) -> Result<Option<SnapshotOffer>, Ended> {
        let mut state = self.state.lock();
        if state.offered.is_none() && !state.ends {
            self.woken.wait_for(&mut state, time);
        }
        if state.ends { Err(Ended) } else { Ok(state.offered.take()) }
    }

    /// Returns true if an offered snapshot is not to be fetched any more: the node stops, or another snapshot is offered.
    fn is_over(&self, offer: &SnapshotOffer) -> bool {
        let state = self.state.lock();
        state.ends || state.offered.as_ref().is_some_and(|other| other != offer)
    }

    /// Waits until the time is over, unless the node stops.
    fn pause(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.ends {
            self.woken.wait_for(&mut state, time);
        }
    }
}

/// Snapshots of the metadata that this node has: it writes them, serves them to other nodes, and fetches theirs.
pub(crate) struct NodeSnapshots {
    storage: Arc<dyn Storage>,
    /// Directory of the snapshots: that of the log.
    path: PathBuf,
    /// Used by the thread alone.
    files: Mutex<Snapshots>,
    /// Those that other nodes can have, and what they are.
    served: Mutex<Vec<(SnapshotFile, SnapshotContent)>>,
    thread: Mutex<Option<sync::Thread>>,
}

/// Why a snapshot was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("cannot be written: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Step(#[from] SnapshotStepError),
}

impl NodeSnapshots {
    /// Finds the snapshots beside a log, and brings the state machine to where the newest ends that can be used. Returns its bytes,
    /// too; `None`: there is none, and the log has everything.
    ///
    /// # Errors
    /// When there is none that can be used and the log does not have everything.
    pub(crate) fn open(
        log: &Partition,
        machine: &mut MetadataStateMachine,
    ) -> Result<(NodeSnapshots, Option<usize>), ControllerError> {
        let (dir, path) = log.place().map_err(ControllerError::Register)?;
        let ends = log.ends().map_err(ControllerError::Register)?;
        let storage = dir.storage().clone();
        let files = Snapshots::open(storage.clone(), &path, ends.log_end);
        let unlisted =
            |error: io::Error| ControllerError::Snapshot { path: path.clone(), source: error.into() };
        let files = Mutex::new(files.map_err(unlisted)?);
        let snapshots =
            NodeSnapshots { storage, path, files, served: Mutex::default(), thread: Mutex::default() };
        let (newest, damaged) = snapshots.load_newest(log, machine);
        let end_offset = newest.map_or(0, |content| content.start.offset);
        if ends.log_start > end_offset {
            let gap = ControllerError::MetadataGap { ends: (ends.log_start, ends.log_end), end_offset };
            return Err(damaged.unwrap_or(gap));
        }
        if let Some(content) = newest {
            log.offer_snapshot(content);
        }
        Ok((snapshots, newest.map(|content| content.len as usize)))
    }

    /// Loads the newest snapshot that is complete and whose end is in the log. Returns it, and the error of a newer one.
    fn load_newest(
        &self,
        log: &Partition,
        machine: &mut MetadataStateMachine,
    ) -> (Option<SnapshotContent>, Option<ControllerError>) {
        let mut damaged = None;
        let mut files = self.files.lock();
        while let Some(file) = files.files().last().cloned() {
            // One that was received and not taken over: the log has come so far without.
            let Some(at) = log.entry_before(file.end_offset) else {
                files.distrust(&file);
                continue;
            };
            match self.load(&file) {
                Ok((loaded, bytes)) => {
                    let content = SnapshotContent::of(at, &bytes);
                    *machine = loaded;
                    self.serve(&files, file, content);
                    return (Some(content), damaged);
                }
                Err(error) => {
                    tracing::error!("{error}; this start does without it");
                    files.distrust(&file);
                    damaged = damaged.or(Some(error));
                }
            }
        }
        (None, damaged)
    }

    /// Reads a snapshot into a state machine, which knows what that holds and nothing else. Returns its bytes, too.
    fn load(&self, file: &SnapshotFile) -> Result<(MetadataStateMachine, Vec<u8>), ControllerError> {
        let unread =
            |error: io::Error| ControllerError::Snapshot { path: file.path.clone(), source: error.into() };
        let bytes = read_bytes(file, &*self.storage).map_err(unread)?;
        let mut machine = MetadataStateMachine::default();
        load_bytes(file, &bytes, &mut machine, &mut QuorumRecords::default())?;
        Ok((machine, bytes))
    }

    /// Other nodes can have this snapshot from now on, and those no more that are not kept.
    fn serve(&self, files: &Snapshots, file: SnapshotFile, content: SnapshotContent) {
        let mut served = self.served.lock();
        served.retain(|(other, _)| *other != file && files.files().contains(other));
        served.push((file, content));
    }

    /// The bytes of a range that another node asks for; `None`: that snapshot is not here.
    fn range(&self, question: &Question) -> Option<Vec<u8>> {
        let file = SnapshotFile::new(&self.path, question.end_offset, question.epoch);
        let is_served =
            self.served.lock().iter().any(|(known, content)| *known == file && content.crc == question.crc);
        if !is_served {
            return None;
        }
        let read = read_range(&*self.storage, &file, question.position, question.len);
        read.inspect_err(|error| {
            tracing::warn!("{} cannot be read for another node: {error}", file.path.display())
        })
        .ok()
    }
}

impl Controller {
    /// Begins to write snapshots, and to fetch those that are offered.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(crate) fn begin_snapshots(self: &Arc<Self>) -> io::Result<()> {
        let Some(replicated) = &self.replicated else { return Ok(()) };
        let own = self.clone();
        let run = move || own.keep_snapshots();
        let role = Role::Vital("the node could not follow a metadata log that begins behind a snapshot");
        *replicated.snapshots.thread.lock() =
            Some(supervised::spawn(&self.local.panics, "metadata-snapshots", role, run)?);
        Ok(())
    }

    /// Ends that, after the step that is being done.
    pub(crate) fn end_snapshots(&self, replicated: &Replicated) {
        replicated.news.offers.end();
        let thread = replicated.snapshots.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn keep_snapshots(&self) {
        let Some(replicated) = &self.replicated else { return };
        while let Ok(offer) = replicated.news.offers.wait(LOOK_EVERY) {
            match offer {
                Some(offer) => self.fetch_offered(replicated, &offer),
                None => {
                    self.offer_to_new_members(&replicated.snapshots);
                    self.write_if_due(&replicated.snapshots);
                }
            }
        }
    }

    /// Writes a snapshot if enough was applied since the last one. What fails is tried again when it is due the next time.
    fn write_if_due(&self, snapshots: &NodeSnapshots) {
        let limits = &self.local.config().metadata_log;
        if !self.since_snapshot.lock().is_due(self.image().next_offset(), limits, self.clock.instant()) {
            return;
        }
        let log_bytes_max = limits.max_record_bytes_between_snapshots.saturating_mul(LOG_KEPT_FACTOR);
        match self.write(snapshots, log_bytes_max) {
            Ok(Some(at)) => tracing::info!(end_offset = at.offset, "a snapshot of the metadata was written"),
            // The next look finds it due, too.
            Ok(None) => {}
            Err(error) => {
                self.since_snapshot.lock().restart(self.clock.instant());
                tracing::error!("a snapshot of the metadata: {error}");
            }
        }
    }

    /// Offers a snapshot that names all members, where a member has come since the last one: it cannot begin with that.
    fn offer_to_new_members(&self, snapshots: &NodeSnapshots) {
        if !self.decides() || !self.log.lacks_offer() {
            return;
        }
        if let Some((_, newest)) = snapshots.served.lock().last().cloned() {
            self.log.offer_snapshot(newest);
        }
        if !self.log.lacks_offer() {
            return;
        }
        let next_offset = self.image().next_offset();
        // Behind the change of members there has to be a record, at whose end a snapshot can end.
        if !self.log.had_all_members_at(next_offset) && self.commit(MetadataStateMachine::no_op).is_err() {
            return;
        }
        match self.write(snapshots, u64::MAX) {
            Ok(Some(at)) => tracing::info!(
                end_offset = at.offset,
                "a snapshot of the metadata was written, which names the nodes that have joined"
            ),
            // The next look finds it due, too.
            Ok(None) => {}
            Err(error) => tracing::error!("a snapshot of the metadata for a node that joins: {error}"),
        }
    }

    /// Writes a snapshot of the image, and removes the log before the previous snapshot. Returns `None` if the content is not
    /// durable on this node yet, or the log has restarted meanwhile.
    fn write(&self, snapshots: &NodeSnapshots, log_bytes_max: u64) -> Result<Option<Start>, WriteError> {
        // A copy, so that no change waits for the disk.
        let image = self.image();
        let Some(at) = self.log.remember_entry_before(image.next_offset())? else { return Ok(None) };
        self.await_durable(at.offset);
        if !self.log.may_end_snapshot(at) {
            return Ok(None);
        }
        let last_timestamp = self.since_snapshot.lock().restart(self.clock.instant());
        let bytes = encode(&self.quorum, image.snapshot(), last_timestamp, self.clock.wall_ms());
        drop(image);
        let mut files = snapshots.files.lock();
        let content = files.write(at, &bytes)?;
        snapshots.serve(&files, SnapshotFile::at(&snapshots.path, at), content);
        self.since_snapshot.lock().note_end(at.offset);
        self.snapshot_counts.note_written(bytes.len());
        self.log.offer_snapshot(content);
        let log_start = self.log.give_up_log(&files.ends(), log_bytes_max, &self.clock)?;
        files.remove_old(log_start)?;
        Ok(Some(at))
    }

    /// Waits a while for the log to be durable up to an offset.
    fn await_durable(&self, upto: i64) {
        let (sender, durable) = sync::channel();
        // There is no receiver any more if that takes too long.
        let tell = move |result| _ = sender.send(result);
        self.log.when_durable(upto, Durable::Call(Box::new(tell)));
        let _ = durable.recv_timeout(DURABLE_TIME);
    }

    /// Replaces the image by a snapshot that was fetched and at whose end the log has restarted. Under the gate. A snapshot that
    /// cannot be read ends the process: the next start says why.
    pub(crate) fn go_on_behind_snapshot(&self) -> Vec<MetadataChange> {
        let Some(replicated) = &self.replicated else { return Vec::new() };
        let begins_at = || self.log.ends().map(|ends| ends.log_start).ok();
        let Some(log_start) = begins_at() else { return Vec::new() };
        match self.load_ending_at(&replicated.snapshots, log_start) {
            Ok(newer) => {
                *self.since_snapshot.lock() = SinceSnapshot::new(log_start, &self.clock);
                self.snapshot_counts.note_loaded();
                tracing::info!(end_offset = log_start, "the metadata go on behind a snapshot");
                self.machine.apply(|machine| machine.replace(newer))
            }
            // It begins behind a later one by now.
            Err(_) if begins_at() != Some(log_start) => {
                replicated.news.tell();
                Vec::new()
            }
            Err(error) => end_process(&error.to_string()),
        }
    }

    fn load_ending_at(
        &self,
        snapshots: &NodeSnapshots,
        end_offset: i64,
    ) -> Result<MetadataStateMachine, ControllerError> {
        let unread = |source: io::Error| ControllerError::Snapshot {
            path: snapshots.path.clone(),
            source: source.into(),
        };
        let files = SnapshotFile::list(&*snapshots.storage, &snapshots.path).map_err(unread)?;
        let file = files.into_iter().rev().find(|file| file.end_offset == end_offset);
        let file = file.ok_or_else(|| unread(io::ErrorKind::NotFound.into()))?;
        Ok(snapshots.load(&file)?.0)
    }

    /// Answers the question of another node for a range of a snapshot; `None`: it makes no sense.
    pub(crate) fn answer_snapshot(&self, from: i32, question: &[u8]) -> Option<Vec<u8>> {
        let replicated = self.replicated.as_ref()?;
        let question = Question::decode(question)?;
        let range = replicated.snapshots.range(&question);
        self.log.note_snapshot_fetch(from, range.is_some());
        Some(fetch::encode_answer(range.as_deref()))
    }
}
