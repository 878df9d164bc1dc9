//! The driver's clocks: producers and consumers are threads of one process and share them.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Monotonic nanoseconds since the first call.
pub(crate) fn now_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Asks the kernel to end the waits of this thread when they are over, not up to 50 us later as is its default.
pub(crate) fn wake_precisely() {
    // If the kernel has no such setting, records are late, and the report says by how much.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Wall-clock milliseconds, for the timestamps of records alone.
pub(crate) fn wall_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_millis() as i64
}

/// The date as `YYYY-MM-DD` (UTC), for the names of result folders.
pub(crate) fn today() -> String {
    let (year, month, day) = civil_from_days(wall_ms().div_euclid(86_400_000));
    format!("{year:04}-{month:02}-{day:02}")
}

/// The proleptic Gregorian date of a number of days since 1970-01-01, counted in eras of 400 years from 0000-03-01.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::civil_from_days;

    #[test]
    fn dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_453, (2025, 12, 31)),
        ] {
            assert_eq!(civil_from_days(days), date);
        }
    }
}
