//! A SASL listener: its mechanisms, and the users that it knows by itself.

use std::sync::Arc;

use mainstem_config::{BrokerConfig, SaslListener, SaslMechanism};
use mainstem_security::jaas::{JaasConfig, LoginModule};
use mainstem_security::plain::PlainUsers;
use mainstem_security::{Mechanism, SaslRules, Secret, SecurityError};
use parking_lot::RwLock;

use super::ListenerSecurityError;

/// A SASL listener: what it allows, and the users that it knows by itself.
pub struct SaslSettings {
    /// Mechanisms and the length of sessions.
    pub rules: Arc<SaslRules>,
    /// `sasl.server.max.receive.size`.
    pub receive_bytes_max: usize,
    plain: Option<PlainUsers>,
    /// The keys that they were made from.
    keys: SaslListener,
}

/// The settings of a SASL listener for those who connect, or renew their session, from now on.
pub struct CurrentSasl {
    /// The listener's name.
    listener: String,
    settings: RwLock<Arc<SaslSettings>>,
}

impl CurrentSasl {
    /// By the keys of a listener.
    ///
    /// # Errors
    /// As [`SaslSettings::new`].
    pub fn new(listener: &str, keys: &SaslListener) -> Result<CurrentSasl, ListenerSecurityError> {
        let settings = RwLock::new(Arc::new(SaslSettings::new(listener, keys)?));
        Ok(CurrentSasl { listener: listener.to_owned(), settings })
    }

    /// The settings now.
    pub fn get(&self) -> Arc<SaslSettings> {
        self.settings.read().clone()
    }

    /// Checks that these keys could be used from now on, and changes nothing.
    ///
    /// # Errors
    /// As [`SaslSettings::new`].
    pub fn check(&self, keys: &SaslListener) -> Result<(), ListenerSecurityError> {
        SaslSettings::new(&self.listener, keys).map(drop)
    }

    /// Uses these keys from now on if they are valid; otherwise nothing changes, and the log says why.
    pub fn apply(&self, keys: &SaslListener) {
        if self.settings.read().keys == *keys {
            return;
        }
        let listener = &self.listener;
        match SaslSettings::new(listener, keys) {
            Ok(settings) => {
                *self.settings.write() = Arc::new(settings);
                tracing::info!(
                    listener,
                    "SASL has changed: new connections, and sessions that are renewed, obey it"
                );
            }
            Err(error) => {
                tracing::warn!(
                    listener,
                    "SASL has changed and cannot be obeyed, so that it stays as it was: {error}"
                );
            }
        }
    }
}

/// The secret that decoys are made from on every node.
pub fn decoy_secret(config: &BrokerConfig) -> Option<Secret> {
    config.authentication.decoy_secret.as_ref().map(|secret| Secret::from(secret.expose()))
}

impl SaslSettings {
    /// By the keys of a listener.
    ///
    /// # Errors
    /// When a JAAS text is malformed or names another module than its mechanism's.
    pub fn new(listener: &str, sasl: &SaslListener) -> Result<SaslSettings, ListenerSecurityError> {
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
        let receive_bytes_max = sasl.receive_bytes_max;
        Ok(SaslSettings { rules: Arc::new(rules), receive_bytes_max, plain, keys: sasl.clone() })
    }

    /// The users that may log in by PLAIN; none without that mechanism.
    pub fn plain_users(&self) -> Option<&PlainUsers> {
        self.plain.as_ref()
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
