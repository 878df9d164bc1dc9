//! Offsets in a file: lines `topic,partition,offset`, as `kafka-consumer-groups --export` writes them for one group.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mainstem_client::TopicPartition;

use super::plan::Planned;
use crate::offsets::Offsets;

/// Reads the offsets of a file.
///
/// # Errors
/// When it cannot be read, or a line is not understood or names a partition a second time.
pub(super) fn read(path: &Path) -> Result<Offsets> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> Result<Offsets> {
    let mut offsets = Offsets::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let Some((key, offset)) = parse_line(line) else {
            bail!("line {number} is not TOPIC,PARTITION,OFFSET such as orders,0,42: {line:?}");
        };
        if offsets.insert(key.clone(), offset).is_some() {
            bail!("line {number} names {key} for the second time");
        }
    }
    if offsets.is_empty() {
        bail!("there is no TOPIC,PARTITION,OFFSET line");
    }
    Ok(offsets)
}

/// Names of topics have no quotes and commas. Kafka's tool quotes them at times.
fn parse_line(line: &str) -> Option<(TopicPartition, i64)> {
    let mut fields = line.split(',').map(|field| field.trim().trim_matches('"'));
    let topic = fields.next().filter(|topic| !topic.is_empty())?;
    let partition = fields.next()?.parse().ok().filter(|partition| *partition >= 0)?;
    let offset = fields.next()?.parse().ok().filter(|offset| *offset >= 0)?;
    fields.next().is_none().then(|| (TopicPartition::new(topic, partition), offset))
}

/// The planned offsets in the form of such a file.
pub(super) fn write(planned: &[Planned]) -> String {
    let line = |planned: &Planned| {
        let TopicPartition { topic, partition } = &planned.partition;
        format!("{topic},{partition},{}", planned.new)
    };
    planned.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let key = |partition| TopicPartition::new("t", partition);
        let planned = |partition, new| Planned { partition: key(partition), current: None, new, note: None };
        let text = write(&[planned(0, 5), planned(12, 0)]);
        assert_eq!(text, "t,0,5\nt,12,0");
        let expected: Offsets = [(key(0), 5), (key(12), 0)].into();
        assert_eq!(parse(&text).expect("it was just written"), expected);
        assert_eq!(parse("\"t\",0,5\r\n\n t , 12 , 0 \n").expect("as Kafka writes it"), expected);
    }

    #[test]
    fn faults_are_named_with_their_line() {
        for (text, why) in [
            ("", "there is no"),
            ("t,0", "line 1 is not"),
            ("t,0,1\nt,0,x", "line 2 is not"),
            ("t,0,-1", "line 1 is not"),
            ("t,-1,1", "line 1 is not"),
            (",0,1", "line 1 is not"),
            ("g,t,0,1", "line 1 is not"),
            ("t,0,1\nt,0,2", "line 2 names t-0"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with(why), "{text:?}: {error}");
        }
    }
}
