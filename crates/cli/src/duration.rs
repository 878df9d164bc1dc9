//! Spans of time as ISO 8601 writes them: `P1DT2H30M`, `PT90S`.

/// Units of the date, then of the time, in the order in which they have to come, in milliseconds.
const DATE_UNITS: &[(char, i64)] = &[('W', 7 * 86_400_000), ('D', 86_400_000)];
const TIME_UNITS: &[(char, i64)] = &[('H', 3_600_000), ('M', 60_000), ('S', 1_000)];

/// Reads a span in milliseconds. Months and years have no fixed length and are refused; seconds may have a fraction.
/// None for anything else, and for spans that 64 bits cannot hold.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let text = text.strip_prefix(['P', 'p'])?;
    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) if !time.is_empty() => (date, time),
        Some(_) => return None,
        None if text.is_empty() => return None,
        None => (text, ""),
    };
    parse_units(date, DATE_UNITS)?.checked_add(parse_units(time, TIME_UNITS)?)
}

/// Reads the argument of a flag, in milliseconds.
///
/// # Errors
/// The form that is expected, in words.
pub(crate) fn argument(text: &str) -> Result<i64, String> {
    parse(text).ok_or_else(|| "expected a duration of ISO 8601 such as PT90M or P1DT12H".to_owned())
}

fn parse_units(mut text: &str, units: &[(char, i64)]) -> Option<i64> {
    let mut units = units.iter();
    let mut total: i64 = 0;
    while !text.is_empty() {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(end);
        let letter = rest.chars().next()?.to_ascii_uppercase();
        // Units come in their order, each at most once.
        let (_, ms) = units.find(|(unit, _)| *unit == letter)?;
        total = total.checked_add(parse_number(number, letter, *ms)?)?;
        text = &rest[1..];
    }
    Some(total)
}

fn parse_number(text: &str, unit: char, ms: i64) -> Option<i64> {
    let Some((whole, fraction)) = text.split_once('.') else {
        return text.parse::<i64>().ok()?.checked_mul(ms);
    };
    let plain =
        !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let millis =
        (unit == 'S' && plain).then(|| format!("{fraction:0<3}")[..3].parse::<i64>().ok()).flatten()?;
    whole.parse::<i64>().ok()?.checked_mul(ms)?.checked_add(millis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_spans() {
        for (text, ms) in [
            ("PT0S", 0),
            ("PT1H", 3_600_000),
            ("P1D", 86_400_000),
            ("P2W", 14 * 86_400_000),
            ("P1DT2H3M4.5S", 93_784_500),
            ("PT90M", 5_400_000),
            ("pt0.001s", 1),
            ("PT1.123456789S", 1_123),
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn what_is_no_span() {
        for text in [
            "",
            "P",
            "PT",
            "1H",
            "P1",
            "P1H",
            "PT1D",
            "PT1M1H",
            "PT1H1H",
            "P1Y",
            "P1M",
            "PT1.5H",
            "PT.5S",
            "PT1.S",
            "PT-1S",
            "-PT1S",
            "P1DT",
            "PT9223372036854775807H",
            "PT1é",
            "P 1D",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", spans in "[PT0-9DHMS.]{0,20}") {
            let _ = (parse(&text), parse(&spans));
        }
    }
}
