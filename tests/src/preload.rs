//! Small libraries in C that are preloaded into a node. They are built by `gcc` when a test needs them, and work on Linux alone.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library of a source in `tests/src/preload`, in `home`.
///
/// # Panics
/// If there is no `gcc`, or it refuses.
pub(crate) fn build(name: &str, home: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/preload").join(name).with_extension("c");
    let library = home.join(name).with_extension("so");
    let built =
        Command::new("gcc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    let built = built.unwrap_or_else(|error| {
        panic!("this test builds a small library by gcc, which cannot be run: {error}; install gcc")
    });
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "gcc refuses {}: {said}", source.display());
    library
}

/// The variables that a node needs for a wall clock that is ahead by so many seconds. The library is built in `home`.
///
/// # Panics
/// If there is no `gcc`, or it refuses.
pub fn clock_ahead(seconds: i64, home: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![
        ("LD_PRELOAD", build("clock", home)),
        ("MAINSTEM_TEST_CLOCK_AHEAD_S", PathBuf::from(seconds.to_string())),
    ]
}
