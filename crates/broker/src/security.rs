//! Who may come in by which listener: the sessions of each TLS listener, the rules of each SASL listener, and the users
//! that are known.
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

/// The SASL listeners, and what unknown users are shown.
pub(crate) struct Security {
    /// By the rank of the listener; none without SASL.
    sasl: Vec<Option<CurrentSasl>>,
    /// As `sasl`; none without TLS.
    tls: Vec<Option<Arc<TlsSettings>>>,
    http: Option<Arc<TlsSettings>>,
    authorization: Option<Arc<Authorization>>,
    /// The stores by which nodes speak to each other, if there are other nodes and they have TLS.
    of_nodes: Option<Arc<TlsSettings>>,
    /// Until the metadata have one.
    decoy_key: Secret,
    /// How credentials look on the whole, until they change.
    decoys: Mutex<HashMap<ScramMechanism, DecoyShape>>,
}

impl Security {
    /// By a configuration.
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

    /// What a listener asks of its clients now; none without SASL.
    pub(crate) fn sasl(&self, listener: usize) -> Option<Arc<SaslSettings>> {
        Some(self.sasl.get(listener)?.as_ref()?.get())
    }

    /// Who may do what; none without an authorizer, when everybody may do everything.
    pub(crate) fn authorization(&self) -> Option<&Arc<Authorization>> {
        self.authorization.as_ref()
    }

    /// Looks after the stores by which nodes speak to each other, too.
    pub(crate) fn set_of_nodes(&mut self, tls: Option<Arc<TlsSettings>>) {
        self.of_nodes = tls;
    }

    /// The sessions of a listener; none without TLS.
    pub(crate) fn tls(&self, listener: usize) -> Option<&Arc<TlsSettings>> {
        self.tls.get(listener)?.as_ref()
    }

    /// The sessions of the HTTP listener; none without TLS.
    pub(crate) fn http(&self) -> Option<&Arc<TlsSettings>> {
        self.http.as_ref()
    }

    /// The TLS of all listeners that have it: those of clients, of HTTP and of other nodes.
    pub(crate) fn tls_listeners(&self) -> impl Iterator<Item = &Arc<TlsSettings>> {
        self.tls.iter().chain([&self.http]).flatten().chain(&self.of_nodes)
    }

    /// What has to be done every few seconds: stores that have changed are read again, certificates that are about to
    /// expire and denials that were repeated are logged.
    pub(crate) fn look_after(&self) {
        self.tls_listeners().for_each(|tls| tls.look_after());
        if let Some(authorization) = &self.authorization {
            authorization.log_repeated();
        }
    }

    /// What operators should know of the certificates and stores of the listeners, a sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.tls_listeners().flat_map(|tls| tls.warnings(now_seconds())).collect()
    }

    /// Looks whether the listeners could use the stores, users and mechanisms that this node would have after changes of its own
    /// values, or, with an empty name, of the cluster's; values that are not changed go if these replace them. What else is
    /// wrong with the changes is not looked at.
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

    /// Reads stores again that have been written anew at the same place.
    pub(crate) fn read_stores_again(&self) {
        self.tls_listeners().for_each(|tls| tls.reload_if_changed());
    }

    /// Obeys a configuration that has changed, as far as stores, users and mechanisms of listeners go; stores that have been
    /// written anew at the same place are read again.
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

    /// Returns true if the clients of any listener have more to do than to connect.
    pub(crate) fn has_door(&self) -> bool {
        self.sasl.iter().any(Option::is_some) || self.tls.iter().any(Option::is_some)
    }

    /// The SCRAM credentials of the metadata have changed, or what decoys are made from.
    pub(crate) fn scram_changed(&self) {
        self.decoys.lock().clear();
    }

    /// What an unknown user of a mechanism is shown. Looks at all credentials once after each change of them.
    pub(crate) fn decoy(
        &self,
        (config, controller): (&CurrentConfig, &Controller),
        mechanism: ScramMechanism,
    ) -> DecoyShape {
        let mut decoys = self.decoys.lock();
        // Under the lock: what was looked at before a change is not remembered after it.
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
