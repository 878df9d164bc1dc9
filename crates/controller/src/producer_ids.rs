//! Producer ids: handed out one by one from blocks. Each block is persisted before its first id is used, so that no crash hands out an id
//! twice.

use std::ops::Range;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::producer_ids_record::ProducerIdsRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::state_machine::{Decision, MetadataStateMachine};

/// Ids in one block, as in Kafka. After a crash at most this many are never used.
pub const PRODUCER_ID_BLOCK_SIZE: i64 = 1000;

/// Ids that no other node has, once the record that takes them is committed.
pub type ProducerIdBlock = Range<i64>;

impl MetadataStateMachine {
    /// Takes the next block for a node. Its ids may be used only when the decision is committed.
    pub fn allocate_producer_ids(&mut self, node: i32) -> Decision<Result<ProducerIdBlock, ApiError>> {
        let first = self.ahead().next_producer_id();
        let Some(broker) = self.ahead().broker(node) else {
            let message = format!("Broker {node} is not registered.");
            return self.decide(vec![], Err(ApiError::new(ErrorCode::BROKER_ID_NOT_REGISTERED, message)));
        };
        let Some(end) = first.checked_add(PRODUCER_ID_BLOCK_SIZE) else {
            let message = "Exhausted all producer ids.";
            return self.decide(vec![], Err(ApiError::new(ErrorCode::UNKNOWN_SERVER_ERROR, message)));
        };
        let record = ProducerIdsRecord {
            broker_id: node,
            broker_epoch: broker.epoch,
            next_producer_id: end,
            ..ProducerIdsRecord::default()
        };
        self.decide(vec![MetadataRecord::ProducerIdsRecord(Box::new(record))], Ok(first..end))
    }
}

/// The ids of committed blocks that are left to hand out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProducerIds {
    block: Range<i64>,
    next_block: Range<i64>,
}

impl ProducerIds {
    /// The next id; `None` until a further block was added.
    pub fn take(&mut self) -> Option<i64> {
        if self.block.is_empty() {
            self.block = std::mem::take(&mut self.next_block);
        }
        self.block.next()
    }

    /// Adds a block whose record is committed. One at a time: only when [`ProducerIds::wants_block`].
    pub fn add(&mut self, block: ProducerIdBlock) {
        assert!(self.next_block.is_empty(), "a block was added that was not asked for: {block:?}");
        assert!(block.start >= self.block.end, "blocks rise: {block:?} after {:?}", self.block);
        self.next_block = block;
    }

    /// Returns true if a further block should be taken now, so that clients do not wait for it: a tenth of the block is left.
    pub fn wants_block(&self) -> bool {
        self.next_block.is_empty() && self.block.end - self.block.start <= PRODUCER_ID_BLOCK_SIZE / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_over_blocks() {
        let mut ids = ProducerIds::default();
        assert!(ids.wants_block());
        assert_eq!(ids.take(), None);
        ids.add(0..1000);
        assert!(!ids.wants_block(), "the block was just added");
        for id in 0..900 {
            assert_eq!(ids.take(), Some(id));
        }
        assert!(ids.wants_block());
        ids.add(5000..6000);
        assert!(!ids.wants_block());
        let rest: Vec<_> = std::iter::from_fn(|| ids.take()).collect();
        assert_eq!((rest.len(), rest[99], rest[100], rest[1099]), (1100, 999, 5000, 5999));
        assert_eq!(ids.take(), None);
    }
}
