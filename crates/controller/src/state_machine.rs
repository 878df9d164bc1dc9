//! The state machine: it decides ahead, applies committed records, and rolls back the others.

mod invariants;

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_wire::messages::abort_transaction_record::AbortTransactionRecord;
use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::cluster_state::ClusterState;
use super::error::ReplayError;
use super::image::{MetadataChange, MetadataImage, ResourceKind};
use super::node_view::NodeView;

/// Partitions that one request may create: all its records go into one batch.
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;

/// 128 random bits per call, from the driver.
pub type IdSource<'a> = &'a mut dyn FnMut() -> u128;

/// Asked before partitions are created or deleted, with their number. Returns true if the client's quota allows it (KIP-599).
pub type Permit<'a> = &'a mut dyn FnMut(usize) -> bool;

/// A decision: records to append, and a reply that waits for them.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "records that were decided must be appended or rolled back"]
pub struct Decision<R> {
    /// The offset of the first record: where the log must end now.
    pub base_offset: i64,
    /// Values of records, to be appended as one batch, so that all are in the log or none. May be empty.
    pub records: Vec<Vec<u8>>,
    /// The reply may be sent when everything below this offset is committed. A refusal waits too: it may depend on records that are not
    /// committed yet.
    pub reply_at: i64,
    /// The reply.
    pub reply: R,
}

/// The cluster's metadata: the committed state, and the state with all decisions. It holds nothing that belongs to one node: decisions get
/// the [`NodeView`] of the node that decides.
#[derive(Debug, Default, PartialEq)]
pub struct MetadataStateMachine {
    committed: ClusterState,
    ahead: ClusterState,
    /// Records that are decided and not committed, the oldest first.
    pending: VecDeque<Vec<u8>>,
}

impl MetadataStateMachine {
    /// Returns true if records were decided and are not committed.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The end of the log once everything that was decided is in it.
    pub fn ahead_offset(&self) -> i64 {
        self.ahead.image.next_offset()
    }

    /// The committed metadata, which readers see.
    pub fn image(&self) -> &MetadataImage {
        &self.committed.image
    }

    /// The committed metadata, for readers that take longer: their copy does not change.
    pub fn shared_image(&self) -> Arc<MetadataImage> {
        self.committed.image.clone()
    }

    /// The metadata with all decisions, committed or not. Requests are checked against it.
    pub(super) fn ahead(&self) -> &MetadataImage {
        &self.ahead.image
    }

    /// Applies a record read from the log at start, of the given offset. Offsets may be left out: those of control
    /// records.
    pub fn replay(&mut self, offset: i64, value: &[u8]) -> Result<MetadataChange, ReplayError> {
        assert!(self.pending.is_empty(), "{} records are decided already", self.pending.len());
        let expected = self.committed.image.next_offset();
        if offset < expected {
            return Err(ReplayError::OutOfOrder { offset, expected });
        }
        let (record, _) =
            MetadataRecord::decode(value).map_err(|error| ReplayError::Malformed { offset, error })?;
        let change = self.committed.apply(offset, value, &record)?;
        self.ahead.apply(offset, value, &record)?;
        Ok(change)
    }

    /// Applies a record of a snapshot that holds everything below `end_offset`. To be called before all records of the log.
    pub fn load(&mut self, end_offset: i64, value: &[u8]) -> Result<(), ReplayError> {
        assert!(self.pending.is_empty(), "{} records are decided already", self.pending.len());
        let offset = end_offset - 1;
        if offset < 0 || self.committed.image.next_offset() > end_offset {
            return Err(ReplayError::OutOfOrder { offset, expected: self.committed.image.next_offset() });
        }
        let (record, _) =
            MetadataRecord::decode(value).map_err(|error| ReplayError::Malformed { offset, error })?;
        self.committed.apply(offset, value, &record)?;
        self.ahead.apply(offset, value, &record)?;
        Ok(())
    }

    /// Aborts the transaction that a writer of the log has begun and not ended (KIP-868). Nothing else can be decided
    /// before: it would be part of that transaction.
    pub fn abort_transaction(&mut self) -> Decision<()> {
        let abort = self.ahead.is_in_transaction().then(|| {
            MetadataRecord::AbortTransactionRecord(Box::new(AbortTransactionRecord {
                reason: Some("its writer ended before it".into()),
                ..AbortTransactionRecord::default()
            }))
        });
        self.decide(abort.into_iter().collect(), ())
    }

    /// Adds the users that a tool has written for a new cluster (`kafka-storage format --add-scram`), from the records of its file; returns
    /// their number. Its records of features are for Kafka, and are ignored. To be called before any other record.
    pub fn bootstrap(&mut self, values: &[Vec<u8>]) -> Decision<Result<usize, ReplayError>> {
        match self.users_of(values) {
            Ok(users) => {
                let count = users.len();
                self.decide(users, Ok(count))
            }
            Err(error) => self.decide(Vec::new(), Err(error)),
        }
    }

    /// A record that changes nothing, behind which a snapshot can end.
    pub fn no_op(&mut self) -> Decision<()> {
        self.decide(vec![MetadataRecord::NoOpRecord(Box::default())], ())
    }

    /// Stores the secret for the salts of unknown users in the metadata, as `mainstem.scram.decoy.secret` of the cluster, so that they are
    /// the same on every node and after every start. Nothing is decided if one is set, or if no listener has SASL. `draw` makes a random
    /// text.
    pub fn draw_decoy_secret(&mut self, view: &NodeView, draw: impl FnOnce() -> String) -> Decision<()> {
        let config = view.config(self.ahead());
        let is_wanted = config.has_sasl() && config.authentication.decoy_secret.is_none();
        let record = is_wanted.then(|| {
            MetadataRecord::ConfigRecord(Box::new(ConfigRecord {
                resource_type: ResourceKind::Broker as i8,
                name: "mainstem.scram.decoy.secret".into(),
                value: Some(draw().into()),
                ..ConfigRecord::default()
            }))
        });
        self.decide(record.into_iter().collect(), ())
    }

    fn users_of<'a>(&self, values: &'a [Vec<u8>]) -> Result<Vec<MetadataRecord<'a>>, ReplayError> {
        let mut users = Vec::new();
        // Only records that can be applied may be decided.
        let mut trial = MetadataImage::clone(&self.ahead.image);
        for value in values {
            let (record, _) =
                MetadataRecord::decode(value).map_err(|error| ReplayError::Malformed { offset: 0, error })?;
            if let MetadataRecord::UserScramCredentialRecord(user) = &record {
                trial.set_scram(user).map_err(|problem| ReplayError::Inconsistent { offset: 0, problem })?;
                users.push(record);
            }
        }
        Ok(users)
    }

    /// Sets the offset of the log's next record: the records before it do not concern the state machine, such as control records. Only
    /// without pending decisions.
    pub fn skip_to(&mut self, offset: i64) {
        assert!(self.pending.is_empty(), "{} records are decided already", self.pending.len());
        for state in [&mut self.committed, &mut self.ahead] {
            state.skip_to(offset);
        }
    }

    /// Applies the records below `upto`, which are committed, and returns the changes, oldest first.
    pub fn committed(&mut self, upto: i64) -> Vec<MetadataChange> {
        let end = self.ahead.image.next_offset();
        assert!(upto <= end, "nothing was decided at {upto}, the end is {end}");
        let mut changes = Vec::new();
        while self.committed.image.next_offset() < upto {
            let value =
                self.pending.pop_front().expect("as many records are pending as the images differ by");
            let (record, _) = MetadataRecord::decode(&value).expect("this machine encoded the record");
            let offset = self.committed.image.next_offset();
            let change = self.committed.apply(offset, &value, &record);
            changes.push(change.expect("the record was applied ahead to the same state"));
        }
        changes
    }

    /// Drops all decisions that are not committed. The log must be truncated to the returned offset; replies to dropped decisions must not
    /// be sent.
    pub fn rollback(&mut self) -> i64 {
        self.pending.clear();
        self.ahead = self.committed.clone();
        self.committed.image.next_offset()
    }

    /// Applies records to the state ahead.
    pub(super) fn decide<R>(&mut self, records: Vec<MetadataRecord<'_>>, reply: R) -> Decision<R> {
        let base_offset = self.ahead.image.next_offset();
        let mut values = Vec::with_capacity(records.len());
        for record in &records {
            let mut value = Vec::new();
            record
                .encode(&mut value, version_of(record))
                .expect("the state machine sets only fields that the version has");
            let offset = self.ahead.image.next_offset();
            let applied = self.ahead.apply(offset, &value, record);
            applied.expect("the state machine decides only what can be applied");
            values.push(value);
        }
        self.pending.extend(values.iter().cloned());
        Decision { base_offset, records: values, reply_at: self.ahead.image.next_offset(), reply }
    }
}

/// The version in which Kafka 4.3 writes a record at metadata.version 30 (4.3-IV0).
pub(super) fn version_of(record: &MetadataRecord<'_>) -> i16 {
    match record {
        MetadataRecord::RegisterBrokerRecord(_) => 4,
        MetadataRecord::BrokerRegistrationChangeRecord(_) => 3,
        MetadataRecord::PartitionRecord(_) | MetadataRecord::PartitionChangeRecord(_) => 2,
        _ => 0,
    }
}
