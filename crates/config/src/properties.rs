//! Java's properties format, as Kafka's `server.properties` is written: comments, continuation lines, three
//! separators, escapes.
//!
//! Java reads such a file as Latin-1. Here it is UTF-8, which is the same for everything but literal letters
//! beyond ASCII; `\uXXXX` means the same in both. A file that cannot be UTF-8 is Latin-1, as an old one with an umlaut
//! in a comment.

use std::borrow::Cow;
use std::fmt::Write as _;

/// One `key=value`, and the line (from 1) on which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// The key, unescaped.
    pub key: String,
    /// The value, unescaped.
    pub value: String,
    /// The line of the file.
    pub line: usize,
}

/// A file that is not in the properties format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PropertiesError {
    /// The line of the file, from 1.
    pub line: usize,
    /// The mistake in it.
    pub problem: &'static str,
}

/// A parsed properties file, in the order of its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    entries: Vec<Property>,
}

impl Properties {
    /// Parses a file. The result is at most twice as large as the file.
    pub fn parse(bytes: &[u8]) -> Result<Properties, PropertiesError> {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
        };
        let mut lines = NaturalLines { rest: &text, line: 0 };
        let mut entries = Vec::new();
        while let Some((line, logical)) = next_logical_line(&mut lines) {
            let (key, value) = split_key(&logical);
            let unescape = |text| unescape(text).map_err(|problem| PropertiesError { line, problem });
            entries.push(Property { key: unescape(key)?, value: unescape(value)?, line });
        }
        Ok(Properties { entries })
    }

    pub(super) fn of(entries: Vec<Property>) -> Properties {
        Properties { entries }
    }

    /// The value of a key; the last line that sets it wins, as in Java.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }

    /// All lines, in order, repeated keys included.
    pub fn iter(&self) -> impl Iterator<Item = &Property> {
        self.entries.iter()
    }

    /// A file that parses to the same properties.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for entry in &self.entries {
            escape(&entry.key, true, &mut out);
            out.push('=');
            escape(&entry.value, false, &mut out);
            out.push('\n');
        }
        out
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0c')
}

/// The file's lines; `\n`, `\r` and `\r\n` end one.
struct NaturalLines<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> NaturalLines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        self.line += 1;
        let Some(end) = self.rest.find(['\n', '\r']) else { return Some(std::mem::take(&mut self.rest)) };
        let (line, tail) = self.rest.split_at(end);
        self.rest = tail.strip_prefix("\r\n").unwrap_or(&tail[1..]);
        Some(line)
    }
}

/// The next line that holds a property, continuation lines joined, leading white space of each dropped. As long as
/// nothing was gathered, a line is a first one: it may be blank or a comment.
fn next_logical_line(lines: &mut NaturalLines<'_>) -> Option<(usize, String)> {
    let mut logical = String::new();
    let mut at = 0;
    while let Some(line) = lines.next() {
        let line = line.trim_start_matches(is_space);
        if logical.is_empty() {
            if line.starts_with(['#', '!']) {
                continue;
            }
            at = lines.line;
        }
        logical.push_str(line);
        if continues(line) {
            logical.pop();
        } else if !logical.is_empty() {
            break;
        }
    }
    (!logical.is_empty()).then_some((at, logical))
}

/// Returns true if an odd number of backslashes ends a line: pairs of them are escaped backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first `=`, `:` or white space that no backslash escapes.
fn split_key(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (is_space(c) || c == '=' || c == ':');
        escaped = c == '\\' && !escaped;
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_space);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(is_space))
}

fn unescape(text: &str) -> Result<String, &'static str> {
    if !text.contains('\\') {
        return Ok(text.to_string());
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(escaped) = rest.chars().next() else { break };
        if escaped == 'u' {
            let (c, tail) = unicode_escape(rest)?;
            out.push(c);
            rest = tail;
            continue;
        }
        out.push(match escaped {
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'f' => '\x0c',
            other => other,
        });
        rest = &rest[escaped.len_utf8()..];
    }
    out.push_str(rest);
    Ok(out)
}

/// `uXXXX`, or two of them with a backslash between for a character outside of the basic plane.
fn unicode_escape(text: &str) -> Result<(char, &str), &'static str> {
    let (high, rest) = code_unit(text)?;
    if let Some(c) = char::from_u32(high.into()) {
        return Ok((c, rest));
    }
    let low = rest.strip_prefix('\\').filter(|rest| rest.starts_with('u'));
    let (low, rest) = code_unit(low.ok_or("a \\u surrogate without its other half")?)?;
    let mut decoded = char::decode_utf16([high, low]);
    match (decoded.next(), decoded.next()) {
        (Some(Ok(c)), None) => Ok((c, rest)),
        _ => Err("a \\u surrogate without its other half"),
    }
}

fn code_unit(text: &str) -> Result<(u16, &str), &'static str> {
    const MALFORMED: &str = "malformed \\uXXXX escape: four hexadecimal digits are needed";
    let digits = text.get(1..5).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    let digits = digits.ok_or(MALFORMED)?;
    let unit = u16::from_str_radix(digits, 16).map_err(|_| MALFORMED)?;
    Ok((unit, &text[5..]))
}

/// Keys escape every separator; values only what would be taken for leading space.
fn escape(text: &str, is_key: bool, out: &mut String) {
    for (at, c) in text.chars().enumerate() {
        match c {
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\x0c' => out.push_str("\\f"),
            '\\' => out.push_str("\\\\"),
            ' ' if is_key || at == 0 => out.push_str("\\ "),
            '=' | ':' | '#' | '!' if is_key || at == 0 => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => write!(out, "\\u{:04x}", u32::from(c)).expect("a String takes all text"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expect: &[(&str, &str)]) {
        let parsed = Properties::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        let got: Vec<_> = parsed.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect();
        assert_eq!(got, expect, "{text:?}");
    }

    fn check_error(text: &str, expect: &str) {
        let error = Properties::parse(text.as_bytes()).expect_err("the text is malformed");
        assert_eq!(error.to_string(), expect, "{text:?}");
    }

    #[test]
    fn separators_and_space() {
        check("a=1\nb:2\nc 3\n", &[("a", "1"), ("b", "2"), ("c", "3")]);
        check("  a \t = 1 \n", &[("a", "1 ")]);
        check("a==1\nb=:2\nc : = 3", &[("a", "=1"), ("b", ":2"), ("c", "= 3")]);
        check("a\nb=\n=c\n", &[("a", ""), ("b", ""), ("", "c")]);
        check("a=1\r\nb=2\rc=3", &[("a", "1"), ("b", "2"), ("c", "3")]);
    }

    #[test]
    fn comments_and_blank_lines() {
        check("# a=1\n  ! b=2\n\n \t\nc=3 # not a comment\n", &[("c", "3 # not a comment")]);
        check("# no continuation \\\na=1\n", &[("a", "1")]);
    }

    #[test]
    fn continuation_lines() {
        check("a=1,\\\n    2,\\\n\t3\nb=4", &[("a", "1,2,3"), ("b", "4")]);
        check("a=1\\\\\nb=2", &[("a", "1\\"), ("b", "2")]);
        check("a=1\\\\\\\n2", &[("a", "1\\2")]);
        check("a=1\\\n# no comment here", &[("a", "1# no comment here")]);
        check("a=1\\\n\nb=2", &[("a", "1"), ("b", "2")]);
        check("a=1\\", &[("a", "1")]);
        check("\\\n# a comment\nb=2\n\\\n\nc=3\n\\", &[("b", "2"), ("c", "3")]);
    }

    #[test]
    fn escapes() {
        check(r"a\=b\:c\ d=1", &[("a=b:c d", "1")]);
        check(r"a=\t\n\r\f\\\q\#", &[("a", "\t\n\r\x0c\\q#")]);
        check(r"a=\u00e4\u20ac\uD83D\uDE00", &[("a", "ä€😀")]);
        check("größe=ü", &[("größe", "ü")]);
        check(r"\ a=1", &[(" a", "1")]);
    }

    #[test]
    fn malformed_text_is_named_with_its_line() {
        check_error("a=1\nb=\\u12", "line 2: malformed \\uXXXX escape: four hexadecimal digits are needed");
        check_error("a=\\u12g4", "line 1: malformed \\uXXXX escape: four hexadecimal digits are needed");
        check_error("a=\\uD83Dx", "line 1: a \\u surrogate without its other half");
        check_error("a=\\uDE00", "line 1: a \\u surrogate without its other half");
    }

    #[test]
    fn what_cannot_be_utf_8_is_latin_1() {
        let parsed = Properties::parse(b"# gr\xf6\xdfe\na=\xfc\nb=\xc3\xbc").expect("well formed");
        assert_eq!((parsed.get("a"), parsed.get("b")), (Some("\u{fc}"), Some("\u{c3}\u{bc}")));
    }

    #[test]
    fn the_last_of_repeated_keys_counts() {
        let parsed = Properties::parse(b"a=1\na=2\n").expect("well formed");
        assert_eq!(parsed.get("a"), Some("2"));
        assert_eq!(parsed.iter().map(|entry| entry.line).collect::<Vec<_>>(), [1, 2]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(entries in proptest::collection::vec((".*", ".*"), 0..8)) {
            let entries = entries.into_iter().enumerate();
            let written = Properties {
                entries: entries.map(|(at, (key, value))| Property { key, value, line: at + 1 }).collect(),
            };
            prop_assert_eq!(Properties::parse(written.to_text().as_bytes()).expect("written by us"), written);
        }
    }
}
