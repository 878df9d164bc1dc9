//! `mainstem-bench`: very short runs of Mainstem and the probe, and the report of them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The program with arguments, separated by blanks. It measures the `mainstem` beside it.
fn mainstem_bench(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstem-bench"));
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
fn run(arguments: &str) -> Run {
    Run(mainstem_bench(arguments).output().unwrap())
}

/// The output of a run of the program.
struct Run(Output);

impl Run {
    /// Fails the test unless the run succeeded; returns its output.
    fn ok(self) -> String {
        assert!(self.0.status.success(), "{:?}", self.0);
        String::from_utf8(self.0.stdout).unwrap()
    }

    /// Fails the test unless the run failed with exit code 1; returns the message.
    fn failed(self) -> String {
        assert_eq!(self.0.status.code(), Some(1), "{:?}", self.0);
        String::from_utf8(self.0.stderr).unwrap()
    }

    /// The one JSON value that was printed.
    fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// The length of a soak, which a test in depth sets; see CONTRIBUTING.md.
fn soak_seconds() -> u64 {
    std::env::var("TEST_SOAK_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(4)
}

/// A place for data and results.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: tempfile::tempdir().unwrap() }
    }

    fn out(&self) -> std::path::PathBuf {
        self.dir.path().join("out")
    }

    /// Runs each load for half a second on free ports. The machine may be as busy as it likes: no figure is judged.
    fn run(&self, arguments: &str) -> Run {
        self.run_if_quiet(&format!("{arguments} --force"))
    }

    /// Runs it only if nothing else uses the machine.
    fn run_if_quiet(&self, arguments: &str) -> Run {
        Run(self.command(arguments).output().unwrap())
    }

    /// Returns the command, in the page cache unless the arguments name a durability.
    fn command(&self, arguments: &str) -> Command {
        let (data, out) = (self.dir.path().join("data"), self.out());
        let durability = if arguments.contains("--durability") { "" } else { "--durability page-cache" };
        let short = format!("--runs 1 --warmup 0.2 --window 0.5 {durability} --json --port 0");
        let places = format!(
            "--data-root {} --out {} --set group.initial.rebalance.delay.ms=0",
            data.display(),
            out.display()
        );
        mainstem_bench(&format!("run {arguments} {short} {places}"))
    }
}

fn figure<'a>(cell: &'a Value, key: &str) -> &'a Value {
    let rows = cell["rows"].as_array().unwrap();
    &rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key} in {cell}"))["values"]
}

#[test]
fn a_closed_and_an_open_loop_are_measured_and_reported() {
    let bench = Bench::new();
    let printed = bench.run("small-msg-saturate fixed-rate-2000").json();
    let cells = printed["summary"]["cells"].as_array().unwrap();
    let names: Vec<_> = cells.iter().map(|cell| cell["workload"].as_str().unwrap()).collect();
    assert_eq!(names, ["small-msg-saturate", "fixed-rate-2000"]);
    for cell in cells {
        assert_eq!(cell["systems"], serde_json::json!(["mainstem", "probe"]));
        for key in ["messages_per_s", "ack_p99_us", "end_to_end_p99_us", "vm_hwm_mib"] {
            let medians = figure(cell, key).as_array().unwrap().iter();
            assert!(
                medians.clone().all(|spread| spread["median"].as_f64().unwrap() > 0.0),
                "{key} in {cell}"
            );
        }
    }
    let results = mainstem_bench::Results::read(&bench.out()).unwrap();
    let is_ours =
        |run: &&mainstem_bench::Run| (&*run.workload, &*run.system) == ("fixed-rate-2000", "mainstem");
    let figures = &results.runs.iter().find(is_ours).unwrap().figures;
    assert_eq!(figures["produced"], figures["consumed"]);
    assert_eq!(figures["offered_per_s"], 2_000.0);

    // The report can be made again from the runs alone.
    fs::remove_file(bench.out().join("SUMMARY.md")).unwrap();
    fs::remove_dir_all(bench.out().join("plots")).unwrap();
    let said = run(&format!("report {}", bench.out().display())).ok();
    assert!(said.contains("8 plots of 2 cells"), "{said}");
    check_report(&bench.out());
}

#[test]
fn latencies_on_the_disk_are_measured_and_judged_by_what_a_sync_costs() {
    let bench = Bench::new();
    let printed = bench.run("fixed-rate-2000 --systems mainstem,probe --durability fsync").json();
    let cell = &printed["summary"]["cells"][0];
    assert_eq!(cell["durability"], "fsync");
    let medians = |key: &str| {
        let spreads = figure(cell, key).as_array().unwrap().iter();
        spreads.map(|spread| spread["median"].as_f64()).collect::<Vec<_>>()
    };
    for key in ["ack_p99_us", "fdatasync_p99_us"] {
        assert!(medians(key).into_iter().all(|median| median.is_some_and(|us| us > 0.0)), "{key} in {cell}");
    }
    for key in ["fdatasync_loaded_p50_us", "fdatasync_loaded_p99_us", "fdatasync_loaded_p999_us"] {
        let [None, Some(probe)] = medians(key)[..] else {
            panic!("{key} is not the probe's alone in {cell}")
        };
        assert!(probe > 0.0, "{key} in {cell}");
    }
    check_goals(cell, "under the load");

    // Without the probe's runs only the idle disk is known.
    let runs = bench.out().join("fixed-rate-2000-fsync.jsonl.gz");
    let both = Command::new("zcat").arg(&runs).output().unwrap().stdout;
    let ours = String::from_utf8(both).unwrap();
    let ours = ours.lines().find(|line| line.contains(r#""system":"mainstem""#)).unwrap().to_owned();
    let mut gzip = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&runs).unwrap())
        .spawn()
        .unwrap();
    gzip.stdin.take().unwrap().write_all(ours.as_bytes()).unwrap();
    assert!(gzip.wait().unwrap().success());
    let report = format!("report --json {}", bench.out().display());
    check_goals(&run(&report).json()["summary"]["cells"][0], "on the idle disk (no probe ");
}

/// Checks that a cell has a goal for either latency, as a multiple of the cost of such a sync, and names that sync.
fn check_goals(cell: &Value, sync: &str) {
    let goals = cell["goals"].as_array().unwrap();
    for latency in ["ack p99", "end-to-end p99"] {
        let begin = format!("{latency}, us <= 1.5x the p99 of one fdatasync {sync}");
        let goal = goals.iter().find(|goal| goal["goal"].as_str().unwrap().starts_with(&begin));
        let goal = goal.unwrap_or_else(|| panic!("no {begin} in {cell}"));
        let times = goal["value"].as_f64().unwrap();
        assert!(times > 0.0 && goal["is_ratio"] == true, "{goal}");
        assert_eq!(goal["is_reached"], times <= 1.5, "{goal}");
    }
    assert_eq!(goals.len(), 2, "{cell}");
}

#[test]
fn an_embedded_queue_is_measured_without_a_broker() {
    let bench = Bench::new();
    let printed = bench.run("embedded --systems mainstem-queue --mainstem /nowhere").json();
    let cells = printed["summary"]["cells"].as_array().unwrap();
    let figures = |workload: &str| match workload {
        "queue-write" | "queue-write-batches" => ["messages_per_s", "read_per_s"],
        "queue-contend" => ["messages_per_s", "least_writer"],
        "queue-wake" => ["wake_p50_us", "publish_p99_us"],
        _ => ["publish_p50_us", "end_to_end_p999_us"],
    };
    assert_eq!(cells.len(), 10, "{printed}");
    for cell in cells {
        for key in figures(cell["workload"].as_str().unwrap()) {
            assert!(figure(cell, key)[0]["median"].as_f64().unwrap() > 0.0, "{key} in {cell}");
        }
    }
}

/// Checks that all that the summary shows exists, and is what its name says.
fn check_report(out: &Path) {
    let summary = fs::read_to_string(out.join("SUMMARY.md")).unwrap();
    assert!(summary.contains("| messages/s |") && summary.contains("mainstem / probe"), "{summary}");
    let shown: Vec<_> =
        summary.lines().filter_map(|line| line.strip_suffix(".svg)")?.split_once("](")).collect();
    assert_eq!(shown.len(), 8, "{summary}");
    shown.iter().for_each(|(_, plot)| check_plot(out, plot, "probe"));
}

/// Checks that a plot exists, with a line of that system.
fn check_plot(out: &Path, plot: &str, system: &str) {
    let svg = fs::read_to_string(out.join(format!("{plot}.svg"))).unwrap();
    let tree = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(tree.root_element().tag_name().name(), "svg");
    assert!(tree.descendants().any(|node| node.text().is_some_and(|text| text.trim() == system)), "{plot}");
}

#[test]
fn clients_that_come_go_stall_and_die_do_no_harm() {
    let bench = Bench::new();
    let printed = bench.run(&format!("soak --systems mainstem --soak {}", soak_seconds())).json();
    let cell = &printed["summary"]["cells"][0];
    let median = |key: &str| figure(cell, key)[0]["median"].as_f64().unwrap();
    // All records came back and no client saw an error, or the run would have failed.
    assert!(median("visits") >= 16.0, "{cell}");
    assert!(median("ack_p999_us") > 0.0);
    assert!(median("vm_hwm_mib") <= 48.0, "{cell}");
    assert_eq!(median("unsent"), 0.0);
}

#[test]
fn slow_consumers_of_cold_data_do_not_make_the_broker_large() {
    let bench = Bench::new();
    let printed = bench.run("slow-consumers --systems mainstem --cold-mib 256").json();
    let cell = &printed["summary"]["cells"][0];
    let median = |key: &str| figure(cell, key)[0]["median"].as_f64().unwrap();
    assert!(median("slow_mib_per_s") > 0.0 && median("messages_per_s") > 0.0);
    // The sum of docs/memory.md for 64 connections with a response under way; all 256 MiB would not fit.
    assert!(median("vm_hwm_mib") <= 32.0, "{cell}");
}

#[test]
fn what_is_measured_beside_plain_loads_has_its_figures() {
    let bench = Bench::new();
    let names = "pipelined-1kb many-partitions idle start start-clean start-killed";
    let printed = bench.run(&format!("{names} --systems mainstem --killed-mib 16")).json();
    let cells = printed["summary"]["cells"].as_array().unwrap();
    let median = |cell: &Value, key: &str| figure(cell, key)[0]["median"].as_f64().unwrap();
    for cell in cells {
        match cell["workload"].as_str().unwrap() {
            "pipelined-1kb" | "many-partitions" => assert!(median(cell, "messages_per_s") > 0.0, "{cell}"),
            "idle" => {
                assert!(median(cell, "idle_cpu_percent") < 50.0, "{cell}");
                // Memory over time alone: there are no records to count.
                assert_eq!(cell["plots"], serde_json::json!(["idle-page-cache-memory"]));
                check_plot(&bench.out(), "plots/idle-page-cache-memory", "mainstem");
            }
            _ => assert!(median(cell, "first_ack_ms") > 0.0, "{cell}"),
        }
        assert!(median(cell, "vm_hwm_mib") > 0.0, "{cell}");
        // The CPUs that others used are known of each run, to find those that were disturbed.
        assert!(median(cell, "other_cpus") >= 0.0 && median(cell, "driver_cpus") >= 0.0, "{cell}");
    }
    assert_eq!(cells.len(), names.split(' ').count());
}

#[test]
fn a_run_that_fails_is_reported_and_the_others_are_made() {
    let bench = Bench::new();
    let message = bench.run("small-msg-saturate --mainstem /bin/false").failed();
    assert!(message.contains("1 run failed"), "{message}");
    let summary = fs::read_to_string(bench.out().join("SUMMARY.md")).unwrap();
    assert!(
        summary.contains("small-msg-saturate, page-cache, round 1, mainstem failed**: mainstem ended"),
        "{summary}"
    );
    assert!(summary.contains("| median [range] | probe |"), "{summary}");
}

#[test]
fn a_broker_is_measured_without_the_settings_of_the_environment() {
    let bench = Bench::new();
    let mut command = bench.command("start --systems mainstem --force");
    // With this one it would not start.
    let printed = Run(command.env("MAINSTEM_NUM_NETWORK_THREADS", "many").output().unwrap()).json();
    assert_eq!(printed["summary"]["failed"], serde_json::json!([]));
}

/// A process that does nothing else, for as long as it is wanted.
struct Busy(Vec<Child>);

impl Busy {
    fn all_cpus() -> Busy {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Busy((0..cpus).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn nothing_is_measured_on_a_busy_machine() {
    let (bench, busy) = (Bench::new(), Busy::all_cpus());
    let message = bench.run_if_quiet("start --systems mainstem").failed();
    assert!(message.contains("the machine is busy: others use") && message.contains("--force"), "{message}");
    assert!(!bench.out().join("SUMMARY.md").exists());
    drop(busy);
}

/// Returns the folder of Kafka's jars. Without them, `what` is not tested, and a line says so.
fn kafka_jars(what: &str) -> Option<String> {
    let jars = std::env::var("KAFKA_LIB").unwrap_or_default();
    if Path::new(&jars).join("kafka_2.13-4.3.0.jar").exists() {
        return Some(jars);
    }
    let _ = writeln!(std::io::stderr(), "skipped: {what} (no jars in KAFKA_LIB)");
    None
}

#[test]
fn the_tools_of_kafka_are_clients() {
    let Some(jars) = kafka_jars("Kafka's performance tools") else { return };
    let bench = Bench::new();
    // It reads the records of the producer tool.
    let arguments = "bandwidth-out --systems mainstem --records 4000";
    let printed = bench.run(&format!("{arguments} --kafka-jars {jars}")).json();
    let cell = &printed["summary"]["cells"][0];
    for key in ["messages_per_s", "mib_per_s", "messages_per_cpu_s"] {
        assert!(figure(cell, key)[0]["median"].as_f64().unwrap() > 0.0, "{key} in {cell}");
    }
}

#[test]
fn kafka_is_measured_beside_us_and_the_probe() {
    let Some(jars) = kafka_jars("Kafka beside Mainstem") else { return };
    let bench = Bench::new();
    let printed = bench.run(&format!("local-1kb-saturate start --peer kafka --kafka-jars {jars}")).json();
    let [load, start] = printed["summary"]["cells"].as_array().unwrap().as_slice() else {
        panic!("{printed}")
    };
    for (cell, systems, key) in [
        (load, &["kafka", "mainstem", "probe"][..], "messages_per_s"),
        (start, &["kafka", "mainstem"][..], "first_ack_ms"),
    ] {
        assert_eq!(cell["systems"], serde_json::json!(systems));
        let medians = figure(cell, key).as_array().unwrap();
        let medians: Vec<f64> = medians.iter().map(|spread| spread["median"].as_f64().unwrap()).collect();
        assert!(medians.len() == systems.len() && medians.iter().all(|median| *median > 0.0), "{cell}");
    }
    let summary = fs::read_to_string(bench.out().join("SUMMARY.md")).unwrap();
    assert!(summary.contains("mainstem / kafka") && summary.contains("4.3.0"), "{summary}");
}

/// The search starts Kafka up to eleven times, so that it runs only in depth.
#[test]
fn the_smallest_heap_is_found() {
    if soak_seconds() < 10 {
        return;
    }
    let Some(jars) = kafka_jars("the heap sweep") else { return };
    let bench = Bench::new();
    let printed = bench.run(&format!("heap-sweep --peer kafka --kafka-jars {jars}")).json();
    let cell = &printed["summary"]["cells"][0];
    let smallest = figure(cell, "smallest_heap_mib")[0]["median"].as_f64().unwrap();
    assert!((48.0..=1024.0).contains(&smallest), "{cell}");
}

#[test]
fn the_list_names_what_can_be_run() {
    let list = run("list --json").json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"local-1kb-saturate") && names.contains(&"heap-sweep"), "{names:?}");
    let text = run("list").ok();
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn errors_say_what_to_do() {
    let bench = Bench::new();
    let said = |arguments: &str| bench.run(arguments).failed();
    assert!(said("smal").contains("there is no workload smal: take all, or some of small-msg-saturate"));
    assert!(said("start --systems probe").contains("there is nothing to run"));
    assert!(said("start --mainstem /no/mainstem").contains("cargo build --release"));
    fs::write(bench.out().join("something"), "").unwrap();
    assert!(said("start").contains("is not empty"));
    let said = run(&format!("report {}", bench.dir.path().join("none").display())).failed();
    assert!(said.contains("cannot be read: name a folder of runs"), "{said}");
}
