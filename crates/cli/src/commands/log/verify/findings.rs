//! Results of a check.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::output::{bytes, counted};

/// A fault of a file, or a remark about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) file: PathBuf,
    /// The position in the file, in bytes.
    pub(crate) position: Option<u64>,
    pub(crate) what: String,
}

/// All findings, and counts of the files that were checked.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) partitions: u64,
    pub(crate) segments: u64,
    pub(crate) batches: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) faults: Vec<Finding>,
    /// Remarks: faults that a broker repairs by itself.
    pub(crate) notes: Vec<Finding>,
}

impl Findings {
    /// Adds a fault.
    pub(crate) fn fault(&mut self, file: &Path, position: Option<u64>, what: impl Into<String>) {
        self.faults.push(Finding { file: file.to_path_buf(), position, what: what.into() });
    }

    /// Adds a remark.
    pub(crate) fn note(&mut self, file: &Path, position: Option<u64>, what: impl Into<String>) {
        self.notes.push(Finding { file: file.to_path_buf(), position, what: what.into() });
    }

    /// The findings for programs.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "partitions": self.partitions,
            "segments": self.segments,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "faults": self.faults.iter().map(Finding::to_json).collect::<Value>(),
            "notes": self.notes.iter().map(Finding::to_json).collect::<Value>(),
        })
    }

    /// The findings for people.
    pub(crate) fn to_text(&self) -> String {
        let mut lines: Vec<String> =
            self.faults.iter().map(|fault| format!("fault: {}", fault.to_text())).collect();
        lines.extend(self.notes.iter().map(|note| format!("note: {}", note.to_text())));
        lines.push(format!(
            "{}, {}, {}, {}, {}: {}",
            counted(self.partitions, "partition"),
            counted(self.segments, "segment"),
            counted(self.batches, "batch"),
            counted(self.records, "record"),
            bytes(self.bytes),
            match self.faults.len() as u64 {
                0 => "no fault".to_owned(),
                count => counted(count, "fault"),
            }
        ));
        lines.join("\n")
    }
}

impl Finding {
    fn to_json(&self) -> Value {
        json!({"file": self.file.display().to_string(), "position": self.position, "what": self.what})
    }

    fn to_text(&self) -> String {
        let position = self.position.map_or(String::new(), |position| format!(" at byte {position}"));
        format!("{}{position}: {}", self.file.display(), self.what)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn text() {
        let mut findings =
            Findings { partitions: 1, segments: 2, batches: 3, records: 1, ..Findings::default() };
        expect!["1 partition, 2 segments, 3 batches, 1 record, 0 B: no fault"].assert_eq(&findings.to_text());
        findings.fault(Path::new("t-0/x.log"), Some(61), "checksum");
        findings.note(Path::new("t-0/x.index"), None, "missing");
        expect![[r#"
            fault: t-0/x.log at byte 61: checksum
            note: t-0/x.index: missing
            1 partition, 2 segments, 3 batches, 1 record, 0 B: 1 fault"#]]
        .assert_eq(&findings.to_text());
    }
}
