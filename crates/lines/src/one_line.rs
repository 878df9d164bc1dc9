//! Text that another process has named, as a line of the log, an error or an answer shows it.

use std::fmt::{self, Write};

/// Characters of a name that are shown: of a longer one the rest is left out.
const NAME_CHARACTERS_MAX: usize = 512;
/// Characters of a sentence, which has names in it.
const SENTENCE_CHARACTERS_MAX: usize = 4_096;

/// Returns true for a character that is not only visible text: it controls the terminal, ends a line, reorders the text around
/// it, or is invisible.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            // Default_Ignorable_Code_Point, separators of lines, and what is for private use.
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..='\u{10ffff}')
}

/// Shows a name of a peer so that it cannot end its line, control a terminal or hide. Characters of [`is_hidden`] are written as
/// in Rust, `\n` or `\u{2028}`. Other text stays as it is, backslashes too, so that showing it twice changes nothing. Of a
/// name with more than 512 characters the rest is `...`: it may be as long as a request. By `{:?}` it is in quotation marks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OneLine<'a>(pub &'a str);

/// The same for a sentence of up to 4,096 characters: the words of another process, or an error with names in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentence<'a>(pub &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(f, self.0, NAME_CHARACTERS_MAX)
    }
}

impl fmt::Debug for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(f, self.0, SENTENCE_CHARACTERS_MAX)
    }
}

fn write_shown(f: &mut fmt::Formatter<'_>, text: &str, characters_max: usize) -> fmt::Result {
    let mut letters = text.chars();
    for letter in letters.by_ref().take(characters_max) {
        match is_hidden(letter) {
            true => write!(f, "{}", letter.escape_default())?,
            false => f.write_char(letter)?,
        }
    }
    if letters.next().is_some() { f.write_str("...") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_line_or_hides_in_it() {
        let shown = |text: &str| OneLine(text).to_string();
        assert_eq!(shown("a\nb\r\tc\u{1b}[2K\0"), r"a\nb\r\tc\u{1b}[2K\u{0}");
        assert_eq!(shown("\u{85}\u{9b}\u{2028}\u{202e}"), r"\u{85}\u{9b}\u{2028}\u{202e}");
        let long = "é".repeat(NAME_CHARACTERS_MAX);
        assert_eq!(shown(&long), long);
        assert_eq!(shown(&format!("{long}\n")), format!("{long}..."));
        assert_eq!(shown(r#"CN="é, ü" 'x\y' 日本 😀 हिन्दी"#), r#"CN="é, ü" 'x\y' 日本 😀 हिन्दी"#);
        assert_eq!(format!("{:?}", OneLine("a\nb")), r#""a\nb""#);
    }

    #[test]
    fn a_sentence_is_longer_and_ends_too() {
        let long = "é".repeat(SENTENCE_CHARACTERS_MAX);
        assert_eq!(Sentence(&long).to_string(), long);
        assert_eq!(Sentence(&format!("{long}é")).to_string(), format!("{long}..."));
        assert_eq!(Sentence("a\n\u{9b}b").to_string(), r"a\n\u{9b}b");
    }

    #[test]
    fn to_be_shown_twice_changes_nothing() {
        let once = OneLine("a\n\u{202e}\\b").to_string();
        assert_eq!(OneLine(&once).to_string(), once);
    }
}
