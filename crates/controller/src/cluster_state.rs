//! The cluster's state, which follows from the metadata records alone. Equal records make equal states on every node, whatever its
//! configuration.

use std::sync::Arc;

use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::{Inconsistency, ReplayError};
use super::image::{MetadataChange, MetadataImage};

/// An image, and the records that wait for the end of their transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClusterState {
    /// Shared with readers, who see it as it was; while there are any, a change makes a copy.
    pub(super) image: Arc<MetadataImage>,
    /// Values of the records of a transaction that has begun and not ended (KIP-868): all of them are applied, or none.
    transaction: Option<Vec<Vec<u8>>>,
}

impl ClusterState {
    /// Returns true if a transaction has begun and not ended.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Applies a record, or keeps it until its transaction ends. `value` is the record encoded.
    ///
    /// # Errors
    /// When it contradicts the state. Then nothing is changed.
    pub(super) fn apply(
        &mut self,
        offset: i64,
        value: &[u8],
        record: &MetadataRecord<'_>,
    ) -> Result<MetadataChange, ReplayError> {
        match (record, &mut self.transaction) {
            (MetadataRecord::BeginTransactionRecord(_), None) => self.transaction = Some(Vec::new()),
            (MetadataRecord::EndTransactionRecord(_), Some(_)) => self.end_transaction(offset)?,
            (MetadataRecord::AbortTransactionRecord(_), Some(_)) => self.transaction = None,
            (MetadataRecord::BeginTransactionRecord(_), Some(_)) => {
                let problem = Inconsistency::Transaction(record.name());
                return Err(ReplayError::Inconsistent { offset, problem });
            }
            (_, Some(records)) => records.push(value.to_vec()),
            (_, None) => return self.apply_one(offset, record),
        }
        self.skip_to(offset + 1);
        Ok(MetadataChange::None)
    }

    /// Sets the offset of the next record.
    pub(super) fn skip_to(&mut self, offset: i64) {
        Arc::make_mut(&mut self.image).skip_to(offset);
    }

    /// Applies the records of the transaction on a copy: all of them, or none.
    fn end_transaction(&mut self, offset: i64) -> Result<(), ReplayError> {
        let mut ended = self.clone();
        for value in ended.transaction.take().unwrap_or_default() {
            let (record, _) =
                MetadataRecord::decode(&value).map_err(|error| ReplayError::Malformed { offset, error })?;
            ended.apply_one(offset, &record)?;
        }
        *self = ended;
        Ok(())
    }

    fn apply_one(&mut self, offset: i64, record: &MetadataRecord<'_>) -> Result<MetadataChange, ReplayError> {
        let image = Arc::make_mut(&mut self.image);
        image.apply(offset, record).map_err(|problem| ReplayError::Inconsistent { offset, problem })
    }
}
