//! Who may come in by which listener: the sessions of each TLS listener, the rules of each SASL listener, and the users
//! that are known.
//!
//! PLAIN has the users of the listener's JAAS text, SCRAM those of the metadata.

mod tls;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use mainstem_config::{BrokerConfig, SaslListener, SaslMechanism};
use mainstem_security::jaas::{JaasConfig, LoginModule};
use mainstem_security::plain::PlainUsers;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_security::{
    AuthorizerRules, Credentials, DecoyShape, Mechanism, SaslRules, Secret, SecurityError, TokenCredential,
};
use parking_lot::Mutex;

use crate::authorization::Authorization;
use crate::broker::Broker;
use crate::random;

/// Why a listener cannot authenticate anybody.
#[derive(Debug, thiserror::Error)]
pub enum ListenerSecurityError {
    /// A mechanism of SASL.
    #[error("listener.name.{listener}.{mechanism}.{source}")]
    Sasl {
        /// The listener, in small letters.
        listener: String,
        /// The mechanism, in small letters.
        mechanism: String,
        /// What is wrong.
        source: SecurityError,
    },
    /// `super.users`.
    #[error("super.users: {0}")]
    SuperUsers(SecurityError),
    /// TLS.
    #[error("the listener {listener} cannot use TLS: {source}")]
    Tls {
        /// The listener.
        listener: String,
        /// What is wrong.
        source: SecurityError,
    },
}

pub(crate) use tls::TlsSettings;

/// A SASL listener: what it allows, and the users that it knows by itself.
pub(crate) struct SaslSettings {
    /// Mechanisms and the length of sessions.
    pub(crate) rules: Arc<SaslRules>,
    /// `sasl.server.max.receive.size`.
    pub(crate) receive_bytes_max: usize,
    plain: Option<PlainUsers>,
}

/// The SASL listeners, and what unknown users are shown.
pub(crate) struct Security {
    /// By the rank of the listener; none without SASL.
    listeners: Vec<Option<Arc<SaslSettings>>>,
    /// As `listeners`; none without TLS.
    tls: Vec<Option<Arc<TlsSettings>>>,
    authorization: Option<Arc<Authorization>>,
    decoy_key: Secret,
    /// How credentials look on the whole, until they change.
    decoys: Mutex<HashMap<ScramMechanism, DecoyShape>>,
}

impl Security {
    /// By a configuration.
    ///
    /// # Errors
    /// When a JAAS text is malformed or names another module than its mechanism's, or a key store cannot be used.
    pub(crate) fn new(config: &BrokerConfig) -> Result<Security, ListenerSecurityError> {
        let listeners = config.listeners.open.iter().zip(&config.sasl_listeners);
        let listeners = listeners.map(|(endpoint, sasl)| {
            let sasl = sasl.as_ref().map(|sasl| SaslSettings::new(&endpoint.listener, sasl));
            Ok(sasl.transpose()?.map(Arc::new))
        });
        let listeners = listeners.collect::<Result<_, _>>()?;
        let tls = config.listeners.open.iter().zip(&config.tls_listeners).map(|(endpoint, tls)| {
            let tls = tls.as_ref().map(|tls| TlsSettings::new(&endpoint.listener, tls));
            Ok(tls.transpose()?.map(Arc::new))
        });
        Ok(Security {
            listeners,
            tls: tls.collect::<Result<_, _>>()?,
            authorization: authorization(config)?,
            decoy_key: Secret::new(random::bytes::<32>()),
            decoys: Mutex::default(),
        })
    }

    /// What a listener asks of its clients; none without SASL.
    pub(crate) fn sasl(&self, listener: usize) -> Option<&Arc<SaslSettings>> {
        self.listeners.get(listener)?.as_ref()
    }

    /// Who may do what; none without an authorizer, when everybody may do everything.
    pub(crate) fn authorization(&self) -> Option<&Arc<Authorization>> {
        self.authorization.as_ref()
    }

    /// The sessions of a listener; none without TLS.
    pub(crate) fn tls(&self, listener: usize) -> Option<&Arc<TlsSettings>> {
        self.tls.get(listener)?.as_ref()
    }

    /// The listeners with TLS.
    pub(crate) fn tls_listeners(&self) -> impl Iterator<Item = &Arc<TlsSettings>> {
        self.tls.iter().flatten()
    }

    /// Whether the clients of any listener have more to do than to connect.
    pub(crate) fn has_door(&self) -> bool {
        self.listeners.iter().any(Option::is_some) || self.tls.iter().any(Option::is_some)
    }

    /// The SCRAM credentials of the metadata have changed.
    pub(crate) fn scram_changed(&self) {
        self.decoys.lock().clear();
    }

    /// What an unknown user of a mechanism is shown. Looks at all credentials once after each change of them.
    fn decoy(&self, broker: &Broker, mechanism: ScramMechanism) -> DecoyShape {
        let mut decoys = self.decoys.lock();
        let look = || broker.controller.image().scram_decoy(mechanism, self.decoy_key.clone());
        decoys.entry(mechanism).or_insert_with(look).clone()
    }
}

/// What `authorizer.class.name` and the keys beside it say.
fn authorization(config: &BrokerConfig) -> Result<Option<Arc<Authorization>>, ListenerSecurityError> {
    let Some(wanted) = &config.authorizer else { return Ok(None) };
    let super_users =
        AuthorizerRules::super_users(&wanted.super_users).map_err(ListenerSecurityError::SuperUsers)?;
    let rules = AuthorizerRules {
        super_users,
        allow_everyone_if_no_acl_found: wanted.allow_everyone_if_no_acl_found,
    };
    Ok(Some(Arc::new(Authorization::new(rules))))
}

impl SaslSettings {
    fn new(listener: &str, sasl: &SaslListener) -> Result<SaslSettings, ListenerSecurityError> {
        let mut rules = SaslRules::default();
        let mut plain = None;
        for found in &sasl.mechanisms {
            let failed = |source| ListenerSecurityError::Sasl {
                listener: listener.to_lowercase(),
                mechanism: found.name.to_lowercase(),
                source,
            };
            let mechanism: Mechanism = found.name.parse().map_err(failed)?;
            let jaas = jaas(mechanism, found).map_err(failed)?;
            if mechanism == Mechanism::Plain {
                plain = jaas.map(|jaas| jaas.plain_users());
            }
            rules.mechanisms.push(mechanism);
            rules.max_reauth_ms.insert(mechanism, found.max_reauth_ms);
        }
        Ok(SaslSettings { rules: Arc::new(rules), receive_bytes_max: sasl.receive_bytes_max, plain })
    }
}

/// The JAAS text of a mechanism, whose module has to be its own.
fn jaas(mechanism: Mechanism, found: &SaslMechanism) -> Result<Option<JaasConfig>, SecurityError> {
    let Some(text) = &found.jaas_config else { return Ok(None) };
    let jaas = JaasConfig::parse(text.expose())?;
    let is_own = match mechanism {
        Mechanism::Plain => jaas.module == LoginModule::Plain,
        Mechanism::Scram(_) => jaas.module == LoginModule::Scram,
    };
    if is_own {
        return Ok(Some(jaas));
    }
    Err(SecurityError::Jaas(format!("the login module is not that of {mechanism}")))
}

/// The users of one listener, for an exchange.
pub(crate) struct KnownUsers<'a> {
    /// Where the metadata is.
    pub(crate) broker: &'a Broker,
    /// The listener.
    pub(crate) settings: &'a SaslSettings,
}

impl Credentials for KnownUsers<'_> {
    fn plain(&self) -> Option<&PlainUsers> {
        self.settings.plain.as_ref()
    }

    fn scram(&self, mechanism: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
        let image = self.broker.controller.image();
        image.scram_credential(mechanism, user).cloned().map(Cow::Owned)
    }

    /// There are no delegation tokens yet.
    fn token(&self, _mechanism: ScramMechanism, _id: &str) -> Option<TokenCredential> {
        None
    }

    fn decoy(&self, mechanism: ScramMechanism) -> DecoyShape {
        self.broker.security.decoy(self.broker, mechanism)
    }
}
