//! One partition on disk: segments, indexes, recovery, retention, producer state, epochs.
//!
//! [`LogDir`](dir::LogDir) is a directory of partitions with what they share: lock, identity, flusher, checkpoints.
//! [`Log`] is one partition. [`prepare`] checks a produced batch without any lock, [`Log::append`] writes it,
//! [`Log::read`] plans the range of a file that answers a fetch. docs/format.md has the byte diagrams.
//!
//! Architecture invariant: no network and no async. All file operations go through [`storage`], so that tests can
//! take the disk's place. Files are readable by Kafka's own tools.

pub mod boot;
pub mod checkpoint;
pub mod compaction;
pub mod descriptors;
pub mod dir;
pub mod flusher;
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod fuzz_texts;
pub mod meta_properties;
pub mod partition_dir;
pub mod partition_metadata;
pub mod placement;
pub mod pool;
pub mod segment_record;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod storage;
pub mod strays;

mod aborted;
mod append;
mod batch_walk;
mod config;
mod end_transaction;
mod epoch_checkpoint;
mod error;
mod export;
mod files;
mod flush;
mod future;
mod import;
mod index;
mod inventory;
mod leader_epochs;
mod log;
mod maintenance;
mod marker;
mod offset_index;
mod producer_budget;
mod producer_ledger;
mod producer_snapshot;
mod producer_state;
mod read;
mod read_mode;
mod recent;
mod recovery;
mod recovery_watch;
mod replay;
mod retention;
mod scan;
mod segment;
mod time_index;
mod timestamps;
mod transaction_index;
mod truncate;
mod unstable;
mod uuid;
mod verification;
mod walk;

pub use append::{Appended, Prepared, prepare};
pub use batch_walk::StoredBatch;
pub use config::LogConfig;
pub use end_transaction::{LATE_TRANSACTION_BUFFER_MS, TransactionMarker};
pub use epoch_checkpoint::EpochsToWrite;
pub use error::{AppendError, LogError, ReadError};
pub use export::{Export, ExportError, ExportedFile};
pub use future::{CopyError, CopyPlan, CopyStart, FutureLog, TakeOverError, TakenOver};
pub use import::{FoundImport, Import, ImportEnds, ImportError, ImportId, ImportedLog};
pub use leader_epochs::{EpochEnd, EpochEntry, LeaderEpochs};
pub use log::{Ends, Log, PartitionIdentity};
pub use mainstem_records::Origin;
pub use maintenance::{Maintained, Maintenance};
pub use producer_budget::ProducerBudget;
pub use producer_ledger::ProducerLedger;
pub use producer_state::{BatchMetadata, ProducerEntry, ProducerState};
pub use read::{FileRange, PendingRead, ReadBound, ReadPlan};
pub use recovery::Recovery;
pub use recovery_watch::RecoveryWatch;
pub use retention::{DeleteRecordsError, RetentionSurvey};
pub use timestamps::{FoundOffset, TimestampSearch};
pub use transaction_index::AbortedTransaction;
pub use verification::{VerificationGuard, VerificationRequest};
