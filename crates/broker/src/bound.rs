//! Sockets that are bound before anything else, so that a taken port is reported before anything is touched.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use mainstem_config::{BrokerConfig, Endpoint, NetworkConfig, SecurityProtocol};
use mainstem_net::listener;
use rustix::io::Errno;

use crate::server::StartError;

/// Sockets that are bound and not yet accepted from.
pub(crate) struct Bound {
    pub(crate) listeners: Vec<(Endpoint, std::net::TcpListener)>,
    /// The socket for HTTP, until it is served.
    pub(crate) http: Option<std::net::TcpListener>,
    /// The socket for other nodes, until they are served.
    pub(crate) controller: Option<std::net::TcpListener>,
    pub(crate) http_address: Option<SocketAddr>,
}

/// The least backlog of `mainstem.http.listener`, if the kernel allows it.
const HTTP_BACKLOG: i32 = 1_024;

impl Bound {
    /// Binds all sockets of a configuration.
    ///
    /// # Errors
    /// When one cannot be listened on.
    pub(crate) fn new(config: &BrokerConfig) -> Result<Self, StartError> {
        let mut listeners = Vec::new();
        for endpoint in &config.listeners.open {
            let socket = bind_endpoint(endpoint, config)?;
            warn_of_reach(endpoint);
            listeners.push((endpoint.clone(), socket));
        }
        let http = config.http_listener.as_ref().map(|(host, port)| {
            // With a full queue the kernel makes a connection wait for a second: an orchestrator would think that this node hangs.
            let listen_backlog = config.network.listen_backlog.max(HTTP_BACKLOG);
            let network = NetworkConfig { listen_backlog, ..config.network.clone() };
            bind(host, *port, &network).map_err(|source| {
                let listener = "mainstem.http.listener".to_owned();
                StartError::Listen { listener, address: format!("{host}:{port}"), source }
            })
        });
        let http = http.transpose()?;
        let http_address = http.as_ref().and_then(|socket| socket.local_addr().ok());
        let controller = config.listeners.controller.as_ref().filter(|_| config.quorum.is_some());
        let controller = controller.map(|endpoint| {
            warn_of_reach(endpoint);
            bind_endpoint(endpoint, config)
        });
        let controller = controller.transpose()?;
        Ok(Bound { listeners, http, controller, http_address })
    }

    /// The addresses advertised to clients, with ports and a host name from the system where none are configured.
    pub(crate) fn advertised(&self, config: &BrokerConfig) -> Vec<Endpoint> {
        let advertise = |(open, socket): &(Endpoint, std::net::TcpListener)| {
            let mut endpoint = config.listeners.advertised_for(&open.listener).unwrap_or(open).clone();
            if endpoint.port == 0 {
                endpoint.port = socket.local_addr().map_or(0, |address| address.port());
            }
            if endpoint.host.is_empty() {
                endpoint.host = host_name();
            }
            endpoint
        };
        self.listeners.iter().map(advertise).collect()
    }
}

fn bind_endpoint(endpoint: &Endpoint, config: &BrokerConfig) -> Result<std::net::TcpListener, StartError> {
    let host = if endpoint.host.is_empty() { "*" } else { &endpoint.host };
    let bound = match endpoint.host.as_str() {
        "" => bind_all(endpoint.port, &config.network),
        host => bind(host, endpoint.port, &config.network),
    };
    bound.map_err(|source| {
        let address = format!("{host}:{}", endpoint.port);
        StartError::Listen { listener: endpoint.listener.clone(), address, source }
    })
}

/// Warns of a listener that other hosts can reach, and that asks for no login.
fn warn_of_reach(endpoint: &Endpoint) {
    let listener = &endpoint.listener;
    match endpoint.protocol {
        _ if endpoint.is_loopback() => {}
        SecurityProtocol::Plaintext => tracing::warn!(
            listener,
            "listening beyond this host without authentication: every client that reaches {endpoint} may read and write everything"
        ),
        SecurityProtocol::SaslPlaintext => tracing::warn!(
            listener,
            "listening beyond this host without encryption: what clients of {endpoint} send and read, passwords of \
             PLAIN among it, can be read on the network"
        ),
        SecurityProtocol::Ssl | SecurityProtocol::SaslSsl => {}
    }
}

fn bind(host: &str, port: u16, network: &NetworkConfig) -> io::Result<std::net::TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in (host, port).to_socket_addrs()? {
        match listener::bind(address, network) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Binds all addresses: those of IPv6 and IPv4 with one socket, or of IPv4 alone on a host without IPv6.
fn bind_all(port: u16, network: &NetworkConfig) -> io::Result<std::net::TcpListener> {
    let unsupported = |error: &io::Error| matches!(error.raw_os_error(), Some(code) if [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error).contains(&code));
    match listener::bind((Ipv6Addr::UNSPECIFIED, port).into(), network) {
        Err(error) if unsupported(&error) => listener::bind((Ipv4Addr::UNSPECIFIED, port).into(), network),
        bound => bound,
    }
}

/// This host's own name, which others hopefully resolve; Kafka advertises it too where nothing is configured.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use mainstem_config::Sources;

    use super::*;
    use crate::server::listen_advice;

    fn network() -> NetworkConfig {
        BrokerConfig::from_sources(Sources::default()).expect("the defaults are valid").network
    }

    #[test]
    fn what_to_do_fits_why_an_address_cannot_be_listened_on() {
        let network = network();
        let advice =
            |host: &str, port| listen_advice(&bind(host, port, &network).expect_err("it cannot be bound"));
        let taken = bind("127.0.0.1", 0, &network).expect("a free port");
        let port = taken.local_addr().expect("it is bound").port();
        assert!(advice("127.0.0.1", port).starts_with("stop what uses it"));
        assert!(advice("192.0.2.1", 0).starts_with("no interface"), "an address of documents (RFC 5737)");
        assert!(
            advice(&format!("{}.invalid", "x".repeat(64)), 0).starts_with("have the name resolved"),
            "a label has 63 characters at most (RFC 1035)"
        );
    }

    #[test]
    fn a_listener_without_a_host_listens_on_both_families() {
        let config = BrokerConfig::from_sources(Sources::default()).expect("the defaults are valid");
        let socket = bind_all(0, &config.network).expect("a free port");
        let port = socket.local_addr().expect("it is bound").port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("IPv4");
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).expect("IPv6");
        }
    }
}
