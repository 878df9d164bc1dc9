//! Ports for servers that end and start again: a test knows them before anything listens there.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Ports below those that the system gives to connections (32,768 and above on Linux). So a client that connects to a stopped server
/// reaches nothing else at its port, and no connection takes the port of a stopped server.
const PORTS: Range<u16> = 20_000..32_000;

/// Takes a port of this machine on which nothing listens. It stays this process's own until the process ends: a lock on a file of
/// the port's name keeps other tests from it, also while no server listens there.
///
/// # Panics
/// If all are taken, or the folder for temporary files cannot be written to.
pub fn port() -> u16 {
    static HELD: Mutex<Vec<(u16, File)>> = Mutex::new(Vec::new());
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder();
    let count = PORTS.end - PORTS.start;
    let begin = (std::process::id() % u32::from(count)) as u16;
    let ports = (0..count).map(|number| PORTS.start + (begin + number) % count);
    for port in ports {
        if held.iter().any(|(other, _)| *other == port) {
            continue;
        }
        let path = folder.join(port.to_string());
        let file = File::options().create(true).write(true).truncate(false).open(&path);
        // A file of another user cannot be opened: the port may be in use.
        let Ok(file) = file else { continue };
        // At no address: some servers listen on all.
        if file.try_lock().is_ok() && TcpListener::bind(("0.0.0.0", port)).is_ok() {
            held.push((port, file));
            return port;
        }
    }
    panic!("all ports of {PORTS:?} are taken: end what listens there, or remove {}", folder.display());
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join("mainstem-test-ports");
    fs::create_dir_all(&folder)
        .unwrap_or_else(|error| panic!("{} cannot be made: {error}", folder.display()));
    folder
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const ASKED: &str = "TESTKIT_ASKED";

    #[test]
    fn a_port_is_given_once_whether_or_not_anything_listens_there() {
        let (one, other) = (port(), port());
        assert_ne!(one, other);
        assert!(PORTS.contains(&one) && PORTS.contains(&other));
        TcpListener::bind(("127.0.0.1", one)).unwrap();
    }

    /// Run by itself, it does nothing.
    #[test]
    fn prints_that_a_port_is_locked() {
        let Ok(asked) = std::env::var(ASKED) else { return };
        let is_locked = File::open(folder().join(&asked)).unwrap().try_lock().is_err();
        let mine = port().to_string();
        assert!(is_locked && mine != asked, "{asked} is given again: {mine}");
    }

    #[test]
    fn another_process_is_not_given_it() {
        let port = port();
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "ports::tests::prints_that_a_port_is_locked"]).env(ASKED, port.to_string());
        let output = other.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
