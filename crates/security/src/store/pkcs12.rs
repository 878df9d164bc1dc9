//! PKCS #12 (RFC 7292), as Java and OpenSSL write it.
//!
//! As in Java, a certificate without a key is trusted only if the store marks it by Oracle's attribute: `keytool -importcert` sets it, and
//! `openssl pkcs12` sets it from version 3.2 on with `-jdktrust`.

use std::collections::HashSet;

use super::pbe;
use super::{Fault, KeyEntry, KeyForm, KeyStore, StorePasswords, fault};
use crate::Secret;
use crate::crypto::Hash;
use crate::der::{self, INTEGER, OCTET_STRING, OID, Reader, SEQUENCE, SET, context};
use crate::x509::CertificateInfo;

const DATA: &str = "1.2.840.113549.1.7.1";
const ENCRYPTED_DATA: &str = "1.2.840.113549.1.7.6";
const KEY_BAG: &str = "1.2.840.113549.1.12.10.1.1";
const SHROUDED_KEY_BAG: &str = "1.2.840.113549.1.12.10.1.2";
const CERTIFICATE_BAG: &str = "1.2.840.113549.1.12.10.1.3";
const X509_CERTIFICATE: &str = "1.2.840.113549.1.9.22.1";
const FRIENDLY_NAME: &str = "1.2.840.113549.1.9.20";
const LOCAL_KEY_ID: &str = "1.2.840.113549.1.9.21";
const TRUSTED_KEY_USAGE: &str = "2.16.840.1.113894.746875.1.1";
const PBMAC1: &str = "1.2.840.113549.1.5.14";

/// The entries of a store before keys and certificates are put together.
#[derive(Default)]
struct Bags<'p> {
    passwords: StorePasswords<'p>,
    iterations_max: u32,
    keys: Vec<(Attributes, Secret)>,
    certificates: Vec<(Attributes, Vec<u8>)>,
    /// A key is encrypted with a weak cipher.
    has_weak_key: bool,
    /// The weak cipher of a part or a key. It is an error once all parts are known.
    weak_cipher: Option<&'static str>,
}

#[derive(Debug, Clone, Default)]
struct Attributes {
    name: Option<String>,
    key_id: Option<Vec<u8>>,
    is_trusted: bool,
}

pub(super) fn open(
    bytes: &[u8],
    passwords: StorePasswords<'_>,
    iterations_max: u32,
) -> Result<KeyStore, Fault> {
    let mut pfx = Reader::new(bytes).enter(SEQUENCE, "it is no PKCS12")?;
    if pfx.unsigned("it has no version")? != 3 {
        return fault("it is PKCS12 of a version other than 3");
    }
    let mut safe = pfx.enter(SEQUENCE, "it has no contents")?;
    if der::dotted(safe.take(OID, "its contents have no type")?) != DATA {
        return fault("it is signed with a key and not with a password, which is not supported");
    }
    let contents =
        safe.enter(context(0), "its contents are empty")?.take(OCTET_STRING, "its contents are no bytes")?;
    // As in Java: without a password nothing is checked, and a store may have no checksum.
    if let (Some(mac), Some(password)) = (pfx.optional(SEQUENCE)?, passwords.store) {
        check_mac(Reader::new(mac), contents, password, iterations_max)?;
    }
    let mut bags = Bags { passwords, iterations_max, ..Bags::default() };
    let mut parts = Reader::new(contents).enter(SEQUENCE, "its contents are no list")?;
    while !parts.is_empty() {
        bags.part(parts.enter(SEQUENCE, "a part of it is no list")?)?;
    }
    bags.store()
}

/// `MacData`: over the contents, by the password.
fn check_mac(mut mac: Reader<'_>, contents: &[u8], password: &Secret, max: u32) -> Result<(), Fault> {
    let mut info = mac.enter(SEQUENCE, "its checksum is no list")?;
    let mut algorithm = info.enter(SEQUENCE, "its checksum has no algorithm")?;
    let expected = info.take(OCTET_STRING, "its checksum is empty")?;
    let salt = mac.take(OCTET_STRING, "its checksum has no salt")?;
    let oid = der::dotted(algorithm.take(OID, "its checksum's algorithm has no identifier")?);
    let (hash, key) = if oid == PBMAC1 {
        pbmac1(algorithm.enter(SEQUENCE, "PBMAC1 has no parameters")?, password, max)?
    } else {
        let hash = match oid.as_str() {
            "1.3.14.3.2.26" => Hash::Sha1,
            "2.16.840.1.101.3.4.2.1" => Hash::Sha256,
            "2.16.840.1.101.3.4.2.2" => Hash::Sha384,
            "2.16.840.1.101.3.4.2.3" => Hash::Sha512,
            other => return fault(format!("its checksum is made by {other}, which is not supported")),
        };
        let rounds = match mac.is_empty() {
            true => 1,
            false => mac.unsigned("its checksum's number of iterations is none")?,
        };
        let rounds = pbe::iterations(rounds, max)?;
        let password = pbe::bmp_password(password)?;
        (hash, Secret::new(pbe::mac_key(hash, &password, salt, rounds)))
    };
    let made = Secret::new(hash.hmac(key.expose(), &[contents]));
    if made == Secret::new(expected) {
        Ok(())
    } else {
        fault("the password is wrong, or the file is damaged")
    }
}

/// RFC 9579: PBKDF2 and an HMAC.
fn pbmac1(mut parameters: Reader<'_>, password: &Secret, max: u32) -> Result<(Hash, Secret), Fault> {
    let mut kdf = parameters.enter(SEQUENCE, "PBMAC1 has no key derivation")?;
    let mut scheme = parameters.enter(SEQUENCE, "PBMAC1 has no function")?;
    kdf.take(OID, "a key derivation has no identifier")?;
    let oid = der::dotted(scheme.take(OID, "a function has no identifier")?);
    let hash = match oid.as_str() {
        "1.2.840.113549.2.9" => Hash::Sha256,
        "1.2.840.113549.2.10" => Hash::Sha384,
        "1.2.840.113549.2.11" => Hash::Sha512,
        other => return fault(format!("its checksum is made with {other}, which is not supported")),
    };
    let key = pbe::pbkdf2(kdf.enter(SEQUENCE, "PBKDF2 has no parameters")?, password, hash.len(), max)?;
    Ok((hash, key))
}

impl Bags<'_> {
    /// A `ContentInfo`: bags in clear, or encrypted together.
    fn part(&mut self, mut info: Reader<'_>) -> Result<(), Fault> {
        let kind = der::dotted(info.take(OID, "a part of it has no type")?);
        let mut content = info.enter(context(0), "a part of it is empty")?;
        match kind.as_str() {
            DATA => self.bags(content.take(OCTET_STRING, "a part of it is no bytes")?),
            ENCRYPTED_DATA => {
                let mut data = content.enter(SEQUENCE, "an encrypted part is no list")?;
                data.take(INTEGER, "an encrypted part has no version")?;
                let mut encrypted = data.enter(SEQUENCE, "an encrypted part has no contents")?;
                encrypted.take(OID, "an encrypted part has no type")?;
                let algorithm = encrypted.enter(SEQUENCE, "an encrypted part has no algorithm")?;
                let bytes = encrypted.take(0x80, "an encrypted part has no bytes")?;
                // Java reads no further without a password: it skips encrypted parts.
                let Some(password) = self.passwords.store else { return Ok(()) };
                match pbe::decrypt(algorithm, bytes, password, self.iterations_max) {
                    Ok(plain) => self.bags(Secret::new(plain).expose()),
                    Err(fault) => self.note_weak_cipher(fault),
                }
            }
            other => fault(format!("a part of it is of type {other}, which is not supported")),
        }
    }

    /// `SafeContents`.
    fn bags(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let mut bags = Reader::new(bytes).enter(SEQUENCE, "its bags are no list")?;
        while !bags.is_empty() {
            let mut bag = bags.enter(SEQUENCE, "a bag is no list")?;
            let kind = der::dotted(bag.take(OID, "a bag has no type")?);
            let value = bag.take(context(0), "a bag is empty")?;
            let attributes = attributes(&mut bag)?;
            match kind.as_str() {
                KEY_BAG => self.keys.push((attributes, Secret::new(value))),
                SHROUDED_KEY_BAG => {
                    let Some(password) = self.passwords.key.or(self.passwords.store) else { continue };
                    match pbe::decrypt_key(value, password, self.iterations_max) {
                        Ok(key) => self.keys.push((attributes, key)),
                        Err(fault) => {
                            self.note_weak_cipher(fault)?;
                            self.has_weak_key = true;
                        }
                    }
                }
                CERTIFICATE_BAG => {
                    let mut certificate =
                        Reader::new(value).enter(SEQUENCE, "a certificate's bag is no list")?;
                    if der::dotted(certificate.take(OID, "a certificate has no type")?) == X509_CERTIFICATE {
                        let mut inner = certificate.enter(context(0), "a certificate is empty")?;
                        let bytes = inner.take(OCTET_STRING, "a certificate is no bytes")?;
                        self.certificates.push((attributes, bytes.to_vec()));
                    }
                }
                // Secret keys and lists of revocations are of no use here.
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps a weak cipher for the end; any other fault is one at once.
    fn note_weak_cipher(&mut self, fault: Fault) -> Result<(), Fault> {
        let Fault::WeakCipher(cipher) = fault else { return Err(fault) };
        self.weak_cipher = Some(cipher);
        Ok(())
    }

    fn store(self) -> Result<KeyStore, Fault> {
        if let Some(cipher) = self.weak_cipher {
            return Err(Fault::WeakStore { cipher, has_key: self.has_weak_key || !self.keys.is_empty() });
        }
        let mut store = KeyStore::default();
        for (attributes, key) in self.keys {
            let chain = chain(attributes.key_id.as_deref(), &self.certificates);
            let alias = attributes.name.unwrap_or_default();
            store.keys.push(KeyEntry { alias, form: KeyForm::Pkcs8, key, chain });
        }
        for (attributes, bytes) in self.certificates {
            if attributes.is_trusted {
                store.trusted.push((attributes.name.unwrap_or_default(), bytes));
            }
        }
        Ok(store)
    }
}

fn attributes(bag: &mut Reader<'_>) -> Result<Attributes, Fault> {
    let mut found = Attributes::default();
    let Some(set) = bag.optional(SET)? else { return Ok(found) };
    let mut set = Reader::new(set);
    while !set.is_empty() {
        let mut attribute = set.enter(SEQUENCE, "an attribute is no list")?;
        let kind = der::dotted(attribute.take(OID, "an attribute has no type")?);
        let mut values = attribute.enter(SET, "an attribute has no values")?;
        let Some(value) = values.any()? else { continue };
        match kind.as_str() {
            FRIENDLY_NAME => {
                let units = value.value.as_chunks::<2>().0.iter().map(|unit| u16::from_be_bytes(*unit));
                found.name = Some(char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect());
            }
            LOCAL_KEY_ID => found.key_id = Some(value.value.to_vec()),
            TRUSTED_KEY_USAGE => found.is_trusted = true,
            _ => {}
        }
    }
    Ok(found)
}

/// The certificate with the key's id, or the first one, followed by those of its issuers as far as the store has them.
fn chain(key_id: Option<&[u8]>, certificates: &[(Attributes, Vec<u8>)]) -> Vec<Vec<u8>> {
    let own = certificates.iter().find(|(attributes, _)| attributes.key_id.as_deref() == key_id);
    let mut next = own.or(certificates.first());
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    while let Some((_, bytes)) = next {
        if !seen.insert(bytes) {
            break;
        }
        chain.push(bytes.clone());
        let Ok(info) = CertificateInfo::parse(bytes) else { break };
        next = certificates.iter().find(|(_, other)| {
            CertificateInfo::parse(other).is_ok_and(|other| other.subject_der == info.issuer_der)
        });
    }
    chain
}
