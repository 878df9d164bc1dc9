//! JVMs that run Apache Kafka, its clients and its tools, and programs of one source file that use them.
//!
//! `cargo xtask test` installs the jars into `target/interop/kafka-VERSION/lib`. Beside that folder it keeps an archive of their classes
//! (JEP 350). A JVM maps it instead of reading, verifying and linking them, which saves a third to a half of the CPU time of a start.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

/// Flags of a JVM that lives for seconds: small, and quick to start.
const FLAGS: [&str; 3] = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];
/// An archive that another JVM has made is not used. The JVM's warning about it would be part of the program's output.
const WITHOUT_WARNINGS: [&str; 2] = ["-Xlog:disable", "-Xlog:all=error:stderr"];

/// The jars of a release of Apache Kafka, with a JVM to run them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaJars {
    folder: PathBuf,
}

impl KafkaJars {
    /// The release that everything is compared with.
    pub const NEWEST: &str = "4.3.0";

    /// Finds the jars of a release, where a JVM is too. `MAINSTEM_KAFKA_JARS` names the folder of [`KafkaJars::NEWEST`], in the place
    /// of `target/interop/kafka-VERSION/lib`.
    ///
    /// # Errors
    /// If they are missing, with what to do.
    pub fn find(version: &str) -> Result<KafkaJars, String> {
        let named = std::env::var_os("MAINSTEM_KAFKA_JARS").filter(|_| version == KafkaJars::NEWEST);
        let installed = || workspace().join(format!("target/interop/kafka-{version}/lib"));
        let jars = KafkaJars::at(named.map_or_else(installed, PathBuf::from));
        if !jars.folder.join(format!("kafka-clients-{version}.jar")).is_file() {
            let folder = jars.folder.display();
            return Err(format!("no jars of Kafka {version} in {folder}: cargo xtask test installs them"));
        }
        let mut version = Command::new(program("java"));
        version.arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match version.status() {
            Ok(status) if status.success() => Ok(jars),
            Ok(status) => {
                Err(format!("java -version ended with {status}: install a JDK of release 17 or later"))
            }
            Err(error) => Err(format!("no JVM: java: {error}: install a JDK of release 17 or later")),
        }
    }

    /// Finds the jars for a test, which is skipped without them. A line on stderr says that.
    ///
    /// # Panics
    /// If they are missing and `CI` is `true`, where no test is skipped.
    pub fn or_skip(version: &str, test: &str) -> Option<KafkaJars> {
        match KafkaJars::find(version) {
            Ok(jars) => Some(jars),
            Err(reason) => {
                let is_ci = std::env::var("CI").as_deref() == Ok("true");
                assert!(!is_ci, "{test} cannot run: {reason}");
                // Past the capture of tests that pass.
                let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
                None
            }
        }
    }

    /// The jars of a folder, which need not exist yet.
    pub fn at(folder: PathBuf) -> KafkaJars {
        KafkaJars { folder }
    }

    /// The folder of the jars.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The archive of their classes.
    pub fn archive(&self) -> PathBuf {
        self.folder.with_file_name("classes.jsa")
    }

    /// A JVM with a heap of at most so many MiB. A main class and its arguments follow.
    pub fn java(&self, heap_mib: u32) -> Command {
        self.java_with(heap_mib, &[])
    }

    /// The same with folders of further classes.
    pub fn java_with(&self, heap_mib: u32, classes: &[&Path]) -> Command {
        let mut command = Command::new(program("java"));
        command.arg(format!("-Xmx{heap_mib}m")).args(FLAGS);
        let archive = self.archive();
        if archive.is_file() {
            command.args(WITHOUT_WARNINGS).arg(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        command.arg("-cp").arg(self.class_path(classes));
        command
    }

    /// A JVM that writes the archive when it ends. Classes of programs are none of it.
    pub fn archiving_java(&self, heap_mib: u32, archive: &Path) -> Command {
        let mut command = Command::new(program("java"));
        command.arg(format!("-Xmx{heap_mib}m")).args(FLAGS).args(WITHOUT_WARNINGS);
        command.arg(format!("-XX:ArchiveClassesAtExit={}", archive.display()));
        command.arg("-cp").arg(self.class_path(&[]));
        command
    }

    /// A JVM that runs the class of a source file, whose arguments follow. The file is compiled once for each text that it has had:
    /// a JVM that is given the source does so at each start.
    ///
    /// # Panics
    /// If the file does not compile.
    pub fn program(&self, source: &Path, heap_mib: u32) -> Command {
        let (classes, main) = self.compiled(source);
        let mut command = self.java_with(heap_mib, &[&classes]);
        command.arg(main);
        command
    }

    /// The jars come first: an archive serves only where the class path begins as it did when it was made.
    fn class_path(&self, classes: &[&Path]) -> OsString {
        let mut path = self.folder.join("*").into_os_string();
        for folder in classes {
            path.push(":");
            path.push(folder);
        }
        path
    }

    /// The folder of the classes of a source file, and its main class, for [`KafkaJars::java_with`]; see [`KafkaJars::program`].
    ///
    /// # Panics
    /// If the file does not compile.
    pub fn compiled(&self, source: &Path) -> (PathBuf, String) {
        let text = fs::read_to_string(source)
            .unwrap_or_else(|error| panic!("{} cannot be read: {error}", source.display()));
        let stem = source.file_stem().expect("a source file").to_string_lossy().into_owned();
        let package = text.lines().find_map(|line| line.strip_prefix("package ")?.strip_suffix(';'));
        let main = package.map_or(stem.clone(), |package| format!("{package}.{stem}"));
        let mut hasher = DefaultHasher::new();
        (&text, &self.folder).hash(&mut hasher);
        let programs = workspace().join("target/test-programs");
        let classes = programs.join(format!("{stem}-{:016x}", hasher.finish()));
        if !classes.is_dir() {
            self.compile(source, &programs, &classes);
        }
        (classes, main)
    }

    fn compile(&self, source: &Path, programs: &Path, classes: &Path) {
        let thread = format!("{:?}", std::thread::current().id());
        let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
        let fresh = programs.join(format!("of-{}-{thread}", process::id()));
        fs::create_dir_all(&fresh)
            .unwrap_or_else(|error| panic!("{} cannot be made: {error}", fresh.display()));
        let mut javac = Command::new(program("javac"));
        javac.arg("-cp").arg(self.class_path(&[])).arg("-d").arg(&fresh).arg(source);
        let output = javac.output().unwrap_or_else(|error| panic!("javac does not start: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} does not compile:\n{said}", source.display());
        // Another test may have been first, which is as well.
        let _ = fs::rename(&fresh, classes);
        let _ = fs::remove_dir_all(&fresh);
    }
}

/// A program of the JDK: that of `JAVA_HOME`, or else the one on `PATH`.
pub fn program(name: &str) -> PathBuf {
    let of_home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin").join(name));
    of_home.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(name))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jars_come_first_on_the_class_path() {
        let jars = KafkaJars::at("/kafka/lib".into());
        let command = jars.java_with(64, &[Path::new("/one"), Path::new("/other")]);
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        assert_eq!(arguments[0], "-Xmx64m");
        assert_eq!(arguments[arguments.len() - 2..], ["-cp", "/kafka/lib/*:/one:/other"]);
        assert!(!arguments.iter().any(|argument| argument.contains("SharedArchiveFile")), "there is none");
    }

    #[test]
    fn what_is_missing_is_named() {
        let reason = KafkaJars::find("0.7").unwrap_err();
        assert!(reason.contains("Kafka 0.7") && reason.contains("cargo xtask test"), "{reason}");
    }
}
