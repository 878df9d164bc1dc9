//! Rust source as tokens with their lines: code, and comments.
//!
//! No macro is expanded and nothing is parsed, so that code inside of macros is seen as it is written.

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier, a keyword, a lifetime, or the digits of a number.
    Word,
    /// A string, or a character between quotes.
    Text,
    /// One character of punctuation.
    Sign,
    /// A comment, with its slashes.
    Comment,
}

/// The tokens of a file in their order.
#[derive(Default)]
pub(crate) struct Tokens<'t> {
    /// All but comments.
    pub(crate) code: Vec<Token<'t>>,
    pub(crate) comments: Vec<Token<'t>>,
}

/// A token of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'t> {
    pub(crate) kind: Kind,
    pub(crate) text: &'t str,
    /// The line of its first character, from 1.
    pub(crate) line: u32,
}

impl Token<'_> {
    pub(crate) fn is_word(&self, text: &str) -> bool {
        self.kind == Kind::Word && self.text == text
    }

    pub(crate) fn is_sign(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }
}

/// Returns the tokens of a text.
pub(crate) fn tokens(text: &str) -> Tokens<'_> {
    let (bytes, mut found) = (text.as_bytes(), Tokens::default());
    found.code.reserve(text.len() / 4);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        if bytes[at].is_ascii_whitespace() {
            line += u32::from(bytes[at] == b'\n');
            at += 1;
            continue;
        }
        let (kind, length) = next(&text[at..]);
        let token = Token { kind, text: &text[at..at + length], line };
        let list = if kind == Kind::Comment { &mut found.comments } else { &mut found.code };
        list.push(token);
        if matches!(kind, Kind::Text | Kind::Comment) {
            line += token.text.bytes().filter(|byte| *byte == b'\n').count() as u32;
        }
        at += length;
    }
    found
}

/// Returns the kind and the length of the token at the beginning of a text.
fn next(text: &str) -> (Kind, usize) {
    let bytes = text.as_bytes();
    match bytes[0] {
        b'/' if text.starts_with("//") => (Kind::Comment, text.find('\n').unwrap_or(text.len())),
        b'/' if text.starts_with("/*") => (Kind::Comment, block_comment(bytes)),
        b'"' => (Kind::Text, quoted(bytes, 0, b'"')),
        b'\'' => quote(text),
        _ => match word(bytes, 0) {
            0 => (Kind::Sign, text.chars().next().map_or(1, char::len_utf8)),
            end => prefixed(bytes, end),
        },
    }
}

/// Returns the end of the word that begins at a place, which is the place itself if there is none.
fn word(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_' || bytes[at] >= 0x80) {
        at += 1;
    }
    at
}

/// A word, which may be the prefix of a literal or of a raw identifier.
fn prefixed(bytes: &[u8], end: usize) -> (Kind, usize) {
    let (prefix, next) = (&bytes[..end], bytes.get(end));
    match (prefix, next) {
        (b"b" | b"c", Some(b'"')) => (Kind::Text, quoted(bytes, end, b'"')),
        (b"b", Some(b'\'')) => (Kind::Text, quoted(bytes, end, b'\'')),
        (b"r" | b"br" | b"cr", Some(b'"' | b'#')) => raw(bytes, end),
        _ => (Kind::Word, end),
    }
}

/// A raw string, or a raw identifier: `at` is behind the prefix.
fn raw(bytes: &[u8], at: usize) -> (Kind, usize) {
    let hashes = bytes[at..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return (Kind::Word, word(bytes, at + hashes).max(at));
    }
    let mut end = at + hashes + 1;
    while end < bytes.len() {
        end += 1;
        let behind = bytes[end..].iter().take(hashes).filter(|byte| **byte == b'#').count();
        if bytes[end - 1] == b'"' && behind == hashes {
            return (Kind::Text, end + hashes);
        }
    }
    (Kind::Text, bytes.len())
}

/// Returns the end of a text in quotes, the first of which is at a place.
fn quoted(bytes: &[u8], at: usize, mark: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != mark {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(bytes.len())
}

/// A character between quotes, or a lifetime.
fn quote(text: &str) -> (Kind, usize) {
    let mut chars = text[1..].chars();
    match chars.next() {
        Some('\\') => (Kind::Text, quoted(text.as_bytes(), 0, b'\'')),
        Some(one) if chars.next() == Some('\'') => (Kind::Text, 2 + one.len_utf8()),
        _ => (Kind::Word, word(text.as_bytes(), 1)),
    }
}

/// Returns the length of a comment between `/*` and `*/`, in which there may be others.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        let (change, length) = match bytes[at..] {
            [b'/', b'*', ..] => (1, 2),
            [b'*', b'/', ..] => (-1, 2),
            _ => (0, 1),
        };
        depth += change;
        at += length;
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of code, and behind them the comments.
    fn all(text: &str) -> Vec<Token<'_>> {
        let Tokens { code, comments } = tokens(text);
        [code, comments].concat()
    }

    fn texts(text: &str) -> Vec<&str> {
        all(text).iter().map(|token| token.text).collect()
    }

    fn kinds(text: &str) -> Vec<Kind> {
        all(text).iter().map(|token| token.kind).collect()
    }

    #[test]
    fn a_text_is_its_words_signs_and_comments() {
        assert_eq!(
            texts("a.b(1_000)?; // c d\n/// e"),
            ["a", ".", "b", "(", "1_000", ")", "?", ";", "// c d", "/// e"]
        );
        assert_eq!(texts("x /* a /* b */ c */ y"), ["x", "y", "/* a /* b */ c */"]);
        assert_eq!(kinds("a + // b"), [Kind::Word, Kind::Sign, Kind::Comment]);
        assert_eq!(texts("größe ≤ 1"), ["größe", "≤", "1"]);
    }

    #[test]
    fn strings_end_where_they_end() {
        assert_eq!(texts(r#"f("a \" // b", 'c')"#), ["f", "(", r#""a \" // b""#, ",", "'c'", ")"]);
        assert_eq!(texts(r###"r#"a " b"# r"\" br##"x"# y"## c"z""###).len(), 4);
        assert_eq!(kinds(r"'\'' b'\'' '/' 'ä'"), [Kind::Text; 4]);
        assert_eq!(texts("\"never closed"), ["\"never closed"]);
        assert_eq!(texts("r#\"never closed"), ["r#\"never closed"]);
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_words() {
        assert_eq!(texts("&'a str"), ["&", "'a", "str"]);
        assert_eq!(kinds("'static r#type"), [Kind::Word, Kind::Word]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let lines: Vec<u32> = all("a\n\"b\nc\" d /* \n\n */ e\nf").iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 3, 5, 6, 3]);
    }
}
