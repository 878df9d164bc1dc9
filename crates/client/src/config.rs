//! The configuration that all clients share.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::ConnectionOptions;
use crate::error::Error;
use crate::sasl::Sasl;
use crate::tls::Tls;

/// Settings of a client: brokers, time-outs, retries and security.
///
/// ```
/// use mainstem_client::ClientConfig;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let config = ClientConfig::new("10.0.0.1:9092, 10.0.0.2:9092")?.client_id("billing");
/// let config = ClientConfig { request_timeout: Duration::from_secs(5), ..config };
/// assert_eq!(config.bootstrap.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Brokers to connect to first, as HOST:PORT; the others are found through them.
    pub bootstrap: Vec<String>,
    /// Names this client in the brokers' logs, metrics and quotas.
    pub client_id: String,
    /// The time limit for a connection to one broker.
    pub connect_timeout: Duration,
    /// The time limit for the answer of a broker to one request.
    pub request_timeout: Duration,
    /// The time limit for an operation with its retries, unless it has a limit of its own.
    pub operation_timeout: Duration,
    /// The first wait before a retry; it doubles up to `retry_backoff_max` (KIP-580).
    pub retry_backoff: Duration,
    /// The longest wait before a retry.
    pub retry_backoff_max: Duration,
    /// The age after which the metadata of a topic is asked for again, even if nothing went wrong.
    pub metadata_max_age: Duration,
    /// Encryption, for listeners with SSL and SASL_SSL. None: connections are not encrypted.
    pub tls: Option<Tls>,
    /// Mechanism and user, for listeners with SASL_PLAINTEXT and SASL_SSL. None: the client does not authenticate by SASL.
    pub sasl: Option<Arc<Sasl>>,
}

impl ClientConfig {
    /// The usual settings for a comma-separated list of brokers.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a broker is not HOST:PORT.
    pub fn new(bootstrap: &str) -> Result<ClientConfig, Error> {
        let bootstrap: Vec<String> =
            bootstrap.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
        let wrong = |one: &&String| one.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err());
        match bootstrap.iter().find(wrong) {
            Some(wrong) => Err(Error::Invalid(format!(
                "brokers are named as HOST:PORT, such as 127.0.0.1:9092, not {wrong:?}"
            ))),
            None if bootstrap.is_empty() => Err(Error::Invalid("no broker is named".to_owned())),
            None => Ok(ClientConfig {
                bootstrap,
                client_id: "mainstem-client".to_owned(),
                connect_timeout: Duration::from_secs(10),
                request_timeout: Duration::from_secs(30),
                operation_timeout: Duration::from_secs(60),
                retry_backoff: Duration::from_millis(100),
                retry_backoff_max: Duration::from_secs(1),
                metadata_max_age: Duration::from_secs(300),
                tls: None,
                sasl: None,
            }),
        }
    }

    /// The same with another client id.
    pub fn client_id(mut self, client_id: impl Into<String>) -> ClientConfig {
        self.client_id = client_id.into();
        self
    }

    /// The same with a user who authenticates on each connection.
    pub fn sasl(mut self, sasl: Sasl) -> ClientConfig {
        self.sasl = Some(Arc::new(sasl));
        self
    }

    /// The same with connections that are encrypted.
    pub fn tls(mut self, tls: Tls) -> ClientConfig {
        self.tls = Some(tls);
        self
    }

    /// The same with the security settings of Kafka's client properties: `security.protocol`, `ssl.*`, `sasl.mechanism` and
    /// `sasl.jaas.config`. `get` returns the value of a key, none if it is not set. Other keys are not asked for. Reads the
    /// key and trust stores that the properties name.
    ///
    /// ```
    /// # fn main() -> Result<(), mainstem_client::Error> {
    /// let properties = std::collections::HashMap::from([
    ///     ("security.protocol", "SASL_PLAINTEXT"),
    ///     ("sasl.mechanism", "SCRAM-SHA-512"),
    ///     (
    ///         "sasl.jaas.config",
    ///         "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"a\" password=\"s\";",
    ///     ),
    /// ]);
    /// let config = mainstem_client::ClientConfig::new("10.0.0.1:9092")?;
    /// let config = config.security(&|key| properties.get(key).map(ToString::to_string))?;
    /// assert!(config.sasl.is_some() && config.tls.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if they contradict each other, ask for something unsupported, or name a store that cannot be used.
    pub fn security(mut self, get: &dyn Fn(&str) -> Option<String>) -> Result<ClientConfig, Error> {
        let protocol = get("security.protocol").unwrap_or_else(|| "PLAINTEXT".to_owned());
        let (has_tls, has_sasl) = match protocol.trim().to_ascii_uppercase().as_str() {
            "PLAINTEXT" => (false, false),
            "SSL" => (true, false),
            "SASL_PLAINTEXT" => (false, true),
            "SASL_SSL" => (true, true),
            _ => {
                return Err(Error::Invalid(format!(
                    "security.protocol={protocol}: use PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
                )));
            }
        };
        self.tls = has_tls.then(|| Tls::from_properties(get)).transpose()?;
        self.sasl = has_sasl.then(|| Sasl::from_properties(get)).transpose()?.map(Arc::new);
        Ok(self)
    }

    pub(crate) fn connection(&self) -> ConnectionOptions {
        ConnectionOptions {
            client_id: Arc::from(self.client_id.as_str()),
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            tls: self.tls.clone(),
            sasl: self.sasl.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_that_cannot_be_is_refused_in_words() {
        for (properties, expected) in [
            (vec![("security.protocol", "TLS")], "security.protocol=TLS: use PLAINTEXT, SSL,"),
            (vec![("security.protocol", "SASL_PLAINTEXT")], "sasl.mechanism is GSSAPI"),
            (
                vec![("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN")],
                "sasl.jaas.config is missing",
            ),
            (
                vec![("security.protocol", "SSL"), ("ssl.truststore.location", "/missing.jks")],
                "key store /missing.jks",
            ),
        ] {
            let get = |key: &str| {
                let found = properties.iter().find(|(known, _)| *known == key);
                found.map(|(_, value)| (*value).to_owned())
            };
            let refused = ClientConfig::new("a:1").unwrap().security(&get).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn brokers_have_a_host_and_a_port() {
        assert_eq!(ClientConfig::new("a:1, [::1]:2").unwrap().bootstrap, ["a:1", "[::1]:2"]);
        for wrong in ["", "localhost", "a:1,b", "a:port"] {
            assert!(matches!(ClientConfig::new(wrong), Err(Error::Invalid(_))), "{wrong}");
        }
    }
}
