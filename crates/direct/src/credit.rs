//! The bytes that a publisher may send: what the consumer gave, less what was sent.

/// The largest credit of a consumer, whatever it gives.
pub const CREDIT_BYTES_MAX: u64 = 64 << 20;

/// Bytes that the consumer can take, as the publisher counts them.
///
/// A frame may be sent while any credit is left. It may be larger than that, so that no frame is too large for a small
/// credit. So the bytes outstanding are at most the credit and one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    bytes: i64,
}

const MAX: i64 = CREDIT_BYTES_MAX as i64;

impl Credit {
    /// Begins with the credit of the consumer's `Open`.
    pub fn new(bytes: u64) -> Credit {
        let mut credit = Credit { bytes: 0 };
        credit.give(bytes);
        credit
    }

    /// Adds credit, up to [`CREDIT_BYTES_MAX`].
    pub fn give(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(MAX);
        self.bytes = self.bytes.saturating_add(bytes).min(MAX);
    }

    /// Returns true if a frame may be sent.
    pub fn is_available(&self) -> bool {
        self.bytes > 0
    }

    /// Takes off the bytes of a frame that was sent. The credit may fall below zero.
    pub fn take(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn absurd_credit_is_bounded_and_a_large_frame_needs_only_some() {
        let mut credit = Credit::new(u64::MAX);
        credit.give(u64::MAX);
        credit.take(CREDIT_BYTES_MAX as usize);
        assert!(!credit.is_available());
        credit.give(1);
        assert!(credit.is_available());
        credit.take(1_000);
        credit.give(999);
        assert!(!credit.is_available());
    }

    proptest! {
        #[test]
        fn what_is_outstanding_is_the_credit_and_a_frame_at_most(
            window in 1u64..10_000,
            frames in prop::collection::vec((1usize..5_000, any::<bool>()), 1..100),
        ) {
            let mut credit = Credit::new(window);
            let mut outstanding = std::collections::VecDeque::new();
            for (size, finishes) in frames {
                if credit.is_available() {
                    credit.take(size);
                    outstanding.push_back(size);
                    let all: usize = outstanding.iter().sum();
                    prop_assert!(all as u64 <= window + size as u64);
                }
                if finishes && let Some(size) = outstanding.pop_front() {
                    credit.give(size as u64);
                }
            }
            // Nothing leaks: when all is finished, the credit is as it was.
            outstanding.drain(..).for_each(|size| credit.give(size as u64));
            prop_assert_eq!(credit, Credit::new(window));
        }
    }
}
