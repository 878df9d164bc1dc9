//! Messages between members through the coordinator: subscriptions and assignments (`ConsumerProtocol`).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_wire::coordinator::{decode_with_version_or_newer, encode_with_version};
use mainstem_wire::messages::consumer_protocol_assignment::{self, ConsumerProtocolAssignment};
use mainstem_wire::messages::consumer_protocol_subscription::{self, ConsumerProtocolSubscription};
use mainstem_wire::{DecodeError, EncodeError};

use super::assignor::MemberSubscription;
use crate::topic_partition::{TopicPartition, by_topic};

/// The version that has the generation beside the partitions (KIP-792).
const SUBSCRIPTION_VERSION: i16 = 3;
const ASSIGNMENT_VERSION: i16 = 3;

/// The bytes of a subscription.
pub(crate) fn encode_subscription(subscription: &MemberSubscription) -> Result<Vec<u8>, EncodeError> {
    let owned = by_topic(&subscription.owned).into_iter().map(|(topic, partitions)| {
        consumer_protocol_subscription::TopicPartition { topic: Cow::Borrowed(topic), partitions }
    });
    let message = ConsumerProtocolSubscription {
        topics: subscription.topics.iter().map(|topic| Cow::Borrowed(&**topic)).collect(),
        // Older Java clients look for the generation there.
        user_data: Some(Cow::Owned(subscription.generation.to_be_bytes().to_vec())),
        owned_partitions: owned.collect(),
        generation_id: subscription.generation,
        ..Default::default()
    };
    encode_with_version(&message, SUBSCRIPTION_VERSION)
}

/// A subscription out of its bytes.
pub(crate) fn decode_subscription(bytes: &[u8]) -> Result<MemberSubscription, DecodeError> {
    let (message, _) = decode_with_version_or_newer::<ConsumerProtocolSubscription<'_>>(bytes)?;
    let owned = message.owned_partitions.iter().flat_map(|one| keys(&one.topic, &one.partitions)).collect();
    let in_user_data =
        message.user_data.as_deref().and_then(<[u8]>::first_chunk).map(|four| i32::from_be_bytes(*four));
    let generation = match message.generation_id {
        ..0 => in_user_data.unwrap_or(-1),
        generation => generation,
    };
    Ok(MemberSubscription {
        topics: message.topics.iter().map(|topic| Arc::from(&**topic)).collect(),
        owned,
        generation,
    })
}

/// The bytes of an assignment.
pub(crate) fn encode_assignment(assigned: &BTreeSet<TopicPartition>) -> Result<Vec<u8>, EncodeError> {
    let topics = by_topic(assigned).into_iter().map(|(topic, partitions)| {
        consumer_protocol_assignment::TopicPartition { topic: Cow::Borrowed(topic), partitions }
    });
    let message = ConsumerProtocolAssignment { assigned_partitions: topics.collect(), ..Default::default() };
    encode_with_version(&message, ASSIGNMENT_VERSION)
}

/// An assignment out of its bytes; nothing at all where the leader had nothing for a member.
pub(crate) fn decode_assignment(bytes: &[u8]) -> Result<BTreeSet<TopicPartition>, DecodeError> {
    if bytes.is_empty() {
        return Ok(BTreeSet::new());
    }
    let (message, _) = decode_with_version_or_newer::<ConsumerProtocolAssignment<'_>>(bytes)?;
    Ok(message.assigned_partitions.iter().flat_map(|one| keys(&one.topic, &one.partitions)).collect())
}

fn keys(topic: &str, partitions: &[i32]) -> Vec<TopicPartition> {
    let topic: Arc<str> = topic.into();
    partitions.iter().map(|one| TopicPartition { topic: topic.clone(), partition: *one }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let owned: BTreeSet<_> =
            [("t", 0), ("t", 2), ("u", 1)].map(|(t, p)| TopicPartition::new(t, p)).into();
        let topics = ["t", "u"].map(Arc::from).into();
        let subscription = MemberSubscription { topics, owned: owned.clone(), generation: 7 };
        let bytes = encode_subscription(&subscription).unwrap();
        assert_eq!(decode_subscription(&bytes), Ok(subscription));
        assert_eq!(decode_assignment(&encode_assignment(&owned).unwrap()), Ok(owned));
        assert_eq!(decode_assignment(&[]), Ok(BTreeSet::new()));
    }

    #[test]
    fn the_generation_of_older_clients_is_in_their_own_data() {
        let message =
            ConsumerProtocolSubscription { user_data: Some(vec![0, 0, 0, 9].into()), ..Default::default() };
        let bytes = encode_with_version(&message, 1).unwrap();
        assert_eq!(decode_subscription(&bytes).unwrap().generation, 9);
        assert!(decode_subscription(&bytes[..5]).is_err());
    }
}
