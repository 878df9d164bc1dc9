//! Automation of this repository: `cargo xtask test`, `cargo xtask schemas`.

fn main() {}
