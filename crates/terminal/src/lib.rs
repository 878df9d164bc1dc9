//! What the programs print: tables for people, JSON for programs, and an end without noise when the reader is gone.

use std::io::{self, ErrorKind, Write};

use anyhow::{Error, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

/// Who reads standard output has closed it, as `head` does: no failure.
#[derive(Debug, thiserror::Error)]
#[error("the output is not read any more")]
pub struct ReaderGone;

/// Prints a text and ends its line.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(written)
}

/// Prints a value on one line.
pub fn print_json(value: &Value) -> Result<()> {
    print(&value.to_string())
}

/// Prints a text on standard error and ends its line. A standard error that is closed is no failure.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The error of a write to standard output.
pub fn written(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => Error::new(error).context("the output cannot be written"),
    }
}

/// A table without lines. A column whose name starts with `>` is aligned to the right.
pub fn table(columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.trim_start_matches('>')));
    table.add_rows(rows);
    for (at, name) in columns.iter().enumerate() {
        let column = table.column_mut(at).expect("the header has every column");
        column.set_padding((0, 2));
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Numbers with commas between them.
pub fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

/// A count and its noun, in the plural unless it is one.
pub fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, None) if noun.ends_with("ch") || noun.ends_with('x') => format!("{count} {noun}es"),
        (_, None) => format!("{count} {noun}s"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
    }
}

/// Bytes in the unit that people read best.
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
}
