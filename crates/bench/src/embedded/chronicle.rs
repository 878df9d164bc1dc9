//! Chronicle Queue: its jars, and the program that puts the loads on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::broker::{Java, newest_java, without_developers_variables};

pub(crate) const VERSION: &str = "5.27ea11";
/// It is made for the long-term versions of Java up to this one.
const NEWEST_JAVA: u32 = 21;
const POM: &str = include_str!("../../chronicle/pom.xml");
const SOURCE: &str = include_str!("../../chronicle/ChronicleSide.java");
/// Flags that its documentation asks for from Java 17 on, and one that turns off its reports to its makers.
const FLAGS: [&str; 14] = [
    "-Dchronicle.analytics.disable=true",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED",
    "--add-exports=jdk.compiler/com.sun.tools.javac.file=ALL-UNNAMED",
    "--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "-Xms512M",
    "-Xmx512M",
];

/// The jars with the compiled program, and the JDK to run them.
#[derive(Debug)]
pub(crate) struct ChronicleInstall {
    pub(crate) java: Java,
    jars: PathBuf,
}

impl ChronicleInstall {
    /// Takes the jars from `jars`, resolved by Maven if they are not there, and compiles the program against them.
    pub(crate) fn find(jars: &Path, java: Option<PathBuf>) -> Result<Self> {
        if !jars.join(format!("chronicle-queue-{VERSION}.jar")).exists() {
            resolve(jars)?;
        }
        let java = match java {
            Some(java) => Java::named(java)?,
            None => newest_java(Some(NEWEST_JAVA))?,
        };
        let jars = jars.canonicalize()?;
        compile(&java, &jars)?;
        Ok(Self { java, jars })
    }

    /// The program, without its arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.java.program);
        without_developers_variables(&mut command);
        let class_path = format!("{}:{}", self.jars.join("*").display(), self.jars.join("classes").display());
        command.args(FLAGS).arg("-cp").arg(class_path).arg("ChronicleSide");
        command
    }
}

fn resolve(jars: &Path) -> Result<()> {
    fs::create_dir_all(jars)?;
    let pom = jars.join("pom.xml");
    fs::write(&pom, POM)?;
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "-f"]).arg(&pom).arg("dependency:copy-dependencies");
    maven.arg(format!("-DoutputDirectory={}", jars.canonicalize()?.display()));
    let status = maven.status().context(
        "mvn, which fetches Chronicle Queue, does not run: install Maven, or name a folder of jars by --chronicle-jars",
    )?;
    ensure!(
        status.success(),
        "mvn could not fetch Chronicle Queue {VERSION} ({status}): see its messages above, or name a folder of jars by \
         --chronicle-jars"
    );
    Ok(())
}

fn compile(java: &Java, jars: &Path) -> Result<()> {
    let source = jars.join("ChronicleSide.java");
    fs::write(&source, SOURCE)?;
    let compiler = java.program.with_file_name("javac");
    let mut javac = Command::new(&compiler);
    without_developers_variables(&mut javac);
    javac
        .args(["--release", "17", "-cp"])
        .arg(jars.join("*"))
        .arg("-d")
        .arg(jars.join("classes"))
        .arg(&source);
    let output = javac
        .output()
        .with_context(|| format!("{} does not run: name the java of a JDK by --java", compiler.display()))?;
    ensure!(
        output.status.success(),
        "compiling {}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
