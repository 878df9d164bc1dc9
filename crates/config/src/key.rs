//! One configuration key: its name, type, default, allowed values, and its effect here.
//!
//! Keys are `const` rows built by the functions at the end of this file, so that the tables read as tables.

/// The kind of resource that a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Set per topic.
    Topic,
    /// Set for the node, in its file or later by IncrementalAlterConfigs.
    Broker,
    /// Set per consumer, share or streams group.
    Group,
    /// Set per subscription to client metrics.
    ClientMetrics,
}

/// The type of a key's value. The discriminants are the type codes of DescribeConfigs (KIP-569).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigType {
    /// `true` or `false`, in any case.
    Bool = 1,
    /// Text.
    Str = 2,
    /// A 32-bit integer.
    Int = 3,
    /// A 16-bit integer.
    Short = 4,
    /// A 64-bit integer.
    Long = 5,
    /// A 64-bit floating point number.
    Double = 6,
    /// Texts separated by commas.
    List = 7,
    /// The name of a Java class.
    Class = 8,
    /// Text that is never shown.
    Password = 9,
}

impl ConfigType {
    /// The code of DescribeConfigs.
    pub fn code(self) -> i8 {
        self as i8
    }

    /// Kafka's name of the type, as its error messages spell it.
    pub fn name(self) -> &'static str {
        match self {
            ConfigType::Bool => "BOOLEAN",
            ConfigType::Str => "STRING",
            ConfigType::Int => "INT",
            ConfigType::Short => "SHORT",
            ConfigType::Long => "LONG",
            ConfigType::Double => "DOUBLE",
            ConfigType::List => "LIST",
            ConfigType::Class => "CLASS",
            ConfigType::Password => "PASSWORD",
        }
    }
}

/// The importance of a key for most users, as Kafka rates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    /// Look at it before going live.
    High,
    /// Worth knowing.
    Medium,
    /// Rarely touched.
    Low,
}

/// The ways in which a broker key can be changed while the node runs (KIP-226).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// Only at start.
    ReadOnly,
    /// For one node, not as a default of the cluster.
    PerBroker,
    /// For one node or as a default of the cluster.
    ClusterWide,
}

/// The effect of a key in this broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It has the effect that its documentation names.
    Honoured,
    /// Known, validated, described; without effect for the reason given, which will not change soon.
    NamedOnly(&'static str),
    /// Known, validated, described; the feature behind it does not exist yet.
    PlannedLater(&'static str),
    /// Known and validated so that a Kafka file starts; it has no meaning here.
    WithoutMeaningHere(&'static str),
}

impl Status {
    /// The reason why the key has no effect, or `None` if it has one.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Status::Honoured => None,
            Status::NamedOnly(reason) | Status::PlannedLater(reason) | Status::WithoutMeaningHere(reason) => {
                Some(reason)
            }
        }
    }
}

/// The origin of a key and of its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Kafka's key with Kafka's default.
    Kafka,
    /// Kafka's key; Kafka's own default is this one (`None`: it has none).
    KafkaWithDefault(Option<&'static str>),
    /// A key that Kafka does not have.
    Mainstem,
}

/// The values that a key accepts, beyond those of its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Valid {
    /// Every value of the type.
    Any,
    /// An integer of at least this.
    AtLeast(i64),
    /// An integer from..=to.
    Between(i64, i64),
    /// A floating point number from..=to.
    BetweenF64(f64, f64),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// One of these texts, in any case.
    OneOfIgnoringCase(&'static [&'static str]),
    /// A text that is not empty.
    NonEmpty,
    /// A gzip level: 1 to 9, or -1 for the codec's default.
    GzipLevel,
    /// A list of any texts, without empty ones.
    AnyList,
    /// The same, and not empty.
    NonEmptyList,
    /// A list of some of these texts.
    ListOf(&'static [&'static str]),
    /// The same, and not empty.
    NonEmptyListOf(&'static [&'static str]),
    /// `*`, or a list of `partition:broker` pairs.
    ThrottledReplicas,
    /// `latest`, `earliest` or `by_duration:` with an ISO 8601 duration (KIP-932).
    OffsetReset,
}

/// A key whose value is used when the other one is unset, and the factor between their units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// The broker key whose value is used.
    pub key: &'static str,
    /// Its value times this is the value of the other key.
    pub factor: i64,
}

impl Fallback {
    /// Both keys have one unit.
    pub(super) const fn same(key: &'static str) -> Fallback {
        Fallback { key, factor: 1 }
    }

    /// A key in minutes, for one in milliseconds.
    pub(super) const fn minutes(key: &'static str) -> Fallback {
        Fallback { key, factor: 60_000 }
    }

    /// A key in hours, for one in milliseconds.
    pub(super) const fn hours(key: &'static str) -> Fallback {
        Fallback { key, factor: 3_600_000 }
    }
}

/// A row of the table of configuration keys.
#[derive(Debug, Clone, Copy)]
pub struct ConfigKey {
    /// The name, as Kafka spells it.
    pub name: &'static str,
    /// The kind of resource that it belongs to.
    pub scope: Scope,
    /// The type of its values.
    pub kind: ConfigType,
    /// The value when none is set, as text; `None` is unset.
    pub default: Option<&'static str>,
    /// The allowed values.
    pub valid: Valid,
    /// Its importance.
    pub importance: Importance,
    /// The ways in which it can change while the node runs. Topic and group keys always can.
    pub update: UpdateMode,
    /// Its effect here.
    pub status: Status,
    /// Kafka's key or ours, and whether the default is Kafka's.
    pub origin: Origin,
    /// True if descriptions leave it out unless it is set.
    pub internal: bool,
    /// The keys whose values are used while it is unset, most precedent first.
    pub fallbacks: &'static [Fallback],
    /// Its documentation, with its unit.
    pub doc: &'static str,
}

impl ConfigKey {
    /// Returns true if a value of this key is never shown.
    pub fn is_sensitive(&self) -> bool {
        self.kind == ConfigType::Password
    }

    const fn new(name: &'static str, scope: Scope, kind: ConfigType) -> ConfigKey {
        ConfigKey {
            name,
            scope,
            kind,
            default: None,
            valid: Valid::Any,
            importance: Importance::Medium,
            update: UpdateMode::ReadOnly,
            status: Status::Honoured,
            origin: Origin::Kafka,
            internal: false,
            fallbacks: &[],
            doc: "",
        }
    }

    const fn valid(mut self, valid: Valid) -> ConfigKey {
        self.valid = valid;
        self
    }

    const fn status(mut self, status: Status) -> ConfigKey {
        self.status = status;
        self
    }
}

/// A topic key; its default is repeated here and equals that of the broker key behind it.
pub(super) const fn topic(name: &'static str, kind: ConfigType) -> ConfigKey {
    ConfigKey::new(name, Scope::Topic, kind)
}

/// A broker key, read-only unless the row says otherwise.
pub(super) const fn broker(name: &'static str, kind: ConfigType) -> ConfigKey {
    ConfigKey::new(name, Scope::Broker, kind)
}

/// A group key.
pub(super) const fn group(name: &'static str, kind: ConfigType) -> ConfigKey {
    ConfigKey::new(name, Scope::Group, kind)
}

/// A key of a subscription to client metrics.
pub(super) const fn client_metrics(name: &'static str, kind: ConfigType) -> ConfigKey {
    ConfigKey::new(name, Scope::ClientMetrics, kind)
}

/// The parts of a row beside name and type.
impl ConfigKey {
    pub(super) const fn default(mut self, value: &'static str) -> ConfigKey {
        self.default = Some(value);
        self
    }

    pub(super) const fn kafka_default(mut self, value: Option<&'static str>) -> ConfigKey {
        self.origin = Origin::KafkaWithDefault(value);
        self
    }

    pub(super) const fn ours(mut self) -> ConfigKey {
        self.origin = Origin::Mainstem;
        self
    }

    pub(super) const fn high(mut self) -> ConfigKey {
        self.importance = Importance::High;
        self
    }

    pub(super) const fn low(mut self) -> ConfigKey {
        self.importance = Importance::Low;
        self
    }

    pub(super) const fn cluster_wide(mut self) -> ConfigKey {
        self.update = UpdateMode::ClusterWide;
        self
    }

    pub(super) const fn per_broker(mut self) -> ConfigKey {
        self.update = UpdateMode::PerBroker;
        self
    }

    pub(super) const fn internal(mut self) -> ConfigKey {
        self.internal = true;
        self
    }

    pub(super) const fn falls_back(mut self, fallbacks: &'static [Fallback]) -> ConfigKey {
        self.fallbacks = fallbacks;
        self
    }

    pub(super) const fn doc(mut self, doc: &'static str) -> ConfigKey {
        self.doc = doc;
        self
    }

    pub(super) const fn named_only(self, reason: &'static str) -> ConfigKey {
        self.status(Status::NamedOnly(reason))
    }

    pub(super) const fn later(self, reason: &'static str) -> ConfigKey {
        self.status(Status::PlannedLater(reason))
    }

    pub(super) const fn unused(self, reason: &'static str) -> ConfigKey {
        self.status(Status::WithoutMeaningHere(reason))
    }

    pub(super) const fn at_least(self, min: i64) -> ConfigKey {
        self.valid(Valid::AtLeast(min))
    }

    pub(super) const fn between(self, min: i64, max: i64) -> ConfigKey {
        self.valid(Valid::Between(min, max))
    }

    pub(super) const fn between_f64(self, min: f64, max: f64) -> ConfigKey {
        self.valid(Valid::BetweenF64(min, max))
    }

    pub(super) const fn one_of(self, values: &'static [&'static str]) -> ConfigKey {
        self.valid(Valid::OneOf(values))
    }

    pub(super) const fn one_of_ignoring_case(self, values: &'static [&'static str]) -> ConfigKey {
        self.valid(Valid::OneOfIgnoringCase(values))
    }

    pub(super) const fn non_empty(self) -> ConfigKey {
        self.valid(Valid::NonEmpty)
    }

    pub(super) const fn gzip_level(self) -> ConfigKey {
        self.valid(Valid::GzipLevel)
    }

    pub(super) const fn any_list(self) -> ConfigKey {
        self.valid(Valid::AnyList)
    }

    pub(super) const fn non_empty_list(self) -> ConfigKey {
        self.valid(Valid::NonEmptyList)
    }

    pub(super) const fn list_of(self, values: &'static [&'static str]) -> ConfigKey {
        self.valid(Valid::ListOf(values))
    }

    pub(super) const fn non_empty_list_of(self, values: &'static [&'static str]) -> ConfigKey {
        self.valid(Valid::NonEmptyListOf(values))
    }

    pub(super) const fn throttled_replicas(self) -> ConfigKey {
        self.valid(Valid::ThrottledReplicas)
    }

    pub(super) const fn offset_reset(self) -> ConfigKey {
        self.valid(Valid::OffsetReset)
    }
}
