//! A whole file as the value of one record.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;

use super::input::LINE_BYTES_MAX;

/// Reads a file, or with `-` all of standard input.
///
/// # Errors
/// It is no regular file, cannot be read, or is larger than any batch.
pub(super) fn read(path: &Path) -> Result<Bytes> {
    if path == Path::new("-") {
        return read_all(io::stdin(), "standard input");
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{name} cannot be read"))?;
    let metadata = file.metadata().with_context(|| format!("{name} cannot be read"))?;
    ensure!(metadata.is_file(), "{name} is no regular file; - is standard input");
    read_all(file, &name)
}

fn read_all(from: impl Read, name: &str) -> Result<Bytes> {
    let mut bytes = Vec::new();
    let read = from.take(LINE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("{name} cannot be read"))?;
    if bytes.len() > LINE_BYTES_MAX {
        bail!("{name} is longer than {} MiB, which no broker takes as one record", LINE_BYTES_MAX >> 20);
    }
    Ok(bytes.into())
}
