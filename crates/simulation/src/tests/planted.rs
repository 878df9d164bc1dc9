//! The faults that seeds have to find.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Faults of `tests/planted` that name this crate. `cargo xtask planted --seeds` plants each, and fails where no test here does.
const FAULTS: [&str; 24] = [
    "commit-of-an-earlier-generation",
    "compacted-where-batches-are-counted",
    "decided-in-one-epoch-written-in-another",
    "deleted-topic-stays",
    "early-vote",
    "fenced-for-ever",
    "given-up-for-few-replicas",
    "high-watermark-too-high",
    "leader-confirmed-by-itself",
    "lost-acknowledgement",
    "metadata-applied-before-they-are-committed",
    "new-format-at-the-old-level",
    "output-used-after-it-was-removed",
    "records-deleted-before-the-group-knows",
    "session-never-expires",
    "sync-covers-what-came-later",
    "sync-skipped",
    "takeover-without-a-replay",
    "torn-tail-kept",
    "transactions-left-open-by-a-takeover",
    "two-owners-of-a-partition",
    "wait-ends-well-with-its-leader",
    "wait-of-the-last-record-forgotten",
    "written-before-it-is-committed",
];

#[test]
fn the_list_has_all_faults_that_seeds_have_to_find() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/planted");
    let names_this_crate = |text: &str| {
        let mut packages = text.lines().filter_map(|line| line.strip_prefix("Packages: "));
        packages.any(|names| names.split(", ").any(|name| name == env!("CARGO_PKG_NAME")))
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("the folder of faults") {
        let path = entry.expect("a file of it").path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".patch")) else {
            continue;
        };
        if names_this_crate(&fs::read_to_string(&path).expect("a text")) {
            found.insert(name.to_owned());
        }
    }
    assert_eq!(found, FAULTS.iter().map(|name| (*name).to_owned()).collect());
}
