//! Questions for ranges of a copy, and their answers.
//!
//! A question names the copy by the checksum of its manifest, so that a source which has begun another copy says that this one is gone.

use super::manifest::decode_group;
use crate::encoding::Fields;
use crate::group::GroupId;

/// A range has at most so many bytes: 1 MiB.
pub const RANGE_BYTES_MAX: u32 = 1 << 20;
/// Stands for the manifest, where a file's place is.
const MANIFEST: u32 = u32::MAX;
const STATUS_RANGE: u8 = 0;
const STATUS_GONE: u8 = 1;
const STATUS_LATER: u8 = 2;

/// A part of a copy that has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The bytes of the manifest.
    Manifest,
    /// A file of it, by its place in the manifest, below 2^32 - 1.
    File(u32),
}

/// A question for a range of a copy, from the target to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The group whose partition is copied.
    pub group: GroupId,
    /// CRC-32C of the manifest.
    pub manifest: u32,
    /// The part of which the range is.
    pub part: Part,
    /// Bytes of the part before the range.
    pub position: u64,
    /// Bytes of the range: 1 to [`RANGE_BYTES_MAX`].
    pub len: u32,
    /// Asks for the checksum alone.
    pub is_comparison: bool,
}

impl Question {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.group.topic_id.to_vec();
        out.extend_from_slice(&self.group.partition.to_be_bytes());
        out.extend_from_slice(&self.manifest.to_be_bytes());
        let part = match self.part {
            Part::Manifest => MANIFEST,
            Part::File(place) => {
                assert_ne!(place, MANIFEST, "no manifest has so many files");
                place
            }
        };
        out.extend_from_slice(&part.to_be_bytes());
        out.extend_from_slice(&self.position.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out.push(u8::from(self.is_comparison));
        out
    }

    /// Reads one that another node sent; `None`: the bytes are none, or the range has a length or an end that no range has.
    pub fn decode(bytes: &[u8]) -> Option<Question> {
        let mut fields = Fields(bytes);
        let group = decode_group(&mut fields)?;
        let manifest = fields.u32()?;
        let part = match fields.u32()? {
            MANIFEST => Part::Manifest,
            place => Part::File(place),
        };
        let position = fields.u64()?;
        let len = fields.u32().filter(|len| (1..=RANGE_BYTES_MAX).contains(len))?;
        position.checked_add(u64::from(len))?;
        let is_comparison = fields.bool()?;
        let question = Question { group, manifest, part, position, len, is_comparison };
        fields.0.is_empty().then_some(question)
    }
}

/// The answer of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The range.
    Range {
        /// CRC-32C of the range.
        crc: u32,
        /// Its bytes; empty in the answer to a comparison.
        bytes: &'a [u8],
    },
    /// The copy is not offered any more.
    Gone,
    /// To be asked again a little later.
    Later,
}

impl<'a> Answer<'a> {
    /// The answer with the bytes of a range, or to a comparison with it.
    pub fn of_range(bytes: &[u8], is_comparison: bool) -> Answer<'_> {
        let crc = crc32c::crc32c(bytes);
        Answer::Range { crc, bytes: if is_comparison { &[] } else { bytes } }
    }

    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Range { crc, bytes } => {
                let mut out = vec![STATUS_RANGE];
                out.extend_from_slice(&crc.to_be_bytes());
                out.extend_from_slice(bytes);
                out
            }
            Answer::Gone => vec![STATUS_GONE],
            Answer::Later => vec![STATUS_LATER],
        }
    }

    /// Reads one that another node sent; `None`: the bytes are none, or a range has too many of them, or others than its checksum says.
    pub fn decode(bytes: &'a [u8]) -> Option<Answer<'a>> {
        let mut fields = Fields(bytes);
        let answer = match fields.u8()? {
            STATUS_RANGE => decode_range(&mut fields)?,
            STATUS_GONE => Answer::Gone,
            STATUS_LATER => Answer::Later,
            _ => return None,
        };
        fields.0.is_empty().then_some(answer)
    }
}

fn decode_range<'a>(fields: &mut Fields<'a>) -> Option<Answer<'a>> {
    let crc = fields.u32()?;
    let bytes = fields.rest();
    let is_right = bytes.is_empty() || crc32c::crc32c(bytes) == crc;
    (bytes.len() <= RANGE_BYTES_MAX as usize && is_right).then_some(Answer::Range { crc, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn question() -> Question {
        let group = GroupId { topic_id: [7; 16], partition: 3 };
        let (manifest, part) = (0x0102_0304, Part::File(5));
        Question { group, manifest, part, position: 1 << 32, len: RANGE_BYTES_MAX, is_comparison: true }
    }

    const QUESTION: [u8; 41] = [
        7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // topic id
        0, 0, 0, 3, // partition
        1, 2, 3, 4, // manifest
        0, 0, 0, 5, // part
        0, 0, 0, 1, 0, 0, 0, 0, // position
        0, 0x10, 0, 0, // length
        1, // comparison
    ];

    #[test]
    fn a_question_has_these_bytes() {
        assert_eq!(question().encode(), QUESTION);
        assert_eq!(Question::decode(&QUESTION), Some(question()));
        let of_manifest = Question { part: Part::Manifest, is_comparison: false, ..question() };
        let mut bytes = QUESTION;
        bytes[24..28].fill(0xff);
        bytes[40] = 0;
        assert_eq!(of_manifest.encode(), bytes);
        assert_eq!(Question::decode(&bytes), Some(of_manifest));
    }

    #[test]
    fn an_answer_has_these_bytes() {
        let crc = 0xe306_9283;
        let range = Answer::Range { crc, bytes: b"123456789" };
        assert_eq!(range.encode(), b"\x00\xe3\x06\x92\x83123456789");
        let compared = Answer::Range { crc, bytes: b"" };
        assert_eq!(compared.encode(), b"\x00\xe3\x06\x92\x83");
        assert_eq!(Answer::Gone.encode(), b"\x01");
        assert_eq!(Answer::Later.encode(), b"\x02");
        for answer in [range, compared, Answer::Gone, Answer::Later] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn questions_that_make_no_sense_are_refused() {
        let of = |change: fn(&mut Question)| {
            let mut question = question();
            change(&mut question);
            question.encode()
        };
        let last = of(|question| question.position = u64::MAX - u64::from(RANGE_BYTES_MAX));
        assert!(Question::decode(&last).is_some(), "it ends at the last position");
        let table = [
            ("no length", of(|question| question.len = 0)),
            ("too long", of(|question| question.len = RANGE_BYTES_MAX + 1)),
            ("no end", of(|question| question.position = u64::MAX - u64::from(RANGE_BYTES_MAX) + 1)),
            ("neither true nor false", [&QUESTION[..40], &[2]].concat()),
            ("a byte behind it", [&QUESTION[..], &[0]].concat()),
        ];
        for (what, bytes) in table {
            assert_eq!(Question::decode(&bytes), None, "{what}");
        }
        for len in 0..QUESTION.len() {
            assert_eq!(Question::decode(&QUESTION[..len]), None, "{len} bytes of it");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let mut longest = vec![9; RANGE_BYTES_MAX as usize];
        let of = |bytes: &[u8]| Answer::Range { crc: crc32c::crc32c(bytes), bytes }.encode();
        assert!(Answer::decode(&of(&longest)).is_some());
        longest.push(9);
        let table: [(&str, &[u8]); 8] = [
            ("nothing", b""),
            ("a range without its checksum", b"\x00\xe3\x06\x92"),
            ("a range with another checksum", b"\x00\xe3\x06\x92\x84123456789"),
            ("a range with another byte", b"\x00\xe3\x06\x92\x83123456780"),
            ("a range that is too long", &of(&longest)),
            ("a byte behind gone", b"\x01\x00"),
            ("a byte behind later", b"\x02\x00"),
            ("an unknown status", b"\x03"),
        ];
        for (what, bytes) in table {
            assert_eq!(Answer::decode(bytes), None, "{what}");
        }
    }

    fn questions() -> impl Strategy<Value = Question> {
        let group = (any::<[u8; 16]>(), any::<i32>());
        let part = prop_oneof![Just(Part::Manifest), (0..u32::MAX).prop_map(Part::File)];
        let range = (0..u64::MAX - u64::from(RANGE_BYTES_MAX), 1..=RANGE_BYTES_MAX);
        (group, any::<u32>(), part, range, any::<bool>()).prop_map(
            |((topic_id, partition), manifest, part, (position, len), is_comparison)| {
                let group = GroupId { topic_id, partition };
                Question { group, manifest, part, position, len, is_comparison }
            },
        )
    }

    proptest! {
        #[test]
        fn questions_are_read_as_they_were_written(question in questions()) {
            prop_assert_eq!(Question::decode(&question.encode()), Some(question));
        }

        #[test]
        fn ranges_are_read_as_they_were_written(bytes in prop::collection::vec(any::<u8>(), 1..200), crc: u32) {
            for answer in [
                Answer::Range { crc: crc32c::crc32c(&bytes), bytes: &bytes },
                Answer::Range { crc, bytes: &[] },
            ] {
                let encoded = answer.encode();
                prop_assert_eq!(Answer::decode(&encoded), Some(answer));
            }
        }
    }
}
