//! Doc comments that begin with a relative word.
//!
//! A doc comment is a run of lines of `///`, or of `//!`, without another line between them. The first word of its first line counts;
//! what later paragraphs begin with does not. `/** */` and `#[doc = ".."]` are not looked at.

use super::Place;
use crate::tokens::Token;

/// Words with which no doc comment begins. "How to" is allowed.
const OPENINGS: [&str; 7] = ["What", "Whether", "Where", "Who", "Of", "So", "How"];

/// Returns the first lines of the doc comments that begin so.
pub(super) fn openings<'t>(path: &'t str, comments: &'t [Token<'t>]) -> impl Iterator<Item = Place> + 't {
    let before = std::iter::once(None).chain(comments.iter().map(Some));
    let begins = comments.iter().zip(before).filter(|(token, before)| begins(token, *before));
    begins
        .map(|(token, _)| token)
        .filter(|token| is_opening(text(token)))
        .map(|token| Place::line(path, token.line))
}

/// Returns true if a comment is the first line of a doc comment.
fn begins(comment: &Token<'_>, before: Option<&Token<'_>>) -> bool {
    let Some(marker) = marker(comment) else { return false };
    let goes_before =
        |before: &Token<'_>| self::marker(before) == Some(marker) && before.line + 1 == comment.line;
    !before.is_some_and(goes_before)
}

/// Returns the marker of a line of a doc comment.
fn marker(comment: &Token<'_>) -> Option<&'static str> {
    let is_doc = !comment.text.starts_with("////");
    ["///", "//!"].into_iter().find(|marker| is_doc && comment.text.starts_with(marker))
}

/// Returns the text of a line of a doc comment.
fn text<'t>(comment: &Token<'t>) -> &'t str {
    comment.text[3..].trim()
}

fn is_opening(text: &str) -> bool {
    let (word, rest) = text.split_at(text.find(|one: char| !one.is_alphanumeric()).unwrap_or(text.len()));
    OPENINGS.contains(&word) && !(word == "How" && rest.starts_with(" to "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    fn lines(text: &str) -> Vec<u32> {
        openings("a.rs", &tokens(text).comments).map(|place| place.first_line).collect()
    }

    #[test]
    fn each_of_the_words_counts_at_the_beginning_alone() {
        for word in OPENINGS {
            assert_eq!(lines(&format!("/// {word} a log is.\nstruct A;")), [1], "{word}");
            assert_eq!(lines(&format!("//! {word}, a log.")), [1], "{word}");
            assert_eq!(
                lines(&format!("/// A log, {word} it is.\n/// {word} it was.\nstruct A;")),
                [0; 0],
                "{word}"
            );
        }
        assert_eq!(lines("/// How to append.\n\n/// However it is.\n\n/// Offsets.\nstruct A;"), [0; 0]);
        assert_eq!(lines("/// How\nstruct A;"), [1]);
    }

    #[test]
    fn each_comment_has_its_own_beginning() {
        assert_eq!(
            lines("//! What a.\n//! What b.\n\n/// What c.\n///\n/// What d.\na: A,\n/// What e.\nb: B,"),
            [1, 4, 8]
        );
        assert_eq!(lines("/// What a.\n//! What b."), [1, 2]);
    }

    #[test]
    fn other_comments_and_strings_do_not_count() {
        assert_eq!(lines("// What a.\n//// What b.\nlet a = \"\n/// What c.\";"), [0; 0]);
    }
}
