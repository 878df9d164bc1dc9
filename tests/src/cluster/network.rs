//! Proxies before the listeners of nodes. Bytes from one node to another can be held back, as on a network that drops
//! packets. They arrive when the cut is healed, as TCP sends them again.
//!
//! The process at the other end of a connection tells which node it comes from. So only the harness knows about the
//! proxies.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::node::Ports;
use mainstem_testkit::port;

/// The longest search for that process: a node may dial and close at once.
const OWNER_MAX: Duration = Duration::from_millis(200);
/// The least number of attempts, however slow each is: a list of connections that change may leave one out.
const LOOKS_MIN: usize = 20;
/// The number for clients in place of a node's.
const CLIENT: i32 = 0;

#[derive(Debug, Default)]
struct State {
    /// Pairs of nodes: bytes from the first do not reach the second.
    cut: BTreeSet<(i32, i32)>,
    processes: Vec<u32>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The proxies of a cluster; they end with the process.
#[derive(Debug)]
pub(super) struct Network {
    ports: Vec<Ports>,
    shared: Arc<Shared>,
}

impl Network {
    pub(super) fn start(behind: &[Ports]) -> Network {
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().processes = vec![0; behind.len()];
        let proxy = |id: i32, behind: u16| {
            let listener = TcpListener::bind(("127.0.0.1", port())).unwrap();
            let own = listener.local_addr().unwrap().port();
            let shared = shared.clone();
            thread::spawn(move || serve(&listener, id, behind, &shared));
            own
        };
        let ports = (1..).zip(behind).map(|(id, ports)| Ports {
            plain: proxy(id, ports.plain),
            controller: proxy(id, ports.controller),
        });
        Network { ports: ports.collect(), shared }
    }

    pub(super) fn ports(&self) -> &[Ports] {
        &self.ports
    }

    /// Starts a node's process, and registers it before any of its connections is attributed.
    pub(super) fn start_process(&self, id: i32, start: impl FnOnce() -> u32) {
        let mut state = self.shared.state.lock().unwrap();
        state.processes[usize::try_from(id - 1).unwrap()] = start();
    }

    pub(super) fn cut(&self, from: i32, to: i32) {
        self.shared.state.lock().unwrap().cut.insert((from, to));
    }

    pub(super) fn heal(&self) {
        self.shared.state.lock().unwrap().cut.clear();
        self.shared.changed.notify_all();
    }
}

fn serve(listener: &TcpListener, to: i32, behind: u16, shared: &Arc<Shared>) {
    for near in listener.incoming().map_while(Result::ok) {
        let shared = shared.clone();
        thread::spawn(move || {
            // A connection to a node that does not run is closed.
            let _ = carry_both_ways(near, to, behind, &shared);
        });
    }
}

fn carry_both_ways(near: TcpStream, to: i32, behind: u16, shared: &Arc<Shared>) -> io::Result<()> {
    let from = owner(near.local_addr()?, near.peer_addr()?, shared);
    shared.wait_until_open(from, to);
    let far = TcpStream::connect(("127.0.0.1", behind))?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_too, far_too, shared_too) = (near.try_clone()?, far.try_clone()?, shared.clone());
    let back = thread::spawn(move || carry(&far_too, &near_too, (to, from), &shared_too));
    carry(&near, &far, (from, to), shared);
    // The thread has no result, and its panic would be a fault of the harness.
    let _ = back.join();
    Ok(())
}

/// Carries bytes one way while that way is open.
fn carry(mut source: &TcpStream, mut sink: &TcpStream, (from, to): (i32, i32), shared: &Shared) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = source.read(&mut bytes) {
        shared.wait_until_open(from, to);
        if sink.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    shared.wait_until_open(from, to);
    // Both sides see the end of either.
    let _ = source.shutdown(Shutdown::Both);
    let _ = sink.shutdown(Shutdown::Both);
}

impl Shared {
    fn wait_until_open(&self, from: i32, to: i32) {
        let state = self.state.lock().unwrap();
        let _open = self.changed.wait_while(state, |state| state.cut.contains(&(from, to))).unwrap();
    }
}

/// The node whose process has the other end of a connection.
fn owner(here: SocketAddr, there: SocketAddr, shared: &Shared) -> i32 {
    let deadline = Instant::now() + OWNER_MAX;
    for look in 1.. {
        if let Some(inode) = inode(there.port(), here.port()) {
            let processes = shared.state.lock().unwrap().processes.clone();
            let link = format!("socket:[{inode}]");
            let found = (1..).zip(processes).find(|(_, process)| has_open(*process, &link));
            return found.map_or(CLIENT, |(id, _)| id);
        }
        if look >= LOOKS_MIN && Instant::now() > deadline {
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    CLIENT
}

/// The inode of the socket between two ports of this machine, on the side of the first one.
fn inode(local: u16, remote: u16) -> Option<u64> {
    let is_port = |field: Option<&str>, port: u16| {
        let hex = field.and_then(|field| field.rsplit(':').next());
        hex.and_then(|hex| u16::from_str_radix(hex, 16).ok()) == Some(port)
    };
    // The sockets of a JVM are IPv6.
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let is_it = is_port(fields.next(), local) && is_port(fields.next(), remote);
            let inode = fields.nth(6)?.parse().ok()?;
            (is_it && inode != 0).then_some(inode)
        })
    })
}

fn has_open(process: u32, link: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target.as_os_str() == link)
}
