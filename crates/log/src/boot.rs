//! The running boot of the machine, and the record of it in a log directory.
//!
//! Bytes that were written under the running boot are in the page cache even if they were never synced. Bytes that were
//! written under another one may be lost in part. The directory's record of the boot ([`BootRecord`]) tells the two apart.

use crate::storage::{OpenMode, Storage, read_small_file, write_all_at};
use crate::uuid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file in the log directory.
pub(crate) const BOOT_RECORD: &str = "mainstem.boot";

/// Longer ones are not from a kernel; also bounds what is read from the file.
const BOOT_ID_LEN_MAX: usize = 128;

/// Returns the kernel's id of the running boot. On systems without one (all but Linux) each call returns a new random id.
/// Every unclean stop then looks like one before a reboot: slower to recover, and never wrong.
pub fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = id.trim();
    if is_boot_id(id) { id.to_owned() } else { uuid::to_base64url(&uuid::random()) }
}

fn is_boot_id(id: &str) -> bool {
    (1..=BOOT_ID_LEN_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The file that says under which boot everything in the directory was last known to be in the page cache or on
/// disk. Two lines: the version (0) and the boot id.
///
/// It is never synced, and need not be. It counts only if it names the running boot, whose page cache still exists, and a boot
/// id occurs once. A file torn by a power cut names no boot.
#[derive(Debug)]
pub(crate) struct BootRecord {
    storage: Arc<dyn Storage>,
    path: PathBuf,
}

impl BootRecord {
    pub(crate) fn new(storage: Arc<dyn Storage>, dir: &Path) -> BootRecord {
        BootRecord { storage, path: dir.join(BOOT_RECORD) }
    }

    /// The recorded boot id; `None` when there is none or the file makes no sense.
    pub(crate) fn read(&self) -> Option<String> {
        let bytes = read_small_file(&*self.storage, &self.path, BOOT_ID_LEN_MAX + 16).ok()?;
        parse(&bytes)
    }

    /// Replaces the record, so that a killed process leaves the old or the new one.
    pub(crate) fn write(&self, boot_id: &str) -> io::Result<()> {
        let temporary = self.path.with_extension("boot.tmp");
        let file = self.storage.open(&temporary, OpenMode::Create)?;
        file.set_len(0)?;
        write_all_at(&*file, format(boot_id).as_bytes(), 0)?;
        self.storage.rename(&temporary, &self.path)
    }

    /// Forgets the boot: what is in the directory has to be checked as after a reboot.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match self.storage.remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

fn format(boot_id: &str) -> String {
    format!("0\n{boot_id}\n")
}

fn parse(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let id = text.strip_prefix("0\n")?.strip_suffix('\n')?;
    is_boot_id(id).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse(text.as_bytes()).as_deref(), expected, "{text:?}");
        };
        let whole = format("5a0c6e1e-2f8d-4b59-9a29-0f1b0c8f3f55");
        check(&whole, Some("5a0c6e1e-2f8d-4b59-9a29-0f1b0c8f3f55"));
        for cut in 0..whole.len() {
            check(&whole[..cut], None);
        }
        check("0\n\n", None);
        check("0\na b\n", None);
        check("1\nabc\n", None);
        check("0\nabc\ndef\n", None);
        check("0\n\0\0\0\n", None);
    }

    #[test]
    fn the_boot_id_is_one_word() {
        let id = boot_id();
        assert!(is_boot_id(&id), "{id:?}");
    }
}
