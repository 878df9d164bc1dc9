//! How nodes with empty directories become a cluster: they agree on its id, and on which directory is whose.
//!
//! A node without a cluster's id asks all of `controller.quorum.voters`. It joins the cluster that another one has. If all
//! say that they have none, and name the same nodes, the one with the lowest id makes the cluster's id; when all others
//! have taken it on, it writes who has which directory ([`Founding`]), and the others write the same. Only then does a
//! node vote. With one node missing nothing is founded.
//!
//! ```text
//!  Empty ──all empty (lowest id), or another has an id──▶ Named ──all named (lowest id), or another has founded──▶ Founded
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_config::{Quorum, Voter};
use mainstem_log::storage::{RealStorage, Storage, read_small_file, replace_file};
use mainstem_wire::Uuid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use mainstem_links::awaited::Awaited;
use mainstem_links::{Arrived, Links, NodeGate, is_hello, read_frame};
use mainstem_net::door::Seats;
use mainstem_runtime::random;
use mainstem_runtime::supervised;

/// Beside `meta.properties` in the directory with the metadata log.
const FILE: &str = "mainstem.cluster";

/// The largest one that is read, and the largest statement.
const BYTES_MAX: usize = 64 << 10;

/// What the first frame of a connection begins with that is a question of founding.
const MAGIC: &[u8; 4] = b"MSF1";

/// How long a node that is asked may take.
const ANSWER_TIME: Duration = Duration::from_millis(1_000);

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_millis(100);

/// A node does not answer itself if it has not in so many rounds, one after the other.
const OWN_ROUNDS: u32 = 5;

/// How often it is said who is missing.
const SAID_EVERY: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Connections that are answered at the same time.
const ANSWERED_MAX: usize = 128;

/// Who began a cluster: written once by each of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Founding {
    /// The cluster's id.
    pub(crate) cluster_id: String,
    /// Its nodes, by id, with the id of the directory that has their metadata log.
    pub(crate) voters: BTreeMap<i32, String>,
}

/// How far a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// Its directories have no cluster's id.
    Empty,
    /// They have one, and nothing was founded as far as it knows.
    Named { cluster_id: String, directory: String },
    /// It is one of the nodes of a cluster.
    Founded(Founding),
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Statement {
    /// Its id.
    pub(crate) node: i32,
    /// Of this start: tells two processes with the same id apart.
    pub(crate) start: String,
    /// The ids that it takes for the cluster's nodes.
    pub(crate) voters: Vec<i32>,
    /// How far it is.
    pub(crate) standing: Standing,
}

/// What a node does next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// It waits for these.
    Wait { missing: Vec<i32> },
    /// It makes the cluster's id.
    MakeId,
    /// It takes on this cluster's id.
    Take(String),
    /// It writes this and begins.
    Write(Founding),
}

/// Why nodes do not become a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoundingError {
    /// Two processes with the same id.
    #[error(
        "node.id={node} is running already: another process with it answers at {address}; give this one another node.id, or \
         stop the other one. If this node's own address in controller.quorum.voters is wrong, correct it on every node"
    )]
    SameId {
        /// The id.
        node: i32,
        /// Where the other one is.
        address: String,
    },
    /// Another node is at an address.
    #[error(
        "node {found} answers at {address}, where controller.quorum.voters has node {expected}; correct the list, the same on \
         every node, or node.id there"
    )]
    OtherNode {
        /// Where.
        address: String,
        /// Who answers.
        found: i32,
        /// Who should.
        expected: i32,
    },
    /// Two nodes have other lists.
    #[error(
        "node {node} has the nodes {theirs:?} in controller.quorum.voters, and this node {own:?}; name the same ones on every \
         node, then start again"
    )]
    VotersDisagree {
        /// The other one.
        node: i32,
        /// Its list.
        theirs: Vec<i32>,
        /// This node's.
        own: Vec<i32>,
    },
    /// Directories of another cluster.
    #[error(
        "the directories of this node are of cluster {own}, and node {node} is of cluster {theirs}; correct log.dirs on the \
         one that has the wrong directories, or move those away"
    )]
    OtherCluster {
        /// The other node.
        node: i32,
        /// Its cluster.
        theirs: String,
        /// This node's cluster.
        own: String,
    },
    /// The node's directory is not the one that it had.
    #[error(
        "cluster {cluster_id} knows node {node} by another directory than this: its disk was lost, or log.dirs is wrong. \
         Mount the disk with that directory; replicas that have lost their disk are not served again in this release"
    )]
    LostDirectory {
        /// The cluster.
        cluster_id: String,
        /// This node.
        node: i32,
    },
    /// What was founded has other nodes.
    #[error(
        "cluster {cluster_id} was founded by the nodes {founded:?}, and controller.quorum.voters names {configured:?}; name \
         those: nodes are neither added nor removed in this release"
    )]
    OtherVoters {
        /// The cluster.
        cluster_id: String,
        /// Its nodes.
        founded: Vec<i32>,
        /// The configuration's.
        configured: Vec<i32>,
    },
    /// The directory has the metadata of one node.
    #[error(
        "log directory {} has the metadata of a node that was a cluster of its own: such a node does not become one of \
         several in this release; start it without other nodes in controller.quorum.voters, or begin with empty directories",
        path.display()
    )]
    OneNode {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is of a cluster of several nodes.
    #[error(
        "log directory {} is of cluster {cluster_id}, which has the nodes {voters:?}; name them in controller.quorum.voters",
        path.display()
    )]
    Several {
        /// The directory.
        path: PathBuf,
        /// The cluster.
        cluster_id: String,
        /// Its nodes.
        voters: Vec<i32>,
    },
    /// The file that says who founded the cluster.
    #[error("{} cannot be used: {why}; put it back from another node of the cluster, where it is the same", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It was asked to stop.
    #[error("the start was broken off")]
    BrokenOff,
}

/// What a node does, given what it and the others say. `others` has those that answered.
fn next(own: &Statement, others: &BTreeMap<i32, Statement>) -> Result<Step, FoundingError> {
    let cluster_of = |statement: &Statement| match &statement.standing {
        Standing::Empty => None,
        Standing::Named { cluster_id, .. } => Some(cluster_id.clone()),
        Standing::Founded(founding) => Some(founding.cluster_id.clone()),
    };
    let own_cluster = cluster_of(own);
    for (node, other) in others {
        if other.voters != own.voters {
            let (theirs, own) = (other.voters.clone(), own.voters.clone());
            return Err(FoundingError::VotersDisagree { node: *node, theirs, own });
        }
        if let (Some(own), Some(theirs)) = (&own_cluster, cluster_of(other))
            && *own != theirs
        {
            return Err(FoundingError::OtherCluster { node: *node, theirs, own: own.clone() });
        }
    }
    let missing: Vec<i32> =
        own.voters.iter().copied().filter(|id| *id != own.node && !others.contains_key(id)).collect();
    let founded = others.values().find_map(|other| match &other.standing {
        Standing::Founded(founding) => Some(founding),
        _ => None,
    });
    let is_lowest = own.voters.first() == Some(&own.node);
    match (&own.standing, founded) {
        (Standing::Founded(founding), _) => Ok(Step::Write(founding.clone())),
        (Standing::Named { directory, .. }, Some(founding))
            if founding.voters.get(&own.node) == Some(directory) =>
        {
            Ok(Step::Write(founding.clone()))
        }
        (_, Some(founding)) => {
            Err(FoundingError::LostDirectory { cluster_id: founding.cluster_id.clone(), node: own.node })
        }
        (Standing::Empty, None) => match others.values().find_map(cluster_of) {
            Some(cluster_id) => Ok(Step::Take(cluster_id)),
            None if missing.is_empty() && is_lowest => Ok(Step::MakeId),
            None => Ok(Step::Wait { missing }),
        },
        (Standing::Named { cluster_id, .. }, None) => {
            let directories =
                others.values().chain([own]).filter_map(|statement| match &statement.standing {
                    Standing::Named { directory, .. } => Some((statement.node, directory.clone())),
                    _ => None,
                });
            let voters: BTreeMap<i32, String> = directories.collect();
            match is_lowest && voters.len() == own.voters.len() {
                true => Ok(Step::Write(Founding { cluster_id: cluster_id.clone(), voters })),
                false => Ok(Step::Wait { missing }),
            }
        }
    }
}

impl Founding {
    /// What was written in a directory, if anything.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Result<Option<Founding>, FoundingError> {
        let path = dir.join(FILE);
        let failed = |why: String| FoundingError::File { path: path.clone(), why };
        match read_small_file(storage, &path, BYTES_MAX) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.to_string())),
            // What is wrong with a directory that is none, its opening says.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// The ids of the directories that have the nodes' metadata logs, by node.
    pub(crate) fn directories(&self) -> BTreeMap<i32, Uuid> {
        let parsed =
            self.voters.iter().filter_map(|(node, directory)| Some((*node, directory.parse().ok()?)));
        parsed.collect()
    }

    fn write(&self, dir: &Path) -> Result<(), FoundingError> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec(self).expect("ids are text");
        replace_file(&RealStorage, &path, &text)
            .map_err(|error| FoundingError::File { path, why: error.to_string() })
    }

    fn check(&self, own: &Statement, directory: &str) -> Result<(), FoundingError> {
        let founded: Vec<i32> = self.voters.keys().copied().collect();
        let cluster_id = self.cluster_id.clone();
        if founded != own.voters {
            return Err(FoundingError::OtherVoters { cluster_id, founded, configured: own.voters.clone() });
        }
        match self.voters.get(&own.node).is_some_and(|known| known == directory) {
            true => Ok(()),
            false => Err(FoundingError::LostDirectory { cluster_id, node: own.node }),
        }
    }
}

/// A directory that is started without other nodes is not one of a cluster.
///
/// # Errors
/// When it is.
pub(crate) fn check_alone(dir: &Path) -> Result<(), FoundingError> {
    match Founding::read(&RealStorage, dir)? {
        None => Ok(()),
        Some(Founding { cluster_id, voters }) => Err(FoundingError::Several {
            path: dir.to_owned(),
            cluster_id,
            voters: voters.into_keys().collect(),
        }),
    }
}

/// Whether a node answers where the others look for it: it asks itself as well. One that does not would wait for the others without a word,
/// as they do for it.
#[derive(Debug, Default)]
struct OwnAddress {
    /// Rounds without an answer, one after the other.
    failed: u32,
    said: Option<Instant>,
}

impl OwnAddress {
    /// A round is over. Returns true if it is to be said that there was no answer.
    fn note(&mut self, has_failed: bool, now: Instant) -> bool {
        self.failed = if has_failed { self.failed.saturating_add(1) } else { 0 };
        let is_due = self.said.is_none_or(|said| now.saturating_duration_since(said) >= SAID_EVERY);
        let says = self.lasts() && is_due;
        if says {
            self.said = Some(now);
        }
        says
    }

    /// Returns true where it has not answered for so many rounds that it counts.
    fn lasts(&self) -> bool {
        self.failed >= OWN_ROUNDS
    }

    /// The sentence that is said then.
    fn describe(voter: &Voter, error: &str) -> String {
        format!(
            "{voter}, where the other nodes look for this one, does not answer ({error}): correct the address in \
             controller.quorum.voters, the same on every node, or this node's CONTROLLER listener"
        )
    }
}

/// What came of asking all nodes.
struct Asked {
    /// What those say that answer, without this one.
    others: BTreeMap<i32, Statement>,
    /// Why this node has not answered itself.
    own_fault: Option<String>,
}

/// The place of a connection among those whose first frame is waited for, until this is dropped.
struct Seat {
    founder: Arc<Founder>,
    id: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.founder.answering.lock().leave(self.id);
    }
}

/// This node while it becomes one of a cluster, and what it answers to others for as long as it lives.
pub(crate) struct Founder {
    quorum: Quorum,
    own: Mutex<Statement>,
    /// Raised at the end.
    is_over: AtomicBool,
    /// Connections whose first frame is waited for. For a newcomer beyond their number goes the one that has waited for
    /// the longest time: of its address, or of all.
    answering: Mutex<Seats<TcpStream>>,
    next_id: AtomicU64,
    /// What connections have to prove.
    gate: Arc<NodeGate>,
    /// Why nodes could not be asked, as it was said last.
    said: Mutex<BTreeMap<i32, String>>,
    /// The place of the cause for which the start waits.
    awaited: Arc<Awaited>,
    /// Where the links of other nodes go, from the time that there are any.
    links: OnceLock<Arc<Links>>,
}

impl Founder {
    /// A node that has not answered another one yet.
    pub(crate) fn new(
        quorum: &Quorum,
        node: i32,
        gate: Arc<NodeGate>,
        awaited: Arc<Awaited>,
    ) -> Arc<Founder> {
        let start = random::uuid().to_string();
        let voters = quorum.ids().collect();
        let own = Mutex::new(Statement { node, start, voters, standing: Standing::Empty });
        let quorum = quorum.clone();
        let answering = Mutex::new(Seats::new(ANSWERED_MAX));
        let (is_over, next_id, links, said) = Default::default();
        Arc::new(Founder { quorum, own, is_over, answering, next_id, gate, said, awaited, links })
    }

    /// Gives the links of other nodes to these from now on.
    pub(crate) fn hand_on_to(&self, links: &Arc<Links>) {
        let _ = self.links.set(links.clone());
    }

    /// What nodes prove to each other.
    pub(crate) fn gate(&self) -> &Arc<NodeGate> {
        &self.gate
    }

    /// Answers others on the controllers' listener.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(crate) fn answer_on(self: &Arc<Self>, listener: TcpListener) -> io::Result<Answering> {
        let own = self.clone();
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let why = "other nodes would not be answered any more";
        let thread = supervised::spawn_vital("controller-accept", why, move || {
            loop {
                let accepted = listener.accept();
                if own.is_over.load(Ordering::Acquire) {
                    return;
                }
                match accepted {
                    Ok((stream, _)) => own.answer_apart(stream),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })?;
        Ok(Answering { founder: self.clone(), address, thread: Some(thread) })
    }

    /// A stranger that says nothing holds up no one else.
    fn answer_apart(self: &Arc<Self>, stream: TcpStream) {
        let (Ok(peer), Ok(control)) = (stream.peer_addr(), stream.try_clone()) else { return };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let now_ms = self.gate.clock().mono_ms();
        let given_up = self.answering.lock().enter(id, peer.ip().to_canonical(), now_ms, control);
        if let Some(other) = given_up {
            // It may have gone already.
            let _ = other.shutdown(Shutdown::Both);
        }
        // Without a thread it is dropped at once.
        let seat = Seat { founder: self.clone(), id };
        let _ = supervised::spawn_apart("founding-answer", move || {
            // What is wrong with the peer was said; of the network nothing is.
            let _ = seat.founder.answer(stream);
        });
    }

    /// What the first frame is decides: a question of founding, or the hello of a link.
    fn answer(&self, stream: TcpStream) -> io::Result<()> {
        set_times(&stream)?;
        let mut arrived = self.gate.accept(stream)?;
        let frame = match read_frame(&mut arrived.channel.reader, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.gate.refused(arrived.peer.ip(), &error.to_string());
                return Err(error);
            }
            read => read?,
        };
        match self.links.get() {
            _ if frame.starts_with(MAGIC) => self.reply(arrived),
            Some(links) if is_hello(&frame) => {
                links.accept(arrived, frame);
                Ok(())
            }
            // Until this node has founded there is nothing to link.
            None if is_hello(&frame) => Ok(()),
            _ => {
                self.gate.refused(arrived.peer.ip(), "it is no other node");
                Ok(())
            }
        }
    }

    fn reply(&self, mut arrived: Arrived) -> io::Result<()> {
        let ip = arrived.peer.ip();
        if let Err(refused) = self.gate.check(&arrived.principal, ip) {
            self.gate.refused(ip, &refused);
            let text = serde_json::to_vec(&Refused { refused }).expect("it is text");
            arrived.channel.refuse(&framed(&text)?);
            return Ok(());
        }
        let text = serde_json::to_vec(&*self.own.lock()).expect("ids are text");
        arrived.channel.writer.write_all(&framed(&text)?)
    }

    /// The cluster's id: the directories', another node's, or a new one.
    ///
    /// # Errors
    /// See [`FoundingError`].
    pub(crate) fn name(
        &self,
        dir: &Path,
        known: Option<String>,
        is_broken_off: &dyn Fn() -> bool,
    ) -> Result<String, FoundingError> {
        if let Some(founding) = Founding::read(&RealStorage, dir)? {
            return Ok(founding.cluster_id);
        }
        let metadata = dir.join("__cluster_metadata-0");
        if RealStorage.exists(&metadata).unwrap_or(false) {
            return Err(FoundingError::OneNode { path: dir.to_owned() });
        }
        match known {
            Some(cluster_id) => Ok(cluster_id),
            None => self.run(is_broken_off, |step| match step {
                Step::MakeId => Some(random::uuid().to_string()),
                Step::Take(cluster_id) => Some(cluster_id),
                _ => None,
            }),
        }
    }

    /// Who founded the cluster, written durably: from here on this node votes.
    ///
    /// # Errors
    /// See [`FoundingError`].
    pub(crate) fn found(
        &self,
        dir: &Path,
        (cluster_id, directory): (&str, String),
        is_broken_off: &dyn Fn() -> bool,
    ) -> Result<Founding, FoundingError> {
        let known = Founding::read(&RealStorage, dir)?;
        let founding = match known {
            Some(founding) => founding,
            None => {
                self.own.lock().standing =
                    Standing::Named { cluster_id: cluster_id.to_owned(), directory: directory.clone() };
                let founding = self.run(is_broken_off, |step| match step {
                    Step::Write(founding) => Some(founding),
                    _ => None,
                })?;
                founding.write(dir)?;
                tracing::info!(cluster_id, nodes = %self.quorum, "the cluster is founded");
                founding
            }
        };
        let own = self.own.lock().clone();
        founding.check(&own, &directory)?;
        self.own.lock().standing = Standing::Founded(founding.clone());
        Ok(founding)
    }

    /// Asks the others, round by round, until there is a step of which `take` makes something.
    fn run<T>(
        &self,
        is_broken_off: &dyn Fn() -> bool,
        take: impl Fn(Step) -> Option<T>,
    ) -> Result<T, FoundingError> {
        let made = self.run_rounds(is_broken_off, take);
        self.awaited.goes_on();
        made
    }

    fn run_rounds<T>(
        &self,
        is_broken_off: &dyn Fn() -> bool,
        take: impl Fn(Step) -> Option<T>,
    ) -> Result<T, FoundingError> {
        let clock = self.gate.clock();
        let mut said = clock.instant();
        let mut is_first = true;
        let mut own_address = OwnAddress::default();
        loop {
            if is_broken_off() {
                return Err(FoundingError::BrokenOff);
            }
            let Asked { others, own_fault } = self.ask_all()?;
            let own = self.own.lock().clone();
            let says_own = own_address.note(own_fault.is_some(), clock.instant());
            let own_fault = self.quorum.voter(own.node).zip(own_fault);
            let own_fault = own_fault.map(|(voter, error)| OwnAddress::describe(voter, &error));
            if let Some(fault) = own_fault.as_ref().filter(|_| says_own) {
                tracing::warn!("{fault}");
            }
            let step = next(&own, &others)?;
            if let Step::Wait { missing } = &step {
                let reason = self.describe_missing(missing);
                if (clock.elapsed(said) >= SAID_EVERY || std::mem::take(&mut is_first)) && !missing.is_empty()
                {
                    said = clock.instant();
                    tracing::info!("{reason}");
                }
                let own_fault = own_fault.filter(|_| own_address.lasts());
                let reason = own_fault.map_or_else(|| reason.clone(), |fault| format!("{fault}; {reason}"));
                self.awaited.waits("waiting for the nodes of a new cluster", reason, clock.mono_ms());
            }
            if let Some(made) = take(step) {
                return Ok(made);
            }
            std::thread::sleep(ROUND);
        }
    }

    /// Says which nodes a new cluster waits for; of those that do not answer, since when and why.
    fn describe_missing(&self, missing: &[i32]) -> String {
        if missing.is_empty() {
            return "all nodes of the new cluster answer, and agree on who has which directory".to_owned();
        }
        let now_ms = self.gate.clock().mono_ms();
        let missing = missing.iter().filter_map(|id| self.quorum.voter(*id));
        let missing: Vec<_> = missing.map(|voter| self.awaited.describe(voter, now_ms)).collect();
        format!(
            "a new cluster waits for all of its nodes; missing: {} (start them, or correct controller.quorum.voters)",
            missing.join(", ")
        )
    }

    /// What all say that answer. This node asks itself, too: another process with its id may be there, or no one.
    fn ask_all(&self) -> Result<Asked, FoundingError> {
        let own = self.own.lock().clone();
        let (mut others, mut own_fault) = (BTreeMap::new(), None);
        for voter in &self.quorum.voters {
            let statement = match self.ask(voter) {
                Ok(statement) => statement,
                Err(error) => {
                    // Of this node itself there is a sentence of its own.
                    if voter.id != own.node {
                        self.awaited.not_reached(voter, &error, self.gate.clock().mono_ms());
                    }
                    self.say(voter, &error);
                    // Where it answers, and does not believe itself, that was said.
                    if voter.id == own.node && error.kind() != io::ErrorKind::InvalidData {
                        own_fault = Some(error.to_string());
                    }
                    continue;
                }
            };
            let address = format!("{}:{}", voter.host, voter.port);
            if statement.node == own.node && statement.start != own.start {
                return Err(FoundingError::SameId { node: own.node, address });
            }
            if statement.node != voter.id {
                let (found, expected) = (statement.node, voter.id);
                return Err(FoundingError::OtherNode { address, found, expected });
            }
            self.awaited.reached(voter.id);
            if statement.node != own.node {
                others.insert(voter.id, statement);
            }
        }
        Ok(Asked { others, own_fault })
    }

    fn ask(&self, voter: &Voter) -> io::Result<Statement> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (voter.host.as_str(), voter.port).to_socket_addrs()? {
            match self.ask_at(voter, address) {
                Ok(statement) => return Ok(statement),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ask_at(&self, voter: &Voter, address: SocketAddr) -> io::Result<Statement> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_TIME)?;
        set_times(&stream)?;
        let mut channel = self.gate.dial(stream, (voter.id, &voter.host), ANSWER_TIME)?;
        channel.writer.write_all(&framed(MAGIC)?)?;
        let answer = read_frame(&mut channel.reader, BYTES_MAX)?;
        if let Ok(Refused { refused }) = serde_json::from_slice(&answer) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, refused));
        }
        serde_json::from_slice(&answer).map_err(io::Error::other)
    }

    /// Says why a node refuses this one, or is refused. Once: what goes on is not said again.
    fn say(&self, voter: &Voter, error: &io::Error) {
        if error.kind() != io::ErrorKind::InvalidData {
            return;
        }
        let text = error.to_string();
        let before = self.said.lock().insert(voter.id, text.clone());
        if before.as_ref() != Some(&text) {
            tracing::error!("{voter} and this node do not believe each other: {text}");
        }
    }
}

/// What a node answers to one that may not act as a node.
#[derive(Debug, Serialize, Deserialize)]
struct Refused {
    refused: String,
}

/// The thread that answers.
pub(crate) struct Answering {
    founder: Arc<Founder>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.founder.is_over.store(true, Ordering::Release);
        // It waits for a connection. Where none can be made it ends with the process.
        let woken = TcpStream::connect_timeout(&self.address, ANSWER_TIME).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn set_times(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.set_write_timeout(Some(ANSWER_TIME))
}

fn framed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    Ok([&length.to_be_bytes(), bytes].concat())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use mainstem_runtime::clock::Clock;
    use mainstem_testkit::Logged;

    fn gate() -> Arc<NodeGate> {
        Arc::new(NodeGate::open_to_all(Clock::start()))
    }

    fn statement(node: i32, standing: Standing) -> Statement {
        Statement { node, start: format!("start {node}"), voters: vec![1, 2, 3], standing }
    }

    fn named(node: i32) -> Standing {
        Standing::Named { cluster_id: "c".into(), directory: format!("d{node}") }
    }

    fn founded() -> Founding {
        let voters = [1, 2, 3].map(|node| (node, format!("d{node}")));
        Founding { cluster_id: "c".into(), voters: voters.into() }
    }

    fn step(own: Statement, others: &[Statement]) -> Result<Step, FoundingError> {
        next(&own, &others.iter().map(|other| (other.node, other.clone())).collect())
    }

    #[test]
    fn the_lowest_makes_the_id_when_all_are_there_and_empty() {
        let empty = |node| statement(node, Standing::Empty);
        assert_eq!(step(empty(1), &[empty(2)]), Ok(Step::Wait { missing: vec![3] }));
        assert_eq!(step(empty(1), &[empty(2), empty(3)]), Ok(Step::MakeId));
        assert_eq!(step(empty(2), &[empty(1), empty(3)]), Ok(Step::Wait { missing: vec![] }));
        let one = statement(1, named(1));
        assert_eq!(step(empty(2), std::slice::from_ref(&one)), Ok(Step::Take("c".into())));
        assert_eq!(step(one.clone(), &[empty(2), empty(3)]), Ok(Step::Wait { missing: vec![] }));
        let two = statement(2, named(2));
        assert_eq!(step(one.clone(), &[two.clone(), empty(3)]), Ok(Step::Wait { missing: vec![] }));
        let three = statement(3, named(3));
        assert_eq!(step(one.clone(), &[two.clone(), three.clone()]), Ok(Step::Write(founded())));
        assert_eq!(
            step(two.clone(), &[one, three]),
            Ok(Step::Wait { missing: vec![] }),
            "the lowest does that"
        );
        let one = statement(1, Standing::Founded(founded()));
        assert_eq!(step(two, &[one]), Ok(Step::Write(founded())), "one that has founded is enough");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let founded = statement(1, Standing::Founded(founded()));
        let wiped = step(statement(2, Standing::Empty), std::slice::from_ref(&founded));
        assert!(matches!(wiped, Err(FoundingError::LostDirectory { node: 2, .. })), "{wiped:?}");
        let mut other = statement(2, Standing::Empty);
        other.voters = vec![1, 2];
        let disagree = step(other, std::slice::from_ref(&founded));
        assert!(matches!(disagree, Err(FoundingError::VotersDisagree { node: 1, .. })), "{disagree:?}");
        let foreign = Standing::Named { cluster_id: "other".into(), directory: "d2".into() };
        let foreign = step(statement(2, foreign), &[founded]);
        assert!(matches!(foreign, Err(FoundingError::OtherCluster { node: 1, .. })), "{foreign:?}");
    }

    fn quorum(ports: &[u16]) -> Quorum {
        let voter = |(id, port): (i32, &u16)| Voter { id, host: "127.0.0.1".into(), port: *port };
        Quorum { voters: (1..).zip(ports).map(voter).collect() }
    }

    fn bound() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("it can be set");
        let port = listener.local_addr().expect("it is bound").port();
        (listener, port)
    }

    #[test]
    fn three_nodes_in_any_order_found_one_cluster_and_know_it_again() {
        let bound: Vec<_> = (0..3).map(|_| bound()).collect();
        let ports: Vec<_> = bound.iter().map(|(_, port)| *port).collect();
        let homes: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let start = |at: usize, directory: &str| {
            let founder =
                Founder::new(&quorum(&ports), i32::try_from(at).expect("small") + 1, gate(), Arc::default());
            let listener = bound[at].0.try_clone().expect("a descriptor");
            let _answering = founder.answer_on(listener).expect("a thread");
            let dir = homes[at].path();
            let cluster_id = founder.name(dir, None, &|| false)?;
            let founding = founder.found(dir, (&cluster_id, directory.to_owned()), &|| false)?;
            // It answers until the others know, as the links would.
            while at == 0 && homes.iter().any(|home| !home.path().join(FILE).exists()) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok::<_, FoundingError>(founding)
        };
        let founded: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> =
                [2, 0, 1].map(|at| scope.spawn(move || start(at, &format!("d{at}")))).into();
            started.into_iter().map(|node| node.join().expect("no panic").expect("it is founded")).collect()
        });
        assert!(founded.windows(2).all(|pair| pair[0] == pair[1]), "{founded:?}");
        assert_eq!(start(1, "d1").as_ref(), Ok(&founded[0]), "without the others");
        assert!(matches!(start(1, "another"), Err(FoundingError::LostDirectory { .. })));
        let alone = check_alone(homes[1].path());
        assert!(matches!(alone, Err(FoundingError::Several { .. })), "{alone:?}");
    }

    #[test]
    fn no_answer_of_its_own_counts_when_it_lasts_and_is_said_now_and_then() {
        let (mut own, begin) = (OwnAddress::default(), Instant::now());
        let mut rounds = |has_failed, count: u32, seconds| {
            let now = begin + Duration::from_secs(seconds);
            (0..count).filter(|_| own.note(has_failed, now)).count()
        };
        assert_eq!(rounds(true, OWN_ROUNDS - 1, 0), 0);
        assert_eq!(rounds(false, 1, 0), 0);
        assert_eq!(rounds(true, OWN_ROUNDS - 1, 0), 0, "it has answered between");
        assert_eq!(rounds(true, 20, 1), 1);
        assert_eq!(rounds(true, 20, 1 + SAID_EVERY.as_secs()), 1);
    }

    /// The others answer, and miss this node: without this it would wait for them in silence.
    #[test]
    fn a_node_that_others_cannot_reach_at_its_address_says_so() {
        let bound: Vec<_> = (0..2).map(|_| bound()).collect();
        // Nothing listens there.
        let ports = [bound[0].1, bound[1].1, 1];
        let others: Vec<_> =
            (0..2).map(|at| Founder::new(&quorum(&ports), at + 1, gate(), Arc::default())).collect();
        let answering: Vec<_> = others
            .iter()
            .zip(bound)
            .map(|(other, (listener, _))| other.answer_on(listener).expect("a thread"))
            .collect();
        let logged = Logged::default();
        let own = Founder::new(&quorum(&ports), 3, gate(), Arc::default());
        let home = tempfile::tempdir().expect("a directory");
        let begun = Instant::now();
        let named = tracing::subscriber::with_default(logged.clone(), || {
            let is_over = || {
                begun.elapsed() > Duration::from_secs(60) || !logged.lines_with("does not answer").is_empty()
            };
            own.name(home.path(), None, &is_over)
        });
        assert_eq!(named, Err(FoundingError::BrokenOff));
        let lines = logged.lines_with("3@127.0.0.1:1, where the other nodes look for this one");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("WARN") && lines[0].contains("controller.quorum.voters"), "{lines:?}");
        drop(answering);
    }

    #[test]
    fn another_process_with_the_same_id_is_found() {
        let (listener, port) = bound();
        let first = Founder::new(&quorum(&[port]), 1, gate(), Arc::default());
        let _answering = first.answer_on(listener).expect("a thread");
        let second = Founder::new(&quorum(&[port]), 1, gate(), Arc::default());
        assert!(matches!(second.ask_all(), Err(FoundingError::SameId { node: 1, .. })));
        let stranger = Founder::new(&quorum(&[port]), 2, gate(), Arc::default());
        assert_eq!(stranger.ask_all().map(|asked| asked.others.len()), Ok(1));
        let mut garbage = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it can be written");
        assert_eq!(garbage.read(&mut [0; 8]).unwrap_or(0), 0, "nothing is answered");
    }
}
