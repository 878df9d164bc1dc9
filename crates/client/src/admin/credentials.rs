//! SCRAM credentials of users: DescribeUserScramCredentials (50) and AlterUserScramCredentials (51), of KIP-554.

use std::collections::BTreeMap;

use mainstem_security::Secret;
use mainstem_security::scram::{self, salted_password};
use mainstem_wire::messages::alter_user_scram_credentials_request::{
    AlterUserScramCredentialsRequest, ScramCredentialDeletion, ScramCredentialUpsertion,
};
use mainstem_wire::messages::describe_user_scram_credentials_request::{
    DescribeUserScramCredentialsRequest, UserName,
};
use mainstem_wire::messages::describe_user_scram_credentials_response::CredentialInfo;

use super::Admin;
use crate::error::Error;

/// A SCRAM credential of a user as a cluster describes it, without the password.
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
    /// The hash function; none if this client does not know it.
    pub mechanism: Option<ScramMechanism>,
    /// The number of hash iterations.
    pub iterations: i32,
}

/// The hash function for a password (RFC 5802, RFC 7677).
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

    /// The mechanism of a name, in any case; none if it is not known.
    pub fn from_name(name: &str) -> Option<ScramMechanism> {
        [ScramMechanism::Sha256, ScramMechanism::Sha512]
            .into_iter()
            .find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// Returns true if a user of this name can log in by SCRAM. A name on the wire is ASCII without NUL, as in Kafka, whose brokers store
    /// others as well.
    pub fn carries_name(name: &str) -> bool {
        scram::ScramMechanism::carries_name(name)
    }

    fn code(self) -> i8 {
        self.hash().code()
    }

    fn hash(self) -> scram::ScramMechanism {
        match self {
            ScramMechanism::Sha256 => scram::ScramMechanism::Sha256,
            ScramMechanism::Sha512 => scram::ScramMechanism::Sha512,
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
    /// The SCRAM credentials of these users, or of all users that have any. Each user has an error of its own, such as
    /// RESOURCE_NOT_FOUND.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
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

    /// Sets the password of a user by a mechanism. It is hashed here, with a salt of its own; the cluster does not see it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for fewer than 4,096 or more than 16,384 iterations, or why the cluster refuses.
    pub async fn set_scram_credential(
        &self,
        user: &str,
        mechanism: ScramMechanism,
        password: &str,
        iterations: u32,
    ) -> Result<(), Error> {
        let salt: [u8; 32] = rand::random();
        let password = Secret::from(password);
        let computed = tokio::task::spawn_blocking(move || {
            salted_password(mechanism.hash(), &password, &salt, iterations)
        });
        let salted = computed.await.map_err(|_| Error::Closed)?;
        let salted = salted.map_err(|error| Error::Invalid(error.to_string()))?;
        let upsertion = || ScramCredentialUpsertion {
            name: user.into(),
            mechanism: mechanism.code(),
            iterations: iterations as i32,
            salt: salt.as_slice().into(),
            salted_password: salted.expose().into(),
            ..Default::default()
        };
        self.alter_credential(user, || AlterUserScramCredentialsRequest {
            upsertions: vec![upsertion()],
            ..Default::default()
        })
        .await
    }

    /// Removes the password of a user by a mechanism.
    ///
    /// # Errors
    /// RESOURCE_NOT_FOUND if there is none, or why the cluster refuses.
    pub async fn remove_scram_credential(&self, user: &str, mechanism: ScramMechanism) -> Result<(), Error> {
        self.alter_credential(user, || AlterUserScramCredentialsRequest {
            deletions: vec![ScramCredentialDeletion {
                name: user.into(),
                mechanism: mechanism.code(),
                ..Default::default()
            }],
            ..Default::default()
        })
        .await
    }

    async fn alter_credential<'q>(
        &self,
        user: &str,
        request: impl Fn() -> AlterUserScramCredentialsRequest<'q>,
    ) -> Result<(), Error> {
        self.retried("altering the password of a user", || async {
            let reply = self.cluster.call_controller(&request()).await?;
            for result in &reply.read()?.results {
                let what = || format!("cannot alter the password of user {user}");
                reply.check(result.error_code, result.error_message.as_deref(), what)?;
            }
            Ok(())
        })
        .await
    }
}
