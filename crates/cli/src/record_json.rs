//! Records as lines of JSON: what `consume --json` writes and `produce --json` reads.
//!
//! `{"partition":0,"offset":5,"timestamp":1700000000000,"key":"k","value":"v","headers":[{"key":"h","value":"x"}]}`;
//! bytes that are not UTF-8 go in `key_base64`, `value_base64`, and `value_base64` of a header.

use anyhow::{Context, Result, bail};
use mainstem_records::{Header, Record};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::base64;

/// A record on its way to the broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NewRecord {
    /// Where it must go; none leaves that to the key.
    pub(crate) partition: Option<i32>,
    /// In ms; none is now.
    pub(crate) timestamp: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<NewHeader>,
}

/// A header on its way to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewHeader {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

/// A line as it is read. What the broker decides may be there, as `consume --json` writes it, and is passed over.
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

/// Reads a line. A string stands for its text, null for null, any other JSON for its own text.
pub(crate) fn parse(line: &[u8]) -> Result<NewRecord> {
    let line: Line = serde_json::from_slice(line).context("the line is no record in JSON")?;
    let headers = match line.headers {
        Headers::List(list) => list.into_iter().map(HeaderLine::into_header).collect::<Result<_>>()?,
        Headers::Map(map) => map
            .into_iter()
            .map(|(key, value)| NewHeader { key: key.into_bytes(), value: text_of(value) })
            .collect(),
    };
    Ok(NewRecord {
        partition: line.partition,
        timestamp: line.timestamp,
        key: bytes_of("key", line.key, line.key_base64)?,
        value: bytes_of("value", line.value, line.value_base64)?,
        headers,
    })
}

impl HeaderLine {
    fn into_header(self) -> Result<NewHeader> {
        let value = bytes_of("value", self.value, self.value_base64)?;
        Ok(NewHeader { key: self.key.into_bytes(), value })
    }
}

fn bytes_of(field: &str, plain: Value, encoded: Option<String>) -> Result<Option<Vec<u8>>> {
    match (plain, encoded) {
        (plain, None) => Ok(text_of(plain)),
        (Value::Null, Some(text)) => match base64::decode(&text) {
            Some(bytes) => Ok(Some(bytes)),
            None => bail!("{field}_base64 is no padded base64: {text:?}"),
        },
        (_, Some(_)) => bail!("the record has both {field} and {field}_base64"),
    }
}

fn text_of(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into_bytes()),
        other => Some(other.to_string().into_bytes()),
    }
}

/// The line of a record.
pub(crate) fn to_json(topic: Option<&str>, partition: Option<i32>, record: &Record<'_>) -> Value {
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
    // A key that is no UTF-8 breaks Kafka's own convention; it is shown as well as it can be.
    line.insert("key".into(), String::from_utf8_lossy(header.key).into());
    put(&mut line, "value", header.value);
    Value::Object(line)
}

fn put(line: &mut Map<String, Value>, field: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => line.insert(field.into(), Value::Null),
        Some((_, Ok(text))) => line.insert(field.into(), json!(text)),
        Some((bytes, Err(_))) => line.insert(format!("{field}_base64"), base64::encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use mainstem_records::{Batch, BatchBuilder, BatchOptions, Scratch};
    use proptest::prelude::*;

    use super::*;

    /// The line that `consume` writes for a record.
    fn line_of(record: &NewRecord) -> String {
        let headers: Vec<Header<'_>> =
            record.headers.iter().map(|h| Header { key: &h.key, value: h.value.as_deref() }).collect();
        let mut builder = BatchBuilder::new(BatchOptions::default());
        let timestamp = record.timestamp.expect("samples have one");
        builder.append(timestamp, record.key.as_deref(), record.value.as_deref(), &headers).unwrap();
        let bytes = builder.build().unwrap();
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut buffer = Vec::new();
        let mut records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).unwrap();
        to_json(None, record.partition, &records.next().unwrap().unwrap()).to_string()
    }

    #[test]
    fn a_record_with_everything() {
        let record = NewRecord {
            partition: Some(3),
            timestamp: Some(17),
            key: Some(b"k".to_vec()),
            value: Some(vec![0xff, 0]),
            headers: vec![
                NewHeader { key: b"h".to_vec(), value: Some(b"1".to_vec()) },
                NewHeader { key: b"h".to_vec(), value: None },
            ],
        };
        let line = line_of(&record);
        assert_eq!(
            line,
            r#"{"headers":[{"key":"h","value":"1"},{"key":"h","value":null}],"key":"k","offset":0,"partition":3,"timestamp":17,"value_base64":"/wA="}"#
        );
        assert_eq!(parse(line.as_bytes()).unwrap(), record);
    }

    #[test]
    fn short_lines() {
        let value = |text: &str| Some(text.as_bytes().to_vec());
        let record = parse(br#"{"value":{"a":[1,2]},"headers":{"n":1,"s":"x","z":null}}"#).unwrap();
        assert_eq!(record.value, value(r#"{"a":[1,2]}"#));
        let headers: Vec<_> = record.headers.into_iter().map(|header| header.value).collect();
        assert_eq!(headers, [value("1"), value("x"), None]);
        assert_eq!(parse(b"{}").unwrap(), NewRecord::default());
        assert_eq!(parse(br#"{"value":""}"#).unwrap().value, value(""));
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
            let error = format!("{:#}", parse(line.as_bytes()).expect_err(line));
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
            let headers =
                headers.into_iter().map(|(key, value)| NewHeader { key: key.into_bytes(), value }).collect();
            let record = NewRecord { partition, timestamp: Some(timestamp), key, value, headers };
            prop_assert_eq!(parse(line_of(&record).as_bytes()).unwrap(), record);
        }
    }
}
