//! The format string of `consume --format`, with placeholders of kcat and rpk.

use std::io::{self, Write};
use std::str::{Chars, FromStr};

use mainstem_client::FetchedRecord;

use super::printer::NULL;
use crate::output::shown;

/// A format string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Field(Field),
}

/// A part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Topic,
    Partition,
    Offset,
    Key,
    KeyLen,
    Value,
    ValueLen,
    TimestampMs,
    Headers,
    HeaderCount,
}

impl Field {
    fn of(letter: char) -> Option<Field> {
        Some(match letter {
            't' => Field::Topic,
            'p' => Field::Partition,
            'o' => Field::Offset,
            'k' => Field::Key,
            'K' => Field::KeyLen,
            'v' | 's' => Field::Value,
            'V' | 'S' => Field::ValueLen,
            'T' | 'd' => Field::TimestampMs,
            'h' => Field::Headers,
            'H' => Field::HeaderCount,
            _ => return None,
        })
    }
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Template, String> {
        let (mut parts, mut plain) = (Vec::new(), Vec::new());
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '%' => match placeholder(&mut letters)? {
                    None => plain.push(b'%'),
                    Some(field) => {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                        parts.push(Part::Field(field));
                    }
                },
                '\\' => plain.push(escape(&mut letters)?),
                other => plain.extend(other.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Template(parts))
    }
}

/// The field of a placeholder, of which `%` was read; none for a percent sign.
fn placeholder(letters: &mut Chars<'_>) -> Result<Option<Field>, String> {
    let known = "known are %t %p %o %k %v %s %K %V %S %T %d %h %H and %%";
    match letters.next() {
        Some('%') => Ok(None),
        Some(letter) => match Field::of(letter) {
            Some(field) => Ok(Some(field)),
            None => Err(format!("%{letter} is no placeholder; {known}")),
        },
        None => Err(format!("a % at the end is no placeholder; {known}")),
    }
}

/// The byte of an escape, of which the backslash was read.
fn escape(letters: &mut Chars<'_>) -> Result<u8, String> {
    let known = r"known are \n \r \t \\ \0 and \xNN";
    match letters.next() {
        Some('n') => Ok(b'\n'),
        Some('r') => Ok(b'\r'),
        Some('t') => Ok(b'\t'),
        Some('0') => Ok(0),
        Some('\\') => Ok(b'\\'),
        Some('x') => {
            let digits: String = letters.by_ref().take(2).collect();
            let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let byte = is_hex.then(|| u8::from_str_radix(&digits, 16).ok()).flatten();
            byte.ok_or_else(|| format!(r"\x{digits} is no escape; {known}"))
        }
        Some(letter) => Err(format!(r"\{letter} is no escape; {known}")),
        None => Err(format!(r"a \ at the end is no escape; {known}")),
    }
}

impl Template {
    /// Writes a record. Topic and partition are empty for a queue's message.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn write(
        &self,
        out: &mut impl Write,
        source: Option<(&str, i32)>,
        record: &FetchedRecord<'_>,
    ) -> io::Result<()> {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.write_all(text)?,
                Part::Field(field) => write_field(out, *field, source, record)?,
            }
        }
        Ok(())
    }
}

fn write_field(
    out: &mut impl Write,
    field: Field,
    source: Option<(&str, i32)>,
    record: &FetchedRecord<'_>,
) -> io::Result<()> {
    match (field, source) {
        (Field::Topic, Some((topic, _))) => write!(out, "{}", shown(topic)),
        (Field::Partition, Some((_, partition))) => write!(out, "{partition}"),
        (Field::Topic | Field::Partition, None) => Ok(()),
        (Field::Offset, _) => write!(out, "{}", record.offset),
        (Field::Key, _) => out.write_all(record.key.unwrap_or(NULL)),
        (Field::KeyLen, _) => write_len(out, record.key),
        (Field::Value, _) => out.write_all(record.value.unwrap_or(NULL)),
        (Field::ValueLen, _) => write_len(out, record.value),
        (Field::TimestampMs, _) => write!(out, "{}", record.timestamp),
        (Field::Headers, _) => write_headers(out, record),
        (Field::HeaderCount, _) => write!(out, "{}", record.headers.len()),
    }
}

fn write_len(out: &mut impl Write, bytes: Option<&[u8]>) -> io::Result<()> {
    match bytes {
        Some(bytes) => write!(out, "{}", bytes.len()),
        None => out.write_all(b"-1"),
    }
}

fn write_headers(out: &mut impl Write, record: &FetchedRecord<'_>) -> io::Result<()> {
    for (at, header) in record.headers.enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        write!(out, "{}=", shown(&String::from_utf8_lossy(header.key)))?;
        out.write_all(header.value.unwrap_or(NULL))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_placeholders_and_escapes_are_refused() {
        for (wrong, said) in [
            ("%t %q", "%q is no placeholder"),
            ("100%", "a % at the end"),
            (r"\q", r"\q is no escape"),
            (r"\x4", r"\x4 is no escape"),
            (r"\xzz", r"\xzz is no escape"),
            ("%t\\", r"a \ at the end"),
        ] {
            let error = wrong.parse::<Template>().unwrap_err();
            assert!(error.starts_with(said) && error.contains("known are"), "{error}");
        }
    }

    #[test]
    fn text_and_escapes_are_themselves() {
        let template: Template = r"ä%%\n\t\\\x41\0%o".parse().unwrap();
        let text = Part::Text("ä%\n\t\\A\0".into());
        assert_eq!(template.0, [text, Part::Field(Field::Offset), Part::Text(Vec::new())]);
    }
}
