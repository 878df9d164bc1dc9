//! The differences between two images. A snapshot replaces records that were never seen one by one; a running node has to carry out what
//! they would have changed.

use std::collections::{BTreeMap, BTreeSet};

use super::image::{MetadataChange, MetadataImage, TopicImage};
use super::state_machine::MetadataStateMachine;

impl MetadataStateMachine {
    /// Replaces the metadata by those of `newer`, which was loaded from a snapshot, and returns the changes: first removals, then
    /// additions and other values.
    ///
    /// # Panics
    /// If decisions are pending, or `newer` is older.
    pub fn replace(&mut self, newer: MetadataStateMachine) -> Vec<MetadataChange> {
        assert!(!self.has_pending() && !newer.has_pending(), "something is decided and not committed");
        let (before, behind) = (self.image().next_offset(), newer.image().next_offset());
        assert!(before <= behind, "the log never goes back: {behind} < {before}");
        let changes = self.image().changes_to(newer.image());
        *self = newer;
        changes
    }
}

impl MetadataImage {
    fn changes_to(&self, newer: &MetadataImage) -> Vec<MetadataChange> {
        // A new field needs its changes here.
        let MetadataImage {
            next_offset: _,
            topics: _,
            ids: _,
            colliding: _,
            configs,
            brokers,
            controllers,
            features,
            next_producer_id,
            client_quotas,
            acls,
            scram,
            tokens: _,
        } = self;
        let mut changes = Vec::new();
        let gone = self.topics().filter(|topic| newer.topic_by_id(topic.id).is_none());
        changes.extend(gone.map(|topic| MetadataChange::TopicDeleted { topic: topic.clone() }));
        for topic in newer.topics() {
            self.add_topic_changes(topic, &mut changes);
        }
        for resource in differing(configs, &newer.configs) {
            let none = BTreeMap::new();
            let values = |all: &'_ BTreeMap<_, BTreeMap<String, String>>| all.get(resource).cloned();
            let (old, new) = (values(configs), values(&newer.configs));
            let names = differing(old.as_ref().unwrap_or(&none), new.as_ref().unwrap_or(&none));
            changes.extend(names.into_iter().map(|name| MetadataChange::ConfigChanged {
                resource: resource.clone(),
                name: name.clone(),
            }));
        }
        let ids = differing(brokers, &newer.brokers).into_iter();
        changes.extend(ids.map(|id| MetadataChange::BrokerChanged { id: *id }));
        let ids = differing(&controllers.nodes, &newer.controllers.nodes).into_iter();
        changes.extend(ids.map(|id| MetadataChange::ControllerChanged { id: *id }));
        let names = differing(features, &newer.features).into_iter();
        changes.extend(names.map(|name| MetadataChange::FeatureChanged { name: name.clone() }));
        if *next_producer_id != newer.next_producer_id {
            changes.push(MetadataChange::ProducerIdsTaken { next: newer.next_producer_id });
        }
        if *client_quotas != newer.client_quotas {
            changes.push(MetadataChange::QuotaChanged);
        }
        let ids = differing(acls, &newer.acls).into_iter();
        changes.extend(ids.map(|id| MetadataChange::AclChanged { id: *id }));
        let none = BTreeMap::new();
        for mechanism in differing(scram, &newer.scram) {
            let old = scram.get(mechanism).unwrap_or(&none);
            let users = differing(old, newer.scram.get(mechanism).unwrap_or(&none)).into_iter();
            changes.extend(
                users.map(|user| MetadataChange::ScramChanged { user: user.clone(), mechanism: *mechanism }),
            );
        }
        changes
    }

    fn add_topic_changes(&self, newer: &TopicImage, changes: &mut Vec<MetadataChange>) {
        let (topic_id, known) = (newer.id, self.topic_by_id(newer.id));
        if known.is_none() {
            changes.push(MetadataChange::TopicCreated { id: topic_id });
        }
        for (partition, image) in (0..).zip(&newer.partitions) {
            match known.and_then(|topic| topic.partitions.get(partition as usize)) {
                None => changes.push(MetadataChange::PartitionCreated { topic_id, partition }),
                Some(known) if known != image => {
                    changes.push(MetadataChange::PartitionChanged { topic_id, partition });
                }
                Some(_) => {}
            }
        }
    }
}

/// The keys whose values differ, or that only one of both has, in order.
fn differing<'a, K: Ord, V: PartialEq>(old: &'a BTreeMap<K, V>, new: &'a BTreeMap<K, V>) -> Vec<&'a K> {
    let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
    keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).collect()
}

#[cfg(test)]
mod tests {
    use mainstem_config::alter::Operation;
    use mainstem_wire::Uuid;

    use super::*;
    use crate::session::{Session, topic, with_configs};
    use crate::{access_tests, quota_tests};

    /// Replaces the metadata of a node that has all records below an offset by a snapshot of all. Returns the changes in words, and checks
    /// that the result is the same as if the node had seen each record.
    fn replace(session: &Session, known: usize) -> Vec<String> {
        let mut machine = MetadataStateMachine::default();
        for (offset, value) in (0..).zip(&session.log[..known]) {
            machine.replay(offset, value).expect("a record of the log");
        }
        let (mut newer, end) = (MetadataStateMachine::default(), session.end());
        for value in session.machine.image().snapshot() {
            newer.load(end, &value).expect("a record of the snapshot");
        }
        newer.skip_to(end);
        let before = machine.shared_image();
        let changes = machine.replace(newer);
        assert_eq!(machine.image(), session.machine.image());
        assert_eq!(machine.decide(Vec::new(), ()).base_offset, end, "the next record follows");
        changes.iter().map(|change| describe(&before, machine.image(), change)).collect()
    }

    fn describe(before: &MetadataImage, now: &MetadataImage, change: &MetadataChange) -> String {
        let name =
            |id: &Uuid| now.topic_by_id(*id).or(before.topic_by_id(*id)).expect("a topic").name.clone();
        match change {
            MetadataChange::TopicDeleted { topic } => format!("{} is gone", topic.name),
            MetadataChange::TopicCreated { id } => format!("{} is new", name(id)),
            MetadataChange::PartitionCreated { topic_id, partition } => {
                format!("{}-{partition} is new", name(topic_id))
            }
            MetadataChange::PartitionChanged { topic_id, partition } => {
                format!("{}-{partition} is another", name(topic_id))
            }
            MetadataChange::ConfigChanged { resource, name } => format!("{name} of {}", resource.name),
            MetadataChange::AclChanged { id } => {
                let acl = now.acl(*id).or(before.acl(*id)).expect("a rule");
                format!("the rule of {}", acl.principal)
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_snapshot_changes_what_the_records_before_it_would_have_changed() {
        let mut session = Session::new("");
        session.create(with_configs("a", &[("retention.ms", Some("5")), ("flush.ms", Some("7"))]));
        session.create(topic("b", 1, 1));
        session.create(topic("c", 2, 1));
        session.alter(2, "c", &[("retention.ms", Operation::Set, Some("1"))], false);
        session.commit_all();
        let known = session.log.len();
        assert_eq!(replace(&session, known), [""; 0], "nothing that was not known");
        session.delete(&[(Some("a"), Uuid::ZERO), (Some("c"), Uuid::ZERO)]);
        session.create(topic("gone", 1, 1));
        session.delete(&[(Some("gone"), Uuid::ZERO)]);
        session.create(with_configs("a", &[("flush.ms", Some("7"))]));
        session.grow("b", 2, None);
        session.alter(4, "", &[("log.retention.ms", Operation::Set, Some("3"))], false);
        let ids = session.machine.allocate_producer_ids(1);
        let _ = session.append(ids);
        session.commit_all();
        let expected = [
            "a is gone",
            "c is gone",
            "a is new",
            "a-0 is new",
            "b-1 is new",
            "retention.ms of a",
            "retention.ms of c",
            "log.retention.ms of ",
            "ProducerIdsTaken { next: 1000 }",
        ];
        assert_eq!(replace(&session, known), expected);
        assert!(replace(&session, 0).contains(&"BrokerChanged { id: 1 }".to_owned()));
    }

    /// Rules, users and quotas are reported one by one, since their users rebuild what is named.
    #[test]
    fn a_snapshot_changes_rules_users_and_quotas() {
        let mut session = Session::new("");
        let rule = |principal| (2, "t", 3, principal, 3, 3);
        let made = access_tests::create(&mut session, &[rule("User:stays"), rule("User:goes")]);
        assert_eq!(made, ["ok"; 2]);
        let user = |name, iterations| access_tests::upsertion(name, 1, iterations);
        let users = ["stays", "goes", "changes"].map(|name| user(name, 4096)).into();
        assert_eq!(access_tests::alter(&mut session, &[], users).len(), 3);
        let entity = [("user", Some("u"))];
        let quota = |session: &mut Session, rate| {
            assert_eq!(quota_tests::alter(session, &entity, &[("producer_byte_rate", Some(rate))]), "ok");
        };
        quota(&mut session, 1000.0);
        let known = session.log.len();
        assert_eq!(replace(&session, known), [""; 0], "nothing that was not known");
        let removed = access_tests::delete(&mut session, &[(1, None, 1, Some("User:goes"), 1, 1)]);
        assert_eq!(removed, ["ok t"]);
        assert_eq!(access_tests::create(&mut session, &[rule("User:comes")]), ["ok"]);
        let users = vec![user("changes", 8192), user("comes", 4096)];
        assert_eq!(access_tests::alter(&mut session, &[("goes", 1)], users).len(), 3);
        quota(&mut session, 2000.0);
        let expected = [
            "QuotaChanged",
            "the rule of User:goes",
            "the rule of User:comes",
            "ScramChanged { user: \"changes\", mechanism: Sha256 }",
            "ScramChanged { user: \"comes\", mechanism: Sha256 }",
            "ScramChanged { user: \"goes\", mechanism: Sha256 }",
        ];
        assert_eq!(replace(&session, known), expected);
    }
}
