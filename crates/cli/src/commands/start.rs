//! `mainstem start`: runs a broker until it has to stop.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mainstem_broker::config::{BrokerConfig, Properties, Sources, docs, files};
use mainstem_broker::{LastStop, Ready, RecoveryWatch, Server, StartError, StartOptions};
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::target::resolved;
use crate::{logging, profiles, target};

const SETTINGS: &str = "Settings: --set over environment (MAINSTEM_LOG_RETENTION_MS=...) over --config over defaults. \
                        docs/configuration.md lists every key. Log level: MAINSTEM_LOG=debug.";

/// The time that a start has to end in order after a signal.
const BREAK_OFF_TIME: Duration = Duration::from_secs(2);

/// The interval of progress lines in the log during a stop without a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Variables with the prefix of settings that something else reads.
const OTHER_VARIABLES: [&str; 4] =
    [logging::VARIABLE, target::VARIABLE, target::CONFIG_VARIABLE, profiles::VARIABLE];

/// The settings that have an effect, from their table.
fn long_help() -> String {
    format!("{SETTINGS}\n\nSettings with their defaults:\n\n{}", docs::help())
}

/// Arguments of `start`.
#[derive(Debug, Args)]
#[command(after_help = format!("{SETTINGS} `--help` names them."), after_long_help = long_help())]
pub(crate) struct Start {
    /// Directory of the data; partition directories are directly under it. [default: ./mainstem-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address to listen on. [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Serve the embedded queue of a directory as a topic of one partition, while local processes append to it and
    /// read it. May be given several times. A missing queue is created.
    #[arg(long, value_name = "NAME=DIR")]
    attach: Vec<String>,
    /// A properties file with Kafka's keys, such as Kafka's own server.properties.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting by Kafka's name; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The id of the cluster whose data the directories must have. Without it empty directories become a new cluster.
    #[arg(long, value_name = "ID")]
    expect_cluster: Option<String>,
    /// Start although the metadata has ACLs, SCRAM credentials or delegation tokens that this configuration does not
    /// enforce.
    #[arg(long)]
    accept_unprotected: bool,
    /// Write the ready line and the log as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the broker.
pub(crate) fn run(start: &Start) -> Result<()> {
    let started = Instant::now();
    keep_from_others();
    let loggers = logging::to_stderr(start.json);
    // Signals are handled before the first thread starts, so that an early one kills none.
    let signals = Signals::new([SIGTERM, SIGINT]).context("signals cannot be handled")?;
    let stop = Stop::listen(signals)?;
    let config = configuration(start)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let options = StartOptions {
        recovery: stop.recovery.clone(),
        expect_cluster: start.expect_cluster.clone(),
        accept_unprotected: start.accept_unprotected,
        machine: None,
        clock: None,
    };
    let server = match Server::start(config, loggers, &options) {
        Err(error @ StartError::BrokenOff) => {
            tracing::info!("stopped: {error}");
            return Ok(());
        }
        started => started?,
    };
    stop.started.store(true, Ordering::Release);
    if let Err(error) = announce(server.ready(), started, start.json) {
        // Clients do not read this line, so that the broker runs without it.
        tracing::warn!(
            "the ready line cannot be written to the standard output; the node runs all the same: {error}"
        );
    }
    stop.wait_and_stop(server)
}

/// Sets a umask of at least 027: others cannot read files that this process creates, and its group cannot write them.
fn keep_from_others() {
    let before = umask(Mode::RWXO | Mode::WGRP);
    umask(before | Mode::RWXO | Mode::WGRP);
}

fn configuration(start: &Start) -> Result<BrokerConfig> {
    let file = start.config.as_ref().map(|path| {
        let text = files::read_given(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        let properties = Properties::parse(&text).with_context(|| format!("in {}", path.display()))?;
        resolved(&properties).with_context(|| format!("in {}", path.display()))
    });
    let file = file.transpose()?;
    let environment: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| !OTHER_VARIABLES.iter().any(|other| name == other))
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let overrides = with_attached(start, file.as_ref(), overrides(start)?)?;
    let sources = Sources { file: file.as_ref(), environment: &environment, overrides: &overrides };
    BrokerConfig::from_sources(sources).context("the broker cannot be configured like this")
}

/// The settings of `--set`, and of the options that are short for a setting.
fn overrides(start: &Start) -> Result<Vec<(String, String)>> {
    let mut overrides = Vec::new();
    for set in &start.set {
        let Some((key, value)) = set.split_once('=') else {
            bail!("--set takes KEY=VALUE, such as --set log.retention.hours=24, not {set}");
        };
        overrides.push((key.trim().to_owned(), value.to_owned()));
    }
    for (option, given, keys) in [
        ("--data-dir", start.data_dir.is_some(), ["log.dirs", "log.dir"].as_slice()),
        ("--listen", start.listen.is_some(), &["listeners"]),
    ] {
        if let Some((key, _)) = overrides.iter().find(|(key, _)| given && keys.contains(&key.as_str())) {
            bail!("{option} and --set {key} say the same thing twice; leave one of them out");
        }
    }
    if let Some(dir) = &start.data_dir {
        overrides.push(("log.dirs".into(), dir.display().to_string()));
    }
    if let Some(listen) = &start.listen {
        overrides.push(("listeners".into(), format!("PLAINTEXT://{listen}")));
    }
    Ok(overrides)
}

/// Adds the queues of `--attach` to those of the configuration.
fn with_attached(
    start: &Start,
    file: Option<&Properties>,
    mut overrides: Vec<(String, String)>,
) -> Result<Vec<(String, String)>> {
    const KEY: &str = "mainstem.attach";
    for attach in &start.attach {
        let is_pair = attach.split_once('=').is_some_and(|(name, dir)| !name.is_empty() && !dir.is_empty());
        if !is_pair || attach.contains(',') {
            bail!(
                "--attach takes NAME=DIR without commas, such as --attach trades=/var/lib/trades, not {attach}"
            );
        }
    }
    if start.attach.is_empty() {
        return Ok(overrides);
    }
    let attached = start.attach.join(",");
    match overrides.iter_mut().find(|(key, _)| key == KEY) {
        Some((_, value)) => *value = format!("{value},{attached}"),
        None => {
            let of_file = file.and_then(|file| file.get(KEY)).map(|value| format!("{value},"));
            overrides.push((KEY.to_owned(), of_file.unwrap_or_default() + &attached));
        }
    }
    Ok(overrides)
}

/// The state in which the last stop left the data directory, as a word for programs.
fn last_stop_name(last_stop: LastStop) -> &'static str {
    match last_stop {
        LastStop::New => "new",
        LastStop::Clean => "clean",
        LastStop::UncleanSameBoot => "unclean",
        LastStop::UncleanOtherBoot => "unclean-other-boot",
    }
}

/// Prints the ready line: addresses for a program that waits for it, and the most important facts for an operator.
fn announce(ready: &Ready, started: Instant, as_json: bool) -> std::io::Result<()> {
    let took_ms = started.elapsed().as_secs_f64() * 1e3;
    let fdatasync_us = ready.fdatasync.map(|cost| cost.as_secs_f64() * 1e6);
    let waits_for = match (ready.acks_all_waits_for_disk, ready.voters.len()) {
        (true, 0) => "disk",
        (false, 0) => "page cache",
        (true, _) => "disks of a majority of a partition's replicas",
        (false, _) => "page caches of a majority of a partition's replicas",
    };
    let line = if as_json {
        let listeners =
            ready.listeners.iter().map(|(name, address)| json!({"name": name, "address": address}));
        let listeners: Vec<_> = listeners.collect();
        json!({
            "event": "ready",
            "listeners": listeners,
            "http": ready.http,
            "cluster_id": ready.cluster_id,
            "node_id": ready.node,
            "voters": ready.voters,
            "new_cluster": ready.is_new_cluster,
            "last_stop": last_stop_name(ready.last_stop),
            "took_ms": took_ms,
            "acks_all_waits_for": waits_for,
            "fdatasync_us": fdatasync_us,
            "attached": ready.attached.iter().map(|(topic, _)| topic).collect::<Vec<_>>(),
            "topics": ready.topics,
            "partitions": ready.partitions,
        })
        .to_string()
    } else {
        let addresses: Vec<_> = ready.listeners.iter().map(|(_, address)| address.to_string()).collect();
        let http =
            ready.http.map_or(String::new(), |address| format!(", metrics on http://{address}/metrics"));
        let fdatasync =
            fdatasync_us.map_or(String::new(), |us| format!(" (one fdatasync costs {us:.0} us here)"));
        let attached: Vec<_> = ready
            .attached
            .iter()
            .map(|(topic, directory)| format!(", topic {topic} is the queue {}", directory.display()))
            .collect();
        let new = if ready.is_new_cluster { "new " } else { "" };
        let cluster = match (ready.voters.as_slice(), ready.is_new_cluster) {
            ([], false) => String::new(),
            ([], true) => format!("new cluster {}, ", ready.cluster_id),
            (voters, _) => {
                format!("node {} of {new}cluster {} ({}), ", ready.node, ready.cluster_id, voters.join(", "))
            }
        };
        format!(
            "mainstem is ready on {} after {took_ms:.0} ms: {cluster}{} topics, {} partitions; acks=all waits for the \
             {waits_for}{fdatasync}{http}{}",
            addresses.join(", "),
            ready.topics,
            ready.partitions,
            attached.concat(),
        )
    };
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush())
}

/// The reason why the broker ends.
enum End {
    Signal,
    /// An error after which it cannot continue.
    Fatal(String),
}

/// The signals that end the broker, handled from the beginning of its start.
struct Stop {
    /// Interrupted by a signal during the start.
    recovery: Arc<RecoveryWatch>,
    /// True when clients are served.
    started: Arc<AtomicBool>,
    /// True after a second signal.
    hurry: Arc<AtomicBool>,
    tell: mpsc::Sender<End>,
    ended: mpsc::Receiver<End>,
}

impl Stop {
    /// Handles the signals from now on.
    fn listen(mut signals: Signals) -> Result<Stop> {
        let (tell, ended) = mpsc::channel();
        let (recovery, started, hurry) = Default::default();
        let stop = Stop { recovery, started, hurry, tell, ended };
        let (recovery, started, hurry) = (stop.recovery.clone(), stop.started.clone(), stop.hurry.clone());
        let tell = stop.tell.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut signals = signals.forever();
            signals.next();
            recovery.break_off();
            let _ = tell.send(End::Signal);
            if !started.load(Ordering::Acquire) {
                let started = started.clone();
                // Without this thread a second signal ends the start.
                let _ = std::thread::Builder::new().name("stop-timeout".into()).spawn(move || {
                    std::thread::sleep(BREAK_OFF_TIME);
                    end_start(&started);
                });
            }
            if signals.next().is_some() {
                hurry.store(true, Ordering::Release);
                end_start(&started);
            }
        })?;
        Ok(stop)
    }

    /// Waits for a signal or a fatal error, then stops in order. A second signal skips the rest.
    fn wait_and_stop(self, server: Server) -> Result<()> {
        let tell_fatal = self.tell.clone();
        server.on_fatal(Box::new(move |reason| {
            // The receiver is gone if the stop has already begun.
            let _ = tell_fatal.send(End::Fatal(reason));
        }));
        let fatal = match self.ended.recv().context("the thread that ends the broker is gone")? {
            End::Fatal(reason) => Some(reason),
            End::Signal => None,
        };
        if fatal.is_none() {
            tracing::info!(
                "stopping: clients are answered, then the logs are synced; a second signal skips that"
            );
        } else {
            // Records that are not on disk now will not get there: the rest is skipped.
            self.hurry.store(true, Ordering::Release);
        }
        stop(server, &self.hurry);
        fatal.map_or(Ok(()), |reason| bail!("the broker had to stop: {reason}"))
    }
}

/// Ends the process during its start, which is as safe as a kill at any point.
fn end_start(started: &AtomicBool) {
    if !started.load(Ordering::Acquire) {
        tracing::info!("stopped during the start; nothing is lost, and the next start begins again");
        logging::finish();
        std::process::exit(0);
    }
}

fn stop(server: Server, hurry: &AtomicBool) {
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("syncing {bar:30} {pos}/{len} partitions")
            .expect("the template is constant"),
    );
    let mut reported = Instant::now();
    let in_order = server.stop(hurry, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        if bar.is_hidden() && reported.elapsed() >= PROGRESS_EVERY {
            reported = Instant::now();
            tracing::info!("{done} of {all} partitions are synced");
        }
    });
    bar.finish_and_clear();
    match in_order {
        true => tracing::info!("stopped in order"),
        false => {
            tracing::warn!(
                "stopped without syncing everything, or with a partition offline: the next start checks the logs"
            )
        }
    }
}
