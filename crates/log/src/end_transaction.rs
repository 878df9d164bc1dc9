//! The log's part in the end of a transaction: the marker, and the entry in the transaction index when it aborts.
//!
//! The entry is written right behind the marker. A crash may come between the two: what the index lacks of the records
//! behind the last snapshot of the producers is derived from them at the next start.

use crate::append::{Appended, Prepared};
use crate::error::AppendError;
use crate::files::FileKind;
use crate::log::Log;
use crate::producer_state::ProducerBatch;
use crate::storage::{OpenMode, write_all_at};
use crate::transaction_index::position_of;
use crate::verification::{VERIFICATIONS_MAX, VerificationGuard, VerificationRequest};
use mainstem_records::{
    Batch, CoordinatorEpoch, EndTransactionMarker, LeaderEpoch, ProducerEpoch, ProducerId, TimestampType,
    end_transaction_batch,
};
use std::io;

/// The time in ms beyond `transaction.max.timeout.ms` after which an open transaction counts as late. The coordinator looks
/// only now and then for transactions that timed out.
pub const LATE_TRANSACTION_BUFFER_MS: i64 = 5 * 60 * 1000;

/// The end of a producer's transaction in one partition, as a coordinator decides it (WriteTxnMarkers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionMarker {
    /// The producer.
    pub producer_id: ProducerId,
    /// The epoch that the marker has: the producer's, or a newer one, which fences it.
    pub producer_epoch: ProducerEpoch,
    /// The epoch of the coordinator.
    pub coordinator_epoch: CoordinatorEpoch,
    /// Commit, or abort.
    pub committed: bool,
    /// `transaction.version` of the transaction: from 2 on the marker has a newer epoch than all of its batches.
    pub transaction_version: i16,
}

impl Log {
    /// Appends a marker under `leader_epoch`, and so ends the producer's transaction in this partition. One without an
    /// open transaction is appended all the same. Sizes that the topic's configuration asks for do not concern it.
    ///
    /// # Errors
    /// [`AppendError::InvalidProducerEpoch`] and [`AppendError::CoordinatorFenced`] for a marker that is late;
    /// otherwise as [`Log::append`], and nothing has ended.
    pub fn append_marker(
        &mut self,
        marker: &TransactionMarker,
        leader_epoch: LeaderEpoch,
        wall_ms: i64,
        mono_ms: u64,
    ) -> Result<Appended, AppendError> {
        let TransactionMarker { producer_id, producer_epoch, coordinator_epoch, committed, .. } = *marker;
        let end = EndTransactionMarker { committed, coordinator_epoch };
        let bytes = end_transaction_batch(producer_id.get(), producer_epoch.get(), end, wall_ms);
        let (batch, _) = Batch::split_first(&bytes).expect("what was just built is a batch");
        let log_append_time = (self.config.timestamp_type == TimestampType::LogAppendTime).then_some(wall_ms);
        let prepared = Prepared::marker(batch, log_append_time, marker.transaction_version);
        self.append(&prepared, leader_epoch, mono_ms)
    }

    /// Begins the verification of a transaction's first batch (KIP-890). `None`: the producer's transaction is open here, and
    /// the coordinator knows of it. Otherwise the coordinator has to confirm the partition, and the batch must carry the
    /// guard ([`Prepared::verified_by`]). Until then each call returns the same guard for the producer.
    ///
    /// # Errors
    /// [`AppendError::InvalidProducerEpoch`] if the log has seen a newer epoch of the producer.
    pub fn begin_verification(
        &mut self,
        request: &VerificationRequest,
        mono_ms: u64,
    ) -> Result<Option<VerificationGuard>, AppendError> {
        let VerificationRequest { producer_id, producer_epoch: epoch, .. } = *request;
        if let Some(known) = self.producers.get(producer_id) {
            if epoch < known.epoch {
                return Err(AppendError::InvalidProducerEpoch { producer_id, epoch, current: known.epoch });
            }
            if known.is_open_in(epoch) {
                return Ok(None);
            }
        }
        Ok(Some(self.verifications.begin(request, mono_ms, VERIFICATIONS_MAX)))
    }

    /// Returns true while a guard of [`Log::begin_verification`] allows its producer to begin a transaction here: until
    /// that begins, or a marker comes.
    pub fn is_verification(&self, producer_id: ProducerId, guard: VerificationGuard) -> bool {
        self.verifications.of(producer_id).is_some_and(|verification| verification.guard == guard)
    }

    /// Returns true if the oldest open transaction has had no batch for longer than any may be open. Its coordinator has
    /// probably lost it. Wall time; `transaction_timeout_max_ms` is the broker's `transaction.max.timeout.ms`.
    pub fn has_late_transaction(&self, wall_ms: i64, transaction_timeout_max_ms: i64) -> bool {
        let oldest = self.producers.open_transactions().next();
        let entry = oldest.and_then(|(_, producer_id)| self.producers.get(producer_id));
        let most = transaction_timeout_max_ms.saturating_add(LATE_TRANSACTION_BUFFER_MS);
        entry.is_some_and(|entry| {
            entry.last_timestamp > 0 && wall_ms.saturating_sub(entry.last_timestamp) > most
        })
    }

    /// Writes what a marker at an offset aborts to the transaction index of the active segment.
    pub(crate) fn index_aborted(&mut self, marker: &ProducerBatch, offset: i64) -> io::Result<()> {
        let Some(aborted) = self.producers.aborted_by(marker, offset) else { return Ok(()) };
        let segment = self.segments.last_mut().expect("a log has a segment at all times");
        let file = match self.active.transaction_index.take() {
            Some(file) => file,
            None => {
                let path = self.files.path(segment.base_offset, FileKind::TransactionIndex);
                self.flush.add_directory(&self.files.dir);
                self.files.storage.open(&path, OpenMode::Create)?
            }
        };
        let mut entry = Vec::new();
        aborted.encode(&mut entry);
        let written = write_all_at(&*file, &entry, position_of(segment.aborted));
        self.active.transaction_index = Some(file);
        written?;
        segment.aborted += 1;
        self.aborted.push(aborted);
        Ok(())
    }
}
