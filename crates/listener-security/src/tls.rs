//! The sessions of a listener with TLS, and the stores that they are made from, which are read again when they change.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use mainstem_config::{TlsListener, files};
use mainstem_security::SecurityError;
use mainstem_security::mapping::PrincipalMapping;
use mainstem_security::tls::{TlsClient, TlsMaterial, TlsProperties, TlsServer, TlsSession};
use parking_lot::{Mutex, RwLock};

use super::ListenerSecurityError;
use super::handshakes::Handshakes;
use mainstem_runtime::clock::machine_wall_ms;

const DAY_SECONDS: i64 = 24 * 3600;
/// The time before the expiry of a certificate in which its operator is warned.
const EXPIRY_WARNING_SECONDS: i64 = 30 * DAY_SECONDS;

/// A listener with TLS.
pub struct TlsSettings {
    /// The listener's name.
    pub listener: String,
    /// True if this node dials others by the same stores.
    dials: bool,
    current: RwLock<Current>,
    /// Held while stores are read, so that the last request wins.
    reading: Mutex<()>,
    /// When the log has warned of the expiry last, in seconds since 1970.
    warned_at: Mutex<Option<i64>>,
    handshakes: Handshakes,
}

/// The keys and stores that new sessions use.
struct Current {
    usable: Usable,
    /// The configured keys, even if they could not be used.
    keys: TlsListener,
    /// The files as they were when they were last looked at, even if they could not be used.
    seen: Vec<Option<Fingerprint>>,
    /// The reason why they cannot be used; then sessions still use the stores before them.
    failure: Option<String>,
}

/// Stores that were opened, and everything that is made from them.
struct Usable {
    server: TlsServer,
    /// For nodes that dial others.
    client: Option<TlsClient>,
    material: Arc<TlsMaterial>,
    /// The principal of a client, by its certificate.
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
        let read = |path: &str| files::read(Path::new(path)).map_err(|error| error.to_string());
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

    /// Loads keys for a listener that has sessions already: a client must find the same host as before.
    fn reload(keys: &TlsListener, before: &TlsMaterial, dials: bool) -> Result<Usable, SecurityError> {
        let usable = Usable::load(keys, dials)?;
        let (allow_dn, allow_san) = usable.allows;
        before.check_reload(&usable.material, allow_dn, allow_san)?;
        Ok(usable)
    }
}

/// Properties that change with a file's contents: length, inode, and time of the last change in seconds and nanoseconds.
type Fingerprint = (u64, u64, i64, i64);

impl TlsSettings {
    /// By the keys of a listener.
    ///
    /// # Errors
    /// When they contradict each other, or a store cannot be read or used.
    pub fn new(listener: &str, keys: &TlsListener) -> Result<TlsSettings, ListenerSecurityError> {
        TlsSettings::with(listener, keys, false)
    }

    /// By the keys of the controllers' listener, by which this node also dials others.
    ///
    /// # Errors
    /// As [`Self::new`]; when nothing says which nodes to trust.
    pub fn of_nodes(listener: &str, keys: &TlsListener) -> Result<TlsSettings, ListenerSecurityError> {
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
        let (listener, current, warned_at) = (listener.to_owned(), RwLock::new(current), Mutex::default());
        let (reading, handshakes) = (Mutex::default(), Handshakes::default());
        let settings = TlsSettings { listener, dials, current, reading, warned_at, handshakes };
        settings.warn_of_expiry();
        Ok(settings)
    }

    /// Begins a session with a client.
    ///
    /// # Errors
    /// Never in practice: what sessions begin with was checked.
    pub fn session(&self) -> Result<TlsSession, SecurityError> {
        self.current.read().usable.server.session()
    }

    /// Begins a session with another node, whose certificate has to have this name unless
    /// `ssl.endpoint.identification.algorithm` is empty.
    ///
    /// # Errors
    /// When the host is no name and no address.
    pub fn dialled(&self, host: &str) -> Result<TlsSession, SecurityError> {
        match &self.current.read().usable.client {
            Some(client) => client.session(host),
            None => Err(SecurityError::TlsProperty("this listener dials nothing".to_owned())),
        }
    }

    /// Counts of its handshakes.
    pub fn handshakes(&self) -> &Handshakes {
        &self.handshakes
    }

    /// The last second since 1970 at which its certificates are valid.
    pub fn expires_at(&self) -> Option<i64> {
        self.current.read().usable.material.expires_at()
    }

    /// Returns the rules by which a certificate names its client.
    pub fn mapping(&self) -> Arc<PrincipalMapping> {
        self.current.read().usable.mapping.clone()
    }

    /// Why its stores cannot be used as they are now.
    pub fn failure(&self) -> Option<String> {
        self.current.read().failure.clone()
    }

    /// Checks that these keys could be used from now on, and changes nothing.
    ///
    /// # Errors
    /// When they contradict each other, or name stores that cannot be used, or that may not replace those before them.
    pub fn check(&self, keys: &TlsListener) -> Result<(), ListenerSecurityError> {
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

    /// Uses these keys from now on if they are valid; otherwise nothing changes, and the log says why.
    pub fn apply(&self, keys: &TlsListener) {
        let reading = self.reading.lock();
        if self.current.read().keys != *keys {
            self.reload(keys, fingerprints(keys));
        } else {
            drop(reading);
            self.reload_if_changed();
        }
    }

    /// Reads the stores again if a file has changed. New sessions use them if they may replace those before them; otherwise nothing
    /// changes, and the log says why.
    pub fn reload_if_changed(&self) {
        let _reading = self.reading.lock();
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
                *self.warned_at.lock() = None;
                self.warn_of_expiry();
            }
            Err(error) => {
                current.failure = Some(error.to_string());
                tracing::warn!(
                    listener,
                    "the key stores have changed and cannot be used: {error}; connections still use those before them"
                );
            }
        }
    }

    /// Looks at the stores again, and at the time that the certificate has left.
    pub fn look_after(&self) {
        self.reload_if_changed();
        self.warn_of_expiry();
    }

    /// Returns warnings for an operator, a sentence each.
    pub fn warnings(&self, now_seconds: i64) -> Vec<String> {
        let listener = &self.listener;
        let failure = self.failure().map(|failure| {
            format!("the key stores of the listener {listener} have changed and cannot be used: {failure}")
        });
        let left = self.expires_at().and_then(|at| DaysLeft::of(at, now_seconds));
        let left = left.map(|left| match left {
            DaysLeft::Expired => {
                format!("the certificate of the listener {listener} has expired: clients refuse it")
            }
            DaysLeft::Days(days) => {
                format!("the certificate of the listener {listener} expires in less than {} days", days + 1)
            }
        });
        left.into_iter().chain(failure).collect()
    }

    /// Logs that the certificate is about to expire, once a day.
    fn warn_of_expiry(&self) {
        let Some(left) = self.expiry_warning(now_seconds()) else { return };
        let listener = &self.listener;
        match left {
            DaysLeft::Expired => {
                tracing::warn!(
                    listener,
                    "the certificate of the listener has expired: clients will refuse it"
                )
            }
            DaysLeft::Days(days) => {
                tracing::warn!(listener, days, "the certificate of the listener expires within 30 days")
            }
        }
    }

    /// Returns the time left if it must be logged now: it is short, and was not logged within a day.
    pub fn expiry_warning(&self, now_seconds: i64) -> Option<DaysLeft> {
        let left = DaysLeft::of(self.expires_at()?, now_seconds)?;
        let mut warned_at = self.warned_at.lock();
        let is_new = warned_at.is_none_or(|at| now_seconds - at >= DAY_SECONDS);
        is_new.then(|| *warned_at = Some(now_seconds))?;
        Some(left)
    }
}

/// The time that a certificate has left, if it is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaysLeft {
    /// None: it has expired.
    Expired,
    /// Whole days, fewer than 30.
    Days(i64),
}

impl DaysLeft {
    /// Returns None if at least 30 days are left.
    fn of(expires_at: i64, now_seconds: i64) -> Option<DaysLeft> {
        match expires_at - now_seconds {
            left if left < 0 => Some(DaysLeft::Expired),
            left if left < EXPIRY_WARNING_SECONDS => Some(DaysLeft::Days(left / DAY_SECONDS)),
            _ => None,
        }
    }
}

/// Seconds since 1970.
pub fn now_seconds() -> i64 {
    machine_wall_ms() / 1_000
}

fn properties(keys: &TlsListener) -> Result<TlsProperties, SecurityError> {
    TlsProperties::read(&|key| keys.get(key).map(str::to_owned))
}

/// Returns the fingerprints of the files, None for a file that cannot be read. Keys that contradict each other have no files.
fn fingerprints(keys: &TlsListener) -> Vec<Option<Fingerprint>> {
    let of = |path: &str| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.len(), meta.ino(), meta.mtime(), meta.mtime_nsec()))
    };
    properties(keys).map(|properties| properties.files().map(of).collect()).unwrap_or_default()
}
