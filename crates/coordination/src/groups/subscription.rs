//! The topics in a consumer's subscription (ConsumerProtocolSubscription), as JoinGroup carries it.
//!
//! Only the part that all versions begin with is read, so a subscription of a later version is understood too.

use mainstem_wire::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use mainstem_wire::{Decoder, Message};

/// The topic names of a member's metadata; None if it does not parse.
pub(crate) fn topics(metadata: &[u8]) -> Option<Vec<Box<str>>> {
    let (version, body) = metadata.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let subscription = ConsumerProtocolSubscription::decode(&mut Decoder::new(body), 0).ok()?;
    Some(subscription.topics.iter().map(|topic| Box::from(&**topic)).collect())
}

#[cfg(test)]
mod tests {
    use super::topics;

    #[test]
    fn topics_come_first_in_every_version() {
        let v0 = b"\0\0\0\0\0\x02\0\x01a\0\x02bc\xff\xff\xff\xff";
        assert_eq!(topics(v0), Some(vec!["a".into(), "bc".into()]));
        let later = [b"\0\x09\0\0\0\x01\0\x01a\xff\xff\xff\xff".as_slice(), b"more"].concat();
        assert_eq!(topics(&later), Some(vec!["a".into()]));
        for bad in [b"".as_slice(), b"\0", b"\xff\xff\0\0\0\0\xff\xff\xff\xff", b"\0\0\x7f\xff\xff\xff"] {
            assert_eq!(topics(bad), None, "{bad:?}");
        }
    }
}
