//! The entities that quotas apply to, and the keys of quotas.

/// A name of an entity, or the default for all names without a quota of their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityName {
    /// Every name that has none of its own.
    Default,
    /// This name.
    Named(String),
}

impl EntityName {
    /// The name in the protocol, where null is the default.
    pub fn new(name: Option<&str>) -> EntityName {
        name.map_or(EntityName::Default, |name| EntityName::Named(name.to_owned()))
    }

    /// The name; none for the default.
    pub fn as_deref(&self) -> Option<&str> {
        match self {
            EntityName::Default => None,
            EntityName::Named(name) => Some(name),
        }
    }
}

/// The entity that a quota applies to: a user, a client id, both together, or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QuotaEntity {
    /// The user.
    pub user: Option<EntityName>,
    /// The client id.
    pub client_id: Option<EntityName>,
    /// The address.
    pub ip: Option<EntityName>,
}

/// Kinds of names, as the protocol spells them.
pub(crate) const USER: &str = "user";
pub(crate) const CLIENT_ID: &str = "client-id";
pub(crate) const IP: &str = "ip";

impl QuotaEntity {
    /// The place for a kind of name; `None` for an unknown kind.
    pub fn part_mut(&mut self, kind: &str) -> Option<&mut Option<EntityName>> {
        match kind {
            USER => Some(&mut self.user),
            CLIENT_ID => Some(&mut self.client_id),
            IP => Some(&mut self.ip),
            _ => None,
        }
    }

    /// The name of a kind.
    pub fn part(&self, kind: &str) -> Option<&EntityName> {
        match kind {
            USER => self.user.as_ref(),
            CLIENT_ID => self.client_id.as_ref(),
            IP => self.ip.as_ref(),
            _ => None,
        }
    }

    /// The kinds that are set, with their names.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &EntityName)> {
        [CLIENT_ID, IP, USER].into_iter().filter_map(|kind| Some((kind, self.part(kind)?)))
    }

    /// Returns true if the combination can have a quota.
    pub fn is_valid(&self) -> bool {
        match (&self.user, &self.client_id, &self.ip) {
            (None, None, None) => false,
            (None, None, Some(_)) | (_, _, None) => true,
            _ => false,
        }
    }
}

/// The key of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaKey {
    /// Bytes per second that are produced.
    ProducerByteRate,
    /// Bytes per second that are fetched.
    ConsumerByteRate,
    /// Time of threads that requests take, in percent of one thread.
    RequestPercentage,
    /// Partitions per second that are created or deleted.
    ControllerMutationRate,
    /// Connections per second from one address.
    ConnectionCreationRate,
}

impl QuotaKey {
    const ALL: [QuotaKey; 5] = [
        QuotaKey::ProducerByteRate,
        QuotaKey::ConsumerByteRate,
        QuotaKey::RequestPercentage,
        QuotaKey::ControllerMutationRate,
        QuotaKey::ConnectionCreationRate,
    ];

    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            QuotaKey::ProducerByteRate => "producer_byte_rate",
            QuotaKey::ConsumerByteRate => "consumer_byte_rate",
            QuotaKey::RequestPercentage => "request_percentage",
            QuotaKey::ControllerMutationRate => "controller_mutation_rate",
            QuotaKey::ConnectionCreationRate => "connection_creation_rate",
        }
    }

    /// The key of a name that an entity of this kind can have.
    pub fn of(entity: &QuotaEntity, name: &str) -> Option<QuotaKey> {
        let key = QuotaKey::ALL.into_iter().find(|key| key.name() == name)?;
        (entity.ip.is_some() == (key == QuotaKey::ConnectionCreationRate)).then_some(key)
    }

    /// The largest value, where only whole numbers are allowed: the type that Kafka gives the key, with its name.
    pub fn integral(self) -> Option<(f64, &'static str)> {
        match self {
            QuotaKey::ProducerByteRate | QuotaKey::ConsumerByteRate => Some((i64::MAX as f64, "a LONG")),
            QuotaKey::ConnectionCreationRate => Some((f64::from(i32::MAX), "an INT")),
            QuotaKey::RequestPercentage | QuotaKey::ControllerMutationRate => None,
        }
    }
}
