//! The reference page of all keys, docs/configuration.md, written from the table.

use std::fmt::Write as _;

use super::key::{ConfigKey, ConfigType, Importance, Origin, Scope, Status, UpdateMode, Valid};
use super::origin::environment_name;
use super::protection;
use super::table;

/// The whole page, as Markdown.
pub fn page() -> String {
    let mut out = String::from(HEAD);
    let honoured: Vec<_> = table::keys(Scope::Broker).filter(|key| key.status == Status::Honoured).collect();
    section(&mut out, "Broker keys with an effect", BROKER, &honoured);
    section(&mut out, "Topic keys", TOPIC, &table::keys(Scope::Topic).collect::<Vec<_>>());
    section(&mut out, "Group keys", GROUP, &table::keys(Scope::Group).collect::<Vec<_>>());
    section(
        &mut out,
        "Keys of client metrics",
        METRICS,
        &table::keys(Scope::ClientMetrics).collect::<Vec<_>>(),
    );
    refused(&mut out);
    without_effect(&mut out);
    wrap(&out)
}

/// The keys with an effect, one paragraph each, for `mainstem start --help`.
pub fn help() -> String {
    let honoured = table::keys(Scope::Broker).filter(|key| key.status == Status::Honoured);
    honoured
        .map(|key| format!("  {}={}\n        {}\n", key.name, key.default.unwrap_or_default(), key.doc))
        .collect()
}

const HEAD: &str = "\
<!-- Generated from the table of configuration keys; do not edit. `UPDATE_DOCS=1 cargo test --release \
-p mainstem-config configuration_page` writes it again. -->

# Configuration

Names, types and meanings are Kafka 4.3's. A value is looked for in this order; the first one counts:

1. values set while the node runs, for the node and then for the cluster (`kafka-configs --alter`, \
`mainstem topic alter` for topics);
2. `--set KEY=VALUE`;
3. the environment: `MAINSTEM_` and the key in capitals with dots as underscores, such as \
`MAINSTEM_LOG_RETENTION_HOURS`;
4. the file given by `--config`, in the format of Kafka's `server.properties`;
5. the default.

A name that no key has is warned of and ignored in a file or the environment, as in Kafka, and refused in `--set`. \
A key without an effect here is validated and warned of by name, but for those that ask for protection: \
[they are refused](#keys-that-are-refused).
";

const TOPIC: &str = "\
Set when a topic is created, or later by IncrementalAlterConfigs. Where the topic has no value of its own, that of the \
broker key behind it counts. Kafka's own `kafka-topics --create` refuses keys that it does not know: set \
`write.caching` by `kafka-configs --alter` or `mainstem topic create`.
";

const BROKER: &str = "\
*Update* says whether a key can change while the node runs: at start only, for one node, or for the cluster.
";

const METRICS: &str = "\
Set per subscription (KIP-714), by `kafka-client-metrics` or `kafka-configs --entity-type client-metrics`. What clients \
push is at `/metrics`.
";

const GROUP: &str = "\
Set per group by IncrementalAlterConfigs. Those of share groups and streams groups are known, validated and described; \
such groups come later.
";

const REFUSED: &str = "
## Keys that are refused

They ask for protection that this version does not have. A node on which one of them is set at start, also for one \
listener (`listener.name.NAME.KEY`), does not start, unless it is empty or has the default; those of them that the \
sections above describe are obeyed. Nor does one whose `sasl.enabled.mechanisms` name a mechanism other than PLAIN, \
SCRAM-SHA-256 and SCRAM-SHA-512, on a listener with SASL.

| key | asks for | default |
|---|---|---|
";

/// Width of a line of prose, in characters.
const WIDTH: usize = 118;

/// Breaks lines of prose that are longer than [`WIDTH`]. A row of a table stays one line.
fn wrap(page: &str) -> String {
    let mut out = String::with_capacity(page.len() + page.len() / 64);
    for line in page.lines() {
        match line.starts_with('|') {
            true => out.push_str(line),
            false => wrap_line(&mut out, line),
        }
        out.push('\n');
    }
    out
}

/// Breaks one line. The lines of an item of a list are indented as far as its text.
fn wrap_line(out: &mut String, line: &str) {
    let indent = if line.starts_with(|c: char| c.is_ascii_digit()) { "   " } else { "" };
    let mut width = 0;
    for word in line.split(' ') {
        let length = word.chars().count();
        if width == 0 {
            width = length;
        } else if width + 1 + length <= WIDTH || starts_block(word) {
            out.push(' ');
            width += 1 + length;
        } else {
            out.push('\n');
            out.push_str(indent);
            width = indent.len() + length;
        }
        out.push_str(word);
    }
}

/// Returns true if a line that begins with the word would be no prose in Markdown.
fn starts_block(word: &str) -> bool {
    let is_number = word.strip_suffix('.').is_some_and(|digits| digits.parse::<u32>().is_ok());
    is_number || word.starts_with(['#', '>', '|', '<']) || matches!(word, "-" | "+" | "*")
}

fn section(out: &mut String, title: &str, intro: &str, keys: &[&ConfigKey]) {
    write!(out, "\n## {title}\n\n{intro}").expect("a String takes all text");
    for key in keys {
        describe(out, key);
    }
}

fn describe(out: &mut String, key: &ConfigKey) {
    let mut facts = vec![type_name(key.kind).to_string(), default_text(key)];
    facts.extend(valid_text(key.valid));
    facts.push(importance(key.importance).to_string());
    if key.scope == Scope::Broker {
        facts.push(update(key.update).to_string());
        facts.push(format!("`{}`", environment_name(key.name)));
    }
    if let Some(fallback) = key.fallbacks.first() {
        facts.push(format!("behind it `{}`", fallback.key));
    }
    write!(out, "\n### `{}`\n\n{}\n", key.name, key.doc).expect("a String takes all text");
    if let Some(reason) = key.status.reason() {
        writeln!(out, "No effect{}: {reason}.", yet(key.status)).expect("a String takes all text");
    }
    writeln!(out, "\n{}.", facts.join("; ")).expect("a String takes all text");
}

/// The keys with which a node does not start.
fn refused(out: &mut String) {
    out.push_str(REFUSED);
    for (key, asks_for, accepted) in protection::rows() {
        let accepted = if accepted.is_empty() { String::new() } else { format!("`{accepted}`") };
        writeln!(out, "| `{key}` | {asks_for} | {accepted} |").expect("a String takes all text");
    }
}

/// One table per reason, so that the reason is said once.
fn without_effect(out: &mut String) {
    out.push_str("\n## Broker keys without an effect\n");
    let keys: Vec<_> = table::keys(Scope::Broker).filter(|key| key.status != Status::Honoured).collect();
    let mut statuses: Vec<Status> = Vec::new();
    for key in &keys {
        if !statuses.contains(&key.status) {
            statuses.push(key.status);
        }
    }
    for status in statuses {
        let reason = status.reason().expect("honoured keys are left out");
        write!(
            out,
            "\nNo effect{}: {reason}.\n\n| key | type | default | |\n|---|---|---|---|\n",
            yet(status)
        )
        .expect("a String takes all text");
        for key in keys.iter().filter(|key| key.status == status) {
            let default = key.default.filter(|text| !text.is_empty()).map(|text| format!("`{text}`"));
            let default = default.unwrap_or_default();
            writeln!(out, "| `{}` | {} | {default} | {} |", key.name, type_name(key.kind), key.doc)
                .expect("a String takes all text");
        }
    }
}

fn yet(status: Status) -> &'static str {
    if matches!(status, Status::PlannedLater(_)) { " yet" } else { "" }
}

fn type_name(kind: ConfigType) -> &'static str {
    match kind {
        ConfigType::Bool => "boolean",
        ConfigType::Str => "string",
        ConfigType::Int => "int (32 bits)",
        ConfigType::Short => "short (16 bits)",
        ConfigType::Long => "long (64 bits)",
        ConfigType::Double => "double",
        ConfigType::List => "list, separated by commas",
        ConfigType::Class => "class",
        ConfigType::Password => "password",
    }
}

fn default_text(key: &ConfigKey) -> String {
    let shown = |default: Option<&str>| match default {
        None => "unset".to_string(),
        Some("") => "empty".to_string(),
        Some(text) => format!("`{text}`"),
    };
    match key.origin {
        Origin::KafkaWithDefault(theirs) => {
            format!("default {} (Kafka: {})", shown(key.default), shown(theirs))
        }
        Origin::Kafka => format!("default {}", shown(key.default)),
        Origin::Mainstem => format!("default {} (not a key of Kafka)", shown(key.default)),
    }
}

fn valid_text(valid: Valid) -> Option<String> {
    Some(match valid {
        Valid::Any => return None,
        Valid::AtLeast(min) => format!("at least {min}"),
        Valid::Between(min, max) => format!("{min} to {max}"),
        Valid::BetweenF64(min, max) => format!("{min} to {max}"),
        Valid::OneOf(values) => format!("one of {}", values.join(", ")),
        Valid::OneOfIgnoringCase(values) => format!("one of {} in any case", values.join(", ")),
        Valid::NonEmpty | Valid::NonEmptyList => "not empty".to_string(),
        Valid::GzipLevel => "1 to 9, or -1".to_string(),
        Valid::AnyList => return None,
        Valid::ListOf(values) => format!("any of {}", values.join(", ")),
        Valid::NonEmptyListOf(values) => format!("at least one of {}", values.join(", ")),
        Valid::ThrottledReplicas => "`*` or `partition:broker` pairs".to_string(),
        Valid::OffsetReset => "latest, earliest or by_duration:DURATION".to_string(),
    })
}

fn importance(importance: Importance) -> &'static str {
    match importance {
        Importance::High => "high importance",
        Importance::Medium => "medium importance",
        Importance::Low => "low importance",
    }
}

fn update(mode: UpdateMode) -> &'static str {
    match mode {
        UpdateMode::ReadOnly => "update: at start only",
        UpdateMode::PerBroker => "update: for one node",
        UpdateMode::ClusterWide => "update: for one node or the cluster",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn help_names_keys_with_their_defaults() {
        let help = super::help();
        assert!(help.contains("\n  num.partitions=1\n        Partitions of a topic"), "{help}");
        assert!(!help.contains("sasl.kerberos."), "keys without an effect are left to the page");
    }

    #[test]
    fn configuration_page_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let page = super::page();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).expect("the working tree is writable");
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page == checked_in,
            "docs/configuration.md is not what the table says: run the test with UPDATE_DOCS=1 and commit the file"
        );
    }
}
