//! Programs that this machine lacks, in the first lines of a run: what is skipped for that, and what to install.

use crate::interop::install::Toolchain;
use crate::workspace;

/// A program that stages need, what is skipped without it, and what has it.
struct Need {
    stages: &'static [&'static str],
    program: &'static str,
    skipped: String,
    remedy: &'static str,
}

/// Prints a line for each program that these stages need and that is not on PATH.
pub(crate) fn print(stages: &[&str]) {
    let is_there = |program: &str| workspace::find_program(program).is_some();
    lines(stages, is_there).iter().for_each(|line| println!("{line}"));
}

fn lines(stages: &[&str], is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let is_needed = |need: &Need| need.stages.iter().any(|stage| stages.contains(stage));
    let missing = needs().into_iter().filter(|need| is_needed(need) && !is_there(need.program));
    let line = |Need { program, skipped, remedy, .. }: Need| {
        format!("skipped: {skipped}, since {program} is not on PATH; install {remedy}")
    };
    missing.map(line).collect()
}

fn needs() -> Vec<Need> {
    let mut needs = Vec::new();
    for toolchain in Toolchain::ALL {
        let (stages, skipped, remedy): (&[&str], _, _) = match toolchain {
            Toolchain::Java => (
                &["schemas", "pure", "broker", "kafka", "faults", "interop"],
                "Kafka's own brokers, classes, clients and tools",
                "a JDK of version 17 or later, and Maven",
            ),
            Toolchain::Python => (&["faults", "interop"], "clients in Python", "Python 3 with venv"),
            Toolchain::Go => (&["faults", "interop"], "clients in Go", "Go"),
            Toolchain::Node => (&["interop"], "clients in JavaScript", "Node.js and npm"),
            Toolchain::Kcat => (&["interop", "readme"], "kcat and the examples that use it", "kcat"),
        };
        let programs = toolchain.programs().iter();
        needs.extend(programs.map(|program| Need { stages, program, skipped: skipped.to_owned(), remedy }));
    }
    let skipped = "counting instructions".to_owned();
    needs.push(Need { stages: &["counts"], program: "valgrind", skipped, remedy: "valgrind" });
    let skipped = "the upgrade from the previous release".to_owned();
    needs.push(Need { stages: &["faults"], program: "git", skipped, remedy: "git" });
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_once_for_each_program_that_a_stage_needs() {
        let without =
            |missing: &[&str], stages: &[&str]| lines(stages, |program| !missing.contains(&program));
        assert_eq!(without(&[], &["interop", "counts"]), [""; 0]);
        let go = "skipped: clients in Go, since go is not on PATH; install Go";
        assert_eq!(without(&["go", "valgrind"], &["interop"]), [go]);
        assert_eq!(without(&["go", "npm"], &["fmt", "tests", "product"]), [""; 0]);
        let java = without(&["mvn"], &["schemas"]);
        assert!(java.len() == 1 && java[0].contains("mvn is not on PATH"), "{java:?}");
    }
}
