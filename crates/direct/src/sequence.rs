//! The consumer's check that nothing is missing: each frame begins where the one before ended, and its batches lie within.

use std::ops::Range;

use mainstem_records::Batch;

/// A fault in the publisher's frames. The connection ends, and the subscription resumes at the position before the
/// frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceFault {
    /// Events are missing, or come again.
    #[error("a frame begins with offset {from} where {expected} is due")]
    Gap {
        /// The offset that is due.
        expected: i64,
        /// The frame's first offset.
        from: i64,
    },
    /// A frame ends before it begins.
    #[error("a frame from offset {from} ends at {next}")]
    Backwards {
        /// The frame's first offset.
        from: i64,
        /// The offset behind the frame.
        next: i64,
    },
    /// A frame holds something else than whole record batches.
    #[error("a frame from offset {from} holds no record batch at byte {position}: {reason}")]
    NoBatch {
        /// The frame's first offset.
        from: i64,
        /// The byte in the frame.
        position: usize,
        /// The fault of the bytes there.
        reason: String,
    },
    /// A batch lies outside of its frame, or overlaps the batch before it.
    #[error("a batch of the offsets {first} to {last} is in a frame where only {from} to {to} are left")]
    Misplaced {
        /// The batch's first offset.
        first: i64,
        /// The batch's last offset.
        last: i64,
        /// The first offset that is left in the frame.
        from: i64,
        /// The last offset that is left in the frame.
        to: i64,
    },
}

/// The offset with which the next frame has to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    next: i64,
}

impl Sequence {
    /// Begins with an assignment's offset.
    pub fn new(offset: i64) -> Sequence {
        Sequence { next: offset }
    }

    /// The offset that is due.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Takes a frame; returns the ranges of its batches within the bytes. The caller checks their CRCs when it opens
    /// them.
    ///
    /// # Errors
    /// [`SequenceFault`]; the position does not move then.
    pub fn accept(
        &mut self,
        from: i64,
        next: i64,
        batches: &[u8],
    ) -> Result<Vec<Range<usize>>, SequenceFault> {
        if from != self.next {
            return Err(SequenceFault::Gap { expected: self.next, from });
        }
        if next <= from {
            return Err(SequenceFault::Backwards { from, next });
        }
        let (mut ranges, mut position, mut due) = (Vec::new(), 0, from);
        while position < batches.len() {
            let (batch, rest) = Batch::split_first(&batches[position..])
                .map_err(|error| SequenceFault::NoBatch { from, position, reason: error.to_string() })?;
            let (first, last) = (batch.base_offset(), batch.last_offset());
            // A batch that was cut keeps its first offset though its first event is not in it any more.
            if last < due || last < first || last >= next || first < due && due != from {
                return Err(SequenceFault::Misplaced { first, last, from: due, to: next - 1 });
            }
            let end = batches.len() - rest.len();
            ranges.push(position..end);
            (position, due) = (end, last + 1);
        }
        self.next = next;
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use mainstem_records::{BatchBuilder, BatchOptions};
    use proptest::prelude::*;

    fn batch(base_offset: i64, records: i32) -> Vec<u8> {
        let options = BatchOptions { base_offset, ..BatchOptions::default() };
        let mut builder = BatchBuilder::new(options);
        (0..records).for_each(|_| builder.append(1, None, Some(b"x"), &[]).unwrap());
        builder.build().unwrap()
    }

    #[test]
    fn a_gap_and_nonsense_are_faults() {
        let mut transcript = String::new();
        let mut sequence = Sequence::new(5);
        let frames: [(i64, i64, Vec<u8>); 8] = [
            (5, 7, batch(5, 2)),
            (8, 9, batch(8, 1)),
            (7, 7, Vec::new()),
            (7, 10, [batch(7, 1), batch(9, 1)].concat()),
            (10, 12, batch(11, 2)),
            (10, 12, [batch(10, 2), batch(11, 1)].concat()),
            (10, 12, b"no batch".to_vec()),
            (10, 20, Vec::new()),
        ];
        for (from, next, bytes) in frames {
            let outcome = sequence.accept(from, next, &bytes);
            let outcome =
                outcome.map_or_else(|fault| fault.to_string(), |ranges| format!("{} batches", ranges.len()));
            transcript += &format!("{from}..{next}: {outcome}\n");
        }
        expect![[r#"
            5..7: 1 batches
            8..9: a frame begins with offset 8 where 7 is due
            7..7: a frame from offset 7 ends at 7
            7..10: 2 batches
            10..12: a batch of the offsets 11 to 12 is in a frame where only 10 to 11 are left
            10..12: a batch of the offsets 11 to 11 is in a frame where only 12 to 11 are left
            10..12: a frame from offset 10 holds no record batch at byte 0: a record batch of 61 bytes is cut off after 8 bytes
            10..20: 0 batches
        "#]]
        .assert_eq(&transcript);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(from in any::<i64>(), next in any::<i64>(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Sequence::new(from).accept(from, next, &bytes);
        }
    }
}
