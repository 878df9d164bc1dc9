//! Appends to a partition: record batches of clients and coordinators, and the markers that end transactions.

use mainstem_log::{
    AppendError, Appended, Log, Origin, Prepared, TransactionMarker, VerificationGuard, VerificationRequest,
    prepare,
};
use mainstem_records::{LeaderEpoch, ProducerId, Scratch};
use mainstem_runtime::clock::{Clock, Now};
use mainstem_wire::ErrorCode;

use super::locked::Locked;
use super::stored::Stored;
use super::{NoLog, Partition, State};
use crate::attached::QueueRefusal;
use crate::errors::append_error_code;

/// About the bytes of a marker.
const MARKER_BYTES: usize = 78;

/// The outcome of an append.
pub struct AppendOutcome {
    /// Offsets, time stamp, whether it was a duplicate.
    pub appended: Appended,
    /// Even acks=1 waits for the sync: so many messages are unsynced as `flush.messages` allows.
    pub must_sync: bool,
    /// The leader epoch in which it was appended.
    pub epoch: LeaderEpoch,
    /// A sync is due, also where nothing waits for it.
    pub(super) sync_due: bool,
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no log.
    #[error(transparent)]
    NoLog(#[from] NoLog),
    /// Another node's replica leads, or none does.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// Validation or the log refused.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// An attached queue refused.
    #[error(transparent)]
    Queue(#[from] QueueRefusal),
    /// A local writer has the lock of an attached queue: [`Attached::append_later`] waits for it.
    #[error("a local writer holds the lock of the queue")]
    Blocked,
}

impl Refused {
    /// Kafka's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Refused::NoLog(no_log) => no_log.code(),
            Refused::NotLeader => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            Refused::Log(error) => append_error_code(error),
            Refused::Queue(refusal) => refusal.code(),
            Refused::Blocked => ErrorCode::REQUEST_TIMED_OUT,
        }
    }
}

impl AppendOutcome {
    /// The number of messages that were appended.
    pub fn messages(&self) -> u64 {
        u64::try_from(self.appended.last_offset + 1 - self.appended.base_offset).unwrap_or(0)
    }

    /// The outcome of an append to a queue, which is synced when that is waited for.
    pub fn of(appended: Appended, epoch: LeaderEpoch) -> Self {
        AppendOutcome { appended, must_sync: false, epoch, sync_due: false }
    }
}

impl Partition {
    /// Appends the record batch of a client or a coordinator, and wakes the fetches that can now read it.
    ///
    /// # Errors
    /// That of validation or of the log; nothing is appended then.
    pub fn append(
        &self,
        raw: &[u8],
        origin: Origin,
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_verified(raw, origin, VerificationGuard::NONE, clock, scratch)
    }

    /// As [`append`](Self::append), unless this node leads in another epoch.
    ///
    /// # Errors
    /// As [`append`](Self::append), and [`Refused::NotLeader`].
    pub fn append_in_epoch(
        &self,
        raw: &[u8],
        origin: Origin,
        epoch: LeaderEpoch,
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_batch(raw, origin, (VerificationGuard::NONE, Some(epoch)), clock, scratch)
    }

    /// As [`append`](Self::append); the batch may begin its producer's transaction here if `guard` is the one that
    /// [`begin_verification`](Self::begin_verification) gave out (KIP-890).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_verified(
        &self,
        raw: &[u8],
        origin: Origin,
        guard: VerificationGuard,
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_batch(raw, origin, (guard, None), clock, scratch)
    }

    /// As [`append_verified`](Self::append_verified), of what a coordinator has decided while this node led in an epoch: in another
    /// one, before which others may have decided something else, nothing is appended. Without an epoch in any.
    ///
    /// # Errors
    /// As [`append`](Self::append), and [`Refused::NotLeader`].
    pub fn append_decided(
        &self,
        raw: &[u8],
        (guard, epoch): (VerificationGuard, Option<LeaderEpoch>),
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_batch(raw, Origin::Coordinator, (guard, epoch), clock, scratch)
    }

    /// Appends a batch, which `guard` may have verified. Where an epoch is given, it is appended in that leader epoch alone.
    pub(super) fn append_batch(
        &self,
        raw: &[u8],
        origin: Origin,
        (guard, epoch): (VerificationGuard, Option<LeaderEpoch>),
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        let settings = self.settings();
        let mut rewritten = Vec::new();
        let now = clock.now();
        let batch =
            prepare(raw, &settings.log, now.wall_ms, origin, scratch, &mut rewritten)?.verified_by(guard);
        if let Some(queue) = &self.attached {
            return queue.append(&batch);
        }
        let mut state = self.lock();
        state.check_epoch(epoch)?;
        let appended = state.append(&batch, now);
        self.appended(state, appended)
    }

    /// Appends the marker that ends a producer's transaction, and wakes the fetches that can now read more.
    ///
    /// # Errors
    /// That of the log; nothing is appended then.
    pub fn append_marker(&self, marker: &TransactionMarker, clock: &Clock) -> Result<AppendOutcome, Refused> {
        self.append_marker_decided(marker, None, clock)
    }

    /// As [`append_marker`](Self::append_marker), in the epoch in which this node led when the coordinator of groups took it for
    /// its own, if there is one.
    ///
    /// # Errors
    /// As [`append_marker`](Self::append_marker), and [`Refused::NotLeader`].
    pub fn append_marker_decided(
        &self,
        marker: &TransactionMarker,
        epoch: Option<LeaderEpoch>,
        clock: &Clock,
    ) -> Result<AppendOutcome, Refused> {
        let now = clock.now();
        let mut state = self.lock();
        state.check_epoch(epoch)?;
        let appended = state.write(now, MARKER_BYTES, |log, leader_epoch| {
            log.append_marker(marker, leader_epoch, now.wall_ms, now.mono_ms)
        });
        self.appended(state, appended)
    }

    /// Gives the lock back after an append, and has done what follows from it. A disk that takes nothing may have had the
    /// replica give leadership away, or fail.
    pub(super) fn appended(
        &self,
        state: Locked<'_>,
        appended: Result<AppendOutcome, Refused>,
    ) -> Result<AppendOutcome, Refused> {
        match (&self.replication, &appended) {
            (Some(_), Ok(_) | Err(Refused::Log(_) | Refused::NoLog(NoLog::Offline))) => self.drive(state),
            _ => drop(state),
        }
        if appended.as_ref().is_ok_and(|outcome| outcome.sync_due) {
            self.request_flush();
        }
        appended
    }

    /// Begins to verify that a producer's transaction may begin in this partition (KIP-890). `None`: it is open here.
    ///
    /// # Errors
    /// `INVALID_PRODUCER_EPOCH` where a newer epoch of the producer was seen; why there is no log.
    pub fn begin_verification(
        &self,
        request: &VerificationRequest,
        clock: &Clock,
    ) -> Result<Option<VerificationGuard>, Refused> {
        if self.attached.is_some() {
            return Err(QueueRefusal::Transactional.into());
        }
        let mut state = self.lock();
        let log = match state.log.as_mut().map_err(|no_log| *no_log)? {
            Stored::Replicated(member) if !member.leads() => return Err(Refused::NotLeader),
            stored => &mut **stored,
        };
        if !log.config().transaction_verification && !request.supports_epoch_bump {
            return Ok(None);
        }
        Ok(log.begin_verification(request, clock.mono_ms())?)
    }

    /// Returns true if a guard still allows its producer to begin a transaction here: no marker has come since it was
    /// given out. Asked after the coordinator has confirmed the transaction, when all markers of the one before are
    /// there, the answer holds for as long as the transaction does.
    pub fn is_verification(&self, producer_id: ProducerId, guard: VerificationGuard) -> bool {
        self.lock().log.as_ref().is_ok_and(|log| log.is_verification(producer_id, guard))
    }
}

impl State {
    /// Refuses an append that was meant for another leader epoch than this one, if for any.
    pub(super) fn check_epoch(&self, epoch: Option<LeaderEpoch>) -> Result<(), Refused> {
        match epoch.is_none_or(|epoch| epoch == self.leader_epoch) {
            true => Ok(()),
            false => Err(Refused::NotLeader),
        }
    }

    pub(super) fn append(&mut self, batch: &Prepared<'_>, now: Now) -> Result<AppendOutcome, Refused> {
        self.write(now, batch.size(), |log, leader_epoch| log.append(batch, leader_epoch, now.mono_ms))
    }

    /// Writes `size` bytes, or about so many, to the log; `write` gets the leader epoch.
    pub(super) fn write(
        &mut self,
        now: Now,
        size: usize,
        write: impl FnOnce(&mut Log, LeaderEpoch) -> Result<Appended, AppendError>,
    ) -> Result<AppendOutcome, Refused> {
        let epoch = self.leader_epoch;
        let log = match self.log.as_mut().map_err(|no_log| *no_log)? {
            Stored::Alone(log) => log,
            Stored::Replicated(member) => {
                let appended = member.write(size, write)?;
                let log = member.replica.log();
                let (must_sync, sync_due) = (log.flush_messages_due(), log.flush_due(now.mono_ms));
                return Ok(AppendOutcome { appended, must_sync, epoch, sync_due });
            }
        };
        let before = log.ends().high_watermark;
        let appended = write(log, epoch)?;
        if log.ends().high_watermark > before && !self.fetches.is_empty() {
            self.fetches.moved_on(size, || log.ends());
        }
        let (must_sync, sync_due) = (log.flush_messages_due(), log.flush_due(now.mono_ms));
        Ok(AppendOutcome { appended, must_sync, epoch, sync_due })
    }
}
