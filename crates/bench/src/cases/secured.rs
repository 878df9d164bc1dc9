//! The costs of security beyond the bytes that are encrypted: handshakes and logins, and rules.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use super::cpu::CpuTimes;
use super::idle::raise_descriptor_limit;
use super::load::{self, LoadOrder};
use super::{Case, Measured};
use crate::broker::{Launch, Running};
use crate::connection::Connection;
use crate::load::Keeps;
use crate::process;
use crate::protocol::admin::{self, Acl};
use crate::sampler::MIB;
use crate::secure::{CertificateKey, Endpoint};
use crate::workload::LoadShape;

const CLIENTS: usize = 4;
/// Two threads beside a load, each at half the rate.
const LOGINS_BESIDE: [Duration; 2] = [Duration::from_millis(10); 2];
/// The niceness of their threads, below the load's priority. The broker's half of handshakes is to disturb the load, not the clients' half:
/// real clients log in from machines of their own.
const NICENESS_BESIDE: i32 = 10;
/// Connections that unauthenticated peers hold, or try to.
const UNAUTHENTICATED_PEERS: usize = 10_000;
/// Addresses that unauthenticated peers connect from: the broker permits few connections of one address.
const UNAUTHENTICATED_HOSTS: usize = 200;
/// One descriptor for each of them, and some for everything else.
const DESCRIPTORS: u64 = 11_000;
/// Once all are connected, the oldest one is replaced in this interval: connections that the broker has closed are tried again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(2);
const RULES: usize = 10_000;
const RULES_OF_A_REQUEST: usize = 1_000;
/// Everybody may do anything without a rule about it: this makes it possible to create the first rules.
const AUTHORIZED: [&str; 2] = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
];

/// Connections that are encrypted, log in, ask for the versions, and go.
pub(super) fn run_handshakes(case: &Case<'_>, key: CertificateKey) -> Result<Measured> {
    let broker = Running::start_ready(case.environment, Launch { key, ..case.launch() })?;
    let logins = Logins::start(broker.endpoint(), &[Duration::ZERO; CLIENTS], 0);
    thread::sleep(case.extent.warmup);
    let (begin, before, done) = (Instant::now(), CpuTimes::sample(broker.pid())?, logins.count());
    thread::sleep(case.extent.window);
    let cpu = CpuTimes::sample(broker.pid())?.since(&before);
    let (seconds, done) = (begin.elapsed().as_secs_f64(), (logins.count() - done) as f64);
    logins.finish()?;
    let memory = process::memory(broker.pid())?;
    broker.stop()?;
    let mut measured = Measured::of([
        ("handshakes_per_s", done / seconds),
        ("handshakes_per_cpu_s", done / cpu.broker_s().max(0.01)),
        ("vm_hwm_mib", memory.peak as f64 / MIB),
    ]);
    cpu.add_circumstances(&mut measured, seconds);
    Ok(measured)
}

/// Measures a load, and the same beside 200 logins a second.
pub(super) fn run_logins(case: &Case<'_>, shape: LoadShape) -> Result<Measured> {
    twice(case, shape, &[], |broker| {
        Ok(Beside::Logins(Logins::start(broker.endpoint(), &LOGINS_BESIDE, NICENESS_BESIDE)))
    })
}

/// Measures a load, and the same while unauthenticated peers hold connections and send nothing.
pub(super) fn run_unauthenticated(case: &Case<'_>, shape: LoadShape) -> Result<Measured> {
    twice(case, shape, &[], |broker| {
        Ok(Beside::Unauthenticated(UnauthenticatedPeers::start(broker.endpoint().address)?))
    })
}

/// Measures a load, and the same with an authorizer that has many rules of its user.
pub(super) fn run_acls(case: &Case<'_>, shape: LoadShape) -> Result<Measured> {
    twice(case, shape, &AUTHORIZED, |broker| create_rules(broker).map(|()| Beside::Nothing))
}

/// The disturbance beside a load.
enum Beside {
    Nothing,
    Logins(Logins),
    Unauthenticated(UnauthenticatedPeers),
}

/// Loads a broker, then another one with these settings and the disturbance.
fn twice(
    case: &Case<'_>,
    shape: LoadShape,
    settings: &'static [&'static str],
    disturb: impl FnOnce(&Running) -> Result<Beside>,
) -> Result<Measured> {
    let order = LoadOrder { shape, window: case.extent.window, keeps: Keeps::All };
    let broker = Running::start_ready(case.environment, case.launch())?;
    let before = load::measure(case, &broker, order)?;
    broker.stop()?;
    let broker = Running::start_ready(case.environment, Launch { settings, ..case.launch() })?;
    let beside = disturb(&broker)?;
    let begin = Instant::now();
    let done = if let Beside::Logins(logins) = &beside { logins.count() } else { 0 };
    let mut measured = load::measure(case, &broker, order)?;
    match beside {
        Beside::Nothing => {}
        Beside::Logins(logins) => {
            let per_s = (logins.count() - done) as f64 / begin.elapsed().as_secs_f64();
            logins.finish()?;
            measured.add([("handshakes_per_s", per_s)]);
        }
        Beside::Unauthenticated(peers) => peers.finish()?,
    }
    broker.stop()?;
    for (key, undisturbed, part) in [
        ("messages_per_s", "undisturbed_messages_per_s", "of_undisturbed"),
        ("ack_p99_us", "undisturbed_ack_p99_us", "p99_of_undisturbed"),
    ] {
        let of = |measured: &Measured| measured.figures.get(key).copied().context("a load has both");
        let (before, after) = (of(&before)?, of(&measured)?);
        measured.add([(undisturbed, before), (part, after / before)]);
    }
    Ok(measured)
}

/// Creates rules by which the user of loads may write to 10,000 topics, besides the load's topic and its group.
fn create_rules(broker: &Running) -> Result<()> {
    const USER: &str = "User:ANONYMOUS";
    let mut connection = Connection::open(broker.endpoint())?;
    let names: Vec<_> = (0..RULES).map(|number| format!("other-{number}")).collect();
    for names in names.chunks(RULES_OF_A_REQUEST) {
        let rules: Vec<_> = names.iter().map(|name| Acl { resource: 2, name, principal: USER }).collect();
        admin::create_acls(&mut connection, &rules)?;
    }
    let own = [(2, "bench"), (3, "bench-group")];
    let own = own.map(|(resource, name)| Acl { resource, name, principal: USER });
    admin::create_acls(&mut connection, &own)
}

/// Clients that connect, log in and go, until this is finished.
struct Logins {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<Result<()>>>,
}

impl Logins {
    /// Starts a client for each interval, at a lower priority. It begins once in an interval, or less often if that takes longer.
    fn start(endpoint: Endpoint, intervals: &[Duration], niceness: i32) -> Self {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = intervals.iter().map(|&interval| {
            let (is_over, done) = (is_over.clone(), done.clone());
            thread::spawn(move || {
                if niceness > 0 {
                    setpriority_process(Some(gettid()), niceness)
                        .context("lower the priority of a thread")?;
                }
                let mut next = Instant::now();
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    next = Instant::now().max(next) + interval;
                    admin::api_versions(&mut Connection::open(endpoint)?)?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        Self { threads: threads.collect(), is_over, done }
    }

    fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends them; an error if one was not served.
    fn finish(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(|thread| thread.join().expect("a client panicked"));
        ended.collect::<Result<()>>().context("a client could not log in")
    }
}

/// Connections of unauthenticated peers, which send nothing, until this is finished.
struct UnauthenticatedPeers {
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<()>>,
}

impl UnauthenticatedPeers {
    /// Connects all peers. Returns when all have connected once.
    fn start(broker: SocketAddr) -> Result<Self> {
        raise_descriptor_limit(DESCRIPTORS)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let mut held: VecDeque<TcpStream> = VecDeque::with_capacity(UNAUTHENTICATED_PEERS);
        for number in 0..UNAUTHENTICATED_PEERS {
            held.push_back(unauthenticated_peer(broker, number)?);
        }
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            setpriority_process(Some(gettid()), NICENESS_BESIDE).context("lower the priority of a thread")?;
            for number in UNAUTHENTICATED_PEERS.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                held.pop_front();
                held.push_back(unauthenticated_peer(broker, number)?);
                thread::sleep(RECONNECT_INTERVAL);
            }
            Ok(())
        });
        Ok(Self { is_over, thread })
    }

    /// Ends them; an error if one could not connect.
    fn finish(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic").context("an unauthenticated peer could not connect")
    }
}

/// Opens a connection from one of many loopback addresses.
fn unauthenticated_peer(broker: SocketAddr, number: usize) -> Result<TcpStream> {
    let host = number % UNAUTHENTICATED_HOSTS;
    let host = Ipv4Addr::new(127, 7, 0, u8::try_from(host + 1).expect("there are few hosts"));
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((host, 0)))?;
    rustix::net::connect(&socket, &broker).context("an unauthenticated peer connects")?;
    Ok(socket.into())
}
