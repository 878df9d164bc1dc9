//! Where things are: the repository, what cargo built, what `cargo xtask interop` installed.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the repository").to_path_buf()
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A binary of the workspace, as the release profile builds it.
pub(crate) fn release_binary(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// Where third-party clients are installed and their runs leave logs and results.
pub(crate) fn interop_dir() -> PathBuf {
    root().join("target").join("interop")
}

/// Whether this is a run of continuous integration: nothing may be skipped.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// The program of that name on PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// The cargo that runs us.
pub(crate) fn cargo() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}
