//! The cluster that a command talks to, as the command line names it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use mainstem_broker::config::{Properties, Surroundings};
use mainstem_client::{Admin, ClientConfig, Error, ErrorClass};

/// The environment variable with the brokers to connect to.
pub(crate) const VARIABLE: &str = "MAINSTEM_BOOTSTRAP";
/// The environment variable with a file of Kafka's properties of clients.
pub(crate) const CONFIG_VARIABLE: &str = "MAINSTEM_COMMAND_CONFIG";
/// Names the tool in the brokers' logs, metrics and quotas.
const CLIENT_ID: &str = "mainstem";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than a broker takes for any request that does not say itself how long it may wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Who asks for less has one attempt, which needs its time all the same.
const LIMIT_MIN: Duration = Duration::from_secs(1);

/// What every command takes that talks to a broker.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Brokers to connect to first, separated by commas; the others are found through them.
    #[arg(long, env = VARIABLE, default_value = "127.0.0.1:9092", value_name = "HOST:PORT")]
    bootstrap: String,
    /// A file of Kafka's properties of clients, of which those about security count: `security.protocol`, `ssl.*`,
    /// `sasl.mechanism`, `sasl.jaas.config`.
    #[arg(long, env = CONFIG_VARIABLE, value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// How long to retry what may succeed later, such as a leader that is being elected.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
}

/// Properties with the values that stand elsewhere (`config.providers`).
pub(crate) fn resolved(properties: &Properties) -> Result<Properties> {
    let environment = |name: &str| std::env::var(name).ok();
    let read = |path: &str| std::fs::read(path).map_err(|error| error.to_string());
    Ok(properties.resolved(&Surroundings { environment: &environment, read: &read })?)
}

impl Target {
    /// How to connect, and how long to try.
    pub(crate) fn config(&self) -> Result<ClientConfig> {
        let config = ClientConfig::new(&self.bootstrap).map_err(|_| {
            anyhow!("--bootstrap takes HOST:PORT, such as 127.0.0.1:9092, not {:?}", self.bootstrap)
        })?;
        let config = self.secured(config)?;
        Ok(ClientConfig {
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            operation_timeout: self.limit(),
            retry_backoff: FIRST_RETRY,
            ..config.client_id(CLIENT_ID)
        })
    }

    fn secured(&self, config: ClientConfig) -> Result<ClientConfig> {
        let Some(path) = &self.command_config else { return Ok(config) };
        let named = || format!("--command-config {}", path.display());
        let bytes = std::fs::read(path).with_context(named)?;
        let properties = Properties::parse(&bytes).with_context(named)?;
        let properties = resolved(&properties).with_context(named)?;
        config.security(&|key| properties.get(key).map(str::to_owned)).with_context(named)
    }

    /// How long something may take that is tried again.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout).max(LIMIT_MIN)
    }

    /// Connects to the first of the brokers that answers.
    pub(crate) async fn connect(&self) -> Result<Admin> {
        match Admin::connect(self.config()?).await {
            Err(error @ Error::Connect { .. }) => Err(error.into()),
            // Who is refused knows what to do; that a broker is there is certain.
            Err(error) if error.class() == ErrorClass::Fatal => Err(error.into()),
            Err(error) => {
                let broker = error.broker().unwrap_or(&self.bootstrap).to_owned();
                Err(error).with_context(|| format!("{broker} does not answer as a Kafka broker does"))
            }
            Ok(admin) => Ok(admin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_names_a_port() {
        for wrong in ["localhost", "localhost:", "localhost:http", "a:1,b", ""] {
            let target = Target { bootstrap: wrong.to_owned(), command_config: None, timeout: 0 };
            let error = target.config().expect_err(wrong).to_string();
            assert!(error.contains("--bootstrap takes HOST:PORT"), "{wrong}: {error}");
        }
    }
}
