//! Topic patterns: RE2 syntax, matched against whole names.
//!
//! The `regex` crate has RE2's syntax and its promise of linear time. RE2 also has `\Q...\E`, which is rewritten here, and `\C`, which is
//! refused. Patterns are compiled when they are needed and not kept. Linear time is long for a name that is in hundreds of states at once:
//! such patterns are refused, and one heartbeat matches only so many others.

use std::fmt;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use regex_automata::hybrid::dfa::{self, Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

use super::topics::ClusterTopics;

/// A longer pattern, in bytes, is refused.
pub(crate) const PATTERN_BYTES_MAX: usize = 4_096;
/// A pattern that takes more when it is compiled, in bytes, is refused.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Bytes of the states that a pattern may need to be matched.
const STATES_BYTES_MAX: usize = 256 << 10;
/// Bytes of names and of states that the patterns of one heartbeat may go through.
const WORK_MAX: usize = 4 << 20;
/// Groups within groups.
const NESTING_MAX: u32 = 64;

/// Compiles a pattern.
///
/// # Errors
/// What is wrong with it, for people.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!("it has {} bytes, {PATTERN_BYTES_MAX} are allowed", pattern.len()));
    }
    // Checked by itself first: a pattern that closes more groups than it opens must not close ours.
    let pattern = without_quotes(pattern);
    build(&pattern)?;
    build(&format!(r"\A(?:{pattern})\z"))
}

fn build(pattern: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(pattern);
    builder.size_limit(COMPILED_BYTES_MAX).nest_limit(NESTING_MAX);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(bytes) => {
            format!("it takes more than the {bytes} bytes that are allowed when compiled")
        }
        // The crate draws the pattern with a mark below; the last line says what is wrong.
        other => other.to_string().lines().last().unwrap_or_default().trim().to_owned(),
    })
}

/// RE2 takes the text between `\Q` and `\E` (or the end) literally.
fn without_quotes(pattern: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(pattern.len()), pattern);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        if let Some(quoted) = escape.strip_prefix(r"\Q") {
            let (literal, behind) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            plain.push_str(&regex::escape(literal));
            rest = behind;
        } else {
            let end = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
            plain.push_str(&escape[..end]);
            rest = &escape[end..];
        }
    }
    plain.push_str(rest);
    plain
}

/// A pattern as an automaton that makes its states as names need them, in bounded memory. So the work of matching is bounded by that memory
/// and the length of the names, whatever the pattern.
struct Automaton {
    automaton: DFA,
    cache: Cache,
}

/// Why a pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PatternFault {
    /// It is no valid expression, or too long: what is wrong with it, for people.
    Invalid(String),
    /// It needs more states than fit into the memory: a name would be in many states at once.
    TooComplex,
}

impl fmt::Display for PatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternFault::Invalid(reason) => write!(f, "is no valid RE2 expression: {reason}"),
            PatternFault::TooComplex => f.write_str("is too complex: it would take too long to match it"),
        }
    }
}

impl Automaton {
    /// An automaton of a pattern that [`compile`]s.
    fn new(pattern: &str) -> Result<Automaton, PatternFault> {
        let config = dfa::Config::new()
            .cache_capacity(STATES_BYTES_MAX)
            .minimum_cache_clear_count(Some(0))
            // Names of topics are ASCII: the automaton fails on others.
            .unicode_word_boundary(true);
        let pattern = format!(r"\A(?:{})\z", without_quotes(pattern));
        let built = DFA::builder()
            .configure(config)
            .syntax(syntax::Config::new().nest_limit(NESTING_MAX + 1))
            .thompson(thompson::Config::new().nfa_size_limit(Some(COMPILED_BYTES_MAX)))
            .build(&pattern);
        let automaton = built.map_err(|_| PatternFault::TooComplex)?;
        let cache = automaton.create_cache();
        Ok(Automaton { automaton, cache })
    }

    fn matches(&mut self, name: &str) -> Result<bool, PatternFault> {
        let input = Input::new(name).anchored(Anchored::Yes).earliest(true);
        let found = self.automaton.try_search_fwd(&mut self.cache, &input);
        found.map(|end| end.is_some()).map_err(|_| PatternFault::TooComplex)
    }
}

/// The names that a pattern matches as a whole.
///
/// # Errors
/// When it does not compile, or matching it would take too long.
pub(crate) fn matching(pattern: &str, names: &[Arc<str>]) -> Result<Vec<Box<str>>, PatternFault> {
    compile(pattern).map_err(PatternFault::Invalid)?;
    let mut automaton = Automaton::new(pattern)?;
    let mut matching = Vec::new();
    for name in names {
        if automaton.matches(name)? {
            matching.push((&**name).into());
        }
    }
    Ok(matching)
}

/// The number of patterns that are matched against the topics for one heartbeat, at least one: about 10 ms of work.
pub(crate) fn patterns_at_once(topics: &ClusterTopics) -> usize {
    (WORK_MAX / (topics.name_bytes() + STATES_BYTES_MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let mut topics = ClusterTopics::default();
        for (id, name) in (1..).zip(["a", "ab", "a.b", "b", "orders-1"]) {
            topics.put(name, Uuid::from_u128(id), 1);
        }
        let table: [(&str, &[&str]); 9] = [
            ("a", &["a"]),
            ("a.*", &["a", "a.b", "ab"]),
            ("a|b", &["a", "b"]),
            (r"\Qa.b\E", &["a.b"]),
            (r"\Qa.", &[]),
            (r"\\Q", &[]),
            ("^a$", &["a"]),
            (r"(?i)ORDERS-\d+", &["orders-1"]),
            ("", &[]),
        ];
        for (pattern, expected) in table {
            let found = matching(pattern, &topics.all_names()).unwrap();
            let found: Vec<&str> = found.iter().map(|name| &**name).collect();
            assert_eq!(found, expected, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_takes_long_is_refused_soon() {
        let mut topics = ClusterTopics::default();
        for id in 1..=3_000_u128 {
            let name: String = (0..200)
                .map(|bit| if (id * 0x9E37_79B9) >> (bit % 64) & 1 == 0 { 'a' } else { 'b' })
                .collect();
            topics.put(&format!("{name}-{id}"), Uuid::from_u128(id), 1);
        }
        let names = topics.all_names();
        // A state is made at most once, within the memory for them; each byte of a name is one step. A pattern that is refused is refused
        // within the first names.
        for (pattern, names_max) in
            [("((a?){30}a{30}){5}", 3_000), ("(a?b?){400}-1", 1), ("(a|b)*a(a|b){14}-[0-9]+", 100)]
        {
            let mut automaton = Automaton::new(pattern).unwrap();
            let matched = names.iter().take_while(|name| automaton.matches(name).is_ok()).count();
            assert!(matched <= names_max, "{pattern} is refused after {matched} names");
            let bytes = automaton.cache.memory_usage();
            assert!(bytes <= 2 * STATES_BYTES_MAX, "{pattern} has {bytes} bytes of states");
        }
        assert_eq!(matching("(a|b)*a(a|b){14}-[0-9]+", &names), Err(PatternFault::TooComplex));
        for usual in
            [".*", "[ab]+-[0-9]*7", r"(?i)[AB]+-\d{1,4}", "(a|b|c)*-[13579]+", r"[\w-]+", r"\b[ab]+\b-1"]
        {
            assert!(matching(usual, &names).is_ok_and(|found| !found.is_empty()), "{usual}");
        }
        assert!(patterns_at_once(&topics) > 3);
    }

    #[test]
    fn what_does_not_compile_or_is_too_large_is_an_error() {
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        let nested = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        for bad in ["a(", "a)|(b", r"\C", r"(\w)\1", "(?=a)", "((a{1000}){1000}){1000}", &long, &nested] {
            let error = compile(bad).expect_err(bad);
            assert!(!error.is_empty() && error.lines().count() == 1, "{bad}: {error:?}");
        }
    }
}
