//! Starting and stopping the broker, in order.
//!
//! Start: listen (so that a taken port is reported before anything is touched), answer `/health`, open the log directories, replay the
//! metadata, recover the logs, load the groups, and only then accept. Stop: answer and close, then sync and close the
//! logs, then mark the directories as left in order.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_config::{BrokerConfig, SaslListener, Voter};
use mainstem_log::RecoveryWatch;
use mainstem_log::descriptors::raise_descriptor_limit;
use mainstem_log::dir::{LastStop, OnOffline, measure_fdatasync};
use mainstem_log::storage::RealStorage;
use mainstem_wire::Uuid;
use parking_lot::Mutex;

use crate::api;
use crate::bound::Bound;
use crate::broker::{Broker, Limits};
use crate::data_counters::DataCounters;
use crate::fetch_sessions::FetchSessions;
use crate::forward;
use crate::founding::{self, Answering, Founder, Founding, FoundingError, NodeAddress};
use crate::gate_node::AskBroker;
use crate::health::{Health, Phase};
use crate::housekeeping::Housekeeping;
use crate::join_handler::BrokerJoins;
use crate::loggers::Loggers;
use crate::operator::Operator;
use crate::program_pages;
use crate::reconfigure;
use crate::security::{self, Security};
use crate::service::Apis;
use crate::store_events::ToBroker;
use crate::telemetry::ClientTelemetry;
use crate::turns::{Classes, OneAtATime};
use mainstem_controller::FirstController;
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_links::awaited::Awaited;
use mainstem_links::ticker::Ticker;
use mainstem_links::{
    AbsenceLimits, CATCH_UP_RATE, LinkIdentity, Links, LinksOptions, NodeGate, Peer, SilenceLimits,
};
use mainstem_listener_security::ListenerSecurityError;
use mainstem_net::answers::{ANSWER_BYTES_MAX, AnswerMemory};
use mainstem_net::buffers::RequestMemory;
use mainstem_net::cold_reads::ColdReads;
use mainstem_net::counters::Counters;
use mainstem_net::event_loop::EventLoops;
use mainstem_net::listener::{self, ConnectionCounts};
use mainstem_net::unauthenticated::UnauthenticatedLimiter;
use mainstem_net::{Net, Service};
use mainstem_node::answers::Answers;
use mainstem_node::assembly::{NodeParts, NodePeers};
use mainstem_node::controller::{ControllerError, bootstrap_users};
use mainstem_node::local::Host;
use mainstem_node::node::Node;
use mainstem_runtime::alarm::Alarm;
use mainstem_runtime::clock::{Clock, ManualClock, machine_now, machine_wall_ms};
use mainstem_runtime::heap;
use mainstem_runtime::random;
use mainstem_runtime::supervised::{self, Panics};
use mainstem_store::attached::{AttachError, AttachOptions, Attached, Watcher};
use mainstem_store::cleaner::Cleaners;
use mainstem_store::dir_failures::{DirFailures, OnFatal};
use mainstem_store::log_dirs::{LogDirs, LogDirsError, LogDirsOptions};
use mainstem_store::machine::Machine;
use mainstem_store::moves;
use mainstem_store::opening::OpeningProgress;

/// The time for answers and for closing connections in a stop.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// The part of it for offset commits and assignments that are on their way to the disk.
const COMMIT_TIME: Duration = Duration::from_millis(500);

/// The length of an answer has to fit the 31 bits of a frame, with space for all but the records.
const FETCH_BYTES_MAX: usize = (1 << 31) - (256 << 20);

/// The most bytes of frames above 64 KiB of all clients that are not authenticated.
const UNAUTHENTICATED_BYTES_MAX: u64 = 16 << 20;

/// Advice for an address that cannot be listened on.
pub(crate) fn listen_advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "stop what uses it, or choose another address",
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this host has it: choose an address that one has, or 0.0.0.0 for all"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one, or give it that"
        }
        // A failed name lookup has no error number of the system.
        _ if source.raw_os_error().is_none() => "have the name resolved on this host, or choose an address",
        _ => "choose another address",
    }
}

/// The reason why the broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address} ({listener}): {source}; {} (--listen HOST:PORT, listeners in the configuration)",
        listen_advice(source)
    )]
    Listen {
        /// The listener's name.
        listener: String,
        /// The address, as configured.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A log directory cannot be used.
    #[error(transparent)]
    Directories(#[from] LogDirsError),
    /// The metadata cannot be used.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// A queue cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A listener could not authenticate its clients.
    #[error(transparent)]
    Security(#[from] ListenerSecurityError),
    /// The nodes do not become a cluster.
    #[error(transparent)]
    Founding(#[from] FoundingError),
    /// The configuration needs something that does not exist yet.
    #[error("{0}")]
    Unsupported(String),
    /// It was asked to stop before it served.
    #[error("the start was interrupted; nothing is lost, and the next start begins again")]
    BrokenOff,
    /// The system refused a thread, an epoll instance or the like.
    #[error("the system refuses what the broker needs: {0}")]
    System(#[from] io::Error),
}

/// Facts about a broker that is ready.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Addresses of listeners, by name.
    pub listeners: Vec<(String, SocketAddr)>,
    /// The address of `/metrics` and `/health`, if any.
    pub http: Option<SocketAddr>,
    /// The cluster's id.
    pub cluster_id: String,
    /// True if the cluster began with this start: no directory had one.
    pub is_new_cluster: bool,
    /// The state in which the first log directory was left.
    pub last_stop: LastStop,
    /// Served embedded queues, by topic.
    pub attached: Vec<(String, PathBuf)>,
    /// The number of served topics.
    pub topics: usize,
    /// The number of served partitions.
    pub partitions: usize,
    /// True if acks=all waits for the disk (`write.caching.default` is false).
    pub acks_all_waits_for_disk: bool,
    /// The time of one fdatasync in the first log directory.
    pub fdatasync: Option<Duration>,
    /// `node.id`.
    pub node: i32,
    /// The nodes of the cluster, `ID@HOST:PORT` each; none without others.
    pub voters: Vec<String>,
}

/// Options of a start, beside its configuration.
#[derive(Debug, Default, Clone)]
pub struct StartOptions {
    /// Watches the recovery of the logs, and interrupts the start.
    pub recovery: Arc<RecoveryWatch>,
    /// The id of the cluster that must be there. Without it empty directories become a new one.
    pub expect_cluster: Option<String>,
    /// Starts although the metadata has access control entries, SCRAM credentials or delegation tokens that this
    /// configuration does not enforce.
    pub accept_unprotected: bool,
    /// The machine of the log directories, if not this one.
    pub machine: Option<Machine>,
    /// The clock of a test, in place of the machine's.
    pub clock: Option<ManualClock>,
}

/// A running broker.
pub struct Server {
    broker: Arc<Broker>,
    housekeeping: Housekeeping,
    dir_failures: DirFailures,
    cleaners: Cleaners,
    watcher: Watcher,
    ready: Ready,
    /// Ends last.
    operator: Option<Operator>,
    others: Option<Others>,
}

/// The connection of this node to others.
struct Others {
    ticker: Ticker,
    links: Arc<Links>,
    _answering: Answering,
}

/// A node that belongs to a cluster, before it has a broker.
struct Founded {
    links: Arc<Links>,
    gate: Arc<NodeGate>,
    answering: Answering,
    founder: Arc<Founder>,
    /// All nodes, as they were known last.
    known: Vec<Voter>,
}

impl Server {
    /// Starts a broker and returns when it accepts connections. Clients see and change the levels of `loggers`. A
    /// start may take long if logs have to be checked; meanwhile `/health` reports the progress.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left behind but what is in the directories.
    pub fn start(
        config: BrokerConfig,
        loggers: Loggers,
        options: &StartOptions,
    ) -> Result<Server, StartError> {
        let started = Server::start_up(config, loggers, options);
        // Any error of an interrupted start counts as the interruption.
        started.map_err(|error| if options.recovery.is_broken_off() { StartError::BrokenOff } else { error })
    }

    fn start_up(
        config: BrokerConfig,
        loggers: Loggers,
        options: &StartOptions,
    ) -> Result<Server, StartError> {
        heap::give_back_large_buffers_at_once();
        let clock = options.clock.as_ref().map_or_else(Clock::start, Clock::held_by);
        let descriptors = raise_descriptor_limit();
        let mut security = Security::new(&config, &clock)?;
        let mut bound = Bound::new(&config)?;
        let awaited = Arc::<Awaited>::default();
        let alarm = Arc::new(Alarm::default());
        let panics = Arc::new(Panics::new(alarm.clone()));
        let opening = Arc::new(OpeningProgress::new(options.recovery.clone()));
        let health = Arc::new(Health::new(panics.clone(), opening.clone(), awaited, clock.clone()));
        let operator = bound
            .http
            .take()
            .map(|socket| Operator::start(socket, health.clone(), security.http().cloned()))
            .transpose()?;
        let ring = alarm.clone();
        let on_offline: OnOffline = Arc::new(move |_| ring.ring());
        let founder = Server::begin_to_found(&config, (&clock, &mut security), &mut bound, &health)?;
        let cluster_id = founder.as_ref().map(|(_, _, cluster_id)| cluster_id.as_str());
        let dirs_options = LogDirsOptions {
            descriptors,
            mono_ms: clock.mono_ms(),
            on_offline,
            recovery: options.recovery.clone(),
            expect_cluster: options.expect_cluster.clone(),
            machine: options.machine.clone(),
        };
        let dirs = LogDirs::open(&config, &dirs_options, cluster_id)?;
        let founded = match founder {
            Some((founder, answering, _)) => {
                Some(Server::found(&config, &clock, &founder, answering, &dirs, &health)?)
            }
            None => None,
        };
        if config.quorum.is_some() && !config.attach.is_empty() {
            let why = "an embedded queue cannot be attached to a node of several (mainstem.attach with other nodes in \
                       controller.quorum.voters); serve it by a broker of its own";
            return Err(StartError::Unsupported(why.to_owned()));
        }
        let attached = attach(&config, &dirs, &clock)?;
        let event_loops = EventLoops::start(
            reconfigure::loops_for(&config),
            config.network.idle_poll,
            security.limits_unauthenticated(),
        )?;
        let parts = Parts {
            clock,
            loggers,
            dirs,
            attached,
            dir_alarm: alarm,
            panics,
            opening,
            event_loops,
            descriptors,
            health,
            security,
            accept_unprotected: options.accept_unprotected,
            links: founded.as_ref().map(|founded| (founded.links.clone(), founded.known.clone())),
        };
        let broker = assemble(config, parts, &bound)?;
        broker.store.set_events(ToBroker::of(&broker));
        let host: Arc<dyn Host> = broker.clone();
        broker.local.set_host(Arc::downgrade(&host));
        if let Some(operator) = &operator {
            operator.tell_of(&broker);
        }
        if let Some(authorization) = broker.security.authorization() {
            authorization.load(&broker.controller.image());
        }
        if let Some(founded) = &founded {
            founded.gate.ask(AskBroker::of(&broker));
            founded.founder.let_join_by(BrokerJoins::of(&broker));
        }
        broker.health.enter(Phase::Recovering);
        let others = founded.map(|founded| Others::start(&broker, founded)).transpose()?;
        let interrupted = match broker.node.start() {
            Ok(interrupted) => interrupted,
            Err(error) => {
                broker.net.event_loops.stop();
                broker.net.event_loops.join();
                return Err(error.into());
            }
        };
        for dir in broker.store.dirs.all().filter(|dir| dir.failure().is_none()) {
            if let Err(error) = dir.recovered() {
                dir.fail(&error);
            }
        }
        let dir_failures = DirFailures::start(broker.store.clone())?;
        moves::resume(&broker.store, interrupted);
        let housekeeping = Housekeeping::start(broker.clone())?;
        let cleaners = Cleaners::start(&broker.store)?;
        let watcher = Watcher::start(&broker.store.attached)?;
        if let Some(warning) = nobody(&broker.config(), broker.controller.image().has_scram_users()) {
            tracing::warn!("{warning}");
        }
        let ready = ready(&broker, &bound);
        // Frees the memory that the start has needed.
        heap::give_back();
        program_pages::give_back();
        accept(&broker, bound);
        broker.health.enter(Phase::Serving);
        Ok(Server { broker, housekeeping, dir_failures, cleaners, watcher, ready, operator, others })
    }

    /// Answers other nodes from now on, and finds the cluster's id with them. `None` without other nodes.
    fn begin_to_found(
        config: &BrokerConfig,
        (clock, security): (&Clock, &mut Security),
        bound: &mut Bound,
        health: &Health,
    ) -> Result<Option<(Arc<Founder>, Answering, String)>, StartError> {
        let (dir, known) = LogDirs::look(config)?;
        let (Some(quorum), Some(listener)) = (&config.quorum, bound.controller.take()) else {
            founding::check_alone(&dir)?;
            return Ok(None);
        };
        let first = bootstrap_users(&RealStorage, &dir)
            .map_err(|error| ListenerSecurityError::FirstUsers(error.to_string()))?;
        let gate = NodeGate::new(config, first, security::rules(config)?, clock.clone())?;
        security.set_of_nodes(gate.as_ref().and_then(|gate| gate.tls().cloned()));
        let gate = gate.unwrap_or_else(|| Arc::new(NodeGate::open_to_all(clock.clone())));
        let protocol = config.listeners.controller.as_ref().map_or(0, |endpoint| endpoint.protocol.code());
        let founder = Founder::new(quorum, config.node_id, gate, health.awaited().clone(), protocol);
        let answering = founder.answer_on(listener)?;
        let cluster_id = founder.name(&dir, known, &|| health.is_broken_off())?;
        Ok(Some((founder, answering, cluster_id)))
    }

    /// Waits until the cluster is founded, and links this node to the others.
    fn found(
        config: &BrokerConfig,
        clock: &Clock,
        founder: &Arc<Founder>,
        answering: Answering,
        dirs: &LogDirs,
        health: &Health,
    ) -> Result<Founded, StartError> {
        let metadata = dirs.metadata();
        let directory = Uuid(metadata.directory_id()).to_string();
        let cluster_id = metadata.cluster_id().to_owned();
        let founding =
            founder.found(metadata.path(), (&cluster_id, directory), &|| health.is_broken_off())?;
        let identity = LinkIdentity {
            node: config.node_id,
            generation: u64::try_from(machine_wall_ms()).unwrap_or(0),
            cluster_id,
        };
        let known = known_nodes(config, &founding);
        let peers = known.iter().map(|node| Peer { node: node.id, host: node.host.clone(), port: node.port });
        let options = LinksOptions {
            clock: clock.clone(),
            replica_lag_max_ms: config.replication.lag_time_max_ms,
            catch_up_rate: CATCH_UP_RATE,
            absence: AbsenceLimits::default(),
            silence: SilenceLimits::default(),
            awaited: health.awaited().clone(),
        };
        let links = Links::start(identity, peers.collect(), options, founder.gate().clone())?;
        founder.hand_on_to(&links);
        Ok(Founded { links, gate: founder.gate().clone(), answering, founder: founder.clone(), known })
    }

    #[cfg(test)]
    pub(crate) fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// The facts found at the start.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Asserts invariants of the metadata and of both coordinators between any two requests. It checks all of them,
    /// under their locks: simulations call it.
    ///
    /// If an invariant does not hold.
    pub fn check(&self) {
        self.broker.controller.check();
        self.broker.groups.look(|groups| groups.check());
        self.broker.transactions.look(|transactions| transactions.check());
    }

    /// Calls the receiver when the broker cannot continue, because its metadata's log directory or all of them have
    /// failed: with the reason, and what to do. Then stop it with `hurry`.
    pub fn on_fatal(&self, callback: OnFatal) {
        self.broker.store.fatal.on_fatal(callback);
    }

    /// Stops: clients are answered and closed within a second, then the logs are synced and closed; `progress` gets
    /// (done, of all). When `hurry` is set the syncing is skipped, and the next start checks the logs. Returns true
    /// if the directories were left in order.
    pub fn stop(self, hurry: &AtomicBool, progress: &mut dyn FnMut(usize, usize)) -> bool {
        let broker = self.broker;
        broker.health.enter(Phase::Stopping);
        if let Some(cluster) =
            broker.cluster.as_ref().filter(|_| broker.config().replication.controlled_shutdown)
        {
            cluster.hand_over();
        }
        broker.stopping.raise();
        wait_for_connections(&broker, COMMIT_TIME);
        // Clients that wait in a group are answered to look for another coordinator.
        broker.node.unload_coordinators();
        wait_for_connections(&broker, DRAIN_TIME - COMMIT_TIME);
        if !broker.controller.end_publishing(hurry) {
            // A log may still be opened that is closed no more: the next start has to check it.
            hurry.store(true, Ordering::Release);
        }
        broker.net.event_loops.stop();
        broker.net.event_loops.join();
        self.cleaners.stop(&broker.store);
        self.housekeeping.stop();
        self.watcher.stop();
        broker.store.moves.stop();
        broker.store.members.stop();
        broker.store.copies.stop();
        self.dir_failures.stop();
        if let Some(others) = self.others {
            others.stop(&broker);
        }
        let in_order = broker.store.close(broker.controller.log(), hurry, progress);
        // The queues that a hurried stop has left open.
        broker.store.attached.iter().for_each(|queue| queue.stop());
        drop(self.operator);
        broker.store.dirs.all().for_each(|dir| dir.unlock());
        in_order
    }
}

impl Others {
    fn start(broker: &Arc<Broker>, founded: Founded) -> Result<Others, StartError> {
        let Founded { links, answering, .. } = founded;
        if let Some(cluster) = &broker.cluster {
            cluster.start()?;
        }
        let of = Arc::downgrade(broker);
        let serve =
            move |who: &_, body: &[u8]| forward::serve_here(&of.upgrade()?, api::in_background, who, body);
        links.serve_calls(Answers::new(&broker.node, Box::new(serve)));
        let ticker = Ticker::start(links.clone())?;
        Ok(Others { ticker, links, _answering: answering })
    }

    fn stop(self, broker: &Arc<Broker>) {
        if let Some(cluster) = &broker.cluster {
            cluster.stop();
        }
        broker.controller.end_applying();
        self.ticker.stop();
        self.links.stop();
    }
}

/// The warning if all clients have to log in by a password of the metadata, and these have none. In a cluster they
/// may have some that this node does not know yet.
fn nobody(config: &BrokerConfig, has_users: bool) -> Option<&'static str> {
    let is_scram_alone = |sasl: &Option<SaslListener>| {
        sasl.as_ref().is_some_and(|sasl| sasl.mechanisms.iter().all(|one| one.name.starts_with("SCRAM")))
    };
    let asks_all = config.sasl_listeners.iter().all(is_scram_alone);
    (asks_all && !has_users && config.quorum.is_none()).then_some(
        "every listener asks for a user and a password (SCRAM), and there is no user: nobody can log in. Make the first one: \
         `mainstem security init DIR` makes a directory with an administrator, `kafka-storage.sh format --add-scram` one for this \
         configuration; or start once with a listener PLAINTEXT://127.0.0.1:9094 (and User:ANONYMOUS in super.users where there is \
         an authorizer), and use `mainstem user create NAME` there",
    )
}

/// Parts of a broker that exist before it.
struct Parts {
    clock: Clock,
    loggers: Loggers,
    dirs: LogDirs,
    attached: Vec<Arc<Attached>>,
    dir_alarm: Arc<Alarm>,
    panics: Arc<Panics>,
    opening: Arc<OpeningProgress>,
    event_loops: Arc<EventLoops>,
    descriptors: u64,
    health: Arc<Health>,
    security: Security,
    accept_unprotected: bool,
    /// The links to other nodes, and all nodes as they were known last.
    links: Option<(Arc<Links>, Vec<Voter>)>,
}

/// The nodes of a cluster by the record of the last start, and by configuration: what that names may have moved since.
fn known_nodes(config: &BrokerConfig, founding: &Founding) -> Vec<Voter> {
    let configured = config.quorum.iter().flat_map(|quorum| &quorum.voters).cloned();
    let noted = founding.nodes.iter().map(NodeAddress::voter);
    let nodes: BTreeMap<_, _> = noted.chain(configured).map(|node| (node.id, node)).collect();
    nodes.into_values().collect()
}

/// The nodes that have founded the cluster; none where this one has joined it.
fn first_nodes(config: &BrokerConfig, founding: &Founding) -> Vec<FirstController> {
    let protocol = config.listeners.controller.as_ref().map_or(0, |endpoint| endpoint.protocol.code());
    let directories = founding.directories();
    let voters = config.quorum.iter().flat_map(|quorum| &quorum.voters);
    let first = voters.map(|voter| FirstController {
        node: voter.id,
        host: voter.host.clone(),
        port: voter.port,
        security_protocol: protocol,
        directory: directories.get(&voter.id).copied().unwrap_or_default(),
    });
    first.collect()
}

fn assemble(config: BrokerConfig, parts: Parts, bound: &Bound) -> Result<Arc<Broker>, StartError> {
    let Parts {
        clock,
        loggers,
        dirs,
        attached,
        dir_alarm,
        panics,
        opening,
        event_loops,
        descriptors,
        health,
        security,
        accept_unprotected,
        links,
    } = parts;
    let peers = match links {
        Some((links, known)) => {
            let metadata = dirs.metadata();
            let founding = Founding::read(&**metadata.storage(), metadata.path())?;
            let founding = founding.expect("a node that has links has written it");
            let joined = founding.joined.as_ref();
            let (incarnation, joined_at_level) =
                joined.map_or((1, 0), |joined| (joined.incarnation, joined.level));
            let (mainstem_version, first_mainstem_version) =
                (MAINSTEM_VERSION.max, founding.mainstem_version);
            let first = first_nodes(&config, &founding);
            Some(NodePeers {
                links,
                known,
                first,
                incarnation,
                joined_at_level,
                mainstem_version,
                first_mainstem_version,
            })
        }
        None => None,
    };
    let network = config.network.clone();
    let (authentication, advertised) = (config.authentication.clone(), bound.advertised(&config));
    let limits = Limits {
        fetch_bytes_max: network.fetch_max_bytes.min(FETCH_BYTES_MAX),
        describe_partitions_max: network.describe_partitions_max,
    };
    let node = Node::assemble(NodeParts {
        config,
        advertised,
        clock: clock.clone(),
        dirs,
        attached,
        dir_alarm,
        panics: panics.clone(),
        opening,
        authorization: security.authorization().cloned(),
        accept_unprotected,
        peers,
    })?;
    let local = node.local.clone();
    let (store, current, stopping) = (local.store.clone(), local.config.clone(), local.stopping.clone());
    let net = Arc::new(Net {
        clock: clock.clone(),
        config: current.clone(),
        limits: mainstem_net::Limits {
            request_bytes_max: network.request_max_bytes,
            connection_idle: Duration::from_millis(network.connections_max_idle_ms.unwrap_or(u64::MAX / 4)),
        },
        stopping: stopping.clone(),
        panics: panics.clone(),
        counters: Counters::default(),
        event_loops,
        // Connections may take up to half of the descriptors, whatever the configuration says.
        connections: ConnectionCounts::new(usize::try_from(descriptors / 2).unwrap_or(usize::MAX)),
        unauthenticated: UnauthenticatedLimiter::new(authentication.unauthenticated_max),
        unauthenticated_memory: RequestMemory::new(UNAUTHENTICATED_BYTES_MAX),
        request_memory: RequestMemory::new(network.queued_max_request_bytes.unwrap_or(u64::MAX)),
        answers: AnswerMemory::new(ANSWER_BYTES_MAX, clock.clone()),
        cold_reads: ColdReads::new(store.dirs.all().cloned().collect()),
        quotas: local.quotas.clone(),
    });
    Ok(Arc::new(Broker {
        served: || api::served().collect(),
        limits,
        loggers,
        counters: DataCounters::default(),
        store,
        panics,
        controller: node.controller.clone(),
        cluster: node.cluster.clone(),
        groups: local.groups.clone(),
        transactions: local.transactions.clone(),
        fetch_sessions: Mutex::new(FetchSessions::new(network.fetch_session_slots, random::number)),
        security,
        quotas: local.quotas.clone(),
        telemetry: ClientTelemetry::new(network.telemetry_max_bytes, clock.clone()),
        background: Classes::new(),
        pattern_matching: OneAtATime::new(),
        net,
        stopping,
        health,
        config: current,
        clock,
        local,
        node,
    }))
}

/// Opens the queues that become topics.
fn attach(config: &BrokerConfig, dirs: &LogDirs, clock: &Clock) -> Result<Vec<Arc<Attached>>, AttachError> {
    let producer_expiration_ms = u64::try_from(config.logs.producer_id_expiration_ms).unwrap_or(0);
    let open = |(topic, directory): &(String, PathBuf)| {
        let budget = dirs.metadata().producer_budget().clone();
        let options = AttachOptions { budget, producer_expiration_ms, clock: clock.clone() };
        Attached::open(topic, directory, options)
    };
    config.attach.iter().map(open).collect()
}

fn ready(broker: &Broker, bound: &Bound) -> Ready {
    let address = |socket: &std::net::TcpListener| socket.local_addr().ok();
    let listeners = bound
        .listeners
        .iter()
        .filter_map(|(endpoint, socket)| Some((endpoint.listener.clone(), address(socket)?)));
    let topics = broker.store.topics.all();
    let values =
        mainstem_store::settings::TopicSettings::resolve(&Default::default(), &broker.config(), (1, false));
    let first = &broker.store.dirs.data()[0];
    Ready {
        listeners: listeners.collect(),
        http: bound.http_address,
        cluster_id: broker.local.cluster_id.clone(),
        is_new_cluster: broker.store.dirs.is_new_cluster(),
        last_stop: first.last_stop(),
        attached: broker.config().attach.clone(),
        topics: topics.len(),
        partitions: topics.iter().map(|topic| topic.partitions.len()).sum(),
        acks_all_waits_for_disk: !values.write_caching,
        fdatasync: measure_fdatasync(&**first.storage(), first.path()).ok(),
        node: broker.local.id,
        voters: broker
            .cluster
            .iter()
            .flat_map(|cluster| cluster.nodes().iter().map(ToString::to_string).collect::<Vec<_>>())
            .collect(),
    }
}

fn accept(broker: &Arc<Broker>, bound: Bound) {
    let first = broker.net.event_loops.first();
    let service: Arc<dyn Service> = Arc::new(Apis(broker.clone()));
    for (index, (_, socket)) in bound.listeners.into_iter().enumerate() {
        let begin = listener::sessions(&*service, index);
        let accept = listener::accept((broker.net.clone(), service.clone()), index, socket, begin);
        first.spawn(supervised::vital("clients would not be accepted any more", accept));
    }
    first.spawn(supervised::vital(
        "the time-outs of groups would not be kept any more",
        broker.groups.clone().run_timer(broker.stopping.clone()),
    ));
    first.spawn(supervised::vital(
        "the time-outs of transactions would not be kept any more",
        broker.transactions.clone().run_timer(broker.stopping.clone()),
    ));
}

/// Waits until all connections are closed, or the time has passed.
fn wait_for_connections(broker: &Broker, time: Duration) {
    let deadline = machine_now() + time;
    while broker.net.connections.open() > 0 && machine_now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use mainstem_config::{Properties, Sources};

    use super::*;

    fn config(lines: &str) -> BrokerConfig {
        let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
        BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() }).expect("it is valid")
    }

    #[test]
    fn that_nobody_can_log_in_is_said() {
        const SCRAM: &str = "listeners=SASL_PLAINTEXT://127.0.0.1:1\nsasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256\n\
                             inter.broker.listener.name=SASL_PLAINTEXT\n";
        let plain = format!(
            "{SCRAM}sasl.enabled.mechanisms=PLAIN\nlistener.name.sasl_plaintext.plain.sasl.jaas.config=a.B required user_a=b;"
        );
        let beside = format!("{SCRAM}listeners=SASL_PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2\n");
        assert!(
            nobody(&config(SCRAM), false).is_some_and(|warning| warning.contains("mainstem security init"))
        );
        assert_eq!(nobody(&config(SCRAM), true), None);
        for others_log_in in ["", &plain, &beside] {
            assert_eq!(nobody(&config(others_log_in), false), None, "{others_log_in}");
        }
    }
}
