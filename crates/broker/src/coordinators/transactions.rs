//! Transactions are not served yet; a client that asks for them is told so in a way that ends its attempt.

use mainstem_wire::ErrorCode;

/// Fatal for the Java client and for librdkafka alike: neither retries on it, while most other codes in these places
/// are taken for a coordinator that will be there soon.
pub(crate) const NOT_SERVED_ERROR: ErrorCode = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;

/// What the client is told, where the response has room for a message.
pub(crate) const NOT_SERVED: &str =
    "Transactions are not served by this broker yet: produce without a transactional.id.";
