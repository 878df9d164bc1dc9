//! Keys that would keep clients out, and that this version does not support.
//!
//! Such a key must not be ignored: the node would start open although its operator believes it closed. It is a
//! problem at start, from every source. A key with its default value asks for nothing.
//!
//! A protection that gets implemented loses its rows in [`PROTECTIONS`]; no other code has to change.

use super::broker_values::BrokerValues;
use super::key::Scope;
use super::origin::{StaticOrigin, environment_name};
use super::problem::Problem;
use super::sasl;
use super::table;
use super::tls;

/// Keys that ask for one kind of protection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Protection {
    /// A key's name, or the beginning of several if it ends in a dot. Both are seen through a listener's prefix.
    pub(super) key: &'static str,
    /// The protection that the key asks for: completes "KEY asks for ...".
    pub(super) asks_for: &'static str,
    /// The consequence of its absence: completes "which this version does not have: ...".
    otherwise: &'static str,
    /// The advice, as a sentence.
    advice: &'static str,
}

/// All keys that are refused. Sorted by key; of several that cover a name the longest is used.
pub(super) const PROTECTIONS: &[Protection] = &[
    row(
        "alter.config.policy.class.name",
        "a policy that refuses changes of configurations",
        "every change would be made",
        CLASS,
    ),
    row(
        "authorizer.class.name",
        "authorization by another class than Kafka's StandardAuthorizer",
        OPEN,
        SHUT,
    ),
    row(
        "client.quota.callback.class",
        "quotas by a class of its own",
        "no client would be held back by it",
        CLASS,
    ),
    row("connections.max.reauth.ms", "clients that authenticate again", "sessions would last", SHUT),
    row("create.topic.policy.class.name", "a policy that refuses topics", "every topic would be made", CLASS),
    row("delegation.token.master.key", "delegation tokens", "no client could log in by one", REMOVE),
    row("delegation.token.secret.key", "delegation tokens", "no client could log in by one", REMOVE),
    row(
        "mainstem.audit.",
        "a record of denials and changes of security in a topic",
        "nothing would be recorded",
        REMOVE,
    ),
    row("mainstem.roles", "roles", "no user would have them", REMOVE),
    row("mainstem.roles.", "roles", "no user would have them", REMOVE),
    row(
        "mainstem.ssl.",
        "certificates that are looked for in revocation lists",
        "revoked ones would be accepted",
        REMOVE,
    ),
    row(
        "principal.builder.class",
        "principals of its own making",
        "rules would see other names than they were written for",
        CLASS,
    ),
    row("sasl.", "a mechanism or setting of SASL", "clients would not be authenticated as it says", REMOVE),
    row("sasl.client.callback.handler.class", "a class of its own for SASL", NOT_LOADED, CLASS),
    row(
        "sasl.jaas.config",
        "users or a login that belong to no known mechanism of a listener",
        "no mechanism would use them, as in Kafka",
        JAAS,
    ),
    row("sasl.kerberos.", "a setting of GSSAPI (Kerberos)", "no client could log in by it", MECHANISM),
    row("sasl.login.", "a setting of OAUTHBEARER and GSSAPI", "no client could log in by them", MECHANISM),
    row("sasl.login.callback.handler.class", "a class of its own for SASL", NOT_LOADED, CLASS),
    row("sasl.login.class", "a class of its own for SASL", NOT_LOADED, CLASS),
    row("sasl.oauthbearer.", "a setting of OAUTHBEARER", "no client could log in by it", MECHANISM),
    row("sasl.server.callback.handler.class", "a class of its own for SASL", NOT_LOADED, CLASS),
    row("security.inter.broker.protocol", "TLS or SASL between brokers", OPEN, SHUT),
    row("ssl.", "a setting of TLS", "connections would not be protected as it says", REMOVE),
    row("ssl.engine.factory.class", "a class of its own for TLS", NOT_LOADED, CLASS),
    row("ssl.keymanager.algorithm", JVM_TLS, ONE_TLS, REMOVE),
    row("ssl.provider", JVM_TLS, ONE_TLS, REMOVE),
    row("ssl.secure.random.implementation", JVM_TLS, ONE_TLS, REMOVE),
    row("ssl.trustmanager.algorithm", JVM_TLS, ONE_TLS, REMOVE),
    row("super.users", "authorization without authorizer.class.name", OPEN, SHUT),
];

const fn row(
    key: &'static str,
    asks_for: &'static str,
    otherwise: &'static str,
    advice: &'static str,
) -> Protection {
    Protection { key, asks_for, otherwise, advice }
}

const OPEN: &str = "the node would be open to every client that reaches it";
const NOT_LOADED: &str = "no class of Java is loaded here, and what it decides would not be";
const JVM_TLS: &str = "a part of a JVM's TLS by its name";
const ONE_TLS: &str = "the one TLS library of this program is not chosen by keys";

const SHUT: &str = "Remove the key, and keep clients out by other means: listen on loopback \
                    (listeners=PLAINTEXT://127.0.0.1:9092), or behind a firewall or a proxy that authenticates";
const REMOVE: &str = "Remove the key";
const CLASS: &str = "Remove the key, if the node may do without that class";
const MECHANISM: &str = "Remove the key, and use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512";
const JAAS: &str = "Set listener.name.LISTENER.MECHANISM.sasl.jaas.config instead, such as \
                    listener.name.sasl_ssl.plain.sasl.jaas.config, for plain, scram-sha-256 or scram-sha-512";

/// The missing protection that a name asks for, whatever its value.
pub(super) fn of_name(name: &str) -> Option<&'static Protection> {
    let covering = PROTECTIONS.iter().filter(|row| row.covers(name));
    covering.max_by_key(|row| row.key.len()).filter(|_| !is_honoured(name))
}

/// Returns true if a name is one of the rows, also of those that this version has.
pub(super) fn is_row(name: &str) -> bool {
    PROTECTIONS.iter().any(|row| row.covers(name))
}

/// The authorizer whose rules are applied.
const STANDARD_AUTHORIZER: &str = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";

/// Keys below the rows that are supported, also for one listener. A variable of the environment that names a listener is not:
/// underscores do not say which listener it means.
const HONOURED: &[&str] = &[
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.controller.protocol",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.server.max.receive.size",
    "security.inter.broker.protocol",
];

fn is_honoured(name: &str) -> bool {
    let key = table::without_listener_prefix(name);
    HONOURED.contains(&key) || tls::KEYS.contains(&key) || sasl::is_jaas_of_mechanism(name)
}

/// One problem for each key that was set at start and asks for a missing protection. Values are not shown: some are secrets.
pub(super) fn missing(values: &BrokerValues) -> Vec<Problem> {
    let authorizer = values.lookup("authorizer.class.name").map(|(class, _)| class);
    let is_standard = authorizer == Some(STANDARD_AUTHORIZER);
    let is_obeyed = |name: &str| is_standard && matches!(name, "authorizer.class.name" | "super.users");
    let set = values.set_at_start();
    let asking = set.filter_map(|(name, text, origin)| {
        let row = of_name(name).filter(|_| !is_obeyed(name) && !asks_for_nothing(name, text))?;
        Some(problem(name, row, origin))
    });
    asking.collect()
}

/// The reason why a value cannot be set while the node runs; none if it asks for no missing protection.
pub(super) fn refusal(name: &str, value: &str) -> Option<String> {
    let row = of_name(name).filter(|_| !asks_for_nothing(name, value))?;
    Some(row.message(name))
}

fn problem(name: &str, row: &Protection, origin: StaticOrigin) -> Problem {
    let message = format!("{}. {}", row.message(name), row.advice);
    Problem { origin: Some(origin), message }
}

/// Returns true if a value is empty, or the key's default.
pub(super) fn asks_for_nothing(name: &str, text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let key = table::find_broker(name);
    key.is_some_and(|key| key.default_value().is_some_and(|default| key.parse(text) == Ok(default)))
}

impl Protection {
    fn message(&self, name: &str) -> String {
        format!("{name} asks for {}, which this version does not have: {}", self.asks_for, self.otherwise)
    }

    fn covers(&self, name: &str) -> bool {
        let base = table::without_listener_prefix(name);
        let of_listener = base != name;
        let group = self.key.ends_with('.');
        let plain = if group { base.starts_with(self.key) } else { base == self.key };
        // `listener.name.NAME.MECHANISM.sasl.KEY` if the table has no such KEY.
        let of_mechanism = group && of_listener && base.contains(&format!(".{}", self.key));
        plain || of_mechanism || self.covers_variable(name)
    }

    /// Variables of the environment without a key in the table keep their own name.
    fn covers_variable(&self, name: &str) -> bool {
        let variable = environment_name(self.key);
        let of_listener = name.strip_prefix("MAINSTEM_LISTENER_NAME_");
        let tail = variable.trim_start_matches("MAINSTEM");
        match self.key.ends_with('.') {
            true => name.starts_with(&variable) || of_listener.is_some_and(|rest| rest.contains(tail)),
            false => name == variable || of_listener.is_some_and(|rest| rest.ends_with(tail)),
        }
    }
}

/// The rows for the reference page: key or beginning of keys, what it asks for, and the value that is accepted.
pub(super) fn rows() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    PROTECTIONS.iter().filter(|row| !HONOURED.contains(&row.key)).map(|row| {
        let shown = if row.key.ends_with('.') { format!("{}*", row.key) } else { row.key.to_owned() };
        let default = table::find(Scope::Broker, row.key).and_then(|key| key.default).unwrap_or_default();
        (shown, row.asks_for, default)
    })
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::*;

    fn problems(sources: Sources<'_>) -> Vec<String> {
        match BrokerConfig::from_sources(sources) {
            Ok(_) => Vec::new(),
            Err(error) => error.problems.iter().map(ToString::to_string).collect(),
        }
    }

    fn of_file(lines: &str) -> Vec<String> {
        let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
        problems(Sources { file: Some(&file), ..Sources::default() })
    }

    #[test]
    fn rows_are_sorted() {
        assert!(PROTECTIONS.is_sorted_by(|a, b| a.key < b.key));
    }

    #[test]
    fn a_key_that_asks_for_protection_is_a_problem_that_names_it() {
        for line in [
            "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
            "super.users=User:admin",
            "ssl.unheard.of=x",
            "ssl.engine.factory.class=a.B",
            "sasl.jaas.config=a",
            "listener.name.internal.sasl.jaas.config=a",
            "listener.name.internal.oauthbearer.sasl.jaas.config=a",
            "sasl.server.callback.handler.class=a.B",
            "listener.name.internal.plain.sasl.unheard.of=a",
            "listener.name.internal.principal.builder.class=a.B",
            "principal.builder.class=a.B",
            "delegation.token.secret.key=k",
            "delegation.token.master.key=k",
            "create.topic.policy.class.name=a.B",
            "mainstem.ssl.crl.location=/etc/revoked.pem",
            "listener.name.internal.mainstem.ssl.crl.location=/etc/revoked.pem",
            "mainstem.audit.topic=__mainstem_audit",
            "mainstem.audit.enable=true",
            "mainstem.roles=a",
            "mainstem.roles.operators=User:a",
            "ssl.crl.location=/etc/revoked.pem",
            "listener.name.internal.ssl.crl.file=/etc/revoked.pem",
            "listener.name.internal.oauthbearer.sasl.server.callback.handler.class=a.B",
            "sasl.oauthbearer.jwks.endpoint.url=https://idp.example/keys",
            "sasl.kerberos.service.name=kafka",
        ] {
            let found = of_file(line);
            let key = line.split_once('=').expect("a pair").0;
            let expect = format!("file line 1: {key} asks for ");
            assert!(found.len() == 1 && found[0].starts_with(&expect), "{line}: {found:?}");
        }
    }

    #[test]
    fn what_would_be_so_without_it_and_what_to_do_are_said() {
        for (line, otherwise, advice) in [
            ("super.users=User:a", OPEN, "loopback"),
            ("ssl.secure.random.implementation=SHA1PRNG", ONE_TLS, "Remove the key"),
            ("ssl.engine.factory.class=a.B", NOT_LOADED, "may do without"),
            ("sasl.jaas.config=a", "as in Kafka", "listener.name.LISTENER.MECHANISM."),
            ("listener.name.internal.sasl.jaas.config=a", "as in Kafka", "listener.name.LISTENER.MECHANISM."),
            ("sasl.kerberos.service.name=kafka", "no client could log in", "SCRAM-SHA-512"),
            ("create.topic.policy.class.name=a.B", "every topic would be made", "may do without"),
            ("ssl.unheard.of=x", "not be protected as it says", "Remove the key"),
        ] {
            let found = of_file(line);
            assert!(
                found.len() == 1 && found[0].contains(otherwise) && found[0].contains(advice),
                "{found:?}"
            );
            assert_eq!(found[0].contains("open to every client"), otherwise == OPEN, "{found:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(!of_file("delegation.token.secret.key=s3cret")[0].contains("s3cret"));
    }

    #[test]
    fn every_place_is_looked_at_and_all_are_reported_at_once() {
        let environment = [
            ("MAINSTEM_SUPER_USERS".to_owned(), "User:a".to_owned()),
            ("MAINSTEM_LISTENER_NAME_IN_SSL_ENGINE_FACTORY_CLASS".to_owned(), "a.B".to_owned()),
            ("MAINSTEM_AUTHORIZER_CLASS_NAME".to_owned(), "a.B".to_owned()),
            ("MAINSTEM_LISTENER_NAME_IN_PRINCIPAL_BUILDER_CLASS".to_owned(), "a.B".to_owned()),
            (environment_name("mainstem.ssl.crl.location"), "a".to_owned()),
            (environment_name("mainstem.audit.topic"), "a".to_owned()),
        ];
        let found = problems(Sources { environment: &environment, ..Sources::default() });
        assert_eq!(found.len(), 6, "{found:?}");
        let overrides =
            [("super.users".to_owned(), "User:a".to_owned()), ("ssl.x".to_owned(), "1".to_owned())];
        let found = problems(Sources { overrides: &overrides, ..Sources::default() });
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found.iter().all(|text| text.starts_with("--set: ") && text.contains(" asks for ")),
            "{found:?}"
        );
    }

    #[test]
    fn what_asks_for_nothing_starts() {
        for line in [
            "authorizer.class.name=",
            "super.users=",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=User:a;User:b",
            "allow.everyone.if.no.acl.found=false",
            "ssl.client.auth=none",
            "ssl.enabled.protocols=TLSv1.2, TLSv1.3",
            "connections.max.reauth.ms=1",
            "listener.name.internal.plain.connections.max.reauth.ms=1",
            "sasl.enabled.mechanisms=GSSAPI",
            "listener.name.internal.sasl.enabled.mechanisms=SCRAM-SHA-512",
            "listener.name.internal.plain.sasl.jaas.config=a",
            "sasl.server.max.receive.size=1024",
            "security.inter.broker.protocol=PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
            "delegation.token.expiry.time.ms=1000",
            "listener.name.internal.ssl.client.auth=none",
            "principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        ] {
            assert_eq!(of_file(line), [""; 0], "{line}");
        }
    }
}
