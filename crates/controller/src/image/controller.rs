//! The nodes that take part in the group of the metadata log, and the records that make and change them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mainstem_wire::messages::register_controller_record::{
    ControllerEndpoint, ControllerFeature, RegisterControllerRecord,
};
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{UnknownTaggedField, Uuid};

use super::tagged_field::{self, Rest, VERSION};
use super::{MetadataChange, MetadataImage};
use crate::error::Inconsistency;
use crate::features::MAINSTEM_VERSION;

/// The incarnation of the replicas of the nodes that have founded the cluster.
pub(crate) const FIRST_INCARNATION: u32 = 1;

/// The name of the one endpoint of a record.
const LISTENER: &str = "CONTROLLER";

/// A node's place in the group of the metadata log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerImage {
    /// The host of its listener for controllers.
    pub host: String,
    /// The port of that listener.
    pub port: u16,
    /// The code of that listener's security protocol.
    pub security_protocol: i16,
    /// The directory that has its metadata log.
    pub directory: Uuid,
    /// The incarnation of its replica of the metadata log, from 1. Another directory has another one.
    pub incarnation: u32,
    /// It is to vote about the metadata. Others follow, as learners.
    pub votes: bool,
    /// The levels of `mainstem.version` that it can work at, as it has said with its address; `None` if it has not.
    pub levels: Option<(i16, i16)>,
}

/// All nodes that take part in the group of the metadata log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Controllers {
    /// By id.
    pub(crate) nodes: BTreeMap<i32, ControllerImage>,
    /// Rises by one with each record and each removal; 0 if there never was any.
    pub(crate) version: u32,
    /// The highest incarnation that was ever given. None above the first is given twice, not even to two nodes.
    pub(crate) last_incarnation: u32,
}

/// Reading.
impl MetadataImage {
    /// The nodes that take part in the group of the metadata log, by id. There are none before the first change of them.
    pub fn controllers(&self) -> impl Iterator<Item = (i32, &ControllerImage)> {
        self.controllers.nodes.iter().map(|(id, controller)| (*id, controller))
    }

    /// The place of a node in the group of the metadata log.
    pub fn controller(&self, id: i32) -> Option<&ControllerImage> {
        self.controllers.nodes.get(&id)
    }

    /// The version of the controllers. It rises with each change of one. At 0 the metadata name none, and the nodes are those that have
    /// founded the cluster.
    pub fn controllers_version(&self) -> u32 {
        self.controllers.version
    }
}

/// Applying.
impl MetadataImage {
    /// Sets a controller by its record. Kafka's own record, which has no tagged field 10000, changes nothing.
    pub(super) fn register_controller(
        &mut self,
        record: &RegisterControllerRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let id = record.controller_id;
        let refusal = |what| Inconsistency::Controller { id, what };
        let field = tagged_field::find(&record.unknown_tagged_fields, Field::decode).map_err(refusal)?;
        let Some(field) = field else { return Ok(MetadataChange::None) };
        let controller = controller_of(record, &field).map_err(refusal)?;
        self.controllers.check_follows(id, &controller, &field).map_err(refusal)?;
        self.controllers.nodes.insert(id, controller);
        self.controllers.version = field.version;
        self.controllers.last_incarnation = field.last_incarnation;
        Ok(MetadataChange::ControllerChanged { id })
    }
}

impl Controllers {
    /// The number of nodes that vote.
    pub(crate) fn voters(&self) -> usize {
        self.nodes.values().filter(|controller| controller.votes).count()
    }

    /// An incarnation that no replica has had; `None` if there is none left.
    pub(crate) fn next_incarnation(&self) -> Option<u32> {
        self.last_incarnation.checked_add(1)
    }

    /// Sets a controller, and returns the record of it; `None` if the version cannot rise.
    pub(crate) fn set(&mut self, id: i32, controller: ControllerImage) -> Option<MetadataRecord<'static>> {
        self.version = self.version.checked_add(1)?;
        self.last_incarnation = self.last_incarnation.max(controller.incarnation);
        let record = self.record(id, &controller);
        self.nodes.insert(id, controller);
        Some(record)
    }

    /// Removes a controller, if there is one of this id.
    ///
    /// # Errors
    /// When it votes, or the version cannot rise. Then nothing is changed.
    pub(super) fn remove(&mut self, id: i32) -> Result<(), Inconsistency> {
        let Some(controller) = self.nodes.get(&id) else { return Ok(()) };
        if controller.votes {
            return Err(Inconsistency::Controller { id, what: "it votes, and is to be removed" });
        }
        self.version = self.version.checked_add(1).ok_or(Inconsistency::EpochOverflow)?;
        self.nodes.remove(&id);
        Ok(())
    }

    /// The records that make these controllers. Voters come first: at no record a vote is missing.
    pub(crate) fn records(&self) -> impl Iterator<Item = MetadataRecord<'static>> {
        let of = |votes| self.nodes.iter().filter(move |(_, controller)| controller.votes == votes);
        of(true).chain(of(false)).map(|(id, controller)| self.record(*id, controller))
    }

    fn record(&self, id: i32, controller: &ControllerImage) -> MetadataRecord<'static> {
        // A new field needs its place here.
        let ControllerImage { host, port, security_protocol, directory, incarnation, votes, levels } =
            controller;
        let (version, last_incarnation) = (self.version, self.last_incarnation);
        let field = Field { incarnation: *incarnation, version, votes: *votes, last_incarnation };
        let endpoint = ControllerEndpoint {
            name: Cow::Borrowed(LISTENER),
            host: Cow::Owned(host.clone()),
            port: *port,
            security_protocol: *security_protocol,
            ..ControllerEndpoint::default()
        };
        let feature = |(min, max)| ControllerFeature {
            name: Cow::Borrowed(MAINSTEM_VERSION.name),
            min_supported_version: min,
            max_supported_version: max,
            ..ControllerFeature::default()
        };
        MetadataRecord::RegisterControllerRecord(Box::new(RegisterControllerRecord {
            controller_id: id,
            incarnation_id: *directory,
            end_points: vec![endpoint],
            features: levels.map(feature).into_iter().collect(),
            unknown_tagged_fields: vec![UnknownTaggedField {
                tag: tagged_field::TAG,
                data: Cow::Owned(field.encode()),
            }],
            ..RegisterControllerRecord::default()
        }))
    }

    /// Checks that a record's controller follows from these: an incarnation stands for one directory of one node, and a node votes.
    ///
    /// # Errors
    /// The fault of the record.
    fn check_follows(&self, id: i32, next: &ControllerImage, field: &Field) -> Result<(), &'static str> {
        if field.version < self.version || field.last_incarnation < self.last_incarnation {
            return Err("it goes back");
        }
        let known = self.nodes.get(&id);
        // Records of a snapshot have its version and its last incarnation, each of them.
        let is_of_snapshot = field.version == self.version;
        if is_of_snapshot && (known.is_some() || field.last_incarnation != self.last_incarnation) {
            return Err("its version does not rise");
        }
        let is_founding = self.last_incarnation <= FIRST_INCARNATION && next.incarnation == FIRST_INCARNATION;
        match known {
            Some(known) if known.incarnation == next.incarnation && known.directory == next.directory => {}
            Some(known) if known.incarnation == next.incarnation => {
                return Err("its directory is another one, and its incarnation is not");
            }
            None if is_of_snapshot || is_founding => {}
            _ if next.incarnation <= self.last_incarnation => return Err("its incarnation was given before"),
            _ => {}
        }
        let mut others = self.nodes.iter().filter(|(other, _)| **other != id);
        let is_taken = |other: &ControllerImage| {
            other.incarnation == next.incarnation && other.incarnation > FIRST_INCARNATION
        };
        if others.clone().any(|(_, other)| is_taken(other)) {
            return Err("its incarnation is that of another node");
        }
        match next.votes || others.any(|(_, other)| other.votes) {
            true => Ok(()),
            false => Err("no node votes without it"),
        }
    }
}

fn controller_of(
    record: &RegisterControllerRecord<'_>,
    field: &Field,
) -> Result<ControllerImage, &'static str> {
    let [endpoint] = &record.end_points[..] else { return Err("it does not have one address") };
    let mut features = record.features.iter();
    let levels = features.find(|feature| feature.name == MAINSTEM_VERSION.name);
    Ok(ControllerImage {
        host: endpoint.host.to_string(),
        port: endpoint.port,
        security_protocol: endpoint.security_protocol,
        directory: record.incarnation_id,
        incarnation: field.incarnation,
        votes: field.votes,
        levels: levels.map(|levels| (levels.min_supported_version, levels.max_supported_version)),
    })
}

/// The value of the tagged field of a record. `docs/format.md` has the diagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    incarnation: u32,
    /// The version of the controllers after the record.
    version: u32,
    votes: bool,
    /// The highest incarnation that was ever given, after the record.
    last_incarnation: u32,
}

impl Field {
    fn encode(self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend(self.incarnation.to_be_bytes());
        value.extend(self.version.to_be_bytes());
        value.push(u8::from(self.votes));
        value.extend(self.last_incarnation.to_be_bytes());
        value
    }

    fn decode(value: &[u8]) -> Result<Field, &'static str> {
        let mut rest = Rest::of(value)?;
        let incarnation = u32::from_be_bytes(rest.take()?);
        let version = u32::from_be_bytes(rest.take()?);
        let votes = match rest.take()? {
            [0] => false,
            [1] => true,
            _ => return Err("its vote is neither 0 nor 1"),
        };
        let last_incarnation = u32::from_be_bytes(rest.take()?);
        rest.end()?;
        match version > 0 && (FIRST_INCARNATION..=last_incarnation).contains(&incarnation) {
            true => Ok(Field { incarnation, version, votes, last_incarnation }),
            false => Err("it has an incarnation that was never given, or version 0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tagged_field::LENGTH;
    use super::*;

    const FIELD: Field =
        Field { incarnation: 0x0102_0304, version: 7, votes: true, last_incarnation: 0x0102_0305 };

    /// The bytes of `docs/format.md`.
    const GOLDEN: [u8; 14] = [
        1, // version
        1, 2, 3, 4, // incarnation
        0, 0, 0, 7, // version of the controllers
        1, // votes
        1, 2, 3, 5, // last incarnation
    ];

    #[test]
    fn the_bytes_are_those_of_the_diagram() {
        assert_eq!(FIELD.encode(), GOLDEN);
        assert_eq!(Field::decode(&GOLDEN), Ok(FIELD));
        let other = Field { votes: false, ..FIELD };
        assert_eq!(Field::decode(&other.encode()), Ok(other));
    }

    #[test]
    fn a_field_that_makes_no_sense_is_refused() {
        for end in 0..GOLDEN.len() {
            assert_eq!(Field::decode(&GOLDEN[..end]), Err(LENGTH), "{end} bytes");
        }
        assert_eq!(Field::decode(&[&GOLDEN[..], &[0]].concat()), Err(LENGTH));
        let with = |at: usize, byte: u8| {
            let mut value = GOLDEN.to_vec();
            value[at] = byte;
            Field::decode(&value)
        };
        assert_eq!(with(0, 2), Err("its field has another version than 1"));
        assert_eq!(with(9, 2), Err("its vote is neither 0 nor 1"));
        let never = Err("it has an incarnation that was never given, or version 0");
        assert_eq!((with(8, 0), with(4, 6)), (never, never));
        assert_eq!(Field::decode(&Field { incarnation: 0, ..FIELD }.encode()), never);
    }
}
