//! The files of partitions on disk, read and never written: docs/format.md describes them.

mod epochs;
mod index;
mod losses;
mod partition;
mod segment;
mod snapshot;

pub(crate) use epochs::{EpochEntry, LEADER_EPOCH_CHECKPOINT, read_epochs};
pub(crate) use index::{IndexEntry, IndexKind, index_entries};
pub(crate) use losses::{is_compacted, losses_of};
pub(crate) use partition::{FileKind, PartitionDir, SegmentFile, check_regular, find_partitions};
pub(crate) use segment::{Step, Walk, ZeroTail};
pub(crate) use snapshot::check_snapshot;
#[cfg(test)]
pub(crate) use snapshot::tests::snapshot as sample_snapshot;
