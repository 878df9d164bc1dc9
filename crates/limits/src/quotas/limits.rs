//! The limit of a client, and the clients that share it.

use std::collections::{BTreeMap, HashMap};

use super::entity::{EntityName, QuotaEntity, QuotaKey};

/// A client as its requests name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client<'a> {
    /// The principal's name, without its type.
    pub user: &'a str,
    /// The client id; empty without one.
    pub client_id: &'a str,
}

/// All limits of one key, by entity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientLimits {
    users: Level,
    client_ids: Level,
    by_user: HashMap<String, Level>,
    by_default_user: Level,
}

/// Limits by name, and the default.
#[derive(Debug, Clone, Default, PartialEq)]
struct Level {
    named: HashMap<String, f64>,
    default: Option<f64>,
}

impl Level {
    fn set(&mut self, name: &EntityName, limit: f64) {
        match name {
            EntityName::Default => self.default = Some(limit),
            EntityName::Named(name) => drop(self.named.insert(name.clone(), limit)),
        }
    }

    fn find(&self, name: &str) -> Option<f64> {
        self.named.get(name).copied().or(self.default)
    }

    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.default.is_none()
    }
}

/// The names of a client's meter: its user, its client id or both; a name that does not matter is empty.
pub(super) type Tags<'a> = Client<'a>;

impl ClientLimits {
    /// The limits of a key among all quotas.
    pub fn new<'a>(
        quotas: impl IntoIterator<Item = (&'a QuotaEntity, &'a BTreeMap<String, f64>)>,
        key: QuotaKey,
    ) -> ClientLimits {
        let mut limits = ClientLimits::default();
        for (entity, values) in quotas {
            if let Some(limit) = values.get(key.name()) {
                limits.set(entity, *limit);
            }
        }
        limits
    }

    fn set(&mut self, entity: &QuotaEntity, limit: f64) {
        match (&entity.user, &entity.client_id) {
            (Some(EntityName::Named(user)), Some(client_id)) => {
                self.by_user.entry(user.clone()).or_default().set(client_id, limit);
            }
            (Some(EntityName::Default), Some(client_id)) => self.by_default_user.set(client_id, limit),
            (Some(user), None) => self.users.set(user, limit),
            (None, Some(client_id)) => self.client_ids.set(client_id, limit),
            (None, None) => {}
        }
    }

    /// Returns true if no client has a limit.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.client_ids.is_empty() && !self.has_pairs()
    }

    fn has_pairs(&self) -> bool {
        !self.by_user.is_empty() || !self.by_default_user.is_empty()
    }

    /// The limit of a client, and the names of its meter: clients with the same names share one.
    pub(super) fn find<'a>(&self, client: Client<'a>) -> Option<(Tags<'a>, f64)> {
        let (by_user, by_client_id) = self.shares(client);
        let tags = Tags {
            user: if by_user { client.user } else { "" },
            client_id: if by_client_id { client.client_id } else { "" },
        };
        let limit = match (tags.user.is_empty(), tags.client_id.is_empty()) {
            (false, false) => {
                let own = self.by_user.get(tags.user).and_then(|own| own.find(tags.client_id));
                own.or_else(|| self.by_default_user.find(tags.client_id))
            }
            (false, true) => self.users.find(tags.user),
            (true, false) => self.client_ids.find(tags.client_id),
            (true, true) => None,
        };
        Some((tags, limit?))
    }

    /// Returns two flags: the client's meter has its user, and it has its client id. If only quotas of one kind are set, that
    /// kind decides; else the most specific one that the client has:
    ///
    /// 1. user and client id, 2. user and any client id, 3. user,
    /// 4. any user and client id, 5. any user and any client id, 6. any user,
    /// 7. client id, 8. any client id.
    fn shares(&self, client: Client<'_>) -> (bool, bool) {
        match (!self.users.is_empty(), !self.client_ids.is_empty(), self.has_pairs()) {
            (false, _, false) => (false, true),
            (true, false, false) => (true, false),
            (false, false, true) => (true, true),
            _ => {
                let own = self.by_user.get(client.user);
                if own.is_some_and(|own| own.find(client.client_id).is_some()) {
                    (true, true)
                } else if self.users.named.contains_key(client.user) {
                    (true, false)
                } else if self.by_default_user.find(client.client_id).is_some() {
                    (true, true)
                } else {
                    let any_user = self.users.default.is_some();
                    (any_user, !any_user)
                }
            }
        }
    }
}
