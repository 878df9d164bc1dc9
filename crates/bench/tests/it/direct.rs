//! `mainstem-bench direct`: very short loads of ours, without the peer. No figure is judged: the machine may be as busy as it likes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use mainstem_bench::{Results, Run};

/// Runs the program over `stream_lag` beside it.
fn direct(arguments: &str, dir: &Path) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_mainstem-bench"));
    let example = program.with_file_name("examples").join("stream_lag");
    assert!(
        example.exists(),
        "build it by `cargo build --release -p mainstem-flow --features direct --example stream_lag`"
    );
    let mut command = Command::new(program);
    command.args(["direct", "--no-peer", "--force", "--port", "0", "--rounds", "1"]);
    command.args(["--window", "1", "--warmup", "1"]).args(arguments.split_whitespace());
    command.arg("--data-root").arg(dir.join("data")).arg("--out").arg(dir.join("out"));
    command.stdin(Stdio::null()).output().unwrap()
}

/// The runs of these loads, in their order, all of which have to succeed.
fn runs(loads: &[&str], arguments: &str) -> Vec<Run> {
    let dir = tempfile::tempdir().unwrap();
    let output = direct(&format!("{} {arguments}", loads.join(" ")), dir.path());
    assert!(output.status.success(), "{output:?}");
    let runs = Results::read(&dir.path().join("out")).unwrap().runs;
    let of = |load: &&str| runs.iter().find(|run| run.workload == *load).unwrap().clone();
    loads.iter().map(of).collect()
}

fn figure(run: &Run, key: &str) -> f64 {
    run.figure(key).unwrap_or_else(|| panic!("no {key} in {run:?}"))
}

#[test]
fn the_stages_of_all_events_are_seen_and_add_up_to_the_lag() {
    let loads = ["streams-940", "streams-940-to-10", "streams-catch-up"];
    let runs = runs(&loads, "--events 32000 --shares 1");
    for run in &runs {
        assert_eq!(figure(run, "shares_part"), 1.0, "{run:?}");
        assert!(figure(run, "share_sync_p50_ms") > 0.0, "{run:?}");
        let slowest = |stage: &str| figure(run, &format!("share_{stage}_slowest_ms"));
        let sum: f64 = ["sync", "wake", "frame", "http2", "handler"].map(slowest).iter().sum();
        assert!((sum - slowest("all")).abs() < 1e-6, "{run:?}");
    }
    assert!(figure(&runs[0], "lag_p99_ms") > 0.0 && figure(&runs[2], "catch_up_per_s") > 0.0, "{runs:?}");
    // Each event comes to each consumer.
    assert_eq!(figure(&runs[1], "shares_events") % 10.0, 0.0);
}

#[test]
fn the_rate_grows_until_the_lag_is_longer_than_it_may_be() {
    let runs = runs(&["streams-ramp"], "--step 1 --rate-from 500 --lag-ms-max 0 --shares 1");
    let [ramp] = runs.as_slice() else { panic!("{runs:?}") };
    // None is kept: no event takes no time.
    assert_eq!((figure(ramp, "kept_per_s"), figure(ramp, "missed_per_s")), (0.0, 500.0));
    assert_eq!(figure(ramp, "at_500_lag_p99_ms"), figure(ramp, "missed_lag_p99_ms"));
    assert!(figure(ramp, "missed_events_per_s") > 0.0 && ramp.figure("shares_part").is_none(), "{ramp:?}");
}

#[test]
fn a_load_that_is_none_is_refused_with_those_that_are() {
    let dir = tempfile::tempdir().unwrap();
    let output = direct("streams-941", dir.path());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && message.contains("streams-940, streams-16000, streams-ramp"),
        "{message}"
    );
}
