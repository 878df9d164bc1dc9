//! PostgreSQL, which the peer needs: as Debian packages it, every commit synced, on a port of this machine.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process;

const TABLES: &str = include_str!("../../direct/tables.sql");
/// PostgreSQL refuses to run as root; Debian makes this user for it.
const USER: &str = "postgres";

/// A database that runs; it is stopped when it is dropped.
#[derive(Debug)]
pub(super) struct Database {
    programs: PathBuf,
    directory: PathBuf,
    pub(super) port: u16,
    pid: u32,
    runs: bool,
}

impl Database {
    /// Makes one below a directory, and the peer's tables in it.
    pub(super) fn start(programs: &Path, below: &Path, port: u16) -> Result<Database> {
        ensure!(
            programs.join("initdb").is_file(),
            "there is no PostgreSQL in {}: install it (Debian: postgresql-15), name its folder by --postgresql, or measure without \
             the peer by --no-peer",
            programs.display()
        );
        let directory = below.join("database");
        fs::create_dir_all(&directory)?;
        if rustix::process::geteuid().is_root() {
            let user = fs::read_to_string("/etc/passwd")?;
            let user =
                user.lines().find_map(|line| line.strip_prefix(USER)?.strip_prefix(":")?.split(':').nth(1));
            let user = user.and_then(|id| id.parse().ok());
            chown(&directory, Some(user.with_context(|| format!("there is no user {USER}"))?), None)?;
        }
        let mut database = Database { programs: programs.to_owned(), directory, port, pid: 0, runs: false };
        let data = database.data();
        database.run("initdb", &["-D", &data, "-A", "trust", "-U", USER])?;
        let options = format!("-p {port} -c listen_addresses=127.0.0.1 -k {}", database.directory.display());
        let log = database.directory.join("log").display().to_string();
        database.run("pg_ctl", &["-D", &data, "-w", "-l", &log, "-o", &options, "start"])?;
        database.runs = true;
        let pid = fs::read_to_string(Path::new(&data).join("postmaster.pid"))?;
        database.pid =
            pid.lines().next().and_then(|pid| pid.parse().ok()).context("postmaster.pid has no id")?;
        database
            .run("psql", &["-h", "127.0.0.1", "-p", &port.to_string(), "-U", USER, "-q", "-c", TABLES])?;
        Ok(database)
    }

    fn data(&self) -> String {
        self.directory.join("data").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let program = self.programs.join(program);
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", USER, "--"]).arg(&program);
                command
            }
            false => Command::new(&program),
        };
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().with_context(|| format!("{} does not run", program.display()))?;
        ensure!(status.success(), "{} ended with {status}", program.display());
        Ok(())
    }

    /// Returns the CPU time of all its processes.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        process::cpu_time_of_family(self.pid)
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.runs) {
            return Ok(());
        }
        self.run("pg_ctl", &["-D", &self.data(), "-w", "-m", "fast", "stop"])
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // An earlier error is the one to report.
        let _ = self.end();
    }
}
