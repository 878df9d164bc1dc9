//! PLAIN (RFC 4616): user name and password in clear, for connections that are encrypted.

use std::collections::BTreeMap;

use subtle::ConstantTimeEq;

use crate::Secret;
use crate::crypto::Hash;
use crate::sasl::Refusal;

/// The users that a broker's JAAS text names by `user_NAME="PASSWORD"`. Only digests of the passwords are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlainUsers {
    digests: BTreeMap<String, Secret>,
}

impl PlainUsers {
    /// Makes users with their passwords; if a name occurs twice, the last one counts.
    pub fn new<'a>(users: impl IntoIterator<Item = (&'a str, &'a Secret)>) -> PlainUsers {
        let digest = |(name, password): (&str, &Secret)| (name.to_owned(), digest(password.expose()));
        PlainUsers { digests: users.into_iter().map(digest).collect() }
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.digests.keys().map(String::as_str)
    }

    /// Returns true if this is the user's password. The time is the same for an unknown user and a wrong password, however much of it is
    /// right.
    pub fn is_valid(&self, user: &str, password: &[u8]) -> bool {
        let given = digest(password);
        let known = self.digests.get(user);
        let expected = known.unwrap_or(&given);
        bool::from(given.expose().ct_eq(expected.expose())) & known.is_some()
    }
}

fn digest(password: &[u8]) -> Secret {
    Secret::new(Hash::Sha256.digest(password))
}

/// The token that a client sends.
pub(crate) fn client_token(user: &str, password: &Secret) -> Vec<u8> {
    [b"\0".as_slice(), user.as_bytes(), b"\0", password.expose()].concat()
}

/// Returns the user whose name and password the token holds. The messages are Kafka's.
pub(crate) fn authenticate(token: &[u8], users: Option<&PlainUsers>) -> Result<String, Refusal> {
    // Kafka replaces bytes that are not UTF-8, and reads the rest.
    let text = String::from_utf8_lossy(token);
    let parts: Vec<&str> = text.splitn(4, '\0').collect();
    let [authorization_id, user, password] = parts[..] else {
        let got = parts.len();
        return Err(Refusal::shown(format!("Invalid SASL/PLAIN response: expected 3 tokens, got {got}")));
    };
    let refused = |what: &str| Err(Refusal::shown(format!("Authentication failed: {what}")));
    if user.is_empty() {
        return refused("username not specified");
    }
    if password.is_empty() {
        return refused("password not specified");
    }
    if !users.is_some_and(|users| users.is_valid(user, password.as_bytes())) {
        return refused("Invalid username or password");
    }
    if !authorization_id.is_empty() && authorization_id != user {
        return refused("Client requested an authorization id that is different from username");
    }
    Ok(user.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: &str) -> String {
        let users =
            PlainUsers::new([("alice", &Secret::from("a-secret")), ("bob", &Secret::from("b-secret"))]);
        match authenticate(token.as_bytes(), Some(&users)) {
            Ok(user) => user,
            Err(refusal) => {
                assert!(refusal.is_shown);
                refusal.detail
            }
        }
    }

    #[test]
    fn kafkas_words() {
        assert_eq!(check("\0alice\0a-secret"), "alice");
        assert_eq!(check("alice\0alice\0a-secret"), "alice");
        let other =
            "Authentication failed: Client requested an authorization id that is different from username";
        assert_eq!(check("bob\0alice\0a-secret"), other);
        let invalid = "Authentication failed: Invalid username or password";
        assert_eq!(check("\0alice\0b-secret"), invalid);
        assert_eq!(check("\0Alice\0a-secret"), invalid);
        assert_eq!(check("\0carol\0a-secret"), invalid);
        assert_eq!(check("bob\0alice\0b-secret"), invalid, "the password comes first");
        assert_eq!(check("\0\0a-secret"), "Authentication failed: username not specified");
        assert_eq!(check("\0alice\0"), "Authentication failed: password not specified");
        for (token, got) in
            [("", 1), ("alice", 1), ("alice\0x", 2), ("\0alice\0a-secret\0", 4), ("\0\0\0\0\0", 4)]
        {
            assert_eq!(
                check(token),
                format!("Invalid SASL/PLAIN response: expected 3 tokens, got {got}"),
                "{token:?}"
            );
        }
    }

    #[test]
    fn a_client_token_is_what_the_server_reads() {
        let token = client_token("alice", &Secret::from("a-secret"));
        assert_eq!(token, b"\0alice\0a-secret");
        assert!(authenticate(&token, None).is_err(), "without users no client comes in");
    }
}
