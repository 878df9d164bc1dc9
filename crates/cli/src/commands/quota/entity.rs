//! The entity of a quota.

use std::fmt;

use clap::Args;
use mainstem_client::{QuotaEntity, QuotaFilter};

/// The name of entities without a quota of their own on the command line (KIP-546).
const DEFAULT: &str = "default";

/// Options that name the entity of a quota.
#[derive(Debug, Args)]
pub(crate) struct EntityOptions {
    /// A user's name.
    #[arg(long, value_name = "NAME", group = "entity")]
    user: Option<String>,
    /// All users without a quota of their own.
    #[arg(long, conflicts_with = "user", group = "entity")]
    user_default: bool,
    /// A client's id; with a user, that user's client.
    #[arg(long, value_name = "ID", group = "entity")]
    client: Option<String>,
    /// All clients without a quota of their own.
    #[arg(long, conflicts_with = "client", group = "entity")]
    client_default: bool,
    /// An address that clients connect from.
    #[arg(long, value_name = "ADDRESS", group = "entity", conflicts_with_all = ["user", "user_default", "client", "client_default"])]
    ip: Option<String>,
    /// All addresses without a quota of their own.
    #[arg(long, group = "entity", conflicts_with_all = ["ip", "user", "user_default", "client", "client_default"])]
    ip_default: bool,
}

impl EntityOptions {
    /// The given parts, by Kafka's types of entities.
    pub(crate) fn entity(&self) -> QuotaEntity {
        let given = [
            ("user", &self.user, self.user_default),
            ("client-id", &self.client, self.client_default),
            ("ip", &self.ip, self.ip_default),
        ];
        given
            .into_iter()
            .filter(|(_, name, default)| name.is_some() || *default)
            .map(|(kind, name, _)| (kind.to_owned(), name.clone()))
            .collect()
    }

    /// Filters that the entity and those like it match.
    pub(crate) fn filters(&self) -> Vec<QuotaFilter> {
        let filter = |(kind, name)| match name {
            Some(name) => QuotaFilter::Name(kind, name),
            None => QuotaFilter::Default(kind),
        };
        self.entity().into_iter().map(filter).collect()
    }
}

/// An entity for people: users first.
pub(crate) struct Shown<'e>(pub(crate) &'e QuotaEntity);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, name)) in self.0.iter().rev().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{kind} {}", name.as_deref().unwrap_or(DEFAULT))?;
        }
        Ok(())
    }
}
