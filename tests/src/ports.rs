//! Ports for processes that end and start again: a test knows them before anything listens there.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the system's own choice of ports: a client that looks for a dead node there can meet nothing but the node, and no connection
/// of any program takes the place of a node that is away.
const PORTS: Range<u16> = 20_000..26_000;
/// Those of a process, before it takes those of the next one.
const OF_A_PROCESS: u16 = 40;

/// A port of this machine on which nothing listens, and which this process gives out once.
///
/// # Panics
/// When all are taken.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    let processes = u32::from(count / OF_A_PROCESS);
    let begin = (std::process::id() % processes) as u16 * OF_A_PROCESS;
    for _ in 0..count {
        let number = (begin + NEXT.fetch_add(1, Ordering::Relaxed) % count) % count;
        // At no address: some programs of other systems listen on all.
        if TcpListener::bind(("0.0.0.0", PORTS.start + number)).is_ok() {
            return PORTS.start + number;
        }
    }
    panic!("all ports of {PORTS:?} are taken");
}
