//! `mainstem direct filter`.

use clap::Args;
use mainstem_direct::criteria;
use mainstem_direct::proto::{Criterion, Filter};

use super::One;

/// Arguments of `direct filter`.
#[derive(Debug, Args)]
pub(super) struct SetFilter {
    #[command(flatten)]
    pub(super) one: One,
    /// Leave out events that match: `all`, `tag=T`, `header=NAME`, `header=NAME:VALUE`, `key=K`, `prefix=P`, `pattern=RE2`,
    /// `topic=a/+/#`, `slices=FROM..TO`. Without any, everything passes.
    #[arg(long, value_name = "CRITERION", value_parser = criterion)]
    exclude: Vec<Criterion>,
    /// Let pass what matches, though it is excluded.
    #[arg(long, value_name = "CRITERION", value_parser = criterion, requires = "exclude")]
    include: Vec<Criterion>,
}

impl SetFilter {
    pub(super) fn filter(&self) -> Filter {
        Filter { exclude: self.exclude.clone(), include: self.include.clone() }
    }
}

fn criterion(text: &str) -> Result<Criterion, String> {
    if text == "all" {
        return Ok(criteria::everything());
    }
    let unknown = || {
        format!(
            "{text:?} is no criterion; write all, or one of tag, header, key, prefix, pattern, topic and slices with ="
        )
    };
    let (kind, value) = text.split_once('=').ok_or_else(unknown)?;
    Ok(match kind {
        "tag" => criteria::tag(value),
        "header" => match value.split_once(':') {
            Some((name, value)) => criteria::header(name, Some(value.as_bytes())),
            None => criteria::header(value, None),
        },
        "key" => criteria::key(value),
        "prefix" => criteria::key_prefix(value),
        "pattern" => criteria::key_pattern(value),
        "topic" => criteria::topic(value),
        "slices" => {
            let range =
                value.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            let (from, to) =
                range.ok_or_else(|| format!("{value:?} are no slices; write FROM..TO, such as 0..512"))?;
            criteria::slices(from, to)
        }
        _ => return Err(unknown()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_are_read_as_they_are_shown() {
        assert_eq!(criterion("all"), Ok(criteria::everything()));
        assert_eq!(criterion("header=type:Added"), Ok(criteria::header("type", Some(b"Added"))));
        assert_eq!(criterion("slices=0..512"), Ok(criteria::slices(0, 512)));
        assert_eq!(criterion("pattern=a=b"), Ok(criteria::key_pattern("a=b")));
        assert!(criterion("slices=0").unwrap_err().contains("FROM..TO"));
        assert!(criterion("color=red").unwrap_err().contains("no criterion"));
    }
}
