//! DescribeUserScramCredentials (50), v0 (KIP-554).

use std::borrow::Cow;
use std::collections::BTreeMap;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_user_scram_credentials_request::DescribeUserScramCredentialsRequest;
use mainstem_wire::messages::describe_user_scram_credentials_response::{
    CredentialInfo, DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsResult,
};

use super::image::MetadataImage;

impl MetadataImage {
    /// The mechanisms and iterations of the named users, or of all if the request names none.
    pub fn describe_user_scram_credentials(
        &self,
        request: &DescribeUserScramCredentialsRequest<'_>,
    ) -> DescribeUserScramCredentialsResponse<'static> {
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        match request.users.as_deref() {
            None | Some([]) => {
                times.extend(self.scram().values().flat_map(BTreeMap::keys).map(|user| (user.as_str(), 1)));
            }
            Some(users) => users.iter().for_each(|user| *times.entry(&user.name).or_default() += 1),
        }
        let results = times.into_iter().map(|(user, times)| self.described(user, times > 1));
        DescribeUserScramCredentialsResponse { results: results.collect(), ..Default::default() }
    }

    fn described(&self, user: &str, is_repeated: bool) -> DescribeUserScramCredentialsResult<'static> {
        let own = self.scram().iter().filter_map(|(mechanism, users)| {
            let credential = users.get(user)?;
            Some(CredentialInfo {
                mechanism: mechanism.code(),
                iterations: i32::try_from(credential.iterations).unwrap_or(i32::MAX),
                ..CredentialInfo::default()
            })
        });
        let credential_infos: Vec<_> = own.collect();
        let result =
            DescribeUserScramCredentialsResult { user: Cow::Owned(user.to_owned()), ..Default::default() };
        let refused = |code: ErrorCode, message: &str| DescribeUserScramCredentialsResult {
            error_code: code.0,
            error_message: Some(Cow::Owned(format!("{message}{user}"))),
            ..result.clone()
        };
        if is_repeated {
            let message = "Cannot describe SCRAM credentials for the same user twice in a single request: ";
            return refused(ErrorCode::DUPLICATE_RESOURCE, message);
        }
        if credential_infos.is_empty() {
            let message = "Attempt to describe a user credential that does not exist: ";
            return refused(ErrorCode::RESOURCE_NOT_FOUND, message);
        }
        DescribeUserScramCredentialsResult { credential_infos, ..result }
    }
}
