//! AlterClientQuotas (49), v0-1, and DescribeClientQuotas (48), v0-1 (KIP-546, KIP-612).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_client_quotas_request as alter;
use mainstem_wire::messages::alter_client_quotas_response as altered;
use mainstem_wire::messages::client_quota_record::{self, ClientQuotaRecord};
use mainstem_wire::messages::describe_client_quotas_request::{ComponentData, DescribeClientQuotasRequest};
use mainstem_wire::messages::describe_client_quotas_response as described;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::{ApiError, Inconsistency};
use super::image::{MetadataChange, MetadataImage};
use super::state_machine::{Decision, MetadataStateMachine};
use mainstem_limits::quotas::{EntityName, QuotaEntity, QuotaKey};

/// Fractions below this are taken for whole numbers.
const EPSILON: f64 = 1e-6;

/// Entities with quotas that there may be: none of them need exist to have some.
const ENTITIES_MAX: usize = 10_000;

/// Bytes of a user's or client's name.
const NAME_BYTES_MAX: usize = 4_096;

/// Returns true if a text is an address, or a host's name that resolves; the driver provides it.
pub type Resolves<'a> = &'a dyn Fn(&str) -> bool;

impl MetadataStateMachine {
    /// Sets and removes quotas. Of each entity all changes are made, or none.
    pub fn alter_client_quotas(
        &mut self,
        request: &alter::AlterClientQuotasRequest<'_>,
        resolves: Resolves<'_>,
    ) -> Decision<altered::AlterClientQuotasResponse<'static>> {
        let mut records = Vec::new();
        let entities: Vec<_> = request.entries.iter().map(|entry| entity_of(entry, resolves)).collect();
        let mut times: BTreeMap<QuotaEntity, usize> = BTreeMap::new();
        for entity in entities.iter().flatten() {
            *times.entry(entity.clone()).or_default() += 1;
        }
        let (mut entries, mut added) = (Vec::new(), 0);
        for (entry, entity) in request.entries.iter().zip(entities) {
            // A repeated entity is answered once, and does not change.
            let times = entity.as_ref().map_or(Some(1), |entity| times.remove(entity));
            let Some(times) = times else { continue };
            let changed = entity.and_then(|entity| {
                if times > 1 {
                    return Err(invalid(format!("Ignoring duplicate entity {}", shown(&entity))));
                }
                let records = self.changed_quotas(&entity, &entry.ops)?;
                let is_new = !records.is_empty() && self.ahead().client_quotas_of(&entity).is_none();
                if is_new && self.ahead().client_quotas.len() + added >= ENTITIES_MAX {
                    let message = format!("Quotas are kept for at most {ENTITIES_MAX} entities.");
                    return Err(ApiError::new(ErrorCode::POLICY_VIOLATION, message));
                }
                added += usize::from(is_new);
                Ok(records)
            });
            entries.push(answer(entry, changed.as_ref().err()));
            records.extend(changed.into_iter().flatten());
        }
        let response = altered::AlterClientQuotasResponse { entries, ..Default::default() };
        self.decide(if request.validate_only { vec![] } else { records }, response)
    }

    fn changed_quotas(
        &self,
        entity: &QuotaEntity,
        ops: &[alter::OpData<'_>],
    ) -> Result<Vec<MetadataRecord<'static>>, ApiError> {
        let mut keys = BTreeSet::new();
        let mut records = Vec::new();
        let own = self.ahead().client_quotas_of(entity);
        for op in ops {
            let key = op.key.as_ref();
            if !keys.insert(key) {
                let entity = shown(entity);
                return Err(invalid(format!(
                    "Duplicate quota key {key} not updating quota for this entity {entity}"
                )));
            }
            let current = own.and_then(|own| own.get(key)).copied();
            if op.remove {
                records.extend(current.map(|_| record(entity, key, None)));
                continue;
            }
            check_value(entity, key, op.value)?;
            if current != Some(op.value) {
                records.push(record(entity, key, Some(op.value)));
            }
        }
        Ok(records)
    }
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::INVALID_REQUEST, message)
}

fn entity_of(entry: &alter::EntryData<'_>, resolves: Resolves<'_>) -> Result<QuotaEntity, ApiError> {
    let mut entity = QuotaEntity::default();
    for part in &entry.entity {
        let kind = part.entity_type.as_ref();
        let place = entity
            .part_mut(kind)
            .ok_or_else(|| invalid(format!("Unhandled client quota entity type: {kind}")))?;
        if part.entity_name.as_deref() == Some("") {
            return Err(invalid(format!("Empty {kind} not supported")));
        }
        if part.entity_name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            return Err(invalid(format!("The name of the {kind} is longer than {NAME_BYTES_MAX} bytes")));
        }
        // Of a kind that is named twice, the last one counts, as in Kafka.
        *place = Some(EntityName::new(part.entity_name.as_deref()));
    }
    if !entity.is_valid() {
        return Err(invalid(match entity.ip {
            None => "Invalid empty client quota entity",
            Some(_) => {
                "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
            }
        }));
    }
    match &entity.ip {
        Some(EntityName::Named(ip)) if !resolves(ip) => {
            Err(invalid(format!("{ip} is not a valid IP or resolvable host.")))
        }
        _ => Ok(entity),
    }
}

fn check_value(entity: &QuotaEntity, name: &str, value: f64) -> Result<(), ApiError> {
    let Some(key) = QuotaKey::of(entity, name) else {
        return Err(invalid(format!("Invalid configuration key {name}")));
    };
    // NaN is refused, as not above 0. Infinite values are refused, since a reader would not accept them.
    if value.is_nan() || value <= 0.0 {
        return Err(invalid(format!("Quota {name} must be greater than 0")));
    }
    match key.integral() {
        Some((most, kind)) if value > most => {
            Err(invalid(format!("Proposed value for {name} is too large for {kind}.")))
        }
        Some(_) if (value % 1.0).abs() > EPSILON => {
            Err(invalid(format!("{name} cannot be a fractional value.")))
        }
        None if value.is_infinite() => Err(invalid(format!("Quota {name} must be a finite number"))),
        _ => Ok(()),
    }
}

/// The record that sets a quota, or removes it.
pub(super) fn record(entity: &QuotaEntity, key: &str, value: Option<f64>) -> MetadataRecord<'static> {
    let part = |(kind, name): (&'static str, &EntityName)| client_quota_record::EntityData {
        entity_type: kind.into(),
        entity_name: name.as_deref().map(|name| Cow::Owned(name.to_owned())),
        ..Default::default()
    };
    MetadataRecord::ClientQuotaRecord(Box::new(ClientQuotaRecord {
        entity: entity.parts().map(part).collect(),
        key: Cow::Owned(key.to_owned()),
        value: value.unwrap_or_default(),
        remove: value.is_none(),
        ..Default::default()
    }))
}

fn answer(entry: &alter::EntryData<'_>, error: Option<&ApiError>) -> altered::EntryData<'static> {
    let part = |part: &alter::EntityData<'_>| altered::EntityData {
        entity_type: Cow::Owned(part.entity_type.to_string()),
        entity_name: part.entity_name.as_ref().map(|name| Cow::Owned(name.to_string())),
        ..Default::default()
    };
    let mut seen = HashSet::new();
    let last = entry.entity.iter().rev().filter(|part| seen.insert(&part.entity_type));
    let mut entity: Vec<_> = last.map(part).collect();
    entity.reverse();
    altered::EntryData {
        error_code: error.map_or(ErrorCode::NONE, |error| error.code).0,
        error_message: error.map(|error| Cow::Owned(error.message.clone())),
        entity,
        ..Default::default()
    }
}

/// As Kafka prints an entity: `ClientQuotaEntity(entries={client-id=a, user=null})`.
fn shown(entity: &QuotaEntity) -> String {
    let parts = entity.parts().map(|(kind, name)| format!("{kind}={}", name.as_deref().unwrap_or("null")));
    format!("ClientQuotaEntity(entries={{{}}})", parts.collect::<Vec<_>>().join(", "))
}

/// Applying, and reading.
impl MetadataImage {
    pub(super) fn change_quota(
        &mut self,
        record: &ClientQuotaRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let mut entity = QuotaEntity::default();
        for part in &record.entity {
            let place = entity.part_mut(&part.entity_type).ok_or(Inconsistency::Quota)?;
            *place = Some(EntityName::new(part.entity_name.as_deref()));
        }
        let is_limit = record.value.is_finite() && record.value > 0.0;
        if !entity.is_valid() || !(is_limit || record.remove) {
            return Err(Inconsistency::Quota);
        }
        let key = record.key.to_string();
        if !record.remove {
            self.client_quotas.entry(entity).or_default().insert(key, record.value);
        } else if let Some(own) = self.client_quotas.get_mut(&entity) {
            own.remove(&key);
            if own.is_empty() {
                self.client_quotas.remove(&entity);
            }
        }
        Ok(MetadataChange::QuotaChanged)
    }

    /// Quotas by entity and by name, as KIP-546 has them.
    pub fn client_quotas(&self) -> &BTreeMap<QuotaEntity, BTreeMap<String, f64>> {
        &self.client_quotas
    }

    fn client_quotas_of(&self, entity: &QuotaEntity) -> Option<&BTreeMap<String, f64>> {
        self.client_quotas.get(entity)
    }

    /// Answers DescribeClientQuotas.
    ///
    /// # Errors
    /// When the filter is invalid; the answer has then no entries.
    pub fn describe_client_quotas(
        &self,
        request: &DescribeClientQuotasRequest<'_>,
    ) -> Result<Vec<described::EntryData<'static>>, ApiError> {
        let filter = Filter::new(&request.components, request.strict)?;
        let matching = self.client_quotas.iter().filter(|(entity, _)| filter.matches(entity));
        Ok(matching.map(|(entity, values)| entry(entity, values)).collect())
    }
}

fn entry(entity: &QuotaEntity, values: &BTreeMap<String, f64>) -> described::EntryData<'static> {
    let part = |(kind, name): (&'static str, &EntityName)| described::EntityData {
        entity_type: kind.into(),
        entity_name: name.as_deref().map(|name| Cow::Owned(name.to_owned())),
        ..Default::default()
    };
    let value = |(key, value): (&String, &f64)| described::ValueData {
        key: Cow::Owned(key.clone()),
        value: *value,
        ..Default::default()
    };
    described::EntryData {
        entity: entity.parts().map(part).collect(),
        values: values.iter().map(value).collect(),
        ..Default::default()
    }
}

/// The entities that a request asks for.
struct Filter<'a> {
    parts: Vec<(&'a str, Wanted)>,
    strict: bool,
}

/// The condition on an entity's name of a kind.
enum Wanted {
    Exactly(EntityName),
    Any,
}

/// `match_type` of a component.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const SPECIFIED: i8 = 2;

impl<'a> Filter<'a> {
    fn new(components: &'a [ComponentData<'_>], strict: bool) -> Result<Self, ApiError> {
        let mut parts: Vec<(&str, Wanted)> = Vec::new();
        for component in components {
            let kind = component.entity_type.as_ref();
            if kind.is_empty() {
                return Err(invalid("Invalid empty entity type."));
            }
            if parts.iter().any(|(other, _)| *other == kind) {
                return Err(invalid(format!(
                    "Entity type {kind} cannot appear more than once in the filter."
                )));
            }
            if QuotaEntity::default().part_mut(kind).is_none() {
                let message = format!("Unsupported entity type {kind}");
                return Err(ApiError::new(ErrorCode::UNSUPPORTED_VERSION, message));
            }
            parts.push((kind, wanted(component)?));
        }
        let has = |wanted: &str| parts.iter().any(|(kind, _)| *kind == wanted);
        if has("ip") && (has("user") || has("client-id")) {
            return Err(invalid(
                "Invalid entity filter component combination. IP filter component should not be used with \
                 user or clientId filter component.",
            ));
        }
        Ok(Filter { parts, strict })
    }

    /// A strict filter without components matches nothing, as in Kafka.
    fn matches(&self, entity: &QuotaEntity) -> bool {
        let has_all = self.parts.iter().all(|(kind, wanted)| match (entity.part(kind), wanted) {
            (Some(name), Wanted::Exactly(wanted)) => name == wanted,
            (Some(_), Wanted::Any) => true,
            (None, _) => false,
        });
        has_all && (!self.strict || entity.parts().count() == self.parts.len())
    }
}

fn wanted(component: &ComponentData<'_>) -> Result<Wanted, ApiError> {
    let name = component.match_.as_deref();
    let refused = |kind: &str| {
        Err(invalid(format!("Request specified MATCH_TYPE_{kind}, but also specified a match string.")))
    };
    match (component.match_type, name) {
        (EXACT, Some(_)) | (DEFAULT, None) => Ok(Wanted::Exactly(EntityName::new(name))),
        (EXACT, None) => Err(invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")),
        (DEFAULT, Some(_)) => refused("DEFAULT"),
        (SPECIFIED, Some(_)) => refused("SPECIFIED"),
        (SPECIFIED, None) => Ok(Wanted::Any),
        (other, _) => Err(invalid(format!("Unknown match type {other}"))),
    }
}
