//! Output of the programs: tables for people, JSON for programs, and a quiet end when the reader is gone.
//!
//! Others choose many of the names in it: groups, clients, users, records. So everything goes through [`shown`] or
//! its like: cells of [`table`], all of [`print_line`], all of [`print()`] but the ends of lines, the strings of
//! [`json_line`]. A name in a text of several lines needs [`shown`] itself, or it could begin a line.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};

use anyhow::{Error, Result};
use comfy_table::{CellAlignment, Table, presets};
use mainstem_lines::is_hidden;
use serde_json::Value;

/// The reader of standard output has closed it, as `head` does. This is no failure.
#[derive(Debug, thiserror::Error)]
#[error("the output is not read any more")]
pub struct ReaderGone;

/// A name in a form that is safe within a line. Characters that control a terminal, end a line, change the direction
/// of writing or are invisible become `\n` or `\u{9b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden, |out, letter| out.extend(letter.escape_default()))
}

/// The same for a text of several lines, which keeps their ends.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    let is_escaped = |letter| letter != '\n' && is_hidden(letter);
    escaped(text, is_escaped, |out, letter| out.extend(letter.escape_default()))
}

/// A value in JSON on one line. Its strings keep their values, and have no control characters of a terminal.
pub fn json_line(value: &Value) -> String {
    shown_json(&value.to_string()).into_owned()
}

/// The same for a value that is JSON already.
pub fn shown_json(text: &str) -> Cow<'_, str> {
    // Such characters occur in strings alone.
    let escape = |out: &mut String, letter: char| {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}").expect("a text takes everything");
        }
    };
    escaped(text, is_hidden, escape)
}

fn escaped(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match is_escaped(letter) {
            true => escape(&mut out, letter),
            false => out.push(letter),
        }
    }
    Cow::Owned(out)
}

/// Prints a text and ends its line. Control characters of a terminal are escaped, as by [`shown`].
pub fn print(text: &str) -> Result<()> {
    let text = shown_lines(text);
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(written)
}

/// Prints a text of one line: an end of line within it is escaped as any other control character.
pub fn print_line(text: &str) -> Result<()> {
    print(&shown(text))
}

/// Prints a value on one line.
pub fn print_json(value: &Value) -> Result<()> {
    print(&json_line(value))
}

/// Prints a text on standard error and ends its line. A closed standard error is no failure.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown_lines(text));
}

/// The error of a write to standard output.
pub fn written(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => Error::new(error).context("the output cannot be written"),
    }
}

/// A table without borders, with one line for each row whatever its cells hold. A column whose name starts with `>` is aligned to the
/// right.
pub fn table(columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.trim_start_matches('>')));
    table.add_rows(rows.iter().map(|row| row.iter().map(|cell| shown(cell))));
    for (at, name) in columns.iter().enumerate() {
        let column = table.column_mut(at).expect("the header has every column");
        column.set_padding((0, 2));
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Items with commas between them.
pub fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

/// A count with its noun, in the plural unless the count is one.
pub fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, None) if noun.ends_with("ch") || noun.ends_with('x') => format!("{count} {noun}es"),
        (_, None) => format!("{count} {noun}s"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
    }
}

/// Bytes in the unit that is easiest to read.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn tables_have_no_lines_and_no_trailing_blanks() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["longer".into(), "1000".into()]];
        expect![[r#"
            NAME    COUNT
            a           1
            longer   1000"#]]
        .assert_eq(&table(&["NAME", ">COUNT"], rows));
    }

    #[test]
    fn counts_have_their_plural() {
        assert_eq!(counted(1, "record"), "1 record");
        assert_eq!(counted(0, "record"), "0 records");
        assert_eq!(counted(2, "batch"), "2 batches");
        assert_eq!(counted(2, "entry"), "2 entries");
    }

    /// Characters that names of others may have.
    const HOSTILE: [&str; 8] = [
        "a\u{1b}[2Jb",
        "a\nb",
        "a\r\tb",
        "a\u{9b}31mb",
        "a\u{202e}b\u{2066}c",
        "a\u{2028}b",
        "\u{feff}a\u{200b}b",
        "a\u{e0041}b\u{7f}",
    ];

    #[test]
    fn nothing_that_is_shown_controls_a_terminal() {
        assert_eq!(shown(HOSTILE[0]), "a\\u{1b}[2Jb");
        assert_eq!(shown(HOSTILE[1]), "a\\nb");
        assert_eq!(shown("größe \\ 東京"), "größe \\ 東京");
        for name in HOSTILE {
            assert!(!shown(name).contains(is_hidden), "{name:?}");
            assert!(!shown_lines(name).contains(|letter| letter != '\n' && is_hidden(letter)), "{name:?}");
            let rows = vec![vec![name.to_owned(), "1".to_owned()], vec!["b".to_owned(), name.to_owned()]];
            let table = table(&["NAME", ">COUNT"], rows);
            assert_eq!(table.lines().count(), 3, "{table}");
            assert!(!table.contains(|letter| letter != '\n' && is_hidden(letter)), "{table:?}");
            let value = serde_json::json!({ name: [name] });
            let line = json_line(&value);
            assert!(!line.contains(is_hidden), "{line:?}");
            assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value, "programs read the same");
        }
    }
}
