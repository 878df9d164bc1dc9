//! TLS settings of a listener: its values of `ssl.*`.
//!
//! A value is looked up as `listener.name.LISTENER.KEY`, then `KEY`.

use std::collections::BTreeMap;
use std::fmt;

use super::broker_values::BrokerValues;
use super::listeners::{Endpoint, SecurityProtocol};

/// The keys that are supported.
pub(super) const KEYS: &[&str] = &[
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.principal.mapping.rules",
    "ssl.protocol",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
];

/// The key that counts for a SASL_SSL listener under its prefix alone, as in Kafka: clients with SASL need no certificate unless
/// that listener demands one.
const CLIENT_AUTH: &str = "ssl.client.auth";

/// The way in which clients of the HTTP listener authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpAuthentication {
    /// They do not, over plain HTTP.
    None,
    /// By the password of a SCRAM user, over TLS.
    Basic,
    /// By a certificate, over TLS.
    Certificate,
}

/// The `ssl.*` values of a listener. They are not printed: some are secrets.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TlsListener {
    values: BTreeMap<&'static str, String>,
}

impl TlsListener {
    /// The text of a key; none if it is not set for this listener, neither by its prefix nor without.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// The TLS settings of each open listener, in their order; none without TLS.
pub(super) fn listeners(values: &BrokerValues, open: &[Endpoint]) -> Vec<Option<TlsListener>> {
    open.iter().map(|endpoint| endpoint.protocol.has_tls().then(|| of(values, endpoint))).collect()
}

/// The TLS settings of the HTTP listener, whose prefix is `listener.name.http`; none if its clients do not authenticate.
pub(super) fn http(values: &BrokerValues, authentication: HttpAuthentication) -> Option<TlsListener> {
    let client_auth = match authentication {
        HttpAuthentication::None => return None,
        HttpAuthentication::Basic => "none",
        HttpAuthentication::Certificate => "required",
    };
    let value = |key: &&'static str| {
        let own = values.lookup(&format!("listener.name.http.{key}"));
        let (text, _) = own.or_else(|| values.lookup(key))?;
        Some((*key, text.to_owned()))
    };
    let mut values: BTreeMap<_, _> = KEYS.iter().filter_map(value).collect();
    values.insert(CLIENT_AUTH, client_auth.to_owned());
    Some(TlsListener { values })
}

fn of(values: &BrokerValues, endpoint: &Endpoint) -> TlsListener {
    let prefix = format!("listener.name.{}", endpoint.listener.to_lowercase());
    let value = |key: &&'static str| {
        let own = values.lookup(&format!("{prefix}.{key}"));
        let is_common = *key != CLIENT_AUTH || endpoint.protocol != SecurityProtocol::SaslSsl;
        let (text, _) = own.or_else(|| values.lookup(key).filter(|_| is_common))?;
        Some((*key, text.to_owned()))
    };
    TlsListener { values: KEYS.iter().filter_map(value).collect() }
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::*;

    #[test]
    fn keys_are_sorted() {
        assert!(KEYS.is_sorted());
    }

    #[test]
    fn an_open_listener_can_be_forbidden() {
        let config = |lines: &str| {
            let lines = format!("mainstem.require.authentication=true\n{lines}");
            let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
            BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() })
        };
        for (lines, starts) in [
            ("", false),
            ("listeners=SSL://:1", false),
            ("listeners=SSL://:1\nssl.client.auth=requested", false),
            ("listeners=SSL://:1\nssl.client.auth=required", true),
            ("listeners=SASL_SSL://:1\nsasl.enabled.mechanisms=SCRAM-SHA-512", true),
        ] {
            assert_eq!(config(lines).is_ok(), starts, "{lines}");
        }
    }

    #[test]
    fn a_listener_has_its_own_values_over_the_common_ones() {
        let lines = "listeners=PLAINTEXT://:1,SSL://:2,IN://:3,OUT://:4\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,IN:SASL_SSL,OUT:SASL_SSL\n\
             sasl.enabled.mechanisms=SCRAM-SHA-512\n\
             ssl.keystore.location=/common\nlistener.name.in.ssl.keystore.location=/in\n\
             ssl.client.auth=required\nlistener.name.out.ssl.client.auth=requested\n\
             ssl.keystore.password=s3cret";
        let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() });
        let config = config.expect("it is well formed");
        let of = |rank: usize, key| config.tls_listeners[rank].as_ref().and_then(|tls| tls.get(key));
        assert!(config.tls_listeners[0].is_none());
        assert_eq!((of(1, "ssl.keystore.location"), of(1, CLIENT_AUTH)), (Some("/common"), Some("required")));
        assert_eq!((of(2, "ssl.keystore.location"), of(2, CLIENT_AUTH)), (Some("/in"), None));
        assert_eq!(
            (of(3, "ssl.keystore.location"), of(3, CLIENT_AUTH)),
            (Some("/common"), Some("requested"))
        );
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
