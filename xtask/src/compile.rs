//! What is compiled beside the tests of a whole run: all targets for clippy, and the broker as `cargo run --release` builds it, which
//! the first example of README.md starts.
//!
//! Tests that wait leave the processors idle. Compilers run at the lowest priority and take what is left; they have ended before
//! programs run that judge times.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::process::Process;
use crate::workspace;

/// What their niceness is raised by, which is as far as it goes.
const NICENESS: &str = "19";
/// Tests may leave them nothing for as long as they run, which is hours with `--long`.
const DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// Runs a command of cargo at the lowest priority; an error has the end of what it printed.
pub(crate) fn run(name: &str, arguments: &[&str], variables: &[(&str, String)]) -> Result<()> {
    let logs = workspace::root().join("target").join("test-logs");
    fs::create_dir_all(&logs)?;
    let _ = fs::remove_file(logs.join(format!("{name}.log")));
    let mut command = Command::new("nice");
    command.args(["-n", NICENESS]).arg(workspace::cargo()).args(arguments).current_dir(workspace::root());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    Process::start(name, &mut command, &logs)?.wait(DEADLINE)
}

/// Builds the broker with the features that its package alone asks for, which are fewer than those of the whole workspace. What is
/// compiled is where `cargo run` finds it, but the binary that tests run stays in its place.
pub(crate) fn product() -> Result<()> {
    run("product", &["build", "--release"], &product_variables())
}

/// Cargo compiles in the one folder, and puts what is finished into the other.
fn product_variables() -> [(&'static str, String); 2] {
    let target = workspace::target_dir();
    let finished = target.join("product");
    [
        ("CARGO_BUILD_BUILD_DIR", target.display().to_string()),
        ("CARGO_TARGET_DIR", finished.display().to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_product_is_compiled_with_the_tests_and_leaves_their_binary_alone() {
        let variables: std::collections::HashMap<_, _> = product_variables().into_iter().collect();
        let tested = workspace::release_binary("mainstem");
        let finished = Path::new(&variables["CARGO_TARGET_DIR"]).join("release").join("mainstem");
        assert_ne!(finished, tested);
        assert_eq!(Path::new(&variables["CARGO_BUILD_BUILD_DIR"]).join("release").join("mainstem"), tested);
    }
}
