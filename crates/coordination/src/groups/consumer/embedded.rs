//! The consumer protocol that classic members carry in JoinGroup and SyncGroup: subscription and assignment.

use mainstem_wire::Message;
use mainstem_wire::Uuid;
use mainstem_wire::coordinator::{decode_with_version_or_newer, encode_with_version};
use mainstem_wire::messages::consumer_protocol_assignment::{ConsumerProtocolAssignment, TopicPartition};
use mainstem_wire::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;

use super::partitions::Assignment;
use super::topics::ClusterTopics;

/// The protocol type of consumers.
pub(crate) const CONSUMER: &str = "consumer";

/// A member's subscription; None if it is malformed.
pub(crate) fn subscription(metadata: &[u8]) -> Option<ConsumerProtocolSubscription<'_>> {
    version(metadata)?;
    decode_with_version_or_newer(metadata).ok().map(|(subscription, _)| subscription)
}

/// The version of a subscription, which is that of the assignment that answers it.
pub(crate) fn version(metadata: &[u8]) -> Option<i16> {
    let (version, _) = metadata.split_first_chunk::<2>()?;
    let version = i16::from_be_bytes(*version);
    (version >= 0).then(|| version.min(*ConsumerProtocolAssignment::VERSIONS.end()))
}

/// The partitions that a member reports as its own.
pub(crate) fn owned(subscription: &ConsumerProtocolSubscription<'_>, topics: &ClusterTopics) -> Assignment {
    let known = subscription.owned_partitions.iter();
    let known = known.filter_map(|topic| Some((topics.get(&topic.topic)?.id, &topic.partitions)));
    known.flat_map(|(id, partitions)| partitions.iter().map(move |index| (id, *index))).collect()
}

/// The partitions of an assignment; topics that are gone are left out.
///
/// # Errors
/// The reason why it cannot be understood, or taken over.
pub(crate) fn assigned(bytes: &[u8], topics: &ClusterTopics) -> Result<Assignment, &'static str> {
    let malformed = |_| "its assignment is malformed";
    let (assignment, _): (ConsumerProtocolAssignment<'_>, _) =
        decode_with_version_or_newer(bytes).map_err(malformed)?;
    if assignment.user_data.as_ref().is_some_and(|data| !data.is_empty()) {
        return Err("its own assignor keeps data in the assignment, which would be lost");
    }
    let known = assignment.assigned_partitions.iter();
    let known = known.filter_map(|topic| Some((topics.get(&topic.topic)?.id, &topic.partitions)));
    Ok(known.flat_map(|(id, partitions)| partitions.iter().map(move |index| (id, *index))).collect())
}

/// An assignment as a classic member gets it; topics that are gone are left out.
pub(crate) fn assignment(
    partitions: impl Iterator<Item = (Uuid, Vec<i32>)>,
    version: i16,
    topics: &ClusterTopics,
) -> Vec<u8> {
    let named = partitions.filter_map(|(id, partitions)| {
        let topic = topics.name(&id)?.to_string().into();
        Some(TopicPartition { topic, partitions })
    });
    let assignment =
        ConsumerProtocolAssignment { assigned_partitions: named.collect(), ..Default::default() };
    encode_with_version(&assignment, version).expect("names of topics are short")
}
