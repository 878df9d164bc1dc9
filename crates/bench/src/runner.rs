//! Makes the runs of a benchmark, keeps each as soon as it is done, and writes the report.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::broker::{KAFKA_VERSION, System};
use crate::cases::{Case, Extent, Measured};
use crate::clock;
use crate::embedded::chronicle::VERSION as CHRONICLE_VERSION;
use crate::environment::{self, Environment, Needs, Settings};
use crate::figures;
use crate::filler::Filler;
use crate::machine;
use crate::plan::{Forecast, Selection, Step};
use crate::progress::Progress;
use crate::report::report;
use crate::results::{ABOUT, Run, write_json};
use crate::summary::Summary;

/// The runs to make, their extent, and the folder for the results.
#[derive(Debug, Clone)]
pub struct Order {
    /// The selection of runs.
    pub selection: Selection,
    /// The extent of each run.
    pub extent: Extent,
    /// An empty folder, which is made if it is not there.
    pub out: PathBuf,
    /// True to measure on a busy machine.
    pub force: bool,
    /// True to fill the memory with pages of files before each run.
    pub fill_memory: bool,
}

/// The default folder for results.
pub fn default_out() -> PathBuf {
    PathBuf::from(format!("bench/results/{}-{}-cores", clock::today(), machine::cpus()))
}

/// Makes all runs, then the report. If a run fails, or the machine does not become quiet before it, the others are made all the same.
///
/// # Errors
/// If nothing can be measured: the machine is busy to begin with, the folder is not empty, a program is missing, no run was asked for.
pub fn run(order: &Order, settings: &Settings) -> Result<Summary> {
    let steps = order.selection.steps();
    ensure!(
        !steps.is_empty(),
        "there is nothing to run: none of the workloads applies to the systems and durabilities (`mainstem-bench list` \
         says which do)"
    );
    prepare_out(&order.out)?;
    let environment = Environment::prepare(settings, &order.selection.systems, needs(&steps))?;
    if let Some(kafka) = &environment.kafka {
        eprintln!("Apache Kafka {KAFKA_VERSION} runs on {}", kafka.java.version);
    }
    if let Some(chronicle) = &environment.chronicle {
        eprintln!("Chronicle Queue {CHRONICLE_VERSION} runs on {}", chronicle.java.version);
    }
    if !order.force {
        machine::require_quiet()?;
    }
    write_json(&order.out.join(ABOUT), &about(order, &environment))?;
    let mut filler = order.fill_memory.then(|| Filler::new(&environment.data_root)).transpose()?;
    let progress = Progress::start(steps.len(), Forecast::new(&steps, &order.extent));
    for step in &steps {
        progress.begin(step);
        filler.as_mut().map_or(Ok(()), Filler::fill)?;
        let get_quiet = || if order.force { Ok(()) } else { machine::wait_until_quiet() };
        let (system, durability) = (step.system, step.durability);
        let case = Case { environment: &environment, system, durability, extent: order.extent };
        let run = make(step, get_quiet, || case.run(step.workload));
        run.write(&order.out)?;
        let headline = run
            .error
            .clone()
            .map_or_else(|| figures::headline(|key| run.figure(key)), |error| format!("FAILED: {error}"));
        progress.end(step, &headline);
    }
    drop(progress);
    report(&order.out)
}

fn needs(steps: &[Step]) -> Needs {
    Needs {
        kafka: steps.iter().any(|step| step.system.is_kafka() || step.workload.needs_kafka_tools()),
        chronicle: steps.iter().any(|step| step.system == System::Chronicle),
    }
}

/// Makes the folder, which has to be empty: results of two benchmarks in it would be summed up as one.
fn prepare_out(out: &Path) -> Result<()> {
    fs::create_dir_all(out)
        .with_context(|| format!("{} cannot be made: choose another folder by --out", out.display()))?;
    let is_empty = fs::read_dir(out)?.next().is_none();
    ensure!(
        is_empty,
        "{} is not empty, and what is measured is not mixed with other things: choose another folder by --out",
        out.display()
    );
    Ok(())
}

/// Makes a run once the machine is quiet. Returns its results, or the reason why it failed or was not tried.
fn make(
    step: &Step,
    get_quiet: impl FnOnce() -> Result<()>,
    measure: impl FnOnce() -> Result<Measured>,
) -> Run {
    let mut run = Run {
        system: step.system.name().to_owned(),
        workload: step.workload.name().to_owned(),
        durability: step.durability.name().to_owned(),
        round: step.round,
        ..Run::default()
    };
    match get_quiet().and_then(|()| measure()) {
        Ok(measured) => {
            run.figures = measured.figures;
            run.curves = measured.curves;
            run.samples = measured.samples;
            run.notes = measured.notes;
        }
        Err(error) => run.error = Some(format!("{error:#}")),
    }
    run
}

/// Returns the description of the machine and the options, for readers of the figures.
fn about(order: &Order, environment: &Environment) -> Value {
    let kafka = environment.kafka.as_ref();
    let names = |systems: &[System]| systems.iter().map(|system| system.name()).collect::<Vec<_>>();
    json!({
        "date": clock::today(),
        "machine": machine::describe(),
        "commit": environment::commit(),
        "mainstem": env!("CARGO_PKG_VERSION"),
        "kafka": kafka.map(|kafka| json!({ "version": KAFKA_VERSION, "java": kafka.java.version })),
        "chronicle": environment.chronicle.as_ref().map(|chronicle| {
            json!({ "version": CHRONICLE_VERSION, "java": chronicle.java.version })
        }),
        "mainstem_settings": environment.mainstem_settings,
        "systems": names(&order.selection.systems),
        "rounds": order.selection.rounds,
        "warmup_s": order.extent.warmup.as_secs_f64(),
        "window_s": order.extent.window.as_secs_f64(),
        "records": order.extent.records,
        "killed_mib": order.extent.killed_mib,
        "soak_s": order.extent.soak.as_secs_f64(),
        "cold_mib": order.extent.cold_mib,
        "measured_on_a_busy_machine": order.force,
        "memory_filled": order.fill_memory,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::workload::{Durability, Workload};

    #[test]
    fn results_go_to_a_folder_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        prepare_out(&folder.path().join("new/folder")).unwrap();
        write_json(&folder.path().join(ABOUT), &json!({})).unwrap();
        assert!(prepare_out(folder.path()).unwrap_err().to_string().contains("--out"));
    }

    #[test]
    fn a_run_is_made_on_a_quiet_machine_or_says_why_not() {
        let workload = Workload::parse("start").unwrap();
        let step = Step { durability: Durability::PageCache, workload, round: 2, system: System::Mainstem };
        let measured = || Ok(Measured::of([("first_ack_ms", 9.5)]));
        let run = make(&step, || Ok(()), measured);
        assert_eq!((run.figure("first_ack_ms"), run.round, &run.error), (Some(9.5), 2, &None));
        let run = make(&step, || bail!("the machine is busy"), || unreachable!("measured on a busy machine"));
        assert_eq!((run.error.as_deref(), run.figures.len()), (Some("the machine is busy"), 0));
    }

    #[test]
    fn kafka_is_needed_for_itself_and_for_its_tools() {
        let needs = |name: &str, systems: &[System]| {
            let selection = Selection {
                systems: systems.to_vec(),
                workloads: vec![Workload::parse(name).unwrap()],
                durabilities: vec![Durability::PageCache],
                rounds: 1,
            };
            super::needs(&selection.steps()).kafka
        };
        assert!(!needs("small-msg-saturate", &[System::Mainstem, System::Probe]));
        assert!(needs("small-msg-saturate", &[System::Kafka]));
        assert!(needs("bandwidth-out", &[System::Mainstem]));
        assert!(!needs("bandwidth-out", &[System::Probe]));
    }
}
