//! SCRAM credentials as metadata (KIP-900): their records, and their place in the image.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_security::{DecoyShape, Secret};
use mainstem_wire::messages::remove_user_scram_credential_record::RemoveUserScramCredentialRecord;
use mainstem_wire::messages::user_scram_credential_record::UserScramCredentialRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::Inconsistency;
use super::image::{MetadataChange, MetadataImage};

/// The form of a decoy if no user has credentials: that of Kafka's own tools.
const SHAPE_OF_NONE: (u32, usize, bool) = (ScramMechanism::ITERATIONS_MIN, 25, true);

/// The record that sets a credential. It holds the keys in clear, as in Kafka.
pub(super) fn record(
    user: &str,
    mechanism: ScramMechanism,
    credential: &ScramCredential,
) -> MetadataRecord<'static> {
    MetadataRecord::UserScramCredentialRecord(Box::new(UserScramCredentialRecord {
        name: Cow::Owned(user.to_owned()),
        mechanism: mechanism.code(),
        salt: Cow::Owned(credential.salt.clone()),
        stored_key: Cow::Owned(credential.stored_key.expose().to_vec()),
        server_key: Cow::Owned(credential.server_key.expose().to_vec()),
        iterations: i32::try_from(credential.iterations).expect("iterations are 31 bits in every record"),
        ..UserScramCredentialRecord::default()
    }))
}

/// The same as bytes, for a file with which a cluster begins.
pub fn user_record(user: &str, mechanism: ScramMechanism, credential: &ScramCredential) -> Vec<u8> {
    let mut bytes = Vec::new();
    record(user, mechanism, credential).encode(&mut bytes, 0).expect("version 0 has all fields");
    bytes
}

/// The record that removes a credential.
pub(super) fn removal(user: &str, mechanism: ScramMechanism) -> MetadataRecord<'static> {
    MetadataRecord::RemoveUserScramCredentialRecord(Box::new(RemoveUserScramCredentialRecord {
        name: Cow::Owned(user.to_owned()),
        mechanism: mechanism.code(),
        ..RemoveUserScramCredentialRecord::default()
    }))
}

fn mechanism_of(code: i8) -> Result<ScramMechanism, Inconsistency> {
    ScramMechanism::from_code(code).ok_or(Inconsistency::ScramMechanism(code))
}

/// Applying, and reading.
impl MetadataImage {
    pub(super) fn set_scram(
        &mut self,
        record: &UserScramCredentialRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let mechanism = mechanism_of(record.mechanism)?;
        let user = record.name.to_string();
        let iterations = u32::try_from(record.iterations).map_err(|_| Inconsistency::ScramIterations {
            user: user.clone(),
            iterations: record.iterations,
        })?;
        let credential = ScramCredential {
            salt: record.salt.to_vec(),
            stored_key: Secret::new(record.stored_key.as_ref()),
            server_key: Secret::new(record.server_key.as_ref()),
            iterations,
        };
        self.scram.entry(mechanism).or_default().insert(user.clone(), credential);
        Ok(MetadataChange::ScramChanged { user, mechanism })
    }

    pub(super) fn remove_scram(
        &mut self,
        record: &RemoveUserScramCredentialRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let mechanism = mechanism_of(record.mechanism)?;
        let user = record.name.to_string();
        let removed = self.scram.get_mut(&mechanism).and_then(|users| users.remove(&user));
        if removed.is_none() {
            return Err(Inconsistency::UnknownScram { user, mechanism });
        }
        self.scram.retain(|_, users| !users.is_empty());
        Ok(MetadataChange::ScramChanged { user, mechanism })
    }

    /// A user's credential for a mechanism.
    pub fn scram_credential(&self, mechanism: ScramMechanism, user: &str) -> Option<&ScramCredential> {
        self.scram.get(&mechanism)?.get(user)
    }

    /// The credentials for a mechanism, by user.
    pub fn scram_credentials(
        &self,
        mechanism: ScramMechanism,
    ) -> impl Iterator<Item = (&str, &ScramCredential)> {
        let users = self.scram.get(&mechanism).into_iter().flatten();
        users.map(|(user, credential)| (user.as_str(), credential))
    }

    /// Returns the typical form of the credentials for a mechanism, with the key of the decoys. It reads all credentials: call it when they
    /// have changed, not when a user logs in.
    pub fn scram_decoy(&self, mechanism: ScramMechanism, key: Secret) -> DecoyShape {
        let mut counts: HashMap<(u32, usize, bool), usize> = HashMap::new();
        for (_, credential) in self.scram_credentials(mechanism) {
            let is_text =
                credential.salt.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
            *counts.entry((credential.iterations, credential.salt.len(), is_text)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(shape, count)| (*count, *shape));
        let (iterations, salt_bytes, is_text) = most.map_or(SHAPE_OF_NONE, |(shape, _)| shape);
        DecoyShape { key, iterations, salt_bytes, is_text }
    }

    /// A secret that follows from the users' credentials: the same on all nodes, and known only to those that have the credentials. None
    /// without users. It changes with the credentials.
    pub fn scram_secret(&self) -> Option<Secret> {
        let credentials = self.scram.values().flat_map(BTreeMap::values);
        let keys: Vec<u8> =
            credentials.flat_map(|credential| credential.stored_key.expose()).copied().collect();
        (!keys.is_empty()).then(|| Secret::new(keys))
    }

    pub(super) fn scram(&self) -> &BTreeMap<ScramMechanism, BTreeMap<String, ScramCredential>> {
        &self.scram
    }
}
