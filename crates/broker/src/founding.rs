//! Nodes with empty directories become a cluster: they agree on its id, and on the directory of each node.
//!
//! A node without a cluster's id asks all of `controller.quorum.voters`. It joins a cluster that another one has. If
//! all say that they have none, and name the same nodes, the one with the lowest id makes the cluster's id. When all
//! others have taken that id, it writes the directory of each node ([`Founding`]), and the others write the same.
//! Only then does a node vote. With one node missing nothing is founded.
//!
//! ```text
//!  Empty ──all empty (lowest id), or another has an id──▶ Named ──all named (lowest id), or another has founded──▶ Founded
//! ```

mod agreement;
mod answering;
mod error;
mod joining;
mod own_address;
mod record;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainstem_config::{Quorum, Voter};
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_log::storage::{RealStorage, Storage};
use parking_lot::Mutex;

use agreement::{Stage, Statement, Step, next};
pub(crate) use answering::Answering;
use answering::{Refused, framed, set_times};
pub use error::FoundingError;
pub(crate) use joining::{JoinAnswer, JoinHandler, JoinRequest};
use mainstem_links::awaited::Awaited;
use mainstem_links::{Links, NodeGate, read_frame};
use mainstem_net::unauthenticated::Permits;
use mainstem_runtime::random;
use own_address::OwnAddress;
pub(crate) use record::{Founding, NodeAddress, check_alone, note_nodes};

/// The most bytes of a statement, and of the record of a founding.
const BYTES_MAX: usize = 64 << 10;

/// The beginning of the first frame of a connection that asks about a founding.
const MAGIC: &[u8; 4] = b"MSF1";

/// The longest wait for the answer of a node.
const ANSWER_TIME: Duration = Duration::from_millis(1_000);

/// The pause between two rounds of questions.
const ROUND: Duration = Duration::from_millis(100);

/// The interval between two reports of missing nodes.
const SAID_EVERY: Duration = Duration::from_secs(5);

/// The most connections that are answered at the same time.
const ANSWERED_MAX: usize = 128;

/// The outcome of asking all nodes.
struct Asked {
    /// The statements of the nodes that answered, without this one.
    others: BTreeMap<i32, Statement>,
    /// The reason for which this node has not answered itself.
    own_fault: Option<String>,
}

/// This node while it becomes one of a cluster, and its answers to others for as long as it lives.
pub(crate) struct Founder {
    quorum: Quorum,
    own: Mutex<Statement>,
    /// True at the end.
    is_over: AtomicBool,
    /// Connections whose first frame has not arrived. Beyond their maximum, a new one replaces the one that has
    /// waited for the longest time: of its address, or of all.
    answering: Mutex<Permits<TcpStream>>,
    next_id: AtomicU64,
    /// The authentication of connections between nodes.
    gate: Arc<NodeGate>,
    /// The reasons why nodes could not be asked, as last reported.
    said: Mutex<BTreeMap<i32, String>>,
    /// The cause for which the start waits.
    awaited: Arc<Awaited>,
    /// The receiver of other nodes' links, once there is one.
    links: OnceLock<Arc<Links>>,
    /// The node that lets others join, once there is one.
    join_handler: OnceLock<Arc<dyn JoinHandler>>,
    /// The code of the protocol of this node's listener for controllers.
    security_protocol: i16,
}

impl Founder {
    /// A node that has not answered other nodes yet.
    pub(crate) fn new(
        quorum: &Quorum,
        node: i32,
        gate: Arc<NodeGate>,
        awaited: Arc<Awaited>,
        security_protocol: i16,
    ) -> Arc<Founder> {
        let start = random::uuid().to_string();
        let voters = quorum.ids().collect();
        let (stage, mainstem_version) = (Stage::Empty, MAINSTEM_VERSION.max);
        let own = Mutex::new(Statement { node, start, voters, stage, mainstem_version });
        let quorum = quorum.clone();
        let answering = Mutex::new(Permits::new(ANSWERED_MAX));
        let (is_over, next_id, links, said) = Default::default();
        let join_handler = OnceLock::new();
        Arc::new(Founder {
            quorum,
            own,
            is_over,
            answering,
            next_id,
            gate,
            said,
            awaited,
            links,
            join_handler,
            security_protocol,
        })
    }

    /// Has others join by this node from now on.
    pub(crate) fn let_join_by(&self, handler: Arc<dyn JoinHandler>) {
        let _ = self.join_handler.set(handler);
    }

    /// Gives links of other nodes to these from now on.
    pub(crate) fn hand_on_to(&self, links: &Arc<Links>) {
        let _ = self.links.set(links.clone());
    }

    /// The authentication between nodes.
    pub(crate) fn gate(&self) -> &Arc<NodeGate> {
        &self.gate
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
        if let Some(joining) = &self.quorum.joining {
            return self.find_cluster(joining, known, is_broken_off);
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

    /// Returns the record of the cluster's founding, written durably: from here on this node votes.
    ///
    /// # Errors
    /// See [`FoundingError`].
    pub(crate) fn found(
        &self,
        dir: &Path,
        (cluster_id, directory): (&str, String),
        is_broken_off: &dyn Fn() -> bool,
    ) -> Result<Founding, FoundingError> {
        if let Some(joining) = &self.quorum.joining {
            return self.join(dir, joining, (cluster_id, directory), is_broken_off);
        }
        let known = Founding::read(&RealStorage, dir)?;
        let founding = match known {
            Some(founding) => founding,
            None => {
                self.own.lock().stage =
                    Stage::Named { cluster_id: cluster_id.to_owned(), directory: directory.clone() };
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
        self.own.lock().stage = Stage::Founded(founding.clone());
        Ok(founding)
    }

    /// Asks the others, round by round, until `take` returns a result for a step.
    fn run<T>(
        &self,
        is_broken_off: &dyn Fn() -> bool,
        take: impl Fn(Step) -> Option<T>,
    ) -> Result<T, FoundingError> {
        let made = self.run_rounds(is_broken_off, take);
        self.awaited.clear();
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

    /// The message about nodes that a new cluster waits for; for those that do not answer, since when and why.
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

    /// Asks all nodes, this one included: at its address another process with its id may answer, or none.
    fn ask_all(&self) -> Result<Asked, FoundingError> {
        let own = self.own.lock().clone();
        let (mut others, mut own_fault) = (BTreeMap::new(), None);
        for voter in &self.quorum.voters {
            let statement = match self.ask(voter) {
                Ok(statement) => statement,
                Err(error) => {
                    // This node itself has a sentence of its own.
                    if voter.id != own.node {
                        self.awaited.not_reached(voter, &error, self.gate.clock().mono_ms());
                    }
                    self.say(voter, &error);
                    // A node that answers and refuses itself was reported.
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

    /// Reports why a node refuses this one, or is refused. A reason that lasts is reported once.
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;
    use mainstem_runtime::clock::Clock;
    use mainstem_testkit::Logged;

    fn gate() -> Arc<NodeGate> {
        Arc::new(NodeGate::open_to_all(Clock::start()))
    }

    fn quorum(ports: &[u16]) -> Quorum {
        let voter = |(id, port): (i32, &u16)| Voter { id, host: "127.0.0.1".into(), port: *port };
        Quorum { voters: (1..).zip(ports).map(voter).collect(), joining: None }
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
            let founder = Founder::new(
                &quorum(&ports),
                i32::try_from(at).expect("small") + 1,
                gate(),
                Arc::default(),
                0,
            );
            let listener = bound[at].0.try_clone().expect("a descriptor");
            let _answering = founder.answer_on(listener).expect("a thread");
            let dir = homes[at].path();
            let cluster_id = founder.name(dir, None, &|| false)?;
            let founding = founder.found(dir, (&cluster_id, directory.to_owned()), &|| false)?;
            // It answers until the others know, as the links would.
            while at == 0 && homes.iter().any(|home| !home.path().join(record::FILE).exists()) {
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

    /// The others answer, and miss this node. Without this message it would wait for them in silence.
    #[test]
    fn a_node_that_others_cannot_reach_at_its_address_says_so() {
        let bound: Vec<_> = (0..2).map(|_| bound()).collect();
        // Nothing listens there.
        let ports = [bound[0].1, bound[1].1, 1];
        let others: Vec<_> =
            (0..2).map(|at| Founder::new(&quorum(&ports), at + 1, gate(), Arc::default(), 0)).collect();
        let answering: Vec<_> = others
            .iter()
            .zip(bound)
            .map(|(other, (listener, _))| other.answer_on(listener).expect("a thread"))
            .collect();
        let logged = Logged::default();
        let own = Founder::new(&quorum(&ports), 3, gate(), Arc::default(), 0);
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
        let first = Founder::new(&quorum(&[port]), 1, gate(), Arc::default(), 0);
        let _answering = first.answer_on(listener).expect("a thread");
        let second = Founder::new(&quorum(&[port]), 1, gate(), Arc::default(), 0);
        assert!(matches!(second.ask_all(), Err(FoundingError::SameId { node: 1, .. })));
        let other = Founder::new(&quorum(&[port]), 2, gate(), Arc::default(), 0);
        assert_eq!(other.ask_all().map(|asked| asked.others.len()), Ok(1));
        let mut garbage = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it can be written");
        assert_eq!(garbage.read(&mut [0; 8]).unwrap_or(0), 0, "nothing is answered");
    }
}
