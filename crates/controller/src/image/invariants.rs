//! Invariants of the image after every record of its own log: [`MetadataImage::check`].

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ConfigResource, Controllers, FIRST_INCARNATION, MetadataImage, PartitionImage, ResourceKind, TopicImage,
    names,
};

impl MetadataImage {
    /// Asserts what holds after every record that a state machine has decided. It looks at the whole image, so tests and simulations call
    /// it, and no request does.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.check_names();
        self.topics.values().for_each(check_partitions);
        self.check_configs();
        self.check_brokers();
        self.check_controllers();
        assert!(self.next_producer_id >= 0, "the next producer id is {}", self.next_producer_id);
    }

    /// Checks that topics are found by name and by id alike: a topic that an index lacks would be created twice, or never deleted.
    fn check_names(&self) {
        let named: BTreeMap<&str, _> = self.topics.iter().map(|(id, topic)| (&*topic.name, *id)).collect();
        assert_eq!(named.len(), self.topics.len(), "two topics have one name");
        let ids = self.ids.iter().map(|(name, id)| (&**name, *id));
        assert_eq!(ids.collect::<BTreeMap<_, _>>(), named, "topics by name, and topics");
        let other = self.topics.iter().find(|(id, topic)| **id != topic.id);
        assert!(other.is_none(), "a topic is found under another id than its own: {other:?}");
        let mut colliding: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for name in self.ids.keys().filter(|name| names::has_collision_chars(name)) {
            colliding.entry(names::unified(name)).or_default().insert(name.clone());
        }
        assert_eq!(self.colliding, colliding, "names that may collide, and names");
    }

    /// Checks configurations, quotas and users. None is empty, and each configuration of a topic has its topic: a later topic of the name
    /// must not find an earlier one's.
    fn check_configs(&self) {
        let empty = self.configs.iter().find(|(_, values)| values.is_empty());
        assert!(empty.is_none(), "what has no values has no configuration: {empty:?}");
        let is_gone = |resource: &&ConfigResource| {
            resource.kind == ResourceKind::Topic && !self.ids.contains_key(&resource.name)
        };
        let left = self.configs.keys().find(is_gone);
        assert!(left.is_none(), "the configuration of a topic that is gone is left: {left:?}");
        let empty = self.client_quotas.iter().find(|(_, quotas)| quotas.is_empty());
        assert!(empty.is_none(), "what has no values has no quotas: {empty:?}");
        assert!(self.scram.values().all(|users| !users.is_empty()), "a mechanism without users is there");
        assert!(
            self.features.values().all(|level| *level != 0),
            "features without a level: {:?}",
            self.features
        );
    }

    /// Checks the group of the metadata log: once nodes are named one votes, and a replica has an incarnation that no other one has had.
    fn check_controllers(&self) {
        let Controllers { nodes, version, last_incarnation } = &self.controllers;
        assert_eq!(
            nodes.is_empty(),
            *version == 0,
            "the version of the controllers, and controllers: {nodes:?}"
        );
        assert!(nodes.is_empty() || self.controllers.voters() > 0, "no node votes: {nodes:?}");
        let (mut later, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for (id, controller) in nodes {
            let incarnation = controller.incarnation;
            let is_given = (FIRST_INCARNATION..=*last_incarnation).contains(&incarnation);
            assert!(is_given, "the incarnation of node {id} was never given: {nodes:?}");
            let is_other = incarnation == FIRST_INCARNATION || later.insert(incarnation);
            assert!(is_other, "node {id} has the incarnation of another one: {nodes:?}");
            let is_other = addresses.insert((&controller.host, controller.port));
            assert!(is_other, "node {id} has the address of another one: {nodes:?}");
        }
    }

    /// Checks that a broker's epoch is the offset of its registration: requests of earlier registrations are refused by it.
    fn check_brokers(&self) {
        for (id, broker) in &self.brokers {
            assert_eq!(*id, broker.id, "a broker is found under another number than its own");
            let end = self.next_offset;
            assert!(
                broker.epoch < end,
                "broker {id} was registered behind the end of the log, {end}: {broker:?}"
            );
        }
    }
}

/// Checks replica lists. Nodes that are in sync, move, lead or may lead are replicas; a replica is named once, and has a directory if directories
/// are known.
fn check_partitions(topic: &TopicImage) {
    for (number, partition) in topic.partitions.iter().enumerate() {
        let PartitionImage { leader, leader_epoch, partition_epoch, replicas, directories, .. } = partition;
        let there: BTreeSet<i32> = replicas.iter().copied().collect();
        assert!(!there.is_empty(), "{}-{number} has no replica: {partition:?}", topic.name);
        assert_eq!(
            there.len(),
            replicas.len(),
            "{}-{number} names a replica twice: {partition:?}",
            topic.name
        );
        let lists = [
            &partition.isr,
            &partition.adding,
            &partition.removing,
            &partition.eligible_leader_replicas,
            &partition.last_known_elr,
        ];
        let unknown =
            lists.into_iter().flatten().chain(partition.original()).find(|node| !there.contains(node));
        assert_eq!(unknown, None, "it has no replica of {}-{number}: {partition:?}", topic.name);
        let is_led = *leader == -1 || there.contains(leader);
        assert!(is_led, "the leader of {}-{number} has no replica: {partition:?}", topic.name);
        let has_places = directories.is_empty() || directories.len() == replicas.len();
        assert!(has_places, "a replica of {}-{number} has no directory: {partition:?}", topic.name);
        let has_epochs = *leader_epoch >= 0 && *partition_epoch >= 0;
        assert!(has_epochs, "the epochs of {}-{number} are negative: {partition:?}", topic.name);
        check_group(&format!("{}-{number}", topic.name), partition);
    }
}

/// Checks a partition's group. Each replica has an incarnation, what a move adds it does not remove, and nothing moves without a record of
/// where it was.
fn check_group(name: &str, partition: &PartitionImage) {
    let both = partition.adding.iter().find(|node| partition.removing.contains(node));
    assert_eq!(both, None, "it is added to {name} and removed: {partition:?}");
    assert!(!partition.target().is_empty(), "no replica of {name} stays: {partition:?}");
    let Some(group) = &partition.group else { return };
    let known = (group.incarnations.len(), partition.wanted().len());
    let replicas = (partition.replicas.len(), partition.target().len());
    assert_eq!(known, replicas, "replicas of {name} with an incarnation, and replicas: {partition:?}");
    let mut given = group.incarnations.iter();
    let are_given = given.all(|incarnation| (1..=group.last_incarnation).contains(incarnation));
    assert!(are_given, "an incarnation of {name} was never given: {partition:?}");
    let moves = !partition.adding.is_empty() || !partition.removing.is_empty();
    assert!(partition.is_moving() || !moves, "{name} moves from nowhere: {partition:?}");
    assert!(group.settled_epoch >= 0, "the settled epoch of {name} is negative: {partition:?}");
}
