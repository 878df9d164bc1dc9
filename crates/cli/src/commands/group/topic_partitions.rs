//! Topics with some or all of their partitions, as the command line names them: `orders` or `orders:0,2`.

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::Result;
use mainstem_client::{Admin, TopicPartition};

use crate::topic;

/// A topic, with some or all of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicPartitions {
    topic: String,
    /// None is all of them.
    partitions: Option<BTreeSet<i32>>,
}

impl FromStr for TopicPartitions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (topic, partitions) = match text.split_once(':') {
            Some((topic, list)) => (topic, Some(list)),
            None => (text, None),
        };
        let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number >= 0);
        let partitions = partitions.map(|list| list.split(',').map(number).collect::<Option<_>>());
        match partitions {
            None if !topic.is_empty() => Ok(TopicPartitions { topic: topic.to_owned(), partitions: None }),
            Some(Some(partitions)) if !topic.is_empty() => {
                Ok(TopicPartitions { topic: topic.to_owned(), partitions: Some(partitions) })
            }
            _ => Err("expected TOPIC, or TOPIC:PARTITION,... such as orders:0,2".to_owned()),
        }
    }
}

/// The topics and partitions named, each once.
///
/// # Errors
/// When there is no such topic or partition.
pub(super) async fn resolve(admin: &Admin, named: &[TopicPartitions]) -> Result<BTreeSet<TopicPartition>> {
    let mut all = BTreeSet::new();
    for TopicPartitions { topic, partitions } in named {
        let found = topic::find(admin, topic).await?;
        let key = |index: i32| TopicPartition::new(found.name.clone(), index);
        match partitions {
            None => all.extend(found.partitions.iter().map(|partition| key(partition.index))),
            Some(partitions) => {
                for index in partitions {
                    all.insert(key(found.partition(*index)?.index));
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling() {
        let all = TopicPartitions { topic: "a".into(), partitions: None };
        assert_eq!("a".parse(), Ok(all));
        let some = TopicPartitions { topic: "a".into(), partitions: Some([0, 12].into()) };
        assert_eq!("a:12,0,0".parse(), Ok(some));
        for wrong in ["", ":", ":1", "a:", "a:1,", "a:x", "a:-1", "a:1:2"] {
            assert!(wrong.parse::<TopicPartitions>().is_err(), "{wrong}");
        }
    }
}
