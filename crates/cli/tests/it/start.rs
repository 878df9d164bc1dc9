//! The environment of `mainstem start`, and its output.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn start() -> Command {
    let mut command = Command::new(crate::support::binary::mainstem());
    command.arg("start").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_environment_sets_what_was_not_typed() {
    let home = tempfile::tempdir().unwrap();
    let mut broker = start()
        .arg("--json")
        .current_dir(home.path())
        .env("MAINSTEM_LISTENERS", "OUTER://127.0.0.1:0")
        .env("MAINSTEM_LISTENER_SECURITY_PROTOCOL_MAP", "OUTER:PLAINTEXT")
        .env("MAINSTEM_INTER_BROKER_LISTENER_NAME", "OUTER")
        .env("MAINSTEM_LOG_DIRS", "elsewhere")
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(broker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&broker), Signal::TERM).unwrap();
    let (status, mut said) = (broker.wait().unwrap(), String::new());
    broker.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "{said}");
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["listeners"][0]["name"], "OUTER", "{ready}");
    assert!(home.path().join("elsewhere/meta.properties").is_file());
    assert!(!home.path().join("mainstem-data").exists());
}

#[test]
fn lines_for_a_file_have_no_colours_and_say_a_cause_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = tempfile::tempdir().unwrap();
    let run = start()
        .args(["--listen", &taken.local_addr().unwrap().to_string()])
        .current_dir(home.path())
        .env("MAINSTEM_BOOTSTRAP", "127.0.0.1:9092")
        .env("MAINSTEM_COMMAND_CONFIG", "admin.properties")
        .env("MAINSTEM_NUM_PARTITION", "3")
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success());
    assert!(said.contains("WARN") && said.contains("MAINSTEM_NUM_PARTITION"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said:?}");
    assert_eq!(said.matches("Address already in use").count(), 1, "{said}");
    // These variables belong to the other commands.
    assert!(!said.contains("MAINSTEM_BOOTSTRAP") && !said.contains("MAINSTEM_COMMAND_CONFIG"), "{said}");
}

#[test]
fn help_names_every_setting() {
    let help = |option: &str| String::from_utf8(start().arg(option).output().unwrap().stdout).unwrap();
    let (short, long) = (help("-h"), help("--help"));
    for setting in ["log.retention.hours=168", "write.caching.default=false"] {
        assert!(long.contains(setting) && !short.contains(setting), "{setting}");
    }
    assert!(short.contains("MAINSTEM_LOG=debug") && short.lines().count() < 40, "{short}");
}

#[test]
fn what_is_said_twice_is_refused() {
    let home = tempfile::tempdir().unwrap();
    for (options, key) in [
        (["--data-dir", "a", "--set", "log.dirs=b"], "log.dirs"),
        (["--data-dir", "a", "--set", "log.dir=b"], "log.dir"),
        (["--listen", "127.0.0.1:0", "--set", "listeners=PLAINTEXT://127.0.0.1:0"], "listeners"),
    ] {
        let run = start().args(options).current_dir(home.path()).output().unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && said.contains(options[0]) && said.contains(key), "{said}");
    }
    assert_eq!(home.path().read_dir().unwrap().count(), 0, "nothing was touched");
}

/// Every file and directory below one, with its mode.
fn modes_below(dir: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in dir.read_dir().unwrap().map(Result::unwrap) {
        let (path, metadata) = (entry.path(), entry.metadata().unwrap());
        if metadata.is_dir() {
            found.extend(modes_below(&path));
        }
        found.push((path, metadata.permissions().mode() & 0o7777));
    }
    found
}

/// Starts a broker under a umask and stops it when it is ready. Returns the modes of all that is then in its directory.
fn modes_under(umask: &str, home: &Path) -> Vec<(PathBuf, u32)> {
    let mut broker = Command::new("sh")
        .args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"])
        .arg(crate::support::binary::mainstem())
        .args(["start", "--json", "--listen", "127.0.0.1:0", "--data-dir", "data/logs"])
        .current_dir(home)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(broker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&broker), Signal::TERM).unwrap();
    let (status, mut said) = (broker.wait().unwrap(), String::new());
    broker.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success() && line.contains("listeners"), "{line}{said}");
    modes_below(&home.join("data"))
}

#[test]
fn data_are_kept_from_other_users() {
    let home = tempfile::tempdir().unwrap();
    let metadata = home.path().join("data/logs/__cluster_metadata-0");
    let modes = modes_under("000", home.path());
    assert!(modes.len() > 5, "{modes:?}");
    for (path, mode) in &modes {
        let shown = format!("{} {mode:o}", path.display());
        assert_eq!(mode & 0o027, 0, "{shown}");
        assert_eq!(mode & 0o700 == 0o700, path.is_dir(), "{shown}");
    }
    let mode_of = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode_of(&home.path().join("data/logs")), 0o750);
    assert_eq!(mode_of(&metadata), 0o700, "it has what proves passwords");
}

#[test]
fn what_is_there_keeps_its_mode_and_a_stricter_umask_counts() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data/logs");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    let modes = modes_under("077", home.path());
    for (path, mode) in modes.iter().filter(|(path, _)| *path != dir) {
        assert_eq!(mode & 0o077, 0, "{} {mode:o}", path.display());
    }
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o755);
}
