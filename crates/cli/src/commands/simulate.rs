//! `mainstem simulate`: a cluster with faults, in virtual time, by seed.

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;
use mainstem_simulation::{
    ClusterOptions, FaultKinds, SimulationOptions, Verdict, simulate, simulate_cluster,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::output::{print, print_json};

/// Arguments of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The first seed: equal seeds give equal histories.
    #[arg(long)]
    seed: u64,
    /// The number of seeds, from the first on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Nodes, each with a replica of each partition; at least two without --one-partition.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Seconds of virtual time with faults.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    time: u64,
    /// Kinds of faults with commas between them, `all`, or `none`; `partition` is all whose names begin with it.
    #[arg(long, value_name = "KINDS", num_args = 0..=1, default_value = "all", default_missing_value = "all")]
    faults: FaultKinds,
    /// Simulate one partition with producers and consumers alone: no groups, no transactions.
    #[arg(long)]
    one_partition: bool,
    /// Print every event: time in ms, process, operation, outcome, partition, offset, value.
    #[arg(long)]
    history: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the seeds. Fails if an invariant was violated in one of them.
pub(crate) fn run(arguments: &Simulate) -> Result<()> {
    if arguments.nodes == 1 && !arguments.one_partition {
        let what = "a whole cluster has at least two nodes; with --nodes 1 use --one-partition";
        clap::Command::new("mainstem simulate").error(ErrorKind::ArgumentConflict, what).exit();
    }
    let (mut verdicts, mut bad) = (Vec::new(), Vec::new());
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.runs) {
        let verdict = run_one(arguments, seed);
        if arguments.history {
            verdict.history.iter().try_for_each(|event| print(&event.to_string()))?;
        }
        match arguments.json {
            true => verdicts.push(to_json(&verdict)),
            false => print(&to_text(&verdict))?,
        }
        if !verdict.is_good() {
            bad.push(seed.to_string());
        }
    }
    if arguments.json {
        print_json(&json!({ "runs": verdicts }))?;
    }
    if !bad.is_empty() {
        bail!("went wrong: seed {}; each can be repeated with --seed and --history", bad.join(", "));
    }
    Ok(())
}

fn run_one(arguments: &Simulate, seed: u64) -> Verdict {
    let (nodes, time_ms, faults) = (usize::from(arguments.nodes), arguments.time * 1000, arguments.faults);
    match arguments.one_partition {
        true => simulate(seed, SimulationOptions { nodes, time_ms, faults, ..SimulationOptions::default() }),
        false => {
            simulate_cluster(seed, ClusterOptions { nodes, time_ms, faults, ..ClusterOptions::default() })
        }
    }
}

fn to_text(verdict: &Verdict) -> String {
    let faults = counts(&verdict.faults);
    let state = if verdict.is_good() { "good" } else { "BAD" };
    let resumed = verdict.resumed_after_ms.map_or("never".to_owned(), |ms| format!("after {ms} ms"));
    let mut text = format!(
        "seed {}: {state}; {} appends acknowledged, resumed {resumed}, replicas {}; {}faults: {}",
        verdict.seed,
        verdict.acknowledged,
        if verdict.agreed { "agree" } else { "differ" },
        if verdict.done.is_empty() { String::new() } else { format!("{}; ", counts(&verdict.done)) },
        if faults.is_empty() { "none" } else { &faults },
    );
    for violation in &verdict.violations {
        text.push_str(&format!("\n  {violation:?}"));
    }
    text
}

fn counts(counts: &BTreeMap<&str, usize>) -> String {
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    texts.join(", ")
}

fn to_json(verdict: &Verdict) -> Value {
    let violations: Vec<_> = verdict.violations.iter().map(|violation| format!("{violation:?}")).collect();
    json!({
        "seed": verdict.seed,
        "good": verdict.is_good(),
        "acknowledged": verdict.acknowledged,
        "resumed_after_ms": verdict.resumed_after_ms,
        "agreed": verdict.agreed,
        "faults": verdict.faults,
        "done": verdict.done,
        "violations": violations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_simulation::FaultKind;

    #[test]
    fn a_verdict_is_one_line_and_names_what_went_wrong() {
        let options =
            SimulationOptions { time_ms: 1000, faults: FaultKinds::NONE, ..SimulationOptions::default() };
        let verdict = simulate(1, options);
        let text = to_text(&verdict);
        assert!(text.starts_with("seed 1: good; ") && text.ends_with("faults: none"), "{text}");
        assert_eq!(to_json(&verdict)["good"], true);
        let bad = Verdict { agreed: false, resumed_after_ms: None, ..verdict };
        assert!(to_text(&bad).starts_with("seed 1: BAD; "), "{bad:?}");
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        simulate: Simulate,
    }

    fn faults(arguments: &[&str]) -> Result<FaultKinds, String> {
        let line = ["mainstem", "--seed", "1"].iter().chain(arguments);
        let line = <Line as clap::Parser>::try_parse_from(line).map_err(|error| error.to_string())?;
        Ok(line.simulate.faults)
    }

    #[test]
    fn faults_are_chosen_by_name() {
        assert_eq!(faults(&[]), Ok(FaultKinds::ALL));
        assert_eq!(faults(&["--faults"]), Ok(FaultKinds::ALL));
        assert_eq!(faults(&["--faults", "--json"]), Ok(FaultKinds::ALL));
        assert_eq!(faults(&["--faults", "none"]), Ok(FaultKinds::NONE));
        let some = FaultKinds::of(&[FaultKind::Kill, FaultKind::ClockForwards, FaultKind::ClockBackwards]);
        assert_eq!(faults(&["--faults", "kill,clock"]), Ok(some));
        let refused = faults(&["--faults", "kill,fire"]).expect_err("there is no such fault");
        assert!(refused.contains("`fire`") && refused.contains("partition-ring"), "{refused}");
    }
}
