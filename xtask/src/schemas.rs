//! `cargo xtask schemas`: distils the message schemas in Kafka's jars into the compact table that `wire` is generated from. The table has
//! facts only (names, types, versions, tags, defaults). It is checked in, and `--check` fails when it differs from the jars.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The jars which carry schemas, in the order of the table.
const ARTIFACTS: [&str; 5] = [
    "kafka-clients",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
    "kafka-metadata",
];

/// Parses the arguments of the subcommand and writes or checks the table.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let jars = match &options.jars {
        Some(jars) => jars.clone(),
        None => resolve_by_maven(&options.version)?,
    };
    let table = distil(&jars, &options.version)?;
    let path = workspace_root().join(format!("crates/wire/schema/kafka-{}.txt", options.version));
    if !options.check {
        return fs::write(&path, table).with_context(|| format!("cannot write {}", path.display()));
    }
    let present = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    match first_difference(&present, &table) {
        None => Ok(()),
        Some(line) => bail!(
            "{} differs from the jars in line {line}; run `cargo xtask schemas --version {}`",
            path.display(),
            options.version
        ),
    }
}

struct Options {
    version: String,
    jars: Option<PathBuf>,
    check: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let (mut version, mut jars, mut check) = (None, None, false);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--version" => version = Some(rest.next().context("--version wants a value")?.clone()),
                "--jars" => jars = Some(PathBuf::from(rest.next().context("--jars wants a directory")?)),
                "--check" => check = true,
                other => bail!("unknown argument {other}; {}", super::USAGE),
            }
        }
        Ok(Options { version: version.context("--version is missing")?, jars, check })
    }
}

fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask sits in the workspace").to_path_buf()
}

/// Copies the jars from a Maven repository into `target/schemas/kafka-VERSION` and returns that folder.
fn resolve_by_maven(version: &str) -> Result<PathBuf> {
    let folder = workspace_root().join(format!("target/schemas/kafka-{version}"));
    if ARTIFACTS.iter().all(|artifact| folder.join(format!("{artifact}-{version}.jar")).exists()) {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    let pom = folder.join("pom.xml");
    fs::write(&pom, pom_xml(version))?;
    let status = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(&pom)
        .arg("dependency:copy-dependencies")
        .arg("-DexcludeTransitive=true")
        .arg(format!("-DoutputDirectory={}", folder.display()))
        .status()
        .context("cannot run mvn; install Maven, or pass --jars DIR")?;
    ensure!(status.success(), "mvn could not resolve Kafka {version}");
    Ok(folder)
}

fn pom_xml(version: &str) -> String {
    let mut xml = String::from(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\n\
         <groupId>mainstem</groupId><artifactId>schemas</artifactId><version>1</version>\n<dependencies>\n",
    );
    for artifact in ARTIFACTS {
        let _ = writeln!(
            xml,
            "<dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>"
        );
    }
    xml.push_str("</dependencies></project>\n");
    xml
}

fn first_difference(left: &str, right: &str) -> Option<usize> {
    if left == right {
        return None;
    }
    let common = left.lines().zip(right.lines()).take_while(|(a, b)| a == b).count();
    Some(common + 1)
}

/// Reads every schema of the jars in `folder` and writes the table.
fn distil(folder: &Path, version: &str) -> Result<String> {
    let mut table = format!(
        "# The message schemas of Apache Kafka {version}, facts only. Written by `cargo xtask schemas`.\n\
         # message NAME KIND [key=N] versions=V flexible=V [unstable-latest]\n\
         #   FIELD TYPE VERSIONS [nullable=V] [tag=N] [default=D] [ignorable] [flexible=none] [entity=E]\n\
         #   struct NAME VERSIONS: a structure that several fields share\n"
    );
    for artifact in ARTIFACTS {
        let path = folder.join(format!("{artifact}-{version}.jar"));
        let schemas = read_jar(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(!schemas.is_empty(), "{} holds no schemas", path.display());
        let served = served_keys(&schemas);
        let _ = writeln!(table, "\n# {artifact}");
        for schema in schemas.values().filter(|schema| is_wanted(schema, &served)) {
            write_message(&mut table, schema).with_context(|| format!("in schema {}", schema["name"]))?;
        }
    }
    Ok(table)
}

/// The schemas of one jar, sorted by kind, key and name.
fn read_jar(path: &Path) -> Result<BTreeMap<(String, i64, String), Value>> {
    let mut archive = zip::ZipArchive::new(File::open(path)?)?;
    let mut schemas = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let name = entry.name()?.into_owned();
        if !name.starts_with("common/") || !name.ends_with(".json") {
            continue;
        }
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        let schema: Value = serde_json::from_str(&without_comments(&text))
            .with_context(|| format!("{name} is not JSON with comments"))?;
        let kind = schema["type"].as_str().unwrap_or_default().to_string();
        let key = schema["apiKey"].as_i64().unwrap_or(-1);
        let message = schema["name"].as_str().unwrap_or_default().to_string();
        schemas.insert((kind, key, message), schema);
    }
    Ok(schemas)
}

/// Blanks `//` comments outside of strings.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let (mut in_string, mut previous) = (false, ' ');
        let mut end = line.len();
        for (at, character) in line.char_indices() {
            match character {
                '"' if previous != '\\' => in_string = !in_string,
                '/' if previous == '/' && !in_string => {
                    end = at - 1;
                    break;
                }
                _ => {}
            }
            previous = character;
        }
        out.push_str(&line[..end]);
        out.push('\n');
    }
    out
}

/// Returns the keys of the requests that a broker's listener takes: those that only brokers send to controllers are left out.
fn served_keys(schemas: &BTreeMap<(String, i64, String), Value>) -> Vec<i64> {
    let takes = |schema: &&Value| {
        let listeners = schema["listeners"].as_array();
        listeners.is_some_and(|listeners| listeners.iter().any(|listener| listener == "broker"))
    };
    schemas.values().filter(takes).filter_map(|schema| schema["apiKey"].as_i64()).collect()
}

fn is_wanted(schema: &Value, served: &[i64]) -> bool {
    if schema["validVersions"] == "none" {
        return false;
    }
    match schema["type"].as_str() {
        Some("request" | "response") => schema["apiKey"].as_i64().is_some_and(|key| served.contains(&key)),
        _ => true,
    }
}

fn write_message(table: &mut String, schema: &Value) -> Result<()> {
    let text = |name: &str| schema[name].as_str().with_context(|| format!("{name} is missing"));
    let _ = write!(table, "message {} {}", text("name")?, text("type")?);
    if let Some(key) = schema["apiKey"].as_i64() {
        let _ = write!(table, " key={key}");
    }
    let _ = write!(table, " versions={} flexible={}", text("validVersions")?, text("flexibleVersions")?);
    if schema["latestVersionUnstable"] == true {
        table.push_str(" unstable-latest");
    }
    table.push('\n');
    write_fields(table, &schema["fields"], 1)?;
    for shared in schema["commonStructs"].as_array().into_iter().flatten() {
        let name = shared["name"].as_str().context("a shared structure has no name")?;
        let versions = shared["versions"].as_str().context("a shared structure has no versions")?;
        let _ = writeln!(table, "  struct {name} {versions}");
        write_fields(table, &shared["fields"], 2)?;
    }
    Ok(())
}

fn write_fields(table: &mut String, fields: &Value, depth: usize) -> Result<()> {
    for field in fields.as_array().into_iter().flatten() {
        write_field(table, field, depth).with_context(|| format!("in field {}", field["name"]))?;
        write_fields(table, &field["fields"], depth + 1)?;
    }
    Ok(())
}

fn write_field(table: &mut String, field: &Value, depth: usize) -> Result<()> {
    let text = |name: &str| field[name].as_str();
    let name = text("name").context("name is missing")?;
    let kind = text("type").context("type is missing")?;
    let tagged = text("taggedVersions");
    // Kafka's own generator takes the tagged versions if a field names no others.
    let versions = text("versions").or(tagged).context("versions are missing")?;
    let _ = write!(table, "{:indent$}{name} {kind} {versions}", "", indent = depth * 2);
    if let Some(nullable) = text("nullableVersions") {
        let _ = write!(table, " nullable={nullable}");
    }
    if let Some(tag) = field["tag"].as_i64() {
        ensure!(tagged == Some(versions), "a field that is tagged in some of its versions is not supported");
        let _ = write!(table, " tag={tag}");
    }
    // A JSON null says the same as no default at all; the word "null" is the default that is null.
    match &field["default"] {
        Value::String(default) if !default.is_empty() => {
            let _ = write!(table, " default={default}");
        }
        Value::Number(_) | Value::Bool(_) => {
            let _ = write!(table, " default={}", field["default"]);
        }
        _ => {}
    }
    if field["ignorable"] == true {
        table.push_str(" ignorable");
    }
    if let Some(flexible) = text("flexibleVersions") {
        let _ = write!(table, " flexible={flexible}");
    }
    if let Some(entity) = text("entityType") {
        let _ = write!(table, " entity={entity}");
    }
    table.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the folder of the jars: the one that the caller names, that of the interoperability tests, or Maven's.
    fn jars() -> Option<PathBuf> {
        let named = std::env::var_os("MAINSTEM_KAFKA_JARS").map(PathBuf::from);
        let known = ["target/interop/kafka-4.3.0/lib", "target/schemas/kafka-4.3.0"];
        let places = named.into_iter().chain(known.map(|place| workspace_root().join(place)));
        places.into_iter().find(|place| place.join("kafka-metadata-4.3.0.jar").exists())
    }

    #[test]
    fn the_table_says_what_the_jars_say() {
        let Some(jars) = jars() else {
            let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!is_ci, "Kafka's jars are missing; MAINSTEM_KAFKA_JARS may name them");
            return eprintln!("skipped: the_table_says_what_the_jars_say: no Kafka jars");
        };
        let arguments = ["--version", "4.3.0", "--check", "--jars"].map(String::from);
        run(&[&arguments[..], &[jars.display().to_string()]].concat()).unwrap();
    }

    #[test]
    fn comments_end_at_the_line_and_not_in_strings() {
        assert_eq!(
            without_comments("{ // a\n\"b\": \"http://c\" } // \"d\""),
            "{ \n\"b\": \"http://c\" } \n"
        );
        assert_eq!(without_comments(r#""\" // in" // out"#), "\"\\\" // in\" \n");
    }

    #[test]
    fn a_changed_table_is_noticed_with_its_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
    }
}
