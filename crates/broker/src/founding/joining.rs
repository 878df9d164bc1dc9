//! A node that joins a cluster which is there: it finds the cluster at addresses of its nodes, and asks to be one of them.
//!
//! ```text
//!  servers ──which cluster?──▶ id ──directories are opened──▶ join (id, directory, address) ──▶ replica of the metadata log, nodes
//! ```
//!
//! Any node passes the request to the metadata leader, and answers when that is committed. What it answers is in the node's record, so
//! that later starts need no answer.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use mainstem_config::{Joining, QuorumServer, Voter};
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_log::storage::RealStorage;
use serde::{Deserialize, Serialize};

use super::agreement::{Stage, Statement};
use super::answering::{Refused, framed, set_times};
use super::record::{Joined, NodeAddress};
use super::{ANSWER_TIME, BYTES_MAX, Founder, Founding, FoundingError, MAGIC, ROUND, SAID_EVERY};
use mainstem_links::{ANY_NODE, read_frame};

/// The beginning of the first frame of a connection that asks to join.
pub(super) const JOIN_MAGIC: &[u8; 4] = b"MSJ1";

/// Time for the answer to a request to join, which waits for the metadata leader.
const JOIN_TIME: Duration = Duration::from_secs(15);

/// The same for a node that is one already, and looks whether that is still so.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// A request of a node to be one of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// The cluster.
    pub(crate) cluster_id: String,
    /// The node's id.
    pub(crate) node: i32,
    /// The host of its listener for controllers.
    pub(crate) host: String,
    /// The port there.
    pub(crate) port: u16,
    /// The code of the protocol there.
    pub(crate) security_protocol: i16,
    /// The id of the directory that is to have its metadata log.
    pub(crate) directory: String,
    /// The levels of `mainstem.version` at which it can work.
    pub(crate) levels: (i16, i16),
    /// The incarnation of the replica that is in its directory, if it has joined before.
    pub(crate) known_as: Option<u32>,
}

/// The answer to a request to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JoinAnswer {
    /// It is one of the nodes.
    Joined {
        /// The incarnation of its replica of the metadata log.
        incarnation: u32,
        /// The level of `mainstem.version`.
        level: i16,
        /// The founding of the cluster.
        founding: Founding,
        /// All nodes.
        nodes: Vec<NodeAddress>,
    },
    /// It is not, and why.
    Refused(String),
    /// There is no metadata leader at present, or it is not known.
    NotNow(String),
}

/// The node that answers requests to join.
pub(crate) trait JoinHandler: Send + Sync {
    /// Has a node join, or says why not. Blocks until the metadata leader has decided.
    fn join(&self, request: &JoinRequest) -> JoinAnswer;
}

impl Founder {
    /// The id of the cluster that is found at the servers.
    pub(super) fn find_cluster(
        &self,
        joining: &Joining,
        known: Option<String>,
        is_broken_off: &dyn Fn() -> bool,
    ) -> Result<String, FoundingError> {
        let found = self.until_answered(&joining.servers, is_broken_off, |server| {
            let statement = match self.look(server)? {
                Ok(statement) => statement,
                Err(same_id) => return Ok(Some(Err(same_id))),
            };
            Ok(match statement.stage {
                Stage::Founded(founding) => Some(Ok((statement.node, founding.cluster_id))),
                _ => None,
            })
        })?;
        let (node, theirs) = found?;
        match known {
            Some(own) if own != theirs => Err(FoundingError::OtherCluster { node, theirs, own }),
            _ => Ok(theirs),
        }
    }

    /// The statement of the node at an address. The inner error: another process with this node's id is there.
    fn look(&self, server: &QuorumServer) -> io::Result<Result<Statement, FoundingError>> {
        let own = self.own.lock().clone();
        let statement: Statement = self.ask_server(server, ANY_NODE, MAGIC, ANSWER_TIME)?;
        Ok(match statement.node == own.node && statement.start != own.start {
            true => Err(FoundingError::SameId { node: own.node, address: server.to_string() }),
            false => Ok(statement),
        })
    }

    /// Joins the cluster, or finds out whether this node is still one of it: where that cannot be found out, its record counts. Returns the
    /// record.
    pub(super) fn join(
        &self,
        dir: &Path,
        joining: &Joining,
        (cluster_id, directory): (&str, String),
        is_broken_off: &dyn Fn() -> bool,
    ) -> Result<Founding, FoundingError> {
        let known = Founding::read(&RealStorage, dir)?;
        let own = NodeAddress::of(&joining.own);
        if let Some(founding) = &known {
            founding.check_joined(dir, own.id, &directory)?;
        }
        let joined = known.as_ref().and_then(|founding| founding.joined.as_ref());
        let request = JoinRequest {
            cluster_id: cluster_id.to_owned(),
            node: own.id,
            host: own.host.clone(),
            port: own.port,
            security_protocol: self.security_protocol,
            directory,
            levels: (MAINSTEM_VERSION.min, MAINSTEM_VERSION.max),
            known_as: joined.map(|joined| joined.incarnation),
        };
        let servers = servers(joining, known.as_ref());
        let is_there = known.as_ref().is_some_and(|founding| founding.nodes.contains(&own));
        let answered = match is_there {
            true => self
                .ask_each(&servers, is_broken_off, |server| self.ask_to_join(server, &request, LOOK_TIME))
                .ok(),
            false => {
                let ask = |server: &QuorumServer| self.ask_to_join(server, &request, JOIN_TIME);
                Some(self.until_answered(&servers, is_broken_off, ask)?)
            }
        };
        let founding = match (answered, known) {
            (Some(answer), known) => {
                let founding = answer?;
                if known.as_ref() != Some(&founding) {
                    founding.write(dir)?;
                }
                if known.is_none() {
                    tracing::info!(cluster_id, "this node has joined the cluster");
                }
                founding
            }
            (None, Some(known)) => known,
            (None, None) => return Err(FoundingError::BrokenOff),
        };
        let mut own = self.own.lock();
        own.voters = founding.voters.keys().copied().collect();
        own.stage = Stage::Founded(founding.clone());
        Ok(founding)
    }

    /// Asks the node at an address to let this one join; the record that follows from that. The request goes to one node, by a proof for
    /// that node alone.
    fn ask_to_join(
        &self,
        server: &QuorumServer,
        request: &JoinRequest,
        time: Duration,
    ) -> io::Result<Option<Result<Founding, FoundingError>>> {
        let statement = match self.look(server)? {
            Ok(statement) if statement.node == request.node => return Ok(None),
            Ok(statement) => statement,
            Err(same_id) => return Ok(Some(Err(same_id))),
        };
        let asked = serde_json::to_vec(request).expect("it is text");
        let question = [JOIN_MAGIC.as_slice(), &asked].concat();
        match self.ask_server(server, statement.node, &question, time)? {
            JoinAnswer::Joined { incarnation, level, mut founding, nodes } => {
                let directory = request.directory.clone();
                founding.joined = Some(Joined { directory, incarnation, level });
                founding.nodes = nodes;
                Ok(Some(Ok(founding)))
            }
            JoinAnswer::Refused(why) => {
                let cluster_id = request.cluster_id.clone();
                Ok(Some(Err(FoundingError::NotJoined { cluster_id, why })))
            }
            JoinAnswer::NotNow(why) => Err(io::Error::other(why)),
        }
    }

    /// Asks the servers in turn, round by round, until one gives an answer.
    fn until_answered<T>(
        &self,
        servers: &[QuorumServer],
        is_broken_off: &dyn Fn() -> bool,
        mut ask: impl FnMut(&QuorumServer) -> io::Result<Option<T>>,
    ) -> Result<T, FoundingError> {
        let clock = self.gate.clock();
        let mut said = None;
        loop {
            let reasons = match self.ask_each(servers, is_broken_off, &mut ask) {
                Ok(answer) => {
                    self.awaited.clear();
                    return Ok(answer);
                }
                Err(reasons) => reasons,
            };
            if is_broken_off() {
                self.awaited.clear();
                return Err(FoundingError::BrokenOff);
            }
            let reason = format!(
                "no node at controller.quorum.bootstrap.servers lets this one join its cluster: {} (start them, or correct the \
                 addresses; to found a new cluster name all of its nodes in controller.quorum.voters)",
                reasons.join("; ")
            );
            if said.is_none_or(|at| clock.elapsed(at) >= SAID_EVERY) {
                said = Some(clock.instant());
                tracing::info!("{reason}");
            }
            self.awaited.waits("waiting for the cluster that this node joins", reason, clock.mono_ms());
            std::thread::sleep(ROUND);
        }
    }

    /// The answer of the first of the servers that gives one, or why none does.
    fn ask_each<T>(
        &self,
        servers: &[QuorumServer],
        is_broken_off: &dyn Fn() -> bool,
        mut ask: impl FnMut(&QuorumServer) -> io::Result<Option<T>>,
    ) -> Result<T, Vec<String>> {
        let mut reasons = Vec::new();
        for server in servers.iter().take_while(|_| !is_broken_off()) {
            match ask(server) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => reasons.push(format!("{server} is no other node of a cluster")),
                Err(error) => reasons.push(format!("{server}: {error}")),
            }
        }
        Err(reasons)
    }

    /// Asks a node at an address, or whichever is there.
    fn ask_server<T: for<'a> Deserialize<'a>>(
        &self,
        server: &QuorumServer,
        node: i32,
        question: &[u8],
        time: Duration,
    ) -> io::Result<T> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (server.host.as_str(), server.port).to_socket_addrs()? {
            let stream = match TcpStream::connect_timeout(&address, ANSWER_TIME) {
                Ok(stream) => stream,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            set_times(&stream)?;
            stream.set_read_timeout(Some(time))?;
            let mut channel = self.gate.dial(stream, (node, &server.host), ANSWER_TIME)?;
            channel.writer.write_all(&framed(question)?)?;
            let answer = read_frame(&mut channel.reader, BYTES_MAX).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other(
                    "it ends the connection: it may be starting, or of a release that lets no nodes join",
                ),
                _ => error,
            })?;
            if let Ok(Refused { refused }) = serde_json::from_slice(&answer) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, refused));
            }
            return serde_json::from_slice(&answer).map_err(io::Error::other);
        }
        Err(last)
    }
}

/// The addresses at which a node looks for its cluster: those of its configuration, and those of the nodes that were known last.
fn servers(joining: &Joining, known: Option<&Founding>) -> Vec<QuorumServer> {
    let mut servers = joining.servers.clone();
    let noted = known.iter().flat_map(|founding| &founding.nodes).filter(|node| node.id != joining.own.id);
    for node in noted {
        let server = QuorumServer { host: node.host.clone(), port: node.port };
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    servers
}

impl NodeAddress {
    /// The address of a node.
    pub(crate) fn of(voter: &Voter) -> NodeAddress {
        NodeAddress { id: voter.id, host: voter.host.clone(), port: voter.port }
    }

    /// The node as links and messages name it.
    pub(crate) fn voter(&self) -> Voter {
        Voter { id: self.id, host: self.host.clone(), port: self.port }
    }
}
