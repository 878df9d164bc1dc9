//! `mainstem direct serve`.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use mainstem_direct::{DirectError, JournalOptions, Publisher};

use crate::output::print_line;

/// Arguments of `direct serve`.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Streams: the name of each and the directory of its queue, which is made if it is not there.
    #[arg(required = true, value_name = "NAME=DIR", value_parser = stream)]
    streams: Vec<(String, PathBuf)>,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8101", value_name = "HOST:PORT")]
    address: String,
    /// Certificate of the publisher, in PEM; it serves by TLS then. It and the other files are read again when they change.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Ask clients for certificates of these authorities, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    client_ca: Option<PathBuf>,
    /// Serve without TLS beyond this machine.
    #[arg(long)]
    insecure: bool,
}

fn stream(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, directory)| !name.is_empty() && !directory.is_empty());
    let (name, directory) = parts.ok_or_else(|| format!("{text:?} names no stream; write NAME=DIR"))?;
    Ok((name.to_owned(), directory.into()))
}

/// The same error, with flags of this command in place of calls of the library.
fn by_flags(error: DirectError) -> anyhow::Error {
    match error {
        DirectError::Exposed { address } => anyhow!(
            "{address} can be reached from elsewhere; give the publisher a certificate (--cert and --key), or say that it is to be \
             open to all (--insecure)"
        ),
        other => other.into(),
    }
}

/// Serves until SIGTERM or SIGINT.
pub(super) async fn run(serve: &Serve) -> Result<()> {
    // Refused requests and their reasons are only in the log.
    let _ = crate::logging::to_stderr(false);
    // Connections and segments need descriptors. Consumers that are away need none.
    mainstem_log::descriptors::raise_descriptor_limit();
    let mut publisher = Publisher::new();
    for (name, directory) in &serve.streams {
        publisher = publisher.stream(&JournalOptions::new().name(name.as_str()).open(directory)?);
    }
    if let (Some(certificate), Some(key)) = (&serve.cert, &serve.key) {
        publisher = publisher.tls_files(certificate, key);
    }
    if let Some(authorities) = &serve.client_ca {
        publisher = publisher.client_authorities_file(authorities);
    }
    if serve.insecure {
        publisher = publisher.insecure();
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let serving = publisher.start(&serve.address).await.map_err(by_flags)?;
    print_line(&format!("streams are served at {}", serving.address()))?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(serving.stop().await?)
}
