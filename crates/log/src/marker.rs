//! `.kafka_cleanshutdown`: the directory was stopped in order, everything in it is on disk.
//!
//! Stop: all data and names of all partitions are synced; then checkpoints are written and synced; then the marker
//! is written beside its place, synced, renamed and the directory synced. Start: the marker is removed and the
//! directory synced before anything else is written. So whichever steps a power cut undoes, a marker that is found
//! stands for a directory to which nothing was written since.

use crate::storage::{Storage, read_small_file, replace_file};
use serde_json::{Value, json};
use std::io;
use std::path::Path;

/// Name of the file in the log directory; Kafka's.
pub(crate) const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";

/// Ours has about 90 bytes.
const LEN_MAX: usize = 4096;

/// Kafka's value for an epoch that is not known.
pub(crate) const BROKER_EPOCH_UNKNOWN: i64 = -1;

/// The contents of a clean-shutdown marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CleanShutdown {
    /// Epoch of the broker's registration when it stopped (KIP-966); -1 when not known.
    pub(crate) broker_epoch: i64,
    /// The boot under which the directory was stopped; absent in a marker written by Kafka, whose reader ignores it.
    pub(crate) boot_id: Option<String>,
    /// CRC-32C of the record of closed segments that goes with it; absent in a marker written by Kafka.
    pub(crate) segments_crc: Option<u32>,
}

impl CleanShutdown {
    /// A marker for a stop under this boot, with the record of this checksum.
    pub(crate) fn new(boot_id: &str, broker_epoch: i64, segments_crc: u32) -> CleanShutdown {
        CleanShutdown { broker_epoch, boot_id: Some(boot_id.to_owned()), segments_crc: Some(segments_crc) }
    }

    /// Reads the marker. `None` when there is none, or one that was not completed.
    pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> io::Result<Option<CleanShutdown>> {
        match read_small_file(storage, &dir.join(CLEAN_SHUTDOWN), LEN_MAX) {
            Ok(bytes) => Ok(parse(&bytes)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the marker durably. Everything that it stands for must be durable before.
    pub(crate) fn write(&self, storage: &dyn Storage, dir: &Path) -> io::Result<()> {
        replace_file(storage, &dir.join(CLEAN_SHUTDOWN), self.format().as_bytes())
    }

    /// Removes the marker, and says whether there was one. It is gone for good once the directory is synced.
    pub(crate) fn remove(storage: &dyn Storage, dir: &Path) -> io::Result<bool> {
        match storage.remove_file(&dir.join(CLEAN_SHUTDOWN)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn format(&self) -> String {
        let mut marker = json!({ "version": 0, "brokerEpoch": self.broker_epoch });
        if let Some(boot_id) = &self.boot_id {
            marker["bootId"] = json!(boot_id);
        }
        if let Some(crc) = self.segments_crc {
            marker["segmentsCrc"] = json!(crc);
        }
        marker.to_string()
    }
}

/// A marker of a newer version is none to us: what it promises is not known.
fn parse(bytes: &[u8]) -> Option<CleanShutdown> {
    let marker: Value = serde_json::from_slice(bytes).ok()?;
    if marker.get("version")?.as_i64()? != 0 {
        return None;
    }
    Some(CleanShutdown {
        broker_epoch: marker.get("brokerEpoch").and_then(Value::as_i64).unwrap_or(BROKER_EPOCH_UNKNOWN),
        boot_id: marker.get("bootId").and_then(Value::as_str).map(str::to_owned),
        segments_crc: marker.get("segmentsCrc").and_then(Value::as_u64).and_then(|crc| crc.try_into().ok()),
    })
}

/// Fuzz body: what is read is read again from what would be written.
pub(crate) fn fuzz(data: &[u8]) {
    if let Some(marker) = parse(data) {
        assert_eq!(parse(marker.format().as_bytes()), Some(marker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_marker_counts() {
        let check = |text: &str, expected: Option<(i64, Option<&str>)>| {
            let expected = expected.map(|(broker_epoch, boot_id)| CleanShutdown {
                broker_epoch,
                boot_id: boot_id.map(str::to_owned),
                segments_crc: None,
            });
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        };
        // As Kafka 4.3 writes it.
        check(r#"{"version":0,"brokerEpoch":17}"#, Some((17, None)));
        check(r#"{"version":0,"brokerEpoch":-1,"bootId":"b"}"#, Some((-1, Some("b"))));
        check(r#"{"version":0,"brokerEpoch":null}"#, Some((-1, None)));
        check(r#"{"version":1,"brokerEpoch":17}"#, None);
        check("{}", None);
        check("", None);
        let ours = CleanShutdown::new("5a0c6e1e", BROKER_EPOCH_UNKNOWN, 7).format();
        for cut in 0..ours.len() {
            check(&ours[..cut], None);
        }
    }

    #[test]
    fn a_marker_survives_its_file() {
        let marker = CleanShutdown::new("5a0c6e1e-2f8d-4b59-9a29-0f1b0c8f3f55", 17, u32::MAX);
        assert_eq!(parse(marker.format().as_bytes()), Some(marker));
    }
}
