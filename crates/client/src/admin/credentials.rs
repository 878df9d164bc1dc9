//! What users log in with: DescribeUserScramCredentials (50), of KIP-554.

use std::collections::BTreeMap;

use mainstem_wire::messages::describe_user_scram_credentials_request::{
    DescribeUserScramCredentialsRequest, UserName,
};
use mainstem_wire::messages::describe_user_scram_credentials_response::CredentialInfo;

use super::Admin;
use crate::error::Error;

/// A password of a user, as far as a cluster tells: never the password.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// let admin = Admin::new(ClientConfig::new(broker.address())?);
/// for (user, credentials) in admin.scram_credentials(None).await? {
///     for credential in credentials? {
///         assert!(credential.iterations >= 4096, "{user} is easy to guess");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScramCredential {
    /// How it is hashed; none where this client does not know the way.
    pub mechanism: Option<ScramMechanism>,
    /// How often.
    pub iterations: i32,
}

/// How a password is hashed (RFC 5802, RFC 7677).
///
/// ```
/// use mainstem_client::ScramMechanism;
///
/// assert_eq!(ScramMechanism::Sha512.name(), "SCRAM-SHA-512");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScramMechanism {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

impl ScramMechanism {
    /// Its name in SASL.
    pub fn name(self) -> &'static str {
        match self {
            ScramMechanism::Sha256 => "SCRAM-SHA-256",
            ScramMechanism::Sha512 => "SCRAM-SHA-512",
        }
    }
}

impl ScramCredential {
    fn from_response(info: &CredentialInfo<'_>) -> ScramCredential {
        let mechanism = match info.mechanism {
            1 => Some(ScramMechanism::Sha256),
            2 => Some(ScramMechanism::Sha512),
            _ => None,
        };
        ScramCredential { mechanism, iterations: info.iterations }
    }
}

impl Admin {
    /// The passwords that users have, of some or of all who have any; of each user by itself why not, such as
    /// RESOURCE_NOT_FOUND.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Unsupported`] before Kafka 2.7, or why the cluster refuses.
    pub async fn scram_credentials(
        &self,
        users: Option<&[&str]>,
    ) -> Result<BTreeMap<String, Result<Vec<ScramCredential>, Error>>, Error> {
        self.retried("describing the passwords of users", || async {
            let named = |name: &&str| UserName { name: (*name).to_owned().into(), ..Default::default() };
            let users = users.map(|users| users.iter().map(named).collect());
            let request = DescribeUserScramCredentialsRequest { users, ..Default::default() };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            let message = response.error_message.as_deref();
            let what = || "cannot describe the passwords of users".to_owned();
            reply.check(response.error_code, message, what)?;
            let each = response.results.iter().map(|result| {
                let what = || format!("cannot describe the passwords of user {}", result.user);
                let checked = reply.check(result.error_code, result.error_message.as_deref(), what);
                let credentials = result.credential_infos.iter().map(ScramCredential::from_response);
                (result.user.to_string(), checked.map(|()| credentials.collect()))
            });
            Ok(each.collect())
        })
        .await
    }
}
