//! Principals, as ACLs and logs name them.

use std::fmt;
use std::str::FromStr;

use crate::SecurityError;

/// The principal of a connection. Types and names are compared letter by letter: `User:Alice` is not `user:alice`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KafkaPrincipal {
    /// `User`, unless another mechanism than Kafka's own made it.
    pub principal_type: String,
    /// The name.
    pub name: String,
}

impl KafkaPrincipal {
    /// The type of all principals that Kafka's mechanisms authenticate.
    pub const USER_TYPE: &'static str = "User";

    /// A user.
    pub fn user(name: impl Into<String>) -> KafkaPrincipal {
        KafkaPrincipal { principal_type: KafkaPrincipal::USER_TYPE.to_owned(), name: name.into() }
    }

    /// The principal of a connection that was not authenticated: `User:ANONYMOUS`.
    pub fn anonymous() -> KafkaPrincipal {
        KafkaPrincipal::user("ANONYMOUS")
    }
}

impl fmt::Display for KafkaPrincipal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.principal_type, self.name)
    }
}

impl FromStr for KafkaPrincipal {
    type Err = SecurityError;

    /// The type ends at the first colon; the rest is the name, colons and all.
    fn from_str(text: &str) -> Result<KafkaPrincipal, SecurityError> {
        let (principal_type, name) =
            text.split_once(':').ok_or_else(|| SecurityError::Principal(text.to_owned()))?;
        Ok(KafkaPrincipal { principal_type: principal_type.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_are_read_as_they_are_written() {
        for text in ["User:alice", "User:CN=a:b,O=c", "User:*", "Group:", ":x"] {
            assert_eq!(text.parse::<KafkaPrincipal>().unwrap().to_string(), text);
        }
        assert_eq!(
            "alice".parse::<KafkaPrincipal>().unwrap_err().to_string(),
            "expected a string in format principalType:principalName but got alice"
        );
        assert_ne!(KafkaPrincipal::user("Alice"), KafkaPrincipal::user("alice"));
    }
}
