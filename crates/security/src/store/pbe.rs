//! Encryption by a password: PBES2 (RFC 8018), and the schemes of PKCS #12 (RFC 7292).

use std::num::NonZeroU32;

use super::{Fault, fault};
use crate::Secret;
use crate::crypto::{Cipher, Hash};
use crate::der::{self, INTEGER, Malformed, OCTET_STRING, OID, Reader, SEQUENCE};

const PBES2: &str = "1.2.840.113549.1.5.13";
const PBKDF2: &str = "1.2.840.113549.1.5.12";

/// The purpose of bytes that the KDF of PKCS #12 derives.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    Key = 1,
    Iv = 2,
    Mac = 3,
}

pub(super) fn iterations(value: u32, max: u32) -> Result<NonZeroU32, Fault> {
    match NonZeroU32::new(value) {
        Some(rounds) if value <= max => Ok(rounds),
        _ => fault(format!("its number of iterations is {value}, where 1 to {max} are accepted")),
    }
}

/// Decrypts `EncryptedPrivateKeyInfo`.
pub(super) fn decrypt_key(info: &[u8], password: &Secret, max: u32) -> Result<Secret, Fault> {
    let mut info = Reader::new(info).enter(SEQUENCE, "an encrypted key is no list")?;
    let algorithm = info.enter(SEQUENCE, "an encrypted key has no algorithm")?;
    let data = info.take(OCTET_STRING, "an encrypted key has no data")?;
    decrypt(algorithm, data, password, max).map(Secret::new)
}

/// Decrypts by the algorithm of an `AlgorithmIdentifier`.
pub(super) fn decrypt(
    mut algorithm: Reader<'_>,
    data: &[u8],
    password: &Secret,
    max: u32,
) -> Result<Vec<u8>, Fault> {
    let oid = der::dotted(algorithm.take(OID, "an algorithm has no identifier")?);
    let parameters = algorithm.enter(SEQUENCE, "an algorithm has no parameters")?;
    let (cipher, key, iv) = match oid.as_str() {
        PBES2 => pbes2(parameters, password, max)?,
        "1.2.840.113549.1.12.1.3" => pkcs12(parameters, password, Cipher::TripleDes, 24, max)?,
        "1.2.840.113549.1.12.1.4" => pkcs12(parameters, password, Cipher::TripleDes, 16, max)?,
        "1.2.840.113549.1.12.1.5" => pkcs12(parameters, password, Cipher::Rc2(128), 16, max)?,
        "1.2.840.113549.1.12.1.6" => pkcs12(parameters, password, Cipher::Rc2(40), 5, max)?,
        other => return fault(format!("it is encrypted with {other}, which is not supported")),
    };
    cipher.decrypt(key.expose(), &iv, data).ok_or_else(|| Fault("the password is wrong".to_owned()))
}

type Keyed = (Cipher, Secret, Vec<u8>);

/// `PBES2-params`: a key derivation function and a cipher.
fn pbes2(mut parameters: Reader<'_>, password: &Secret, max: u32) -> Result<Keyed, Fault> {
    let mut kdf = parameters.enter(SEQUENCE, "PBES2 has no key derivation")?;
    let mut scheme = parameters.enter(SEQUENCE, "PBES2 has no cipher")?;
    let oid = der::dotted(kdf.take(OID, "a key derivation has no identifier")?);
    if oid != PBKDF2 {
        return fault(format!("its key is derived by {oid}, which is not supported: use PBKDF2"));
    }
    let oid = der::dotted(scheme.take(OID, "a cipher has no identifier")?);
    let cipher = match oid.as_str() {
        "2.16.840.1.101.3.4.1.2" => Cipher::Aes128,
        "2.16.840.1.101.3.4.1.22" => Cipher::Aes192,
        "2.16.840.1.101.3.4.1.42" => Cipher::Aes256,
        "1.2.840.113549.3.7" => Cipher::TripleDes,
        other => return fault(format!("it is encrypted with {other}, which is not supported")),
    };
    let iv = scheme.take(OCTET_STRING, "a cipher has no initialization vector")?;
    let key = pbkdf2(kdf.enter(SEQUENCE, "PBKDF2 has no parameters")?, password, cipher.key_len(), max)?;
    Ok((cipher, key, iv.to_vec()))
}

/// `PBKDF2-params`; the password is UTF-8.
pub(super) fn pbkdf2(
    mut parameters: Reader<'_>,
    password: &Secret,
    bytes: usize,
    max: u32,
) -> Result<Secret, Fault> {
    let salt = parameters.take(OCTET_STRING, "PBKDF2 has no salt")?;
    let rounds = iterations(parameters.unsigned("PBKDF2 has no number of iterations")?, max)?;
    parameters.optional(INTEGER)?;
    let hash = match parameters.optional(SEQUENCE)? {
        None => Hash::Sha1,
        Some(function) => {
            let oid = der::dotted(Reader::new(function).take(OID, "a function has no identifier")?);
            match oid.as_str() {
                "1.2.840.113549.2.7" => Hash::Sha1,
                "1.2.840.113549.2.9" => Hash::Sha256,
                "1.2.840.113549.2.10" => Hash::Sha384,
                "1.2.840.113549.2.11" => Hash::Sha512,
                other => return fault(format!("its key is derived with {other}, which is not supported")),
            }
        }
    };
    Ok(Secret::new(hash.pbkdf2_bytes(password.expose(), salt, rounds, bytes)))
}

/// `pkcs-12PbeParams`: a salt and a number of iterations, with SHA-1.
fn pkcs12(
    mut parameters: Reader<'_>,
    password: &Secret,
    cipher: Cipher,
    key_bytes: usize,
    max: u32,
) -> Result<Keyed, Fault> {
    let salt = parameters.take(OCTET_STRING, "an algorithm has no salt")?;
    let rounds = iterations(parameters.unsigned("an algorithm has no number of iterations")?, max)?;
    let password = bmp_password(password)?;
    let mut key = derive(Hash::Sha1, Purpose::Key, &password, salt, rounds, key_bytes);
    if cipher == Cipher::TripleDes && key_bytes == 16 {
        key.extend_from_within(..8);
    }
    let iv = derive(Hash::Sha1, Purpose::Iv, &password, salt, rounds, cipher.block_len());
    Ok((cipher, Secret::new(key), iv))
}

/// A password in UTF-16, the high byte first, with a zero at its end.
pub(super) fn bmp_password(password: &Secret) -> Result<Secret, Fault> {
    let text = std::str::from_utf8(password.expose()).map_err(|_| Malformed("the password is not UTF-8"))?;
    Ok(Secret::new(text.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect::<Vec<u8>>()))
}

/// The key derivation of RFC 7292, B.2.
pub(super) fn derive(
    hash: Hash,
    purpose: Purpose,
    password: &Secret,
    salt: &[u8],
    rounds: NonZeroU32,
    bytes: usize,
) -> Vec<u8> {
    let block = hash.block_len();
    let filled = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().cycle().take(text.len().div_ceil(block) * block).collect()
    };
    let diversifier = vec![purpose as u8; block];
    let mut input = [filled(salt), filled(password.expose())].concat();
    let mut key = Vec::with_capacity(bytes + hash.len());
    while key.len() < bytes {
        let mut digest = hash.digest(&[diversifier.as_slice(), &input].concat());
        for _ in 1..rounds.get() {
            digest = hash.digest(&digest);
        }
        let addend: Vec<u8> = digest.iter().copied().cycle().take(block).collect();
        for piece in input.chunks_exact_mut(block) {
            let mut carry = 1;
            for (byte, add) in piece.iter_mut().zip(&addend).rev() {
                carry += u16::from(*byte) + u16::from(*add);
                *byte = (carry & 0xff) as u8;
                carry >>= 8;
            }
        }
        key.extend(digest);
    }
    key.truncate(bytes);
    key
}
