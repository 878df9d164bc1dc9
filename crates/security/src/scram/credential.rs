//! SCRAM credentials: a broker stores them instead of passwords.

use std::num::NonZeroU32;

use super::ScramMechanism;
use crate::sasl::DecoyShape;
use crate::{Secret, SecurityError};

/// Hashes a password `iterations` times with a salt, as a client must for AlterUserScramCredentials (KIP-554).
///
/// # Errors
/// When the iterations are fewer or more than a credential may have.
pub fn salted_password(
    mechanism: ScramMechanism,
    password: &Secret,
    salt: &[u8],
    iterations: u32,
) -> Result<Secret, SecurityError> {
    let allowed = ScramMechanism::ITERATIONS_MIN..=ScramMechanism::ITERATIONS_MAX;
    let rounds = NonZeroU32::new(iterations).filter(|_| allowed.contains(&iterations)).ok_or(
        SecurityError::ScramIterations {
            mechanism,
            iterations: iterations.to_string(),
            min: *allowed.start(),
            max: *allowed.end(),
        },
    )?;
    Ok(Secret::new(mechanism.hash().pbkdf2(password.expose(), salt, rounds)))
}

/// The credential of a user. It is enough to check a password and to prove that the server knows it, but not to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScramCredential {
    /// Random bytes that were hashed with the password.
    pub salt: Vec<u8>,
    /// The digest of the client's key.
    pub stored_key: Secret,
    /// The key that the server signs with.
    pub server_key: Secret,
    /// The number of times that the password was hashed.
    pub iterations: u32,
}

impl ScramCredential {
    /// Makes a credential from a password, by hashing it `iterations` times.
    ///
    /// # Errors
    /// When the iterations are fewer or more than a credential may have.
    pub fn new(
        mechanism: ScramMechanism,
        password: &Secret,
        salt: impl Into<Vec<u8>>,
        iterations: u32,
    ) -> Result<ScramCredential, SecurityError> {
        let salt = salt.into();
        let salted = salted_password(mechanism, password, &salt, iterations)?;
        Ok(ScramCredential::from_salted_password(mechanism, &salted, salt, iterations))
    }

    /// Makes a credential from the salted password of AlterUserScramCredentials (KIP-554). The iterations are not checked.
    pub fn from_salted_password(
        mechanism: ScramMechanism,
        salted_password: &Secret,
        salt: impl Into<Vec<u8>>,
        iterations: u32,
    ) -> ScramCredential {
        let hash = mechanism.hash();
        let client_key = Secret::new(hash.hmac(salted_password.expose(), &[b"Client Key"]));
        ScramCredential {
            salt: salt.into(),
            stored_key: Secret::new(hash.digest(client_key.expose())),
            server_key: Secret::new(hash.hmac(salted_password.expose(), &[b"Server Key"])),
            iterations,
        }
    }

    /// Returns true if an exchange can be made with it: its keys have the mechanism's length, its iterations are enough.
    pub(super) fn is_usable(&self, mechanism: ScramMechanism) -> bool {
        let bytes = mechanism.key_bytes();
        self.stored_key.len() == bytes
            && self.server_key.len() == bytes
            && self.iterations >= ScramMechanism::ITERATIONS_MIN
    }

    /// Returns the credential that an unknown user is shown: always the same, and no password fits it.
    pub(super) fn decoy(mechanism: ScramMechanism, user: &str, shape: &DecoyShape) -> ScramCredential {
        let hash = mechanism.hash();
        let derived = |purpose: &str| {
            let parts = [mechanism.name().as_bytes(), b"\0", purpose.as_bytes(), b"\0", user.as_bytes()];
            hash.hmac(shape.key.expose(), &parts)
        };
        // A salt longer than one HMAC takes a second; 64 bytes are more than any tool makes.
        let mut salt = [derived("salt"), derived("more salt")].concat();
        salt.truncate(shape.salt_bytes.clamp(1, 64));
        if shape.is_text {
            salt.iter_mut()
                .for_each(|byte| *byte = b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::from(*byte % 36)]);
        }
        ScramCredential {
            salt,
            stored_key: Secret::new(derived("stored key")),
            server_key: Secret::new(derived("server key")),
            iterations: shape.iterations.max(ScramMechanism::ITERATIONS_MIN),
        }
    }
}
