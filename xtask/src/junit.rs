//! The outcome of each test, read from the report that nextest writes.

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

/// One test that was run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Test {
    /// The test program and the name within it: `mainstem-log::it a::b`.
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) outcome: Outcome,
}

/// The end of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// Failed at first, as the text says, and passed at the second try.
    Flaky(String),
    /// Failed at each try; the text is that of the first.
    Failed(String),
}

/// Reads a report.
pub(crate) fn parse(report: &str) -> Result<Vec<Test>> {
    let document = Document::parse(report).context("the report is no XML")?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    cases.map(|case| test(&case)).collect()
}

fn test(case: &Node<'_, '_>) -> Result<Test> {
    let attribute = |name: &str| case.attribute(name).with_context(|| format!("a test without {name}"));
    let child = |tag: &str| case.children().find(|node| node.has_tag_name(tag));
    let outcome = match (child("failure").or_else(|| child("error")), child("flakyFailure")) {
        (Some(failure), _) => Outcome::Failed(text(&failure)),
        (None, Some(first)) => Outcome::Flaky(text(&first)),
        (None, None) => Outcome::Passed,
    };
    let name = format!("{} {}", attribute("classname")?, attribute("name")?);
    Ok(Test { name, seconds: attribute("time")?.parse().context("a test's time")?, outcome })
}

/// The text of a failure: its message, the panic, and the output.
fn text(failure: &Node<'_, '_>) -> String {
    let message = failure.attribute("message").unwrap_or_default();
    let inner: String = failure.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect();
    match inner.contains(message) {
        true => inner.trim().to_owned(),
        false => format!("{message}\n{}", inner.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read() {
        let report = r#"<?xml version="1.0"?><testsuites name="nextest"><testsuite name="a">
<testcase name="m::one" classname="a::it" time="0.004"/>
<testcase name="m::two" classname="a::it" time="1.5"><failure type="test failure with exit code 101" message="thread 'm::two' panicked at x.rs:1"><![CDATA[thread 'm::two' panicked at x.rs:1
left: 1]]></failure><rerunFailure time="1" message="again">x</rerunFailure><system-err>all</system-err></testcase>
<testcase name="three" classname="a" time="0.1"><flakyFailure type="leak" message="test exited with code 0, but leaked handles"/></testcase>
</testsuite></testsuites>"#;
        let tests = parse(report).unwrap();
        assert_eq!(tests[0], Test { name: "a::it m::one".into(), seconds: 0.004, outcome: Outcome::Passed });
        let failed = "thread 'm::two' panicked at x.rs:1\nleft: 1";
        assert_eq!(tests[1].outcome, Outcome::Failed(failed.into()));
        assert!(matches!(&tests[2].outcome, Outcome::Flaky(why) if why.contains("leaked handles")));
        parse("no report").unwrap_err();
    }
}
