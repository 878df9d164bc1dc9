//! The cluster that a command talks to, as the command line names it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use mainstem_broker::config::{Properties, Surroundings, files};
use mainstem_client::{Admin, ClientConfig, Error, ErrorClass};

use crate::profiles::{self, Profiles};
use crate::tls_hint;

/// The environment variable with the brokers to connect to.
pub(crate) const VARIABLE: &str = "MAINSTEM_BOOTSTRAP";
/// The environment variable with a file of Kafka's properties of clients.
pub(crate) const CONFIG_VARIABLE: &str = "MAINSTEM_COMMAND_CONFIG";
/// The client id, which names the tool in the brokers' logs, metrics and quotas.
const CLIENT_ID: &str = "mainstem";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of requests that do not say themselves how long they may take. No broker takes that long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// The least time for an operation: one attempt needs it.
const LIMIT_MIN: Duration = Duration::from_secs(1);

/// The broker that a command connects to if nothing names another.
const DEFAULT_BOOTSTRAP: &str = "127.0.0.1:9092";

/// Arguments of every command that talks to a broker.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Brokers to connect to first, separated by commas; the others are found through them. [env: MAINSTEM_BOOTSTRAP]
    /// [default: the profile's, or 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    bootstrap: Option<String>,
    /// A file of Kafka's properties of clients, of which those about security count: `security.protocol`, `ssl.*`,
    /// `sasl.mechanism`, `sasl.jaas.config`. [env: MAINSTEM_COMMAND_CONFIG] [default: the profile's]
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// A profile of `mainstem profile`, which says where to connect and how; --bootstrap comes before it.
    /// [env: MAINSTEM_PROFILE] [default: the one of `mainstem profile use`]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Seconds for which an operation is retried that may succeed later, such as one that waits for a leader election.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
}

/// A cluster to connect to, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    bootstrap: String,
    command_config: Option<PathBuf>,
}

/// The environment variables that say where to connect.
#[derive(Debug, Default)]
struct Environment {
    bootstrap: Option<String>,
    command_config: Option<PathBuf>,
    profile: Option<String>,
}

impl Environment {
    fn read() -> Environment {
        let text = |name: &str| std::env::var(name).ok();
        Environment {
            bootstrap: text(VARIABLE),
            command_config: std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from),
            profile: text(profiles::VARIABLE),
        }
    }
}

/// Properties whose references to other files are resolved (`config.providers`).
pub(crate) fn resolved(properties: &Properties) -> Result<Properties> {
    let environment = |name: &str| std::env::var(name).ok();
    let read = |path: &str| files::read(Path::new(path)).map_err(|error| error.to_string());
    Ok(properties.resolved(&Surroundings { environment: &environment, read: &read })?)
}

impl Target {
    /// The configuration of the client: where and how to connect, and for how long to retry.
    pub(crate) fn config(&self) -> Result<ClientConfig> {
        self.config_of(&self.place()?)
    }

    fn config_of(&self, place: &Place) -> Result<ClientConfig> {
        let config = ClientConfig::new(&place.bootstrap).map_err(|_| {
            anyhow!("--bootstrap takes HOST:PORT, such as 127.0.0.1:9092, not {:?}", place.bootstrap)
        })?;
        let config = secured(config, place.command_config.as_deref())?;
        Ok(ClientConfig {
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            operation_timeout: self.limit(),
            retry_backoff: FIRST_RETRY,
            ..config.client_id(CLIENT_ID)
        })
    }

    /// The cluster to connect to, and how.
    ///
    /// # Errors
    /// When the named profile does not exist.
    fn place(&self) -> Result<Place> {
        self.place_in(Environment::read(), Profiles::load)
    }

    /// The same with a given environment. The profiles are read only if one of them is used.
    ///
    /// The file of properties comes from the same source as the brokers, unless the command line names it: the
    /// credentials of one cluster are not shown to another.
    fn place_in(
        &self,
        environment: Environment,
        profiles: impl FnOnce() -> Result<Profiles>,
    ) -> Result<Place> {
        let own = self.command_config.clone();
        let (bootstrap, command_config) = match (&self.bootstrap, &self.profile, environment.bootstrap) {
            (Some(bootstrap), None, _) => (bootstrap.clone(), environment.command_config),
            (bootstrap, Some(name), _) => {
                let profile = profiles()?.get(name)?.clone();
                (bootstrap.clone().unwrap_or(profile.bootstrap), profile.command_config)
            }
            (None, None, Some(bootstrap)) => (bootstrap, environment.command_config),
            (None, None, None) => {
                let profiles = profiles()?;
                match environment.profile.as_ref().or(profiles.used.as_ref()) {
                    Some(name) => {
                        let profile = profiles.get(name)?.clone();
                        (profile.bootstrap, environment.command_config.or(profile.command_config))
                    }
                    None => (DEFAULT_BOOTSTRAP.to_owned(), environment.command_config),
                }
            }
        };
        Ok(Place { bootstrap, command_config: own.or(command_config) })
    }

    /// The time for which an operation is retried.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout).max(LIMIT_MIN)
    }

    /// Connects to the first of the brokers that answers.
    pub(crate) async fn connect(&self) -> Result<Admin> {
        let place = self.place()?;
        let config = self.config_of(&place)?;
        let is_plain = config.tls.is_none();
        match Admin::connect(config).await {
            Err(error @ Error::Connect { .. }) => Err(error.into()),
            // The refusal of a login needs no hint: its message says what to do.
            Err(error) if error.class() == ErrorClass::Fatal => Err(error.into()),
            Err(error) => {
                let broker = error.broker().unwrap_or(&place.bootstrap).to_owned();
                let hint = match is_plain && tls_hint::speaks_tls(&broker).await {
                    true => format!("; {}", tls_hint::HINT),
                    false => String::new(),
                };
                Err(error).with_context(|| format!("{broker} does not answer as a Kafka broker does{hint}"))
            }
            Ok(admin) => Ok(admin),
        }
    }
}

fn secured(config: ClientConfig, path: Option<&Path>) -> Result<ClientConfig> {
    let Some(path) = path else { return Ok(config) };
    let named = || format!("--command-config {}", path.display());
    let bytes = files::read_given(path).with_context(named)?;
    let properties = Properties::parse(&bytes).with_context(named)?;
    let properties = resolved(&properties).with_context(named)?;
    config.security(&|key| properties.get(key).map(str::to_owned)).with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::Profile;

    /// Target of a command line that names these.
    fn target(bootstrap: Option<&str>, command_config: Option<&str>, profile: Option<&str>) -> Target {
        Target {
            bootstrap: bootstrap.map(str::to_owned),
            command_config: command_config.map(PathBuf::from),
            profile: profile.map(str::to_owned),
            timeout: 0,
        }
    }

    #[test]
    fn what_is_nearest_says_where_to_connect() {
        let profiles = || {
            let one =
                |host: &str| Profile { bootstrap: format!("{host}:1"), command_config: Some(host.into()) };
            let all = ["named", "chosen", "used"].map(|name| (name.to_owned(), one(name)));
            Ok(Profiles { used: Some("used".to_owned()), profiles: all.into() })
        };
        let environment = |bootstrap: Option<&str>, command_config: Option<&str>, profile: Option<&str>| {
            let Target { bootstrap, command_config, profile, .. } =
                target(bootstrap, command_config, profile);
            Environment { bootstrap, command_config, profile }
        };
        let all = || environment(Some("env:1"), Some("env"), Some("chosen"));
        for (target, environment, bootstrap, command_config) in [
            (target(Some("own:1"), Some("own"), Some("named")), all(), "own:1", Some("own")),
            (target(Some("own:1"), None, Some("named")), all(), "own:1", Some("named")),
            (target(Some("own:1"), None, None), all(), "own:1", Some("env")),
            (target(Some("own:1"), None, None), Environment::default(), "own:1", None),
            (target(None, None, Some("named")), all(), "named:1", Some("named")),
            (target(None, None, None), all(), "env:1", Some("env")),
            (target(None, None, None), environment(None, None, Some("chosen")), "chosen:1", Some("chosen")),
            (target(None, None, None), environment(None, Some("env"), None), "used:1", Some("env")),
            (target(None, Some("own"), None), Environment::default(), "used:1", Some("own")),
        ] {
            let named = format!("{target:?} {environment:?}");
            let place = target.place_in(environment, profiles).unwrap();
            let expected =
                Place { bootstrap: bootstrap.into(), command_config: command_config.map(PathBuf::from) };
            assert_eq!(place, expected, "{named}");
        }
        let none = target(None, None, None).place_in(Environment::default(), || Ok(Profiles::default()));
        assert_eq!(none.unwrap().bootstrap, DEFAULT_BOOTSTRAP);
        let missing = target(None, None, Some("missing")).place_in(Environment::default(), profiles);
        assert!(missing.unwrap_err().to_string().starts_with("there is no profile missing"));
    }

    #[test]
    fn bootstrap_names_a_port() {
        for wrong in ["localhost", "localhost:", "localhost:http", "a:1,b", ""] {
            let error = target(Some(wrong), None, None).config().expect_err(wrong).to_string();
            assert!(error.contains("--bootstrap takes HOST:PORT"), "{wrong}: {error}");
        }
    }
}
