//! `cargo xtask counts`: instructions per call of each benchmark case and per message of the broker, against what is recorded.
//!
//! Time needs a quiet machine, instructions do not: they are the same in every run. So a regression shows in continuous integration.
//! valgrind counts them; the cases are those of `cargo bench`.

mod callgrind;
mod message;
mod micro;
mod record;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::micro::benches;

use self::callgrind::Callgrind;
use self::record::{Record, Verdict};
use crate::interop::report;
use crate::{build, faults, workspace};

const USAGE: &str = "\
usage: cargo xtask counts [--update] [--only TEXT]

  --update  record what is counted, instead of comparing
  --only    only what has this in its name

Counts instructions under valgrind (--tool=callgrind) and compares with bench/counts/ARCHITECTURE.txt.";

/// A count: its name, and the instructions for one call.
type Counted = (String, u64);

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (mut update, mut only) = (false, String::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--update" => update = true,
            "--only" => only.clone_from(rest.next().context(USAGE)?),
            "--help" => {
                println!("{USAGE}");
                return Ok(());
            }
            _ => bail!("{USAGE}"),
        }
    }
    let callgrind =
        Callgrind::find().context("valgrind is not installed: it is a package of most systems")?;
    let counted = count(&callgrind, &only)?;
    if update {
        return record(counted, &only);
    }
    let counts = compare(&counted, &only)?;
    ensure!(counts.failed == 0, "cargo xtask counts found changes");
    Ok(())
}

/// The stage of `cargo xtask test`.
pub(crate) fn check() -> Result<report::Counts> {
    let Some(callgrind) = Callgrind::find() else {
        ensure!(!workspace::is_ci(), "valgrind is not installed");
        println!("skipped: valgrind is not installed");
        return Ok(report::Counts { skipped: 1, ..Default::default() });
    };
    if !file().exists() {
        let machine = std::env::consts::ARCH;
        let missing = format!("nothing is recorded for {machine}: cargo xtask counts --update does it");
        ensure!(!workspace::is_ci(), missing);
        println!("skipped: {missing}");
        return Ok(report::Counts { skipped: 1, ..Default::default() });
    }
    compare(&count(&callgrind, "")?, "")
}

/// Builds the benchmark cases.
pub(crate) fn build() -> Result<()> {
    micro::build().map(drop)
}

/// Returns the file of recorded counts for this machine's architecture.
fn file() -> PathBuf {
    workspace::root().join("bench/counts").join(format!("{}.txt", std::env::consts::ARCH))
}

/// Counts everything that has `only` in its name.
fn count(callgrind: &Callgrind, only: &str) -> Result<Vec<Counted>> {
    let benches = micro::build()?;
    if message::NAME.contains(only) {
        build::product()?;
        build::examples()?;
    }
    let mut counted = micro::count(callgrind, &benches, only)?;
    if message::NAME.contains(only) {
        counted.push((message::NAME.to_owned(), message::count(callgrind)?));
    }
    ensure!(!counted.is_empty(), "nothing has {only} in its name");
    counted.sort();
    Ok(counted)
}

fn read() -> Result<Record> {
    let file = file();
    let text = fs::read_to_string(&file).with_context(|| {
        format!("{} cannot be read: cargo xtask counts --update writes it", file.display())
    })?;
    Record::parse(&text).with_context(|| format!("in {}", file.display()))
}

/// Prints each count beside the recorded one; a change beyond the tolerance is a failure.
fn compare(counted: &[Counted], only: &str) -> Result<report::Counts> {
    let recorded = read()?;
    let compiler = record::compiler()?;
    if compiler != recorded.compiler {
        println!(
            "recorded by rustc {}, this is {compiler}: only changes of more than {} % count",
            recorded.compiler,
            record::OTHER_COMPILER_PERCENT
        );
    }
    let mut counts = report::Counts::default();
    for (name, count) in counted {
        let verdict = recorded.judge(name, *count, &compiler);
        println!("{name:<40} {count:>9}  {verdict}");
        if verdict.is_failure() {
            faults::keep(name, &format!("{count} instructions: {verdict}"));
        }
        counts.passed += usize::from(!verdict.is_failure());
        counts.failed += usize::from(verdict.is_failure());
    }
    for name in recorded.missing_in(counted, only) {
        println!("{name:<40} {:>9}  {}", "-", Verdict::Gone);
        faults::keep(name, &Verdict::Gone.to_string());
        counts.failed += 1;
    }
    if counts.failed > 0 {
        println!("{ADVICE}");
    }
    Ok(counts)
}

const ADVICE: &str = "\
If a change is not meant, look for what does more than before: cargo bench --bench CRATE times the same cases, and
callgrind_annotate shows target/counts/NAME.callgrind by function. If it is meant, record it by `cargo xtask counts
--update`, and say in a line of the commit message what costs how much more, and why it is worth it.";

/// Writes the counts to the record, beside those that were not counted now.
fn record(counted: Vec<Counted>, only: &str) -> Result<()> {
    let mut record = Record { compiler: record::compiler()?, counts: counted.into_iter().collect() };
    if !only.is_empty() {
        let before = read()?;
        ensure!(
            before.compiler == record.compiler,
            "the rest was recorded by rustc {}: record all of it, without --only",
            before.compiler
        );
        let others = before.counts.into_iter().filter(|(name, _)| !name.contains(only));
        record.counts.extend(others);
    }
    let file = file();
    fs::write(&file, record.to_string()).with_context(|| format!("write {}", file.display()))?;
    println!("recorded in {}", file.display());
    Ok(())
}
