//! Names of topics, and their ids.

use mainstem_wire::Uuid;

/// The longest name of a topic, in bytes: a directory is named after it and its partition.
pub const NAME_LEN_MAX: usize = 249;

/// The topic of the metadata log, which no client creates.
pub const CLUSTER_METADATA: &str = "__cluster_metadata";
/// The topic of groups and committed offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// The topic of transactions.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// The topic of share groups' state.
pub const SHARE_GROUP_STATE: &str = "__share_group_state";

/// Returns true if clients see that a topic is internal.
pub fn is_internal(name: &str) -> bool {
    [CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE].contains(&name)
}

/// Returns the reason why a name cannot be a topic's, in Kafka's words, or `Ok`.
pub fn check(name: &str) -> Result<(), String> {
    let why = match name {
        "" => "the empty string is not allowed".to_string(),
        "." => "'.' is not allowed".to_string(),
        ".." => "'..' is not allowed".to_string(),
        _ if name.len() > NAME_LEN_MAX => {
            format!("the length of '{name}' is longer than the max allowed length {NAME_LEN_MAX}")
        }
        _ if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) => {
            format!(
                "'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
            )
        }
        _ => return Ok(()),
    };
    Err(format!("Topic name is invalid: {why}"))
}

/// Returns true if a name can collide with another one: metric names write `.` as `_`.
pub(super) fn has_collision_chars(name: &str) -> bool {
    name.contains(['.', '_'])
}

/// Returns the form that is equal for two names that collide.
pub(super) fn unified(name: &str) -> String {
    name.replace('.', "_")
}

/// An id from 128 random bits, as Kafka's `Uuid.randomUuid` makes it: version 4, and not reserved (the first hundred
/// are), and its text does not begin with a dash, which a command line would take for an option.
pub fn topic_id(random: u128) -> Uuid {
    const VERSION: u128 = 0xf << 76;
    const VARIANT: u128 = 0b11 << 62;
    let bits = random & !VERSION & !VARIANT | 4 << 76 | 0b10 << 62;
    let id = Uuid::from_u128(bits);
    if id.to_string().starts_with('-') { Uuid::from_u128(bits & !(1 << 127)) } else { id }
}

/// Returns true if an id can be a topic's: Kafka reserves the first hundred.
pub(super) fn is_topic_id(id: Uuid) -> bool {
    id.to_u128() > 100
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_judged_as_kafka_judges_them() {
        for good in ["a", "A-1._", "__consumer_offsets", &"x".repeat(249)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", "the empty string is not allowed"),
            (".", "'.' is not allowed"),
            ("..", "'..' is not allowed"),
            (
                "sp ace",
                "'sp ace' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
            ),
            ("ä", "'ä' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ] {
            assert_eq!(check(bad), Err(format!("Topic name is invalid: {why}")));
        }
        let long = "x".repeat(250);
        assert!(check(&long).is_err_and(|why| why.ends_with("is longer than the max allowed length 249")));
    }

    proptest! {
        #[test]
        fn ids_are_version_4_and_usable(random: u128) {
            let id = topic_id(random);
            prop_assert!(is_topic_id(id));
            prop_assert!(!id.to_string().starts_with('-'), "{}", id);
            prop_assert_eq!((id.to_u128() >> 76) & 0xf, 4);
            prop_assert_eq!((id.to_u128() >> 62) & 3, 2);
        }
    }

    #[test]
    fn an_id_that_would_begin_with_a_dash_is_changed() {
        let dash = 0b111110_u128 << 122;
        assert!(Uuid::from_u128(dash).to_string().starts_with('-'));
        assert!(!topic_id(dash).to_string().starts_with('-'));
    }
}
