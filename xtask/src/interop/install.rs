//! Installs the clients into `target/interop/` by their ordinary package managers.
//!
//! Each installation leaves a stamp with the text of its sources, and is repeated only when that changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use mainstem_testkit::java::{self, KafkaJars};

use super::archive;
use crate::process::Process;
use crate::workspace;

/// The release of Apache Kafka whose clients, tools and broker are run.
pub(crate) const KAFKA_VERSION: &str = KafkaJars::NEWEST;
/// The oldest release that the native client supports and is tested against, as `crates/client/src/testing/releases.rs` has it.
const OLDEST_KAFKA: &str = "3.9.2";

const MAVEN_COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
/// Package managers may have to fetch from far away.
const DEADLINE: Duration = Duration::from_secs(900);

/// The clients that one package manager installs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// A JDK and Maven: Kafka's own clients and tools.
    Java,
    /// Python with its venv module: confluent-kafka, kafka-python, aiokafka.
    Python,
    /// Go: franz-go, sarama, kafka-go.
    Go,
    /// Node.js and npm: kafkajs.
    Node,
    /// kcat, which the system's package manager installs; it is only looked for.
    Kcat,
}

impl Toolchain {
    pub(crate) const ALL: [Toolchain; 5] =
        [Toolchain::Java, Toolchain::Python, Toolchain::Go, Toolchain::Node, Toolchain::Kcat];

    /// The programs that it needs.
    pub(crate) fn programs(self) -> &'static [&'static str] {
        match self {
            Toolchain::Java => &["java", "javac", "mvn"],
            Toolchain::Python => &["python3"],
            Toolchain::Go => &["go"],
            Toolchain::Node => &["node", "npm"],
            Toolchain::Kcat => &["kcat"],
        }
    }

    /// The first program that it needs and that is not on PATH.
    pub(crate) fn missing_program(self) -> Option<&'static str> {
        self.programs().iter().copied().find(|name| workspace::find_program(name).is_none())
    }

    /// Installs, unless it was done before from the same sources.
    pub(crate) fn install(self) -> Result<()> {
        match self {
            Toolchain::Java => install_java(),
            Toolchain::Python => install_python(),
            Toolchain::Go => install_go(),
            Toolchain::Node => install_node(),
            Toolchain::Kcat => Ok(()),
        }
    }
}

/// Kafka's jars.
pub(crate) fn kafka_lib() -> PathBuf {
    kafka_lib_of(KAFKA_VERSION)
}

fn kafka_lib_of(version: &str) -> PathBuf {
    workspace::interop_dir().join(format!("kafka-{version}")).join("lib")
}

/// Our classes.
fn java_classes() -> PathBuf {
    workspace::interop_dir().join("java")
}

/// A JVM with our classes and Kafka's, with a heap of at most so many MiB.
pub(crate) fn java(heap_mib: u32) -> Command {
    kafka_jars().java_with(heap_mib, &[&java_classes()])
}

fn kafka_jars() -> KafkaJars {
    KafkaJars::at(kafka_lib())
}

/// The Python that has the clients.
pub(crate) fn python() -> PathBuf {
    workspace::interop_dir().join("venv").join("bin").join("python3")
}

/// A built Go client, by the folder of its sources.
pub(crate) fn go_client(name: &str) -> PathBuf {
    workspace::interop_dir().join("go").join(name)
}

/// Returns the folder in which Node.js finds kafkajs.
pub(crate) fn node_modules() -> PathBuf {
    workspace::interop_dir().join("node").join("node_modules")
}

/// Scripts named as in Kafka's own `bin`, which start its tools.
pub(crate) fn kafka_bin() -> PathBuf {
    workspace::interop_dir().join(format!("kafka-{KAFKA_VERSION}")).join("bin")
}

/// The sources of a client.
pub(crate) fn sources(client: &str) -> PathBuf {
    workspace::root().join("tests").join("interop").join(client)
}

fn install_java() -> Result<()> {
    let pom = sources("java").join("pom.xml");
    once("java-jars", &[&pom], || copy_jars("maven", &pom, &kafka_lib(), &[]))?;
    if let Err(error) = archive::make(&kafka_jars(), &fs::read_to_string(&pom)?) {
        // Only the speed of the run depends on it.
        println!("JVMs of this run start slowly, without an archive of classes: {error:#}");
    }
    write_kafka_scripts()?;
    let classes = files_with_extension(&sources("java").join("src/mainstem/interop"), "java")?;
    let settings = sources("java").join("src/log4j2.properties");
    let all: Vec<&PathBuf> = classes.iter().chain([&settings]).collect();
    once("java-classes", &all, || {
        let output = java_classes();
        fs::create_dir_all(&output)?;
        fs::copy(&settings, output.join("log4j2.properties"))?;
        let mut javac = Command::new(java::program("javac"));
        let class_path = kafka_lib().join("*").display().to_string();
        javac.args(["--release", "17", "-Xlint:all,-classfile,-path", "-cp", &class_path, "-d"]);
        run("javac", javac.arg(&output).args(&classes))
    })
}

/// The jars of the oldest supported release.
pub(crate) fn install_oldest_kafka() -> Result<()> {
    let pom = workspace::root().join("tests/native-client/pom.xml");
    let name = format!("kafka-{OLDEST_KAFKA}");
    let settings = [format!("-Dkafka.version={OLDEST_KAFKA}")];
    once(&name, &[&pom], || copy_jars(&name, &pom, &kafka_lib_of(OLDEST_KAFKA), &settings))
}

/// Has Maven copy the jars that a project needs.
fn copy_jars(name: &str, pom: &Path, output: &Path, settings: &[String]) -> Result<()> {
    let output = format!("-DoutputDirectory={}", output.display());
    let mut maven = Command::new("mvn");
    run(name, maven.args(["-q", "-B", "-f"]).arg(pom).args(settings).args([MAVEN_COPY, &output]))
}

fn install_python() -> Result<()> {
    let requirements = sources("python").join("requirements.txt");
    once("python", &[&requirements], || {
        let venv = workspace::interop_dir().join("venv");
        run("python-venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = Command::new(python());
        run(
            "pip",
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
                .arg(&requirements),
        )
    })
}

/// The Go clients, each in a folder of the module.
const GO_CLIENTS: [&str; 3] = ["franz", "sarama", "kafkago"];

fn install_go() -> Result<()> {
    let dir = sources("go");
    let mut files = ["go.mod", "go.sum"].map(|name| dir.join(name)).to_vec();
    for package in GO_CLIENTS.iter().chain(&["common"]) {
        files.extend(files_with_extension(&dir.join(package), "go")?);
    }
    once("go", &files.iter().collect::<Vec<_>>(), || {
        let output = workspace::interop_dir().join("go");
        fs::create_dir_all(&output)?;
        let mut build = Command::new("go");
        build.current_dir(&dir).args(["build", "-o"]).arg(&output);
        run("go-build", build.args(GO_CLIENTS.map(|name| format!("./{name}"))))
    })
}

fn install_node() -> Result<()> {
    let files = ["package.json", "package-lock.json"].map(|name| sources("node").join(name));
    once("node", &files.each_ref(), || {
        let dir = workspace::interop_dir().join("node");
        fs::create_dir_all(&dir)?;
        for file in &files {
            fs::copy(file, dir.join(file.file_name().expect("a file's name")))?;
        }
        let mut npm = Command::new("npm");
        npm.current_dir(&dir).args(["ci", "--no-audit", "--no-fund"]);
        // One package is compiled. With headers that came with node, nothing has to be downloaded for that.
        npm.envs(node_with_headers().map(|dir| ("npm_config_nodedir", dir)));
        run("npm", &mut npm)
    })
}

/// Returns the folder of the installed node, if it has the headers too.
fn node_with_headers() -> Option<PathBuf> {
    let program = workspace::find_program("node")?.canonicalize().ok()?;
    let prefix = program.parent()?.parent()?;
    prefix.join("include/node/node.h").is_file().then(|| prefix.to_owned())
}

/// The files of a folder with that extension, in the order of their names.
fn files_with_extension(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        files.extend((path.extension().is_some_and(|found| found == extension)).then_some(path));
    }
    files.sort();
    Ok(files)
}

/// Runs `install` unless the stamp `name` says that it was done from these very files.
fn once(name: &str, files: &[&PathBuf], install: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut wanted = String::new();
    for file in files {
        wanted += &fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    }
    let stamp = workspace::interop_dir().join(format!("{name}.stamp"));
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    fs::create_dir_all(workspace::interop_dir())?;
    install().with_context(|| format!("install {name}"))?;
    fs::write(stamp, wanted)?;
    Ok(())
}

fn run(name: &str, command: &mut Command) -> Result<()> {
    let logs = workspace::interop_dir().join("install-logs");
    fs::create_dir_all(&logs)?;
    Process::start(name, command, &logs)?.wait(DEADLINE)
}

/// Makes the scripts that documentation names: Maven provides jars only.
fn write_kafka_scripts() -> Result<()> {
    let bin = kafka_bin();
    fs::create_dir_all(&bin)?;
    for (name, class) in TOOLS {
        let java = java(256);
        let options = java.get_args().map(|option| format!(" '{}'", option.display())).collect::<String>();
        let script =
            format!("#!/bin/sh\nexec \"${{JAVA_HOME:+$JAVA_HOME/bin/}}java\"{options} {class} \"$@\"\n");
        let path = bin.join(format!("{name}.sh"));
        if fs::read_to_string(&path).is_ok_and(|found| found == script) {
            continue;
        }
        fs::write(&path, script)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    Ok(())
}

/// Kafka's command line tools that are run, by the name of their script: their main classes.
pub(crate) const TOOLS: &[(&str, &str)] = &[
    ("kafka-topics", "org.apache.kafka.tools.TopicCommand"),
    ("kafka-acls", "org.apache.kafka.tools.AclCommand"),
    ("kafka-configs", "kafka.admin.ConfigCommand"),
    ("kafka-consumer-groups", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
    ("kafka-get-offsets", "org.apache.kafka.tools.GetOffsetShell"),
    ("kafka-delete-records", "org.apache.kafka.tools.DeleteRecordsCommand"),
    ("kafka-producer-perf-test", "org.apache.kafka.tools.ProducerPerformance"),
    ("kafka-consumer-perf-test", "org.apache.kafka.tools.ConsumerPerformance"),
    ("kafka-verifiable-producer", "org.apache.kafka.tools.VerifiableProducer"),
    ("kafka-verifiable-consumer", "org.apache.kafka.tools.VerifiableConsumer"),
    ("kafka-console-producer", "org.apache.kafka.tools.ConsoleProducer"),
    ("kafka-console-consumer", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
    ("kafka-broker-api-versions", "org.apache.kafka.tools.BrokerApiVersionsCommand"),
    ("kafka-features", "org.apache.kafka.tools.FeatureCommand"),
    ("kafka-metadata-quorum", "org.apache.kafka.tools.MetadataQuorumCommand"),
    ("kafka-leader-election", "org.apache.kafka.tools.LeaderElectionCommand"),
    ("kafka-reassign-partitions", "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"),
    ("kafka-cluster", "org.apache.kafka.tools.ClusterTool"),
    ("kafka-transactions", "org.apache.kafka.tools.TransactionsCommand"),
    ("kafka-log-dirs", "org.apache.kafka.tools.LogDirsCommand"),
    ("kafka-dump-log", "org.apache.kafka.tools.DumpLogSegments"),
    ("kafka-client-metrics", "org.apache.kafka.tools.ClientMetricsCommand"),
    ("kafka-storage", "kafka.tools.StorageTool"),
];

/// The main class of a tool.
pub(crate) fn tool_class(name: &str) -> &'static str {
    let found = TOOLS.iter().find(|(tool, _)| *tool == name);
    found.map(|(_, class)| *class).expect("the tool is in the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_what_the_client_is_tested_against() {
        let releases = workspace::root().join("crates/client/src/testing/releases.rs");
        let releases = fs::read_to_string(releases).unwrap();
        for version in [OLDEST_KAFKA, KAFKA_VERSION] {
            assert!(releases.contains(&format!("Release::new(\"{version}\"")), "{version}");
        }
        assert_eq!(releases.matches("Release::new(\"").count(), 2);
    }
}
