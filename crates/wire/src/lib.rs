//! Kafka 4.3 messages, generated from a compact table of facts: frames, primitive types, every version byte for byte.
//!
//! `schema/kafka-4.3.0.txt` is the table; the build script makes one module per message of it, in [`messages`].
//! [`Decoder`] reads borrowed from a frame, [`Encoder`] appends to a buffer and leaves holes where records go out by
//! other means. Malformed bytes are [`DecodeError`] values that name the field.
//!
//! Invariant: no I/O; no bytes make this crate panic or allocate more than the budget of their decoder.

mod api_key;
#[doc(hidden)]
pub mod catalogue;
pub mod coordinator;
mod decoder;
mod encoder;
mod error;
mod error_code;
pub mod frame;
#[doc(hidden)]
pub mod fuzz;
mod list_frame;
mod message;
pub mod metadata_frame;
mod records;
#[doc(hidden)]
pub mod sample;
#[path = "../build/table.rs"]
#[allow(dead_code, reason = "the build script uses the rest")]
mod table;
mod tagged;
mod uuid;
pub mod varint;

pub use api_key::{ApiKey, UnknownApiKey};
pub use decoder::{Decoder, elements_budget, memory_budget, request_memory_budget};
pub use encoder::Encoder;
pub use error::{DecodeError, EncodeError, Malformed, Unencodable};
pub use error_code::ErrorCode;
pub use list_frame::ListFrame;
pub use message::{Element, Message, Request};
pub use records::{Hole, Records};
pub use tagged::UnknownTaggedField;
pub use uuid::{ParseUuidError, Uuid};

/// One module per message, named as the message in snake case.
///
/// A nullable field without a default in the schema defaults to empty and not to null, as in Kafka; only records
/// default to null.
#[allow(clippy::all, unreachable_pub, reason = "generated code is plain, not pretty")]
pub mod messages {
    /// Imports of the generated modules.
    mod prelude {
        pub use std::borrow::Cow;
        pub use std::ops::RangeInclusive;

        pub use crate::coordinator::CoordinatorKey;
        pub use crate::{
            ApiKey, DecodeError, Decoder, Element, EncodeError, Encoder, Message, Records, Request,
            UnknownTaggedField, Uuid,
        };
    }

    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}
