//! Apache Kafka as its own start script runs it: KRaft combined mode, 1 GiB of heap, G1.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::without_developers_variables;

pub(crate) const VERSION: &str = "4.3.0";
/// Any valid id; the same in every run.
const CLUSTER_ID: &str = "bWFpbnN0ZWFtLWJlbmNoMQ";
const OLDEST_JAVA: u32 = 17;
/// `KAFKA_HEAP_OPTS` of Kafka's start script.
pub(crate) const DEFAULT_HEAP_MIB: u32 = 1_024;
/// `KAFKA_HEAP_OPTS` of the scripts of its performance tools.
const TOOL_HEAP: &str = "-Xmx512M";
const JVM_FLAGS: [&str; 9] = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dcom.sun.management.jmxremote=true",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
];
/// Kafka logs at INFO, as it is shipped.
const LOGGING: &str = "\
appender.console.type = Console
appender.console.name = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = CONSOLE
";
const POM: &str = include_str!("../../kafka-pom.xml");

/// Names and contents.
type Files = Vec<(OsString, Vec<u8>)>;

/// The jars of Kafka and the JDK to run them.
#[derive(Debug)]
pub(crate) struct KafkaInstall {
    pub(crate) java: Java,
    jars: PathBuf,
    /// The files that the formatting of each node of a cluster left in its data directory, by the node's number.
    formatted: RefCell<BTreeMap<usize, Files>>,
}

/// A Java of this machine.
#[derive(Debug)]
pub(crate) struct Java {
    pub(crate) program: PathBuf,
    /// The first line of `java -version`.
    pub(crate) version: String,
}

impl Java {
    /// The one that a person named.
    pub(crate) fn named(program: PathBuf) -> Result<Self> {
        let name = program.display().to_string();
        let found = version_of(program).with_context(|| format!("{name}, named by --java, is no Java"))?;
        Ok(found.1)
    }
}

impl KafkaInstall {
    /// Takes the jars from `jars`, after resolving them by Maven if they are missing. Takes the newest JDK of the machine unless `java`
    /// names one.
    pub(crate) fn find(jars: &Path, java: Option<PathBuf>) -> Result<Self> {
        if !jars.join(format!("kafka_2.13-{VERSION}.jar")).exists() {
            resolve_pom(jars, POM, &format!("Kafka {VERSION}"))?;
        }
        let java = java.map_or_else(|| newest_java(None), Java::named)?;
        Ok(Self { java, jars: jars.canonicalize()?, formatted: RefCell::default() })
    }

    /// Writes the configuration and formats the data directory.
    pub(super) fn prepare(
        &self,
        directory: &Path,
        address: SocketAddr,
        is_secured: bool,
        settings: &[String],
    ) -> Result<()> {
        let further = settings.iter().map(|setting| format!("{setting}\n"));
        let properties = properties(directory, address, is_secured) + &further.collect::<String>();
        self.prepare_with(directory, &properties, &["--standalone"])
    }

    /// Prepares a node of a cluster, whose data is in `data` of the directory. A number is formatted once: the formatted files contain no
    /// port, and three starts of a JVM before each run would take most of a short one.
    pub(crate) fn prepare_node(&self, directory: &Path, number: usize, properties: &str) -> Result<()> {
        let data = directory.join("data");
        let mut formatted = self.formatted.borrow_mut();
        let Some(files) = formatted.get(&number) else {
            self.prepare_with(directory, properties, &[])?;
            let files = fs::read_dir(&data)?.map(|entry| {
                let entry = entry?;
                Ok((entry.file_name(), fs::read(entry.path())?))
            });
            formatted.insert(number, files.collect::<Result<_>>()?);
            return Ok(());
        };
        write_settings(directory, properties)?;
        fs::create_dir_all(&data)?;
        files.iter().try_for_each(|(name, content)| Ok(fs::write(data.join(name), content)?))
    }

    /// Prepares a directory with a whole server.properties. `voters` are the arguments of `kafka-storage format` that name them.
    pub(crate) fn prepare_with(&self, directory: &Path, properties: &str, voters: &[&str]) -> Result<()> {
        write_settings(directory, properties)?;
        let mut format = Command::new(&self.java.program);
        without_developers_variables(&mut format);
        format.arg("-cp").arg(self.class_path()).arg("kafka.tools.StorageTool");
        format.arg("format").args(voters).args(["-t", CLUSTER_ID, "-c"]);
        format.arg(directory.join("server.properties"));
        let output = format.output().context("formatting Kafka's data directory")?;
        ensure!(
            output.status.success(),
            "formatting Kafka's data directory: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// The broker on a prepared directory.
    pub(crate) fn command(&self, directory: &Path, heap_mib: u32) -> Command {
        let mut command = Command::new(&self.java.program);
        command.args([format!("-Xmx{heap_mib}M"), format!("-Xms{heap_mib}M")]).args(JVM_FLAGS);
        let gc_log = directory.join("gc.log");
        command.arg(format!("-Xlog:gc*:file={}:time,tags:filecount=10,filesize=100M", gc_log.display()));
        let logging = directory.join("log4j2.properties");
        command.arg(format!("-Dlog4j2.configurationFile={}", logging.display()));
        command.arg("-cp").arg(self.class_path()).arg("kafka.Kafka").arg(directory.join("server.properties"));
        command
    }

    /// One of Kafka's tools by its class, without arguments.
    pub(crate) fn tool(&self, class: &str) -> Command {
        let mut command = Command::new(&self.java.program);
        without_developers_variables(&mut command);
        command.args([TOOL_HEAP, "-server", "-XX:+UseG1GC", "-cp"]).arg(self.class_path()).arg(class);
        command
    }

    fn class_path(&self) -> PathBuf {
        self.jars.join("*")
    }
}

/// Kafka's shipped server.properties as far as it differs from the built-in defaults, with our ports and directory.
fn properties(directory: &Path, address: SocketAddr, is_secured: bool) -> String {
    let listener = if is_secured { "SASL_SSL" } else { "PLAINTEXT" };
    let (ip, port) = (address.ip(), address.port());
    let controller = port + 1;
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={ip}:{controller}
listeners={listener}://{ip}:{port},CONTROLLER://{ip}:{controller}
inter.broker.listener.name={listener}
advertised.listeners={listener}://{ip}:{port},CONTROLLER://{ip}:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{listener}:{listener}
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
log.dirs={}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
",
        directory.join("data").display()
    )
}

fn write_settings(directory: &Path, properties: &str) -> Result<()> {
    fs::write(directory.join("server.properties"), properties)?;
    Ok(fs::write(directory.join("log4j2.properties"), LOGGING)?)
}

/// Copies the artifacts of a project and all that they need into `jars`, by Maven.
pub(crate) fn resolve_pom(jars: &Path, text: &str, what: &str) -> Result<()> {
    fs::create_dir_all(jars)?;
    let pom = jars.join("pom.xml");
    fs::write(&pom, text)?;
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "-f"]).arg(&pom).arg("dependency:copy-dependencies");
    maven.arg(format!("-DoutputDirectory={}", jars.canonicalize()?.display()));
    let status = maven.status().context(
        "mvn, which fetches the peers, does not run: install Maven, or name a folder of jars (see --help)",
    )?;
    ensure!(
        status.success(),
        "mvn could not fetch {what} ({status}): see its messages above, or name a folder of jars (see --help)"
    );
    Ok(())
}

/// The newest Java on the machine, of those up to a version if one is given.
pub(crate) fn newest_java(newest: Option<u32>) -> Result<Java> {
    let homes = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = homes.chain(std::env::var_os("JAVA_HOME").map(PathBuf::from));
    let programs = homes.map(|home| home.join("bin/java")).chain([PathBuf::from("java")]);
    let wanted = OLDEST_JAVA..=newest.unwrap_or(u32::MAX);
    let found = programs.filter_map(version_of).filter(|(major, _)| wanted.contains(major));
    let newest = found.max_by_key(|(major, _)| *major).map(|(_, java)| java);
    newest.with_context(|| {
        let to = wanted.end().checked_add(1).map_or(" or newer".to_owned(), |end| format!(" to {}", end - 1));
        format!("no JDK of version {OLDEST_JAVA}{to} was found: install one, or name it by --java")
    })
}

/// Returns the major version of a Java, and itself.
fn version_of(program: PathBuf) -> Option<(u32, Java)> {
    let mut command = Command::new(&program);
    // If a variable gives a JVM options, it prints these in its first line, instead of the version.
    without_developers_variables(&mut command);
    let output = command.arg("-version").output().ok()?;
    let line = String::from_utf8_lossy(&output.stderr).lines().next()?.to_owned();
    Some((major_version(&line)?, Java { program, version: line }))
}

/// Parses the major version of a line such as `openjdk version "25.0.1" 2025-10-21 LTS`.
fn major_version(line: &str) -> Option<u32> {
    let version = line.split('"').nth(1)?;
    version.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::major_version;

    #[test]
    fn java_versions() {
        for (line, major) in [
            ("openjdk version \"25.0.1\" 2025-10-21 LTS", Some(25)),
            ("openjdk version \"26-ea\" 2026-03-17", Some(26)),
            ("java version \"1.8.0_402\"", Some(1)),
            ("no java", None),
        ] {
            assert_eq!(major_version(line), major, "{line}");
        }
    }
}
