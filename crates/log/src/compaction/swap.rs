//! Putting the output of a compaction in the place of its input, in steps of which each may be the last.
//!
//! | step | with the lock | files of the output | files of the input | a start finds |
//! |---|---|---|---|---|
//! | written, synced | no | `.cleaned` | in use | the input |
//! | committed | yes | `.swap` | in use | one or the other |
//! | names synced | no | `.swap` | in use | the output |
//! | installed | yes | `.swap`, read from | read by those who had them | the output |
//! | retired, one segment at a time | yes | `.swap` | `.deleted` | the output |
//! | names synced | no | `.swap` | `.deleted` | the output |
//! | finished | yes | in use | removed later | the output |
//! | names synced | no | in use | removed later | the output |
//!
//! Kafka has the same names and the same rule for what they mean at a start. The output ends where its input did: its
//! last batch stays, if only as a header, so that the start knows what it replaces.

use super::cleaner::{CleanError, LogAccess};
use super::output::discard;
use crate::error::LogError;
use crate::files::{FileKind, FileState, PartitionFiles, SegmentFileName, file_name};
use crate::log::Log;
use crate::segment::Segment;
use std::io;
use std::path::{Path, PathBuf};

/// The path of a file in a state.
pub(crate) fn path_in(files: &PartitionFiles, base_offset: i64, kind: FileKind, state: FileState) -> PathBuf {
    let suffix = match state {
        FileState::Live => "",
        FileState::Deleted => ".deleted",
        FileState::Cleaned => ".cleaned",
        FileState::Swap => ".swap",
    };
    files.dir.join(format!("{}{suffix}", file_name(base_offset, kind)))
}

/// The files of an output segment, in the order of their renames. The log is the last one: while it has its old name, the
/// segment counts under the old name.
const OUTPUT: [FileKind; 4] =
    [FileKind::TransactionIndex, FileKind::Index, FileKind::TimeIndex, FileKind::Log];

impl Log {
    /// Gives finished output the names that survive a crash. `false`: the input is not what it was, an export holds it, or the output
    /// has gone.
    pub(crate) fn commit_output(&mut self, input: &[Segment]) -> Result<bool, LogError> {
        let Some(_) = self.place_of(input).filter(|_| !self.is_exported()) else { return Ok(false) };
        let base_offset = input[0].base_offset;
        let mut has_log = false;
        for kind in OUTPUT {
            let from = path_in(&self.files, base_offset, kind, FileState::Cleaned);
            let to = path_in(&self.files, base_offset, kind, FileState::Swap);
            has_log = rename(&self.files, &from, &to)?;
        }
        // A truncation removes output that is not in use, also where it leaves the input as it is.
        self.committed_output = has_log.then_some(base_offset);
        Ok(has_log)
    }

    /// Reads from the output from here on. `false`: the input is not what it was, or the output has gone.
    pub(crate) fn install_output(&mut self, input: &[Segment], output: Segment) -> bool {
        let is_committed = self.committed_output.take() == Some(output.base_offset);
        let Some(at) = self.place_of(input).filter(|_| is_committed) else { return false };
        self.segments.splice(at..at + input.len(), [output]);
        // Transactions without any records left are not reported any more: without their markers readers would take
        // the records that follow for theirs.
        self.aborted.forget_before(self.segments[at + 1].base_offset);
        true
    }

    /// Puts the files of a segment away that the output at `base_offset` has replaced; they are removed after
    /// `file.delete.delay.ms`. `false`: the output has gone meanwhile.
    pub(crate) fn retire_input(
        &mut self,
        base_offset: i64,
        old: &Segment,
        mono_ms: u64,
    ) -> Result<bool, LogError> {
        if self.swapping().is_none_or(|segment| segment.base_offset != base_offset) {
            return Ok(false);
        }
        for kind in FileKind::ALL {
            // The producers' state before the output is still that.
            if kind == FileKind::Snapshot && old.base_offset == base_offset {
                continue;
            }
            let to = path_in(&self.files, old.base_offset, kind, FileState::Deleted);
            if old.rename(&self.files, kind, &to)? {
                self.remove_later(to, mono_ms);
            }
        }
        Ok(true)
    }

    /// The segment that is in use under the names of a swap.
    pub(crate) fn swapping(&self) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.is_in_swap())
    }

    /// Gives the output its own names; the input has none any more, durably. `false`: the output has gone meanwhile.
    pub(crate) fn finish_swap(&mut self, base_offset: i64) -> Result<bool, LogError> {
        let found = self.segments.iter_mut().find(|segment| segment.base_offset == base_offset);
        let Some(segment) = found.filter(|segment| segment.is_in_swap()) else { return Ok(false) };
        for kind in OUTPUT {
            segment.rename(&self.files, kind, &self.files.path(base_offset, kind))?;
        }
        segment.set_swapped();
        Ok(true)
    }

    /// Returns true if the input of a compaction is still among the segments, unchanged.
    pub(crate) fn has(&self, input: &[Segment]) -> bool {
        self.place_of(input).is_some()
    }

    /// Returns the index of the input's first segment if all of the input is among the segments, unchanged.
    fn place_of(&self, input: &[Segment]) -> Option<usize> {
        let first = input.first()?.base_offset;
        let at = self.segments.binary_search_by_key(&first, |segment| segment.base_offset).ok()?;
        let behind = &self.segments[at..];
        let same = behind.len() > input.len() && input.iter().zip(behind).all(|(old, now)| old.is_same(now));
        (same && self.refusal().is_none()).then_some(at)
    }

    /// Brings a swap to its end, and removes output that is not in use, durably: the log is going to be cut, and neither
    /// may come back at a start.
    pub(crate) fn settle_compaction(&mut self) -> Result<(), LogError> {
        while let Some((base_offset, end)) = self.swap_in_progress() {
            for name in segment_files(&self.files)? {
                if name.state == FileState::Live
                    && name.kind != FileKind::Snapshot
                    && (base_offset..end).contains(&name.base_offset)
                {
                    self.files.remove(name.base_offset, name.kind)?;
                }
            }
            self.files.sync_dir()?;
            self.finish_swap(base_offset)?;
        }
        self.committed_output = None;
        let mut removed = false;
        for name in segment_files(&self.files)? {
            if matches!(name.state, FileState::Cleaned | FileState::Swap) {
                self.files.remove_path(&path_in(&self.files, name.base_offset, name.kind, name.state))?;
                removed = true;
            }
        }
        if removed { self.files.sync_dir() } else { Ok(()) }
    }

    /// The base offset of a segment that is being swapped in, and that of the one behind it.
    fn swap_in_progress(&self) -> Option<(i64, i64)> {
        let at = self.segments.iter().position(Segment::is_in_swap)?;
        let end = self.segments.get(at + 1).map_or(i64::MAX, |next| next.base_offset);
        Some((self.segments[at].base_offset, end))
    }
}

/// Puts finished output in the place of its input.
pub(super) fn swap_in<A: LogAccess>(
    access: &A,
    files: &PartitionFiles,
    input: &[Segment],
    output: Segment,
    mono_ms: u64,
) -> Result<(), CleanError> {
    let base_offset = output.base_offset;
    match access.with_log(|log| log.commit_output(input)) {
        Some(Ok(true)) => {}
        committed => {
            discard(files, base_offset);
            discard_swap(files, base_offset)?;
            return Err(committed.and_then(Result::err).map_or(CleanError::Changed, CleanError::Log));
        }
    }
    let installed =
        files.sync_dir().map(|()| access.with_log(|log| log.install_output(input, output)).unwrap_or(false));
    match installed {
        Ok(true) => finish(access, files, base_offset, input, mono_ms),
        Ok(false) => {
            discard_swap(files, base_offset)?;
            Err(CleanError::Changed)
        }
        Err(error) => {
            // Whether the names are on disk is not known; they go, as far as that is possible.
            let _ = discard_swap(files, base_offset);
            Err(CleanError::Log(error))
        }
    }
}

/// The steps behind the installation.
fn finish<A: LogAccess>(
    access: &A,
    files: &PartitionFiles,
    base_offset: i64,
    input: &[Segment],
    mono_ms: u64,
) -> Result<(), CleanError> {
    for old in input {
        let retired = access.with_log(|log| log.retire_input(base_offset, old, mono_ms));
        match retired {
            Some(Ok(true)) => {}
            Some(Err(error)) => return Err(CleanError::Log(error)),
            Some(Ok(false)) | None => break,
        }
    }
    if access.with_log(|_| ()).is_none() {
        return Err(CleanError::Changed);
    }
    files.sync_dir()?;
    match access.with_log(|log| log.finish_swap(base_offset)).ok_or(CleanError::Changed)?? {
        true => Ok(files.sync_dir()?),
        false => {
            // It was deleted by retention or cut away.
            discard_swap(files, base_offset)?;
            Err(CleanError::Changed)
        }
    }
}

/// Brings a swap to its end that an error has interrupted.
pub(super) fn settle<A: LogAccess>(access: &A) -> Result<(), CleanError> {
    let settled = access.with_log(|log| match log.swapping() {
        Some(_) => log.settle_compaction(),
        None => Ok(()),
    });
    settled.ok_or(CleanError::Changed)?.map_err(CleanError::Log)
}

/// Removes committed output that was not installed.
fn discard_swap(files: &PartitionFiles, base_offset: i64) -> Result<(), LogError> {
    // The log first: without it the others mean nothing.
    for kind in OUTPUT.into_iter().rev() {
        files.remove_path(&path_in(files, base_offset, kind, FileState::Swap))?;
    }
    files.sync_dir()
}

fn segment_files(files: &PartitionFiles) -> Result<Vec<SegmentFileName>, LogError> {
    let names = files.storage.list(&files.dir).map_err(LogError::io("list", &*files.dir))?;
    Ok(names.iter().filter_map(|entry| SegmentFileName::parse(&entry.name)).collect())
}

/// Renames a file; `false`: there is none.
pub(crate) fn rename(files: &PartitionFiles, from: &Path, to: &Path) -> Result<bool, LogError> {
    renamed(from, files.storage.rename(from, to))
}

/// Turns the result of a rename into true, or false if there was no file.
pub(crate) fn renamed(from: &Path, result: io::Result<()>) -> Result<bool, LogError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(LogError::io("rename", from)(error)),
    }
}
