//! A key without a reason for having no effect is one that some code reads: its typed field is used outside of this
//! module, or another key falls back to it.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Scope, Status, table};

/// The sources of all crates that run in a broker, without their tests.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate has neighbours");
    for name in [
        "config",
        "controller",
        "limits",
        "coordination",
        "coordinators",
        "listener-security",
        "links",
        "store",
        "requests",
        "net",
        "node",
        "broker",
        "log",
        "cli",
    ] {
        collect(&crates.join(name).join("src"), &mut found);
    }
    found
}

fn collect(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).expect("the sources are there") {
        let path = entry.expect("a readable directory").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("sources are text");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            found.push((path, code));
        }
    }
}

/// The text of the files that type the values of broker or topic.
fn typed(sources: &[(PathBuf, String)], files: &[&str]) -> String {
    let is_one = |path: &PathBuf| files.iter().any(|file| path.ends_with(Path::new("config/src").join(file)));
    sources.iter().filter(|(path, _)| is_one(path)).map(|(_, code)| code.as_str()).collect()
}

/// The files that type values.
const TYPED: [(Scope, &[&str]); 2] = [
    (
        Scope::Broker,
        &["broker.rs", "broker/build.rs", "broker/typed.rs", "nodes.rs", "sasl.rs", "settings.rs", "tls.rs"],
    ),
    (Scope::Topic, &["topic.rs"]),
];

/// Public fields of the structs that a file declares, each with the key that its comment names first, if any.
fn fields(code: &str) -> Vec<(&str, &str)> {
    let mut named = "";
    let mut fields = Vec::new();
    for line in code.lines() {
        if let Some(comment) = line.strip_prefix("    /// ") {
            named = comment.split('`').nth(1).unwrap_or(named);
        } else if let Some((field, _)) = line.strip_prefix("    pub ").and_then(|rest| rest.split_once(": "))
            && field.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        {
            fields.push((field, std::mem::take(&mut named)));
        }
    }
    fields
}

/// A key that says why it has no effect may be typed ahead of its use.
fn is_excused(key: &str) -> bool {
    let found = [Scope::Broker, Scope::Topic].into_iter().find_map(|scope| table::find(scope, key));
    found.is_some_and(|key| key.status != Status::Honoured)
}

/// By name, through a key that falls back to it, or as the limit of a group key.
fn is_read(key: &str, code: &str) -> bool {
    let falls_back = || table::all().any(|other| other.fallbacks.iter().any(|fallback| fallback.key == key));
    code.contains(&format!("\"{key}\"")) || falls_back() || super::group::is_limit(key)
}

#[test]
fn every_honoured_key_is_read() {
    let sources = sources();
    for (scope, files) in TYPED {
        let code = typed(&sources, files);
        assert!(code.contains("fn "), "{files:?} are where they were");
        let unread = table::keys(scope)
            .filter(|key| key.status == Status::Honoured && !is_read(key.name, &code))
            .map(|key| key.name);
        let unread: Vec<_> = unread.collect();
        assert!(unread.is_empty(), "no code reads these keys: mark them, or honour them: {unread:?}");
    }
}

#[test]
fn every_typed_value_is_used() {
    let sources = sources();
    let config = Path::new("config/src");
    let outside: Vec<_> = sources
        .iter()
        .filter(|(path, _)| !path.ancestors().any(|dir| dir.ends_with(config)))
        .map(|(_, code)| code.as_str())
        .collect();
    for (_, files) in TYPED {
        let code = typed(&sources, files);
        let fields = fields(&code);
        assert!(fields.len() > 5, "{files:?} declare fields: {fields:?}");
        let is_used = |field: &str| {
            let access = format!(".{field}");
            outside
                .iter()
                .any(|code| code.match_indices(&access).any(|(at, _)| ends_a_name(code, at + access.len())))
        };
        let unused = fields.iter().filter(|(field, key)| !is_excused(key) && !is_used(field));
        let unused: Vec<_> = unused.collect();
        assert!(unused.is_empty(), "{files:?}: nothing uses what was read: {unused:?}");
    }
}

fn ends_a_name(code: &str, at: usize) -> bool {
    !code[at..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}
