//! Requests between nodes: small ones as JSON, and requests of clients as they came.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_config::{Endpoint, SecurityProtocol};
use mainstem_controller::{
    ControllerJoin, DirectoryAssignment, FeatureRanges, LeaderNote, LostReplica, NodeStart, SettledNote,
};
use mainstem_records::LeaderEpoch;
use mainstem_wire::{ApiKey, ErrorCode, Uuid};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::local::Local;
use mainstem_requests::context::{AskedNode, ConnectionContext, Denial, RequestContext};

/// A question from node to node, with whom it is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// To the metadata leader: registers a node that starts.
    Register(StartNote),
    /// To the metadata leader: heartbeat of a node. Mainstem 0.1 names no features.
    Alive {
        node: i32,
        broker_epoch: i64,
        #[serde(default)]
        features: FeatureRanges,
    },
    /// To the metadata leader: the node stops, and other nodes take over what it leads.
    Leaving { node: i32, broker_epoch: i64 },
    /// To the metadata leader: allocates a block of producer ids.
    ProducerIds { node: i32 },
    /// To the metadata leader: reports the log directories of a node's partitions.
    Directories { node: i32, assignments: Vec<(Id, i32, Id)> },
    /// To the metadata leader: reports the log directories of a node that are online.
    Online { node: i32, directories: Vec<Id> },
    /// To the metadata leader: reports the log directories of a node that take no new partitions.
    Cordoned { node: i32, directories: Vec<Id> },
    /// To the metadata leader: reports logs of a node that are shorter than they were.
    Shorter { node: i32, partitions: Vec<(Id, i32)> },
    /// To the metadata leader: creates topics that a client named, or that a coordinator needs (without `who`).
    CreateMissing { names: Vec<String>, who: Option<Who> },
    /// To the metadata leader: partitions that a node leads and whose groups have the members that are wanted: topic, number, leader epoch,
    /// and the version of what is wanted. From level 2 of `mainstem.version` on.
    Settled { node: i32, partitions: Vec<(Id, i32, i32, u32)> },
    /// To the metadata leader: replicas of a node that are lost: topic, number and incarnation. From level 2 of `mainstem.version` on.
    Lost { node: i32, replicas: Vec<(Id, i32, u32)> },
    /// To the metadata leader: a node wants to take part in the cluster. From level 2 of `mainstem.version` on.
    Join(JoinNote),
    /// To every node: partitions that the sender leads.
    Leaders(Vec<Led>),
    /// To every node: the sender's replicas that cannot be in sync. Replaces the sender's report before it.
    OutOfSync { node: i32, partitions: Vec<(Id, i32)> },
    /// To the leader of partitions: writes the markers that end a transaction.
    Markers(MarkersNote),
    /// To the coordinator of a transactional id: asks whether its transaction may write to partitions.
    Verify(VerifyNote),
    /// To the leader of a partition: transfers leadership to another node, for a client (`who`) or for the sender itself.
    Transfer { topic: Id, partition: i32, to: i32, who: Option<Who> },
}

impl Ask {
    /// Returns true if node `from` may send this: a node may only act for itself and for its own clients.
    pub(crate) fn is_of(&self, from: i32) -> bool {
        match self {
            Ask::Register(note) => note.node == from,
            Ask::Alive { node, .. }
            | Ask::Leaving { node, .. }
            | Ask::ProducerIds { node }
            | Ask::Directories { node, .. }
            | Ask::Online { node, .. }
            | Ask::Cordoned { node, .. }
            | Ask::Shorter { node, .. }
            | Ask::Settled { node, .. }
            | Ask::Lost { node, .. }
            | Ask::OutOfSync { node, .. } => *node == from,
            Ask::CreateMissing { who, .. } | Ask::Transfer { who, .. } => {
                who.as_ref().is_none_or(|who| who.node == from)
            }
            Ask::Verify(note) => note.who.node == from,
            // The node that joins has no link yet, and has proven who it is to the one that asks.
            Ask::Join(_) | Ask::Leaders(_) | Ask::Markers(_) => true,
        }
    }
}

/// The answer to an [`Ask`] that was not refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It is done, and there is nothing to say.
    Done,
    /// The broker epoch.
    Epoch(i64),
    /// Producer ids from and to.
    ProducerIds(i64, i64),
    /// Topics, each with the error's code and its message.
    Created(Vec<(String, i16, Option<String>)>),
    /// Topic, partition and error code for each marker. No node reports for another node that a partition is gone.
    Marked(Vec<(String, i32, i16)>),
    /// The error's code of each partition.
    Verified(Vec<(String, i32, i16)>),
    /// The incarnation of the replica of the metadata log of a node that joins, or why it does not.
    Joined(Result<u32, String>),
}

/// An answer, and why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answered {
    /// The answer, and up to where the metadata have to be known for it to show.
    Is { answer: Answer, at: i64 },
    /// It is not the one to ask: another node may be.
    NotHere,
    /// Refused, with the error's code.
    Refused(i16),
}

/// An id on its way.
pub(crate) type Id = [u8; 16];

/// The client whose request a node forwards or acts for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Who {
    /// The node that the client asked.
    pub node: i32,
    /// The client's principal.
    pub principal: String,
    /// The listener's name.
    pub listener: String,
    /// The client's address.
    pub peer: String,
    /// The client's id.
    pub client_id: Option<String>,
    /// Key of the API.
    pub api: i16,
    /// Version of the request.
    pub version: i16,
    /// The request's number on its connection.
    pub correlation_id: i32,
    /// Operations on the resources of the request that the rules of the asked node deny.
    #[serde(default)]
    pub denied: BTreeSet<Denial>,
}

impl Who {
    /// Returns the client of a request.
    pub fn of(local: &Local, context: &RequestContext) -> Who {
        let connection = &context.connection;
        Who {
            node: local.id,
            principal: connection.principal.to_string(),
            listener: local.advertised[connection.listener].listener.clone(),
            peer: connection.peer.to_string(),
            client_id: context.client_id.as_deref().map(str::to_owned),
            api: context.api.key(),
            version: context.version,
            correlation_id: context.correlation_id,
            denied: BTreeSet::new(),
        }
    }

    /// The request's context on this node. A listener that this node does not have counts as its first one.
    ///
    /// # Errors
    /// INVALID_REQUEST where it says what cannot be.
    pub fn context(&self, local: &Local) -> Result<RequestContext, ErrorCode> {
        let listener =
            local.advertised.iter().position(|endpoint| endpoint.listener == self.listener).unwrap_or(0);
        let connection = ConnectionContext {
            id: 0,
            listener,
            peer: self.peer.parse().map_err(|_| ErrorCode::INVALID_REQUEST)?,
            principal: self.principal.as_str().into(),
            authorization: local.authorization.clone(),
            quotas: local.quotas.clone(),
            software: Mutex::default(),
            asked: Some(Arc::new(AskedNode { id: self.node, denied: self.denied.clone() })),
        };
        let api = ApiKey::try_from(self.api).map_err(|_| ErrorCode::INVALID_REQUEST)?;
        if !api.versions().contains(&self.version) {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        Ok(RequestContext {
            connection: Arc::new(connection),
            api,
            version: self.version,
            correlation_id: self.correlation_id,
            client_id: self.client_id.as_deref().map(Arc::from),
            time: None,
        })
    }
}

/// A node that wants to take part in the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JoinNote {
    node: i32,
    host: String,
    port: u16,
    security_protocol: i16,
    directory: Id,
    levels: (i16, i16),
    /// The incarnation of the replica of the metadata log that it has, if it has joined before.
    pub(crate) known_as: Option<u32>,
}

impl JoinNote {
    pub(crate) fn of(join: &ControllerJoin, known_as: Option<u32>) -> JoinNote {
        JoinNote {
            node: join.node,
            host: join.host.clone(),
            port: join.port,
            security_protocol: join.security_protocol,
            directory: join.directory.0,
            levels: join.levels,
            known_as,
        }
    }

    pub(crate) fn join(&self) -> ControllerJoin {
        ControllerJoin {
            node: self.node,
            host: self.host.clone(),
            port: self.port,
            security_protocol: self.security_protocol,
            directory: Uuid(self.directory),
            levels: self.levels,
        }
    }
}

/// A node that starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartNote {
    node: i32,
    rack: Option<String>,
    incarnation: Id,
    /// Name, security protocol, host, port.
    endpoints: Vec<(String, i16, String, u16)>,
    directories: Vec<Id>,
    cordoned: Vec<Id>,
    unclean: Vec<Id>,
    /// Mainstem 0.1 names none.
    #[serde(default)]
    features: FeatureRanges,
}

fn ids(ids: &[Uuid]) -> Vec<Id> {
    ids.iter().map(|id| id.0).collect()
}

fn uuids(ids: &[Id]) -> Vec<Uuid> {
    ids.iter().copied().map(Uuid).collect()
}

impl StartNote {
    pub(crate) fn of(start: &NodeStart) -> StartNote {
        let endpoint = |endpoint: &Endpoint| {
            (endpoint.listener.clone(), endpoint.protocol.code(), endpoint.host.clone(), endpoint.port)
        };
        StartNote {
            node: start.node_id,
            rack: start.rack.clone(),
            incarnation: start.incarnation_id.0,
            endpoints: start.endpoints.iter().map(endpoint).collect(),
            directories: ids(&start.log_dirs),
            cordoned: ids(&start.cordoned_dirs),
            unclean: ids(&start.unclean_dirs),
            features: start.features.clone(),
        }
    }

    /// `None` where a security protocol is unknown.
    pub(crate) fn start(&self) -> Option<NodeStart> {
        let endpoint = |(listener, protocol, host, port): &(String, i16, String, u16)| {
            let protocol = SecurityProtocol::from_code(*protocol)?;
            Some(Endpoint { listener: listener.clone(), protocol, host: host.clone(), port: *port })
        };
        Some(NodeStart {
            node_id: self.node,
            rack: self.rack.clone(),
            incarnation_id: Uuid(self.incarnation),
            endpoints: self.endpoints.iter().map(endpoint).collect::<Option<_>>()?,
            log_dirs: uuids(&self.directories),
            cordoned_dirs: uuids(&self.cordoned),
            unclean_dirs: uuids(&self.unclean),
            features: self.features.clone(),
        })
    }
}

/// A partition that the asking node leads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Led {
    topic: Id,
    partition: i32,
    epoch: i32,
    isr: Vec<i32>,
}

impl Led {
    pub(crate) fn of(note: &LeaderNote) -> Led {
        Led {
            topic: note.topic_id.0,
            partition: note.partition,
            epoch: note.leader_epoch.get(),
            isr: note.isr.clone(),
        }
    }

    pub(crate) fn note(&self, leader: i32) -> LeaderNote {
        LeaderNote {
            topic_id: Uuid(self.topic),
            partition: self.partition,
            leader,
            leader_epoch: LeaderEpoch::new(self.epoch),
            isr: self.isr.clone(),
        }
    }
}

/// Markers of one transaction for partitions that one node leads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MarkersNote {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) coordinator_epoch: i32,
    pub(crate) committed: bool,
    pub(crate) transaction_version: i16,
    /// Topic and number.
    pub(crate) partitions: Vec<(String, i32)>,
}

/// A producer's transaction, and what it is about to reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct VerifyNote {
    pub(crate) who: Who,
    pub(crate) transactional_id: String,
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) verify_only: bool,
    pub(crate) topics: Vec<(String, Vec<i32>)>,
}

/// Encodes the log directories of partitions for [`Ask::Directories`].
pub(crate) fn assignments_on_their_way(assignments: &[DirectoryAssignment]) -> Vec<(Id, i32, Id)> {
    assignments.iter().map(|to| (to.topic_id.0, to.partition, to.directory.0)).collect()
}

/// Decodes what [`assignments_on_their_way`] encodes.
pub(crate) fn assignments_of(assignments: &[(Id, i32, Id)]) -> Vec<DirectoryAssignment> {
    let assignment = |(topic, partition, directory): &(Id, i32, Id)| DirectoryAssignment {
        topic_id: Uuid(*topic),
        partition: *partition,
        directory: Uuid(*directory),
    };
    assignments.iter().map(assignment).collect()
}

/// Decodes what [`Ask::Settled`] says.
pub(crate) fn settled_of(leader: i32, settled: &[(Id, i32, i32, u32)]) -> Vec<SettledNote> {
    let note = |(topic, partition, epoch, version): &(Id, i32, i32, u32)| SettledNote {
        topic_id: Uuid(*topic),
        partition: *partition,
        leader,
        leader_epoch: LeaderEpoch::new(*epoch),
        version: *version,
    };
    settled.iter().map(note).collect()
}

/// Decodes what [`Ask::Lost`] says.
pub(crate) fn lost_of(replicas: &[(Id, i32, u32)]) -> Vec<LostReplica> {
    let lost = |(topic, partition, incarnation): &(Id, i32, u32)| LostReplica {
        topic_id: Uuid(*topic),
        partition: *partition,
        incarnation: *incarnation,
    };
    replicas.iter().map(lost).collect()
}

/// The bytes of a question or an answer.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("it has text keys alone")
}

/// A request of a client on its way: `Who` as JSON behind its length, then the body.
pub(crate) fn encode_forwarded(who: &Who, body: &[u8]) -> Vec<u8> {
    let who = encode(who);
    let length = u32::try_from(who.len()).expect("names are short");
    [&length.to_be_bytes(), &who[..], body].concat()
}

/// Takes it apart again.
pub(crate) fn decode_forwarded(bytes: &[u8]) -> Option<(Who, &[u8])> {
    let (length, rest) = bytes.split_at_checked(4)?;
    let length = u32::from_be_bytes(length.try_into().ok()?);
    let (who, body) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((serde_json::from_slice(who).ok()?, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_requests::context::{Operation, Resource};

    fn who() -> Who {
        Who {
            node: 2,
            principal: "User:a".into(),
            listener: "PLAINTEXT".into(),
            peer: "127.0.0.1:5".into(),
            client_id: None,
            api: 19,
            version: 7,
            correlation_id: -1,
            denied: [Denial::of(Operation::Create, Resource::Topic("t"))].into(),
        }
    }

    #[test]
    fn what_is_forwarded_arrives_and_garbage_does_not() {
        let bytes = encode_forwarded(&who(), b"body");
        assert_eq!(decode_forwarded(&bytes), Some((who(), &b"body"[..])));
        for len in 0..bytes.len() - 4 {
            assert_eq!(decode_forwarded(&bytes[..len]), None, "cut at {len}");
        }
        assert_eq!(decode_forwarded(&[0xff; 40]), None);
    }

    #[test]
    fn a_node_speaks_for_itself_and_for_its_own_clients() {
        let asks = [
            Ask::Alive { node: 2, broker_epoch: 1, features: FeatureRanges::new() },
            Ask::CreateMissing { names: vec!["t".into()], who: Some(who()) },
            Ask::Transfer { topic: [1; 16], partition: 0, to: 3, who: Some(who()) },
        ];
        assert!(asks.iter().all(|ask| ask.is_of(2) && !ask.is_of(3)));
        assert!(Ask::Transfer { topic: [1; 16], partition: 0, to: 3, who: None }.is_of(3));
    }

    fn start(features: FeatureRanges) -> NodeStart {
        NodeStart {
            node_id: 3,
            rack: Some("r".into()),
            incarnation_id: Uuid::from_u128(5),
            endpoints: vec![Endpoint {
                listener: "PLAINTEXT".into(),
                protocol: SecurityProtocol::Plaintext,
                host: "h".into(),
                port: 9092,
            }],
            log_dirs: vec![Uuid::from_u128(6)],
            cordoned_dirs: vec![],
            unclean_dirs: vec![Uuid::from_u128(6)],
            features,
        }
    }

    /// As Mainstem 0.1 says it.
    #[test]
    fn a_node_of_the_first_release_names_no_features() {
        let alive: Ask =
            serde_json::from_str(r#"{"Alive":{"node":3,"broker_epoch":7}}"#).expect("a heartbeat");
        assert_eq!(alive, Ask::Alive { node: 3, broker_epoch: 7, features: FeatureRanges::new() });
        let mut said =
            serde_json::to_value(Ask::Register(StartNote::of(&start(FeatureRanges::new())))).expect("JSON");
        let fields = said["Register"].as_object_mut().expect("an object");
        fields.remove("features").expect("a field of this release");
        let Ok(Ask::Register(note)) = serde_json::from_value(said) else { panic!("no registration") };
        assert_eq!(note.start(), Some(start(FeatureRanges::new())));
    }

    #[test]
    fn questions_arrive_as_they_were_asked() {
        let start = start([("mainstem.version".to_owned(), (1, 2))].into());
        let ask = Ask::Register(StartNote::of(&start));
        let arrived: Ask = serde_json::from_slice(&encode(&ask)).expect("it was encoded");
        let Ask::Register(note) = arrived else { panic!("{arrived:?}") };
        assert_eq!(note.start(), Some(start));
    }
}
