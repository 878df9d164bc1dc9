//! JKS, Java's format up to version 8.
//!
//! ```text
//!  magic u32 | version u32 (1, 2) | count u32 | entries | SHA-1 of the password, "Mighty Aphrodite" and all before
//!  entry: tag u32 (1: key, 2: certificate) | alias | date u64 | [length u32 | encrypted key | count u32] | certificates
//!  certificate: type (since version 2) | length u32 | DER
//! ```

use super::{Fault, KeyEntry, KeyForm, KeyStore, StorePasswords, fault};
use crate::Secret;
use crate::crypto::Hash;
use crate::der::{self, Malformed, OCTET_STRING, OID, Reader, SEQUENCE};

/// Sun's way to encrypt a key: XOR with a chain of digests.
const KEY_PROTECTOR: &str = "1.3.6.1.4.1.42.2.17.1.1";
const DIGEST_BYTES: usize = 20;

pub(super) fn open(bytes: &[u8], passwords: StorePasswords<'_>) -> Result<KeyStore, Fault> {
    let end = bytes.len().checked_sub(DIGEST_BYTES).ok_or(Malformed("it ends too early"))?;
    let (body, digest) = bytes.split_at(end);
    if let Some(password) = passwords.store {
        let text = [utf16(password)?.expose(), b"Mighty Aphrodite", body].concat();
        if Secret::new(Hash::Sha1.digest(Secret::new(text).expose())) != Secret::new(digest) {
            return fault("the password is wrong, or the file is damaged");
        }
    }
    let mut rest = Fields(body);
    rest.u32()?;
    let version = rest.u32()?;
    if !(1..=2).contains(&version) {
        return fault(format!("it is JKS of version {version}, where 1 and 2 are known"));
    }
    let mut store = KeyStore::default();
    for _ in 0..rest.u32()? {
        let tag = rest.u32()?;
        let alias = rest.text()?;
        rest.take(8)?;
        match tag {
            1 => {
                let encrypted = rest.counted()?;
                let count = rest.u32()?;
                let chain = (0..count).map(|_| rest.certificate(version)).collect::<Result<Vec<_>, _>>()?;
                if let Some(password) = passwords.key.or(passwords.store) {
                    let key = decrypt(encrypted, password)?;
                    store.keys.push(KeyEntry { alias, form: KeyForm::Pkcs8, key, chain });
                }
            }
            2 => store.trusted.push((alias, rest.certificate(version)?)),
            other => return fault(format!("it has an entry of the unknown kind {other}")),
        }
    }
    Ok(store)
}

/// Fields with their lengths before them.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(self.take(4)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn counted(&mut self) -> Result<&'a [u8], Fault> {
        let bytes = self.u32()?;
        self.take(usize::try_from(bytes).map_err(|_| Malformed("it ends too early"))?)
    }

    /// Java's own UTF-8, after a length of two bytes.
    fn text(&mut self) -> Result<String, Fault> {
        let bytes = self.take(2)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        Ok(String::from_utf8_lossy(self.take(bytes)?).into_owned())
    }

    fn certificate(&mut self, version: u32) -> Result<Vec<u8>, Fault> {
        if version > 1 {
            let kind = self.text()?;
            if kind != "X.509" {
                return fault(format!("it has a certificate of the unknown kind {kind}"));
            }
        }
        Ok(self.counted()?.to_vec())
    }
}

/// The password in UTF-16, the high byte first.
fn utf16(password: &Secret) -> Result<Secret, Fault> {
    let text = std::str::from_utf8(password.expose()).map_err(|_| Malformed("the password is not UTF-8"))?;
    Ok(Secret::new(text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>()))
}

/// A salt, the encrypted key, a digest of password and key.
fn decrypt(info: &[u8], password: &Secret) -> Result<Secret, Fault> {
    let mut info = Reader::new(info).enter(SEQUENCE, "an encrypted key is no list")?;
    let mut algorithm = info.enter(SEQUENCE, "an encrypted key has no algorithm")?;
    let oid = der::dotted(algorithm.take(OID, "an algorithm has no identifier")?);
    if oid != KEY_PROTECTOR {
        return fault(format!("a key is encrypted with {oid}, which is not supported in JKS"));
    }
    let data = info.take(OCTET_STRING, "an encrypted key has no data")?;
    let short = Malformed("an encrypted key is too short");
    let (mut chained, rest) =
        data.split_at_checked(DIGEST_BYTES).map(|(salt, rest)| (salt.to_vec(), rest)).ok_or(short)?;
    let end = rest.len().checked_sub(DIGEST_BYTES).ok_or(short)?;
    let password = utf16(password)?;
    let digest = |tail: &[u8]| Hash::Sha1.digest(Secret::new([password.expose(), tail].concat()).expose());
    let mut plain = Vec::with_capacity(end);
    for piece in rest[..end].chunks(DIGEST_BYTES) {
        chained = digest(&chained);
        plain.extend(piece.iter().zip(&chained).map(|(a, b)| a ^ b));
    }
    let plain = Secret::new(plain);
    if Secret::new(digest(plain.expose())) != Secret::new(&rest[end..]) {
        return fault("the key's password is wrong");
    }
    Ok(plain)
}
