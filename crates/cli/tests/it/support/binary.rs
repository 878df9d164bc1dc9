//! The program under test.

use std::path::PathBuf;

/// The binary that `MAINSTEM_BINARY` names, else the one that cargo has built with these tests.
pub(crate) fn mainstem() -> PathBuf {
    std::env::var_os("MAINSTEM_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_mainstem").into(), PathBuf::from)
}
