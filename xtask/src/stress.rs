//! A busy machine (`TEST_STRESS=1`): two threads that compute and one that syncs the disk, for as long as tests run.
//!
//! A verdict that changes beside them depends on time, and is a defect of the test or of the product.

use std::fs::{self, File};
use std::hint;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::workspace;

/// The variable that asks for it.
const VARIABLE: &str = "TEST_STRESS";
/// Threads that compute: as many as small machines have cores.
const SPINNERS: usize = 2;
/// Bytes of a write that is synced.
const WRITE_BYTES: usize = 1 << 20;
/// Writes after which the file is written from its beginning again.
const WRITES: usize = 64;

/// The load, until it is dropped.
pub(crate) struct Stress {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stress {
    /// The load, if the environment asks for it.
    ///
    /// # Errors
    /// If the file that is written cannot be made.
    pub(crate) fn from_environment() -> Result<Option<Stress>> {
        let is_wanted = std::env::var(VARIABLE).is_ok_and(|value| value != "0");
        is_wanted.then(Stress::start).transpose()
    }

    fn start() -> Result<Stress> {
        fs::create_dir_all(workspace::ci_dir())?;
        let path = workspace::ci_dir().join("stress");
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        println!("{VARIABLE}: {SPINNERS} threads compute and one syncs {} while tests run", path.display());
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..SPINNERS {
            let stop = stop.clone();
            threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            }));
        }
        let of_disk = stop.clone();
        threads.push(thread::spawn(move || {
            // Tests see a full disk themselves.
            while !of_disk.load(Ordering::Relaxed) && sync(&file).is_ok() {}
        }));
        Ok(Stress { stop, threads })
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        let _ = fs::remove_file(workspace::ci_dir().join("stress"));
    }
}

/// Writes a file and syncs it after each write.
fn sync(mut file: &File) -> std::io::Result<()> {
    let bytes = vec![0x5a; WRITE_BYTES];
    file.seek(SeekFrom::Start(0))?;
    for _ in 0..WRITES {
        file.write_all(&bytes)?;
        file.sync_data()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_ends_when_it_is_dropped() {
        let stress = Stress::start().unwrap();
        assert_eq!(stress.threads.len(), SPINNERS + 1);
        let stop = stress.stop.clone();
        drop(stress);
        assert!(stop.load(Ordering::Relaxed) && !workspace::ci_dir().join("stress").exists());
    }
}
