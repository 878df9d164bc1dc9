//! Dead letters: records that were set aside, with where they come from and why.
//!
//! The names are those that Kafka's share groups write (KIP-1191), so that one viewer reads both; what those do not have is
//! beside them under names of our own. All values are text.

use bytes::Bytes;

/// A cause has at most this many bytes of text; a longer one ends with "...".
pub const CAUSE_BYTES_MAX: usize = 4 << 10;

/// A letter has at most this many bytes more than its message: the cause twice, names of topic and group, numbers, and the names of
/// these headers.
pub const OVERHEAD_BYTES_MAX: usize = 16 << 10;
const _: () = assert!(2 * CAUSE_BYTES_MAX + 2 * 249 + ADDED.len() * 64 < OVERHEAD_BYTES_MAX);

/// A cause is cut to this many bytes where a letter is too large for its topic.
const SHORT_CAUSE_BYTES: usize = 256;
/// A key up to this size stays even in a letter without any other part of its message.
const SHORT_KEY_BYTES: usize = 256;

/// Name of the source's topic (KIP-1191).
pub const TOPIC: &str = "__dlq.errors.topic";
/// The source's partition (KIP-1191).
pub const PARTITION: &str = "__dlq.errors.partition";
/// The source's offset (KIP-1191).
pub const OFFSET: &str = "__dlq.errors.offset";
/// Name of the group (KIP-1191).
pub const GROUP: &str = "__dlq.errors.group";
/// Number of deliveries to the handler (KIP-1191).
pub const DELIVERY_COUNT: &str = "__dlq.errors.delivery.count";
/// One line about why (KIP-1191).
pub const MESSAGE: &str = "__dlq.errors.message";
/// The stage that failed: [`Stage::name`].
pub const STAGE: &str = "__mainstem.errors.stage";
/// `failed` or `poison`.
pub const CLASS: &str = "__mainstem.errors.class";
/// The error with all of its causes.
pub const CAUSE: &str = "__mainstem.errors.cause";
/// When the first attempt failed, in ms since 1970.
pub const FIRST_MS: &str = "__mainstem.errors.first.ms";
/// The time when the source was first written, in ms since 1970. The letter's own time is when it was set aside, that of a replayed record
/// the time of the replay.
pub const TIMESTAMP: &str = "__mainstem.errors.timestamp";
/// Number of earlier replays of the record: ends loops of replays.
pub const ROUNDS: &str = "__mainstem.errors.rounds";
/// The parts of a message that its letter does not have, as it would be too large for its topic with them: `value`, `headers`
/// and `key`, with commas between them. The message itself is at [`TOPIC`], [`PARTITION`] and [`OFFSET`].
pub const LEFT_OUT: &str = "__mainstem.errors.left.out";
/// Header of a note, which is no letter: the offsets of letters of its partition that were written back, with commas between
/// them. A letter in the midst of others cannot be deleted.
pub const REPLAYED: &str = "__mainstem.errors.replayed";
/// Headers that a letter has beside those of its message.
const ADDED: [&str; 12] = [
    TOPIC,
    PARTITION,
    OFFSET,
    GROUP,
    DELIVERY_COUNT,
    MESSAGE,
    STAGE,
    CLASS,
    CAUSE,
    FIRST_MS,
    TIMESTAMP,
    ROUNDS,
];
/// Offsets in one note: 20 bytes each, so that it fits any topic of letters.
const NOTED_MAX: usize = 1_000;

/// The stage of handling that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A filter of the route's own panicked over it.
    Filter,
    /// The payload is not what the route expects.
    Decode,
    /// The handler.
    Handle,
    /// Sending what the handler wanted to send.
    Send,
}

impl Stage {
    /// As it is in [`STAGE`].
    pub fn name(self) -> &'static str {
        match self {
            Stage::Filter => "filter",
            Stage::Decode => "decode",
            Stage::Handle => "handle",
            Stage::Send => "send",
        }
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRecord {
    /// Name of its topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its timestamp, in ms since 1970.
    pub timestamp_ms: i64,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers, in their order.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// Why a record is set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason<'a> {
    /// Name of the group.
    pub group: &'a str,
    /// The stage that failed.
    pub stage: Stage,
    /// True if no attempt would have helped.
    pub is_poison: bool,
    /// Number of times that it was given to the handler.
    pub deliveries: u32,
    /// When the first attempt failed, in ms since 1970.
    pub first_failed_ms: i64,
    /// The error, outermost first.
    pub cause: &'a str,
}

/// A record to be written to a topic of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// As the source's.
    pub key: Option<Bytes>,
    /// As the source's.
    pub value: Option<Bytes>,
    /// The source's, unchanged, and behind them why it was set aside.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// The part of its message that a letter has, if its topic does not take all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// All of it, and the beginning of the cause.
    ShortCause,
    /// The same without the value.
    WithoutValue,
    /// The reason alone, and a short key.
    Reason,
}

impl Extent {
    /// All extents, the largest first.
    pub const ALL: [Extent; 4] = [Extent::Whole, Extent::ShortCause, Extent::WithoutValue, Extent::Reason];
}

impl Letter {
    /// The same letter with less of its message; [`LEFT_OUT`] names what is missing.
    pub fn reduced(&self, extent: Extent) -> Letter {
        let mut reduced = self.clone();
        if extent == Extent::Whole {
            return reduced;
        }
        for (name, value) in &mut reduced.headers {
            if name == CAUSE || name == MESSAGE {
                let short =
                    value.as_deref().map(|value| cut(&String::from_utf8_lossy(value), SHORT_CAUSE_BYTES));
                *value = short.map(Bytes::from);
            }
        }
        let mut left_out = Vec::new();
        if matches!(extent, Extent::WithoutValue | Extent::Reason) && reduced.value.take().is_some() {
            left_out.push("value");
        }
        if extent == Extent::Reason {
            // What was added is behind what the message has.
            let own = reduced.headers.len().saturating_sub(ADDED.len());
            if reduced.headers.drain(..own).count() > 0 {
                left_out.push("headers");
            }
            if reduced.key.take_if(|key| key.len() > SHORT_KEY_BYTES).is_some() {
                left_out.push("key");
            }
        }
        if !left_out.is_empty() {
            reduced.headers.push((LEFT_OUT.to_owned(), Some(Bytes::from(left_out.join(",")))));
        }
        reduced
    }
}

/// The usual topic of a group's dead letters from a topic.
///
/// ```
/// assert_eq!(mainstem_flow::letter::topic("billing", "orders"), "dlq.billing.orders");
/// ```
pub fn topic(group: &str, source: &str) -> String {
    format!("dlq.{group}.{source}")
}

/// The partition of a letter, so that the order of a source's partition is kept.
pub fn partition(source: i32, partitions: i32) -> i32 {
    source.rem_euclid(partitions.max(1))
}

/// Makes the letter of a record.
pub fn letter(source: SourceRecord, reason: &Reason<'_>) -> Letter {
    let cause = cut(reason.cause, CAUSE_BYTES_MAX);
    let message = cause.lines().next().unwrap_or_default().to_owned();
    let mut headers = source.headers;
    let rounds = rounds(&headers);
    let timestamp_ms = first_timestamp_ms(&headers).unwrap_or(source.timestamp_ms);
    headers.retain(|(name, _)| name != ROUNDS && name != TIMESTAMP);
    let mut add = |name: &str, value: String| headers.push((name.to_owned(), Some(Bytes::from(value))));
    add(TOPIC, source.topic);
    add(PARTITION, source.partition.to_string());
    add(OFFSET, source.offset.to_string());
    add(GROUP, reason.group.to_owned());
    add(DELIVERY_COUNT, reason.deliveries.to_string());
    add(MESSAGE, message);
    add(STAGE, reason.stage.name().to_owned());
    add(CLASS, if reason.is_poison { "poison" } else { "failed" }.to_owned());
    add(CAUSE, cause);
    add(FIRST_MS, reason.first_failed_ms.to_string());
    add(TIMESTAMP, timestamp_ms.to_string());
    add(ROUNDS, rounds.to_string());
    Letter { key: source.key, value: source.value, headers }
}

/// Returns the number of earlier replays of a record, by its headers; 0 if the header is no number.
pub fn rounds(headers: &[(String, Option<Bytes>)]) -> u32 {
    text(headers, ROUNDS).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The last value of a header, as text.
pub fn text<'a>(headers: &'a [(String, Option<Bytes>)], name: &str) -> Option<&'a str> {
    let (_, value) = headers.iter().rev().find(|(known, _)| known == name)?;
    std::str::from_utf8(value.as_deref()?).ok()
}

/// When a record was first written that is a letter, or was replayed: in ms since 1970, by its headers.
pub fn first_timestamp_ms(headers: &[(String, Option<Bytes>)]) -> Option<i64> {
    text(headers, TIMESTAMP)?.parse().ok()
}

/// The headers of a letter that is written back to where it came from: its own, when it was first written, and the round.
pub fn replayed(headers: &[(String, Option<Bytes>)]) -> Vec<(String, Option<Bytes>)> {
    let is_own = |name: &str| !name.starts_with("__dlq.errors.") && !name.starts_with("__mainstem.errors.");
    let mut kept: Vec<_> = headers.iter().filter(|(name, _)| is_own(name)).cloned().collect();
    let timestamp = headers.iter().rev().find(|(name, _)| name == TIMESTAMP);
    kept.extend(timestamp.cloned());
    let round = rounds(headers).saturating_add(1);
    kept.push((ROUNDS.to_owned(), Some(Bytes::from(round.to_string()))));
    kept
}

/// The headers of notes that say which letters of a partition were written back.
pub fn notes(offsets: &[i64]) -> Vec<Vec<(String, Option<Bytes>)>> {
    let note = |offsets: &[i64]| {
        let offsets: Vec<String> = offsets.iter().map(i64::to_string).collect();
        vec![(REPLAYED.to_owned(), Some(Bytes::from(offsets.join(","))))]
    };
    offsets.chunks(NOTED_MAX).map(note).collect()
}

/// The offsets of the letters that a note names; `None` of what is no note, such as the letter of a message with that header.
pub fn noted(headers: &[(String, Option<Bytes>)]) -> Option<Vec<i64>> {
    if text(headers, TOPIC).is_some() {
        return None;
    }
    text(headers, REPLAYED)?.split(',').map(|offset| offset.parse().ok()).collect()
}

fn cut(cause: &str, bytes_max: usize) -> String {
    const MORE: &str = "...";
    if cause.len() <= bytes_max {
        return cause.to_owned();
    }
    let end = (0..=bytes_max - MORE.len()).rev().find(|at| cause.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{MORE}", &cause[..end])
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn source() -> SourceRecord {
        SourceRecord {
            topic: "orders".into(),
            partition: 7,
            offset: 42,
            timestamp_ms: 1_000,
            key: Some(Bytes::from("customer-7")),
            value: Some(Bytes::from("{")),
            headers: vec![("trace".into(), Some(Bytes::from("4711"))), ("empty".into(), None)],
        }
    }

    fn reason(cause: &str) -> Reason<'_> {
        let (stage, is_poison) = (Stage::Decode, true);
        Reason { group: "billing", stage, is_poison, deliveries: 1, first_failed_ms: 2_000, cause }
    }

    fn written(headers: &[(String, Option<Bytes>)]) -> String {
        headers.iter().fold(String::new(), |mut out, (name, value)| {
            let value = value.as_deref().map_or("null".into(), String::from_utf8_lossy);
            writeln!(out, "{name} = {value:?}").unwrap();
            out
        })
    }

    #[test]
    fn a_letter_has_the_records_own_headers_and_then_why() {
        let letter = letter(source(), &reason("the payload is not JSON\ncaused by: EOF"));
        assert_eq!((letter.key, letter.value), (source().key, source().value));
        expect_test::expect![[r#"
            trace = "4711"
            empty = "null"
            __dlq.errors.topic = "orders"
            __dlq.errors.partition = "7"
            __dlq.errors.offset = "42"
            __dlq.errors.group = "billing"
            __dlq.errors.delivery.count = "1"
            __dlq.errors.message = "the payload is not JSON"
            __mainstem.errors.stage = "decode"
            __mainstem.errors.class = "poison"
            __mainstem.errors.cause = "the payload is not JSON\ncaused by: EOF"
            __mainstem.errors.first.ms = "2000"
            __mainstem.errors.timestamp = "1000"
            __mainstem.errors.rounds = "0"
        "#]]
        .assert_eq(&written(&letter.headers));
    }

    #[test]
    fn rounds_count_replays() {
        let mut record = source();
        for round in 0..3 {
            let letter = letter(record.clone(), &reason("no"));
            assert_eq!(rounds(&letter.headers), round);
            assert_eq!(first_timestamp_ms(&letter.headers), Some(1_000), "that of the first writing");
            for once in [ROUNDS, TIMESTAMP] {
                assert_eq!(letter.headers.iter().filter(|(name, _)| name == once).count(), 1, "{once}");
            }
            (record.headers, record.timestamp_ms) = (replayed(&letter.headers), 5_000);
        }
        expect_test::expect![[r#"
            trace = "4711"
            empty = "null"
            __mainstem.errors.timestamp = "1000"
            __mainstem.errors.rounds = "3"
        "#]]
        .assert_eq(&written(&record.headers));
        assert_eq!(rounds(&[(ROUNDS.into(), Some(Bytes::from("many")))]), 0);
    }

    #[test]
    fn notes_name_the_letters_that_were_written_back() {
        let offsets: Vec<i64> = (0..2_500).map(|number| i64::MAX - 3 * number).collect();
        let notes = notes(&offsets);
        let bytes = |note: &Vec<(String, Option<Bytes>)>| text(note, REPLAYED).unwrap().len();
        assert!(notes.len() == 3 && notes.iter().all(|note| bytes(note) <= 20_000));
        assert_eq!(notes.iter().filter_map(|note| noted(note)).flatten().collect::<Vec<_>>(), offsets);
        let forged = SourceRecord { headers: notes[0].clone(), ..source() };
        assert_eq!(noted(&letter(forged, &reason("no")).headers), None, "the letter of such a message");
        assert_eq!(noted(&[(REPLAYED.into(), Some(Bytes::from("1,x")))]), None);
    }

    #[test]
    fn a_long_cause_is_cut_between_characters() {
        let cause = "é".repeat(CAUSE_BYTES_MAX);
        let letter = letter(source(), &reason(&cause));
        let cause = text(&letter.headers, CAUSE).unwrap();
        assert!(cause.len() <= CAUSE_BYTES_MAX && cause.ends_with("é..."), "{}", cause.len());
    }

    #[test]
    fn a_letter_has_less_and_less_of_its_message() {
        let mut record = source();
        // A message may have any header, and a key of any size.
        record.headers.push((CAUSE.into(), Some(Bytes::from("x".repeat(1 << 20)))));
        record.key = Some(Bytes::from(vec![b'k'; 1 << 20]));
        let letter = letter(record, &reason(&"no ".repeat(2_000)));
        let reduced = Extent::ALL.map(|extent| letter.reduced(extent));
        assert_eq!(reduced[0], letter);
        let left_out = |letter: &Letter| text(&letter.headers, LEFT_OUT).map(str::to_owned);
        let said = reduced.each_ref().map(left_out);
        assert_eq!(
            said.each_ref().map(Option::as_deref),
            [None, None, Some("value"), Some("value,headers,key")]
        );
        let [.., last] = reduced;
        assert!(last.key.is_none() && last.value.is_none());
        let bytes: usize =
            last.headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Bytes::len)).sum();
        assert!(bytes < 2 << 10, "{bytes}");
        assert_eq!(last.headers.len(), ADDED.len() + 1);
        assert!(ADDED.iter().zip(&last.headers).all(|(name, (has, _))| name == has), "{:?}", last.headers);
        assert_eq!(text(&last.headers, OFFSET), Some("42"));
    }

    #[test]
    fn letters_keep_the_order_of_a_partition() {
        assert_eq!([0, 1, 5].map(|source| partition(source, 2)), [0, 1, 1]);
        assert_eq!(partition(5, 0), 0, "what a topic without partitions is asked for fails elsewhere");
    }
}
