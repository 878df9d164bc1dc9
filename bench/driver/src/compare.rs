//! `compare`: every system in turn, round by round, and a report of all rounds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::broker::{Environment, KAFKA_VERSION, System};
use crate::cases::{Case, Times};
use crate::clock;
use crate::machine;
use crate::options::Options;
use crate::report;
use crate::settings;

/// What to compare.
#[derive(Debug)]
struct Comparison {
    systems: Vec<System>,
    cases: Vec<Case>,
    /// Page cache, fsync, or both.
    durabilities: Vec<bool>,
    rounds: usize,
    times: Times,
    out: PathBuf,
}

/// One run as it is kept: which it was, and its figures.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) system: System,
    pub(crate) case: Case,
    pub(crate) fsync: bool,
    pub(crate) round: usize,
    pub(crate) figures: Map<String, Value>,
}

impl Run {
    pub(crate) fn figure(&self, key: &str) -> Option<f64> {
        self.figures.get(key)?.as_f64()
    }

    fn to_json(&self) -> Value {
        json!({
            "system": self.system.name(),
            "workload": self.case.name(),
            "durability": durability_name(self.fsync),
            "round": self.round,
            "figures": self.figures,
        })
    }

    fn file_name(&self) -> String {
        let (case, durability, system) = (self.case.name(), durability_name(self.fsync), self.system.name());
        format!("{case}-{durability}-{:02}-{system}.json", self.round)
    }
}

pub(crate) fn durability_name(fsync: bool) -> &'static str {
    if fsync { "fsync" } else { "page-cache" }
}

fn parse_durability(name: &str) -> Result<bool> {
    let known = [false, true].into_iter().find(|&fsync| durability_name(fsync) == name);
    known.with_context(|| format!("no durability {name}; there are page-cache and fsync"))
}

/// Runs the subcommand.
pub(crate) fn run(mut options: Options) -> Result<()> {
    let force = options.flag("--force");
    let as_json = options.flag("--json");
    let comparison = Comparison {
        systems: options.list("--systems", System::parse, System::ALL.to_vec())?,
        cases: options.list("--workloads", Case::parse, Case::all())?,
        durabilities: options.list("--durability", parse_durability, vec![false, true])?,
        rounds: options.number("--runs", 5)?,
        times: Times {
            warmup: options.seconds("--warmup", 15.0)?,
            window: options.seconds("--window", 10.0)?,
        },
        out: options.path("--out", format!("bench/results/{}", clock::today()))?,
    };
    let mut environment = settings::environment(&mut options, &comparison.systems)?;
    options.finish()?;
    ensure!(comparison.rounds > 0, "--runs must be at least 1");
    if !force {
        machine::require_quiet()?;
    }
    fs::create_dir_all(&comparison.out)?;
    let head = comparison.head(&environment, force);
    write_json(&comparison.out.join("about.json"), &head)?;
    let runs = comparison.run_all(&mut environment)?;
    let summary = report::summary(&head, &runs, &comparison.systems);
    fs::write(comparison.out.join("SUMMARY.md"), &summary)?;
    if as_json {
        let runs: Vec<_> = runs.iter().map(Run::to_json).collect();
        println!("{:#}", json!({ "about": head, "runs": runs }));
    } else {
        println!("{summary}");
    }
    eprintln!("raw runs and SUMMARY.md are in {}", comparison.out.display());
    Ok(())
}

impl Comparison {
    /// Round by round, so that what disturbs the machine for a while disturbs all systems.
    fn run_all(&self, environment: &mut Environment) -> Result<Vec<Run>> {
        let plan = self.plan();
        let began = Instant::now();
        let mut runs = Vec::with_capacity(plan.len());
        for (done, &(fsync, case, round, system)) in plan.iter().enumerate() {
            let left = time_left(began.elapsed(), done, plan.len());
            eprint!(
                "[{}/{}{left}] {} {} {round} {}: ",
                done + 1,
                plan.len(),
                case.name(),
                durability_name(fsync),
                system.name()
            );
            let run = case.run(environment, system, fsync, self.times);
            let figures = run.with_context(|| format!("{} with {}", case.name(), system.name()))?;
            let run = Run { system, case, fsync, round, figures };
            eprintln!("{}", report::headline(&run));
            write_json(&self.out.join(run.file_name()), &run.to_json())?;
            runs.push(run);
            environment.next_ports();
        }
        Ok(runs)
    }

    fn plan(&self) -> Vec<(bool, Case, usize, System)> {
        let mut plan = Vec::new();
        for &fsync in &self.durabilities {
            for &case in &self.cases {
                for round in 1..=self.rounds {
                    let systems = self.systems.iter().filter(|&&system| case.applies_to(system, fsync));
                    plan.extend(systems.map(|&system| (fsync, case, round, system)));
                }
            }
        }
        plan
    }

    /// What a reader must know beside the figures.
    fn head(&self, environment: &Environment, forced: bool) -> Value {
        let kafka = environment.kafka.as_ref();
        json!({
            "date": clock::today(),
            "machine": machine::describe(),
            "commit": settings::commit(),
            "kafka": kafka.map(|kafka| json!({ "version": KAFKA_VERSION, "java": kafka.java_version })),
            "mainstem_settings": environment.mainstem_settings,
            "rounds": self.rounds,
            "warmup_s": self.times.warmup.as_secs_f64(),
            "window_s": self.times.window.as_secs_f64(),
            "measured_on_a_busy_machine": forced,
        })
    }
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, format!("{value:#}\n")).with_context(|| format!("writing {}", path.display()))
}

/// As the runs so far went; nothing before the first has ended.
fn time_left(elapsed: Duration, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() / done as f64 * (all - done) as f64;
    format!(", {} min {:02} s left", seconds as u64 / 60, seconds as u64 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_interleaved_and_the_probe_only_carries_loads() {
        let comparison = Comparison {
            systems: vec![System::Kafka, System::Probe],
            cases: Case::all(),
            durabilities: vec![false, true],
            rounds: 2,
            times: Times { warmup: Duration::ZERO, window: Duration::ZERO },
            out: PathBuf::new(),
        };
        let plan: Vec<_> = comparison
            .plan()
            .into_iter()
            .map(|(fsync, case, round, system)| (fsync, case.name(), round, system.name()))
            .collect();
        assert_eq!(plan[0], (false, "small-msg-saturate", 1, "kafka"));
        assert_eq!(plan[1], (false, "small-msg-saturate", 1, "probe"));
        assert_eq!(plan[2], (false, "small-msg-saturate", 2, "kafka"));
        assert_eq!(plan[8], (false, "start", 1, "kafka"));
        assert_eq!(plan[9], (false, "start", 2, "kafka"));
        assert_eq!(plan.len(), 8 + 2 + 2 + 8);
    }

    #[test]
    fn time_left_follows_the_runs_that_are_done() {
        assert_eq!(time_left(Duration::from_secs(9), 0, 4), "");
        assert_eq!(time_left(Duration::from_secs(60), 2, 5), ", 1 min 30 s left");
    }
}
