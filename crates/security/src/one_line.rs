//! Text of a peer in a line of the log.

use std::fmt::{self, Write};

/// Of a longer text the rest is left out.
const CHARACTERS_MAX: usize = 512;

/// Shows a text so that it cannot end the line which it stands in: what is not printable (control characters, separators
/// of lines, marks of direction) is escaped as in Rust, `\n` or `\u{2028}`. Other text stays as it is, backslashes too.
/// Of more than 512 characters the rest is `...`: a name may be as long as a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneLine<'a>(pub &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        characters.by_ref().take(CHARACTERS_MAX).try_for_each(|character| match character {
            '\\' | '"' | '\'' => f.write_char(character),
            other => write!(f, "{}", other.escape_debug()),
        })?;
        if characters.next().is_some() { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_line_or_hides_in_it() {
        let shown = |text: &str| OneLine(text).to_string();
        assert_eq!(shown("a\nb\r\tc\u{1b}[2K\0"), r"a\nb\r\tc\u{1b}[2K\0");
        assert_eq!(shown("\u{85}\u{2028}\u{202e}"), r"\u{85}\u{2028}\u{202e}");
        let long = "é".repeat(CHARACTERS_MAX);
        assert_eq!(shown(&long), long);
        assert_eq!(shown(&format!("{long}\n")), format!("{long}..."));
        assert_eq!(shown(r#"CN="é, ü" 'x\y' 日本 😀"#), r#"CN="é, ü" 'x\y' 日本 😀"#);
    }
}
