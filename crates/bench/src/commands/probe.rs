//! `mainstem-bench probe`: the minimal server, in a process of its own so that its CPU time and memory are its own.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use mainstem_bench::{Durability, ProbeOptions};

/// Arguments of `mainstem-bench probe`.
#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Address to listen at.
    #[arg(long, value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Folder for its files.
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
    /// The partitions of its one topic.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// The durability that a record has before it is acknowledged.
    #[arg(long, value_name = "NAME", default_value = "page-cache", value_parser = Durability::parse)]
    durability: Durability,
}

/// Serves until it is ended.
pub(crate) fn run(probe: &Probe) -> Result<()> {
    let listener = TcpListener::bind(probe.listen)
        .with_context(|| format!("{} cannot be listened on: choose another by --listen", probe.listen))?;
    let options = ProbeOptions {
        directory: probe.directory.clone(),
        partitions: probe.partitions,
        durability: probe.durability,
    };
    mainstem_bench::serve_probe(listener, &options)
}
