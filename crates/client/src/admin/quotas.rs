//! Quotas of clients: DescribeClientQuotas (48) and AlterClientQuotas (49), of KIP-546.

use std::collections::BTreeMap;

use mainstem_wire::messages::alter_client_quotas_request::{
    AlterClientQuotasRequest, EntityData, EntryData, OpData,
};
use mainstem_wire::messages::describe_client_quotas_request::{ComponentData, DescribeClientQuotasRequest};

use super::{Admin, left_out};
use crate::error::Error;

/// The entity that a quota is for: names by kind (`user`, `client-id`, `ip`). A name that is none is the default of that kind.
///
/// ```
/// use mainstem_client::QuotaEntity;
///
/// let reports = QuotaEntity::from([("client-id".to_owned(), Some("reports".to_owned()))]);
/// assert!(reports.contains_key("client-id"));
/// ```
pub type QuotaEntity = BTreeMap<String, Option<String>>;

/// A condition on one kind of name in [`Admin::quotas`].
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, QuotaEntity, QuotaFilter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let reports = QuotaEntity::from([("client-id".to_owned(), Some("reports".to_owned()))]);
/// let quotas = [("producer_byte_rate".to_owned(), Some(1e6))].into();
/// admin.alter_quotas(&reports, &quotas, false).await?;
/// let found = admin.quotas(&[QuotaFilter::Any("client-id".into())], true).await?;
/// assert_eq!(found[&reports]["producer_byte_rate"], 1e6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaFilter {
    /// This name of the kind.
    Name(String, String),
    /// The default of the kind.
    Default(String),
    /// Any name of the kind, or its default.
    Any(String),
}

impl QuotaFilter {
    fn wire(&self) -> ComponentData<'_> {
        let (entity_type, match_type, name) = match self {
            QuotaFilter::Name(kind, name) => (kind, 0, Some(name.as_str())),
            QuotaFilter::Default(kind) => (kind, 1, None),
            QuotaFilter::Any(kind) => (kind, 2, None),
        };
        ComponentData {
            entity_type: entity_type.into(),
            match_type,
            match_: name.map(Into::into),
            ..Default::default()
        }
    }
}

impl Admin {
    /// The quotas of all entities that meet every condition, and may have further kinds of names unless `strict`; by
    /// Kafka's names, such as `producer_byte_rate`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn quotas(
        &self,
        filters: &[QuotaFilter],
        strict: bool,
    ) -> Result<BTreeMap<QuotaEntity, BTreeMap<String, f64>>, Error> {
        self.retried("describing quotas", || async {
            let components = filters.iter().map(QuotaFilter::wire).collect();
            let request = DescribeClientQuotasRequest { components, strict, ..Default::default() };
            let reply = self.cluster.call_any(&request).await?;
            let response = reply.read()?;
            let message = response.error_message.as_deref();
            reply.check(response.error_code, message, || "cannot describe quotas".to_owned())?;
            let entries = response.entries.iter().flatten().map(|entry| {
                let names = entry.entity.iter();
                let names = names
                    .map(|one| (one.entity_type.to_string(), one.entity_name.as_deref().map(str::to_owned)));
                let values = entry.values.iter().map(|one| (one.key.to_string(), one.value));
                (names.collect(), values.collect())
            });
            Ok(entries.collect())
        })
        .await
    }

    /// Sets quotas of an entity by name, or removes those without a value. With `validate_only` it only checks if that could
    /// be done.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as INVALID_REQUEST for an unknown name.
    pub async fn alter_quotas(
        &self,
        entity: &QuotaEntity,
        quotas: &BTreeMap<String, Option<f64>>,
        validate_only: bool,
    ) -> Result<(), Error> {
        self.retried("changing quotas", || async {
            let names = entity.iter().map(|(kind, name)| EntityData {
                entity_type: kind.into(),
                entity_name: name.as_deref().map(Into::into),
                ..Default::default()
            });
            let ops = quotas.iter().map(|(key, value)| OpData {
                key: key.into(),
                value: value.unwrap_or(0.0),
                remove: value.is_none(),
                ..Default::default()
            });
            let entry = EntryData { entity: names.collect(), ops: ops.collect(), ..Default::default() };
            let request =
                AlterClientQuotasRequest { entries: vec![entry], validate_only, ..Default::default() };
            let reply = self.cluster.call_any(&request).await?;
            let response = reply.read()?;
            let result = response.entries.first().ok_or_else(|| left_out(&reply, "the entity"))?;
            let message = result.error_message.as_deref();
            reply.check(result.error_code, message, || {
                format!("cannot change the quotas of {}", named(entity))
            })
        })
        .await
    }
}

/// An entity in words, users first.
fn named(entity: &QuotaEntity) -> String {
    let part = |(kind, name): (&String, &Option<String>)| match name {
        Some(name) => format!("{kind} {name}"),
        None => format!("the default {kind}"),
    };
    entity.iter().rev().map(part).collect::<Vec<_>>().join(", ")
}
