//! Listening sockets: accept, refuse what exceeds a limit, place the rest on event loops.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainstem_config::{BrokerConfig, NetworkConfig};
use mainstem_limits::quotas::{Admission, ConnectionRates};
use mainstem_peers::{Peer, Shares, half};
use mainstem_security::SecurityError;
use parking_lot::{Mutex, RwLock};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::authentication::{Gate, SaslGate, TlsGate};
use crate::connection::{Connection, Moving};
use crate::event_loop::Placement;
use crate::transport::{DetachedTransport, Sealed};
use crate::unauthenticated::UnauthenticatedLimiter;
use crate::{Net, Service};
use mainstem_requests::context::ConnectionContext;
use mainstem_requests::host_names::{Addresses, HostNames};
use mainstem_runtime::supervised::caught;

/// Pause after an accept that failed for want of descriptors or memory.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The value of `max.connections.per.ip` where it is not set.
const UNLIMITED: usize = i32::MAX as usize;

/// Connections by address, and the limits on them.
pub struct ConnectionCounts {
    /// The limit by the descriptors of the process, whatever the configuration says.
    most: usize,
    /// `max.connections.per.ip.overrides`.
    overrides: Arc<RwLock<HashMap<IpAddr, usize>>>,
    /// Hosts that the overrides name.
    hosts: Arc<HostNames>,
    counts: Mutex<Counts>,
    /// Connections that go if one of the inter-broker listener needs their place, by id, with the way to say so.
    yielding: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    next_id: AtomicU64,
}

struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    /// Connections to which no limit of the configuration for their address applies.
    shares: Shares,
    by_listener: HashMap<usize, usize>,
}

/// One counted connection.
struct Counted {
    net: Arc<Net>,
    address: IpAddr,
    place: Place,
}

/// The counts that a connection is in, beside that of its address.
#[derive(Debug, Clone, Copy)]
struct Place {
    listener: usize,
    /// True if it counts in its peer's share of all connections.
    is_of_share: bool,
}

/// A connection that may have to go for another one.
struct Yielding {
    net: Arc<Net>,
    connection: u64,
    /// Resolves when it has to go.
    wanted: oneshot::Receiver<()>,
}

impl Drop for Yielding {
    fn drop(&mut self) {
        self.net.connections.yielding.lock().remove(&self.connection);
    }
}

impl ConnectionCounts {
    /// Counts from none. `most` is what the descriptors allow.
    pub fn new(most: usize) -> Self {
        let shares = Shares::new(most);
        let (by_address, by_listener) = (HashMap::new(), HashMap::new());
        let counts = Mutex::new(Counts { total: 0, by_address, shares, by_listener });
        let (overrides, hosts) = (Arc::default(), HostNames::new());
        let (yielding, next_id) = (Mutex::default(), AtomicU64::new(1));
        ConnectionCounts { most, overrides, hosts, counts, yielding, next_id }
    }

    /// Puts other exceptions to `max.connections.per.ip` into force. Those of host names count once these are looked up, which
    /// nothing waits for.
    pub fn set_overrides(&self, overrides: &[(String, usize)]) {
        let (own, wanted) = (self.overrides.clone(), overrides.to_vec());
        let apply = move |known: &Addresses| {
            let of_host = |(host, count): &(String, usize)| {
                let found = known.get(host).cloned().unwrap_or_default();
                let count = *count;
                found.into_iter().map(move |address| (address, count))
            };
            *own.write() = wanted.iter().flat_map(of_host).collect();
        };
        self.hosts.set(overrides.iter().map(|(host, _)| host.clone()), Arc::new(apply));
    }

    /// Connections that were ever admitted.
    pub fn made(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed) - 1
    }

    /// Connections of a listener that are open now.
    pub fn open_of(&self, listener: usize) -> usize {
        self.counts.lock().by_listener.get(&listener).copied().unwrap_or(0)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.counts.lock().total
    }

    /// Counts a connection, if no limit keeps it out. As in Kafka, `max.connections` keeps none out of the inter-broker
    /// listener if there is another one: a connection of another listener is closed in its place.
    ///
    /// Kafka's limits of an address count that address. If the configuration sets none for it, its peer may have half of all
    /// connections of clients. Clients on this host may have all, and so may connections to the protected inter-broker listener.
    fn admit(
        &self,
        address: IpAddr,
        listener: &Limited<'_>,
        limiter: &UnauthenticatedLimiter,
    ) -> Result<Place, String> {
        let network = listener.network;
        let own = self.overrides.read().get(&address).copied();
        let is_set = own.is_some() || network.max_connections_per_ip != UNLIMITED;
        // What runs on this host could take its descriptors otherwise.
        let is_of_share = !is_set && !address.is_loopback() && !listener.is_protected;
        let allowed = own.unwrap_or(network.max_connections_per_ip);
        let peer = Peer::of(address);
        let most = network.max_connections.min(self.most);
        let mut counts = self.counts.lock();
        let of_listener = counts.by_listener.get(&listener.index).copied().unwrap_or(0);
        if let Some(most) = listener.max_connections.filter(|most| of_listener >= *most as usize) {
            let prefix = format!("listener.name.{}", listener.name.to_lowercase());
            return Err(format!("{most} connections of the listener are open ({prefix}.max.connections)"));
        }
        if counts.by_address.get(&address).copied().unwrap_or(0) >= allowed {
            return Err(format!("{allowed} connections are open from this address (max.connections.per.ip)"));
        }
        let share = half(most);
        if is_of_share && counts.shares.of(peer) >= share {
            return Err(format!(
                "{share} connections are open from {peer}, half of what max.connections and the descriptors allow; \
                 max.connections.per.ip or max.connections.per.ip.overrides may allow an address more"
            ));
        }
        let is_full = counts.total >= most;
        if is_full && !(listener.is_protected && (self.free_place(limiter) || counts.total < self.most)) {
            return Err(format!("{most} connections are open (max.connections)"));
        }
        if is_of_share {
            counts.shares.take(peer);
        }
        *counts.by_address.entry(address).or_default() += 1;
        counts.total += 1;
        *counts.by_listener.entry(listener.index).or_default() += 1;
        Ok(Place { listener: listener.index, is_of_share })
    }

    /// Ends a connection of another listener: the unauthenticated one without progress for the longest time, or else the
    /// newest one. Returns false if there is none.
    fn free_place(&self, limiter: &UnauthenticatedLimiter) -> bool {
        let mut yielding = self.yielding.lock();
        let unauthenticated = limiter.slowest(|connection| yielding.contains_key(&connection));
        let Some(connection) = unauthenticated.or_else(|| yielding.keys().next_back().copied()) else {
            return false;
        };
        if let Some(want) = yielding.remove(&connection) {
            // A connection that is ending does not wait for this any more.
            let _ = want.send(());
        }
        true
    }

    fn leave(&self, address: IpAddr, place: Place) {
        let mut counts = self.counts.lock();
        counts.total -= 1;
        if place.is_of_share {
            counts.shares.leave(Peer::of(address));
        }
        if let Some(own) = counts.by_listener.get_mut(&place.listener) {
            *own -= 1;
        }
        if let Some(own) = counts.by_address.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.net.connections.leave(self.address, self.place);
    }
}

/// Binds one address. Never with SO_REUSEPORT, under which a second broker would silently share the port.
///
/// # Errors
/// The system's, as when the address is in use.
pub fn bind(address: SocketAddr, network: &NetworkConfig) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Only lets a restarted broker have its port back while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // IPv4 too, whatever the system's default.
        socket.set_only_v6(false)?;
    }
    // Connections inherit it; the window that TCP offers is agreed on before they are accepted.
    network.receive_buffer_bytes.map_or(Ok(()), |bytes| socket.set_recv_buffer_size(bytes))?;
    network.send_buffer_bytes.map_or(Ok(()), |bytes| socket.set_send_buffer_size(bytes))?;
    socket.bind(&address.into())?;
    // The kernel completes this many connections ahead of the node.
    socket.listen(network.listen_backlog)?;
    Ok(socket.into())
}

/// Begins the session of a connection that was accepted; `None` where its bytes travel as they are.
pub type BeginSession = dyn Fn() -> Result<Option<Box<Sealed>>, SecurityError> + Send + Sync;

/// Returns the function that begins sessions on a listener, by its configuration.
pub fn sessions(service: &dyn Service, listener: usize) -> Box<BeginSession> {
    match service.tls(listener) {
        Some(tls) => Box::new(move || Ok(Some(Sealed::begin(tls.session()?)))),
        None => Box::new(|| Ok(None)),
    }
}

/// Accepts until the broker stops.
pub async fn accept(
    (net, service): (Arc<Net>, Arc<dyn Service>),
    listener: usize,
    socket: std::net::TcpListener,
    begin: Box<BeginSession>,
) {
    let socket = match TcpListener::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!("listener {listener} cannot be served: {error}"),
    };
    let mut stopping = std::pin::pin!(net.stopping.notified());
    let mut is_failing = false;
    while !net.stopping.is_stopping() {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = &mut stopping => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                is_failing = false;
                let pause = admit((&net, &service), listener, Accepted { stream, peer, begin: &*begin });
                if !pause.is_zero() {
                    net.clock.sleep(pause).await;
                }
            }
            Err(error) => {
                // Once, not for every attempt.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(
                        "no connection can be accepted: {error}; it is tried again every {ACCEPT_PAUSE:?}"
                    );
                }
                net.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A listener with the limits on its connections.
struct Limited<'a> {
    index: usize,
    name: &'a str,
    network: &'a NetworkConfig,
    max_connections: Option<u32>,
    /// True if it is the inter-broker listener, and there are others.
    is_protected: bool,
    rates: ConnectionRates,
}

impl<'a> Limited<'a> {
    fn new(config: &'a BrokerConfig, index: usize) -> Self {
        let name = &config.listeners.open[index].listener;
        let network = &config.network;
        let listener = config.listener_count(name, "max.connection.creation.rate").unwrap_or(u32::MAX);
        Limited {
            index,
            name,
            network,
            max_connections: config.listener_count(name, "max.connections"),
            is_protected: is_protected(config, index),
            rates: ConnectionRates { broker: network.max_connection_creation_rate, listener },
        }
    }
}

/// Returns true if `max.connections` keeps no client out of a listener.
fn is_protected(config: &BrokerConfig, listener: usize) -> bool {
    let listeners = &config.listeners;
    listeners.open.len() > 1 && listeners.open[listener].listener == listeners.inter_broker
}

/// A connection that was just accepted.
struct Accepted<'a> {
    stream: TcpStream,
    peer: SocketAddr,
    begin: &'a BeginSession,
}

/// Serves a connection, or refuses it. How long the listener waits before the next one: connections that come faster
/// than `max.connection.creation.rate` stay in the kernel's queue.
fn admit(
    (net, service): (&Arc<Net>, &Arc<dyn Service>),
    listener: usize,
    accepted: Accepted<'_>,
) -> Duration {
    let peer = accepted.peer;
    let address = peer.ip().to_canonical();
    let config = net.config();
    let limited = Limited::new(&config, listener);
    let counted = match net.connections.admit(address, &limited, &net.unauthenticated) {
        Ok(place) => Counted { net: net.clone(), address, place },
        Err(why) => {
            if net.unauthenticated.may_log_closing(net.clock.instant()) {
                tracing::warn!(%peer, "connection refused: {why}");
            }
            return Duration::ZERO;
        }
    };
    match net.quotas.admit(listener, address, limited.rates) {
        Admission::Admitted { pause_ms } => {
            place((net, service), listener, accepted, counted);
            Duration::from_millis(pause_ms)
        }
        Admission::Delayed { close_after_ms } => {
            tracing::debug!(%peer, "connection refused: its address makes them faster than its quota");
            let stream = accepted.stream;
            // Held for a while, or its client would be back at once. It counts as open until then.
            tokio::spawn(async move {
                counted.net.clock.sleep(Duration::from_millis(close_after_ms)).await;
                drop((stream, counted));
            });
            Duration::ZERO
        }
    }
}

/// Gives a connection to an event loop.
fn place(
    (net, service): (&Arc<Net>, &Arc<dyn Service>),
    listener: usize,
    accepted: Accepted<'_>,
    counted: Counted,
) {
    let Accepted { stream, peer, begin } = accepted;
    let id = net.connections.next_id.fetch_add(1, Ordering::Relaxed);
    let context = service.connected(id, listener, peer);
    let prepared = stream
        .set_nodelay(true)
        // A peer that vanished without a word is noticed by the kernel, also while its request waits.
        .and_then(|()| SockRef::from(&stream).set_keepalive(true))
        .and_then(|()| stream.into_std());
    match prepared {
        Ok(stream) => {
            let gate = gate((net, &**service), &context);
            let yielding = yielding(net, &context);
            let placement = match gate {
                Gate::Open => net.event_loops.place(),
                Gate::Tls(_) | Gate::Sasl(_) => net.event_loops.place_unauthenticated(),
            };
            let sealed = match begin() {
                Ok(sealed) => sealed,
                Err(error) => return tracing::error!(%peer, "connection dropped: {error}"),
            };
            run(
                Admitted {
                    net: net.clone(),
                    service: service.clone(),
                    context: Arc::new(context),
                    counted,
                    yielding,
                    gate,
                },
                DetachedTransport::new(stream, sealed),
                placement,
            )
        }
        Err(error) if net.unauthenticated.may_log_closing(net.clock.instant()) => {
            tracing::warn!(%peer, "connection dropped: {error}");
        }
        Err(_) => {}
    }
}

/// Returns the authentication that a connection has to pass first.
fn gate((net, service): (&Net, &dyn Service), context: &ConnectionContext) -> Gate {
    let (tls, sasl) = (service.tls(context.listener), service.sasl(context.listener));
    if tls.is_none() && sasl.is_none() {
        return Gate::Open;
    }
    let address = context.peer.ip().to_canonical();
    let permit = net.unauthenticated.enter(context.id, address, net.clock.mono_ms());
    let deadline = net.clock.instant() + net.config().authentication.timeout;
    match (sasl, tls) {
        (Some(sasl), _) => Gate::Sasl(Box::new(SaslGate::new(sasl, permit, deadline))),
        (None, Some(tls)) => Gate::Tls(Box::new(TlsGate::new(tls, permit, deadline))),
        (None, None) => Gate::Open,
    }
}

/// Returns the signal for a connection to make way for one of the inter-broker listener; none if it never has to.
fn yielding(net: &Arc<Net>, context: &ConnectionContext) -> Option<Yielding> {
    let config = net.config();
    let count = config.listeners.open.len();
    if is_protected(&config, context.listener) || !(0..count).any(|other| is_protected(&config, other)) {
        return None;
    }
    let (want, wanted) = oneshot::channel();
    net.connections.yielding.lock().insert(context.id, want);
    Some(Yielding { net: net.clone(), connection: context.id, wanted })
}

/// A connection that counts, beside its socket.
struct Admitted {
    net: Arc<Net>,
    service: Arc<dyn Service>,
    context: Arc<ConnectionContext>,
    counted: Counted,
    yielding: Option<Yielding>,
    gate: Gate,
}

/// Serves a connection on its loop; when it has to move, on the next.
fn run(admitted: Admitted, transport: DetachedTransport, placement: Placement) {
    let event_loop = placement.event_loop().clone();
    event_loop.spawn(async move {
        let Admitted { net, service, context, counted, mut yielding, gate } = admitted;
        let transport = match transport.attach() {
            Ok(transport) => transport,
            Err(error) => return tracing::warn!(peer = %context.peer, "connection dropped: {error}"),
        };
        let serving = (net.clone(), service.clone());
        let mut connection = Connection::new(transport, context.clone(), serving, gate, placement);
        let Some(served) = serve(&mut connection, yielding.as_mut()).await else {
            if net.unauthenticated.may_log_closing(net.clock.instant()) {
                tracing::warn!(
                    peer = %context.peer, connection = context.id,
                    "connection closed: one of the inter-broker listener needs its place (max.connections)"
                );
            }
            net.counters.closed();
            drop(connection);
            return drop(counted);
        };
        if served.is_err() {
            // Its panic is in the log with what was wrong; this says whose request it was.
            tracing::error!(peer = %context.peer, connection = context.id, "connection closed: serving it has panicked");
            net.counters.closed();
            net.panics.note();
            drop(connection);
            return drop(counted);
        }
        // Closed before it stops counting.
        let Some(Moving { transport, context, gate, placement }) = connection.into_moving() else {
            return drop(counted);
        };
        match transport.detach() {
            Ok(transport) => run(Admitted { net, service, context, counted, yielding, gate }, transport, placement),
            Err(error) => tracing::warn!(peer = %context.peer, "connection dropped: {error}"),
        }
    });
}

/// Serves a connection until it ends or moves; `None` if it has to go for another one.
async fn serve(
    connection: &mut Connection,
    yielding: Option<&mut Yielding>,
) -> Option<std::thread::Result<()>> {
    let Some(yielding) = yielding else { return Some(caught(connection.serve()).await) };
    tokio::select! {
        biased;
        served = caught(connection.serve()) => Some(served),
        _ = &mut yielding.wanted => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_config::Sources;

    /// Connections that the descriptors allow.
    const MOST: usize = 10;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Connections of an address until one is refused; the places, and why.
    fn all_of(
        counts: &ConnectionCounts,
        limited: &Limited<'_>,
        mut next: impl FnMut() -> IpAddr,
    ) -> (Vec<(IpAddr, Place)>, String) {
        let limiter = UnauthenticatedLimiter::new(1);
        let mut places = Vec::new();
        loop {
            let address = next();
            match counts.admit(address, limited, &limiter) {
                Ok(place) => places.push((address, place)),
                Err(why) => return (places, why),
            }
        }
    }

    #[test]
    fn one_peer_takes_half_of_all_connections_and_another_one_is_served() {
        let config = BrokerConfig::from_sources(Sources::default()).expect("the defaults are valid");
        let counts = ConnectionCounts::new(MOST);
        let limited = Limited::new(&config, 0);
        let mut host = 0;
        // A host has as many addresses as it likes.
        let (places, why) = all_of(&counts, &limited, || {
            host += 1;
            IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host])
        });
        assert_eq!(places.len(), MOST / 2);
        assert!(why.contains("5 connections are open from 2001:db8::/64"), "{why}");
        let (others, _) = all_of(&counts, &limited, || address("192.0.2.1"));
        assert_eq!(others.len(), MOST / 2, "the other half is there");
        let local = ConnectionCounts::new(MOST);
        assert_eq!(all_of(&local, &limited, || address("127.0.0.1")).0.len(), MOST, "this host has all");
        for (address, place) in places.into_iter().chain(others) {
            counts.leave(address, place);
        }
        let counted = counts.counts.lock();
        assert!(counted.shares.is_empty() && counted.by_address.is_empty() && counted.total == 0);
    }

    #[test]
    fn a_limit_that_is_set_for_an_address_decides_alone() {
        let overrides = [("max.connections.per.ip".to_owned(), "8".to_owned())];
        let sources = Sources { overrides: &overrides, ..Sources::default() };
        let config = BrokerConfig::from_sources(sources).expect("it is valid");
        let counts = ConnectionCounts::new(MOST);
        let limited = Limited::new(&config, 0);
        let (places, why) = all_of(&counts, &limited, || address("2001:db8::1"));
        assert_eq!((places.len(), why.contains("max.connections.per.ip)")), (8, true), "{why}");
        assert!(
            counts.admit(address("2001:db8::2"), &limited, &UnauthenticatedLimiter::new(1)).is_ok(),
            "an address, as in Kafka"
        );
        for (address, place) in places {
            counts.leave(address, place);
        }
        counts.overrides.write().insert(address("192.0.2.1"), 9);
        let (places, _) = all_of(&counts, &limited, || address("192.0.2.1"));
        assert_eq!(places.len(), 9);
    }
}
