//! The depth of tests that draw random inputs.

/// Cases of a property where `PROPTEST_CASES` is not set, which is proptest's own number.
const CASES: u32 = 256;

/// Cases of a property that has `usual` of them where `PROPTEST_CASES` is not set: in proportion to that variable, and at least one.
pub fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    scaled(usual, asked.unwrap_or(CASES))
}

fn scaled(usual: u32, asked: u32) -> u32 {
    let cases = u64::from(usual) * u64::from(asked) / u64::from(CASES);
    u32::try_from(cases).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_follow_what_is_asked_for() {
        assert_eq!(scaled(512, CASES), 512);
        assert_eq!(scaled(512, 64), 128);
        assert_eq!(scaled(3_000, 4_096), 48_000);
        assert_eq!(scaled(1, 1), 1);
        assert_eq!(scaled(u32::MAX, u32::MAX), u32::MAX);
    }
}
