//! A check of the sources of all parts of the broker: each thread is supervised.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that start threads for `supervised`: itself, the threads of the system that it starts, and those of a simulation, whose panics
/// go to the owner of their schedule.
const OF_SUPERVISION: [&str; 3] = ["supervised.rs", "sync/thread.rs", "schedule.rs"];

/// Threads are started by `supervised`, or begin with a guard.
#[test]
fn no_thread_is_without_supervision() {
    let mut started = 0;
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let of_broker = [
        "runtime",
        "listener-security",
        "links",
        "store",
        "coordinators",
        "requests",
        "net",
        "node",
        "broker",
    ];
    for (path, text) in of_broker.iter().flat_map(|name| sources(&crates.join(name).join("src"))) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().expect("there is a first part");
        let lines: Vec<&str> = code.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !line.contains("thread::Builder::new()") && !line.contains("thread::spawn(") {
                continue;
            }
            started += 1;
            let around = lines[at.saturating_sub(3)..(at + 4).min(lines.len())].join("\n");
            let is_guarded =
                around.contains("AbortOnPanic(") || OF_SUPERVISION.iter().any(|of| path.ends_with(of));
            assert!(is_guarded, "{}:{}: `supervised::spawn` is for that\n{around}", path.display(), at + 1);
        }
    }
    assert!(started > 3, "{started} threads are started");
}

/// The files below a folder that are not only tests, with their texts.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("it has a name");
        let of_tests = [
            "tests",
            "testing",
            "authentication_tests",
            "node_tests",
            "publisher_tests",
            "replicated_tests",
            "supervision",
        ];
        if of_tests.iter().any(|tests| name == *tests) {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("it can be read");
            found.push((path, text));
        }
    }
    found
}
