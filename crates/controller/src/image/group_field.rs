//! The group of a partition's replicas in PartitionRecord and PartitionChangeRecord: the value of a tagged field that Kafka does not know.
//!
//! `docs/format.md` has the diagram, and says when the field is there.

use mainstem_wire::UnknownTaggedField;

use super::partition::GroupImage;
use super::tagged_field::{self, Rest, VERSION};

/// The value of a group.
pub(super) fn encode(group: &GroupImage) -> Vec<u8> {
    let GroupImage { incarnations, last_incarnation, version, settled_epoch, original } = group;
    let count = |length: usize| u16::try_from(length).expect("fewer nodes have a replica").to_be_bytes();
    let mut value = vec![VERSION];
    value.extend(last_incarnation.to_be_bytes());
    value.extend(version.to_be_bytes());
    value.extend(settled_epoch.to_be_bytes());
    value.extend(count(incarnations.len()));
    value.extend(incarnations.iter().flat_map(|incarnation| incarnation.to_be_bytes()));
    value.extend(count(original.len()));
    value.extend(original.iter().flat_map(|node| node.to_be_bytes()));
    value
}

/// The group among the tagged fields of a record, if there is one.
///
/// # Errors
/// The defect of the field.
pub(super) fn find(fields: &[UnknownTaggedField<'_>]) -> Result<Option<GroupImage>, &'static str> {
    tagged_field::find(fields, decode)
}

fn decode(value: &[u8]) -> Result<GroupImage, &'static str> {
    let mut rest = Rest::of(value)?;
    let group = GroupImage {
        last_incarnation: u32::from_be_bytes(rest.take()?),
        version: u32::from_be_bytes(rest.take()?),
        settled_epoch: i32::from_be_bytes(rest.take()?),
        incarnations: rest.list(u32::from_be_bytes)?,
        original: rest.list(i32::from_be_bytes)?,
    };
    rest.end()?;
    match group.settled_epoch {
        0.. => Ok(group),
        _ => Err("its leader epoch is negative"),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::tagged_field::{LENGTH, TAG};
    use super::*;

    fn group() -> GroupImage {
        GroupImage {
            incarnations: vec![1, 4, 0x0102_0304],
            last_incarnation: 0x0102_0305,
            version: 7,
            settled_epoch: 9,
            original: vec![2, 1],
        }
    }

    fn field(tag: u32, data: &[u8]) -> UnknownTaggedField<'_> {
        UnknownTaggedField { tag, data: Cow::Borrowed(data) }
    }

    /// The bytes of `docs/format.md`.
    const GOLDEN: [u8; 37] = [
        1, // version
        1, 2, 3, 5, // last incarnation
        0, 0, 0, 7, // version of what is wanted
        0, 0, 0, 9, // settled epoch
        0, 3, 0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4, // incarnations
        0, 2, 0, 0, 0, 2, 0, 0, 0, 1, // original
    ];

    #[test]
    fn the_bytes_are_those_of_the_diagram() {
        assert_eq!(encode(&group()), GOLDEN);
        assert_eq!(find(&[field(TAG, &GOLDEN)]), Ok(Some(group())));
        let none = GroupImage { incarnations: vec![1], original: vec![], ..group() };
        assert_eq!(decode(&encode(&none)), Ok(none));
    }

    #[test]
    fn other_fields_are_passed_over() {
        assert_eq!(find(&[]), Ok(None));
        let fields = [field(9_999, b"x"), field(TAG, &GOLDEN), field(10_001, b"")];
        assert_eq!(find(&fields), Ok(Some(group())));
    }

    #[test]
    fn a_field_that_is_not_whole_is_refused() {
        for end in 0..GOLDEN.len() {
            assert_eq!(decode(&GOLDEN[..end]), Err(LENGTH), "{end} bytes");
        }
        assert_eq!(decode(&[&GOLDEN[..], &[0]].concat()), Err(LENGTH));
        let twice = find(&[field(TAG, &GOLDEN), field(TAG, &GOLDEN)]);
        assert_eq!(twice, Err("its field is there twice"));
    }

    #[test]
    fn a_field_that_makes_no_sense_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut value = GOLDEN.to_vec();
            value[at] = byte;
            decode(&value)
        };
        for version in [0, 2, 255] {
            assert_eq!(with(0, version), Err("its field has another version than 1"));
        }
        assert_eq!(with(9, 0x80), Err("its leader epoch is negative"));
        for count in [0, 1, 2, 4, 255] {
            assert_eq!(with(14, count), Err(LENGTH), "{count} incarnations");
            if count != 2 {
                assert_eq!(with(28, count), Err(LENGTH), "{count} originals");
            }
        }
        assert_eq!(with(13, 0xff), Err(LENGTH));
    }
}
