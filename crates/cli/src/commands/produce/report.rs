//! The output of `produce`: progress on a terminal, and the result.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::input::stdin_file_bytes;
use super::sender::Totals;
use crate::output::{bytes, counted, print, print_json};

/// A progress line on the terminal; nothing elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows progress from now on. A file has a length, a pipe has none.
    pub(crate) fn start() -> Self {
        let (bar, template) = match stdin_file_bytes() {
            Some(length) => (ProgressBar::new(length), "{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {msg}"),
        };
        let style = ProgressStyle::with_template(template).expect("the template is constant");
        if io::stdin().is_terminal() {
            // At a terminal the line would get in the way of typing.
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar: bar.with_style(style) }
    }

    /// Shows the progress.
    pub(crate) fn show(&self, totals: &Totals, input_bytes: u64) {
        self.bar.set_message(format!("{} acknowledged", counted(totals.acknowledged, "record")));
        self.bar.set_position(input_bytes);
    }

    /// Removes the line.
    pub(crate) fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints the result.
pub(crate) fn report(topic: &str, totals: &Totals, took: Duration, json: bool) -> Result<()> {
    match json {
        true => print_json(&to_json(topic, totals, took)),
        false => print(&to_text(topic, totals, took)),
    }
}

fn to_json(topic: &str, totals: &Totals, took: Duration) -> Value {
    let range = |(partition, (first, last)): (&i32, &(i64, i64))| json!({"partition": partition, "first_offset": first, "last_offset": last});
    json!({
        "topic": topic,
        "records": totals.records,
        "acknowledged": totals.acknowledged,
        "bytes": totals.bytes,
        "took_ms": took.as_secs_f64() * 1e3,
        "partitions": totals.offsets.iter().map(range).collect::<Value>(),
    })
}

fn to_text(topic: &str, totals: &Totals, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let count = match totals.records == totals.acknowledged {
        true => format!("{} to {topic} acknowledged", counted(totals.records, "record")),
        false => {
            format!("only {} of {} records to {topic} acknowledged", totals.acknowledged, totals.records)
        }
    };
    let rate = totals.acknowledged as f64 / seconds.max(1e-9);
    format!("{count}: {} in {seconds:.3} s, {rate:.0} records/s", bytes(totals.bytes))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn totals(acknowledged: u64) -> Totals {
        Totals { records: 2000, acknowledged, bytes: 4096, offsets: [(1, (5, 2004))].into() }
    }

    #[test]
    fn texts() {
        let took = Duration::from_millis(500);
        expect!["2000 records to t acknowledged: 4.00 KiB in 0.500 s, 4000 records/s"].assert_eq(&to_text(
            "t",
            &totals(2000),
            took,
        ));
        expect!["only 1999 of 2000 records to t acknowledged: 4.00 KiB in 0.500 s, 3998 records/s"]
            .assert_eq(&to_text("t", &totals(1999), took));
        expect![[r#"{"acknowledged":1,"bytes":4096,"partitions":[{"first_offset":5,"last_offset":2004,"partition":1}],"records":2000,"took_ms":500.0,"topic":"t"}"#]]
            .assert_eq(&to_json("t", &totals(1), took).to_string());
    }

    #[test]
    fn a_missing_acknowledgement_fails() {
        assert!(totals(2000).require_all().is_ok());
        let error = totals(1998).require_all().unwrap_err().to_string();
        assert_eq!(error, "2 of 2000 records were not acknowledged");
    }
}
