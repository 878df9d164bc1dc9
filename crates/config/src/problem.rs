//! Mistakes of a configuration.

use std::fmt;

use super::origin::StaticOrigin;

/// A mistake that keeps the node from starting, or a change from being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The source of the value, if it is known.
    pub origin: Option<StaticOrigin>,
    /// Key, value, and the values that are allowed.
    pub message: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Problem {
        Problem { origin: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// All mistakes of a configuration, so that they can be corrected at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one problem.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
