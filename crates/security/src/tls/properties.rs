//! Kafka's `ssl.*` properties, and the checks of their combinations.

use crate::store::{KeyStore, StorePasswords};
use crate::{Secret, SecurityError};

use super::material::TlsMaterial;

/// `ssl.client.auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    #[default]
    None,
    /// They are asked for one, and may have none.
    Requested,
    /// They have to have one.
    Required,
}

/// The properties of one listener, or of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsProperties {
    keystore: Option<Store>,
    truststore: Option<Store>,
    key_password: Option<Secret>,
    /// `ssl.client.auth`.
    pub client_auth: ClientAuth,
    /// `ssl.enabled.protocols`.
    pub enabled_protocols: Vec<String>,
    /// `ssl.cipher.suites`.
    pub cipher_suites: Vec<String>,
    /// True if a server's name must be in its certificate: `ssl.endpoint.identification.algorithm` is not empty.
    pub checks_names: bool,
}

/// The place of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Store {
    File {
        path: String,
        password: Option<Secret>,
    },
    /// PEM in the properties.
    Inline {
        property: &'static str,
        text: Secret,
    },
}

fn fault<T>(what: impl Into<String>) -> Result<T, SecurityError> {
    Err(SecurityError::TlsProperty(what.into()))
}

const PEM: &str = "PEM";

impl TlsProperties {
    /// Reads the properties; `get` returns the value of a key for this listener, None if it is not set.
    ///
    /// # Errors
    /// When they contradict each other, with Kafka's messages, or are not supported.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<TlsProperties, SecurityError> {
        let list = |key: &str| -> Vec<String> {
            let value = get(key).unwrap_or_default();
            value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        refuse_unsupported(get)?;
        let properties = TlsProperties {
            keystore: keystore(get)?,
            truststore: truststore(get)?,
            key_password: get("ssl.key.password").map(Secret::from),
            client_auth: client_auth(get("ssl.client.auth"))?,
            enabled_protocols: list("ssl.enabled.protocols"),
            cipher_suites: list("ssl.cipher.suites"),
            checks_names: checks_names(get("ssl.endpoint.identification.algorithm"))?,
        };
        super::names::protocols(&properties.enabled_protocols)?;
        super::names::cipher_suites(&properties.cipher_suites)?;
        Ok(properties)
    }

    /// Suites of `ssl.cipher.suites` that Java knows and this program does not: they are never chosen, which deserves a warning.
    pub fn unsupported_cipher_suites(&self) -> Vec<String> {
        super::names::cipher_suites(&self.cipher_suites).map(|(_, left_out)| left_out).unwrap_or_default()
    }

    /// The files that [`TlsProperties::load`] reads; a reload watches them.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        [&self.keystore, &self.truststore].into_iter().flatten().filter_map(|store| match store {
            Store::File { path, .. } => Some(path.as_str()),
            Store::Inline { .. } => None,
        })
    }

    /// Opens the stores; `read` returns the contents of a file, or the reason why it cannot be read.
    ///
    /// # Errors
    /// When a store cannot be read or opened, or its key does not fit its certificate.
    pub fn load(&self, read: &dyn Fn(&str) -> Result<Vec<u8>, String>) -> Result<TlsMaterial, SecurityError> {
        let open = |store: &Store| self.open(store, read);
        let keystore = self.keystore.as_ref().map(open).transpose()?;
        let truststore = self.truststore.as_ref().map(open).transpose()?;
        TlsMaterial::new(keystore, truststore)
    }

    fn open(
        &self,
        store: &Store,
        read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
    ) -> Result<KeyStore, SecurityError> {
        let passwords = |store| StorePasswords { store, key: self.key_password.as_ref() };
        match store {
            Store::Inline { property, text } => KeyStore::open(property, text.expose(), passwords(None)),
            Store::File { path, password } => {
                let bytes = read(path)
                    .map(Secret::new)
                    .map_err(|what| SecurityError::Store { store: path.clone(), what })?;
                KeyStore::open(path, bytes.expose(), passwords(password.as_ref()))
            }
        }
    }
}

/// Refuses classes and protocols that would affect authentication, and are not supported.
fn refuse_unsupported(get: &dyn Fn(&str) -> Option<String>) -> Result<(), SecurityError> {
    for key in ["ssl.engine.factory.class", "ssl.provider", "security.providers"] {
        if get(key).is_some_and(|value| !value.is_empty()) {
            return fault(format!("{key} names a class of Java's, which is not supported: remove it"));
        }
    }
    match get("ssl.protocol").as_deref() {
        None | Some("" | "TLS" | "TLSv1.3" | "TLSv1.2") => Ok(()),
        Some(other) => fault(format!("ssl.protocol: {other} is not supported: use TLSv1.3 or TLSv1.2")),
    }
}

fn client_auth(value: Option<String>) -> Result<ClientAuth, SecurityError> {
    match value.as_deref().unwrap_or("none") {
        "none" => Ok(ClientAuth::None),
        "requested" => Ok(ClientAuth::Requested),
        "required" => Ok(ClientAuth::Required),
        other => fault(format!("ssl.client.auth: {other} is none of none, requested, required")),
    }
}

fn checks_names(value: Option<String>) -> Result<bool, SecurityError> {
    match value.as_deref().map(str::trim) {
        None => Ok(true),
        Some("") => Ok(false),
        Some(name) if name.eq_ignore_ascii_case("https") => Ok(true),
        Some(other) => fault(format!(
            "ssl.endpoint.identification.algorithm: {other} is not supported: use https, or nothing"
        )),
    }
}

/// The type of a store; JKS opens PKCS12 as well, and the reverse, as in Java.
fn store_type(get: &dyn Fn(&str) -> Option<String>, key: &str) -> Result<String, SecurityError> {
    let value = get(key).unwrap_or_else(|| "JKS".to_owned());
    match value.to_ascii_uppercase().as_str() {
        "JKS" | "PKCS12" | PEM => Ok(value),
        _ => fault(format!("{key}: {value} is not supported: use PEM, PKCS12 or JKS")),
    }
}

/// Reads the key store, with checks in Kafka's order and with Kafka's messages.
fn keystore(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Store>, SecurityError> {
    let kind = store_type(get, "ssl.keystore.type")?;
    let path = get("ssl.keystore.location");
    let password = get("ssl.keystore.password").map(Secret::from);
    let chain = get("ssl.keystore.certificate.chain");
    if let Some(key) = get("ssl.keystore.key") {
        if kind != PEM {
            return fault(format!(
                "SSL private key can be specified only for PEM, but key store type is {kind}."
            ));
        }
        let Some(chain) = chain else {
            return fault("SSL private key is specified, but certificate chain is not specified.");
        };
        if path.is_some() {
            return fault("Both SSL key store location and separate private key are specified.");
        }
        if password.is_some() {
            return fault(
                "SSL key store password cannot be specified with PEM format, only key password may be specified.",
            );
        }
        let text = Secret::from(format!("{key}\n{chain}"));
        return Ok(Some(Store::Inline { property: "ssl.keystore.key", text }));
    }
    match (path, password) {
        _ if chain.is_some() => fault("SSL certificate chain is specified, but private key is not specified"),
        (Some(_), Some(_)) if kind == PEM => fault(
            "SSL key store password cannot be specified with PEM format, only key password may be specified",
        ),
        (Some(path), None) if kind == PEM => Ok(Some(Store::File { path, password: None })),
        (None, Some(_)) => fault("SSL key store is not specified, but key store password is specified."),
        (Some(_), None) => fault("SSL key store is specified, but key store password is not specified."),
        (Some(path), password) => Ok(Some(Store::File { path, password })),
        (None, None) => Ok(None),
    }
}

fn truststore(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Store>, SecurityError> {
    let kind = store_type(get, "ssl.truststore.type")?;
    let path = get("ssl.truststore.location");
    let password = get("ssl.truststore.password").map(Secret::from);
    if let Some(text) = get("ssl.truststore.certificates") {
        if kind != PEM {
            return fault(format!(
                "SSL trust store certs can be specified only for PEM, but trust store type is {kind}."
            ));
        }
        if path.is_some() {
            return fault("Both SSL trust store location and separate trust certificates are specified.");
        }
        if password.is_some() {
            return fault("SSL trust store password cannot be specified for PEM format.");
        }
        return Ok(Some(Store::Inline { property: "ssl.truststore.certificates", text: Secret::from(text) }));
    }
    match (path, password) {
        (Some(_), Some(_)) if kind == PEM => {
            fault("SSL trust store password cannot be specified for PEM format.")
        }
        (None, Some(_)) => fault("SSL trust store is not specified, but trust store password is specified."),
        (Some(path), password) => Ok(Some(Store::File { path, password })),
        (None, None) => Ok(None),
    }
}
