//! Authentication and authorization of nodes: what a connection to the controllers' listener has to prove, on either end.
//!
//! ```text
//!  connected ──TLS──▶ sealed ──SASL──▶ principal ──ClusterAction──▶ a question of founding, or a link
//! ```
//!
//! Nodes that have a secret in common (`mainstem.node.secret.location`) prove by SCRAM that they know it, and need no user and no rule.
//!
//! Users and rules of the metadata count as soon as the node has the metadata. Before that, as when all nodes start,
//! `super.users` are allowed, and SCRAM has the users of `bootstrap.checkpoint`.

mod login;
mod refusals;
mod secret;

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mainstem_config::BrokerConfig;
use mainstem_controller::MetadataImage;
use mainstem_lines::OneLine;
use mainstem_security::acl::{AclOperation, CLUSTER_NAME, ResourceType, scan};
use mainstem_security::plain::PlainUsers;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_security::tls::TlsError;
use mainstem_security::{
    Authenticator, AuthorizerRules, Credentials, DecoyShape, Failure, KafkaPrincipal, Now, Question, Secret,
    Step, StepContext, TokenCredential,
};

use super::channel::Channel;
use super::hello;
use mainstem_listener_security::{ListenerSecurityError, SaslSettings, TlsSettings};
use mainstem_runtime::clock::{Clock, machine_now};
use mainstem_runtime::random;

use login::Login;
use refusals::Refusals;
use secret::NodeSecret;

/// Whichever node is at an address, in the place of its id ([`NodeGate::dial`]): for questions, and not for links.
pub const ANY_NODE: i32 = -1;

/// The reason why a node that begins without a proof is refused.
const UNPROVEN: &str = "it speaks as a node and proves nothing: its controllers' listener needs the protocol of this one, and its \
                        mainstem.node.secret.location, if that is set, the same secret";

/// The node that a gate belongs to.
pub trait GateNode: Send + Sync {
    /// The metadata, if there are any yet.
    fn metadata(&self) -> Option<Arc<MetadataImage>>;

    /// The secret that decoys are made from, if the configuration has one.
    fn decoy_secret(&self) -> Option<Secret>;

    /// A peer has authenticated at the listener for controllers, or has failed to.
    fn authenticated(&self, listener: &str, succeeded: bool);
}

/// Proofs of this node to others, and those that it asks of them.
pub struct NodeGate {
    /// The name of the listener for controllers.
    listener: String,
    tls: Option<Arc<TlsSettings>>,
    sasl: Option<Arc<SaslSettings>>,
    /// The user of this node, if nodes have users.
    login: Option<Login>,
    /// The secret that `sasl` asks for, if nodes have one in common and no users.
    secret: Option<NodeSecret>,
    /// Nodes authenticate by certificates alone, so that a node that is dialled does it as well.
    by_certificates: bool,
    /// The rules of the configuration; `None` without an authorizer.
    rules: Option<AuthorizerRules>,
    /// The users before there are metadata.
    first: MetadataImage,
    node: OnceLock<Arc<dyn GateNode>>,
    decoy_key: Secret,
    clock: Clock,
    timeout: Duration,
    failed_delay: Duration,
    refusals: Refusals,
}

/// A connection of a peer whose principal is known.
pub struct Arrived {
    /// The connection.
    pub channel: Channel,
    /// The principal that the peer has proven to be.
    pub principal: KafkaPrincipal,
    /// Its address.
    pub peer: SocketAddr,
    /// When its session is over (`connections.max.reauth.ms`).
    pub(super) ends: Option<Instant>,
}

impl NodeGate {
    /// By a configuration; none without other nodes. `first` has the users of `bootstrap.checkpoint`.
    ///
    /// # Errors
    /// When stores or users cannot be used, or this node could not prove itself to others.
    pub fn new(
        config: &BrokerConfig,
        first: MetadataImage,
        rules: Option<AuthorizerRules>,
        clock: Clock,
    ) -> Result<Option<Arc<NodeGate>>, ListenerSecurityError> {
        let Some(nodes) = &config.nodes else { return Ok(None) };
        let name = &nodes.endpoint.listener;
        let tls = nodes.tls.as_ref().map(|tls| TlsSettings::of_nodes(name, tls)).transpose()?;
        let secret = nodes.secret.as_deref().map(|path| NodeSecret::read(path, config.node_id)).transpose();
        let secret = secret.map_err(|why| ListenerSecurityError::Nodes(name.clone(), why))?;
        let (sasl, login) = match (&nodes.sasl, nodes.login) {
            (Some(sasl), Some(mechanism)) => {
                let login = Login::new(name, sasl, mechanism)?;
                login.check(&first).map_err(|why| ListenerSecurityError::Nodes(name.clone(), why))?;
                (Some(SaslSettings::new(name, sasl)?), Some(login))
            }
            _ if secret.is_some() => (Some(SaslSettings::new(name, &NodeSecret::listener())?), None),
            _ => (None, None),
        };
        let sasl = sasl.map(Arc::new);
        if nodes.authenticates() && secret.is_none() && rules.is_none() {
            tracing::warn!(
                listener = name,
                "who authenticates at the controllers' listener may act as a node: without authorizer.class.name nothing \
                 asks for ClusterAction"
            );
        }
        let by_certificates = sasl.is_none() && nodes.authenticates();
        let tls = tls.map(Arc::new);
        let listener = name.clone();
        let gate = NodeGate {
            listener,
            tls,
            sasl,
            login,
            secret,
            by_certificates,
            rules,
            first,
            ..NodeGate::open_to_all(clock)
        };
        let authentication = &config.authentication;
        let (timeout, failed_delay) = (authentication.timeout, authentication.failed_delay);
        Ok(Some(Arc::new(NodeGate { timeout, failed_delay, ..gate })))
    }

    /// Nothing is asked for.
    pub fn open_to_all(clock: Clock) -> NodeGate {
        NodeGate {
            listener: "CONTROLLER".into(),
            tls: None,
            sasl: None,
            login: None,
            secret: None,
            by_certificates: false,
            rules: None,
            first: MetadataImage::default(),
            node: OnceLock::new(),
            decoy_key: Secret::new(random::bytes::<32>()),
            clock,
            timeout: Duration::from_secs(10),
            failed_delay: Duration::ZERO,
            refusals: Refusals::default(),
        }
    }

    /// The broker's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Asks this node from now on.
    pub fn ask(&self, node: Arc<dyn GateNode>) {
        let _ = self.node.set(node);
    }

    /// The stores, to be read again when they change.
    pub fn tls(&self) -> Option<&Arc<TlsSettings>> {
        self.tls.as_ref()
    }

    /// Authenticates a peer that has connected. Blocks for at most `mainstem.authentication.timeout.ms`, and the delay of a refusal.
    ///
    /// # Errors
    /// When it does not prove who it is; that was logged, and the peer was notified as far as it may know.
    pub fn accept(&self, socket: TcpStream) -> io::Result<Arrived> {
        let peer = socket.peer_addr()?;
        let arrived = self.authenticate(socket, peer);
        if let Err(error) = &arrived {
            self.count(false);
            self.refused(peer.ip(), &error.to_string());
        }
        arrived
    }

    /// Logs that a peer was refused: the same refusal once a minute, with the number of repetitions.
    pub fn refused(&self, peer: IpAddr, why: &str) {
        self.refusals.say(peer, &OneLine(why).to_string(), self.clock.instant());
    }

    /// Logs that a link of a node has ended, in the same way.
    pub(super) fn link_ended(&self, peer: IpAddr, node: i32, why: &str) {
        self.refusals.say_ended(peer, node, &OneLine(why).to_string(), self.clock.instant());
    }

    fn authenticate(&self, socket: TcpStream, peer: SocketAddr) -> io::Result<Arrived> {
        let deadline = machine_now() + self.timeout;
        let channel = match &self.tls {
            None => Channel::plain(socket, deadline)?,
            Some(tls) => {
                let channel = Channel::sealed(socket, tls.session().map_err(io::Error::other)?, deadline)
                    .inspect_err(|_| tls.handshakes().failed())?;
                channel.with_session(|session| drop(tls.handshakes().done(session)));
                channel
            }
        };
        if let Some(sasl) = &self.sasl {
            let (channel, session) = self.by_sasl(channel, sasl)?;
            self.count(true);
            let ends = (session.lifetime_ms > 0)
                .then(|| self.clock.instant() + Duration::from_millis(session.lifetime_ms));
            return Ok(Arrived { channel, principal: session.principal, peer, ends });
        }
        let principal = match &self.tls {
            None => KafkaPrincipal::anonymous(),
            Some(tls) => {
                let principal = principal_of(&channel, tls)?;
                self.count(true);
                principal
            }
        };
        Ok(Arrived { channel, principal, peer, ends: None })
    }

    fn by_sasl(
        &self,
        mut channel: Channel,
        settings: &SaslSettings,
    ) -> io::Result<(Channel, mainstem_security::Session)> {
        let mut authenticator = Authenticator::new(settings.rules.clone());
        loop {
            let frame = read_frame(&mut channel.reader, settings.receive_bytes_max)?;
            if hello::is_hello(&frame) {
                return Err(invalid(UNPROVEN));
            }
            let users = NodeUsers { gate: self, settings };
            let now = self.clock.now();
            let now = Now { monotonic_ms: now.mono_ms, wall_ms: now.wall_ms };
            let mut random = || u128::from_ne_bytes(random::bytes());
            let context = StepContext { now, credentials: &users, random: &mut random };
            match authenticator.step(&frame, context) {
                Step::Reply(reply) => channel.writer.write_all(&reply)?,
                Step::Done { reply, session } => {
                    channel.writer.write_all(&reply)?;
                    return Ok((channel, session));
                }
                Step::Ask { .. } => return Err(invalid("it is a client of Kafka's protocol, and no node")),
                Step::Fail(Failure { reply, detail, is_refusal }) => {
                    if is_refusal {
                        std::thread::sleep(self.failed_delay);
                    }
                    channel.refuse(&reply.unwrap_or_default());
                    return Err(invalid(OneLine(&detail).to_string()));
                }
            }
        }
    }

    /// Connects to another node, of the id `to`, and proves to it whose the connection is. `host` is the name that its certificate has
    /// to have.
    ///
    /// # Errors
    /// The system's; of the kind `InvalidData` when one of both does not believe the other.
    pub fn dial(&self, socket: TcpStream, (to, host): (i32, &str), time: Duration) -> io::Result<Channel> {
        let address = socket.peer_addr()?.ip();
        let deadline = machine_now() + time;
        let mut channel = match &self.tls {
            None => Channel::plain(socket, deadline)?,
            Some(tls) => {
                let session = tls.dialled(host).map_err(|error| invalid(error.to_string()))?;
                let channel = Channel::sealed(socket, session, deadline).map_err(explained)?;
                if self.by_certificates {
                    let principal = principal_of(&channel, tls)?;
                    self.check(&principal, address).map_err(invalid)?;
                }
                channel
            }
        };
        let by_secret = self.secret.as_ref().map(|secret| secret.login(to));
        if let Some(login) = by_secret.as_ref().or(self.login.as_ref()) {
            login.prove(&mut channel).map_err(explained)?;
        }
        Ok(channel)
    }

    /// Returns true if a node that was dialled has yet to prove who it is, beyond the name in its certificate. With PLAIN the
    /// dialled node proves nothing, and with SCRAM only that it knows this node's user.
    pub fn wants_proof(&self) -> bool {
        self.sasl.is_some()
    }

    /// Returns true if peers authenticate before their hello, by SASL or by a certificate.
    pub(super) fn proves(&self) -> bool {
        self.sasl.is_some() || self.by_certificates
    }

    /// Returns true if a peer may be the node that wants to join by this id, at this host. It has proven the id to this node, or is
    /// authenticated as somebody who may act as a node; or it is at that host.
    pub fn may_join(&self, arrived: &Arrived, (node, host): (i32, &str)) -> bool {
        if self.secret.is_some() {
            let name = &arrived.principal.name;
            return secret::node_of(name) == Some(node) && !secret::is_for_any(name);
        }
        let ip = arrived.peer.ip().to_canonical();
        let is_at_host =
            || (host, 0).to_socket_addrs().is_ok_and(|mut all| all.any(|one| one.ip().to_canonical() == ip));
        self.proves() || is_at_host()
    }

    /// Refuses the link of a peer that has not proven that it is a node which wants to reach this one.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_link(&self, principal: &KafkaPrincipal, node: i32) -> Result<(), String> {
        if self.secret.is_none() {
            return Ok(());
        }
        match secret::node_of(&principal.name) {
            _ if secret::is_for_any(&principal.name) => {
                Err("its proof is one for questions of nodes that join, and not for a link".to_owned())
            }
            Some(proven) if proven != node => {
                Err(format!("it has proven to be node {proven}, and says that it is node {node}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a principal that may not act as a node.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, principal: &KafkaPrincipal, host: IpAddr) -> Result<(), String> {
        // The secret is known to nodes alone.
        let Some(rules) = self.rules.as_ref().filter(|_| self.secret.is_none()) else { return Ok(()) };
        let principal = principal.to_string();
        let question = Question {
            principal: &principal,
            host,
            operation: AclOperation::ClusterAction,
            resource_type: ResourceType::Cluster,
            name: CLUSTER_NAME,
        };
        let is_allowed = self.with_metadata(|image| match image {
            Some(image) => scan::decide(rules, image.acls().map(|(_, acl)| acl), &question).0.is_allowed(),
            // What nothing is known of is not open yet.
            None => rules.super_users.contains(&principal),
        });
        match is_allowed {
            true => Ok(()),
            false => Err(format!(
                "{principal} may not act as a node: it lacks ClusterAction on the cluster; name it in super.users, the same \
                 on every node"
            )),
        }
    }

    /// Secret from which the SCRAM salts of unknown users are derived. It is the cluster's secret; until a broker knows that, it
    /// is derived from the users of the first records, which are the same after a restart.
    fn decoy_key(&self) -> Secret {
        let secret = self.node.get().and_then(|node| node.decoy_secret());
        secret.or_else(|| self.first.scram_secret()).unwrap_or_else(|| self.decoy_key.clone())
    }

    /// Calls a function with the metadata, if they are there.
    fn with_metadata<T>(&self, look: impl FnOnce(Option<&MetadataImage>) -> T) -> T {
        let image = self.node.get().and_then(|node| node.metadata());
        look(image.as_deref().filter(|image| image.next_offset() > 0))
    }

    fn count(&self, succeeded: bool) {
        if let Some(node) = self.node.get() {
            node.authenticated(&self.listener, succeeded);
        }
    }
}

/// Those whom a node knows.
struct NodeUsers<'a> {
    gate: &'a NodeGate,
    settings: &'a SaslSettings,
}

impl Credentials for NodeUsers<'_> {
    fn plain(&self) -> Option<&PlainUsers> {
        self.settings.plain_users()
    }

    fn scram(&self, mechanism: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
        if let Some(secret) = &self.gate.secret {
            return secret.credential(mechanism, user).map(Cow::Borrowed);
        }
        let first = &self.gate.first;
        self.gate.with_metadata(|image| {
            image.unwrap_or(first).scram_credential(mechanism, user).cloned().map(Cow::Owned)
        })
    }

    fn token(&self, _mechanism: ScramMechanism, _id: &str) -> Option<TokenCredential> {
        None
    }

    fn decoy(&self, mechanism: ScramMechanism) -> DecoyShape {
        let gate = self.gate;
        gate.with_metadata(|image| image.unwrap_or(&gate.first).scram_decoy(mechanism, gate.decoy_key()))
    }
}

/// Principal of a peer, from its certificate.
fn principal_of(channel: &Channel, tls: &TlsSettings) -> io::Result<KafkaPrincipal> {
    let principal = channel.with_session(|session| session.principal(&tls.mapping()));
    let principal = principal.unwrap_or_else(|| Ok(KafkaPrincipal::anonymous()));
    principal.map_err(|error| invalid(error.to_string()))
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Reads a frame; its length may not be above `most`.
pub fn read_frame(stream: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        return Err(invalid("its first frame is too long for another node's"));
    }
    // It grows with what arrives: a length that an unauthenticated peer announces costs nothing.
    let mut frame = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut frame)?;
    match read == length {
        true => Ok(frame),
        false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended within a frame")),
    }
}

/// Adds to an error of the authentication what to do about it.
fn explained(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return invalid(
            "it ended the connection while this node proved who it is; its log says why, if it was not stopped",
        );
    }
    let session = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match session {
        None => error,
        Some(TlsError::NotTls) => invalid(
            "what answers there does not speak TLS: give the controllers' listener the same protocol on every node",
        ),
        Some(failed) => invalid(format!(
            "TLS: {failed}; the nodes have to trust each other's certificates (ssl.truststore.*), and each certificate has \
             to have the name that controller.quorum.voters has"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that announces a frame and sends a part of it; the most that it was ever asked for at once.
    struct Promising<'a>(&'a [u8], usize);

    impl Read for Promising<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = self.1.max(buffer.len());
            self.0.read(buffer)
        }
    }

    #[test]
    fn a_frame_takes_memory_as_it_arrives() {
        let most = 512 << 10;
        let promised = [&(most as u32).to_be_bytes()[..], &[7; 100]].concat();
        let mut peer = Promising(&promised, 0);
        let error = read_frame(&mut peer, most).expect_err("it is not whole");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(peer.1 <= 64 << 10, "{} bytes were there for 100", peer.1);

        let whole = [&(most as u32).to_be_bytes()[..], &vec![7; most]].concat();
        assert_eq!(read_frame(&mut &whole[..], most).expect("it is whole"), vec![7; most]);
        let error = read_frame(&mut &whole[..], most - 1).expect_err("it is too long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
