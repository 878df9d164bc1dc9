//! Slices: which messages of a partition keep their order among each other.

use twox_hash::XxHash3_64;

/// The number of slices of a partition's keys.
pub const SLICES: usize = 1_024;

const SLICE_SHIFT: u32 = u64::BITS - SLICES.ilog2();
const _: () = assert!(SLICES.is_power_of_two());

/// Returns the slice of a message. Equal keys have the same slice. Messages without a key have no order, and are spread by
/// their offsets. Handlers run messages of one slice one at a time, and instances of a brokerless consumer share a stream by
/// slices.
///
/// It is not the partitioner's hash (murmur2): the residues of that one are all alike within a partition.
pub fn slice_of(key: Option<&[u8]>, offset: i64) -> u16 {
    let slice = match key {
        Some(key) => XxHash3_64::oneshot(key) >> SLICE_SHIFT,
        None => offset.rem_euclid(SLICES as i64) as u64,
    };
    u16::try_from(slice).expect("a slice is less than 1,024")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_evenly_and_stay() {
        let mut counts = vec![0u32; SLICES];
        for key in 0..SLICES as u32 * 100 {
            let key = key.to_string();
            let slice = slice_of(Some(key.as_bytes()), 0);
            assert_eq!(
                slice,
                slice_of(Some(key.as_bytes()), 7),
                "the offset of a message with a key is nothing"
            );
            counts[usize::from(slice)] += 1;
        }
        // 100 on average; five standard deviations off would be 50 or 150.
        assert!(counts.iter().all(|count| (50..=150).contains(count)), "{counts:?}");
    }

    /// Other implementations in the same group have to agree while a deployment changes over.
    #[test]
    fn the_slices_of_some_keys_are_fixed() {
        let slices = ["", "a", "customer-7"].map(|key| slice_of(Some(key.as_bytes()), 0));
        assert_eq!(slices, [180, 923, 1_007]);
    }

    #[test]
    fn without_a_key_neighbours_run_side_by_side() {
        assert_eq!((slice_of(None, 1_023), slice_of(None, 1_024), slice_of(None, 1_025)), (1_023, 0, 1));
    }
}
