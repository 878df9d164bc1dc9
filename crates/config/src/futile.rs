//! Values that are valid each, but have no effect beside the others: a broker starts with them, as Kafka does, and warns of them.

use std::collections::BTreeSet;

use super::broker::BrokerConfig;
use super::key::{ConfigKey, Scope, Status};
use super::listeners::SecurityProtocol;
use super::table;
use super::value::ConfigValue;
use super::warning::ConfigWarning;

/// The protection of a listener's clients.
#[derive(Debug, Clone, Copy)]
enum Protection {
    Tls,
    Sasl,
}

/// The warnings of a whole configuration.
pub(super) fn warnings(config: &BrokerConfig) -> Vec<ConfigWarning> {
    let mut found = few_nodes(config);
    found.extend(protections(config));
    found.extend(large_messages(config));
    found
}

/// Numbers of replicas above the number of nodes: Kafka accepts them and then refuses the topics, or writes to them.
fn few_nodes(config: &BrokerConfig) -> Vec<ConfigWarning> {
    if config.quorum.as_ref().is_some_and(|quorum| quorum.joining.is_some()) {
        // The number of nodes of a cluster that is joined is not known.
        return Vec::new();
    }
    let nodes = config.quorum.as_ref().map_or(1, |quorum| quorum.voters.len());
    let counts_replicas = |key: &ConfigKey| {
        key.name.ends_with(".replication.factor")
            || key.name.ends_with("min.isr")
            || key.name == "min.insync.replicas"
    };
    let keys =
        table::keys(Scope::Broker).filter(|key| key.status == Status::Honoured && counts_replicas(key));
    let above = keys.filter_map(|key| {
        let (text, _) = config.values.lookup(key.name)?;
        let Ok(ConfigValue::Int(value)) = key.parse(text) else { return None };
        let is_above = usize::try_from(value).is_ok_and(|value| value > nodes);
        is_above.then_some(ConfigWarning::FewNodes { name: key.name, value, nodes })
    });
    above.collect()
}

/// Keys of TLS and of SASL that no listener uses: an operator may believe that they keep clients out.
fn protections(config: &BrokerConfig) -> Vec<ConfigWarning> {
    let listeners: Vec<_> = config.listeners.open.iter().chain(&config.listeners.controller).collect();
    let http = config.http_tls.is_some();
    let uses = |protocol: SecurityProtocol, protection| match protection {
        Protection::Tls => protocol.has_tls(),
        Protection::Sasl => protocol.has_sasl(),
    };
    let mut seen = BTreeSet::new();
    let set = config.values.set_at_start();
    let futile = set.filter_map(|(name, text, _)| {
        let base = table::without_listener_prefix(name);
        let protection = match base.split('.').next() {
            Some("ssl") => Protection::Tls,
            Some("sasl") => Protection::Sasl,
            _ => return None,
        };
        let shown = match protection {
            Protection::Tls => "TLS",
            Protection::Sasl => "SASL",
        };
        let is_default = table::find(Scope::Broker, base)
            .is_some_and(|key| key.default_value().is_some_and(|default| key.parse(text) == Ok(default)));
        if text.is_empty() || is_default {
            return None;
        }
        let because = match name.strip_prefix("listener.name.").and_then(|rest| rest.split('.').next()) {
            None => {
                let used = listeners.iter().any(|one| uses(one.protocol, protection));
                let used = used || http && matches!(protection, Protection::Tls);
                (!used).then(|| format!("no listener uses {shown}"))
            }
            Some("http") if http => None,
            Some(named) => {
                let named_so = |one: &&&super::Endpoint| one.listener.eq_ignore_ascii_case(named);
                match listeners.iter().find(named_so) {
                    Some(one) if uses(one.protocol, protection) => None,
                    Some(one) => Some(format!("listener {} does not use {shown}", one.listener)),
                    None => Some(format!("there is no listener {named}")),
                }
            }
        };
        let because = because?;
        // Of all keys without a listener's name one is enough to see it.
        let is_first = name.starts_with("listener.name.") || seen.insert(shown);
        is_first.then(|| ConfigWarning::Futile {
            name: name.to_owned(),
            because: format!("{because}; listener.security.protocol.map says what a listener uses"),
        })
    });
    futile.collect()
}

/// Records that are allowed, in requests that are too large.
fn large_messages(config: &BrokerConfig) -> Option<ConfigWarning> {
    let number = |name: &str| {
        let key = table::find(Scope::Broker, name).expect("it is in the table");
        match config.values.effective(key) {
            Some(ConfigValue::Int(number)) => number,
            _ => 0,
        }
    };
    let (message, request) = (number("message.max.bytes"), number("socket.request.max.bytes"));
    (message > request).then(|| ConfigWarning::Futile {
        name: match config.values.lookup("message.max.bytes") {
            Some(_) => format!("message.max.bytes={message}"),
            None => format!("message.max.bytes, which is {message} by default,"),
        },
        because: format!(
            "socket.request.max.bytes={request} is less, and a connection with a larger request is closed; raise that as well"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::*;

    fn check(lines: &str, expected: &[&str]) {
        let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
        let config =
            BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() }).expect(lines);
        let found: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{lines}");
    }

    #[test]
    fn numbers_of_replicas_are_compared_with_the_nodes() {
        check("", &[]);
        check("offsets.topic.replication.factor=1\nmin.insync.replicas=1", &[]);
        check(
            "default.replication.factor=2\nmin.insync.replicas=2\noffsets.topic.replication.factor=3\n\
             transaction.state.log.min.isr=2\ntransaction.state.log.replication.factor=3",
            &[
                "default.replication.factor=2 cannot be met: there is one node, so topics that need it are refused",
                "min.insync.replicas=2 cannot be met: there is one node, so what is written with acks=all is refused",
                "offsets.topic.replication.factor=3 cannot be met: there is one node, so topics that need it are refused",
                "transaction.state.log.min.isr=2 cannot be met: there is one node, so what is written with acks=all is refused",
                "transaction.state.log.replication.factor=3 cannot be met: there is one node, so topics that need it are \
                 refused",
            ],
        );
    }

    #[test]
    fn keys_of_tls_and_sasl_that_no_listener_uses_are_named() {
        const MAP: &str = "listener.security.protocol.map says what a listener uses";
        let of = |name: &str, because: &str| format!("{name} has no effect: {because}; {MAP}");
        check("sasl.enabled.mechanisms=GSSAPI\nssl.client.auth=none", &[]);
        check(
            "sasl.enabled.mechanisms=PLAIN\nssl.keystore.location=/k.p12\nssl.keystore.password=p",
            &[
                &of("sasl.enabled.mechanisms", "no listener uses SASL"),
                &of("ssl.keystore.location", "no listener uses TLS"),
            ],
        );
        check(
            "listeners=IN://127.0.0.1:1\nlistener.security.protocol.map=IN:PLAINTEXT\n\
             listener.name.in.ssl.keystore.location=/k.p12\nlistener.name.out.plain.sasl.jaas.config=a",
            &[
                &of("listener.name.in.ssl.keystore.location", "listener IN does not use TLS"),
                &of("listener.name.out.plain.sasl.jaas.config", "there is no listener out"),
            ],
        );
        check(
            "listeners=SASL_SSL://127.0.0.1:1\nsasl.enabled.mechanisms=SCRAM-SHA-512\nssl.keystore.location=/k.p12\n\
             listener.name.sasl_ssl.ssl.client.auth=required",
            &[],
        );
    }

    #[test]
    fn a_message_has_to_fit_a_request() {
        check(
            "message.max.bytes=2000\nsocket.request.max.bytes=1999",
            &[
                "message.max.bytes=2000 has no effect: socket.request.max.bytes=1999 is less, and a connection with a larger \
               request is closed; raise that as well",
            ],
        );
        check("socket.request.max.bytes=1048588", &[]);
    }
}
