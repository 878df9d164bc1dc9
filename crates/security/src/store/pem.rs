//! PEM (RFC 7468), in a file or as the value of a property, where spaces may replace the ends of lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Fault, KeyEntry, KeyForm, KeyStore, StorePasswords, fault, pbe};
use crate::Secret;

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";

/// Returns true if bytes have a PEM header.
pub(super) fn is_pem(bytes: &[u8]) -> bool {
    bytes.windows(BEGIN.len()).any(|window| window == BEGIN.as_bytes())
}

/// One `-----BEGIN LABEL----- ... -----END LABEL-----`.
struct Block<'a> {
    label: &'a str,
    body: &'a str,
}

/// All blocks of a text.
fn blocks(text: &str) -> Result<Vec<Block<'_>>, Fault> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, begun)) = rest.split_once(BEGIN) {
        let (label, inner) =
            begun.split_once(DASHES).ok_or_else(|| Fault::Other("a BEGIN does not end".to_owned()))?;
        let end = format!("-----END {label}-----");
        let (body, after) = inner
            .split_once(&end)
            .ok_or_else(|| Fault::Other(format!("BEGIN {label} has no END {label}")))?;
        blocks.push(Block { label: label.trim(), body });
        rest = after;
    }
    Ok(blocks)
}

impl Block<'_> {
    fn decoded(&self) -> Result<Secret, Fault> {
        if self.body.contains("Proc-Type") {
            return fault("a key is encrypted in the old way of OpenSSL: convert it by openssl pkcs8 -topk8");
        }
        let lines = self.body.lines().filter(|line| !line.contains(':'));
        let text: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
        let text = Secret::from(text);
        let bytes = STANDARD.decode(text.expose());
        bytes
            .map(Secret::new)
            .map_err(|_| Fault::Other(format!("what BEGIN {} begins is not Base64", self.label)))
    }
}

/// One key at most, with all certificates; without a key, all certificates as trusted ones.
pub(super) fn open(
    bytes: &[u8],
    passwords: StorePasswords<'_>,
    iterations_max: u32,
) -> Result<KeyStore, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::Other("it is not UTF-8".to_owned()))?;
    let mut chain = Vec::new();
    let mut keys = Vec::new();
    for block in blocks(text)? {
        let form = match block.label {
            "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE" => {
                chain.push(block.decoded()?.expose().to_vec());
                continue;
            }
            "ENCRYPTED PRIVATE KEY" => {
                let missing =
                    || Fault::Other("its key is encrypted, and ssl.key.password is not set".to_owned());
                let password = passwords.key.ok_or_else(missing)?;
                keys.push((
                    KeyForm::Pkcs8,
                    pbe::decrypt_key(block.decoded()?.expose(), password, iterations_max)?,
                ));
                continue;
            }
            "PRIVATE KEY" => KeyForm::Pkcs8,
            "RSA PRIVATE KEY" => KeyForm::Pkcs1,
            "EC PRIVATE KEY" => KeyForm::Sec1,
            _ => continue, // parameters, requests and the like
        };
        keys.push((form, block.decoded()?));
    }
    let alias = |number: usize| format!("kafka{number}");
    match keys.len() {
        0 => {
            let trusted =
                chain.into_iter().enumerate().map(|(number, certificate)| (alias(number), certificate));
            Ok(KeyStore { keys: Vec::new(), trusted: trusted.collect() })
        }
        1 => {
            let entry = |(form, key)| KeyEntry { alias: "kafka".to_owned(), form, key, chain: chain.clone() };
            Ok(KeyStore { keys: keys.into_iter().map(entry).collect(), trusted: Vec::new() })
        }
        count => fault(format!("Expected one private key, but found {count}")),
    }
}
