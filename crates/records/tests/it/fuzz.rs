//! The fuzz bodies over the checked-in corpus, over mutations of it and over random bytes.

use mainstem_records::fuzz;
use proptest::prelude::*;
use proptest::sample::Index;
use std::path::Path;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus {name} is empty");
    files
}

/// Overwritten bytes, and how much of the end is cut off.
type Mutation = (Vec<(Index, u8)>, Option<Index>);

fn mutation() -> impl Strategy<Value = Mutation> {
    (
        proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6),
        proptest::option::weighted(0.3, any::<Index>()),
    )
}

fn mutate(bytes: &mut Vec<u8>, (edits, cut): &Mutation) {
    if bytes.is_empty() {
        return;
    }
    for (at, value) in edits {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
}

fn run(name: &str, body: fn(&[u8])) {
    let files = corpus(name);
    for (file, bytes) in &files {
        let outcome = std::panic::catch_unwind(|| body(bytes));
        assert!(outcome.is_ok(), "corpus file {name}/{file}");
    }
    let cases = ProptestConfig::default().cases; // PROPTEST_CASES, or 256
    let config = ProptestConfig { cases: cases * 8, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(file in 0..files.len(), mutation in mutation())| {
        let mut bytes = files[file].1.clone();
        mutate(&mut bytes, &mutation);
        body(&bytes);
    });
    let config = ProptestConfig { cases: cases * 2, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(bytes in proptest::collection::vec(any::<u8>(), 0..300))| body(&bytes));
}

#[test]
fn split() {
    run("split", fuzz::split);
}

#[test]
fn sealed() {
    run("sealed", fuzz::sealed);
}

#[test]
fn decompress() {
    run("decompress", fuzz::decompress);
}
