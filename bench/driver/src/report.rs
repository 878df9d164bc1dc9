//! The report: tables in Markdown, ratios first.

use std::fmt::Write;

use serde_json::Value;

use crate::broker::System;
use crate::compare::{Run, durability_name};
use crate::figures::{FIGURES, Figure, Goal};
use crate::stats::Spread;

/// The one line that is printed behind a run.
pub(crate) fn headline(run: &Run) -> String {
    let shown = FIGURES.iter().filter_map(|figure| {
        let value = run.figure(figure.key)?;
        Some(format!("{} {value:.*}", figure.title, figure.digits))
    });
    shown.collect::<Vec<_>>().join("; ")
}

/// The whole report: what was measured where, then each workload.
pub(crate) fn summary(head: &Value, runs: &[Run], systems: &[System]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_head(&mut text, head);
    let mut cells: Vec<(bool, &str)> = Vec::new();
    for run in runs {
        let cell = (run.fsync, run.case.name());
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    for (fsync, workload) in cells {
        let runs: Vec<_> =
            runs.iter().filter(|run| run.fsync == fsync && run.case.name() == workload).collect();
        let cell = Cell { workload, fsync, runs, systems };
        let _ = cell.write(&mut text);
    }
    text
}

fn write_head(text: &mut String, head: &Value) -> std::fmt::Result {
    let machine = &head["machine"];
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    writeln!(text, "# Mainstem against Apache Kafka, {}\n", word(&head["date"]))?;
    writeln!(
        text,
        "Machine: {}, {} CPUs, {}, Linux {}. Commit {}.",
        word(&machine["cpu"]),
        machine["cpus"],
        word(&machine["memory"]),
        word(&machine["kernel"]),
        word(&head["commit"]),
    )?;
    if let Some(kafka) = head["kafka"].as_object() {
        writeln!(text, "Kafka {}, {}, heap 1 GiB, G1.", word(&kafka["version"]), word(&kafka["java"]))?;
    }
    writeln!(
        text,
        "{} interleaved rounds, warm-up {} s, window {} s. Ratios are of medians, [in brackets] the range over the \
         rounds.",
        head["rounds"], head["warmup_s"], head["window_s"]
    )?;
    if head["measured_on_a_busy_machine"] == true {
        writeln!(
            text,
            "\nMeasured with --force: the machine may have been busy, and the figures mean little."
        )?;
    }
    Ok(())
}

/// One workload with one durability.
struct Cell<'a> {
    workload: &'a str,
    fsync: bool,
    runs: Vec<&'a Run>,
    systems: &'a [System],
}

impl Cell<'_> {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        let figures: Vec<_> = FIGURES
            .iter()
            .filter(|figure| self.runs.iter().any(|run| run.figure(figure.key).is_some()))
            .collect();
        let systems: Vec<_> = self.systems.iter().copied().filter(|&system| self.has(system)).collect();
        writeln!(text, "\n## {}, {}\n", self.workload, durability_name(self.fsync))?;
        self.write_ratios(text, &figures, &systems)?;
        self.write_values(text, &figures, &systems)
    }

    fn has(&self, system: System) -> bool {
        self.runs.iter().any(|run| run.system == system)
    }

    /// Ours to Kafka and to the probe, with the goals; without ours, the probe to Kafka.
    fn write_ratios(&self, text: &mut String, figures: &[&Figure], systems: &[System]) -> std::fmt::Result {
        let ours: Vec<_> = systems.iter().copied().filter(|system| *system != System::Kafka).collect();
        let mut pairs = Vec::new();
        for peer in [System::Kafka, System::Probe] {
            let others = ours.iter().filter(|&&system| system != peer && self.has(peer));
            pairs.extend(others.map(|&system| (system, peer)));
        }
        if pairs.is_empty() {
            return Ok(());
        }
        write!(text, "| ratio | goal |")?;
        for (system, peer) in &pairs {
            write!(text, " {} / {} |", system.name(), peer.name())?;
        }
        writeln!(text, "\n|---|---|{}", "---|".repeat(pairs.len()))?;
        for figure in figures.iter().filter(|figure| !figure.key.ends_with("_cpus")) {
            let goal = Goal::of(self.workload, figure.key, self.fsync);
            write!(text, "| {} | {} |", figure.title, goal.map_or_else(String::new, Goal::describe))?;
            for &(system, peer) in &pairs {
                write!(text, " {} |", self.ratio_text(figure, goal, system, peer))?;
            }
            writeln!(text)?;
        }
        writeln!(text)
    }

    fn ratio_text(&self, figure: &Figure, goal: Option<Goal>, system: System, peer: System) -> String {
        let (ours, theirs) = (self.values(figure, system), self.values(figure, peer));
        let Some(ratio) = Spread::ratio(&ours, &theirs) else { return String::new() };
        let mut text = format!("{:.3}x [{:.3}-{:.3}]", ratio.median, ratio.min, ratio.max);
        if let Some(goal) = goal.filter(|_| system.is_mainstem() && peer == System::Kafka) {
            let median = Spread::of(ours).map_or(f64::NAN, |spread| spread.median);
            match goal.is_reached(median, Some(ratio.median)) {
                Some(true) => text.push_str(" reached"),
                Some(false) => text.push_str(" **missed**"),
                None => {}
            }
        }
        text
    }

    fn write_values(&self, text: &mut String, figures: &[&Figure], systems: &[System]) -> std::fmt::Result {
        write!(text, "| median [range] |")?;
        for system in systems {
            write!(text, " {} |", system.name())?;
        }
        writeln!(text, "\n|---|{}", "---|".repeat(systems.len()))?;
        for figure in figures {
            write!(text, "| {} |", figure.title)?;
            for &system in systems {
                let digits = figure.digits;
                match Spread::of(self.values(figure, system)) {
                    Some(Spread { median, min, max }) => {
                        write!(text, " {median:.digits$} [{min:.digits$}-{max:.digits$}] |")?;
                    }
                    None => write!(text, " |")?,
                }
            }
            writeln!(text)?;
        }
        Ok(())
    }

    /// One value per round, in order.
    fn values(&self, figure: &Figure, system: System) -> Vec<f64> {
        let runs = self.runs.iter().filter(|run| run.system == system);
        runs.filter_map(|run| run.figure(figure.key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::cases::Case;

    fn run(system: System, round: usize, messages: f64, hwm: f64) -> Run {
        let mut figures = Map::new();
        figures.insert("messages_per_s".to_owned(), json!(messages));
        figures.insert("vm_hwm_mib".to_owned(), json!(hwm));
        figures.insert("other_cpus".to_owned(), json!(0.01));
        Run { system, case: Case::parse("small-msg-saturate").unwrap(), fsync: false, round, figures }
    }

    #[test]
    fn ratios_come_first_with_goals_and_ranges() {
        let runs = [
            run(System::Kafka, 1, 10_000.0, 900.0),
            run(System::MainstemSame, 1, 35_000.0, 12.0),
            run(System::Kafka, 2, 12_000.0, 910.0),
            run(System::MainstemSame, 2, 40_000.0, 20.25),
        ];
        let text = summary(&json!({}), &runs, &System::ALL);
        for line in [
            "## small-msg-saturate, page-cache",
            "| ratio | goal | mainstem-same / kafka |",
            "| messages/s | >= 3x kafka | 3.409x [3.333-3.500] reached |",
            "| VmHWM, MiB | <= 16 | 0.018x [0.013-0.022] **missed** |",
            "| median [range] | kafka | mainstem-same |",
            "| messages/s | 11000 [10000-12000] | 37500 [35000-40000] |",
            "| CPUs used by others | 0.01 [0.01-0.01] | 0.01 [0.01-0.01] |",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(text.find("| ratio |") < text.find("| median [range] |"));
    }
}
