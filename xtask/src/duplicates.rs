//! `cargo xtask duplicates`: passages of source that occur twice.
//!
//! Two passages are a pair if they are equal, token by token, over [`TOKENS_MIN`] tokens or more, and if the tokens before and behind
//! them differ. So each pair is as long as it can be, and is counted once. A passage that occurs three times makes three pairs. Names and
//! literals have to be equal as they are written. Comments, white space, `use` and `#[derive(..)]` do not count. A passage lies in one
//! file, and the passages of a pair do not overlap; a row of zeros is no pair with itself.

mod passages;

use anyhow::{Result, bail};
use serde::Serialize;

use self::passages::Passages;
use crate::sources::{self, Source};
use crate::tokens::{Tokens, tokens};

const USAGE: &str = "\
usage: cargo xtask duplicates [--json]

  --json  the pairs, and how many they are, as JSON

Prints the pairs of passages in .rs files that are equal as tokens, the longest first, and how many they are. xtask/tidy.toml has that
number: cargo xtask tidy fails when there are more.";

/// Tokens of the shortest passage that counts.
pub(crate) const TOKENS_MIN: usize = 60;

/// The lines of a passage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Extent {
    pub(crate) file: String,
    pub(crate) first_line: u32,
    pub(crate) last_line: u32,
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}-{}", self.file, self.first_line, self.last_line)
    }
}

/// Two passages that are equal.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Pair {
    /// The length of each.
    pub(crate) tokens: usize,
    pub(crate) passages: [Extent; 2],
}

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let is_json = match arguments {
        [] => false,
        [only] if only == "--json" => true,
        [only] if only == "--help" => {
            println!("{USAGE}");
            return Ok(());
        }
        _ => bail!("{USAGE}"),
    };
    let sources = sources::read(&[".rs"])?;
    let pairs = find(&sources::in_parallel(&sources, |source| (source, tokens(&source.text))));
    if is_json {
        println!("{}", serde_json::to_string_pretty(&Report { total: pairs.len(), pairs: &pairs })?);
        return Ok(());
    }
    for Pair { tokens, passages: [first, second] } in &pairs {
        println!("{tokens:5} tokens  {first}  {second}");
    }
    println!("{} pairs of passages of {TOKENS_MIN} tokens or more", pairs.len());
    Ok(())
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'p> {
    total: usize,
    pairs: &'p [Pair],
}

/// Returns the pairs of all files, the longest first.
pub(crate) fn find(sources: &[(&Source, Tokens<'_>)]) -> Vec<Pair> {
    Passages::of(sources).pairs(TOKENS_MIN)
}
