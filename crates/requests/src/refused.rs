//! An error of the protocol with its message.

use mainstem_wire::ErrorCode;

/// An error with the message that goes with it.
#[derive(Debug)]
pub struct Refused {
    /// Kafka's code.
    pub error: ErrorCode,
    /// The message for the client's user.
    pub message: String,
}

impl From<ErrorCode> for Refused {
    fn from(error: ErrorCode) -> Self {
        Refused { error, message: error.message().to_owned() }
    }
}
