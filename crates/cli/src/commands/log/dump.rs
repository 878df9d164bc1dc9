//! `mainstem log dump`.

use std::fs;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_records::{Batch, Compression, Record, Scratch, TimestampType};
use serde_json::{Value, json};

use crate::disk::{
    FileKind, IndexEntry, IndexKind, SegmentFile, Step, Walk, check_regular, find_partitions, index_entries,
};
use crate::output::{shown, shown_json, written};
use crate::record_json::to_json;
use crate::secrets::shown_value;
use crate::timestamp;

/// The most bytes to which one batch may decompress.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 30;

/// Arguments of `log dump`.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// Segment files (.log, .index, .timeindex), directories of partitions, or a data directory.
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Also print the records. Keys of users and sensitive settings in the metadata log are hidden.
    #[arg(long, short)]
    records: bool,
    /// Also print the entries of the indexes that belong to a segment.
    #[arg(long, short)]
    indexes: bool,
    /// Print lines of JSON: a `batch`, its `record`s, an `index_entry`, or `broken` bytes, each with its `file`.
    #[arg(long)]
    json: bool,
}

/// Prints the files.
pub(crate) fn run(dump: &Dump) -> Result<()> {
    let mut files = Vec::new();
    for path in &dump.paths {
        files.extend(files_at(path, dump.indexes)?);
    }
    let mut dumper = Dumper {
        records: dump.records,
        json: dump.json,
        out: BufWriter::with_capacity(64 << 10, io::stdout()),
        buffer: Vec::new(),
        scratch: Scratch::new(),
    };
    for file in &files {
        dumper.dump(file)?;
    }
    dumper.out.flush().map_err(written)
}

fn files_at(path: &Path, indexes: bool) -> Result<Vec<SegmentFile>> {
    let logs = if path.is_dir() {
        find_partitions(path)?.into_iter().flat_map(|partition| partition.logs).collect()
    } else {
        match SegmentFile::parse(path) {
            Some(file) if file.kind != FileKind::Snapshot => {
                check_regular(path)?;
                vec![file]
            }
            _ => bail!(
                "{} is no directory, and no .log, .index or .timeindex file of a segment (20 digits and the suffix)",
                path.display()
            ),
        }
    };
    let mut files = Vec::new();
    for log in logs {
        let siblings = if indexes && log.kind == FileKind::Log {
            [FileKind::Index, FileKind::TimeIndex].map(|kind| SegmentFile {
                kind,
                path: log.sibling(kind),
                ..log
            })
        } else {
            files.push(log);
            continue;
        };
        files.push(log);
        files.extend(siblings.into_iter().filter(|file| file.path.exists()));
    }
    Ok(files)
}

struct Dumper {
    records: bool,
    json: bool,
    out: BufWriter<Stdout>,
    buffer: Vec<u8>,
    scratch: Scratch,
}

impl Dumper {
    fn dump(&mut self, file: &SegmentFile) -> Result<()> {
        if !self.json {
            self.line(&file.path.display().to_string())?;
        }
        match file.kind {
            FileKind::Index => self.dump_index(file, IndexKind::Offset),
            FileKind::TimeIndex => self.dump_index(file, IndexKind::Time),
            FileKind::Log | FileKind::Snapshot => self.dump_log(file),
        }
        .with_context(|| format!("dumping {}", file.path.display()))
    }

    fn dump_log(&mut self, file: &SegmentFile) -> Result<()> {
        let mut walk = Walk::open(&file.path)?;
        loop {
            match walk.step()? {
                Step::End => return Ok(()),
                Step::Broken { position, rest, error, .. } => {
                    let line = match self.json {
                        true => json!({"kind": "broken", "file": name(file), "position": position,
                            "bytes": rest, "error": error.to_string()})
                        .to_string(),
                        false => format!("  position {position}: {rest} bytes that are no batch: {error}"),
                    };
                    return self.line(&line);
                }
                Step::Batch { position, bytes } => {
                    let (batch, _) = Batch::split_first(&bytes)?;
                    let line = match self.json {
                        true => batch_json(file, position, &batch).to_string(),
                        false => batch_text(position, &batch),
                    };
                    self.line(&line)?;
                    if self.records {
                        self.dump_records(file, &batch)?;
                    }
                }
            }
        }
    }

    fn dump_records(&mut self, file: &SegmentFile, batch: &Batch<'_>) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        // Control records have a format of their own, and hold no secrets.
        let of_metadata = !batch.attributes().is_control() && is_of_metadata(file);
        match batch.records(&mut buffer, DECOMPRESSED_BYTES_MAX, &mut self.scratch) {
            Err(error) => self.record_fault(file, &error.to_string())?,
            Ok(records) => {
                for record in records {
                    match record {
                        Err(error) => self.record_fault(file, &error.to_string())?,
                        Ok(record) => self.record(file, &record, of_metadata)?,
                    }
                }
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    fn record(&mut self, file: &SegmentFile, record: &Record<'_>, of_metadata: bool) -> Result<()> {
        let value = record.value.map(|value| shown_value(value, of_metadata));
        let record = &Record { value: value.as_deref(), ..*record };
        if !self.json {
            return self.line(&record_text(record));
        }
        let mut line = to_json(None, None, record);
        line["kind"] = "record".into();
        line["file"] = name(file).into();
        self.line(&line.to_string())
    }

    fn record_fault(&mut self, file: &SegmentFile, error: &str) -> Result<()> {
        let line = match self.json {
            true => json!({"kind": "broken", "file": name(file), "error": error}).to_string(),
            false => format!("    {error}"),
        };
        self.line(&line)
    }

    fn dump_index(&mut self, file: &SegmentFile, kind: IndexKind) -> Result<()> {
        let (entries, odd) = index_entries(kind, &fs::read(&file.path)?, file.base_offset);
        for entry in entries {
            let line = match self.json {
                true => entry_json(file, kind, entry).to_string(),
                false => entry_text(kind, entry),
            };
            self.line(&line)?;
        }
        match odd {
            0 => Ok(()),
            odd if self.json => {
                self.line(&json!({"kind": "broken", "file": name(file), "bytes": odd}).to_string())
            }
            odd => self.line(&format!("  {odd} bytes that make no entry")),
        }
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let line = if self.json { shown_json(line) } else { shown(line) };
        writeln!(self.out, "{line}").map_err(written)
    }
}

/// Returns true if a file is in the directory of the metadata log.
fn is_of_metadata(file: &SegmentFile) -> bool {
    let path = file.path.canonicalize().unwrap_or_else(|_| file.path.clone());
    let dir = path.parent().and_then(Path::file_name);
    dir.is_some_and(|dir| dir.to_string_lossy().starts_with("__cluster_metadata-"))
}

fn name(file: &SegmentFile) -> String {
    file.path.display().to_string()
}

fn codec_name(batch: &Batch<'_>) -> String {
    batch.attributes().compression().map_or_else(|id| format!("codec {id}"), |codec| codec.name().to_owned())
}

fn batch_json(file: &SegmentFile, position: u64, batch: &Batch<'_>) -> Value {
    let attributes = batch.attributes();
    json!({
        "kind": "batch",
        "file": name(file),
        "position": position,
        "size": batch.size(),
        "base_offset": batch.base_offset(),
        "last_offset": batch.last_offset(),
        "records": batch.record_count(),
        "leader_epoch": batch.partition_leader_epoch(),
        "crc": batch.crc(),
        "crc_valid": batch.verify_crc(),
        "compression": codec_name(batch),
        "timestamp_type": timestamp_type(batch),
        "base_timestamp": batch.base_timestamp(),
        "max_timestamp": batch.max_timestamp(),
        "producer_id": batch.producer_id(),
        "producer_epoch": batch.producer_epoch(),
        "base_sequence": batch.base_sequence(),
        "transactional": attributes.is_transactional(),
        "control": attributes.is_control(),
        "delete_horizon_ms": batch.delete_horizon_ms(),
    })
}

fn timestamp_type(batch: &Batch<'_>) -> &'static str {
    match batch.attributes().timestamp_type() {
        TimestampType::CreateTime => "CreateTime",
        TimestampType::LogAppendTime => "LogAppendTime",
    }
}

fn batch_text(position: u64, batch: &Batch<'_>) -> String {
    let attributes = batch.attributes();
    let mut parts = vec![
        format!("  offsets {}-{}", batch.base_offset(), batch.last_offset()),
        format!("position {position}"),
        format!("{} records in {} bytes", batch.record_count(), batch.size()),
        format!("epoch {}", batch.partition_leader_epoch()),
        format!("{} up to {}", timestamp_type(batch), timestamp::format(batch.max_timestamp())),
    ];
    if attributes.compression() != Ok(Compression::None) {
        parts.push(codec_name(batch));
    }
    if batch.producer_id() >= 0 {
        let (id, epoch) = (batch.producer_id(), batch.producer_epoch());
        parts.push(format!(
            "producer {id} epoch {epoch} sequence {}-{}",
            batch.base_sequence(),
            batch.last_sequence()
        ));
    }
    let flags = [(attributes.is_transactional(), "transactional"), (attributes.is_control(), "control")];
    parts.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.to_owned()));
    if let Some(ms) = batch.delete_horizon_ms() {
        parts.push(format!("tombstones go from {}", timestamp::format(ms)));
    }
    parts.push(match batch.verify_crc() {
        true => "crc ok".to_owned(),
        false => format!("CRC WRONG (stored {}, computed {})", batch.crc(), batch.computed_crc()),
    });
    parts.join(", ")
}

fn record_text(record: &Record<'_>) -> String {
    let shown = |bytes: Option<&[u8]>| {
        bytes.map_or("null".to_owned(), |bytes| format!("\"{}\"", bytes.escape_ascii()))
    };
    let headers: String = record
        .headers
        .map(|header| format!(", header \"{}\"={}", header.key.escape_ascii(), shown(header.value)))
        .collect();
    format!(
        "    offset {}, {}, key {}, value {}{headers}",
        record.offset,
        timestamp::format(record.timestamp),
        shown(record.key),
        shown(record.value)
    )
}

fn entry_json(file: &SegmentFile, kind: IndexKind, entry: IndexEntry) -> Value {
    let value = match kind {
        IndexKind::Offset => "position",
        IndexKind::Time => "timestamp",
    };
    json!({"kind": "index_entry", "file": name(file), "offset": entry.offset, value: entry.value})
}

fn entry_text(kind: IndexKind, entry: IndexEntry) -> String {
    match kind {
        IndexKind::Offset => format!("  offset {}, position {}", entry.offset, entry.value),
        IndexKind::Time => format!("  timestamp {}, offset {}", timestamp::format(entry.value), entry.offset),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mainstem_records::{BatchBuilder, BatchOptions, Header, ProducerFields};

    use super::*;

    fn sample() -> Vec<u8> {
        let producer = ProducerFields { producer_id: 9, producer_epoch: 0, base_sequence: 5 };
        let mut builder = BatchBuilder::new(BatchOptions {
            base_offset: 40,
            partition_leader_epoch: 3,
            producer,
            ..Default::default()
        });
        let headers = [Header { key: b"h", value: None }];
        builder.append(1_700_000_000_000, Some(b"k\xff"), Some(b"one"), &headers).unwrap();
        builder.append(1_700_000_000_500, None, None, &[]).unwrap();
        builder.build().unwrap()
    }

    #[test]
    fn texts() {
        let bytes = sample();
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut lines = vec!["file".to_owned(), batch_text(0, &batch)];
        let mut buffer = Vec::new();
        for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).unwrap() {
            lines.push(record_text(&record.unwrap()));
        }
        lines.push(entry_text(IndexKind::Offset, IndexEntry { offset: 41, value: 0 }));
        lines.push(entry_text(IndexKind::Time, IndexEntry { offset: 41, value: 1_700_000_000_500 }));
        expect![[r#"
            file
              offsets 40-41, position 0, 2 records in 84 bytes, epoch 3, CreateTime up to 2023-11-14T22:13:20.500Z, producer 9 epoch 0 sequence 5-6, crc ok
                offset 40, 2023-11-14T22:13:20.000Z, key "k\xff", value "one", header "h"=null
                offset 41, 2023-11-14T22:13:20.500Z, key null, value null
              offset 41, position 0
              timestamp 2023-11-14T22:13:20.500Z, offset 41"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_wrong_checksum_is_shown() {
        let mut bytes = sample();
        bytes[70] ^= 1;
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        assert!(batch_text(0, &batch).contains("CRC WRONG"));
        let file = SegmentFile::parse(Path::new("t-0/00000000000000000040.log")).unwrap();
        let json = batch_json(&file, 0, &batch);
        assert_eq!((json["crc_valid"].as_bool(), json["last_offset"].as_i64()), (Some(false), Some(41)));
    }
}
