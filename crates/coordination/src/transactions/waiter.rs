//! Requests that wait for a record, and their answers when its outcome is known.

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;

use super::adding::Adding;
use super::api::Reply;
use super::image::Image;
use super::{Token, replies};

/// The request behind a change of a transactional id.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// None: a time-out or the last marker has caused the change.
    None,
    /// An InitProducerId that gets the identity of the image.
    Init(Token),
    /// An InitProducerId that has found a transaction: its client tries again when that is aborted.
    Fence(Token),
    /// An AddPartitionsToTxn or AddOffsetsToTxn.
    Add(Adding),
    /// An EndTxn. The answer to one of v5 or later has the producer's next id and epoch.
    End { token: Token, tells_identity: bool },
}

impl Waiter {
    /// The answer, if a client waits for one.
    pub(crate) fn reply(self, id: &str, outcome: Result<&Image, ErrorCode>) -> Option<(Token, Reply)> {
        match (self, outcome) {
            (Waiter::None, _) => None,
            (Waiter::Init(token), Ok(image)) => {
                Some((token, replies::initialised(image.producer_id, image.producer_epoch)))
            }
            (Waiter::Fence(token), Ok(_)) => {
                Some((token, replies::not_initialised(ErrorCode::CONCURRENT_TRANSACTIONS)))
            }
            (Waiter::Init(token) | Waiter::Fence(token), Err(error)) => {
                Some((token, replies::not_initialised(error)))
            }
            (Waiter::Add(adding), Ok(_)) => Some(adding.reply(id, ErrorCode::NONE)),
            (Waiter::Add(adding), Err(error)) => Some(adding.reply(id, error)),
            (Waiter::End { token, tells_identity }, Ok(image)) => {
                let nothing = (ProducerId::NONE, ProducerEpoch::NONE);
                let identity = if tells_identity { image.identity_afterwards() } else { nothing };
                Some((token, replies::ended(identity)))
            }
            (Waiter::End { token, .. }, Err(error)) => Some((token, replies::not_ended(error))),
        }
    }
}
