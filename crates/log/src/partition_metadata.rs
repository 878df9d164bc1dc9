//! `partition.metadata`: the id of the topic that a partition directory belongs to (KIP-516).

use crate::storage::{OpenMode, Storage, StorageFile, read_small_file, write_all_at};
use crate::uuid;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Name of the file in the partition's directory.
pub const PARTITION_METADATA: &str = "partition.metadata";

/// Kafka writes 46 bytes.
const LEN_MAX: usize = 1024;

/// Reads the topic id of a partition directory; `None`: there is no file, or it is malformed. It is written before any record
/// is acknowledged, so that after a power cut it is empty only if the log is empty too.
pub fn read_topic_id(storage: &dyn Storage, partition_dir: &Path) -> io::Result<Option<[u8; 16]>> {
    match read_small_file(storage, &partition_dir.join(PARTITION_METADATA), LEN_MAX) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes the topic id. The file comes back, so that it can be synced with the first data of the partition, and
/// the partition's directory with it.
pub(crate) fn write_topic_id(
    storage: &dyn Storage,
    partition_dir: &Path,
    topic_id: &[u8; 16],
) -> io::Result<Arc<dyn StorageFile>> {
    let file = storage.open(&partition_dir.join(PARTITION_METADATA), OpenMode::Create)?;
    file.set_len(0)?;
    write_all_at(&*file, format(topic_id).as_bytes(), 0)?;
    Ok(file)
}

fn format(topic_id: &[u8; 16]) -> String {
    format!("version: 0\ntopic_id: {}", uuid::to_base64url(topic_id))
}

fn parse(bytes: &[u8]) -> Option<[u8; 16]> {
    let mut lines = std::str::from_utf8(bytes).ok()?.lines();
    let version = value_of(lines.next()?, "version")?;
    if version != "0" {
        return None;
    }
    let topic_id = uuid::from_base64url(value_of(lines.next()?, "topic_id")?)?;
    (topic_id != [0; 16]).then_some(topic_id)
}

/// The value of a line `key: value`.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let value = line.strip_prefix(key)?.strip_prefix(':')?;
    let trimmed = value.trim();
    (trimmed.len() < value.len()).then_some(trimmed)
}

/// Fuzz body: what is read is read again from what would be written.
pub(crate) fn fuzz(data: &[u8]) {
    if let Some(topic_id) = parse(data) {
        assert_eq!(parse(format(&topic_id).as_bytes()), Some(topic_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_is_that_of_kafka() {
        let text = format(&0x0123_4567_89ab_cdef_fedc_ba98_7654_3210_u128.to_be_bytes());
        assert_eq!(text, "version: 0\ntopic_id: ASNFZ4mrze_-3LqYdlQyEA");
    }

    #[test]
    fn only_a_whole_file_has_an_id() {
        let check = |text: &str, expected: Option<u128>| {
            assert_eq!(parse(text.as_bytes()), expected.map(u128::to_be_bytes), "{text:?}");
        };
        check("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", Some(1));
        check("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n", Some(1));
        check("version: 0\r\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\r\n", Some(1));
        check("", None);
        check("version: 0", None);
        check("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAA", None);
        check("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", None);
        check("version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", None);
        check("topic_id: AAAAAAAAAAAAAAAAAAAAAQ\nversion: 0", None);
        check("\0\0\0\0", None);
    }

    proptest! {
        #[test]
        fn an_id_survives_its_file(id: [u8; 16]) {
            prop_assume!(id != [0; 16]);
            prop_assert_eq!(parse(format(&id).as_bytes()), Some(id));
        }
    }
}
