//! The leader epochs of a queue, in Kafka's file `leader-epoch-checkpoint`: each epoch with its first offset.
//!
//! A queue stays in its epoch while nothing can be lost. After a restart of the machine, published messages may be lost
//! and others get their offsets. Remote readers learn that by a new epoch (KIP-320).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use mainstem_faults::StorageFault;

use crate::error::{QueueError, Result};

const FILE: &str = "leader-epoch-checkpoint";
/// The size of the unit that a power cut does not tear.
const SECTOR_BYTES: usize = 512;

/// Reads the epochs with their first offsets, ascending; entries that make no sense are left out.
///
/// # Errors
/// If the file exists and cannot be read.
pub(crate) fn read(directory: &Path) -> Result<Vec<(i32, i64)>> {
    let path = directory.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        bytes => bytes.map_err(|error| QueueError::io("reading", &path, error))?,
    };
    let text = String::from_utf8(bytes).unwrap_or_default();
    let entry = |line: &str| {
        let (epoch, start) = line.split_once(' ')?;
        Some((epoch.parse::<i32>().ok()?, start.trim().parse::<i64>().ok()?))
    };
    // Further lines are the rest of a longer text that was overwritten.
    let count = text.lines().nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0);
    let entries = text.lines().skip(2).take(count).filter_map(entry);
    let mut epochs: Vec<(i32, i64)> = entries.filter(|(epoch, start)| *epoch >= 0 && *start >= 0).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// Begins another epoch at `next`, greater than all that are known and than `least`; returns it.
pub(crate) fn raise(directory: &Path, least: i32, next: i64) -> Result<i32> {
    let mut epochs = read(directory)?;
    let newest = epochs.last().map_or(0, |(epoch, _)| *epoch).max(least);
    let epoch = newest.checked_add(1).unwrap_or(newest);
    epochs.retain(|(_, start)| *start < next);
    epochs.push((epoch, next));
    write(directory, &epochs)?;
    Ok(epoch)
}

/// Writes all epochs durably.
pub(crate) fn write(directory: &Path, epochs: &[(i32, i64)]) -> Result<()> {
    let mut text = format!("0\n{}\n", epochs.len());
    for (epoch, start) in epochs {
        text.push_str(&format!("{epoch} {start}\n"));
    }
    let (path, new) = (directory.join(FILE), directory.join(format!("{FILE}.tmp")));
    let written = fs::write(&new, &text).and_then(|()| File::open(&new)?.sync_all());
    let written = written.and_then(|()| fs::rename(&new, &path)).or_else(|error| {
        let is_full = StorageFault::of(&error) == StorageFault::NoSpace;
        match is_full && text.len() <= SECTOR_BYTES && path.exists() {
            true => {
                // The file is empty, and takes up a name at most.
                let _ = fs::remove_file(&new);
                write_in_place(&path, &text)
            }
            false => Err(error),
        }
    });
    written.map_err(|error| QueueError::io("writing", &path, error))
}

/// Overwrites the existing file, which needs no space: so a full disk keeps no one from the existing messages.
fn write_in_place(path: &Path, text: &str) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_epoch_begins_where_messages_may_have_been_lost() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        write(directory, &[(0, 0)]).unwrap();
        assert_eq!(fs::read_to_string(directory.join(FILE)).unwrap(), "0\n1\n0 0\n");
        assert_eq!(raise(directory, 0, 10).unwrap(), 1);
        assert_eq!(read(directory).unwrap(), [(0, 0), (1, 10)]);
        // Nothing was appended in epoch 1: it is not kept.
        assert_eq!(raise(directory, 0, 10).unwrap(), 2);
        assert_eq!(raise(directory, 7, 12).unwrap(), 8);
        assert_eq!(read(directory).unwrap(), [(0, 0), (2, 10), (8, 12)]);
        write_in_place(&directory.join(FILE), "0\n1\n3 4\n").unwrap();
        assert_eq!(read(directory).unwrap(), [(3, 4)]);
        assert_eq!(fs::read_to_string(directory.join(FILE)).unwrap(), "0\n1\n3 4\n");
        fs::write(directory.join(FILE), "0\n1\n3 4\n5 20\n").unwrap();
        assert_eq!(read(directory).unwrap(), [(3, 4)], "written over a longer text, and not cut yet");
        fs::write(directory.join(FILE), "nonsense\n\n-3 x\n4\n").unwrap();
        assert_eq!(read(directory).unwrap(), []);
    }
}
