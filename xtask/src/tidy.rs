//! `cargo xtask tidy`: counts over the files of the repository, none of which may grow.
//!
//! `xtask/tidy.toml` has a number for each kind. A count above its number is an error, and so is one below it, which `cargo xtask tidy
//! --lower` writes. So the file always has the true numbers, and they only fall. Nothing is compiled.

mod changes;
mod code;
mod doc_comments;
mod findings;
mod limits;
mod prose;
mod test_code;
mod words;

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use self::changes::Changes;
use self::findings::Finding;
use self::limits::Limits;
use self::test_code::TestCode;
use self::words::Vocabulary;
use crate::duplicates;
use crate::sources::{self, Source};
use crate::tokens::{Tokens, tokens};

const USAGE: &str = "\
usage: cargo xtask tidy [--lower | --json | --places KIND]

  --lower   writes counts that have fallen to xtask/tidy.toml
  --json    prints all counts as JSON, and judges nothing
  --places  prints all places of one kind, such as long_functions or pub_items.log, and judges nothing

Counts, in the files that git tracks and in new ones that it does not ignore, and compares with xtask/tidy.toml:

  doc_openings      doc comments (/// and //!) that begin with What, Whether, Where, Who, Of, So, or How, but not with \"How to\"
  long_prose_lines  lines above 120 characters in docs, README.md, CONTRIBUTING.md and ARCHITECTURE.md: no tables, no blocks of code,
                    and without the targets of links
  long_files        .rs files above 900 lines
  long_functions    functions above 70 lines, from `fn` to the closing brace; those of tests too
  sleeps_in_tests   calls of sleep and sleep_until in the code of tests
  duplicates        pairs of passages that cargo xtask duplicates prints
  words.WORD        a word in .rs files and in docs, also as a part of a name (is_blue, BlueSky for blue), or several words in a row
  parts.WORD        a part of a name in code, whatever its case; not in comments and strings
  names.NAME        a whole name in code, written so; not in comments and strings
  pub_items.CRATE   items written `pub` in the sources of a crate, without pub(..), fields and the code of tests";

/// The counts that are no table of their own in `xtask/tidy.toml`.
const KINDS: [&str; 6] =
    ["doc_openings", "long_prose_lines", "long_files", "long_functions", "sleeps_in_tests", "duplicates"];

/// A place that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: String,
    first_line: u32,
    last_line: u32,
    /// A second place, for a pair.
    other: Option<(String, u32, u32)>,
    /// Words for a person: a name, a size. May be empty.
    note: String,
}

impl Place {
    fn line(file: &str, line: u32) -> Place {
        Place { file: file.to_owned(), first_line: line, last_line: line, ..Place::default() }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.first_line)?;
        if !self.note.is_empty() {
            write!(f, " {}", self.note)?;
        }
        Ok(())
    }
}

/// The places of each kind. A kind with none is in it too.
type Counts = BTreeMap<String, Vec<Place>>;

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check(),
        ["--lower"] => lower(),
        ["--json"] => print_json(),
        ["--places", kind] => print_places(kind),
        ["--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// Compares the counts with `xtask/tidy.toml`.
///
/// # Errors
/// If a count differs from its number.
pub(crate) fn check() -> Result<()> {
    let limits = Limits::read()?;
    judge(&limits, &count(&limits)?)
}

/// Writes the counts that have fallen; those that have grown are errors still.
fn lower() -> Result<()> {
    let limits = Limits::read()?;
    let counts = count(&limits)?;
    for (kind, from, to) in limits.lower(&counts)? {
        println!("{kind}: {from} -> {to}");
    }
    judge(&Limits::read()?, &counts)
}

fn judge(limits: &Limits, counts: &Counts) -> Result<()> {
    let findings = limits.compare(counts);
    if findings.is_empty() {
        println!("{} counts are as xtask/tidy.toml has them", counts.len());
        return Ok(());
    }
    let has_grown = findings.iter().any(|finding| matches!(finding, Finding::Above { .. }));
    // Without the history it is not known which places are new.
    let changes = has_grown.then(Changes::since_the_numbers).and_then(Result::ok).unwrap_or_default();
    bail!("{}", findings::report(&findings, &changes));
}

fn print_json() -> Result<()> {
    let counts = count(&Limits::read()?)?;
    let numbers: BTreeMap<&str, usize> =
        counts.iter().map(|(kind, places)| (kind.as_str(), places.len())).collect();
    println!("{}", serde_json::to_string_pretty(&numbers)?);
    Ok(())
}

fn print_places(kind: &str) -> Result<()> {
    let counts = count(&Limits::read()?)?;
    let kinds = || counts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    ensure!(counts.contains_key(kind), "tidy counts no {kind}; it counts {}", kinds());
    counts[kind].iter().for_each(|place| println!("{place}"));
    println!("{} places", counts[kind].len());
    Ok(())
}

/// Counts all kinds in the repository. The words are those of the limits.
fn count(limits: &Limits) -> Result<Counts> {
    let sources = sources::read(&[".rs", ".md"])?;
    let (code, pages): (Vec<Source>, Vec<Source>) =
        sources.into_iter().partition(|source| source.path.ends_with(".rs"));
    let vocabulary = Vocabulary::new(limits.kinds())?;
    let tests = TestCode::new(&code);
    let mut counts = Counts::new();
    KINDS.iter().for_each(|kind| drop(counts.insert((*kind).to_owned(), Vec::new())));
    limits.words().for_each(|kind| drop(counts.insert(kind.to_owned(), Vec::new())));
    let code = sources::in_parallel(&code, |source| (source, tokens(&source.text)));
    let found =
        sources::in_parallel(&code, |(source, tokens)| of_source(source, tokens, &vocabulary, &tests));
    let pages = pages.iter().map(|page| of_page(page, &vocabulary));
    for (kind, place) in found.into_iter().chain(pages).flatten().chain(duplicate_passages(&code)) {
        counts.entry(kind).or_default().push(place);
    }
    Ok(counts)
}

/// Returns the places of a source file, each with its kind.
fn of_source(
    Source { path, text }: &Source,
    Tokens { code, comments }: &Tokens<'_>,
    vocabulary: &Vocabulary,
    tests: &TestCode,
) -> Vec<(String, Place)> {
    let counted = code::Code::new(path, code, tests.contains(path));
    let of_kind = |kind: &'static str| move |place| (kind.to_owned(), place);
    let mut found = Vec::new();
    found.extend(doc_comments::openings(path, comments).map(of_kind("doc_openings")));
    found.extend(code::long_file(path, text).map(of_kind("long_files")));
    found.extend(counted.long_functions().map(of_kind("long_functions")));
    found.extend(counted.sleeps_in_tests().map(of_kind("sleeps_in_tests")));
    if let Some(of_crate) = code::crate_of(path) {
        found.extend(counted.pub_items().map(|place| (format!("pub_items.{of_crate}"), place)));
    }
    found.extend(vocabulary.in_text(path, text));
    found.extend(vocabulary.in_code(path, code));
    found
}

/// Returns the places of a page, each with its kind.
fn of_page(page: &Source, vocabulary: &Vocabulary) -> Vec<(String, Place)> {
    let mut found = Vec::new();
    if prose::is_prose(&page.path) {
        found.extend(
            prose::long_lines(&page.path, &page.text).map(|place| ("long_prose_lines".to_owned(), place)),
        );
    }
    if page.path.starts_with("docs/") {
        found.extend(vocabulary.in_text(&page.path, &page.text));
    }
    found
}

fn duplicate_passages(code: &[(&Source, Tokens<'_>)]) -> impl Iterator<Item = (String, Place)> {
    duplicates::find(code).into_iter().map(|pair| {
        let [first, second] = pair.passages;
        let note = format!("to line {}, again in {second}", first.last_line);
        let other = Some((second.file, second.first_line, second.last_line));
        let (first_line, last_line) = (first.first_line, first.last_line);
        ("duplicates".to_owned(), Place { file: first.file, first_line, last_line, other, note })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds that count in a file.
    fn kinds(path: &str, text: &str) -> Vec<String> {
        let vocabulary = Vocabulary::new(["words.blue", "parts.red", "names.Green"].into_iter()).unwrap();
        let source = Source { path: path.to_owned(), text: text.to_owned() };
        let found = match path.ends_with(".rs") {
            true => of_source(&source, &tokens(text), &vocabulary, &TestCode::new(&[])),
            false => of_page(&source, &vocabulary),
        };
        found.into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn every_counter_of_a_source_file_is_asked() {
        let text = "/// What is blue.\npub fn has_red(a: Green) {\n".to_owned() + &"\n".repeat(900) + "}\n";
        let expected = [
            "doc_openings",
            "long_files",
            "long_functions",
            "pub_items.log",
            "words.blue",
            "parts.red",
            "names.Green",
        ];
        assert_eq!(kinds("crates/log/src/a.rs", &text), expected);
        assert_eq!(
            kinds("crates/log/tests/it/a.rs", "pub fn a() { thread::sleep(A); }"),
            ["sleeps_in_tests"]
        );
        assert_eq!(kinds("xtask/src/a.rs", "pub fn a() { thread::sleep(A); }"), [""; 0]);
    }

    #[test]
    fn words_of_docs_count_and_lines_of_other_pages_too() {
        let text = format!("blue {}\n", "a".repeat(120));
        assert_eq!(kinds("docs/a.md", &text), ["long_prose_lines", "words.blue"]);
        assert_eq!(kinds("README.md", &text), ["long_prose_lines"]);
        assert_eq!(kinds("CHANGELOG.md", &text), [""; 0]);
    }
}
