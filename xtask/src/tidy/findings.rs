//! Counts that are not their numbers, and the text that says so.

use std::fmt::Write as _;

use super::Place;
use super::changes::Changes;

/// Places that are named.
const PLACES_MAX: usize = 10;

/// A count that differs from its number in `xtask/tidy.toml`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding<'c> {
    Above { kind: &'c str, number: usize, places: &'c [Place] },
    Below { kind: &'c str, number: usize, count: usize },
}

/// Returns the message about findings: those above their numbers with their new places, then those below.
pub(super) fn report(findings: &[Finding<'_>], changes: &Changes) -> String {
    let (mut text, mut below) = (String::new(), String::new());
    for finding in findings {
        match finding {
            Finding::Above { kind, number, places } => above(&mut text, kind, *number, places, changes),
            Finding::Below { kind, number, count } => {
                let _ = writeln!(below, "    {kind}: {count}, no longer {number}");
            }
        }
    }
    if !below.is_empty() {
        let advice =
            "counts have fallen: cargo xtask tidy --lower writes them to xtask/tidy.toml; commit that";
        let _ = write!(text, "{advice}\n{below}");
    }
    text.trim_end().to_owned()
}

fn above(text: &mut String, kind: &str, number: usize, places: &[Place], changes: &Changes) {
    let _ = writeln!(text, "{kind}: {}, and xtask/tidy.toml allows {number}: {}", places.len(), advice(kind));
    let new: Vec<&Place> = places.iter().filter(|place| changes.touch(place)).collect();
    let (which, named) = match (new.is_empty(), changes.since()) {
        (false, Some(since)) => (format!("in lines that are new since {since}"), new),
        (true, Some(since)) => {
            (format!("of all, since none is in a line that is new since {since}"), places.iter().collect())
        }
        (_, None) => ("of all".to_owned(), places.iter().collect()),
    };
    let _ = writeln!(text, "  {which}:");
    for place in named.iter().take(PLACES_MAX) {
        let _ = writeln!(text, "    {place}");
    }
    if let Some(more) = named.len().checked_sub(PLACES_MAX).filter(|more| *more > 0) {
        let _ = writeln!(
            text,
            "    and {more} more; cargo xtask tidy --places '{kind}' prints all places, old ones too"
        );
    }
}

/// Returns the act that lowers a count.
fn advice(kind: &str) -> &'static str {
    match kind.split('.').next().unwrap_or(kind) {
        "doc_openings" => "begin the comment with a noun (the thing) or a verb (the act)",
        "long_prose_lines" => "break the line",
        "long_files" => "split the file where it begins to be about a second thing",
        "long_functions" => "move work without decisions into functions with names",
        "sleeps_in_tests" => "wait for a condition with a deadline, or for an event that comes later",
        "duplicates" => "make one function of both passages; cargo xtask duplicates prints all pairs",
        "words" | "parts" | "names" => "use the word that the file has beside it",
        "pub_items" => {
            "write pub(crate); a new crate, or one that items have moved to, gets its number by hand, and the commit says why"
        }
        _ => "lower it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::KINDS;

    fn places(count: u32) -> Vec<Place> {
        (1..=count).map(|line| Place::line("a.rs", line)).collect()
    }

    #[test]
    fn what_has_grown_is_named_by_its_new_places() {
        let changes = Changes::parse("abc", "+++ b/a.rs\n@@ -1,0 +2,2 @@\n", "");
        let text = report(&[Finding::Above { kind: "words.blue", number: 3, places: &places(4) }], &changes);
        assert!(text.starts_with("words.blue: 4, and xtask/tidy.toml allows 3: use the word"), "{text}");
        assert!(text.ends_with("since abc:\n    a.rs:2\n    a.rs:3"), "{text}");
    }

    #[test]
    fn ten_places_are_named_and_the_others_counted() {
        let places = places(13);
        for changes in
            [Changes::default(), Changes::parse("abc", "", ""), Changes::parse("abc", "", "a.rs\n")]
        {
            let text = report(&[Finding::Above { kind: "long_files", number: 0, places: &places }], &changes);
            assert!(text.contains("    a.rs:10\n") && !text.contains("a.rs:11"), "{text}");
            assert!(text.contains("and 3 more; cargo xtask tidy --places 'long_files'"), "{text}");
        }
    }

    #[test]
    fn what_has_fallen_is_said_with_the_command_that_writes_it() {
        let text = report(&[Finding::Below { kind: "long_files", number: 3, count: 2 }], &Changes::default());
        assert!(
            text.contains("cargo xtask tidy --lower") && text.ends_with("long_files: 2, no longer 3"),
            "{text}"
        );
    }

    #[test]
    fn each_kind_has_its_advice() {
        let tables = ["words.a", "parts.a", "names.a", "pub_items.a"];
        assert!(KINDS.iter().chain(&tables).all(|kind| advice(kind) != advice("")));
    }
}
