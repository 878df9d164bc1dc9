//! The summary of many runs: medians, ranges, ratios, goals. No I/O; `markdown.rs` shows it to people.

use serde::Serialize;
use serde_json::Value;

use crate::broker::System;
use crate::figures::{FIGURES, Figure};
use crate::goals::{Divisor, Goal, goals};
use crate::machine::BUSY_CPUS_MAX;
use crate::results::{Results, Run};
use crate::stats::Spread;
use crate::workload::{Durability, Workload};

/// All that was measured in one folder.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The description of the machine and the options.
    pub about: Value,
    /// One for each workload and durability.
    pub cells: Vec<Cell>,
    /// Runs without figures: (run, reason).
    pub failed: Vec<(String, String)>,
    /// Runs beside which others used the CPUs: (run, number of CPUs).
    pub disturbed: Vec<(String, f64)>,
}

/// One workload with one durability.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The name of the workload.
    pub workload: String,
    /// The name of the durability.
    pub durability: String,
    /// The systems, in the order of the columns.
    pub systems: Vec<String>,
    /// The figures, in the order of the rows.
    pub rows: Vec<Row>,
    /// The goals, and the verdicts on them.
    pub goals: Vec<GoalLine>,
    /// The names of its plots, without their folder and type.
    pub plots: Vec<String>,
}

/// One figure of a cell.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The figure's key.
    pub key: &'static str,
    /// The figure's name for people, with its unit.
    pub title: &'static str,
    /// Digits behind the point.
    pub digits: usize,
    /// True for a figure of the system, false for a circumstance of the run.
    pub is_of_system: bool,
    /// Spreads by system, in the order of the columns; none if it was not measured.
    pub values: Vec<Option<Spread>>,
    /// Ratios of systems to peers.
    pub ratios: Vec<Ratio>,
}

/// The ratio of a system to a peer.
#[derive(Debug, Serialize)]
pub struct Ratio {
    /// The system whose figure is above the line.
    pub system: String,
    /// The system whose figure is below it.
    pub peer: String,
    /// The ratio of the medians, and the range of the ratios within each round.
    pub ratio: Spread,
}

/// A goal and the verdict on it.
#[derive(Debug, Serialize)]
pub struct GoalLine {
    /// The system that it is set for.
    pub system: String,
    /// The goal in words.
    pub goal: String,
    /// The value that is compared with it.
    pub value: f64,
    /// True if the value is a ratio.
    pub is_ratio: bool,
    /// True if the goal is reached.
    pub is_reached: bool,
}

/// Sums up runs. The names of each cell's plots are added by the code that draws them.
pub fn summarize(results: &Results) -> Summary {
    let runs = &results.runs;
    let failed = runs.iter().filter_map(|run| Some((run.name(), run.error.clone()?)));
    let others = |run: &Run| run.figure("other_cpus").filter(|&cpus| cpus > BUSY_CPUS_MAX);
    let disturbed = runs.iter().filter_map(|run| Some((run.name(), others(run)?)));
    let mut keys: Vec<(usize, usize, &Run)> =
        runs.iter().map(|run| (durability_rank(run), workload_rank(run), run)).collect();
    keys.sort_by_key(|&(durability, workload, run)| (durability, workload, run.workload.clone()));
    keys.dedup_by_key(|&mut (durability, _, run)| (durability, run.workload.clone()));
    let cells = keys.into_iter().map(|(_, _, run)| summarize_cell(runs, run));
    Summary {
        about: results.about.clone(),
        cells: cells.filter(|cell| !cell.rows.is_empty()).collect(),
        failed: failed.collect(),
        disturbed: disturbed.collect(),
    }
}

fn durability_rank(run: &Run) -> usize {
    Durability::ALL.iter().position(|durability| durability.name() == run.durability).unwrap_or(usize::MAX)
}

fn workload_rank(run: &Run) -> usize {
    Workload::all().iter().position(|workload| workload.name() == run.workload).unwrap_or(usize::MAX)
}

/// The cell to which a run belongs.
fn summarize_cell(all: &[Run], of: &Run) -> Cell {
    let runs: Vec<&Run> = all
        .iter()
        .filter(|run| run.workload == of.workload && run.durability == of.durability && run.error.is_none())
        .collect();
    let cached = all.iter().filter(|run| {
        run.workload == of.workload && run.durability == Durability::PageCache.name() && run.error.is_none()
    });
    let cached: Vec<&Run> = cached.collect();
    let is_there = |system: &System| runs.iter().any(|run| run.system == system.name());
    let systems: Vec<System> = System::ALL.into_iter().filter(is_there).collect();
    let rows: Vec<Row> = FIGURES.iter().filter_map(|figure| summarize_row(&runs, figure, &systems)).collect();
    let goals = systems
        .iter()
        .filter(|system| system.is_mainstem())
        .flat_map(|&system| judge((&runs, &cached), of, system))
        .collect();
    Cell {
        workload: of.workload.clone(),
        durability: of.durability.clone(),
        systems: systems.into_iter().map(|system| system.name().to_owned()).collect(),
        rows,
        goals,
        plots: Vec::new(),
    }
}

fn summarize_row(runs: &[&Run], figure: &Figure, systems: &[System]) -> Option<Row> {
    let values: Vec<_> = systems.iter().map(|&system| Spread::of(values(runs, figure.key, system))).collect();
    values.iter().any(Option::is_some).then(|| Row {
        key: figure.key,
        title: figure.title,
        digits: figure.digits,
        is_of_system: figure.is_of_system,
        values,
        ratios: if figure.is_of_system { ratios(runs, figure.key, systems) } else { Vec::new() },
    })
}

/// Returns the ratios of every other system to Kafka or to Chronicle Queue, of all but those to the probe, and of secured systems to
/// unsecured ones.
fn ratios(runs: &[&Run], key: &str, systems: &[System]) -> Vec<Ratio> {
    let ours = || systems.iter().copied().filter(|&system| !system.is_peer());
    let pairs = [System::Kafka, System::Chronicle, System::Probe]
        .into_iter()
        .flat_map(|peer| ours().filter(move |&system| system != peer).map(move |system| (system, peer)));
    let secured = [
        (System::MainstemSecured, System::KafkaSecured),
        (System::MainstemSecured, System::Mainstem),
        (System::KafkaSecured, System::Kafka),
    ];
    let ratios = pairs.chain(secured).filter_map(|(system, peer)| {
        let ratio = ratio((runs, system, key), (runs, peer, key))?;
        Some(Ratio { system: system.name().to_owned(), peer: peer.name().to_owned(), ratio })
    });
    ratios.collect()
}

/// Returns the ratio of a system's figure to a peer's, over the rounds in which both were measured; each among its own runs.
fn ratio(ours: (&[&Run], System, &str), theirs: (&[&Run], System, &str)) -> Option<Spread> {
    let value = |round, (runs, system, key): (&[&Run], System, &str)| {
        let run = runs.iter().find(|run| run.round == round && run.system == system.name())?;
        run.figure(key)
    };
    let rounds = 1..=ours.0.iter().map(|run| run.round).max()?;
    let both = rounds.filter_map(|round| Some((value(round, ours)?, value(round, theirs)?)));
    let (ours, theirs): (Vec<f64>, Vec<f64>) = both.unzip();
    Spread::ratio(&ours, &theirs)
}

/// One value for each round, in order.
fn values(runs: &[&Run], key: &str, system: System) -> Vec<f64> {
    runs.iter().filter(|run| run.system == system.name()).filter_map(|run| run.figure(key)).collect()
}

/// Judges the goals for the runs of one workload and durability, beside those of the same workload in the page cache.
fn judge((runs, cached): (&[&Run], &[&Run]), of: &Run, system: System) -> Vec<GoalLine> {
    let durability = Durability::parse(&of.durability).unwrap_or(Durability::PageCache);
    let median = |key: &str| Some(Spread::of(values(runs, key, system))?.median);
    let mut lines = Vec::new();
    for figure in FIGURES {
        let Some(ours) = median(figure.key) else { continue };
        let ratio = |divisor: Divisor| {
            let peer = System::parse(divisor.peer).ok()?;
            let theirs = if divisor.durability == Some(Durability::PageCache) { cached } else { runs };
            ratio((runs, system, figure.key), (theirs, peer, divisor.key.unwrap_or(figure.key)))
        };
        let judge = |goal: Goal| Some((goal, goal.judge(ours, ratio, median)?));
        for goal in goals(&of.workload, figure.key, durability) {
            let judged = judge(goal).or_else(|| judge(goal.instead()?));
            let Some((goal, (value, is_reached))) = judged else { continue };
            lines.push(GoalLine {
                system: system.name().to_owned(),
                goal: format!("{} {}", figure.title, goal.describe()),
                value,
                is_ratio: goal.is_ratio(),
                is_reached,
            });
        }
    }
    lines
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A run of a load with a few figures.
    pub(crate) fn run(system: System, round: usize, messages: f64, hwm: f64) -> Run {
        let figures = [("messages_per_s", messages), ("vm_hwm_mib", hwm), ("other_cpus", 0.01)];
        Run {
            system: system.name().to_owned(),
            workload: "small-msg-saturate".to_owned(),
            durability: "page-cache".to_owned(),
            round,
            figures: figures.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Run::default()
        }
    }

    /// Two rounds of Kafka and Mainstem, and a third in which Kafka failed.
    pub(crate) fn results() -> Results {
        let mut runs = vec![
            run(System::Kafka, 1, 10_000.0, 900.0),
            run(System::Mainstem, 1, 35_000.0, 12.0),
            run(System::Kafka, 2, 12_000.0, 910.0),
            run(System::Mainstem, 2, 40_000.0, 20.25),
            run(System::Mainstem, 3, 36_000.0, 12.0),
        ];
        runs[3].figures.insert("other_cpus".to_owned(), 0.4);
        let failed = Run { error: Some("it died".to_owned()), ..run(System::Kafka, 3, 1.0, 1.0) };
        runs.push(Run { figures: Default::default(), ..failed });
        Results { about: json!({ "commit": "abc" }), runs }
    }

    #[test]
    fn medians_are_of_all_runs_and_ratios_of_rounds_with_both() {
        let summary = summarize(&results());
        let cell = &summary.cells[0];
        assert_eq!(cell.systems, ["kafka", "mainstem"]);
        let row = &cell.rows[0];
        assert_eq!((row.key, row.values[1].unwrap().median), ("messages_per_s", 36_000.0));
        let ratio = &row.ratios[0];
        assert_eq!((ratio.system.as_str(), ratio.peer.as_str()), ("mainstem", "kafka"));
        assert!((ratio.ratio.median - 37_500.0 / 11_000.0).abs() < 1e-9);
        assert!((ratio.ratio.max - 3.5).abs() < 1e-9);
        assert_eq!(
            summary.failed,
            [("small-msg-saturate, page-cache, round 3, kafka".into(), "it died".into())]
        );
        assert_eq!(summary.disturbed, [("small-msg-saturate, page-cache, round 2, mainstem".into(), 0.4)]);
    }

    #[test]
    fn goals_are_judged_where_the_peer_was_measured() {
        let summary = summarize(&results());
        let judged: Vec<_> =
            summary.cells[0].goals.iter().map(|line| (line.goal.as_str(), line.is_reached)).collect();
        assert_eq!(judged, [("messages/s >= 3x kafka", true), ("VmHWM, MiB <= 16", true)]);
    }

    /// A run with fsync: the p99 of acknowledgements, and that of one fdatasync under the key that says when it was measured.
    fn run_on_disk(system: System, round: usize, ack: f64, (key, sync): (&str, f64)) -> Run {
        let figures = [("ack_p99_us", ack), (key, sync)];
        Run {
            workload: "fixed-rate-2000".to_owned(),
            durability: "fsync".to_owned(),
            figures: figures.map(|(key, value)| (key.to_owned(), value)).into(),
            ..run(system, round, 1.0, 1.0)
        }
    }

    fn goals_of(runs: Vec<Run>) -> Vec<(String, f64, bool)> {
        let summary = summarize(&Results { about: json!({}), runs });
        let lines = summary.cells[0].goals.iter();
        lines.map(|line| (line.goal.clone(), line.value, line.is_reached)).collect()
    }

    #[test]
    fn latencies_on_the_disk_are_judged_by_what_a_sync_costs_under_the_load_of_the_same_round() {
        let (idle, loaded) = ("fdatasync_p99_us", "fdatasync_loaded_p99_us");
        let mut runs = vec![
            run_on_disk(System::Mainstem, 1, 300.0, (idle, 100.0)),
            run_on_disk(System::Mainstem, 2, 300.0, (idle, 100.0)),
            // It does not count, as no other run is of its round.
            run_on_disk(System::Mainstem, 3, 9_000.0, (idle, 100.0)),
            run_on_disk(System::Probe, 1, 220.0, (loaded, 200.0)),
            run_on_disk(System::Probe, 2, 280.0, (loaded, 300.0)),
        ];
        let goal = |words: &str| format!("ack p99, us <= 1.5x the p99 of one fdatasync {words}");
        assert_eq!(goals_of(runs.clone()), [(goal("under the load"), 1.2, true)]);
        // Runs of an older version, or without the probe, have the idle disk alone.
        runs.retain(|run| run.system == "mainstem");
        let idle_goal = goal("on the idle disk (no probe reported one under the load)");
        assert_eq!(goals_of(runs), [(idle_goal, 3.0, false)]);
    }

    #[test]
    fn what_is_on_the_disk_is_compared_with_what_is_in_the_page_cache_of_the_same_round() {
        let run = |system, durability: Durability, round, messages| Run {
            workload: "replicated-closed".to_owned(),
            durability: durability.name().to_owned(),
            ..run(system, round, messages, 1.0)
        };
        let runs = vec![
            run(System::Kafka, Durability::PageCache, 1, 1_000.0),
            run(System::Kafka, Durability::PageCache, 2, 2_000.0),
            run(System::Kafka, Durability::Fsync, 1, 500.0),
            run(System::Mainstem, Durability::Fsync, 1, 1_900.0),
            run(System::Mainstem, Durability::Fsync, 3, 9_000.0),
        ];
        let summary = summarize(&Results { about: json!({}), runs });
        let lines = summary.cells.iter().flat_map(|cell| &cell.goals);
        let judged: Vec<_> = lines.map(|line| (line.goal.as_str(), line.value, line.is_reached)).collect();
        let goals = [
            ("messages/s >= 2x kafka in the page cache", 1.9, false),
            ("messages/s >= 4x kafka", 3.8, false),
        ];
        assert_eq!(judged, goals);
    }

    #[test]
    fn cells_stand_in_the_order_of_the_workloads() {
        let mut results = results();
        for (workload, durability) in
            [("start", "page-cache"), ("pipelined-small", "fsync"), ("other", "fsync")]
        {
            let run = run(System::Mainstem, 1, 1.0, 1.0);
            results.runs.push(Run { workload: workload.into(), durability: durability.into(), ..run });
        }
        let summary = summarize(&results);
        let names: Vec<_> = summary.cells.iter().map(|cell| cell.workload.as_str()).collect();
        assert_eq!(names, ["small-msg-saturate", "start", "pipelined-small", "other"]);
    }
}
