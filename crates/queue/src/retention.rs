//! Deletion of closed segments. The process that rolls a segment applies the rules of the directory.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::AcqRel;

use crate::control::Control;
use crate::rules::Rules;
use crate::{segment, tailers};

/// Deletes segments as the rules say. A failed deletion is tried again at the next roll.
pub(crate) fn apply(control: &Control, directory: &Path, rules: &Rules, now_ms: i64) {
    if rules.retention_ms == u64::MAX && rules.retention_bytes == u64::MAX {
        return;
    }
    let (open, _) = control.open_segment();
    let Ok(mut bases) = segment::list(directory) else { return };
    bases.retain(|base| *base <= open);
    let kept_from = match rules.keep_for_tailers {
        true => match tailers::slowest(directory) {
            Ok(slowest) => slowest.unwrap_or(i64::MAX),
            // An unreadable position may be any.
            Err(_) => return,
        },
        false => i64::MAX,
    };
    let size = |base: &i64| Ok(std::fs::metadata(segment::path(directory, *base, "log"))?.len());
    // Without the size of a segment, more could be deleted than the rules say.
    let Ok(sizes) = bases.iter().map(size).collect::<io::Result<Vec<u64>>>() else { return };
    let mut bytes: u64 = sizes.iter().sum();
    for (pair, size) in bases.windows(2).zip(sizes) {
        let [base, next] = [pair[0], pair[1]];
        let newest = segment::newest_timestamp(directory, base).ok().flatten();
        let age = newest.and_then(|newest| u64::try_from(now_ms.saturating_sub(newest)).ok());
        let is_old = rules.retention_ms != u64::MAX && age.is_some_and(|age| age >= rules.retention_ms);
        if !(is_old || bytes > rules.retention_bytes) || next > kept_from {
            break;
        }
        // Readers learn the new start before the files are deleted.
        control.log_start().fetch_max(next, AcqRel);
        bytes -= size;
        if segment::remove(directory, base).is_err() {
            break;
        }
    }
}

/// Moves the start of the queue to `offset`, and deletes closed segments before it. For the holder of the lock.
pub(crate) fn delete_before(control: &Control, directory: &Path, offset: i64) {
    // Readers learn the new start before the files are deleted.
    control.log_start().fetch_max(offset, AcqRel);
    let (open, _) = control.open_segment();
    let Ok(bases) = segment::list(directory) else { return };
    for pair in bases.windows(2).take_while(|pair| pair[1] <= offset.min(open)) {
        if segment::remove(directory, pair[0]).is_err() {
            break;
        }
    }
}
