//! The events of the queues: three numbers, and a pattern that the first of them chooses.

use anyhow::{Result, ensure};

use super::Event;

/// Number of places at which a pattern may begin.
const PATTERNS: usize = 1_024;
/// Digits of a number in JSON.
const DIGITS: usize = 20;
const HEAD: &[u8] = b"{\"sequence\":\"00000000000000000000\",\"due\":\"00000000000000000000\",\"service\":\"00000000000000000000\",\"text\":\"";

/// Writes and checks events. The peer's events have the same bytes.
#[derive(Debug)]
pub(super) struct Codec {
    pub(super) size: usize,
    is_text: bool,
    places: [usize; 3],
    /// The place of the pattern.
    pattern_at: std::ops::Range<usize>,
    /// An event with nothing in it.
    frame: Vec<u8>,
    pattern: Vec<u8>,
}

impl Codec {
    pub(super) fn new(event: Event) -> Self {
        let (size, is_text) = match event {
            Event::Binary(bytes) => (bytes, false),
            Event::Json => (512, true),
        };
        let mut frame = vec![0; size];
        let (places, pattern_at) = match is_text {
            true => {
                frame[..HEAD.len()].copy_from_slice(HEAD);
                frame[size - 2..].copy_from_slice(b"\"}");
                ([13, 42, 75], HEAD.len()..size - 2)
            }
            false => ([0, 8, 16], 24..size),
        };
        let mut state = 1_u32;
        let pattern = (0..PATTERNS + size).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let byte = (state >> 24) as u8;
            if is_text { b'a' + byte % 26 } else { byte }
        });
        Self { size, is_text, places, pattern_at, pattern: pattern.collect(), frame }
    }

    pub(super) fn encode(&self, event: &mut [u8], sequence: u64, due: u64) {
        let (at, from) = (self.pattern_at.clone(), sequence as usize % PATTERNS);
        event[..at.start].copy_from_slice(&self.frame[..at.start]);
        event[at.end..].copy_from_slice(&self.frame[at.end..]);
        event[at.clone()].copy_from_slice(&self.pattern[from..from + at.len()]);
        self.set(event, self.places[0], sequence);
        self.set(event, self.places[1], due);
    }

    pub(super) fn set_service(&self, event: &mut [u8], time: u64) {
        self.set(event, self.places[2], time);
    }

    pub(super) fn due(&self, event: &[u8]) -> u64 {
        self.get(event, self.places[1])
    }

    pub(super) fn service(&self, event: &[u8]) -> u64 {
        self.get(event, self.places[2])
    }

    /// Fails unless it is the event of that sequence number.
    pub(super) fn check(&self, event: &[u8], sequence: u64) -> Result<()> {
        let (at, from) = (self.pattern_at.clone(), sequence as usize % PATTERNS);
        let is_right = event.len() == self.size
            && self.get(event, self.places[0]) == sequence
            && event[at.clone()] == self.pattern[from..from + at.len()];
        ensure!(is_right, "message {sequence} is not what was written");
        Ok(())
    }

    fn set(&self, event: &mut [u8], at: usize, mut value: u64) {
        if !self.is_text {
            event[at..at + 8].copy_from_slice(&value.to_le_bytes());
            return;
        }
        for digit in event[at..at + DIGITS].iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }

    fn get(&self, event: &[u8], at: usize) -> u64 {
        if !self.is_text {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&event[at..at + 8]);
            return u64::from_le_bytes(bytes);
        }
        let digits = event[at..at + DIGITS].iter();
        digits.fold(0_u64, |value, digit| {
            value.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_and_others_are_noticed() {
        for event in [Event::Binary(96), Event::Binary(212), Event::Json] {
            assert_eq!(Event::parse(&event.name()).unwrap(), event);
            let codec = Codec::new(event);
            let mut bytes = vec![0; codec.size];
            codec.encode(&mut bytes, 5_000, 123_456_789_012);
            codec.set_service(&mut bytes, 77);
            assert_eq!((codec.due(&bytes), codec.service(&bytes)), (123_456_789_012, 77));
            codec.check(&bytes, 5_000).unwrap();
            assert!(codec.check(&bytes, 5_001).is_err());
            let last = codec.pattern_at.end - 1;
            bytes[last] ^= 1;
            assert!(codec.check(&bytes, 5_000).is_err());
        }
        let codec = Codec::new(Event::Json);
        let mut json = vec![0; codec.size];
        codec.encode(&mut json, 1, 2);
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["due"], "00000000000000000002");
    }
}
