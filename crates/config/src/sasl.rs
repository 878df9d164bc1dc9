//! SASL settings of a listener: mechanisms, their users, and the length of sessions.
//!
//! A value is looked up as `listener.name.LISTENER.MECHANISM.KEY`, then `listener.name.LISTENER.KEY`, then `KEY`. JAAS texts are
//! read under the first name alone, as in Kafka.

use std::fmt;

use super::broker_values::BrokerValues;
use super::key::Scope;
use super::listeners::Endpoint;
use super::problem::Problem;
use super::table;
use super::value::ConfigValue;

/// The mechanisms that a listener may have.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// The key of users and logins.
const JAAS: &str = "sasl.jaas.config";

/// The mechanism whose users are in the JAAS text.
const PLAIN: &str = "PLAIN";

/// The SASL settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaslListener {
    /// `sasl.enabled.mechanisms`, in this order; at least one.
    pub mechanisms: Vec<SaslMechanism>,
    /// `sasl.server.max.receive.size`: bytes of the largest frame before a connection is authenticated.
    pub receive_bytes_max: usize,
}

/// A mechanism of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaslMechanism {
    /// The registered name.
    pub name: &'static str,
    /// `sasl.jaas.config`; PLAIN has one.
    pub jaas_config: Option<SecretText>,
    /// `connections.max.reauth.ms`; with 0 a session does not end.
    pub max_reauth_ms: u64,
}

/// A value that holds secrets, which is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    pub(super) fn new(text: String) -> SecretText {
        SecretText(text)
    }

    /// The text, with its secrets.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Returns true if the JAAS text of a name is read: `listener.name.LISTENER.MECHANISM.sasl.jaas.config`.
pub(super) fn is_jaas_of_mechanism(name: &str) -> bool {
    let inner =
        name.strip_prefix("listener.name.").and_then(|rest| rest.strip_suffix(JAAS)?.strip_suffix('.'));
    let mechanism = inner.and_then(|inner| inner.split_once('.')).map(|(_, mechanism)| mechanism);
    mechanism.is_some_and(|found| MECHANISMS.iter().any(|known| known.to_lowercase() == found))
}

/// The SASL settings of each open listener, in their order; none without SASL. Else the problems of all listeners.
pub(super) fn listeners(
    values: &BrokerValues,
    open: &[Endpoint],
) -> Result<Vec<Option<SaslListener>>, Vec<Problem>> {
    let mut problems = Vec::new();
    let of = |endpoint: &Endpoint| match endpoint.protocol.has_sasl() {
        true => ListenerValues { values, endpoint }.sasl().map_err(|found| problems.extend(found)).ok(),
        false => None,
    };
    let found = open.iter().map(of).collect();
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// The effective values of one listener.
struct ListenerValues<'a> {
    values: &'a BrokerValues,
    endpoint: &'a Endpoint,
}

impl ListenerValues<'_> {
    fn sasl(&self) -> Result<SaslListener, Vec<Problem>> {
        let names = match self.value("sasl.enabled.mechanisms", None) {
            Some(ConfigValue::List(names)) => names,
            _ => Vec::new(),
        };
        if names.is_empty() {
            return Err(vec![self.problem("names no mechanism that clients could use")]);
        }
        let mut problems = Vec::new();
        let mechanism = |name: &String| self.mechanism(name).map_err(|found| problems.push(found)).ok();
        let mechanisms: Vec<SaslMechanism> = names.iter().filter_map(mechanism).collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        let receive_bytes_max = self.number("sasl.server.max.receive.size", None);
        Ok(SaslListener { mechanisms, receive_bytes_max: usize::try_from(receive_bytes_max).unwrap_or(0) })
    }

    fn mechanism(&self, name: &str) -> Result<SaslMechanism, Problem> {
        let Some(known) = MECHANISMS.into_iter().find(|known| *known == name) else {
            let known = MECHANISMS.join(", ");
            return Err(
                self.problem(&format!("asks for {name}, which this version does not have. Use {known}"))
            );
        };
        let key = format!("{}.{}.{JAAS}", self.prefix(), known.to_lowercase());
        let jaas_config = self.values.lookup(&key).map(|(text, _)| SecretText(text.to_owned()));
        if known == PLAIN && jaas_config.is_none() {
            return Err(Problem::new(format!(
                "listeners={} has PLAIN without users. Set {key} to a PlainLoginModule with user_NAME=\"PASSWORD\" for \
                 each of them",
                self.endpoint
            )));
        }
        let max_reauth_ms = self.number("connections.max.reauth.ms", Some(known));
        Ok(SaslMechanism { name: known, jaas_config, max_reauth_ms })
    }

    /// The problem of a listener whose mechanisms are wrong.
    fn problem(&self, why: &str) -> Problem {
        Problem::new(format!(
            "listeners={}: sasl.enabled.mechanisms, which {}.sasl.enabled.mechanisms overrides, {why}",
            self.endpoint,
            self.prefix()
        ))
    }

    fn prefix(&self) -> String {
        format!("listener.name.{}", self.endpoint.listener.to_lowercase())
    }

    /// Negative counts as 0.
    fn number(&self, key: &str, mechanism: Option<&str>) -> u64 {
        match self.value(key, mechanism) {
            Some(ConfigValue::Int(number)) => u64::try_from(number).unwrap_or(0),
            _ => 0,
        }
    }

    fn value(&self, key: &str, mechanism: Option<&str>) -> Option<ConfigValue> {
        let row = table::find(Scope::Broker, key)?;
        let of_mechanism =
            mechanism.map(|mechanism| format!("{}.{}.{key}", self.prefix(), mechanism.to_lowercase()));
        let of_listener = format!("{}.{key}", self.prefix());
        let own = of_mechanism.iter().chain([&of_listener]).find_map(|name| self.values.lookup(name));
        own.and_then(|(text, _)| row.parse(text).ok()).or_else(|| self.values.effective(row))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;

    fn check(lines: &str, expect: Expect) {
        let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() });
        expect.assert_eq(&match config {
            Ok(config) => format!("{:?}", config.sasl_listeners),
            Err(error) => error.to_string(),
        });
    }

    #[test]
    fn a_listener_has_its_own_values_over_the_common_ones() {
        check(
            "listeners=PLAINTEXT://:1,IN://:2,OUT://:3\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT\n\
             sasl.enabled.mechanisms=SCRAM-SHA-512\n\
             listener.name.in.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n\
             listener.name.in.plain.sasl.jaas.config=a.B required user_a=b;\n\
             connections.max.reauth.ms=1000\n\
             listener.name.in.connections.max.reauth.ms=2000\n\
             listener.name.in.plain.connections.max.reauth.ms=3000\n\
             sasl.server.max.receive.size=1024\n\
             listener.name.out.sasl.server.max.receive.size=2048\n",
            expect![[
                r#"[None, Some(SaslListener { mechanisms: [SaslMechanism { name: "PLAIN", jaas_config: Some([hidden]), max_reauth_ms: 3000 }, SaslMechanism { name: "SCRAM-SHA-256", jaas_config: None, max_reauth_ms: 2000 }], receive_bytes_max: 1024 }), Some(SaslListener { mechanisms: [SaslMechanism { name: "SCRAM-SHA-512", jaas_config: None, max_reauth_ms: 1000 }], receive_bytes_max: 2048 })]"#
            ]],
        );
    }

    #[test]
    fn mechanisms_that_are_not_there_stop_the_start() {
        check(
            "listeners=SASL_PLAINTEXT://:1",
            expect![
                "listeners=SASL_PLAINTEXT://:1: sasl.enabled.mechanisms, which \
                 listener.name.sasl_plaintext.sasl.enabled.mechanisms overrides, asks for GSSAPI, which this version does not \
                 have. Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
            ],
        );
        check(
            "listeners=SASL_PLAINTEXT://:1\nsasl.enabled.mechanisms=",
            expect![
                "listeners=SASL_PLAINTEXT://:1: sasl.enabled.mechanisms, which \
                 listener.name.sasl_plaintext.sasl.enabled.mechanisms overrides, names no mechanism that clients could use"
            ],
        );
        check(
            "listeners=SASL_PLAINTEXT://:1\nsasl.enabled.mechanisms=PLAIN",
            expect![[r#"
                listeners=SASL_PLAINTEXT://:1 has PLAIN without users. Set listener.name.sasl_plaintext.plain.sasl.jaas.config to a PlainLoginModule with user_NAME="PASSWORD" for each of them"#]],
        );
    }

    #[test]
    fn each_listener_and_mechanism_that_is_wrong_is_named() {
        check(
            "listeners=IN://:1,OUT://:2\nlistener.security.protocol.map=IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT\n\
             inter.broker.listener.name=IN\nsasl.enabled.mechanisms=PLAIN,GSSAPI",
            expect![[r#"
                listeners=IN://:1 has PLAIN without users. Set listener.name.in.plain.sasl.jaas.config to a PlainLoginModule with user_NAME="PASSWORD" for each of them
                listeners=IN://:1: sasl.enabled.mechanisms, which listener.name.in.sasl.enabled.mechanisms overrides, asks for GSSAPI, which this version does not have. Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
                listeners=OUT://:2 has PLAIN without users. Set listener.name.out.plain.sasl.jaas.config to a PlainLoginModule with user_NAME="PASSWORD" for each of them
                listeners=OUT://:2: sasl.enabled.mechanisms, which listener.name.out.sasl.enabled.mechanisms overrides, asks for GSSAPI, which this version does not have. Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"#]],
        );
    }

    #[test]
    fn without_a_sasl_listener_the_mechanisms_say_nothing() {
        check("listeners=PLAINTEXT://:1\nsasl.enabled.mechanisms=GSSAPI", expect!["[None]"]);
    }
}
