//! Digests, HMAC, PBKDF2, and the ciphers of key stores. No other place calls the library of cryptography.

use std::num::NonZeroU32;

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::{digest, hmac, pbkdf2};

/// A hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    /// Only where old key stores have it.
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Bytes of a digest.
    pub(crate) const fn len(self) -> usize {
        match self {
            Hash::Sha1 => 20,
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Bytes of a block.
    pub(crate) const fn block_len(self) -> usize {
        match self {
            Hash::Sha1 | Hash::Sha256 => 64,
            Hash::Sha384 | Hash::Sha512 => 128,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Hash::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha384 => &digest::SHA384,
            Hash::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes).as_ref().to_vec()
    }

    /// The HMAC of the parts, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let algorithm = match self {
            Hash::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha384 => hmac::HMAC_SHA384,
            Hash::Sha512 => hmac::HMAC_SHA512,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        for part in parts {
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }

    /// PBKDF2 of as many bytes as the hash has: `Hi` of RFC 5802.
    pub(crate) fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Vec<u8> {
        self.pbkdf2_bytes(password, salt, iterations, self.len())
    }

    /// PBKDF2 (RFC 8018) of some bytes.
    pub(crate) fn pbkdf2_bytes(
        self,
        password: &[u8],
        salt: &[u8],
        iterations: NonZeroU32,
        bytes: usize,
    ) -> Vec<u8> {
        let algorithm = match self {
            Hash::Sha1 => pbkdf2::PBKDF2_HMAC_SHA1,
            Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Hash::Sha384 => pbkdf2::PBKDF2_HMAC_SHA384,
            Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut key = vec![0; bytes];
        pbkdf2::derive(algorithm, iterations, salt, password, &mut key);
        key
    }
}

/// Bytes of a block of AES.
const BLOCK_BYTES: usize = 16;

/// AES as key stores are encrypted with it, in CBC with PKCS #7 padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cipher {
    Aes128,
    Aes192,
    Aes256,
}

impl Cipher {
    /// Bytes of a key.
    pub(crate) const fn key_len(self) -> usize {
        match self {
            Cipher::Aes128 => 16,
            Cipher::Aes192 => 24,
            Cipher::Aes256 => 32,
        }
    }

    /// Decrypts and removes the padding. None if key, vector or data have wrong lengths, or if the padding is invalid: then the password is
    /// wrong.
    pub(crate) fn decrypt(self, key: &[u8], iv: &[u8], data: &[u8]) -> Option<Vec<u8>> {
        if data.is_empty() || !data.len().is_multiple_of(BLOCK_BYTES) || key.len() != self.key_len() {
            return None;
        }
        let algorithm: &'static Algorithm = match self {
            Cipher::Aes128 => &AES_128,
            Cipher::Aes192 => &AES_192,
            Cipher::Aes256 => &AES_256,
        };
        let context = DecryptionContext::Iv128(iv.try_into().ok()?);
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(UnboundCipherKey::new(algorithm, key).ok()?).ok()?;
        let mut buffer = data.to_vec();
        key.decrypt(&mut buffer, context).ok().map(|plain| plain.to_vec())
    }
}
