//! A fetch session as the client keeps it (KIP-227): only what has changed since the last request is sent.
//!
//! Pure: the wanted partitions go in, the content of the request comes out.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic, ForgottenTopic};
use mainstem_wire::{ErrorCode, Uuid};

use crate::topic_partition::TopicPartition;

/// A partition to fetch: its topic's id, the offset, and the epoch of its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) topic_id: Uuid,
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    /// Changes with every seek, to recognize requests from before it.
    pub(crate) generation: u64,
}

/// A session with one broker.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// 0: none.
    id: i32,
    /// 0: the next request asks for a new session.
    epoch: i32,
    /// The partitions of the session as the broker knows them.
    asked: BTreeMap<TopicPartition, Wanted>,
}

impl Session {
    /// Writes the wanted partitions into a request. A topic with another id than before begins a new session: a broker that knows
    /// topics by name alone would first add its partitions and then forget them.
    pub(crate) fn request(
        &mut self,
        wanted: BTreeMap<TopicPartition, Wanted>,
        partition_max_bytes: i32,
        request: &mut FetchRequest<'static>,
    ) {
        let is_replaced = |(key, wanted): (&TopicPartition, &Wanted)| {
            self.asked.get(key).is_some_and(|asked| asked.topic_id != wanted.topic_id)
        };
        if wanted.iter().any(is_replaced) {
            self.epoch = 0;
        }
        (request.session_id, request.session_epoch) = (self.id, self.epoch);
        let known = if self.epoch == 0 { BTreeMap::new() } else { std::mem::take(&mut self.asked) };
        for (key, asked) in known.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
            forgotten(&mut request.forgotten_topics_data, &key.topic, asked.topic_id)
                .partitions
                .push(key.partition);
        }
        for (key, wanted) in wanted.iter().filter(|(key, wanted)| known.get(*key) != Some(*wanted)) {
            topic(&mut request.topics, &key.topic, wanted.topic_id).partitions.push(FetchPartition {
                partition: key.partition,
                current_leader_epoch: wanted.leader_epoch,
                fetch_offset: wanted.offset,
                partition_max_bytes,
                ..Default::default()
            });
        }
        self.asked = wanted;
    }

    /// The last request for a partition.
    pub(crate) fn asked(&self, key: &TopicPartition) -> Option<&Wanted> {
        self.asked.get(key)
    }

    /// The names of the topics that were asked for, by their ids.
    pub(crate) fn names(&self) -> HashMap<Uuid, Arc<str>> {
        self.asked.iter().map(|(key, asked)| (asked.topic_id, key.topic.clone())).collect()
    }

    /// The partitions of the last request, and what was asked of them.
    pub(crate) fn all_asked(&self) -> impl Iterator<Item = (&TopicPartition, &Wanted)> {
        self.asked.iter()
    }

    /// Takes an answer without an error, with the session's id; 0 if the broker keeps no session.
    pub(crate) fn answered(&mut self, id: i32) {
        self.epoch = match (id, self.epoch) {
            (0, _) => 0,
            (_, i32::MAX) => 1,
            (_, epoch) => epoch + 1,
        };
        self.id = id;
    }

    /// Handles a failed request: the next one begins a new session, and ends this one if the broker may still have it.
    pub(crate) fn failed(&mut self, code: Option<ErrorCode>) {
        self.epoch = 0;
        if code == Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND) {
            self.id = 0;
        }
    }
}

/// The entry of a topic, which is the last one if there is one: partitions come in the order of their topics.
fn topic<'t>(topics: &'t mut Vec<FetchTopic<'static>>, name: &str, id: Uuid) -> &'t mut FetchTopic<'static> {
    if topics.last().is_none_or(|last| last.topic != name || last.topic_id != id) {
        let topic = Cow::Owned(name.to_owned());
        topics.push(FetchTopic { topic, topic_id: id, ..Default::default() });
    }
    topics.last_mut().expect("there is one now")
}

fn forgotten<'t>(
    topics: &'t mut Vec<ForgottenTopic<'static>>,
    name: &str,
    id: Uuid,
) -> &'t mut ForgottenTopic<'static> {
    if topics.last().is_none_or(|last| last.topic != name || last.topic_id != id) {
        let topic = Cow::Owned(name.to_owned());
        topics.push(ForgottenTopic { topic, topic_id: id, ..Default::default() });
    }
    topics.last_mut().expect("there is one now")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(offsets: &[(&str, i32, i64)]) -> BTreeMap<TopicPartition, Wanted> {
        let entry = |(topic, partition, offset): &(&str, i32, i64)| {
            let wanted =
                Wanted { topic_id: Uuid::default(), offset: *offset, leader_epoch: 0, generation: 0 };
            (TopicPartition::new(*topic, *partition), wanted)
        };
        offsets.iter().map(entry).collect()
    }

    /// The request in one line: session, what is asked and what is forgotten.
    fn ask(session: &mut Session, offsets: &[(&str, i32, i64)]) -> String {
        let mut request = FetchRequest::default();
        session.request(wanted(offsets), 1, &mut request);
        let asked = request.topics.iter().flat_map(|topic| {
            topic
                .partitions
                .iter()
                .map(|one| format!(" {}-{}@{}", topic.topic, one.partition, one.fetch_offset))
        });
        let forgotten = request.forgotten_topics_data.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| format!(" -{}-{partition}", topic.topic))
        });
        let changes: String = asked.chain(forgotten).collect();
        format!("{}/{}{changes}", request.session_id, request.session_epoch)
    }

    #[test]
    fn only_changes_are_sent() {
        let mut session = Session::default();
        assert_eq!(ask(&mut session, &[("a", 0, 5), ("a", 1, 7), ("b", 0, 0)]), "0/0 a-0@5 a-1@7 b-0@0");
        session.answered(42);
        assert_eq!(ask(&mut session, &[("a", 0, 6), ("a", 1, 7), ("b", 0, 0)]), "42/1 a-0@6");
        session.answered(42);
        assert_eq!(ask(&mut session, &[("a", 0, 6), ("c", 0, 1)]), "42/2 c-0@1 -a-1 -b-0");
        session.answered(42);
        assert_eq!(ask(&mut session, &[("a", 0, 6), ("c", 0, 1)]), "42/3");
    }

    #[test]
    fn after_a_failure_everything_is_sent_again() {
        let mut session = Session::default();
        let _ = ask(&mut session, &[("a", 0, 5)]);
        session.answered(42);
        session.failed(None);
        assert_eq!(ask(&mut session, &[("a", 0, 5)]), "42/0 a-0@5", "the old one is closed");
        session.failed(Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert_eq!(ask(&mut session, &[("a", 0, 5)]), "0/0 a-0@5");
        session.answered(0);
        assert_eq!(ask(&mut session, &[("a", 0, 5)]), "0/0 a-0@5", "the broker keeps none");
    }

    #[test]
    fn epochs_leave_zero_out_when_they_come_round() {
        let mut session = Session { id: 42, epoch: i32::MAX, ..Session::default() };
        session.answered(42);
        assert_eq!(session.epoch, 1);
    }

    #[test]
    fn a_topic_with_another_id_begins_a_new_session() {
        let mut session = Session::default();
        let _ = ask(&mut session, &[("a", 0, 5)]);
        session.answered(42);
        let mut renewed = wanted(&[("a", 0, 0)]);
        renewed.values_mut().for_each(|wanted| wanted.topic_id = Uuid::from_u128(7));
        let mut request = FetchRequest::default();
        session.request(renewed, 1, &mut request);
        assert_eq!((request.session_id, request.session_epoch), (42, 0), "the old one is closed");
        assert_eq!(request.topics[0].topic_id, Uuid::from_u128(7));
        // Kafka's broker forgets after it has added, and without ids both are the same partition.
        assert!(request.forgotten_topics_data.is_empty());
    }
}
