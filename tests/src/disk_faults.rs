//! A disk whose syncs are slow, hang or fail when a test says so: a small library in C that is preloaded into a process.
//!
//! It is built by `gcc` when a test needs it, and works on Linux alone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::preload::build;
use crate::wait::eventually;

/// The behaviour of a disk's syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syncs {
    /// They succeed.
    Work,
    /// They begin so many ms late.
    Slow(u64),
    /// They block until the behaviour is changed.
    Hang,
    /// They fail with EIO.
    Fail,
}

/// The syncs of one process.
#[derive(Debug, Clone)]
pub struct DiskFaults {
    shim: PathBuf,
    control: PathBuf,
}

impl DiskFaults {
    /// Builds the library in `home`. Syncs work until a call of `set`.
    ///
    /// # Panics
    /// If there is no `gcc`, or it fails.
    pub fn build(home: &Path) -> DiskFaults {
        let faults = DiskFaults { shim: build("disk", home), control: home.join("disk-control") };
        faults.set(Syncs::Work, home);
        faults
    }

    /// Sets the behaviour of syncs of files below `under` from now on, also of those that hang.
    ///
    /// # Panics
    /// When the control file cannot be written.
    pub fn set(&self, syncs: Syncs, under: &Path) {
        let text = match syncs {
            Syncs::Work => "works".to_owned(),
            Syncs::Slow(ms) => format!("slow {ms}"),
            Syncs::Hang => "hangs".to_owned(),
            Syncs::Fail => "fails".to_owned(),
        };
        let text = format!("{text}\n{}", under.display());
        let _ = fs::remove_file(self.hanging());
        let new = self.control.with_extension("new");
        fs::write(&new, text).and_then(|()| fs::rename(&new, &self.control)).expect("a control file");
    }

    /// Waits until a sync hangs.
    ///
    /// # Panics
    /// When none hangs after a minute.
    pub fn wait_until_one_hangs(&self) {
        eventually("a sync that hangs", || self.hanging().exists().then_some(()));
    }

    /// The file that the first sync that hangs makes.
    fn hanging(&self) -> PathBuf {
        self.control.with_extension("hanging")
    }

    /// The environment variables that a process needs.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.shim.clone()), ("MAINSTEM_TEST_DISK_CONTROL", self.control.clone())]
    }
}
