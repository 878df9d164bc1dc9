//! Authentication and authorization: the sessions of each TLS listener, the settings of each SASL listener, and the
//! users.
//!
//! PLAIN has the users of the listener's JAAS text, SCRAM those of the metadata.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_config::alter::{BrokerLayer, Change, alter_broker};
use mainstem_config::{BrokerConfig, SaslListener, TlsListener};
use mainstem_controller::{ConfigResource, ResourceKind};
use mainstem_security::scram::ScramMechanism;
use mainstem_security::{AuthorizerRules, DecoyShape, Secret};
use parking_lot::Mutex;

use mainstem_listener_security::{
    CurrentSasl, ListenerSecurityError, SaslSettings, TlsSettings, decoy_secret, now_seconds,
};
use mainstem_node::controller::Controller;
use mainstem_node::local::Local;
use mainstem_requests::authorization::Authorization;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::random;

/// The TLS and SASL listeners, and the decoys for unknown users.
pub(crate) struct Security {
    /// The SASL settings by the index of the listener; none without SASL.
    sasl: Vec<Option<CurrentSasl>>,
    /// The TLS settings by the index of the listener; none without TLS.
    tls: Vec<Option<Arc<TlsSettings>>>,
    http: Option<Arc<TlsSettings>>,
    authorization: Option<Arc<Authorization>>,
    /// The TLS settings between nodes, if there are other nodes and they have TLS.
    of_nodes: Option<Arc<TlsSettings>>,
    /// The secret of decoys until the metadata have one.
    decoy_key: Secret,
    /// The usual form of credentials, until they change.
    decoys: Mutex<HashMap<ScramMechanism, DecoyShape>>,
}

impl Security {
    /// Makes the settings of a configuration.
    ///
    /// # Errors
    /// When a JAAS text is malformed or names another module than its mechanism's, or a key store cannot be used.
    pub(crate) fn new(config: &BrokerConfig, clock: &Clock) -> Result<Security, ListenerSecurityError> {
        let sasl = config.listeners.open.iter().zip(&config.sasl_listeners).map(|(endpoint, keys)| {
            keys.as_ref().map(|keys| CurrentSasl::new(&endpoint.listener, keys)).transpose()
        });
        let sasl = sasl.collect::<Result<_, _>>()?;
        let tls = config.listeners.open.iter().zip(&config.tls_listeners).map(|(endpoint, tls)| {
            let tls = tls.as_ref().map(|tls| TlsSettings::new(&endpoint.listener, tls));
            Ok(tls.transpose()?.map(Arc::new))
        });
        let http = config.http_tls.as_ref().filter(|_| config.http_listener.is_some());
        let http = http.map(|keys| TlsSettings::new("HTTP", keys)).transpose()?.map(Arc::new);
        Ok(Security {
            http,
            sasl,
            tls: tls.collect::<Result<_, _>>()?,
            authorization: rules(config)?.map(|rules| Arc::new(Authorization::new(rules, clock.clone()))),
            of_nodes: None,
            decoy_key: Secret::new(random::bytes::<32>()),
            decoys: Mutex::default(),
        })
    }

    /// The SASL settings of a listener now; none without SASL.
    pub(crate) fn sasl(&self, listener: usize) -> Option<Arc<SaslSettings>> {
        Some(self.sasl.get(listener)?.as_ref()?.get())
    }

    /// The authorizer; none if all clients may do everything.
    pub(crate) fn authorization(&self) -> Option<&Arc<Authorization>> {
        self.authorization.as_ref()
    }

    /// Adds the TLS settings between nodes to those that are looked after.
    pub(crate) fn set_of_nodes(&mut self, tls: Option<Arc<TlsSettings>>) {
        self.of_nodes = tls;
    }

    /// The TLS settings of a listener; none without TLS.
    pub(crate) fn tls(&self, listener: usize) -> Option<&Arc<TlsSettings>> {
        self.tls.get(listener)?.as_ref()
    }

    /// The TLS settings of the HTTP listener; none without TLS.
    pub(crate) fn http(&self) -> Option<&Arc<TlsSettings>> {
        self.http.as_ref()
    }

    /// The TLS settings of all listeners that have them: for clients, HTTP and other nodes.
    pub(crate) fn tls_listeners(&self) -> impl Iterator<Item = &Arc<TlsSettings>> {
        self.tls.iter().chain([&self.http]).flatten().chain(&self.of_nodes)
    }

    /// Does the work that is due every few seconds: reads changed stores again, and logs certificates that are about
    /// to expire and repeated denials.
    pub(crate) fn look_after(&self) {
        self.tls_listeners().for_each(|tls| tls.look_after());
        if let Some(authorization) = &self.authorization {
            authorization.log_repeated();
        }
    }

    /// Warnings for operators about the certificates and stores of the listeners, a sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.tls_listeners().flat_map(|tls| tls.warnings(now_seconds())).collect()
    }

    /// Checks that the listeners could use the stores, users and mechanisms of this node after changes of its own
    /// values or, with an empty name, of the cluster's. With `replaces` values that are not changed are reset. Other
    /// faults of the changes are not checked.
    ///
    /// # Errors
    /// When a listener could not use them.
    pub(crate) fn check_change(
        &self,
        (local, controller): (&Local, &Controller),
        name: &str,
        changes: &[Change<'_>],
        replaces: bool,
    ) -> Result<(), ListenerSecurityError> {
        let config = local.config();
        let layer = if name.is_empty() { BrokerLayer::ClusterDefault } else { BrokerLayer::Node };
        let own = |name: String| {
            controller.image().configs(&ConfigResource::new(ResourceKind::Broker, name)).clone()
        };
        let (mut cluster, mut node) = (own(String::new()), own(local.id.to_string()));
        let values = if name.is_empty() { &mut cluster } else { &mut node };
        let Ok(changed) = alter_broker(layer, values, changes, &config) else { return Ok(()) };
        if replaces {
            values.retain(|key, _| changes.iter().any(|change| change.name == key));
        }
        for (key, value) in changed {
            match value {
                Some(value) => values.insert(key, value),
                None => values.remove(&key),
            };
        }
        let Ok(after) = config.with_dynamic(cluster, node) else { return Ok(()) };
        self.sasl_changes(&after).try_for_each(|(sasl, keys)| sasl.check(keys))?;
        self.tls_changes(&after).try_for_each(|(tls, keys)| tls.check(keys))
    }

    /// Reads stores again that were replaced at the same path.
    pub(crate) fn read_stores_again(&self) {
        self.tls_listeners().for_each(|tls| tls.reload_if_changed());
    }

    /// Applies a changed configuration of stores, users and mechanisms of listeners. Stores that were replaced at the
    /// same path are read again.
    pub(crate) fn reconfigure(&self, config: &BrokerConfig) {
        self.sasl_changes(config).for_each(|(sasl, keys)| sasl.apply(keys));
        self.tls_changes(config).for_each(|(tls, keys)| tls.apply(keys));
    }

    fn sasl_changes<'a>(
        &'a self,
        config: &'a BrokerConfig,
    ) -> impl Iterator<Item = (&'a CurrentSasl, &'a SaslListener)> {
        let both = self.sasl.iter().zip(&config.sasl_listeners);
        both.filter_map(|(sasl, keys)| sasl.as_ref().zip(keys.as_ref()))
    }

    fn tls_changes<'a>(
        &'a self,
        config: &'a BrokerConfig,
    ) -> impl Iterator<Item = (&'a Arc<TlsSettings>, &'a TlsListener)> {
        let own = self.tls.iter().zip(&config.tls_listeners);
        let both = own.chain([(&self.http, &config.http_tls)]);
        let of_nodes = self.of_nodes.as_ref().zip(config.nodes.as_ref().and_then(|nodes| nodes.tls.as_ref()));
        both.filter_map(|(tls, keys)| tls.as_ref().zip(keys.as_ref())).chain(of_nodes)
    }

    /// Returns true if clients of any listener have to authenticate or make a handshake.
    pub(crate) fn limits_unauthenticated(&self) -> bool {
        self.sasl.iter().any(Option::is_some) || self.tls.iter().any(Option::is_some)
    }

    /// Drops the decoys: the SCRAM credentials of the metadata, or the secret of decoys, have changed.
    pub(crate) fn scram_changed(&self) {
        self.decoys.lock().clear();
    }

    /// The decoy for an unknown user of a mechanism. It looks at all credentials once after each change of them.
    pub(crate) fn decoy(
        &self,
        (config, controller): (&CurrentConfig, &Controller),
        mechanism: ScramMechanism,
    ) -> DecoyShape {
        let mut decoys = self.decoys.lock();
        // Under the lock: a decoy from before a change is not kept after it.
        let look = || {
            let key = decoy_secret(&config.get()).unwrap_or_else(|| self.decoy_key.clone());
            controller.image().scram_decoy(mechanism, key)
        };
        decoys.entry(mechanism).or_insert_with(look).clone()
    }
}

/// The rules of `authorizer.class.name` and the keys beside it; none without an authorizer.
///
/// # Errors
/// When `super.users` is malformed.
pub(crate) fn rules(config: &BrokerConfig) -> Result<Option<AuthorizerRules>, ListenerSecurityError> {
    let Some(wanted) = &config.authorizer else { return Ok(None) };
    let super_users =
        AuthorizerRules::super_users(&wanted.super_users).map_err(ListenerSecurityError::SuperUsers)?;
    Ok(Some(AuthorizerRules {
        super_users,
        allow_everyone_if_no_acl_found: wanted.allow_everyone_if_no_acl_found,
    }))
}
