//! The file of kafka-reassign-partitions.sh: replicas of partitions in JSON.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use mainstem_broker::config::files;
use mainstem_client::TopicPartition;
use serde::Deserialize;
use serde_json::{Value, json};

/// The only version that there is.
const VERSION: i64 = 1;
/// The log directory that the node chooses.
const ANY: &str = "any";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Option<i64>,
    partitions: Vec<Line>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    topic: String,
    partition: i32,
    replicas: Vec<i32>,
    #[serde(default)]
    log_dirs: Vec<String>,
}

/// Reads a file.
///
/// # Errors
/// If the file is wrong, with the place.
pub(super) fn read(path: &Path) -> Result<BTreeMap<TopicPartition, Vec<i32>>> {
    let named = || format!("--from-file {}", path.display());
    let bytes = files::read_given(path).with_context(named)?;
    parse(&bytes).with_context(named)
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<TopicPartition, Vec<i32>>> {
    let example = r#"{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[2,3,1]}]}"#;
    let file: File =
        serde_json::from_slice(bytes).with_context(|| format!("expected JSON such as {example}"))?;
    ensure!(
        file.version.is_none_or(|version| version == VERSION),
        "the version of the file is not {VERSION}"
    );
    ensure!(!file.partitions.is_empty(), "the file names no partition");
    let mut found = BTreeMap::new();
    for line in file.partitions {
        let key = TopicPartition::new(line.topic, line.partition);
        let mut nodes = line.replicas.clone();
        nodes.sort_unstable();
        nodes.dedup();
        ensure!(!nodes.is_empty(), "{key} is to have no replica; name at least one node");
        ensure!(nodes.len() == line.replicas.len(), "{key} names a node twice in its replicas");
        if line.log_dirs.iter().any(|dir| dir != ANY) {
            bail!(
                "{key} names log_dirs, which this command does not set; leave them out, or write \"{ANY}\""
            );
        }
        ensure!(found.insert(key.clone(), line.replicas).is_none(), "the file names {key} twice");
    }
    Ok(found)
}

/// An assignment as the JSON of such a file.
pub(super) fn to_json(assignment: &BTreeMap<TopicPartition, Vec<i32>>) -> Value {
    let line = |(key, replicas): (&TopicPartition, &Vec<i32>)| json!({"topic": &*key.topic, "partition": key.partition, "replicas": replicas});
    json!({"version": VERSION, "partitions": assignment.iter().map(line).collect::<Value>()})
}

/// The same as text, on one line.
pub(super) fn write(assignment: &BTreeMap<TopicPartition, Vec<i32>>) -> String {
    crate::output::json_line(&to_json(assignment))
}

/// Writes an assignment to a file that does not exist yet.
///
/// # Errors
/// If there is a file of that name, or the disk does not take it.
pub(super) fn write_new(path: &Path, text: &str) -> Result<()> {
    let named =
        || format!("--to-file {}: the file cannot be written; name one that does not exist", path.display());
    let mut file = std::fs::File::create_new(path).with_context(named)?;
    file.write_all(format!("{text}\n").as_bytes()).with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let assignment = BTreeMap::from([
            (TopicPartition::new("a", 0), vec![1, 2]),
            (TopicPartition::new("a", 1), vec![2, 1]),
        ]);
        assert_eq!(parse(write(&assignment).as_bytes()).unwrap(), assignment);
        let kafkas = br#"{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}"#;
        assert_eq!(parse(kafkas).unwrap().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let line = |rest: &str| format!(r#"{{"partitions":[{{"topic":"a","partition":0,{rest}}}]}}"#);
        let twice = r#"{"partitions":[{"topic":"a","partition":0,"replicas":[1]},{"topic":"a","partition":0,"replicas":[2]}]}"#;
        for (text, said) in [
            ("x".to_owned(), "expected JSON such as"),
            (r#"{"version":2,"partitions":[]}"#.to_owned(), "the version of the file is not 1"),
            (r#"{"version":1,"partitions":[]}"#.to_owned(), "the file names no partition"),
            (line(r#""replicas":[]"#), "a-0 is to have no replica"),
            (line(r#""replicas":[1,1]"#), "a-0 names a node twice"),
            (line(r#""replicas":[1],"log_dirs":["/d"]"#), "a-0 names log_dirs"),
            (twice.to_owned(), "the file names a-0 twice"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
