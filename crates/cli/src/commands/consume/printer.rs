//! Records on standard output.

use std::io::{self, BufWriter, Stdout, Write};

use anyhow::Result;
use mainstem_client::FetchedRecord;

use super::template::Template;
use crate::output::{json_line, written};
use crate::record_json::to_json;

/// The text of null outside of JSON, as Kafka's console consumer prints it.
pub(super) const NULL: &[u8] = b"null";

/// The parts of a record that are printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    Value,
    KeyAndValue,
    Template(Template),
    Json,
}

/// Prints records, up to a count.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    left: Option<u64>,
    out: BufWriter<Stdout>,
}

impl Printer {
    /// Prints at most `max` records, if that is given.
    pub(crate) fn new(format: Format, max: Option<u64>) -> Self {
        Printer { format, left: max, out: BufWriter::with_capacity(64 << 10, io::stdout()) }
    }

    /// Returns true if the maximum of records is printed.
    pub(crate) fn is_done(&self) -> bool {
        self.left == Some(0)
    }

    /// Prints a record.
    pub(crate) fn print(&mut self, topic: &str, partition: i32, record: &FetchedRecord<'_>) -> Result<()> {
        self.left = self.left.map(|left| left - 1);
        write_record(&mut self.out, &self.format, Some((topic, partition)), record).map_err(written)
    }

    /// Prints a message of a queue, which has neither topic nor partition.
    pub(crate) fn print_message(&mut self, record: &FetchedRecord<'_>) -> Result<()> {
        self.left = self.left.map(|left| left - 1);
        write_record(&mut self.out, &self.format, None, record).map_err(written)
    }

    /// Flushes standard output.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(written)
    }
}

fn write_record(
    out: &mut impl Write,
    format: &Format,
    source: Option<(&str, i32)>,
    record: &FetchedRecord<'_>,
) -> io::Result<()> {
    match format {
        Format::Json => {
            let (topic, partition) = source.unzip();
            return writeln!(out, "{}", json_line(&to_json(topic, partition, record)));
        }
        Format::Template(template) => return template.write(out, source, record),
        Format::KeyAndValue => {
            out.write_all(record.key.unwrap_or(NULL))?;
            out.write_all(b"\t")?;
        }
        Format::Value => {}
    }
    out.write_all(record.value.unwrap_or(NULL))?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mainstem_records::{Batch, BatchBuilder, BatchOptions, Header, Scratch};

    use super::*;

    fn printed(format: &Format) -> String {
        let mut builder = BatchBuilder::new(BatchOptions { base_offset: 7, ..Default::default() });
        let headers = [Header { key: b"trace", value: Some(b"\xff") }];
        builder.append(1_700_000_000_000, Some(b"k1"), Some(b"one"), &headers).unwrap();
        builder.append(1_700_000_000_001, None, None, &[]).unwrap();
        let bytes = builder.build().unwrap();
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let (mut buffer, mut out) = (Vec::new(), Vec::new());
        for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).unwrap() {
            write_record(&mut out, format, Some(("orders", 2)), &record.unwrap()).unwrap();
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn formats() {
        expect![["one\nnull\n"]].assert_eq(&printed(&Format::Value));
        expect![["k1\tone\nnull\tnull\n"]].assert_eq(&printed(&Format::KeyAndValue));
        let template = "%t %p %o %k %v %K %V %T [%h] %H\\n".parse().unwrap();
        expect![["orders 2 7 k1 one 2 3 1700000000000 [trace=\u{fffd}] 1\norders 2 8 null null -1 -1 1700000000001 [] 0\n"]]
            .assert_eq(&printed(&Format::Template(template)));
        expect![[r#"
            {"headers":[{"key":"trace","value_base64":"/w=="}],"key":"k1","offset":7,"partition":2,"timestamp":1700000000000,"topic":"orders","value":"one"}
            {"headers":[],"key":null,"offset":8,"partition":2,"timestamp":1700000000001,"topic":"orders","value":null}
        "#]]
        .assert_eq(&printed(&Format::Json));
    }
}
