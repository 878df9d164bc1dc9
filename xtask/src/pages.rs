//! Tests that the names in pages exist: files, crates, threads and functions of ARCHITECTURE.md.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace;

fn page(name: &str) -> String {
    fs::read_to_string(workspace::root().join(name)).unwrap()
}

/// Every source file below `crates/`.
fn sources() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace::root().join("crates"), &mut found);
    found
}

/// Returns the texts between backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the text from a heading to the next one.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let begin = page.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let rest = &page[begin + 1..];
    rest.split("\n## ").next().unwrap()
}

/// A file name is resolved in the folder of the one before it on its line, or anywhere below `crates/`.
#[test]
fn files_that_the_architecture_names_are_there() {
    let (page, sources) = (page("ARCHITECTURE.md"), sources());
    let files: Vec<&str> = names(&page).filter(|name| name.ends_with(".rs")).collect();
    assert!(files.len() > 30, "{files:?}");
    for file in files {
        assert!(sources.iter().any(|source| source.ends_with(file)), "there is no {file}");
    }
    let folders = names(&page).filter(|name| name.ends_with('/'));
    for folder in folders.filter(|name| !["crates/", "schema/", "api/", "grpc://"].contains(name)) {
        let is_there = sources.iter().any(|source| source.to_string_lossy().contains(&format!("/{folder}")));
        assert!(is_there, "there is no folder {folder}");
    }
}

/// Each row of the two ways begins with a file, and its other names occur in the crates: functions, system calls, fields.
#[test]
fn the_ways_of_a_produce_and_a_fetch_name_what_is_in_the_code() {
    let architecture = page("ARCHITECTURE.md");
    let code: String = sources().iter().map(|source| fs::read_to_string(source).unwrap()).collect();
    for way in ["The way of a produce", "The way of a fetch"] {
        let rows = section(&architecture, way).lines().filter(|line| line.starts_with("| `"));
        let mut count = 0;
        for row in rows {
            count += 1;
            let [file, what] = row.trim_matches('|').splitn(2, '|').collect::<Vec<_>>()[..] else {
                panic!("{row} has no two columns")
            };
            let first = names(file).next().unwrap();
            assert!(workspace::root().join("crates").join(first).is_file(), "there is no {first}");
            for name in names(what) {
                let word = name.rsplit("::").next().unwrap().split('(').next().unwrap();
                assert!(code.contains(word), "{word} is nowhere in the code: {row}");
            }
        }
        assert!(count >= 6, "{way} has {count} rows");
    }
}

#[test]
fn threads_that_the_architecture_names_are_started() {
    let architecture = page("ARCHITECTURE.md");
    let sources = sources();
    let of_process =
        ["broker", "coordinators", "links", "log", "net", "node", "requests", "runtime", "store"]
            .map(|name| format!("/{name}/src/"));
    let is_of_process = |path: &str| of_process.iter().any(|folder| path.contains(folder.as_str()));
    let code = sources.iter().filter(|source| is_of_process(&source.to_string_lossy()));
    let code: String = code.map(|source| fs::read_to_string(source).unwrap()).collect();
    let threads = names(section(&architecture, "Threads"));
    let threads =
        threads.filter(|name| name.chars().all(|one| one.is_ascii_lowercase() || "-N".contains(one)));
    let mut count = 0;
    for thread in threads {
        count += 1;
        let begin = thread.strip_suffix("-N").unwrap_or(thread);
        assert!(code.contains(&format!("\"{begin}")), "no thread is called {thread}");
    }
    assert!(count > 10, "{count} threads");
}

/// Each crate has its place in the map, and each entry its crate.
#[test]
fn the_map_has_every_crate() {
    let architecture = page("ARCHITECTURE.md");
    let map = section(&architecture, "Code map");
    let entries: Vec<&str> = map.lines().filter_map(|line| line.strip_prefix("`crates/")).collect();
    let entries: Vec<&str> = entries.iter().map(|entry| entry.trim_end_matches('`')).collect();
    for entry in fs::read_dir(workspace::root().join("crates")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(entries.contains(&name.as_str()), "ARCHITECTURE.md does not say what crates/{name} is");
    }
    for entry in entries {
        assert!(workspace::root().join("crates").join(entry).is_dir(), "there is no crates/{entry}");
    }
}
