//! Records from lines of the input.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use mainstem_client::Record;

use super::Produce;
use crate::record_json;

/// KEY=VALUE of `--header`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderArgument {
    key: String,
    value: String,
}

impl HeaderArgument {
    /// Reads KEY=VALUE; the value may have further equals signs.
    pub(crate) fn parse(text: &str) -> Result<HeaderArgument, String> {
        match text.split_once('=') {
            Some((key, value)) => Ok(HeaderArgument { key: key.to_owned(), value: value.to_owned() }),
            None => Err("expected KEY=VALUE".to_owned()),
        }
    }
}

impl HeaderArgument {
    /// Returns true if a record's header is this one.
    pub(crate) fn is(&self, header: &mainstem_client::Header<'_>) -> bool {
        header.key == self.key.as_bytes() && header.value == Some(self.value.as_bytes())
    }
}

/// The conversion of lines to records.
#[derive(Debug)]
pub(crate) struct LineFormat {
    topic: Arc<str>,
    kind: Kind,
    /// The headers of every record.
    headers: Vec<(String, Option<Bytes>)>,
}

#[derive(Debug)]
enum Kind {
    Value { key: Option<Bytes> },
    KeyAndValue { separator: Vec<u8> },
    Json,
}

impl LineFormat {
    /// The format that the command line describes.
    pub(crate) fn new(produce: &Produce, topic: Arc<str>) -> Self {
        let (separator, key) = (produce.key_separator.as_deref(), produce.key.as_deref());
        LineFormat { topic, ..LineFormat::plain(separator, key, produce.json, &produce.headers) }
    }

    /// The same for a queue, which has no topic.
    pub(crate) fn plain(
        key_separator: Option<&str>,
        key: Option<&str>,
        json: bool,
        headers: &[HeaderArgument],
    ) -> Self {
        let kind = match (key_separator, json) {
            (_, true) => Kind::Json,
            (Some(separator), false) => Kind::KeyAndValue { separator: separator.as_bytes().to_vec() },
            (None, false) => Kind::Value { key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())) },
        };
        let header = |header: &HeaderArgument| (header.key.clone(), Some(header.value.clone().into()));
        LineFormat { topic: "".into(), kind, headers: headers.iter().map(header).collect() }
    }

    /// A record of this value, with the key that all records have.
    pub(crate) fn record_of(&self, value: Bytes) -> Record {
        let key = match &self.kind {
            Kind::Value { key } => key.clone(),
            Kind::KeyAndValue { .. } | Kind::Json => None,
        };
        let mut record = Record { key, ..Record::new(self.topic.clone(), value) };
        record.headers.extend_from_slice(&self.headers);
        record
    }

    /// The record of a line. It shares the line's bytes. The number of the line is for the error.
    pub(crate) fn parse(&self, line: Bytes, number: u64) -> Result<Record> {
        let topic = self.topic.clone();
        let mut record = match &self.kind {
            Kind::Value { .. } => return Ok(self.record_of(line)),
            Kind::KeyAndValue { separator } => {
                let Some(at) = find(&line, separator) else {
                    bail!(
                        "line {number} of the input has no key: {:?} is not in it; choose another --key-separator",
                        String::from_utf8_lossy(separator)
                    );
                };
                Record::new(topic, line.slice(at + separator.len()..)).key(line.slice(..at))
            }
            Kind::Json => {
                record_json::parse(topic, &line).with_context(|| format!("line {number} of the input"))?
            }
        };
        record.headers.extend_from_slice(&self.headers);
        Ok(record)
    }
}

/// The position of the first `needle`.
fn find(line: &[u8], needle: &[u8]) -> Option<usize> {
    match needle.is_empty() {
        true => None,
        false => line.windows(needle.len()).position(|window| window == needle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: Kind, line: &'static str) -> Result<Record> {
        let headers = vec![("h".to_owned(), Some("1".into())); 2];
        LineFormat { topic: "t".into(), kind, headers }.parse(line.into(), 3)
    }

    #[test]
    fn lines_become_records() {
        let record = parse(Kind::KeyAndValue { separator: b"::".to_vec() }, "a::b::c").unwrap();
        assert_eq!(record.key.as_deref(), Some(b"a".as_slice()));
        assert_eq!(record.value.as_deref(), Some(b"b::c".as_slice()));
        assert_eq!(record.headers.len(), 2);
        let record = parse(Kind::Value { key: None }, "").unwrap();
        assert_eq!((record.key, record.value.as_deref()), (None, Some(b"".as_slice())));
        let record = parse(Kind::Json, r#"{"key":"k","headers":{"own":"x"}}"#).unwrap();
        assert_eq!((record.headers.len(), record.value), (3, None));
    }

    #[test]
    fn errors_name_the_line() {
        for kind in [Kind::KeyAndValue { separator: b":".to_vec() }, Kind::Json] {
            let error = format!("{:#}", parse(kind, "no colon").unwrap_err());
            assert!(error.contains("line 3 of the input"), "{error}");
        }
    }

    #[test]
    fn headers_may_have_empty_values() {
        let header = |key: &str, value: &str| Ok(HeaderArgument { key: key.into(), value: value.into() });
        assert_eq!(HeaderArgument::parse("k=v=w"), header("k", "v=w"));
        assert_eq!(HeaderArgument::parse("k="), header("k", ""));
        assert!(HeaderArgument::parse("k").is_err());
    }
}
