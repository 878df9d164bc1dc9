//! Times as people write them (ISO 8601) and as Kafka counts them: milliseconds since 1970 in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MS_PER_DAY: i64 = 86_400_000;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;
const DAYS_PER_ERA: i64 = 146_097;

/// Writes a time as `2026-11-21T22:00:00.123Z`.
pub(crate) fn format(ms: i64) -> String {
    let (year, month, day) = date_of(ms.div_euclid(MS_PER_DAY));
    let time = ms.rem_euclid(MS_PER_DAY);
    let (hours, minutes) = (time / 3_600_000, time / 60_000 % 60);
    let (seconds, millis) = (time / 1000 % 60, time % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

/// Year, month and day of a time.
pub(crate) fn date(ms: i64) -> (i64, i64, i64) {
    date_of(ms.div_euclid(MS_PER_DAY))
}

/// Reads `2026-11-21`, `2026-11-21T22:00`, `...T22:00:00.123`, each with `Z`, `+01:00` or, for UTC, nothing behind
/// the time. A blank may replace the `T`. None for anything else.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let days = parse_date(date)?;
    let ms = time.map_or(Some(0), parse_time)?;
    Some(days * MS_PER_DAY + ms)
}

/// The same of an argument of the command line.
pub(crate) fn argument(text: &str) -> Result<i64, String> {
    parse(text).ok_or_else(|| "expected a time such as 2026-11-21T22:00:00Z or 2026-11-21".to_owned())
}

fn parse_date(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let day = digits(parts.next()?, 2)?;
    let days = days_of(year, month, day);
    // A day that the month does not have comes back as another date.
    (parts.next().is_none() && date_of(days) == (year, month, day)).then_some(days)
}

fn parse_time(text: &str) -> Option<i64> {
    let (time, offset_ms) = match text.find(['Z', 'z', '+', '-']) {
        Some(at) => (&text[..at], parse_offset(&text[at..])?),
        None => (text, 0),
    };
    let mut parts = time.split(':');
    let hours = digits(parts.next()?, 2).filter(|hours| *hours < 24)?;
    let minutes = digits(parts.next()?, 2).filter(|minutes| *minutes < 60)?;
    let seconds_ms = parts.next().map_or(Some(0), parse_seconds)?;
    parts.next().is_none().then_some((hours * 60 + minutes) * 60_000 + seconds_ms - offset_ms)
}

fn parse_seconds(text: &str) -> Option<i64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = digits(seconds, 2).filter(|seconds| *seconds < 60)?;
    let plain = !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
    let millis = plain.then(|| format!("{fraction:0<3}")[..3].parse::<i64>().ok()).flatten()?;
    Some(seconds * 1000 + millis)
}

/// `Z`, `+01:00`, `+0100` or `+01`.
fn parse_offset(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_at_checked(2)?;
    let minutes = minutes.strip_prefix(':').unwrap_or(minutes);
    let minutes = if minutes.is_empty() { 0 } else { digits(minutes, 2).filter(|minutes| *minutes < 60)? };
    Some(sign * (digits(hours, 2).filter(|hours| *hours < 24)? * 60 + minutes) * 60_000)
}

fn digits(text: &str, count: usize) -> Option<i64> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Days since 1970 of a date of the Gregorian calendar; years are counted from March so that a leap day ends one.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * DAYS_PER_ERA + day_of_era - DAYS_TO_1970
}

/// The inverse of [`days_of`]: year, month, day.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (month, day) = ((shifted + 2) % 12 + 1, day_of_year - (153 * shifted + 2) / 5 + 1);
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_times() {
        for (text, ms) in [
            ("1970-01-01", 0),
            ("1970-01-01T00:00:00.001Z", 1),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2000-02-29T12:00", 951_825_600_000),
            ("2026-11-21T22:00:00Z", 1_795_298_400_000),
            ("2026-11-21 22:00:00", 1_795_298_400_000),
            ("2026-11-21T23:30:00.5+01:30", 1_795_298_400_500),
            ("2026-11-21T17:00:00.123456-0500", 1_795_298_400_123),
            ("2026-11-21t22:00:00z", 1_795_298_400_000),
            ("2026-11-21T23:00+01", 1_795_298_400_000),
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        assert_eq!(format(1_795_298_400_123), "2026-11-21T22:00:00.123Z");
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "",
            "1970",
            "1970-1-1",
            "2025-02-29",
            "2025-13-01",
            "2025-00-10",
            "2025-04-31",
            "2025-04-01T",
            "2025-04-01T24:00",
            "2025-04-01T1:00",
            "2025-04-01T10:60",
            "2025-04-01T10:00:60",
            "2025-04-01T10:00+1",
            "2025-04-01T10:00:00.",
            "2025-04-01T10:00:00.1x",
            "2025-04-01T10:00Zulu",
            "2025-04-01-02",
            "T10:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn any_number_is_some_time() {
        for ms in [i64::MIN, i64::MAX, -1] {
            assert!(!format(ms).is_empty());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ms in -62_167_219_200_000i64..253_402_300_800_000) {
            prop_assert_eq!(parse(&format(ms)), Some(ms), "{}", format(ms));
        }

        #[test]
        fn no_text_panics(text in "\\PC*", digits in "[0-9TZ:+. -]{0,30}") {
            let _ = (parse(&text), parse(&digits));
        }
    }
}
