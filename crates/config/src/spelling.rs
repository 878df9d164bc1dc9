//! Configurations that are written for another program: files that are no properties of Kafka, and keys in the spelling of images of
//! Kafka (`KAFKA_SSL_CLIENT_AUTH`, `KAFKA_CFG_SSL_CLIENT_AUTH`).
//!
//! A node that ignored them would start with its defaults, open to everybody. A file without any known key is refused, and so is
//! a key that asks for protection in another spelling. Other keys in such a spelling cause warnings.

use super::origin::{StaticOrigin, environment_name};
use super::others;
use super::problem::Problem;
use super::properties::Properties;
use super::protection;
use super::table;

/// Prefixes of the variables from which images of Kafka make properties, the longer ones first.
const PREFIXES: [&str; 2] = ["KAFKA_CFG_", "KAFKA_"];
/// Unknown keys of a file that a message shows.
const SHOWN: usize = 3;

/// The problem of a file with keys of which none is known.
pub(super) fn of_another_form(file: &Properties) -> Option<Problem> {
    let names: Vec<&str> = file.iter().map(|entry| entry.key.as_str()).collect();
    let is_known = |name: &str| {
        name == others::ZOOKEEPER
            || table::find_broker(name).is_some()
            || protection::of_name(name).is_some()
            || key_of(name).is_some()
    };
    if names.is_empty() || names.iter().any(|name| is_known(name)) {
        return None;
    }
    Some(Problem::new(format!(
        "none of the keys in the file is a key of Kafka's brokers ({}{}): it is no properties file of KEY=VALUE lines, or one of another \
         program; `mainstem start --help` says how keys are given",
        names[..names.len().min(SHOWN)].join(", "),
        if names.len() > SHOWN { ", ..." } else { "" }
    )))
}

/// The key that a name in the spelling of an image of Kafka stands for, if there is one.
pub(super) fn key_of(name: &str) -> Option<String> {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    // As these images have it: `___` is a dash, `__` an underscore, `_` a dot.
    let key =
        rest.replace("___", "-").replace("__", "\0").replace('_', ".").replace('\0', "_").to_lowercase();
    let is_key = key == others::ZOOKEEPER || is_protection(&key) || table::find_broker(&key).is_some();
    is_key.then_some(key)
}

/// The problem of a name in another spelling that a node cannot ignore: it asks for protection, or says that other nodes exist.
pub(super) fn of_consequence(name: &str, text: &str, origin: StaticOrigin) -> Option<Problem> {
    let key = key_of(name)?;
    let text = text.trim();
    let why = match () {
        () if text.is_empty() => return None,
        () if asks_for_protection(&key, text) => "asks for protection",
        () if tells_of_others(&key, text) => "says that other nodes exist",
        () => return None,
    };
    let message = format!("{name} is not read, and {why}: the key is {}", spellings(&key));
    Some(Problem { origin: Some(origin), message })
}

/// A key, and the variable that sets it in the environment, if there is one.
pub(super) fn spellings(key: &str) -> String {
    match table::without_listener_prefix(key) == key {
        true => format!("{key}, or {} in the environment", environment_name(key)),
        false => format!("{key}, in a file or by --set"),
    }
}

/// Returns true for keys that can keep clients out by some value, whether this version supports it or not.
fn is_protection(key: &str) -> bool {
    protection::is_row(key) && (table::find_broker(key).is_some() || !is_of_clients(key))
}

/// Names that Kubernetes makes of a service that is called `kafka-ssl`, and settings of clients.
fn is_of_clients(key: &str) -> bool {
    let parts = [".service.host", ".service.port", ".port", ".tcp"];
    let clients =
        ["sasl.username", "sasl.password", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"];
    clients.contains(&key) || parts.iter().any(|part| key.contains(part))
}

fn asks_for_protection(key: &str, text: &str) -> bool {
    let names_it = || ["SSL", "SASL"].iter().any(|protocol| text.to_uppercase().contains(protocol));
    match key {
        "listeners" | "listener.security.protocol.map" => names_it(),
        _ => is_protection(key) && !protection::asks_for_nothing(key, text),
    }
}

fn tells_of_others(key: &str, text: &str) -> bool {
    match key {
        "process.roles" => text == "broker",
        "controller.quorum.voters" | "controller.quorum.bootstrap.servers" => true,
        key => key == others::ZOOKEEPER,
    }
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::sources::Sources;
    use super::*;

    fn build(file: &str, environment: &[(&str, &str)]) -> Result<BrokerConfig, String> {
        let file = Properties::parse(file.as_bytes()).expect("it is well formed");
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment: Vec<(String, String)> = environment.iter().map(owned).collect();
        let sources = Sources { file: Some(&file), environment: &environment, ..Sources::default() };
        BrokerConfig::from_sources(sources).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_of_another_form_is_refused() {
        let yaml =
            "redpanda:\n  data_directory: /var/lib\n  kafka_api:\n    - address: 0.0.0.0\n      port: 9092\n";
        let json = "{\n  \"listeners\": \"SSL://:9092\",\n  \"ssl.client.auth\": \"required\"\n}\n";
        for text in [yaml, json, "spring.application.name=orders\n", "num.partition=2\n"] {
            let error = build(text, &[]).expect_err(text);
            assert!(error.contains("none of the keys in the file is a key of Kafka's"), "{error}");
        }
        for text in ["", "# a comment\n", "num.partitions=2\nspring.application.name=orders\n"] {
            build(text, &[]).expect(text);
        }
    }

    #[test]
    fn protection_in_the_spelling_of_an_image_is_refused_with_the_right_one() {
        let cases = [
            ("KAFKA_SSL_CLIENT_AUTH", "ssl.client.auth, or MAINSTEM_SSL_CLIENT_AUTH in the environment"),
            ("KAFKA_CFG_SSL_CLIENT_AUTH", "ssl.client.auth, or"),
            ("KAFKA_AUTHORIZER_CLASS_NAME", "authorizer.class.name, or"),
            (
                "KAFKA_LISTENER_NAME_CLIENTS_SSL_CLIENT_AUTH",
                "listener.name.clients.ssl.client.auth, in a file",
            ),
        ];
        for (name, key) in cases {
            let text = if name.ends_with("CLASS_NAME") { "a.B" } else { "required" };
            let error = build("", &[(name, text)]).expect_err(name);
            assert!(
                error.contains(&format!("environment: {name} is not read")) && error.contains(key),
                "{error}"
            );
            let error = build(&format!("num.partitions=2\n{name}={text}\n"), &[]).expect_err(name);
            assert!(error.contains(&format!("file line 2: {name} is not read")), "{error}");
        }
        build("", &[("KAFKA_SSL_CLIENT_AUTH", " ")]).expect("it asks for nothing");
    }

    #[test]
    fn a_sign_of_other_nodes_in_such_a_spelling_is_refused() {
        for (name, text) in [
            ("KAFKA_ZOOKEEPER_CONNECT", "zk:2181"),
            ("KAFKA_PROCESS_ROLES", "broker"),
            ("KAFKA_CFG_CONTROLLER_QUORUM_VOTERS", "1@a:9093,2@b:9093"),
            ("KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS", "a:9093"),
        ] {
            let error = build("", &[(name, text)]).expect_err(name);
            assert!(
                error.contains(&format!("{name} is not read, and says that other nodes exist")),
                "{error}"
            );
        }
        build("", &[("KAFKA_PROCESS_ROLES", "broker,controller")]).expect("it is one node by itself");
    }

    #[test]
    fn what_asks_for_nothing_or_is_for_others_starts() {
        for (name, text) in [
            ("KAFKA_SSL_CLIENT_AUTH", "none"),
            ("KAFKA_SECURITY_INTER_BROKER_PROTOCOL", "PLAINTEXT"),
            ("KAFKA_LISTENERS", "PLAINTEXT://:9092"),
            ("KAFKA_SSL_SERVICE_HOST", "10.0.0.1"),
            ("KAFKA_SASL_PORT_9092_TCP_ADDR", "10.0.0.1"),
            ("KAFKA_SASL_USERNAME", "alice"),
        ] {
            build("", &[(name, text)]).expect(name);
        }
        for (name, text) in
            [("KAFKA_LISTENERS", "SASL_SSL://:9092"), ("KAFKA_PRINCIPAL_BUILDER_CLASS", "a.B")]
        {
            build("", &[(name, text)]).expect_err(name);
        }
    }

    #[test]
    fn other_keys_in_such_a_spelling_are_warned_of() {
        let environment =
            [("KAFKA_NUM_PARTITIONS", "3"), ("KAFKA_HEAP_OPTS", "-Xmx1G"), ("KAFKA_HOME", "/opt")];
        let config = build("", &environment).expect("nothing of it asks for protection");
        let warned: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warned,
            [
                "environment: KAFKA_NUM_PARTITIONS is ignored: the key is num.partitions, or MAINSTEM_NUM_PARTITIONS in the environment"
            ]
        );
    }
}
