//! The image: the state that follows from the metadata records.

mod controller;
mod group_field;
mod invariants;
mod partition;
mod tagged_field;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstem_security::acl::AclBinding;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_wire::Uuid;
use mainstem_wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::messages::partition_change_record::PartitionChangeRecord;
use mainstem_wire::messages::partition_record::PartitionRecord;
use mainstem_wire::messages::producer_ids_record::ProducerIdsRecord;
use mainstem_wire::messages::register_broker_record::RegisterBrokerRecord;
use mainstem_wire::messages::topic_record::TopicRecord;
use mainstem_wire::messages::unregister_broker_record::UnregisterBrokerRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::Inconsistency;
use super::names;
use mainstem_config::{BrokerValues, GroupConfigValues};
use mainstem_limits::quotas::QuotaEntity;

pub use controller::ControllerImage;
pub(crate) use controller::{Controllers, FIRST_INCARNATION};
pub use partition::{GroupImage, PartitionImage};

/// The epoch of a node that is not registered as a broker.
pub(crate) const NO_BROKER_EPOCH: i64 = -1;

/// The metadata up to an offset of the log. Look-ups are by hash or by tree; nothing is computed on reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetadataImage {
    pub(super) next_offset: i64,
    pub(super) topics: HashMap<Uuid, TopicImage>,
    pub(super) ids: BTreeMap<String, Uuid>,
    /// Names with `.` or `_`, by their form with `_` alone.
    pub(super) colliding: BTreeMap<String, BTreeSet<String>>,
    pub(super) configs: BTreeMap<ConfigResource, BTreeMap<String, String>>,
    pub(super) brokers: BTreeMap<i32, BrokerImage>,
    pub(super) controllers: Controllers,
    pub(super) features: BTreeMap<String, i16>,
    pub(super) next_producer_id: i64,
    pub(super) client_quotas: BTreeMap<QuotaEntity, BTreeMap<String, f64>>,
    pub(super) acls: BTreeMap<Uuid, AclBinding>,
    /// By user.
    pub(super) scram: BTreeMap<ScramMechanism, BTreeMap<String, ScramCredential>>,
    /// Encoded records of delegation tokens, which nothing here reads, by the token's id.
    pub(super) tokens: BTreeMap<String, Vec<u8>>,
}

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicImage {
    /// Its name.
    pub name: String,
    /// Its id, which no other topic ever has, not even a later one of the same name (KIP-516).
    pub id: Uuid,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionImage>,
}

impl TopicImage {
    /// The largest replication factor of its partitions; 1 without any.
    pub fn replication_factor(&self) -> usize {
        self.partitions.iter().map(PartitionImage::replication_factor).max().unwrap_or(1)
    }
}

/// A registered broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerImage {
    /// Its number.
    pub id: i32,
    /// Rises with each start: the offset of its registration.
    pub epoch: i64,
    /// New with each start.
    pub incarnation_id: Uuid,
    /// Name, host, port and security protocol's code of each listener.
    pub endpoints: Vec<(String, String, u16, i16)>,
    /// Its rack.
    pub rack: Option<String>,
    /// Its log directories.
    pub log_dirs: Vec<Uuid>,
    /// Those of them that take no new partitions (KIP-1066).
    pub cordoned_log_dirs: Vec<Uuid>,
    /// True while the broker is fenced.
    pub fenced: bool,
    /// The levels of features at which it can work; empty if its registration names none.
    pub features: FeatureRanges,
}

/// The lowest and highest levels of features, by name.
pub type FeatureRanges = BTreeMap<String, (i16, i16)>;

impl BrokerImage {
    /// The log directories that take new partitions.
    pub fn open_log_dirs(&self) -> impl Iterator<Item = &Uuid> {
        self.log_dirs.iter().filter(|dir| !self.cordoned_log_dirs.contains(dir))
    }

    /// Returns true if the broker accepts new partitions when it is not fenced. A broker that names no directories may have one.
    pub(super) fn takes_partitions(&self) -> bool {
        self.log_dirs.is_empty() || self.open_log_dirs().next().is_some()
    }
}

/// Kinds of resources with configurations. The discriminants are the protocol's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i8)]
pub enum ResourceKind {
    /// A topic, by name.
    Topic = 2,
    /// A node, by number; the empty name is the cluster's default.
    Broker = 4,
    /// A subscription to client metrics, by name (KIP-714).
    ClientMetrics = 16,
    /// A group, by name.
    Group = 32,
}

impl ResourceKind {
    /// The kind of a code, if it is one that has configurations here.
    pub fn from_code(code: i8) -> Option<ResourceKind> {
        let all =
            [ResourceKind::Topic, ResourceKind::Broker, ResourceKind::ClientMetrics, ResourceKind::Group];
        all.into_iter().find(|kind| *kind as i8 == code)
    }
}

/// A resource with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigResource {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its name.
    pub name: String,
}

impl ConfigResource {
    /// A resource of a kind.
    pub fn new(kind: ResourceKind, name: impl Into<String>) -> ConfigResource {
        ConfigResource { kind, name: name.into() }
    }
}

/// The change that a record made, for the driver that opens and closes logs by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataChange {
    /// No change that a reader can see.
    None,
    /// A topic exists; its partitions follow.
    TopicCreated {
        /// Its id.
        id: Uuid,
    },
    /// A topic is gone with its partitions and configurations.
    TopicDeleted {
        /// The topic before its deletion.
        topic: TopicImage,
    },
    /// A partition exists.
    PartitionCreated {
        /// Its topic.
        topic_id: Uuid,
        /// Its number.
        partition: i32,
    },
    /// A partition's leader, epochs or replicas changed.
    PartitionChanged {
        /// Its topic.
        topic_id: Uuid,
        /// Its number.
        partition: i32,
    },
    /// A value of a resource was set or forgotten.
    ConfigChanged {
        /// Whose.
        resource: ConfigResource,
        /// The key.
        name: String,
    },
    /// A broker registered, changed or left. One that left has no place in the group of the metadata log either.
    BrokerChanged {
        /// Its number.
        id: i32,
    },
    /// A node joined or left the group of the metadata log, or has another address, directory or vote there.
    ControllerChanged {
        /// Its number.
        id: i32,
    },
    /// A feature has another level.
    FeatureChanged {
        /// Its name.
        name: String,
    },
    /// Producer ids below this one are taken.
    ProducerIdsTaken {
        /// The first id that is not.
        next: i64,
    },
    /// A quota of a client was set, changed or removed.
    QuotaChanged,
    /// An access control entry was made or removed.
    AclChanged {
        /// Its id.
        id: Uuid,
    },
    /// A SCRAM credential was set or removed.
    ScramChanged {
        /// Whose.
        user: String,
        /// For which mechanism.
        mechanism: ScramMechanism,
    },
}

/// Reading.
impl MetadataImage {
    /// The offset of the next record: everything below is applied.
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// The topic of this name.
    pub fn topic(&self, name: &str) -> Option<&TopicImage> {
        self.ids.get(name).and_then(|id| self.topics.get(id))
    }

    /// The topic of this id.
    pub fn topic_by_id(&self, id: Uuid) -> Option<&TopicImage> {
        self.topics.get(&id)
    }

    /// The partition of this number, of the topic of this id.
    pub(super) fn partition_of(&self, topic_id: Uuid, number: i32) -> Option<&PartitionImage> {
        self.topic_by_id(topic_id)?.partitions.get(usize::try_from(number).ok()?)
    }

    /// All topics, by name.
    pub fn topics(&self) -> impl Iterator<Item = &TopicImage> {
        self.ids.values().filter_map(|id| self.topics.get(id))
    }

    /// The topics from this name on, in order: DescribeTopicPartitions pages through them.
    pub fn topics_from(&self, name: &str) -> impl Iterator<Item = &TopicImage> {
        let from = self.ids.range::<str, _>((std::ops::Bound::Included(name), std::ops::Bound::Unbounded));
        from.filter_map(|(_, id)| self.topics.get(id))
    }

    /// The values that were set for a resource.
    pub fn configs(&self, resource: &ConfigResource) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.configs.get(resource).unwrap_or(&NONE)
    }

    /// Returns the configuration of a group: its own values, and the broker's for all others. The group need not exist.
    pub fn group_config(&self, group_id: &str, broker: &BrokerValues) -> GroupConfigValues {
        GroupConfigValues::resolve(self.configs(&ConfigResource::new(ResourceKind::Group, group_id)), broker)
    }

    /// Every resource of a kind for which values were set, by name.
    pub fn configured(&self, kind: ResourceKind) -> impl Iterator<Item = &str> {
        let from = self.configs.range(ConfigResource::new(kind, "")..);
        from.map(|(resource, _)| resource)
            .take_while(move |resource| resource.kind == kind)
            .map(|resource| resource.name.as_str())
    }

    /// A registered broker.
    pub fn broker(&self, id: i32) -> Option<&BrokerImage> {
        self.brokers.get(&id)
    }

    /// All registered brokers, by number.
    pub fn brokers(&self) -> impl Iterator<Item = &BrokerImage> {
        self.brokers.values()
    }

    /// The level of a feature that was finalised.
    pub fn feature(&self, name: &str) -> Option<i16> {
        self.features.get(name).copied()
    }

    /// All finalised features, by name.
    pub fn features(&self) -> impl Iterator<Item = (&str, i16)> {
        self.features.iter().map(|(name, level)| (name.as_str(), *level))
    }

    /// The first producer id that no block holds.
    pub fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    /// A topic with a replica on another node than this one, with its replicas.
    pub fn replicated_elsewhere(&self, node: i32) -> Option<(&str, &[i32])> {
        self.topics().find_map(|topic| {
            let elsewhere = topic.partitions.iter().find(|partition| partition.replicas != [node])?;
            Some((topic.name.as_str(), elsewhere.replicas.as_slice()))
        })
    }

    /// Returns true if a user can log in by SCRAM.
    pub fn has_scram_users(&self) -> bool {
        !self.scram.is_empty()
    }

    /// Returns the parts of the metadata that need protection, each kind with its number, for a person. `has_sasl`: there is a listener
    /// whose clients need the credentials. `has_authorizer`: access control entries are obeyed.
    pub fn protection(&self, has_sasl: bool, has_authorizer: bool) -> Vec<String> {
        let credentials = if has_sasl { 0 } else { self.scram.values().map(BTreeMap::len).sum() };
        let kinds = [
            (if has_authorizer { 0 } else { self.acls.len() }, "access control entries (ACLs)"),
            (credentials, "SCRAM credentials of users"),
            (self.tokens.len(), "delegation tokens"),
        ];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        kinds.map(|(count, kind)| format!("{count} {kind}")).collect()
    }

    /// A topic whose name collides with this one: equal but for `.` and `_`.
    pub fn colliding(&self, name: &str) -> Option<&str> {
        if !names::has_collision_chars(name) {
            return None;
        }
        let others = self.colliding.get(&names::unified(name))?;
        others.iter().find(|other| *other != name).map(String::as_str)
    }
}

/// Applying. A record that cannot be applied changes nothing.
impl MetadataImage {
    /// Applies the record at this offset, which is the next one, or higher if the log has other records in between.
    pub(super) fn apply(
        &mut self,
        offset: i64,
        record: &MetadataRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let change = self.apply_body(record)?;
        self.skip_to(offset + 1);
        Ok(change)
    }

    /// Sets the offset of the next record: there are none in between.
    pub(super) fn skip_to(&mut self, offset: i64) {
        assert!(offset >= self.next_offset, "the log never goes back: {offset} < {}", self.next_offset);
        self.next_offset = offset;
    }

    fn apply_body(&mut self, record: &MetadataRecord<'_>) -> Result<MetadataChange, Inconsistency> {
        match record {
            MetadataRecord::TopicRecord(record) => self.create_topic(record),
            MetadataRecord::RemoveTopicRecord(record) => self.remove_topic(record.topic_id),
            MetadataRecord::PartitionRecord(record) => self.create_partition(record),
            MetadataRecord::PartitionChangeRecord(record) => self.change_partition(record),
            MetadataRecord::ConfigRecord(record) => self.configure(record),
            MetadataRecord::RegisterBrokerRecord(record) => Ok(self.register_broker(record)),
            MetadataRecord::BrokerRegistrationChangeRecord(record) => self.change_broker(record),
            MetadataRecord::FenceBrokerRecord(record) => self.fence(record.id, record.epoch, true),
            MetadataRecord::UnfenceBrokerRecord(record) => self.fence(record.id, record.epoch, false),
            MetadataRecord::UnregisterBrokerRecord(record) => self.unregister(record),
            MetadataRecord::RegisterControllerRecord(record) => self.register_controller(record),
            MetadataRecord::FeatureLevelRecord(record) => {
                let name = record.name.to_string();
                match record.feature_level {
                    0 => self.features.remove(&name),
                    level => self.features.insert(name.clone(), level),
                };
                Ok(MetadataChange::FeatureChanged { name })
            }
            MetadataRecord::ProducerIdsRecord(record) => self.take_producer_ids(record),
            MetadataRecord::ClientQuotaRecord(record) => self.change_quota(record),
            MetadataRecord::AccessControlEntryRecord(record) => self.add_acl(record),
            MetadataRecord::RemoveAccessControlEntryRecord(record) => self.remove_acl(record.id),
            MetadataRecord::UserScramCredentialRecord(record) => self.set_scram(record),
            MetadataRecord::RemoveUserScramCredentialRecord(record) => self.remove_scram(record),
            MetadataRecord::DelegationTokenRecord(token) => {
                let mut value = Vec::new();
                record.encode(&mut value, 0).map_err(|_| Inconsistency::Unsupported(record.name()))?;
                self.tokens.insert(token.token_id.to_string(), value);
                Ok(MetadataChange::None)
            }
            MetadataRecord::RemoveDelegationTokenRecord(record) => {
                self.tokens.remove(record.token_id.as_ref());
                Ok(MetadataChange::None)
            }
            MetadataRecord::ClearElrRecord(record) => self.clear_elr(&record.topic_name),
            MetadataRecord::ZkMigrationStateRecord(record) => check_zk_migration(record.zk_migration_state),
            MetadataRecord::NoOpRecord(_) => Ok(MetadataChange::None),
            // The state machine handles them before: an image has no transactions.
            MetadataRecord::BeginTransactionRecord(_)
            | MetadataRecord::EndTransactionRecord(_)
            | MetadataRecord::AbortTransactionRecord(_) => Err(Inconsistency::Transaction(record.name())),
        }
    }

    fn create_topic(&mut self, record: &TopicRecord<'_>) -> Result<MetadataChange, Inconsistency> {
        let (name, id) = (record.name.to_string(), record.topic_id);
        let taken = self.topics.contains_key(&id) || self.ids.contains_key(&name);
        if taken || !names::is_topic_id(id) || names::check(&name).is_err() {
            return Err(Inconsistency::Topic { name, id });
        }
        if names::has_collision_chars(&name) {
            self.colliding.entry(names::unified(&name)).or_default().insert(name.clone());
        }
        self.ids.insert(name.clone(), id);
        self.topics.insert(id, TopicImage { name, id, partitions: Vec::new() });
        Ok(MetadataChange::TopicCreated { id })
    }

    fn remove_topic(&mut self, id: Uuid) -> Result<MetadataChange, Inconsistency> {
        let topic = self.topics.remove(&id).ok_or(Inconsistency::UnknownTopicId(id))?;
        self.ids.remove(&topic.name);
        let unified = names::unified(&topic.name);
        if let Some(colliding) = self.colliding.get_mut(&unified) {
            colliding.remove(&topic.name);
            if colliding.is_empty() {
                self.colliding.remove(&unified);
            }
        }
        // Kafka writes no records for the configurations of a deleted topic: a later topic of the same name must not find them.
        self.configs.remove(&ConfigResource::new(ResourceKind::Topic, topic.name.clone()));
        Ok(MetadataChange::TopicDeleted { topic })
    }

    fn create_partition(&mut self, record: &PartitionRecord<'_>) -> Result<MetadataChange, Inconsistency> {
        let (topic_id, partition) = (record.topic_id, record.partition_id);
        let partitions = self.partitions_mut(topic_id)?;
        let refusal = Inconsistency::Partition { id: topic_id, partition, count: partitions.len() };
        match usize::try_from(partition) {
            Ok(at) if at < partitions.len() => {
                let known = &mut partitions[at];
                *known = known.replaced(record)?.ok_or(refusal)?;
                Ok(MetadataChange::PartitionChanged { topic_id, partition })
            }
            Ok(at) if at == partitions.len() => {
                partitions.push(PartitionImage::of_record(record)?);
                Ok(MetadataChange::PartitionCreated { topic_id, partition })
            }
            _ => Err(refusal),
        }
    }

    fn change_partition(
        &mut self,
        record: &PartitionChangeRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let (topic_id, partition) = (record.topic_id, record.partition_id);
        let partitions = self.partitions_mut(topic_id)?;
        let refusal = Inconsistency::Partition { id: topic_id, partition, count: partitions.len() };
        let known = usize::try_from(partition).ok().and_then(|at| partitions.get_mut(at));
        let known = known.ok_or(refusal)?;
        *known = known.changed(record)?;
        Ok(MetadataChange::PartitionChanged { topic_id, partition })
    }

    fn partitions_mut(&mut self, topic_id: Uuid) -> Result<&mut Vec<PartitionImage>, Inconsistency> {
        let topic = self.topics.get_mut(&topic_id).ok_or(Inconsistency::UnknownTopicId(topic_id))?;
        Ok(&mut topic.partitions)
    }

    /// Removes the eligible replicas that are not in sync (KIP-966): of a topic, or of all topics if the name is empty.
    fn clear_elr(&mut self, topic_name: &str) -> Result<MetadataChange, Inconsistency> {
        let id = self.ids.get(topic_name).copied();
        if !topic_name.is_empty() && id.is_none() {
            return Err(Inconsistency::UnknownTopicName(topic_name.to_owned()));
        }
        let topics = self.topics.values_mut().filter(|topic| id.is_none_or(|id| id == topic.id));
        for partition in topics.flat_map(|topic| &mut topic.partitions) {
            partition.eligible_leader_replicas.clear();
            partition.last_known_elr.clear();
        }
        Ok(MetadataChange::None)
    }

    fn configure(&mut self, record: &ConfigRecord<'_>) -> Result<MetadataChange, Inconsistency> {
        let code = record.resource_type;
        let kind = ResourceKind::from_code(code).ok_or(Inconsistency::ResourceType(code))?;
        let resource = ConfigResource::new(kind, record.resource_name.clone());
        let name = record.name.to_string();
        match &record.value {
            Some(value) => {
                let values = self.configs.entry(resource.clone()).or_default();
                values.insert(name.clone(), value.to_string());
            }
            None => {
                if let Some(values) = self.configs.get_mut(&resource) {
                    values.remove(&name);
                    if values.is_empty() {
                        self.configs.remove(&resource);
                    }
                }
            }
        }
        Ok(MetadataChange::ConfigChanged { resource, name })
    }

    fn register_broker(&mut self, record: &RegisterBrokerRecord<'_>) -> MetadataChange {
        let id = record.broker_id;
        let endpoints = record.end_points.iter().map(|endpoint| {
            (endpoint.name.to_string(), endpoint.host.to_string(), endpoint.port, endpoint.security_protocol)
        });
        let features = record.features.iter().map(|feature| {
            (feature.name.to_string(), (feature.min_supported_version, feature.max_supported_version))
        });
        let broker = BrokerImage {
            id,
            epoch: record.broker_epoch,
            incarnation_id: record.incarnation_id,
            endpoints: endpoints.collect(),
            rack: record.rack.as_ref().map(ToString::to_string),
            log_dirs: record.log_dirs.clone(),
            cordoned_log_dirs: record.cordoned_log_dirs.clone().unwrap_or_default(),
            fenced: record.fenced,
            features: features.collect(),
        };
        self.brokers.insert(id, broker);
        MetadataChange::BrokerChanged { id }
    }

    fn change_broker(
        &mut self,
        record: &BrokerRegistrationChangeRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let broker = self.registered(record.broker_id, record.broker_epoch)?;
        // KIP-631: 1 fences, -1 unfences, 0 leaves it.
        broker.fenced = record.fenced > 0 || record.fenced == 0 && broker.fenced;
        if !record.log_dirs.is_empty() {
            broker.log_dirs.clone_from(&record.log_dirs);
        }
        if let Some(cordoned) = &record.cordoned_log_dirs {
            broker.cordoned_log_dirs.clone_from(cordoned);
        }
        Ok(MetadataChange::BrokerChanged { id: record.broker_id })
    }

    fn fence(&mut self, id: i32, epoch: i64, fenced: bool) -> Result<MetadataChange, Inconsistency> {
        self.registered(id, epoch)?.fenced = fenced;
        Ok(MetadataChange::BrokerChanged { id })
    }

    /// Removes a broker, and its place in the group of the metadata log. A node that has only this one has no broker epoch.
    fn unregister(&mut self, record: &UnregisterBrokerRecord<'_>) -> Result<MetadataChange, Inconsistency> {
        let (id, epoch) = (record.broker_id, record.broker_epoch);
        let is_controller_only = !self.brokers.contains_key(&id) && self.controller(id).is_some();
        if !(is_controller_only && epoch == NO_BROKER_EPOCH) {
            self.registered(id, epoch)?;
        }
        self.controllers.remove(id)?;
        match self.brokers.remove(&id) {
            Some(_) => Ok(MetadataChange::BrokerChanged { id }),
            None => Ok(MetadataChange::ControllerChanged { id }),
        }
    }

    fn registered(&mut self, id: i32, epoch: i64) -> Result<&mut BrokerImage, Inconsistency> {
        self.brokers.get_mut(&id).filter(|broker| broker.epoch == epoch).ok_or(Inconsistency::Broker(id))
    }

    fn take_producer_ids(&mut self, record: &ProducerIdsRecord<'_>) -> Result<MetadataChange, Inconsistency> {
        let next = record.next_producer_id;
        if next <= self.next_producer_id {
            return Err(Inconsistency::ProducerIds(self.next_producer_id));
        }
        self.next_producer_id = next;
        Ok(MetadataChange::ProducerIdsTaken { next })
    }
}

/// Kafka 3.9 records for each cluster whether it came from ZooKeeper (KIP-866). One that is still migrating cannot be used.
fn check_zk_migration(state: i8) -> Result<MetadataChange, Inconsistency> {
    const PRE_MIGRATION: i8 = 1;
    const MIGRATION: i8 = 2;
    match state {
        PRE_MIGRATION | MIGRATION => Err(Inconsistency::ZkMigration),
        _ => Ok(MetadataChange::None),
    }
}
