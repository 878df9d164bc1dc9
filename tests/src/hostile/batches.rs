//! Record batches to send.

use mainstem_records::{BatchBuilder, BatchOptions, Compression};

/// One batch of one record with a value of `value_bytes` equal bytes.
///
/// # Panics
/// When the codec fails.
pub fn batch(compression: Compression, value_bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions { compression, ..Default::default() });
    builder.append(now_ms(), None, Some(&vec![b'x'; value_bytes]), &[]).expect("one record fits");
    builder.build().expect("the codec works")
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
