//! Real text from files of this machine, as the records that clients write and read.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::broker::PARTITIONS;

/// The variable with the number of lines that each client writes and reads.
pub(crate) const TEXT_LINES: &str = "TEST_TEXT_LINES";
/// Records of the checks that write one topic per codec.
pub(crate) const CODEC_RECORDS: usize = 5_000;

/// Folders with text that every Linux machine has, in the order of preference.
const FOLDERS: &[&str] =
    &["/usr/share/common-licenses", "/usr/share/doc", "/usr/share/perl", "/usr/lib/python3"];

/// A record as clients read it from their input file and write it to their output file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Partition.
    #[serde(rename = "p")]
    pub(crate) partition: i32,
    /// Offset; of no meaning in an input file.
    #[serde(rename = "o", default)]
    pub(crate) offset: i64,
    #[serde(rename = "k")]
    pub(crate) key: Option<String>,
    #[serde(rename = "v")]
    pub(crate) value: Option<String>,
    #[serde(rename = "h")]
    pub(crate) headers: Vec<(String, Option<String>)>,
}

/// Lines of this machine's text.
#[derive(Clone)]
pub(crate) struct Text(Arc<Vec<String>>);

impl Text {
    /// Collects so many lines from [`FOLDERS`], in the order of the files' names; from the beginning again if they end.
    pub(crate) fn collect(wanted: usize) -> Result<Text> {
        let mut lines = Vec::new();
        for folder in FOLDERS {
            collect_folder(Path::new(folder), wanted, &mut lines);
        }
        ensure!(lines.len() >= 1_000, "only {} lines of text found below {FOLDERS:?}", lines.len());
        let found = lines.len();
        for i in 0..wanted.saturating_sub(found) {
            lines.push(lines[i % found].clone());
        }
        lines.truncate(wanted);
        Ok(Text(Arc::new(lines)))
    }

    /// A record of each line, as [`Text::records`] has them.
    pub(crate) fn all_records(&self, limits: Limits) -> Vec<Record> {
        self.records(self.0.len(), limits)
    }

    /// Line `i`, over and over.
    pub(crate) fn line(&self, i: usize) -> &str {
        &self.0[i % self.0.len()]
    }

    /// Records with null, empty and repeated keys, null and empty values, and every kind of headers, as far as they are
    /// within the limits.
    pub(crate) fn records(&self, count: usize, limits: Limits) -> Vec<Record> {
        (0..count).map(|i| limits.apply(self.record(i))).collect()
    }

    fn record(&self, i: usize) -> Record {
        let key = match i % 7 {
            0 => None,
            1 => Some(String::new()),
            _ => Some(format!("key {}", i % 1_000)),
        };
        let value = match i % 101 {
            5 => None,
            6 => Some(String::new()),
            _ => Some(self.line(i).to_string()),
        };
        let partition = i32::try_from(i % PARTITIONS as usize).expect("a small number");
        Record { partition, offset: 0, key, value, headers: headers(i) }
    }
}

/// Restrictions of a client on records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// It takes empty for null.
    pub(crate) no_empty: bool,
    /// It wants a value in every header.
    pub(crate) no_null_header: bool,
    /// It wants a key or a value in every record.
    pub(crate) no_void: bool,
    /// It has one list of headers for all the records of a run.
    pub(crate) same_headers: bool,
}

impl Limits {
    pub(crate) const NONE: Limits =
        Limits { no_empty: false, no_null_header: false, no_void: false, same_headers: false };

    fn apply(self, mut record: Record) -> Record {
        if self.same_headers {
            record.headers = kcat_headers();
        }
        if self.no_null_header {
            record.headers.retain(|(_, value)| value.is_some());
        }
        if self.no_empty {
            let fields = [&mut record.key, &mut record.value].into_iter();
            for field in fields.chain(record.headers.iter_mut().map(|(_, value)| value)) {
                *field = field.take().filter(|text| !text.is_empty());
            }
        }
        if self.no_void && record.key.is_none() {
            record.value.get_or_insert_default();
        }
        record
    }
}

/// Headers of a record: none at all, or a name that comes twice, an empty value, a null value, and not only ASCII.
fn headers(i: usize) -> Vec<(String, Option<String>)> {
    if i.is_multiple_of(3) {
        return Vec::new();
    }
    vec![
        ("twice".into(), Some(format!("first {i}"))),
        ("twice".into(), Some(format!("second {i}"))),
        ("empty".into(), Some(String::new())),
        ("null".into(), None),
        ("größe".into(), Some("5 µm".into())),
    ]
}

/// Headers of every record that kcat writes.
pub(crate) fn kcat_headers() -> Vec<(String, Option<String>)> {
    vec![
        ("twice".into(), Some("first".into())),
        ("twice".into(), Some("second".into())),
        ("null".into(), None),
    ]
}

/// Adds the lines of a folder's files, and of its folders', until there are enough.
fn collect_folder(folder: &Path, wanted: usize, lines: &mut Vec<String>) {
    // A folder that cannot be read has no lines for us.
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.sort();
    for path in paths {
        if lines.len() >= wanted {
            return;
        }
        if path.is_dir() && !path.is_symlink() {
            collect_folder(&path, wanted, lines);
        } else if let Ok(text) = fs::read_to_string(&path) {
            lines.extend(text.lines().filter(|line| is_plain(line)).map(str::to_string));
        }
    }
}

/// kcat splits its input at tabs and line ends; a line without other control characters survives every tool.
fn is_plain(line: &str) -> bool {
    !line.trim().is_empty() && line.chars().all(|c| c == '\t' || !c.is_control())
}

/// Writes an input file.
pub(crate) fn write_records(path: &Path, records: &[Record]) -> Result<()> {
    let mut out = BufWriter::new(File::create(path).with_context(|| format!("create {}", path.display()))?);
    for record in records {
        serde_json::to_writer(&mut out, record)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Reads an output file.
pub(crate) fn read_records(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let parse = |line: std::io::Result<String>| Ok(serde_json::from_str(&line?)?);
    BufReader::new(file)
        .lines()
        .map(parse)
        .collect::<Result<_>>()
        .with_context(|| format!("read {}", path.display()))
}

/// Checks that the records that were read are those that were written, in the same order in each partition. Their offsets have to count
/// up from 0 without a gap.
pub(crate) fn check_identical(written: &[Record], read: &[Record]) -> Result<()> {
    for partition in 0..PARTITIONS {
        let mut read = read.iter().filter(|record| record.partition == partition);
        let written = written.iter().filter(|record| record.partition == partition);
        for (offset, wanted) in (0..).zip(written) {
            let found =
                read.next().with_context(|| format!("partition {partition} ends before offset {offset}"))?;
            let wanted = Record { offset, ..wanted.clone() };
            ensure!(*found == wanted, "partition {partition}: written {wanted:?}, read {found:?}");
        }
        let surplus = read.next();
        ensure!(surplus.is_none(), "partition {partition}: read, but never written: {surplus:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Record> {
        let text = Text(Arc::new(vec!["a line".into(), "another".into()]));
        text.records(60, Limits::NONE)
    }

    fn as_read(written: &[Record]) -> Vec<Record> {
        let mut ends = [0; PARTITIONS as usize];
        let mut read = written.to_vec();
        for record in &mut read {
            let end = &mut ends[record.partition as usize];
            record.offset = *end;
            *end += 1;
        }
        read
    }

    #[test]
    fn identical_records_pass() {
        check_identical(&sample(), &as_read(&sample())).unwrap();
    }

    #[test]
    fn a_lost_a_repeated_a_changed_and_a_reordered_record_fail() {
        let written = sample();
        let good = as_read(&written);
        let mut lost = good.clone();
        lost.remove(30);
        let mut repeated = good.clone();
        repeated.push(good[59].clone());
        let mut changed = good.clone();
        changed[31].headers.reverse();
        let mut reordered = good.clone();
        reordered.swap(6, 12);
        for bad in [lost, repeated, changed, reordered] {
            check_identical(&written, &bad).unwrap_err();
        }
    }
}
