//! The `mainstem` binary: the server and the operator's tools.

fn main() {}
