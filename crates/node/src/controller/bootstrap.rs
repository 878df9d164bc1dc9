//! `bootstrap.checkpoint`: what `kafka-storage format` has written into a directory of a cluster that has not begun. Its users
//! (`--add-scram`) are there before the first connection; its levels of features are those of Kafka.

use std::io::ErrorKind;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine};
use mainstem_controller::snapshot_format::{QuorumRecords, SnapshotRecord, encode};
use mainstem_controller::{MetadataImage, MetadataStateMachine, user_record};
use mainstem_log::dir::LogDir;
use mainstem_log::storage::Storage;
use mainstem_replication::snapshots::SnapshotFile;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::snapshots::{self, SnapshotError};
use super::{Controller, ControllerError};
use mainstem_runtime::random;

const FILE: &str = "bootstrap.checkpoint";

/// The records of the file in a log directory; none where there is no file.
///
/// # Errors
/// When it cannot be read or is damaged.
pub(crate) fn read(dir: &LogDir) -> Result<Vec<Vec<u8>>, ControllerError> {
    read_at(&**dir.storage(), dir.path())
}

/// The metadata that a cluster begins with: the users of the file in a directory.
///
/// # Errors
/// When it cannot be read or is damaged, or one of the records is malformed.
pub fn bootstrap_users(storage: &dyn Storage, dir: &Path) -> Result<MetadataImage, ControllerError> {
    let mut machine = MetadataStateMachine::default();
    let values = read_at(storage, dir)?;
    for (offset, value) in (0..).zip(values.iter().filter(|value| is_user(value))) {
        machine.replay(offset, value)?;
    }
    Ok(machine.image().clone())
}

fn read_at(storage: &dyn Storage, dir: &Path) -> Result<Vec<Vec<u8>>, ControllerError> {
    let file = SnapshotFile { end_offset: 0, epoch: 0, path: dir.join(FILE) };
    let mut values = Vec::new();
    let read = snapshots::read(&file, storage, |record| {
        if let SnapshotRecord::Metadata(value) = record {
            values.push(value.to_vec());
        }
    });
    match read {
        Ok(()) => Ok(values),
        Err(SnapshotError::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(ControllerError::Snapshot { path: file.path, source }),
    }
}

/// The name and the content of the file with which a log directory begins that has these users: those that
/// `kafka-storage format --add-scram` would make. `wall_ms` is the time of its records, in milliseconds since 1970.
pub fn bootstrap_file(
    users: &[(&str, ScramMechanism, &ScramCredential)],
    wall_ms: i64,
) -> (&'static str, Vec<u8>) {
    let records = users.iter().map(|(user, mechanism, credential)| user_record(user, *mechanism, credential));
    (FILE, encode(&QuorumRecords::default(), records, wall_ms, wall_ms))
}

/// Number of the records that are users.
pub(crate) fn users(values: &[Vec<u8>]) -> usize {
    values.iter().filter(|value| is_user(value)).count()
}

fn is_user(value: &[u8]) -> bool {
    matches!(MetadataRecord::decode(value), Ok((MetadataRecord::UserScramCredentialRecord(_), _)))
}

/// Text of 256 random bits.
pub(crate) fn random_secret() -> String {
    BASE64_STANDARD.encode(random::bytes::<32>())
}

impl Controller {
    /// Writes the users of the file into the metadata log, where that is empty.
    ///
    /// # Errors
    /// When a record is malformed, or the log cannot be written.
    pub(crate) fn take_on_users(&self) -> Result<(), ControllerError> {
        let values = std::mem::take(&mut *self.bootstrap.lock());
        if values.is_empty() {
            return Ok(());
        }
        let taken = self.commit(|machine| machine.bootstrap(&values)).map_err(ControllerError::Register)?;
        let users = taken?;
        if users > 0 {
            tracing::info!(users, "the cluster begins with the users of {FILE}");
        }
        Ok(())
    }
}
