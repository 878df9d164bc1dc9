//! AlterUserScramCredentials (51), v0 (KIP-554).

use std::borrow::Cow;
use std::collections::BTreeSet;

use mainstem_security::Secret;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_user_scram_credentials_request::{
    AlterUserScramCredentialsRequest, ScramCredentialDeletion, ScramCredentialUpsertion,
};
use mainstem_wire::messages::alter_user_scram_credentials_response::{
    AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::scram_credentials as scram;
use super::state_machine::{Decision, MetadataStateMachine};

/// The changes of a request. Each user is named once, or refused.
#[derive(Default)]
struct Changes<'a> {
    /// In the order of the request, deletions first.
    accepted: Vec<(&'a str, MetadataRecord<'static>)>,
    refused: Vec<(&'a str, ApiError)>,
    seen: BTreeSet<&'a str>,
}

impl<'a> Changes<'a> {
    fn take(&mut self, user: &'a str, record: Result<MetadataRecord<'static>, ApiError>) {
        if self.refused.iter().any(|(refused, _)| *refused == user) {
            return;
        }
        let record = if self.seen.insert(user) { record } else { Err(named_twice()) };
        match record {
            Ok(record) => self.accepted.push((user, record)),
            Err(error) => {
                self.accepted.retain(|(accepted, _)| *accepted != user);
                self.refused.push((user, error));
            }
        }
    }
}

impl MetadataStateMachine {
    /// Sets and removes SCRAM credentials, each user by itself. The client sends hashes: passwords are not seen here.
    pub fn alter_user_scram_credentials(
        &mut self,
        request: &AlterUserScramCredentialsRequest<'_>,
    ) -> Decision<AlterUserScramCredentialsResponse<'static>> {
        let mut changes = Changes::default();
        for deletion in &request.deletions {
            changes.take(&deletion.name, self.deleted(deletion));
        }
        for upsertion in &request.upsertions {
            changes.take(&upsertion.name, upserted(upsertion));
        }
        let accepted = changes.accepted.iter().map(|(user, _)| result(user, None));
        let refused = changes.refused.iter().map(|(user, error)| result(user, Some(error)));
        let results = accepted.chain(refused).collect();
        let records = changes.accepted.into_iter().map(|(_, record)| record).collect();
        self.decide(records, AlterUserScramCredentialsResponse { results, ..Default::default() })
    }

    fn deleted(&self, deletion: &ScramCredentialDeletion<'_>) -> Result<MetadataRecord<'static>, ApiError> {
        let mechanism = checked(&deletion.name, deletion.mechanism)?;
        match self.ahead().scram_credential(mechanism, &deletion.name) {
            Some(_) => Ok(scram::removal(&deletion.name, mechanism)),
            None => Err(ApiError::new(
                ErrorCode::RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )),
        }
    }
}

fn upserted(upsertion: &ScramCredentialUpsertion<'_>) -> Result<MetadataRecord<'static>, ApiError> {
    let mechanism = checked(&upsertion.name, upsertion.mechanism)?;
    let iterations = u32::try_from(upsertion.iterations).unwrap_or_default();
    if iterations < ScramMechanism::ITERATIONS_MIN {
        return Err(unacceptable("Too few iterations"));
    }
    if iterations > ScramMechanism::ITERATIONS_MAX {
        return Err(unacceptable("Too many iterations"));
    }
    let salted = Secret::new(upsertion.salted_password.as_ref());
    let credential =
        ScramCredential::from_salted_password(mechanism, &salted, upsertion.salt.as_ref(), iterations);
    Ok(scram::record(&upsertion.name, mechanism, &credential))
}

fn checked(user: &str, mechanism: i8) -> Result<ScramMechanism, ApiError> {
    if user.is_empty() {
        return Err(unacceptable("Username must not be empty"));
    }
    let unknown = || ApiError::new(ErrorCode::UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism");
    ScramMechanism::from_code(mechanism).ok_or_else(unknown)
}

fn unacceptable(message: &str) -> ApiError {
    ApiError::new(ErrorCode::UNACCEPTABLE_CREDENTIAL, message)
}

fn named_twice() -> ApiError {
    let message = "A user credential cannot be altered twice in the same request";
    ApiError::new(ErrorCode::DUPLICATE_RESOURCE, message)
}

fn result(user: &str, error: Option<&ApiError>) -> AlterUserScramCredentialsResult<'static> {
    AlterUserScramCredentialsResult {
        user: Cow::Owned(user.to_owned()),
        error_code: error.map_or(ErrorCode::NONE, |error| error.code).0,
        error_message: error.map(|error| Cow::Owned(error.message.clone())),
        ..AlterUserScramCredentialsResult::default()
    }
}
