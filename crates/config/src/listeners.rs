//! Listeners: the addresses that a node opens, and those that it advertises to clients.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::problem::Problem;

/// The protection of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum SecurityProtocol {
    /// None.
    Plaintext = 0,
    /// TLS.
    Ssl = 1,
    /// SASL without TLS.
    SaslPlaintext = 2,
    /// SASL over TLS.
    SaslSsl = 3,
}

impl SecurityProtocol {
    const ALL: [SecurityProtocol; 4] = [
        SecurityProtocol::Plaintext,
        SecurityProtocol::Ssl,
        SecurityProtocol::SaslPlaintext,
        SecurityProtocol::SaslSsl,
    ];

    /// The code in metadata records.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// The protocol of a code in metadata records.
    pub fn from_code(code: i16) -> Option<SecurityProtocol> {
        SecurityProtocol::ALL.into_iter().find(|protocol| protocol.code() == code)
    }

    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            SecurityProtocol::Plaintext => "PLAINTEXT",
            SecurityProtocol::Ssl => "SSL",
            SecurityProtocol::SaslPlaintext => "SASL_PLAINTEXT",
            SecurityProtocol::SaslSsl => "SASL_SSL",
        }
    }

    /// Returns true if clients authenticate by SASL.
    pub fn has_sasl(self) -> bool {
        matches!(self, SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl)
    }

    /// Returns true if connections are encrypted by TLS.
    pub fn has_tls(self) -> bool {
        matches!(self, SecurityProtocol::Ssl | SecurityProtocol::SaslSsl)
    }

    fn find(name: &str) -> Option<SecurityProtocol> {
        SecurityProtocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }
}

/// A named address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The listener's name, in capitals.
    pub listener: String,
    /// The protection of its connections.
    pub protocol: SecurityProtocol,
    /// A name or address without brackets. Empty for every interface in `listeners`. In an advertised listener it stands for
    /// this host's own name, which the caller fills in.
    pub host: String,
    /// The port. 0 lets the system choose; an advertised 0 stands for the port that was chosen.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.listener, HostPort(&self.host, self.port))
    }
}

/// An address as it is written: an IPv6 address in brackets.
pub(crate) struct HostPort<'h>(pub(crate) &'h str, pub(crate) u16);

impl fmt::Display for HostPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.0.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.0, self.1)
    }
}

impl Endpoint {
    /// Returns true if only processes on this host can connect.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// Returns true if a host, a name or an address without brackets, can be reached from this host alone.
pub(crate) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback())
}

/// The listeners of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    /// Listeners to open: all but those for controllers. At least one.
    pub open: Vec<Endpoint>,
    /// The address that is advertised to clients of each open listener, by the listener's name.
    pub advertised: Vec<Endpoint>,
    /// The listener between nodes.
    pub inter_broker: String,
    /// The listener for the other nodes of a cluster: the first of `controller.listener.names` that exists.
    pub controller: Option<Endpoint>,
}

impl Listeners {
    /// The addresses that clients of this listener are to connect to.
    pub fn advertised_for(&self, listener: &str) -> Option<&Endpoint> {
        self.advertised.iter().find(|endpoint| endpoint.listener == listener)
    }
}

/// The values of the keys that make listeners.
pub(super) struct ListenerKeys<'a> {
    pub(super) listeners: &'a [String],
    pub(super) advertised: Option<&'a [String]>,
    pub(super) protocol_map: &'a str,
    pub(super) map_is_default: bool,
    pub(super) controllers: &'a [String],
    pub(super) inter_broker: Option<&'a str>,
    pub(super) inter_broker_protocol: Option<&'a str>,
}

impl ListenerKeys<'_> {
    /// Checks the keys against each other, as Kafka does.
    pub(super) fn build(&self) -> Result<Listeners, Problem> {
        let map = self.protocol_map()?;
        let all = parse_all("listeners", self.listeners, &map)?;
        check_names("listeners", &all, self.listeners)?;
        check_ports(&all, self.listeners)?;
        let is_controller = |endpoint: &Endpoint| {
            self.controllers.iter().any(|name| name.eq_ignore_ascii_case(&endpoint.listener))
        };
        let open: Vec<_> = all.iter().filter(|endpoint| !is_controller(endpoint)).cloned().collect();
        if open.is_empty() {
            return Err(Problem::new(
                "There must be at least one broker advertised listener. \
                 Perhaps all listeners appear in controller.listener.names?",
            ));
        }
        let advertised = self.advertised(&map, &open, is_controller)?;
        let inter_broker = self.inter_broker(&map, &advertised)?;
        let named = |name: &String| all.iter().find(|endpoint| endpoint.listener.eq_ignore_ascii_case(name));
        let controller = self.controllers.iter().find_map(named).cloned();
        Ok(Listeners { open, advertised, inter_broker, controller })
    }

    fn protocol_map(&self) -> Result<Vec<(String, SecurityProtocol)>, Problem> {
        let mut map = Vec::new();
        for entry in self.protocol_map.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, protocol) = entry.rsplit_once(':').ok_or_else(|| {
                let shown = self.protocol_map;
                Problem::new(format!(
                    "Error parsing configuration property 'listener.security.protocol.map': \
                     {shown} is not a list of NAME:PROTOCOL"
                ))
            })?;
            let protocol = SecurityProtocol::find(protocol.trim()).ok_or_else(|| {
                Problem::new(format!(
                    "Invalid security protocol `{}` defined in listener.security.protocol.map",
                    protocol.trim()
                ))
            })?;
            map.push((name.trim().to_ascii_uppercase(), protocol));
        }
        if self.map_is_default {
            // KIP-595: a controller's listener needs no entry as long as the map is the default one.
            let named = self.controllers.iter().map(|name| name.to_ascii_uppercase());
            map.extend(named.map(|name| (name, SecurityProtocol::Plaintext)));
        }
        Ok(map)
    }

    fn advertised(
        &self,
        map: &[(String, SecurityProtocol)],
        open: &[Endpoint],
        is_controller: impl Fn(&Endpoint) -> bool,
    ) -> Result<Vec<Endpoint>, Problem> {
        let mut advertised = match self.advertised {
            Some(texts) => {
                let parsed = parse_all("advertised.listeners", texts, map)?;
                check_names("advertised.listeners", &parsed, texts)?;
                parsed
            }
            None => open.to_vec(),
        };
        advertised.retain(|endpoint| !is_controller(endpoint));
        check_advertised(&advertised, open)?;
        Ok(advertised)
    }

    fn inter_broker(
        &self,
        map: &[(String, SecurityProtocol)],
        advertised: &[Endpoint],
    ) -> Result<String, Problem> {
        let Some(name) = self.inter_broker.map(str::to_ascii_uppercase) else {
            if let Some(protocol) = self.inter_broker_protocol.and_then(SecurityProtocol::find) {
                return listener_of(protocol, advertised);
            }
            let plain = advertised.iter().find(|endpoint| endpoint.listener == "PLAINTEXT");
            return Ok(plain.unwrap_or(&advertised[0]).listener.clone());
        };
        if !map.iter().any(|(known, _)| *known == name) {
            return Err(Problem::new(format!(
                "Listener with name {name} defined in inter.broker.listener.name \
                 not found in listener.security.protocol.map."
            )));
        }
        if !advertised.iter().any(|endpoint| endpoint.listener == name) {
            let options: Vec<_> = advertised.iter().map(|endpoint| endpoint.listener.as_str()).collect();
            return Err(Problem::new(format!(
                "inter.broker.listener.name must be a listener name defined in advertised.listeners. \
                 The valid options based on currently configured listeners are {}",
                options.join(",")
            )));
        }
        Ok(name)
    }
}

/// The listener that `security.inter.broker.protocol` selects.
fn listener_of(protocol: SecurityProtocol, advertised: &[Endpoint]) -> Result<String, Problem> {
    match advertised.iter().find(|endpoint| endpoint.protocol == protocol) {
        Some(endpoint) => Ok(endpoint.listener.clone()),
        None => Err(Problem::new(format!(
            "security.inter.broker.protocol={} names no listener: none of advertised.listeners has this protocol",
            protocol.name()
        ))),
    }
}

/// Checks that exactly the open listeners are advertised, each at an address that a client can reach.
fn check_advertised(advertised: &[Endpoint], open: &[Endpoint]) -> Result<(), Problem> {
    let is_in = |name: &str, endpoints: &[Endpoint]| endpoints.iter().any(|each| each.listener == name);
    for Endpoint { listener, host, port, .. } in advertised {
        if host == "0.0.0.0" || host == "::" {
            return Err(Problem::new(format!(
                "advertised.listeners cannot use the nonroutable meta-address {host}. Use a routable IP address: set \
                 advertised.listeners={listener}://HOST:{port} with the host that clients connect to, or listen on \
                 {listener}://:{port}, which advertises this host's name"
            )));
        }
        if !is_in(listener, open) {
            return Err(Problem::new(format!(
                "advertised.listeners names the listener {listener}, which is not in listeners"
            )));
        }
    }
    match open.iter().find(|endpoint| !is_in(&endpoint.listener, advertised)) {
        None => Ok(()),
        Some(Endpoint { listener, .. }) => {
            Err(Problem::new(format!("advertised.listeners says nothing of the listener {listener}")))
        }
    }
}

fn parse_all(
    key: &str,
    texts: &[String],
    map: &[(String, SecurityProtocol)],
) -> Result<Vec<Endpoint>, Problem> {
    let problem = |why: String| Problem::new(format!("Error in {key}={}: {why}", texts.join(",")));
    texts
        .iter()
        .map(|text| {
            let (name, host, port) = parse_endpoint(text).ok_or_else(|| {
                problem(format!("Unable to parse {text} to a broker endpoint, NAME://host:port"))
            })?;
            let protocol = map
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, protocol)| *protocol)
                .ok_or_else(|| problem(format!("No security protocol defined for listener {name}")))?;
            Ok(Endpoint { listener: name, protocol, host, port })
        })
        .collect()
}

/// `NAME://host:port`, the host perhaps empty or in brackets.
fn parse_endpoint(text: &str) -> Option<(String, String, u16)> {
    let (name, address) = text.split_once("://")?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']'))?;
    let is_host_byte = |b: u8| b.is_ascii_alphanumeric() || b"-%._:".contains(&b);
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let valid = !name.is_empty() && host.bytes().all(is_host_byte) && digits;
    let port = port.parse().ok().filter(|_| valid)?;
    Some((name.to_ascii_uppercase(), host.to_string(), port))
}

fn check_names(key: &str, endpoints: &[Endpoint], texts: &[String]) -> Result<(), Problem> {
    let repeated = endpoints
        .iter()
        .enumerate()
        .any(|(at, endpoint)| endpoints[..at].iter().any(|earlier| earlier.listener == endpoint.listener));
    if !repeated {
        return Ok(());
    }
    let shown = texts.join(",");
    Err(Problem::new(format!("Error in {key}={shown}: Each listener must have a different name")))
}

/// One port may serve one IPv4 and one IPv6 listener, and no more than that.
fn check_ports(endpoints: &[Endpoint], texts: &[String]) -> Result<(), Problem> {
    let is_v4 = |endpoint: &Endpoint| endpoint.host.parse::<Ipv4Addr>().is_ok();
    let is_v6 = |endpoint: &Endpoint| endpoint.host.parse::<Ipv6Addr>().is_ok();
    for endpoint in endpoints.iter().filter(|endpoint| endpoint.port != 0) {
        let same: Vec<_> = endpoints.iter().filter(|other| other.port == endpoint.port).collect();
        let both_families = same.len() == 2 && same.iter().any(|e| is_v4(e)) && same.iter().any(|e| is_v6(e));
        if same.len() > 1 && !both_families {
            return Err(Problem::new(format!(
                "Error in listeners={}: Each listener must have a different port, \
                 except one on IPv4 and one on IPv6",
                texts.join(",")
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;

    fn build(lines: &str) -> Result<String, String> {
        let file = Properties::parse(lines.as_bytes()).expect("the test's file is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() })
            .map_err(|error| error.to_string())?;
        let shown = |endpoints: &[super::Endpoint]| {
            endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        let listeners = &config.listeners;
        Ok(format!(
            "{} | {} | {}",
            shown(&listeners.open),
            shown(&listeners.advertised),
            listeners.inter_broker
        ))
    }

    fn check(lines: &str, expect: &str) {
        assert_eq!(build(lines).as_deref(), Ok(expect), "{lines}");
    }

    fn refused(lines: &str, expect: &str) {
        assert_eq!(build(lines), Err(expect.to_string()), "{lines}");
    }

    #[test]
    fn listeners_are_opened_and_advertised() {
        check("", "PLAINTEXT://127.0.0.1:9092 | PLAINTEXT://127.0.0.1:9092 | PLAINTEXT");
        check("listeners=plaintext://:9092", "PLAINTEXT://:9092 | PLAINTEXT://:9092 | PLAINTEXT");
        check(
            "listeners=PLAINTEXT://0.0.0.0:9092\nadvertised.listeners=PLAINTEXT://a.example:19092",
            "PLAINTEXT://0.0.0.0:9092 | PLAINTEXT://a.example:19092 | PLAINTEXT",
        );
        check(
            "listeners=PLAINTEXT://127.0.0.1:9092,IN://[::1]:9092\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,IN:PLAINTEXT\ninter.broker.listener.name=IN",
            "PLAINTEXT://127.0.0.1:9092,IN://[::1]:9092 | PLAINTEXT://127.0.0.1:9092,IN://[::1]:9092 | IN",
        );
    }

    #[test]
    fn controllers_listeners_are_accepted_and_not_opened() {
        check(
            "listeners=PLAINTEXT://:1,CONTROLLER://:2\ncontroller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL",
            "PLAINTEXT://:1 | PLAINTEXT://:1 | PLAINTEXT",
        );
        check(
            "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n\
             advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "PLAINTEXT://:9092 | PLAINTEXT://localhost:9092 | PLAINTEXT",
        );
        refused(
            "listeners=PLAINTEXT://:9092\ncontroller.listener.names=PLAINTEXT",
            "There must be at least one broker advertised listener. \
             Perhaps all listeners appear in controller.listener.names?",
        );
    }

    #[test]
    fn listeners_that_cannot_work_are_refused() {
        refused(
            "listeners=FOO://:9092",
            "Error in listeners=FOO://:9092: No security protocol defined for listener FOO",
        );
        refused(
            "listeners=PLAINTEXT:9092",
            "Error in listeners=PLAINTEXT:9092: \
             Unable to parse PLAINTEXT:9092 to a broker endpoint, NAME://host:port",
        );
        refused(
            "listeners=PLAINTEXT://:70000",
            "Error in listeners=PLAINTEXT://:70000: \
             Unable to parse PLAINTEXT://:70000 to a broker endpoint, NAME://host:port",
        );
        refused(
            "listeners=PLAINTEXT://:1,PLAINTEXT://:2",
            "Error in listeners=PLAINTEXT://:1,PLAINTEXT://:2: Each listener must have a different name",
        );
        refused(
            "listeners=PLAINTEXT://:1,SSL://:1",
            "Error in listeners=PLAINTEXT://:1,SSL://:1: Each listener must have a different port, \
             except one on IPv4 and one on IPv6",
        );
        refused(
            "listeners=PLAINTEXT://0.0.0.0:1",
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address: set \
             advertised.listeners=PLAINTEXT://HOST:1 with the host that clients connect to, or listen on \
             PLAINTEXT://:1, which advertises this host's name",
        );
        refused(
            "listeners=PLAINTEXT://:1\nadvertised.listeners=SSL://a:1",
            "advertised.listeners names the listener SSL, which is not in listeners",
        );
        refused(
            "listeners=PLAINTEXT://:1,IN://:2\nadvertised.listeners=PLAINTEXT://a:1\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,IN:PLAINTEXT",
            "advertised.listeners says nothing of the listener IN",
        );
        refused(
            "inter.broker.listener.name=X",
            "Listener with name X defined in inter.broker.listener.name \
             not found in listener.security.protocol.map.",
        );
        refused(
            "inter.broker.listener.name=SSL",
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. \
             The valid options based on currently configured listeners are PLAINTEXT",
        );
        refused(
            "listener.security.protocol.map=A:B",
            "Invalid security protocol `B` defined in listener.security.protocol.map",
        );
    }
}
