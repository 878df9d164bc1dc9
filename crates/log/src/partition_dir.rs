//! Names of the directories in a log directory: which partition is where, and what is about to go.

use crate::uuid;
use std::fmt;
use std::sync::Arc;

/// Longest topic name that Kafka allows.
const TOPIC_LEN_MAX: usize = 249;

/// Longest name of a directory that file systems allow, in bytes.
const NAME_LEN_MAX: usize = 255;

const DELETE_SUFFIX: &str = "-delete";
const STRAY_SUFFIX: &str = "-stray";
const FUTURE_SUFFIX: &str = "-future";

/// Hexadecimal digits of the id in such a name.
const ID_DIGITS: usize = 32;

/// A partition of a topic, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// A partition of a topic.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> TopicPartition {
        TopicPartition { topic: topic.into(), partition }
    }
}

/// The directory's name: `topic-partition`.
impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// The reason for which a partition's directory is renamed out of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetAside {
    /// Its topic was deleted; it is removed after a delay.
    Delete,
    /// No topic of this name and id is known (KIP-858); it stays until an operator looks at it.
    Stray,
}

impl SetAside {
    fn suffix(self) -> &'static str {
        match self {
            SetAside::Delete => DELETE_SUFFIX,
            SetAside::Stray => STRAY_SUFFIX,
        }
    }
}

/// The kind of a directory in a log directory, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DirName {
    Partition(TopicPartition),
    SetAside(SetAside),
    /// A copy that is being made in this log directory. The topic's name may be cut short.
    Future(TopicPartition),
    Unknown,
}

impl DirName {
    pub(crate) fn parse(name: &str) -> DirName {
        let parsed = if let Some(rest) = name.strip_suffix(DELETE_SUFFIX) {
            parse_unique(rest).map(|_| DirName::SetAside(SetAside::Delete))
        } else if let Some(rest) = name.strip_suffix(STRAY_SUFFIX) {
            parse_unique(rest).map(|_| DirName::SetAside(SetAside::Stray))
        } else if let Some(rest) = name.strip_suffix(FUTURE_SUFFIX) {
            parse_unique(rest).map(DirName::Future)
        } else {
            parse_partition(name).map(DirName::Partition)
        };
        parsed.unwrap_or(DirName::Unknown)
    }
}

/// The stray partition that a directory of this name holds; `None` for any other name. Stricter than what a start leaves alone: the id
/// is one of Kafka's or of this crate's, 32 hexadecimal digits.
pub(crate) fn stray_of(name: &str) -> Option<TopicPartition> {
    let rest = name.strip_suffix(STRAY_SUFFIX)?;
    let (_, id) = rest.rsplit_once('.')?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    parse_unique(rest).filter(|_| is_id)
}

/// The name of a stray directory for another reason to be set aside; `None` if it is none.
pub(crate) fn with_reason(name: &str, why: SetAside) -> Option<String> {
    stray_of(name)?;
    Some(format!("{}{}", name.strip_suffix(STRAY_SUFFIX)?, why.suffix()))
}

/// The partition in the rest of a name, which is `topic-partition.id`. The topic may be cut short, but not away.
fn parse_unique(rest: &str) -> Option<TopicPartition> {
    let (partition, id) = rest.rsplit_once('.')?;
    parse_partition(partition).filter(|_| !id.is_empty())
}

/// Stricter than Kafka, which takes `t-01` and `t-+1` for `t-1`, a directory that it would then have twice.
fn parse_partition(name: &str) -> Option<TopicPartition> {
    let (topic, digits) = name.rsplit_once('-')?;
    let canonical = digits == "0" || !digits.starts_with('0');
    let numeric = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_topic_name(topic) || !canonical || !numeric {
        return None;
    }
    Some(TopicPartition::new(topic, digits.parse().ok()?))
}

fn is_topic_name(topic: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_LEN_MAX).contains(&topic.len()) && topic.bytes().all(legal) && topic != "." && topic != ".."
}

/// The name under which a directory waits for its end: `topic-partition.id-delete`.
pub(crate) fn set_aside_name(partition: &TopicPartition, why: SetAside, id: &[u8; 16]) -> String {
    unique_name(partition, why.suffix(), id)
}

/// The name under which a copy of a partition grows until it takes the place of the one in another directory.
pub(crate) fn future_name(partition: &TopicPartition, id: &[u8; 16]) -> String {
    unique_name(partition, FUTURE_SUFFIX, id)
}

/// `topic-partition.id` and a suffix, the topic cut where that would be too long for a file system. `id` makes it unique.
fn unique_name(partition: &TopicPartition, suffix: &str, id: &[u8; 16]) -> String {
    let tail = format!("-{}.{}{suffix}", partition.partition, uuid::to_hex(id));
    let topic_len = partition.topic.len().min(NAME_LEN_MAX - tail.len());
    let topic = partition.topic.get(..topic_len).unwrap_or_default();
    format!("{topic}{tail}")
}

/// Fuzz body: a name that is a partition's reads back from what it is printed as, and the name under which it is
/// set aside is understood.
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(name) = std::str::from_utf8(data) else { return };
    if let DirName::Partition(partition) = DirName::parse(name) {
        assert_eq!(partition.to_string(), name);
        for why in [SetAside::Delete, SetAside::Stray] {
            let renamed = set_aside_name(&partition, why, &[7; 16]);
            assert!(renamed.len() <= NAME_LEN_MAX, "{renamed}");
            assert_eq!(DirName::parse(&renamed), DirName::SetAside(why), "{renamed}");
        }
        let future = future_name(&partition, &[7; 16]);
        assert!(future.len() <= NAME_LEN_MAX, "{future}");
        let DirName::Future(found) = DirName::parse(&future) else { panic!("{future}") };
        assert!(partition.topic.starts_with(&*found.topic) && found.partition == partition.partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_understood() {
        let partition = |topic: &str, number| DirName::Partition(TopicPartition::new(topic, number));
        let id = "0123456789abcdef0123456789abcdef";
        let check = |name: &str, expected: DirName| assert_eq!(DirName::parse(name), expected, "{name:?}");
        check("t-0", partition("t", 0));
        check("a-b-c-12", partition("a-b-c", 12));
        check("a.b_C-2147483647", partition("a.b_C", i32::MAX));
        check("t--1", partition("t-", 1));
        check("__cluster_metadata-0", partition("__cluster_metadata", 0));
        check("delete-0", partition("delete", 0));
        check(&format!("t-0.{id}-delete"), DirName::SetAside(SetAside::Delete));
        check(&format!("a.b-3.{id}-delete"), DirName::SetAside(SetAside::Delete));
        check(&format!("t-0.{id}-stray"), DirName::SetAside(SetAside::Stray));
        check(&format!("t-0.{id}-future"), DirName::Future(TopicPartition::new("t", 0)));
        for name in [
            "",
            "-",
            "t",
            "-0",
            "t-",
            "t-01",
            "t-+1",
            "t-00",
            "t-2147483648",
            "t-0-delete",
            "t.x-delete",
            "lost+found",
            "ü-0",
            ".-0",
            "..-0",
            "t-0.-delete",
        ] {
            check(name, DirName::Unknown);
        }
        check(&format!("{}-0", "t".repeat(250)), DirName::Unknown);
    }

    #[test]
    fn a_long_topic_is_cut_when_it_is_set_aside() {
        let long = TopicPartition::new("t".repeat(249), i32::MAX);
        let name = set_aside_name(&long, SetAside::Delete, &[0xab; 16]);
        assert_eq!(name.len(), 255);
        assert!(name.ends_with(&format!("-2147483647.{}-delete", "ab".repeat(16))), "{name}");
    }

    proptest! {
        #[test]
        fn any_name_upholds_the_properties(name in "[a-z.-]{1,20}-[0-9]{1,11}") {
            fuzz(name.as_bytes());
        }
    }
}
