//! Copies what stays of a segment's batches.

use super::cleaner::{CleanError, Cleaned, LogAccess};
use super::output::Output;
use super::round::Round;
use super::rules::{Circumstances, Rules, Verdict, WhenEmpty};
use super::transactions::Transactions;
use crate::error::LogError;
use mainstem_records::{
    Batch, BatchHeader, ControlRecordType, InvalidBatch, ProducerId, RecompressError, RecordFilter, Scratch,
    empty_batch,
};

/// A copy of a group's batches to their new segment.
pub(super) struct Copy<'c, 'b> {
    pub(super) filter: &'c mut RecordFilter,
    pub(super) rules: &'c Rules<'c>,
    pub(super) transactions: &'c mut Transactions,
    pub(super) output: &'c mut Output<'b>,
}

impl Copy<'_, '_> {
    /// Copies a segment; `is_last`: it has the last batch of the group.
    pub(super) fn segment<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        number: usize,
        is_last: bool,
        io_bytes: usize,
        buffer: &mut Vec<u8>,
        cleaned: &mut Cleaned,
    ) -> Result<(), CleanError> {
        let len = u64::from(round.segments[number].len);
        let mut reader = round.reader(number, 0, io_bytes, buffer)?;
        let path = round.log_path(number);
        cleaned.bytes_before += len;
        while let Some((position, batch)) = reader.next()? {
            let ends_group = is_last && position + batch.size() as u64 == len;
            let header = batch.header();
            let verdict = self.judge(&batch, &header, ends_group);
            let kept = self.batch(&batch, &header, verdict).map_err(|error| match error {
                CopyError::Log(error) => CleanError::Log(error),
                CopyError::Batch(error) => CleanError::Batch { path: path.clone(), position, error },
            })?;
            cleaned.records_before += batch.record_count().max(0) as u64;
            cleaned.records_after += u64::from(kept);
            let written = self.output.write(io_bytes)?;
            round.spend(reader.take_unpaid() + written)?;
        }
        Ok(())
    }

    fn judge(&mut self, batch: &Batch<'_>, header: &BatchHeader, is_last: bool) -> Verdict {
        let (attributes, last_offset) = (header.attributes, header.last_offset());
        let producer_id = ProducerId::new(header.producer_id);
        let can_go = if attributes.is_control() {
            let marker = self.transactions.on_marker(producer_id, control_type(batch), last_offset);
            if let Some(aborted) = marker.aborted {
                self.output.note_aborted(&aborted);
            }
            marker.can_go
        } else {
            self.transactions.on_batch(producer_id, attributes.is_transactional(), last_offset)
        };
        self.rules.judge(header, Circumstances { can_go, is_last })
    }

    /// Copies what stays of a batch; returns how many records that is.
    fn batch(&mut self, batch: &Batch<'_>, header: &BatchHeader, verdict: Verdict) -> Result<u32, CopyError> {
        let selection = match verdict.discard_records {
            true => None,
            false => Some(self.filter.select(batch, |record| self.rules.keeps(header, &record))?),
        };
        let Some(selection) = selection.filter(|selection| selection.kept > 0) else {
            if verdict.when_empty == WhenEmpty::Stays {
                let empty = empty_batch(batch);
                self.output.buffer().extend_from_slice(&empty);
                self.note(&empty)?;
            }
            return Ok(0);
        };
        let horizon = self.rules.new_horizon(header, selection.has_tombstone, verdict.outlived);
        let start = self.output.buffer().len();
        match selection.is_whole() && horizon.is_none() {
            true => self.output.buffer().extend_from_slice(batch.bytes()),
            false => self.filter.write(batch, &selection, horizon, self.output.buffer())?,
        }
        let header = BatchHeader::read(&self.output.buffer()[start..]).expect("it was written whole");
        self.output.note(&header)?;
        Ok(selection.kept)
    }

    fn note(&mut self, batch: &[u8]) -> Result<(), LogError> {
        self.output.note(&BatchHeader::read(batch).expect("it was written whole"))
    }
}

/// The reason for which a batch is not copied.
enum CopyError {
    Log(LogError),
    Batch(InvalidBatch),
}

impl From<LogError> for CopyError {
    fn from(error: LogError) -> CopyError {
        CopyError::Log(error)
    }
}

impl From<InvalidBatch> for CopyError {
    fn from(error: InvalidBatch) -> CopyError {
        CopyError::Batch(error)
    }
}

impl From<RecompressError> for CopyError {
    fn from(error: RecompressError) -> CopyError {
        CopyError::Batch(match error {
            RecompressError::Invalid(error) => error,
            RecompressError::Build(error) => InvalidBatch::Header(error.to_string()),
        })
    }
}

/// Returns the type of a control batch; `None` if its record is gone. A record that does not decode counts as unknown, and
/// stays.
pub(super) fn control_type(batch: &Batch<'_>) -> Option<ControlRecordType> {
    if batch.record_count() == 0 {
        return None;
    }
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 1 << 16, &mut Scratch::new());
    let kind = records.ok().and_then(|mut records| {
        let record = records.next()?.ok()?;
        ControlRecordType::parse(record.key).ok()
    });
    Some(kind.unwrap_or(ControlRecordType::Unknown(-1)))
}
