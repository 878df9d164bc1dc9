//! `mainstem direct`: streams of publishers, and what is kept of their consumers.

mod filter;
mod serve;
mod show;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use mainstem_broker::config::files;
use mainstem_direct::proto::{self, ConsumerInfo, StreamInfo, manage_request::Action, reset::To};
use mainstem_direct::{Address, Admin, LocalAdmin};
use serde_json::json;

use crate::execution::{Execution, Plan};
use crate::output::{print_json, print_line};
use crate::timestamp;

/// Arguments of `direct`.
#[derive(Debug, Args)]
pub(crate) struct DirectArguments {
    #[command(subcommand)]
    command: DirectCommand,
}

#[derive(Debug, Subcommand)]
enum DirectCommand {
    /// Show streams and their consumers.
    List(List),
    /// Show how far consumers are behind, in events and in milliseconds.
    Lag(List),
    /// Send a consumer nothing more until it is resumed, also after restarts.
    Pause(One),
    /// Send to a consumer again.
    Resume(One),
    /// Move a consumer to another position; events in flight to it are void. Without --execute only shows it.
    Reset(Reset),
    /// Keep a filter of a consumer at the publisher, for all of its instances.
    Filter(filter::SetFilter),
    /// Forget a consumer and its position; a later one of the name is new. Without --execute only shows it.
    Forget(Forget),
    /// Serve queue directories as streams, for programs that only append to them.
    Serve(serve::Serve),
}

/// Arguments that name the publisher.
#[derive(Debug, Args)]
struct Target {
    /// Address of the publisher, `grpc://HOST:PORT`; or, while no process has it open, the directory of a journal.
    target: String,
    /// Authorities that the publisher's certificate is of, in PEM; it is reached by TLS then.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate to show to the publisher, in PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `direct list` and `direct lag`.
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    target: Target,
    /// Only this stream.
    stream: Option<String>,
}

/// A consumer.
#[derive(Debug, Args)]
struct One {
    #[command(flatten)]
    target: Target,
    /// Name of the stream.
    stream: String,
    /// Name of the consumer.
    consumer: String,
}

/// Arguments of `direct reset`.
#[derive(Debug, Args)]
struct Reset {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    to: ResetTo,
    #[command(flatten)]
    execution: Execution,
}

/// Arguments of `direct forget`.
#[derive(Debug, Args)]
struct Forget {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    execution: Execution,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ResetTo {
    /// To the first existing event.
    #[arg(long)]
    to_earliest: bool,
    /// To what is appended from now on.
    #[arg(long)]
    to_latest: bool,
    /// To the event of this offset.
    #[arg(long, value_name = "OFFSET")]
    to_offset: Option<i64>,
    /// To the first event of this time or later, in ms since 1970.
    #[arg(long, value_name = "MS")]
    to_time_ms: Option<i64>,
}

impl ResetTo {
    /// The position, in words.
    fn name(&self) -> String {
        match (self.to_offset, self.to_time_ms) {
            (Some(offset), _) => format!("offset {offset}"),
            (_, Some(time_ms)) => format!("the first event of {} or later", timestamp::format(time_ms)),
            _ if self.to_latest => "the end of the stream".to_owned(),
            _ => "the first event of the stream".to_owned(),
        }
    }

    fn to_proto(&self) -> proto::Reset {
        let to = match (self.to_offset, self.to_time_ms) {
            (Some(offset), _) => To::Offset(offset),
            (_, Some(time_ms)) => To::TimeMs(time_ms),
            _ if self.to_latest => To::Latest(proto::Everything {}),
            _ => To::Earliest(proto::Everything {}),
        };
        proto::Reset { to: Some(to) }
    }
}

/// The publisher that answers: a process, or the journal's directory.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Asked {
    Remote(Box<Admin>),
    Local(LocalAdmin),
}

impl Target {
    async fn ask(&self) -> Result<Asked> {
        let directory = PathBuf::from(&self.target);
        if !self.target.starts_with("grpc://") && (directory.is_dir() || !self.target.contains(':')) {
            return Ok(Asked::Local(LocalAdmin::open(&directory)?));
        }
        let read = |path: &PathBuf| {
            files::read_given(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let mut address = Address::new(&self.target)?;
        if let Some(ca) = &self.ca {
            address = address.tls(read(ca)?);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            if self.ca.is_none() {
                bail!("a certificate is shown by TLS alone; name the publisher's authorities too (--ca)");
            }
            address = address.identity(read(certificate)?, read(key)?);
        }
        Ok(Asked::Remote(Box::new(Admin::connect(address).await?)))
    }
}

impl Asked {
    async fn describe(&mut self, stream: Option<&str>) -> Result<Vec<StreamInfo>> {
        match self {
            Asked::Remote(admin) => Ok(admin.describe(stream.unwrap_or_default()).await?),
            Asked::Local(local) => {
                let info = local.describe();
                match stream.is_none_or(|stream| stream == info.name) {
                    true => Ok(vec![info]),
                    false => bail!("this is the journal of stream {}", info.name),
                }
            }
        }
    }

    async fn manage(&mut self, stream: &str, consumer: &str, action: Action) -> Result<Option<ConsumerInfo>> {
        match self {
            Asked::Remote(admin) => Ok(admin.manage(stream, consumer, action).await?),
            Asked::Local(local) => {
                let name = local.describe().name;
                match name == stream {
                    true => Ok(local.manage(consumer, &action)?),
                    false => bail!("this is the journal of stream {name}"),
                }
            }
        }
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: &DirectArguments) -> Result<()> {
    match &arguments.command {
        DirectCommand::List(list) => {
            let streams = list.target.ask().await?.describe(list.stream.as_deref()).await?;
            show::list(&streams, list.target.json)
        }
        DirectCommand::Lag(list) => {
            let streams = list.target.ask().await?.describe(list.stream.as_deref()).await?;
            show::lag(&streams, list.target.json)
        }
        DirectCommand::Pause(one) => change(one, Action::Pause(proto::Pause {}), "is paused").await,
        DirectCommand::Resume(one) => change(one, Action::Resume(proto::Resume {}), "resumes").await,
        DirectCommand::Reset(reset) => {
            let what = format!("would continue at {}", reset.to.name());
            match reset.execution.begin(reset.one.target.json, plan(&reset.one, &what)).await? {
                true => change(&reset.one, Action::Reset(reset.to.to_proto()), "continues").await,
                false => Ok(()),
            }
        }
        DirectCommand::Filter(set) => {
            let filter = set.filter();
            let what =
                if filter.exclude.is_empty() { "sees everything" } else { "sees what the filter lets pass" };
            change(&set.one, Action::Filter(filter), what).await
        }
        DirectCommand::Forget(Forget { one, execution }) => {
            match execution.begin(one.target.json, plan(one, "would be forgotten, with its filter")).await? {
                true => change(one, Action::Forget(proto::Forget {}), "is forgotten").await,
                false => Ok(()),
            }
        }
        DirectCommand::Serve(serve) => serve::run(serve).await,
    }
}

/// The consumer as it is, and the change.
async fn plan(one: &One, what: &str) -> Result<Plan> {
    let streams = one.target.ask().await?.describe(Some(&one.stream)).await?;
    let mut consumers = streams.iter().flat_map(|stream| &stream.consumers);
    let Some(found) = consumers.find(|known| known.name == one.consumer) else {
        bail!(
            "stream {} has no consumer {}; `mainstem direct list {}` shows those that it has",
            one.stream,
            one.consumer,
            one.target.target
        );
    };
    let text = format!(
        "consumer {} of {} is at offset {}, {} events behind; it {what}",
        one.consumer, one.stream, found.offset, found.lag
    );
    Ok(Plan { text, json: json!({ "stream": one.stream, "consumer": show::consumer_json(found) }) })
}

async fn change(one: &One, action: Action, what: &str) -> Result<()> {
    let changed = one.target.ask().await?.manage(&one.stream, &one.consumer, action.clone()).await?;
    if one.target.json {
        let consumer = changed.as_ref().map(show::consumer_json);
        return print_json(&json!({ "stream": one.stream, "consumer": consumer }));
    }
    let at = changed.map_or(String::new(), |now| {
        let from = match &action {
            Action::Filter(_) => format!(" from offset {} on", now.filtered_from),
            _ => String::new(),
        };
        format!("{from}, at offset {} and {} events behind", now.offset, now.lag)
    });
    print_line(&format!("consumer {} of {} {what}{at}", one.consumer, one.stream))
}
