//! Addresses of this machine for what tests start.

use std::net::TcpListener;
use std::sync::Mutex;

/// An address that is this process's own: the system chooses the ports of connections from higher ones, and no other process of these
/// tests is given it while this one lives.
pub(crate) fn free_address() -> String {
    const FIRST: u32 = 26_000;
    const COUNT: u32 = 5_000;
    // Held at another address of this machine.
    static HELD: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());
    let held = |port| Some((port, TcpListener::bind(format!("127.0.0.2:{port}")).ok()?));
    let is_free = |(port, _): &(u32, TcpListener)| TcpListener::bind(format!("127.0.0.1:{port}")).is_ok();
    let ports = (0..COUNT).map(|n| FIRST + (std::process::id() + n) % COUNT);
    let (port, holder) = ports.filter_map(held).find(is_free).unwrap();
    HELD.lock().unwrap().push(holder);
    format!("127.0.0.1:{port}")
}
