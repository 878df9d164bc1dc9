//! Names of protocols and cipher suites, as Kafka and Java have them.

use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};

use crate::SecurityError;

/// The name of a protocol, as in `ssl.enabled.protocols`.
pub fn protocol_name(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        _ => "unknown",
    }
}

/// The name of a cipher suite, as in `ssl.cipher.suites`: that of the registry.
pub fn cipher_suite_name(suite: CipherSuite) -> String {
    let name = suite.as_str().unwrap_or("unknown");
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name.to_owned(),
    }
}

/// The protocols of `ssl.enabled.protocols`; all if none are set.
pub(super) fn protocols(names: &[String]) -> Result<Vec<&'static SupportedProtocolVersion>, SecurityError> {
    if names.is_empty() {
        return Ok(vec![&TLS13, &TLS12]);
    }
    let one = |name: &String| match name.as_str() {
        "TLSv1.3" => Ok(&TLS13),
        "TLSv1.2" => Ok(&TLS12),
        other => Err(SecurityError::TlsProperty(format!(
            "ssl.enabled.protocols: {other} is not supported: use TLSv1.3 and TLSv1.2"
        ))),
    };
    names.iter().map(one).collect()
}

/// The cipher suites of `ssl.cipher.suites`, and those of them that Java knows and this program does not; all if none are set.
pub(super) fn cipher_suites(
    names: &[String],
) -> Result<(Vec<SupportedCipherSuite>, Vec<String>), SecurityError> {
    if names.is_empty() {
        return Ok((ALL_CIPHER_SUITES.to_vec(), Vec::new()));
    }
    let mut suites = Vec::new();
    let mut left_out = Vec::new();
    for name in names {
        match ALL_CIPHER_SUITES.iter().find(|suite| cipher_suite_name(suite.suite()) == *name) {
            Some(suite) => suites.push(*suite),
            None if name.starts_with("TLS_") || name.starts_with("SSL_") => left_out.push(name.clone()),
            None => {
                return Err(SecurityError::TlsProperty(format!(
                    "ssl.cipher.suites: {name} is no cipher suite"
                )));
            }
        }
    }
    if suites.is_empty() {
        let known: Vec<String> =
            ALL_CIPHER_SUITES.iter().map(|suite| cipher_suite_name(suite.suite())).collect();
        return Err(SecurityError::TlsProperty(format!(
            "ssl.cipher.suites: none of them is supported: use some of {}",
            known.join(", ")
        )));
    }
    Ok((suites, left_out))
}
