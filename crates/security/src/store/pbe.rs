//! Encryption by a password: PBES2 (RFC 8018) with AES. The schemes of PKCS #12 (RFC 7292), which are RC2 and triple DES, are refused; its
//! key derivation serves checksums.

use std::num::NonZeroU32;

use super::{Fault, fault};
use crate::Secret;
use crate::crypto::{Cipher, Hash};
use crate::der::{self, INTEGER, Malformed, OCTET_STRING, OID, Reader, SEQUENCE};

const PBES2: &str = "1.2.840.113549.1.5.13";
const PBKDF2: &str = "1.2.840.113549.1.5.12";

const RC2: &str = "RC2";
const TRIPLE_DES: &str = "triple DES";

/// The purpose of bytes that the KDF of PKCS #12 derives: a key of a checksum.
const PURPOSE_MAC: u8 = 3;

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
        "1.2.840.113549.1.12.1.3" | "1.2.840.113549.1.12.1.4" => return Err(Fault::WeakCipher(TRIPLE_DES)),
        "1.2.840.113549.1.12.1.5" | "1.2.840.113549.1.12.1.6" => return Err(Fault::WeakCipher(RC2)),
        other => return fault(format!("it is encrypted with {other}, which is not supported")),
    };
    cipher.decrypt(key.expose(), &iv, data).ok_or_else(|| Fault::Other("the password is wrong".to_owned()))
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
        "1.2.840.113549.3.2" => return Err(Fault::WeakCipher(RC2)),
        "1.2.840.113549.3.7" => return Err(Fault::WeakCipher(TRIPLE_DES)),
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

/// A password in UTF-16, the high byte first, with a zero at its end.
pub(super) fn bmp_password(password: &Secret) -> Result<Secret, Fault> {
    let text = std::str::from_utf8(password.expose()).map_err(|_| Malformed("the password is not UTF-8"))?;
    Ok(Secret::new(text.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect::<Vec<u8>>()))
}

/// The key derivation of RFC 7292, B.2, for a checksum: as many bytes as the hash has.
pub(super) fn mac_key(hash: Hash, password: &Secret, salt: &[u8], rounds: NonZeroU32) -> Vec<u8> {
    let block = hash.block_len();
    let filled = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().cycle().take(text.len().div_ceil(block) * block).collect()
    };
    let input = [vec![PURPOSE_MAC; block], filled(salt), filled(password.expose())].concat();
    (0..rounds.get()).fold(input, |bytes, _| hash.digest(&bytes))
}
