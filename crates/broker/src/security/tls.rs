//! The sessions of a listener with TLS, and the stores that they are made from, which are read again when they change.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use mainstem_config::TlsListener;
use mainstem_security::SecurityError;
use mainstem_security::mapping::PrincipalMapping;
use mainstem_security::tls::{TlsClient, TlsMaterial, TlsProperties, TlsServer, TlsSession};
use parking_lot::RwLock;

use super::ListenerSecurityError;

/// Before a certificate expires, its operator is warned for so long.
const EXPIRY_WARNING_SECONDS: i64 = 30 * 24 * 3600;

/// A listener with TLS.
pub(crate) struct TlsSettings {
    /// The listener's name.
    pub(crate) listener: String,
    /// Whether this node dials others by the same stores.
    dials: bool,
    current: RwLock<Current>,
}

/// What new sessions begin with.
struct Current {
    usable: Usable,
    /// As they are set, whether or not they could be used.
    keys: TlsListener,
    /// The files as they were when they were looked at last, whether or not they could be used.
    seen: Vec<Option<Fingerprint>>,
    /// Why they cannot be, where the sessions go on with what was there before.
    failure: Option<String>,
}

/// Stores that were opened, and what is made of them.
struct Usable {
    server: TlsServer,
    /// For nodes that dial others.
    client: Option<TlsClient>,
    material: Arc<TlsMaterial>,
    /// Who a client is by its certificate.
    mapping: Arc<PrincipalMapping>,
    properties: TlsProperties,
    /// `ssl.allow.dn.changes` and `ssl.allow.san.changes`.
    allows: (bool, bool),
}

impl Usable {
    fn load(keys: &TlsListener, dials: bool) -> Result<Usable, SecurityError> {
        let properties = properties(keys)?;
        let mapping = PrincipalMapping::parse(keys.get("ssl.principal.mapping.rules").unwrap_or("DEFAULT"))?;
        let is_set = |key| keys.get(key).is_some_and(|text| text.trim().eq_ignore_ascii_case("true"));
        let read = |path: &str| std::fs::read(path).map_err(|error| error.to_string());
        let material = properties.load(&read)?;
        Ok(Usable {
            server: TlsServer::new(&properties, &material)?,
            client: dials.then(|| TlsClient::new(&properties, &material)).transpose()?,
            material: Arc::new(material),
            mapping: Arc::new(mapping),
            properties,
            allows: (is_set("ssl.allow.dn.changes"), is_set("ssl.allow.san.changes")),
        })
    }

    /// The same for a listener that has sessions already: they may not find another host where they were.
    fn reload(keys: &TlsListener, before: &TlsMaterial, dials: bool) -> Result<Usable, SecurityError> {
        let usable = Usable::load(keys, dials)?;
        let (allow_dn, allow_san) = usable.allows;
        before.check_reload(&usable.material, allow_dn, allow_san)?;
        Ok(usable)
    }
}

/// What changes with a file's contents: length, inode, and time of the last change in seconds and nanoseconds.
type Fingerprint = (u64, u64, i64, i64);

impl TlsSettings {
    /// By the keys of a listener.
    ///
    /// # Errors
    /// When they contradict each other, or a store cannot be read or used.
    pub(super) fn new(listener: &str, keys: &TlsListener) -> Result<TlsSettings, ListenerSecurityError> {
        TlsSettings::with(listener, keys, false)
    }

    /// By the keys of the controllers' listener, by which this node also dials others.
    ///
    /// # Errors
    /// As [`Self::new`]; when nothing says which nodes to trust.
    pub(crate) fn of_nodes(listener: &str, keys: &TlsListener) -> Result<TlsSettings, ListenerSecurityError> {
        TlsSettings::with(listener, keys, true)
    }

    fn with(listener: &str, keys: &TlsListener, dials: bool) -> Result<TlsSettings, ListenerSecurityError> {
        let failed = |source| ListenerSecurityError::Tls { listener: listener.to_owned(), source };
        let usable = Usable::load(keys, dials).map_err(failed)?;
        for suite in usable.properties.unsupported_cipher_suites() {
            tracing::warn!(listener, suite, "ssl.cipher.suites names a suite that is never chosen");
        }
        let seen = fingerprints(keys);
        let current = Current { usable, keys: keys.clone(), seen, failure: None };
        let settings = TlsSettings { listener: listener.to_owned(), dials, current: RwLock::new(current) };
        settings.warn_of_expiry();
        Ok(settings)
    }

    /// Begins a session with who has connected.
    ///
    /// # Errors
    /// Never in practice: what sessions begin with was checked.
    pub(crate) fn session(&self) -> Result<TlsSession, SecurityError> {
        self.current.read().usable.server.session()
    }

    /// Begins a session with another node, whose certificate has to have this name unless
    /// `ssl.endpoint.identification.algorithm` is empty.
    ///
    /// # Errors
    /// When the host is no name and no address.
    pub(crate) fn dialled(&self, host: &str) -> Result<TlsSession, SecurityError> {
        match &self.current.read().usable.client {
            Some(client) => client.session(host),
            None => Err(SecurityError::TlsProperty("this listener dials nothing".to_owned())),
        }
    }

    /// The last second since 1970 at which its certificates are valid.
    pub(crate) fn expires_at(&self) -> Option<i64> {
        self.current.read().usable.material.expires_at()
    }

    /// Who a client is by its certificate.
    pub(crate) fn mapping(&self) -> Arc<PrincipalMapping> {
        self.current.read().usable.mapping.clone()
    }

    /// Why its stores cannot be used as they are now.
    pub(crate) fn failure(&self) -> Option<String> {
        self.current.read().failure.clone()
    }

    /// Whether these keys could be obeyed from now on.
    ///
    /// # Errors
    /// When they contradict each other, or name stores that cannot be used, or not in the place of those before them.
    pub(super) fn check(&self, keys: &TlsListener) -> Result<(), ListenerSecurityError> {
        let (is_as_before, before) = {
            let current = self.current.read();
            (current.keys == *keys, current.usable.material.clone())
        };
        let failed = |source| ListenerSecurityError::Tls { listener: self.listener.clone(), source };
        if is_as_before {
            Ok(())
        } else {
            Usable::reload(keys, &before, self.dials).map(drop).map_err(failed)
        }
    }

    /// Obeys these keys from now on, if they can be; otherwise everything stays, and the log says why.
    pub(super) fn apply(&self, keys: &TlsListener) {
        if self.current.read().keys != *keys {
            self.reload(keys, fingerprints(keys));
        } else {
            self.reload_if_changed();
        }
    }

    /// Reads the stores again if a file has changed. New sessions begin with what is in them, if that may take the place
    /// of what was there before; otherwise everything stays, and the log says why.
    pub(crate) fn reload_if_changed(&self) {
        let keys = self.current.read().keys.clone();
        let seen = fingerprints(&keys);
        if seen != self.current.read().seen {
            self.reload(&keys, seen);
        }
    }

    fn reload(&self, keys: &TlsListener, seen: Vec<Option<Fingerprint>>) {
        let before = self.current.read().usable.material.clone();
        let loaded = Usable::reload(keys, &before, self.dials);
        let listener = &self.listener;
        let mut current = self.current.write();
        (current.keys, current.seen) = (keys.clone(), seen);
        match loaded {
            Ok(usable) => {
                (current.usable, current.failure) = (usable, None);
                drop(current);
                tracing::info!(listener, "the key stores have changed: new connections use them");
                self.warn_of_expiry();
            }
            Err(error) => {
                current.failure = Some(error.to_string());
                tracing::warn!(
                    listener,
                    "the key stores have changed and cannot be used: {error}; connections go on with those before them"
                );
            }
        }
    }

    fn warn_of_expiry(&self) {
        let now = now_seconds();
        let Some(expires_at) = self.expires_at().filter(|at| *at < now + EXPIRY_WARNING_SECONDS) else {
            return;
        };
        let listener = &self.listener;
        match (expires_at - now) / 86_400 {
            _ if expires_at < now => {
                tracing::warn!(
                    listener,
                    "the certificate of the listener has expired: clients will refuse it"
                )
            }
            days => tracing::warn!(listener, days, "the certificate of the listener expires within 30 days"),
        }
    }
}

/// Seconds since 1970.
fn now_seconds() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

fn properties(keys: &TlsListener) -> Result<TlsProperties, SecurityError> {
    TlsProperties::read(&|key| keys.get(key).map(str::to_owned))
}

/// None for a file that cannot be looked at; of keys that contradict each other there are no files.
fn fingerprints(keys: &TlsListener) -> Vec<Option<Fingerprint>> {
    let of = |path: &str| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.len(), meta.ino(), meta.mtime(), meta.mtime_nsec()))
    };
    properties(keys).map(|properties| properties.files().map(of).collect()).unwrap_or_default()
}
