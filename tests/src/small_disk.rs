//! A file system of its own that can be filled: a tmpfs, which only root may mount.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system, unmounted when this is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    mount: TempDir,
}

impl SmallDisk {
    /// Mounts one of so many MiB. `None` if this process may not, which is printed.
    ///
    /// # Panics
    /// When there is no temporary directory.
    pub fn mount(mebibytes: u32) -> Option<SmallDisk> {
        let mount = tempfile::tempdir().expect("a temporary directory");
        let size = format!("size={mebibytes}m");
        let arguments = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let status = Command::new("mount").args(arguments).arg(mount.path()).status();
        if status.is_ok_and(|status| status.success()) {
            return Some(SmallDisk { mount });
        }
        eprintln!("skipped: only root may mount a file system");
        None
    }

    /// The path of its mount point.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    fn filling(&self) -> PathBuf {
        self.path().join("filling")
    }

    /// Takes all free space.
    ///
    /// # Panics
    /// When the file cannot be written for another reason.
    pub fn fill(&self) {
        let mut file = File::create(self.filling()).expect("a file");
        loop {
            match file.write(&[1; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Frees the space that [`SmallDisk::fill`] took.
    ///
    /// # Panics
    /// When no space was taken.
    pub fn free(&self) {
        fs::remove_file(self.filling()).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A process that still uses it keeps it mounted until it ends.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
