//! The text format that Prometheus scrapes (0.0.4).

use std::fmt::Write;

/// A metric's kind as Prometheus names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Samples of the names `_bucket` (with a label `le`), `_sum` and `_count`.
    Histogram,
}

/// Metrics as they are written: each described once, then its samples.
///
/// ```
/// use mainstem_operator::{Exposition, Kind};
///
/// let mut text = Exposition::default();
/// text.describe("lag", Kind::Gauge, "Messages that are to be handled.");
/// text.sample("lag", &[("topic", "orders")], 3.0);
/// assert!(text.into_text().ends_with("# TYPE lag gauge\nlag{topic=\"orders\"} 3\n"));
/// ```
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a metric.
    pub fn describe(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the metric that was described last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (rank, (label, text)) in labels.iter().enumerate() {
            let open = if rank == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"");
            self.escape(text);
            self.0.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    /// A metric of one sample without labels.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.describe(name, kind, help);
        self.sample(name, &[], value);
    }

    /// All that was written.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Clients choose some of the texts.
    fn escape(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_clients_stay_within_their_quotes() {
        let mut text = Exposition::default();
        text.describe("a", Kind::Gauge, "An a.");
        text.sample("a", &[("x", "1\"2\\3\n4"), ("y", "z")], 0.5);
        text.one("b", Kind::Counter, "A b.", 3.0);
        assert_eq!(
            text.into_text(),
            "# HELP a An a.\n# TYPE a gauge\na{x=\"1\\\"2\\\\3\\n4\",y=\"z\"} 0.5\n\
             # HELP b A b.\n# TYPE b counter\nb 3\n"
        );
    }
}
