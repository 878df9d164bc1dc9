//! Keys and certificates that were read and checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use rustls::sign::CertifiedKey;

use super::faults;
use crate::SecurityError;
use crate::store::{KeyEntry, KeyForm, KeyStore};
use crate::x509::CertificateInfo;

/// The contents of the stores of a listener or a client.
#[derive(Debug, Clone)]
pub struct TlsMaterial {
    /// The keys to authenticate with, in the order of the store; empty if there is no key store.
    pub identities: Vec<Identity>,
    /// The certificates that are trusted; none if there is no trust store.
    pub trusted: Option<Vec<CertificateDer<'static>>>,
}

/// A private key that fits its certificate.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name in the store.
    pub alias: String,
    /// The contents of its certificate.
    pub info: CertificateInfo,
    /// The last second since 1970 at which all certificates of the chain are valid.
    pub expires_at: i64,
    pub(super) key: Arc<CertifiedKey>,
}

fn unusable<T>(what: impl Into<String>, reason: impl Into<String>) -> Result<T, SecurityError> {
    Err(SecurityError::TlsMaterial { what: what.into(), reason: reason.into() })
}

impl TlsMaterial {
    /// Makes the material from stores. A key store must have a key, a trust store a certificate.
    ///
    /// # Errors
    /// When one has none, or a key does not fit its certificate.
    pub fn new(
        keystore: Option<KeyStore>,
        truststore: Option<KeyStore>,
    ) -> Result<TlsMaterial, SecurityError> {
        let identities = match keystore {
            None => Vec::new(),
            Some(store) if store.keys.is_empty() => {
                return unusable("the key store", "it has no private key, or none without a password");
            }
            Some(store) => store.keys.iter().map(Identity::new).collect::<Result<_, _>>()?,
        };
        let trusted = match truststore {
            None => None,
            Some(store) if store.trusted.is_empty() => {
                return unusable(
                    "the trust store",
                    "it has no trusted certificate; in PKCS12 those count that keytool -importcert imported",
                );
            }
            Some(store) => {
                Some(store.trusted.into_iter().map(|(_, bytes)| CertificateDer::from(bytes)).collect())
            }
        };
        Ok(TlsMaterial { identities, trusted })
    }

    /// The last second since 1970 at which all own certificates are valid; None without keys.
    pub fn expires_at(&self) -> Option<i64> {
        self.identities.iter().map(|identity| identity.expires_at).min()
    }

    /// Checks that a new material may replace this one while a listener runs, by Kafka's rules. Keys stay keys of the same subject and the
    /// same alternative names, unless `ssl.allow.dn.changes` and `ssl.allow.san.changes` say otherwise. A store is neither added nor
    /// removed.
    ///
    /// # Errors
    /// When it may not, with the reason.
    pub fn check_reload(
        &self,
        new: &TlsMaterial,
        allow_dn_changes: bool,
        allow_san_changes: bool,
    ) -> Result<(), SecurityError> {
        let refuse = |what: String| Err(SecurityError::Reload(what));
        match (self.identities.len(), new.identities.len()) {
            (0, 0) => {}
            (0, _) => {
                return refuse(
                    "Cannot add SSL keystore to an existing listener for which no keystore was configured."
                        .to_owned(),
                );
            }
            (_, 0) => {
                return refuse("Cannot remove the SSL keystore from an existing listener for which a keystore was configured.".to_owned());
            }
            (old, now) if old != now && !(allow_dn_changes && allow_san_changes) => {
                return refuse(format!(
                    "Keystore entries do not match, existing store contains {old} entries, new store contains {now} entries"
                ));
            }
            _ => {}
        }
        if self.trusted.is_none() && new.trusted.is_some() {
            return refuse(
                "Cannot add SSL truststore to an existing listener for which no truststore was configured."
                    .to_owned(),
            );
        }
        for (old, now) in self.identities.iter().zip(&new.identities) {
            if !allow_dn_changes && !old.has_subject_of(now) {
                return refuse(format!(
                    "Keystore DistinguishedName does not match:  existing={{alias={}, DN={}}}, new={{alias={}, DN={}}}",
                    old.alias, old.info.subject, now.alias, now.info.subject
                ));
            }
            let names = |identity: &Identity| {
                identity.info.alternative_names.iter().cloned().collect::<BTreeSet<_>>()
            };
            if !allow_san_changes && names(old) != names(now) {
                return refuse(format!(
                    "Keystore SubjectAltNames do not match:  existing={{alias={}}}, new={{alias={}}}",
                    old.alias, now.alias
                ));
            }
        }
        Ok(())
    }
}

impl Identity {
    fn new(entry: &KeyEntry) -> Result<Identity, SecurityError> {
        let what = || format!("the key {}", entry.alias);
        let Some(first) = entry.chain.first() else { return unusable(what(), "it has no certificate") };
        let info = CertificateInfo::parse(first)?;
        if let Some(fault) = faults::of_form(&info) {
            return unusable(what(), format!("its certificate cannot be used: {}", fault.what));
        }
        let mut expires_at = info.not_after;
        for issuer in &entry.chain[1..] {
            expires_at = expires_at.min(CertificateInfo::parse(issuer)?.not_after);
        }
        let bytes = entry.key.expose().to_vec();
        let key = match entry.form {
            KeyForm::Pkcs8 => PrivateKeyDer::from(PrivatePkcs8KeyDer::from(bytes)),
            KeyForm::Pkcs1 => PrivateKeyDer::from(PrivatePkcs1KeyDer::from(bytes)),
            KeyForm::Sec1 => PrivateKeyDer::from(PrivateSec1KeyDer::from(bytes)),
        };
        let chain = entry.chain.iter().map(|bytes| CertificateDer::from(bytes.clone())).collect();
        match CertifiedKey::from_der(chain, key, &default_provider()) {
            Ok(key) => Ok(Identity { alias: entry.alias.clone(), info, expires_at, key: Arc::new(key) }),
            Err(rustls::Error::InconsistentKeys(_)) => unusable(what(), "it does not fit its certificate"),
            Err(error) => unusable(what(), error.to_string()),
        }
    }

    fn has_subject_of(&self, other: &Identity) -> bool {
        self.info.subject_der == other.info.subject_der
            || self.info.subject.to_lowercase() == other.info.subject.to_lowercase()
    }
}
