//! Key stores: private keys with their certificates, and certificates that are trusted. The format (PEM, PKCS #12 or JKS) is recognised by
//! the content.

mod jks;
mod pbe;
mod pem;
mod pkcs12;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::der::Malformed;
use crate::{Secret, SecurityError};

/// The most rounds of hashing that a store may ask for, as in Java.
const ITERATIONS_MAX: u32 = 5_000_000;

/// The contents of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyStore {
    /// Private keys, in the order of the store.
    pub keys: Vec<KeyEntry>,
    /// Trusted certificates in DER, each with its alias.
    pub trusted: Vec<(String, Vec<u8>)>,
}

/// A private key with its certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// Its name in the store.
    pub alias: String,
    /// The encoding of the key.
    pub form: KeyForm,
    /// The key in DER.
    pub key: Secret,
    /// The certificate of the key, in DER, and those of its issuers.
    pub chain: Vec<Vec<u8>>,
}

/// The encoding of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// PKCS #8, as everywhere but in some PEM files.
    Pkcs8,
    /// `RSA PRIVATE KEY`.
    Pkcs1,
    /// `EC PRIVATE KEY`.
    Sec1,
}

/// The passwords of a store.
#[derive(Debug, Clone, Copy, Default)]
pub struct StorePasswords<'a> {
    /// The store's own. Without one its integrity is not checked, as in Java.
    pub store: Option<&'a Secret>,
    /// The key's, if it is another one.
    pub key: Option<&'a Secret>,
}

/// The format of a store, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Text with certificates and keys.
    Pem,
    /// PKCS #12.
    Pkcs12,
    /// Java's own format.
    Jks,
}

impl StoreKind {
    /// Returns the format of some bytes.
    pub fn of(bytes: &[u8]) -> Option<StoreKind> {
        match bytes {
            [0xfe, 0xed, 0xfe, 0xed, ..] => Some(StoreKind::Jks),
            [0x30, ..] => Some(StoreKind::Pkcs12),
            _ if pem::is_pem(bytes) => Some(StoreKind::Pem),
            _ => None,
        }
    }
}

/// The reason why a store cannot be read; it becomes a [`SecurityError`] that names the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A key is encrypted by a cipher that is too weak.
    WeakCipher(&'static str),
    /// A PKCS #12 store is, with a private key or without one.
    WeakStore { cipher: &'static str, has_key: bool },
    /// Any other reason.
    Other(String),
}

impl From<Malformed> for Fault {
    fn from(Malformed(what): Malformed) -> Fault {
        Fault::Other(format!("it is damaged, or not what it seems: {what}"))
    }
}

pub(crate) fn fault<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Other(what.into()))
}

impl Fault {
    /// The message about the store `name`, with the command that converts it if there is one. OpenSSL keeps a key with its certificates;
    /// that a certificate is trusted is known to keytool alone.
    fn message(self, name: &str) -> String {
        let name = shlex::try_quote(name).unwrap_or(Cow::Borrowed(name));
        match self {
            Fault::WeakCipher(cipher) => {
                format!(
                    "its key is encrypted with {cipher}, which is too weak: convert it by openssl pkcs8 -topk8"
                )
            }
            Fault::WeakStore { cipher, has_key: true } => format!(
                "it is encrypted with {cipher}, which is too weak: convert it by OpenSSL 3: \
                 openssl pkcs12 -legacy -in {name} -nodes | openssl pkcs12 -export -out NEW.p12"
            ),
            Fault::WeakStore { cipher, has_key: false } => format!(
                "it is encrypted with {cipher}, which is too weak: convert it by Java 17 or later: \
                 keytool -importkeystore -srckeystore {name} -destkeystore NEW.p12"
            ),
            Fault::Other(what) => what,
        }
    }
}

impl KeyStore {
    /// Opens a store. `name` is for errors: a path, or the property that has the text.
    ///
    /// # Errors
    /// When it is no store, is damaged, or the passwords are wrong. No message holds a secret.
    pub fn open(name: &str, bytes: &[u8], passwords: StorePasswords<'_>) -> Result<KeyStore, SecurityError> {
        KeyStore::open_within(bytes, passwords, ITERATIONS_MAX)
            .map_err(|fault| SecurityError::Store { store: name.to_owned(), what: fault.message(name) })
    }

    /// Opens a store that asks for at most so many rounds of hashing.
    pub(crate) fn open_within(
        bytes: &[u8],
        passwords: StorePasswords<'_>,
        iterations_max: u32,
    ) -> Result<KeyStore, Fault> {
        match StoreKind::of(bytes) {
            Some(StoreKind::Jks) => jks::open(bytes, passwords),
            Some(StoreKind::Pkcs12) => pkcs12::open(bytes, passwords, iterations_max),
            Some(StoreKind::Pem) => pem::open(bytes, passwords, iterations_max),
            None if bytes.starts_with(&[0xce, 0xce, 0xce, 0xce]) => fault(
                "it is a JCEKS store, which is not supported: convert it by keytool -importkeystore to PKCS12",
            ),
            None => fault("it is neither PEM, PKCS12 nor JKS"),
        }
    }
}
