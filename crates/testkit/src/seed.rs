//! The seed of what tests draw: one number per commit, so that a run can be repeated and another commit draws something else.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Hexadecimal digits of a seed: it is a positive number of 32 bits.
const DIGITS: usize = 7;

/// The number that `TEST_SEED` gives, or else the first digits of the commit's hash, or 1 where there is no commit. It is printed.
///
/// # Panics
/// If `TEST_SEED` is no number.
#[expect(clippy::print_stdout, reason = "the seed is for who repeats a run")]
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| {
        let given = std::env::var("TEST_SEED").ok();
        let given = given.map(|seed| parse(&seed));
        given.or_else(|| of_hash(&commit()?)).unwrap_or(1)
    });
    println!("TEST_SEED={seed}");
    seed
}

fn parse(given: &str) -> u64 {
    given.parse().unwrap_or_else(|error| panic!("TEST_SEED is {given:?}: {error}; give it a number"))
}

/// The hash of the commit that is checked out.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["rev-parse", "HEAD"]).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn of_hash(hash: &str) -> Option<u64> {
    u64::from_str_radix(hash.get(..DIGITS)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_made_of_a_hash() {
        assert_eq!(of_hash("1f5557c9a0b1c2d3"), Some(0x1f5_557c));
        assert_eq!(of_hash("no hash at all"), None);
        assert_eq!(of_hash(""), None);
    }

    #[test]
    fn a_seed_that_is_given_is_a_number() {
        assert_eq!(parse("42"), 42);
        assert!(std::panic::catch_unwind(|| parse("tomorrow")).is_err());
    }

    #[test]
    fn all_who_ask_are_given_one_seed() {
        assert_eq!(seed(), seed());
    }
}
