//! Values that differ in each run, and the words that are compared in their place.

use mainstem_tests::tree::Value;
use mainstem_wire::Uuid;

/// The id in requests about no topic. It stays as it is.
const NO_TOPIC: Uuid = Uuid([7; 16]);

/// Fields of which only the presence is compared: times, sizes, addresses, and ids from a broker.
const VOLATILE: &[&str] = &[
    "Host",
    "Port",
    "ClusterId",
    "LogDir",
    "TotalBytes",
    "UsableBytes",
    "PartitionSize",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "FinalizedFeaturesEpoch",
    "TransactionStartTimeMs",
    "LastTimestamp",
];
/// The same for the answers of one API.
const VOLATILE_OF: &[(&str, &str)] = &[
    ("DescribeQuorum", "LeaderEpoch"),
    ("DescribeQuorum", "HighWatermark"),
    ("DescribeQuorum", "LogEndOffset"),
    ("InitProducerId", "ProducerId"),
    // The versions that each release serves; the interop check has tables of them.
    ("ApiVersions", "ApiKeys"),
    ("ApiVersions", "SupportedFeatures"),
    ("ApiVersions", "FinalizedFeatures"),
];

/// An answer without the values that differ in each run.
pub(crate) fn settled(api: &str, answer: Value, topic_id: Uuid) -> Value {
    settle(api, "", answer, topic_id)
}

fn settle(api: &str, name: &str, value: Value, topic_id: Uuid) -> Value {
    let is_volatile = VOLATILE.contains(&name) || VOLATILE_OF.contains(&(api, name));
    match value {
        Value::Null => Value::Null,
        Value::Number(-1 | 0) if !name.ends_with("Epoch") => value,
        Value::List(values) if is_volatile => {
            Value::Text(if values.is_empty() { "none" } else { "some" }.into())
        }
        _ if is_volatile => Value::Text("*".into()),
        // The texts of messages are each broker's own; their presence is compared.
        Value::Text(text) if name.ends_with("Message") && !text.is_empty() => Value::Text("...".into()),
        Value::Text(text) => Value::Text(without_ids(&text)),
        Value::Uuid(id) if id == topic_id => Value::Text("the topic's".into()),
        Value::Uuid(id) if id == NO_TOPIC || id.is_zero() => Value::Uuid(id),
        Value::Uuid(_) => Value::Text("*".into()),
        Value::Number(number) if name.contains("Time") && number > 1_600_000_000_000 => {
            Value::Text("*".into())
        }
        Value::List(values) => {
            Value::List(values.into_iter().map(|value| settle(api, name, value, topic_id)).collect())
        }
        Value::Fields(fields) => {
            let compared = fields.into_iter().filter(|(name, _)| name != "ThrottleTimeMs");
            let settled = compared.map(|(name, value)| {
                let value = settle(api, &name, value, topic_id);
                (name, value)
            });
            Value::Fields(settled.collect())
        }
        value => value,
    }
}

/// The name of a member without the id from the broker: names end with such an id, or are one.
fn without_ids(text: &str) -> String {
    const LENGTH: usize = 36;
    let is_id = |text: &str| {
        let parts: Vec<_> = text.split('-').map(str::len).collect();
        parts == [8, 4, 4, 4, 12] && text.chars().all(|one| one == '-' || one.is_ascii_hexdigit())
    };
    match text.len().checked_sub(LENGTH).and_then(|at| text.split_at_checked(at)) {
        Some((before, id)) if is_id(id) => format!("{before}*"),
        _ if text.len() == 22 && text.parse::<Uuid>().is_ok() => "*".to_owned(),
        _ => text.to_owned(),
    }
}

#[test]
fn ids_are_left_out_of_names() {
    assert_eq!(without_ids("test-0b5c2a52-6d6c-4b39-9d5e-1f2e3d4c5b6a"), "test-*");
    assert_eq!(without_ids("AAAAAAAAAAAAAAAAAAAAAA"), "*");
    assert_eq!(without_ids("a member"), "a member");
}
