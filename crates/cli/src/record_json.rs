//! Records as lines of JSON, for `consume --json` and `produce --json`.
//!
//! `{"partition":0,"offset":5,"timestamp":1700000000000,"key":"k","value":"v","headers":[{"key":"h","value":"x"}]}`;
//! bytes that are not UTF-8 go in `key_base64`, `value_base64`, and `value_base64` of a header.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use mainstem_client::{FetchedRecord, Header, Record};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A line of input. Fields that the broker decides may be there, as `consume --json` writes them, and are ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(rename = "topic")]
    _topic: Option<String>,
    #[serde(rename = "offset")]
    _offset: Option<i64>,
    partition: Option<i32>,
    timestamp: Option<i64>,
    #[serde(default)]
    key: Value,
    key_base64: Option<String>,
    #[serde(default)]
    value: Value,
    value_base64: Option<String>,
    #[serde(default)]
    headers: Headers,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Headers {
    List(Vec<HeaderLine>),
    Map(Map<String, Value>),
}

impl Default for Headers {
    fn default() -> Self {
        Headers::List(Vec::new())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    key: String,
    #[serde(default)]
    value: Value,
    value_base64: Option<String>,
}

/// Reads a line, for a topic. A string is its text, null is null, any other JSON is its own text.
pub(crate) fn parse(topic: Arc<str>, line: &[u8]) -> Result<Record> {
    let line: Line = serde_json::from_slice(line).context("the line is no record in JSON")?;
    let headers = match line.headers {
        Headers::List(list) => list.into_iter().map(HeaderLine::into_header).collect::<Result<_>>()?,
        Headers::Map(map) => map.into_iter().map(|(key, value)| (key, text_of(value))).collect(),
    };
    Ok(Record {
        topic,
        partition: line.partition,
        timestamp_ms: line.timestamp,
        key: bytes_of("key", line.key, line.key_base64)?,
        value: bytes_of("value", line.value, line.value_base64)?,
        headers,
    })
}

impl HeaderLine {
    fn into_header(self) -> Result<(String, Option<Bytes>)> {
        Ok((self.key, bytes_of("value", self.value, self.value_base64)?))
    }
}

fn bytes_of(field: &str, plain: Value, encoded: Option<String>) -> Result<Option<Bytes>> {
    match (plain, encoded) {
        (plain, None) => Ok(text_of(plain)),
        (Value::Null, Some(text)) => match BASE64_STANDARD.decode(&text) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(_) => bail!("{field}_base64 is no padded base64: {text:?}"),
        },
        (_, Some(_)) => bail!("the record has both {field} and {field}_base64"),
    }
}

fn text_of(value: Value) -> Option<Bytes> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into()),
        other => Some(other.to_string().into()),
    }
}

/// The line of a record.
pub(crate) fn to_json(topic: Option<&str>, partition: Option<i32>, record: &FetchedRecord<'_>) -> Value {
    let mut line = Map::new();
    if let Some(topic) = topic {
        line.insert("topic".into(), topic.into());
    }
    if let Some(partition) = partition {
        line.insert("partition".into(), partition.into());
    }
    line.insert("offset".into(), record.offset.into());
    line.insert("timestamp".into(), record.timestamp.into());
    put(&mut line, "key", record.key);
    put(&mut line, "value", record.value);
    line.insert("headers".into(), record.headers.map(|header| header_json(&header)).collect());
    Value::Object(line)
}

fn header_json(header: &Header<'_>) -> Value {
    let mut line = Map::new();
    // A key that is not UTF-8 breaks Kafka's convention; it is shown with replacement characters.
    line.insert("key".into(), String::from_utf8_lossy(header.key).into());
    put(&mut line, "value", header.value);
    Value::Object(line)
}

fn put(line: &mut Map<String, Value>, field: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => line.insert(field.into(), Value::Null),
        Some((_, Ok(text))) => line.insert(field.into(), json!(text)),
        Some((bytes, Err(_))) => line.insert(format!("{field}_base64"), BASE64_STANDARD.encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use mainstem_records::{Batch, BatchBuilder, BatchOptions, Scratch};
    use proptest::prelude::*;

    use super::*;

    /// The line that `consume` writes for a record.
    fn line_of(record: &Record) -> String {
        let headers: Vec<Header<'_>> = record
            .headers
            .iter()
            .map(|(key, value)| Header { key: key.as_bytes(), value: value.as_deref() })
            .collect();
        let mut builder = BatchBuilder::new(BatchOptions::default());
        let timestamp = record.timestamp_ms.expect("samples have one");
        builder.append(timestamp, record.key.as_deref(), record.value.as_deref(), &headers).unwrap();
        let bytes = builder.build().unwrap();
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut buffer = Vec::new();
        let mut records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).unwrap();
        to_json(None, record.partition, &records.next().unwrap().unwrap()).to_string()
    }

    fn parsed(line: &[u8]) -> Result<Record> {
        parse("t".into(), line)
    }

    #[test]
    fn a_record_with_everything() {
        let record = Record {
            topic: "t".into(),
            partition: Some(3),
            timestamp_ms: Some(17),
            key: Some("k".into()),
            value: Some(vec![0xff, 0].into()),
            headers: vec![("h".into(), Some("1".into())), ("h".into(), None)],
        };
        let line = line_of(&record);
        assert_eq!(
            line,
            r#"{"headers":[{"key":"h","value":"1"},{"key":"h","value":null}],"key":"k","offset":0,"partition":3,"timestamp":17,"value_base64":"/wA="}"#
        );
        assert_eq!(parsed(line.as_bytes()).unwrap(), record);
    }

    #[test]
    fn short_lines() {
        let value = |text: &'static str| Some(Bytes::from(text));
        let record = parsed(br#"{"value":{"a":[1,2]},"headers":{"n":1,"s":"x","z":null}}"#).unwrap();
        assert_eq!(record.value, value(r#"{"a":[1,2]}"#));
        let headers: Vec<_> = record.headers.into_iter().map(|(_, value)| value).collect();
        assert_eq!(headers, [value("1"), value("x"), None]);
        let empty = parsed(b"{}").unwrap();
        assert!(empty.value.is_none() && empty.key.is_none() && empty.headers.is_empty());
        assert_eq!((empty.partition, empty.timestamp_ms), (None, None));
        assert_eq!(parsed(br#"{"value":""}"#).unwrap().value, value(""));
    }

    #[test]
    fn lines_that_are_refused() {
        for (line, why) in [
            ("", "EOF"),
            ("plain text", "no record in JSON"),
            (r#"{"valu":"x"}"#, "unknown field `valu`"),
            (r#"{"value":"x","value_base64":"eA=="}"#, "both value and value_base64"),
            (r#"{"key_base64":"x"}"#, "key_base64 is no padded base64"),
            (r#"{"partition":"x"}"#, "invalid type"),
        ] {
            let error = format!("{:#}", parsed(line.as_bytes()).expect_err(line));
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            partition: Option<i32>,
            timestamp in 0i64..1 << 50,
            key: Option<Vec<u8>>,
            value: Option<Vec<u8>>,
            headers: Vec<(String, Option<Vec<u8>>)>,
        ) {
            let headers = headers.into_iter().map(|(key, value)| (key, value.map(Into::into))).collect();
            let (key, value) = (key.map(Into::into), value.map(Into::into));
            let record =
                Record { topic: "t".into(), partition, timestamp_ms: Some(timestamp), key, value, headers };
            prop_assert_eq!(parsed(line_of(&record).as_bytes()).unwrap(), record);
        }
    }
}
