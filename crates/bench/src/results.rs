//! Runs as they are stored: workload and system, figures, curves. One file of a workload and a durability holds its runs. Each is a line of
//! JSON and a member of the gzip stream (`zcat` prints them), so that a run can be appended.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file beside the runs that describes the machine and the options.
pub(crate) const ABOUT: &str = "about.json";
/// The suffix of the names of files of runs.
const RUNS: &str = ".jsonl.gz";

/// A run of one workload on one system. Files of older versions have neither curves nor notes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    /// The name of a system.
    pub system: String,
    /// The name of a workload.
    pub workload: String,
    /// The name of a durability.
    pub durability: String,
    /// The round, from 1.
    pub round: usize,
    /// The reason why there are no figures, if the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Figures by their keys, which `docs/benchmarks.md` explains.
    pub figures: BTreeMap<String, f64>,
    /// Latencies by percentile.
    #[serde(default, skip_serializing_if = "Curves::is_empty")]
    pub curves: Curves,
    /// Samples in the course of the run.
    #[serde(default, skip_serializing_if = "Samples::is_empty")]
    pub samples: Samples,
    /// Remarks for a reader of the figures, such as why a heap was too small.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Latency curves: (percentile, microseconds), ascending.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Latencies from the send (by schedule: the instant when it was due) to the acknowledgement.
    pub ack_us: Vec<(f64, f64)>,
    /// Latencies from there to the arrival at the consumer.
    pub end_to_end_us: Vec<(f64, f64)>,
}

impl Curves {
    fn is_empty(&self) -> bool {
        self.ack_us.is_empty() && self.end_to_end_us.is_empty()
    }
}

/// Samples in the course of a run; all three lists have one value for each sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Seconds since the load began.
    pub at_s: Vec<f64>,
    /// Records acknowledged since then.
    pub messages: Vec<u64>,
    /// Resident memory of the broker.
    pub rss_mib: Vec<f64>,
}

impl Samples {
    fn is_empty(&self) -> bool {
        self.at_s.is_empty()
    }

    /// Returns (seconds, messages per second) between each two samples.
    pub(crate) fn throughput(&self) -> Vec<(f64, f64)> {
        let points: Vec<_> = self.at_s.iter().zip(&self.messages).collect();
        let rates = points.windows(2).filter_map(|pair| {
            let &[(&begin_s, &before), (&end_s, &after)] = pair else { return None };
            let seconds = end_s - begin_s;
            (seconds > 0.0).then(|| (end_s, after.saturating_sub(before) as f64 / seconds))
        });
        rates.collect()
    }

    /// Returns (seconds, MiB) of each sample.
    pub(crate) fn memory(&self) -> Vec<(f64, f64)> {
        self.at_s.iter().copied().zip(self.rss_mib.iter().copied()).collect()
    }
}

impl Run {
    /// A figure by its key.
    pub fn figure(&self, key: &str) -> Option<f64> {
        self.figures.get(key).copied()
    }

    /// Returns its name for people, which is different for all runs of a folder.
    pub(crate) fn name(&self) -> String {
        format!("{}, {}, round {}, {}", self.workload, self.durability, self.round, self.system)
    }

    /// The file that holds it and the others of its workload and durability.
    fn file_name(&self) -> String {
        format!("{}-{}{RUNS}", self.workload, self.durability)
    }

    /// Appends the run to its file in a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(self.file_name());
        self.append(&path)
            .with_context(|| format!("{} cannot be written: choose another folder by --out", path.display()))
    }

    fn append(&self, path: &Path) -> Result<()> {
        let file = File::options().create(true).append(true).open(path)?;
        let mut member = GzEncoder::new(file, Compression::best());
        serde_json::to_writer(&mut member, self)?;
        member.write_all(b"\n")?;
        member.finish()?;
        Ok(())
    }
}

/// The runs of one file.
fn read_runs(path: &Path) -> Result<Vec<Run>> {
    let lines = BufReader::new(MultiGzDecoder::new(BufReader::new(File::open(path)?))).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// Writes JSON for people: an object has a line for each key, a list is one line.
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<()> {
    let mut text = String::new();
    layout(value, 0, &mut text);
    text.push('\n');
    fs::write(path, text)
        .with_context(|| format!("{} cannot be written: choose another folder by --out", path.display()))
}

fn layout(value: &Value, depth: usize, text: &mut String) {
    let Value::Object(map) = value else {
        text.push_str(&value.to_string());
        return;
    };
    text.push('{');
    for (index, (key, value)) in map.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.push_str(&"  ".repeat(depth + 1));
        text.push_str(&format!("{}: ", Value::from(key.as_str())));
        layout(value, depth + 1, text);
    }
    if !map.is_empty() {
        text.push('\n');
        text.push_str(&"  ".repeat(depth));
    }
    text.push('}');
}

/// The content of a folder of runs.
#[derive(Debug)]
pub struct Results {
    /// The description of the machine and the options; null if it is missing.
    pub about: Value,
    /// The runs, in the order of rounds.
    pub runs: Vec<Run>,
}

impl Results {
    /// Reads all runs of a folder.
    ///
    /// # Errors
    /// If the folder cannot be read, a file of runs contains something else, or there is no run at all.
    pub fn read(folder: &Path) -> Result<Self> {
        let entries = fs::read_dir(folder)
            .with_context(|| format!("{} cannot be read: name a folder of runs", folder.display()))?;
        let (mut about, mut runs) = (Value::Null, Vec::new());
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            let not_ours = || format!("{} is not of a benchmark: take it away", path.display());
            if name == ABOUT {
                about = serde_json::from_slice(&fs::read(&path)?).with_context(not_ours)?;
            } else if name.ends_with(RUNS) {
                runs.extend(read_runs(&path).with_context(not_ours)?);
            }
        }
        anyhow::ensure!(
            !runs.is_empty(),
            "{} holds no runs: name the folder that `mainstem-bench run` wrote by --out",
            folder.display()
        );
        runs.sort_by(|one: &Run, other: &Run| {
            let key =
                |run: &Run| (run.round, run.workload.clone(), run.durability.clone(), run.system.clone());
            key(one).cmp(&key(other))
        });
        Ok(Self { about, runs })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Run {
        Run {
            system: "probe".to_owned(),
            workload: "small-msg-saturate".to_owned(),
            durability: "fsync".to_owned(),
            round: 3,
            figures: BTreeMap::from([("messages_per_s".to_owned(), 12.5)]),
            curves: Curves { ack_us: vec![(50.0, 1.5), (99.0, 2.0)], end_to_end_us: vec![] },
            samples: Samples {
                at_s: vec![0.0, 0.5, 0.5],
                messages: vec![0, 10, 10],
                rss_mib: vec![1.0, 2.0, 2.0],
            },
            notes: vec!["with a heap of 48 MiB: it\nended".to_owned()],
            ..Run::default()
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        run().write(folder.path()).unwrap();
        write_json(&folder.path().join(ABOUT), &json!({ "commit": "abc" })).unwrap();
        let results = Results::read(folder.path()).unwrap();
        assert_eq!(results.about["commit"], "abc");
        assert_eq!(results.runs.len(), 1);
        let read = &results.runs[0];
        assert_eq!(read.name(), "small-msg-saturate, fsync, round 3, probe");
        assert_eq!((read.figure("messages_per_s"), read.figure("none")), (Some(12.5), None));
        assert_eq!((&read.curves, &read.samples), (&run().curves, &run().samples));
        assert_eq!(read.notes, run().notes);
    }

    #[test]
    fn a_run_of_an_older_version_is_read() {
        let text =
            r#"{"system":"kafka","workload":"start","durability":"page-cache","round":1,"figures":{}}"#;
        let run: Run = serde_json::from_str(text).unwrap();
        assert_eq!((run.round, run.notes.len(), run.samples.at_s.len()), (1, 0, 0));
    }

    #[test]
    fn what_is_no_run_is_reported_by_name() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Results::read(folder.path()).unwrap_err().to_string().contains("holds no runs"));
        fs::write(folder.path().join("other.jsonl.gz"), "[]").unwrap();
        assert!(Results::read(folder.path()).unwrap_err().to_string().contains("other.jsonl.gz"));
        assert!(Results::read(&folder.path().join("missing")).unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn lists_stay_on_one_line() {
        let mut text = String::new();
        layout(&json!({ "a": [1, 2], "b": { "c": {}, "d": "x\"y" } }), 0, &mut text);
        assert_eq!(text, "{\n  \"a\": [1,2],\n  \"b\": {\n    \"c\": {},\n    \"d\": \"x\\\"y\"\n  }\n}");
    }

    #[test]
    fn throughput_is_between_looks_and_skips_those_at_one_instant() {
        assert_eq!(run().samples.throughput(), [(0.5, 20.0)]);
        assert_eq!(run().samples.memory().len(), 3);
    }
}
