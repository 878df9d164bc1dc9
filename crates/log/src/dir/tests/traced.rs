//! A storage that writes down what changes the medium, and can die at any of these steps.

use crate::sim::{Call, Hooked};
use crate::storage::Storage;
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The steps of a process, up to its death.
#[derive(Debug)]
struct Trace {
    root: PathBuf,
    steps: Mutex<Vec<String>>,
    /// Steps that are still carried out.
    steps_max: usize,
}

impl Trace {
    /// Notes a step, or refuses it because the process is dead.
    fn step(&self, call: Call, path: &Path) -> io::Result<()> {
        if !call.is_change() {
            return Ok(());
        }
        let mut steps = self.steps.lock();
        if steps.len() >= self.steps_max {
            return Err(io::Error::other("the process is dead"));
        }
        let name = path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        steps.push(format!("{} {}", verb(call), if name.is_empty() { "." } else { &name }));
        Ok(())
    }
}

fn verb(call: Call) -> &'static str {
    match call {
        Call::Create => "create",
        Call::Rename => "rename to",
        Call::RemoveFile => "remove",
        Call::CreateDir => "create directory",
        Call::RemoveDir => "remove directory",
        Call::SyncDir => "SYNC directory",
        Call::Lock => "lock",
        Call::Write => "write",
        Call::SetLen => "cut",
        Call::Sync => "SYNC",
        Call::SyncFs => "SYNC file system of",
        other => panic!("{other:?} changes nothing"),
    }
}

/// Another storage, with the steps that it was asked for.
#[derive(Debug)]
pub(super) struct Traced {
    storage: Arc<Hooked>,
    trace: Arc<Trace>,
}

impl Traced {
    pub(super) fn new(inner: Arc<dyn Storage>, root: &Path, steps_max: usize) -> Traced {
        let trace = Arc::new(Trace { root: root.to_owned(), steps: Mutex::default(), steps_max });
        let (storage, steps) = (Hooked::new(inner), trace.clone());
        storage.set_hook(move |call, path| steps.step(call, path));
        Traced { storage: Arc::new(storage), trace }
    }

    pub(super) fn storage(&self) -> Arc<Hooked> {
        self.storage.clone()
    }

    pub(super) fn steps(&self) -> Vec<String> {
        self.trace.steps.lock().clone()
    }
}
