//! Words of `xtask/tidy.toml` in source files and pages.
//!
//! A name is a run of letters, digits and `_`. Its parts are split at `_`, at digits, and where a capital letter begins a word:
//! `is_blue`, `isBlue` and `HTTPBlue2` all have the part `blue`.
//!
//! - `words`: a word counts wherever it is a part of a name, whatever its case, in code, comments, strings and pages; with an `s` behind it
//!   too. A key of several words counts where these follow each other with nothing but white space between them, and the slashes of a
//!   comment's next line.
//! - `parts`: the same for single words, in the names of code alone: no comments, no strings, no pages.
//! - `names`: a whole name of code, written exactly so.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::Place;
use crate::tokens::{Kind, Token};

/// The words that count. Each is with the kind it counts for, which is the name of its table, a dot, and the word.
#[derive(Default)]
pub(super) struct Vocabulary {
    words: Words,
    /// Words that follow each other.
    phrases: Vec<(Vec<String>, String)>,
    parts: Words,
    names: HashMap<String, String>,
}

/// Words with their kinds, by the first letter: most parts of names begin with another one.
#[derive(Default)]
struct Words([Vec<(String, String)>; 26]);

impl Words {
    fn insert(&mut self, word: &str, kind: String) {
        self.0[letter(word)].push((word.to_owned(), kind));
    }

    /// Returns the kind of each word that is a part of a name.
    fn kinds<'v>(&'v self, name: &'v str) -> impl Iterator<Item = &'v String> {
        let words = |part: &'v str| self.0[letter(part)].iter().filter(move |(word, _)| is_word(part, word));
        parts(name).flat_map(words).map(|(_, kind)| kind)
    }
}

/// Returns the place in the alphabet of the first letter, whatever its case.
fn letter(word: &str) -> usize {
    usize::from(word.as_bytes()[0].to_ascii_lowercase() - b'a')
}

impl Vocabulary {
    /// Takes the words from the kinds of the limits.
    ///
    /// # Errors
    /// If one is no word that can occur.
    pub(super) fn new<'k>(kinds: impl Iterator<Item = &'k str>) -> Result<Vocabulary> {
        let mut vocabulary = Vocabulary::default();
        for (kind, (table, word)) in kinds.filter_map(|kind| Some((kind.to_owned(), kind.split_once('.')?))) {
            let is_lower =
                |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase());
            let valid = match table {
                "words" => word.split(' ').all(is_lower),
                "parts" => is_lower(word),
                "names" => !word.is_empty() && word.bytes().all(is_of_name),
                _ => continue,
            };
            ensure!(
                valid,
                "xtask/tidy.toml: no text can have {kind}; words and parts are lower-case letters"
            );
            match table {
                "words" if word.contains(' ') => {
                    vocabulary.phrases.push((word.split(' ').map(str::to_owned).collect(), kind));
                }
                "words" => vocabulary.words.insert(word, kind),
                "parts" => vocabulary.parts.insert(word, kind),
                _ => drop(vocabulary.names.insert(word.to_owned(), kind)),
            }
        }
        Ok(vocabulary)
    }

    /// Returns the words, and the phrases, of a text.
    pub(super) fn in_text(&self, path: &str, text: &str) -> Vec<(String, Place)> {
        let names: Vec<(&str, usize)> = names(text).collect();
        let (mut found, mut lines) = (Vec::new(), Lines::new(text));
        for (index, (name, at)) in names.iter().enumerate() {
            let phrases = self.phrases.iter().filter(|(words, _)| is_phrase(words, &names[index..], text));
            let phrases = phrases.map(|(_, kind)| kind);
            let words = self.words.kinds(name);
            for kind in phrases.chain(words) {
                found.push((kind.clone(), Place::line(path, lines.line(*at))));
            }
        }
        found
    }

    /// Returns the parts and the names of code.
    pub(super) fn in_code(&self, path: &str, code: &[Token<'_>]) -> Vec<(String, Place)> {
        let words = code.iter().filter(|token| token.kind == Kind::Word);
        let kinds = words.flat_map(|token| {
            let parts = self.parts.kinds(token.text);
            parts.chain(self.names.get(token.text)).map(|kind| (kind.clone(), Place::line(path, token.line)))
        });
        kinds.collect()
    }
}

/// Returns true if a part is a word, or the word with an `s` behind it, whatever its case.
fn is_word(part: &str, word: &str) -> bool {
    let (begin, end) = (part.as_bytes().get(..word.len()), part.as_bytes().get(word.len()..));
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(word.as_bytes()))
        && matches!(end, Some([] | [b's' | b'S']))
}

/// Returns true if names begin with the words of a phrase, with nothing but white space and slashes between them.
fn is_phrase(words: &[String], names: &[(&str, usize)], text: &str) -> bool {
    let is_between = |(from, to): (&(&str, usize), &(&str, usize))| {
        let between = &text[from.1 + from.0.len()..to.1];
        between.chars().all(|one| one.is_whitespace() || one == '/' || one == '!')
    };
    words[0].eq_ignore_ascii_case(names[0].0)
        && names.len() >= words.len()
        && words.iter().zip(names).all(|(word, (name, _))| word.eq_ignore_ascii_case(name))
        && names[..words.len()].iter().zip(&names[1..words.len()]).all(is_between)
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the names of a text, each with its place.
fn names(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && !is_of_name(bytes[at]) {
            at += 1;
        }
        let begin = at;
        while at < bytes.len() && is_of_name(bytes[at]) {
            at += 1;
        }
        (begin < at).then(|| (&text[begin..at], begin))
    })
}

/// Returns the parts of a name.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let bytes = name.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && !bytes[at].is_ascii_alphabetic() {
            at += 1;
        }
        let begin = at;
        while at < bytes.len() && bytes[at].is_ascii_alphabetic() && (at == begin || !is_begin(bytes, at)) {
            at += 1;
        }
        (begin < at).then(|| &name[begin..at])
    })
}

/// Returns true if a capital letter begins a part behind another one.
fn is_begin(bytes: &[u8], at: usize) -> bool {
    let is_before_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
    bytes[at].is_ascii_uppercase() && (bytes[at - 1].is_ascii_lowercase() || is_before_lower)
}

/// The lines of a text, for places that are asked for in their order.
struct Lines<'t> {
    text: &'t str,
    at: usize,
    line: u32,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Lines<'t> {
        Lines { text, at: 0, line: 1 }
    }

    fn line(&mut self, at: usize) -> u32 {
        self.line += self.text[self.at..at].matches('\n').count() as u32;
        self.at = at;
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    /// The lines on which a kind counts, in a source file.
    fn lines(kind: &str, text: &str) -> Vec<u32> {
        let vocabulary = Vocabulary::new([kind].into_iter()).unwrap();
        let mut found = vocabulary.in_text("a.rs", text);
        found.extend(vocabulary.in_code("a.rs", &tokens(text).code));
        found.iter().map(|(_, place)| place.first_line).collect()
    }

    #[test]
    fn a_name_is_split_into_parts() {
        let parts = |name| parts(name).collect::<Vec<_>>();
        assert_eq!(parts("is_blue"), ["is", "blue"]);
        assert_eq!(parts("isBlue"), ["is", "Blue"]);
        assert_eq!(parts("HTTPBlue2_x"), ["HTTP", "Blue", "x"]);
        assert_eq!(parts("BLUE_MS"), ["BLUE", "MS"]);
        assert_eq!(parts("_0"), [""; 0]);
    }

    #[test]
    fn words_count_in_code_comments_strings_and_pages() {
        let text = "// It is blue.\nlet is_blue = Blue::new(\"so blue\");\nconst BLUES: u8 = 1;\nlet blueish = bluest;";
        assert_eq!(lines("words.blue", text), [1, 2, 2, 2, 3]);
        let vocabulary = Vocabulary::new(["words.blue"].into_iter()).unwrap();
        assert_eq!(vocabulary.in_text("docs/a.md", "A `blue` one,\nBlue.").len(), 2);
    }

    #[test]
    fn words_of_a_phrase_follow_each_other() {
        let text =
            "/// It goes far, goes\n/// far, Goes   far\n/// goes. Far goes_far, goes too far\n/// goes";
        assert_eq!(lines("words.goes far", text), [1, 1, 2]);
    }

    #[test]
    fn parts_count_in_code_alone() {
        let text = "// A blue one.\nlet is_blue = Blues::new(\"blue\");\nfn has_blue_sky() {}";
        assert_eq!(lines("parts.blue", text), [2, 2, 3]);
    }

    #[test]
    fn names_count_as_a_whole() {
        let text = "// Sky, sky_blue\nlet sky = Sky::new(\"Sky\");\nlet sky_blue = SkyBlue;";
        assert_eq!(lines("names.Sky", text), [2]);
        assert_eq!(lines("names.sky_blue", text), [3]);
    }

    #[test]
    fn a_word_that_no_text_can_have_is_refused() {
        for kind in ["words.Blue", "words.sky_blue", "words.", "parts.two words", "parts.Sky", "names.a b"] {
            assert!(Vocabulary::new([kind].into_iter()).is_err(), "{kind}");
        }
        Vocabulary::new(["pub_items.flow-derive", "long_files"].into_iter()).unwrap();
    }
}
