//! Topic patterns: RE2 syntax, matched against whole names.
//!
//! The `regex` crate has RE2's syntax and its promise of linear time. What RE2 has beyond it is `\Q...\E`, which is
//! rewritten here, and `\C`, which is refused. Patterns are compiled when they are needed and not kept.

use regex::{Regex, RegexBuilder};

use super::change::Resolved;
use super::topics::ClusterTopics;

/// Bytes of a pattern.
pub(crate) const PATTERN_BYTES_MAX: usize = 4_096;
/// Bytes of a compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;
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

/// RE2 takes what stands between `\Q` and `\E` (or the end) literally.
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

/// The topics whose names a pattern matches as a whole. One that does not compile (the log of another version may have
/// it) matches nothing.
pub(crate) fn resolve(pattern: &str, topics: &ClusterTopics, wall_ms: i64) -> Resolved {
    let matching = compile(pattern).map_or_else(
        |_| Vec::new(),
        |regex| topics.names().filter(|name| regex.is_match(name)).map(|name| (&**name).into()).collect(),
    );
    let version = i64::try_from(topics.created()).unwrap_or(i64::MAX);
    Resolved { topics: matching, version, timestamp_ms: wall_ms }
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
            let resolved = resolve(pattern, &topics, 0);
            let found: Vec<&str> = resolved.topics.iter().map(|name| &**name).collect();
            assert_eq!(found, expected, "{pattern}");
        }
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
