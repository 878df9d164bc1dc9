//! The partition of `__consumer_offsets` of a group.

/// Kafka's rule, which every broker and tool must agree on: Java's hash of the id (over UTF-16 units, 32 bits with
/// wrap-around), without its sign, modulo the number of partitions.
///
/// # Panics
/// If `partitions` is not positive.
pub fn partition_for(group_id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "__consumer_offsets has {partitions} partitions");
    let hash =
        group_id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // Kafka's Utils.abs gives 0 for the one number whose absolute value does not fit.
    hash.checked_abs().unwrap_or(0) % partitions
}

#[cfg(test)]
mod tests {
    use super::partition_for;

    #[test]
    fn hashes_are_javas() {
        let table = [
            ("", 50, 0),
            ("a", 50, 47),
            // "polygenelubricants".hashCode() is Integer.MIN_VALUE.
            ("polygenelubricants", 50, 0),
            ("console-consumer", i32::MAX, 648_006_740),
            ("gr\u{fc}n", i32::MAX, 3_185_949),
            // Computed by a JVM, the last one a character of two UTF-16 units.
            ("\u{1f980}", i32::MAX, 1_772_802),
        ];
        for (group, partitions, expected) in table {
            assert_eq!(partition_for(group, partitions), expected, "{group}");
        }
    }
}
