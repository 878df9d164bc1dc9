//! Authentication between the nodes of a cluster, and encryption of their connections.
//!
//! Nodes send all requests to each other over the controllers' listener, by its protocol. Its keys have the prefix of that
//! listener on both ends of a connection: the node that dials shows the same certificate as the one that answers.

use std::path::PathBuf;

use super::broker_values::BrokerValues;
use super::listeners::{Endpoint, Listeners, SecurityProtocol};
use super::problem::Problem;
use super::sasl::{self, SaslListener};
use super::tls::{self, TlsListener};

/// The key that names the file with the nodes' secret.
const SECRET: &str = "mainstem.node.secret.location";
/// The key that lets nodes connect without authentication, from any host.
const UNAUTHENTICATED: &str = "mainstem.unauthenticated.nodes";

/// The security settings of the controllers' listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeListener {
    /// Its name and address.
    pub endpoint: Endpoint,
    /// The SASL mechanisms for other nodes; none without SASL.
    pub sasl: Option<SaslListener>,
    /// `sasl.mechanism.controller.protocol`, one of those of `sasl`; none without SASL.
    pub login: Option<&'static str>,
    /// Its stores; none without TLS.
    pub tls: Option<TlsListener>,
    /// `mainstem.node.secret.location`: the file with the secret by which nodes prove that they are nodes.
    pub secret: Option<PathBuf>,
}

/// The authentication of nodes that the configuration demands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proof {
    /// `mainstem.require.authentication`: there has to be one.
    pub(super) is_required: bool,
    /// `mainstem.unauthenticated.nodes`: there need be none, from whichever host a node connects.
    pub(super) is_waived: bool,
}

impl NodeListener {
    /// Returns true if peers that connect have to authenticate.
    pub fn authenticates(&self) -> bool {
        self.sasl.is_some() || self.secret.is_some() || self.tls.as_ref().is_some_and(asks_for_certificates)
    }

    /// Reads the listener from the keys of a node of a cluster.
    pub(super) fn new(
        values: &BrokerValues,
        listeners: &Listeners,
        proof: Proof,
    ) -> Result<Option<NodeListener>, Vec<Problem>> {
        let Some(endpoint) = &listeners.controller else { return Ok(None) };
        let one = std::slice::from_ref(endpoint);
        let sasl = sasl::listeners(values, one)?.pop().flatten();
        let tls = tls::listeners(values, one).pop().flatten();
        let login = sasl.as_ref().map(|sasl| login(values, endpoint, sasl)).transpose();
        let login = login.map_err(|problem| vec![problem])?;
        let secret = values.lookup(SECRET).map(|(text, _)| text.trim()).filter(|text| !text.is_empty());
        let secret = secret.map(PathBuf::from);
        let listener = NodeListener { endpoint: endpoint.clone(), sasl, login, tls, secret };
        let mut problems = Vec::new();
        problems.extend(listener.proven_twice());
        problems.extend(listener.open_to_unauthenticated(proof));
        if proof.is_required && !listener.authenticates() {
            problems.push(Problem::new(format!(
                "the controller's listener {endpoint} does not authenticate the nodes that connect to it, which \
                 mainstem.require.authentication forbids: give all nodes the same {SECRET}, or map it to SASL_SSL, or \
                 to SSL with {}.ssl.client.auth=required",
                prefix(endpoint)
            )));
        }
        problems.extend(listener.weaker_than_asked(values, listeners));
        if problems.is_empty() { Ok(Some(listener)) } else { Err(problems) }
    }

    /// A listener with SASL asks for a user, and no secret beside it.
    fn proven_twice(&self) -> Option<Problem> {
        (self.sasl.is_some() && self.secret.is_some()).then(|| {
            Problem::new(format!(
                "{SECRET} and {} of the controller's listener {} are two ways by which nodes would prove who they are: remove \
                 the key, or map the listener to {}",
                self.endpoint.protocol.name(),
                self.endpoint,
                if self.tls.is_some() { "SSL" } else { "PLAINTEXT" }
            ))
        })
    }

    /// Refuses a listener that other hosts reach without authentication: a peer could vote, and stop the cluster. The operator
    /// may allow it by a key.
    fn open_to_unauthenticated(&self, proof: Proof) -> Option<Problem> {
        if proof.is_waived || self.authenticates() || self.endpoint.is_loopback() {
            return None;
        }
        Some(Problem::new(format!(
            "the controller's listener {} takes connections from other hosts, and any peer that connects could \
             act as a node, without proving anything: make a secret by `mainstem security node-secret FILE`, copy the file to each node and set \
             {SECRET} to it; or use certificates (docs/security.md); or, where a firewall keeps others away, set \
             {UNAUTHENTICATED}=true",
            self.endpoint
        )))
    }

    /// Kafka's brokers replicate over the listener between brokers, ours over that of the controllers: protection that is
    /// configured for the first is needed on the second.
    fn weaker_than_asked(&self, values: &BrokerValues, listeners: &Listeners) -> Option<Problem> {
        let keys = ["inter.broker.listener.name", "security.inter.broker.protocol"];
        let key = keys.into_iter().find(|key| values.lookup(key).is_some())?;
        let between = listeners.open.iter().find(|endpoint| endpoint.listener == listeners.inter_broker)?;
        let (asked, has) = (between.protocol, self.endpoint.protocol);
        let lacks_tls = asked.has_tls() && !has.has_tls();
        let authenticates = asked.has_sasl()
            || tls::listeners(values, std::slice::from_ref(between))
                .pop()
                .flatten()
                .is_some_and(|tls| asks_for_certificates(&tls));
        if !lacks_tls && (!authenticates || self.authenticates()) {
            return None;
        }
        let name = &self.endpoint.listener;
        Some(Problem::new(format!(
            "{key} asks for {} between brokers ({between}), and what nodes copy goes over the controller's listener, which \
             has {}: protect that one as well (listener.security.protocol.map={name}:{})",
            asked.name(),
            has.name(),
            stronger(asked, has).name()
        )))
    }
}

fn stronger(one: SecurityProtocol, other: SecurityProtocol) -> SecurityProtocol {
    match (one.has_tls() || other.has_tls(), one.has_sasl() || other.has_sasl()) {
        (true, true) => SecurityProtocol::SaslSsl,
        (true, false) => SecurityProtocol::Ssl,
        (false, true) => SecurityProtocol::SaslPlaintext,
        (false, false) => SecurityProtocol::Plaintext,
    }
}

fn prefix(endpoint: &Endpoint) -> String {
    format!("listener.name.{}", endpoint.listener.to_lowercase())
}

fn asks_for_certificates(tls: &TlsListener) -> bool {
    tls.get("ssl.client.auth") == Some("required")
}

/// The mechanism by which this node authenticates at others.
fn login(values: &BrokerValues, endpoint: &Endpoint, sasl: &SaslListener) -> Result<&'static str, Problem> {
    const KEY: &str = "sasl.mechanism.controller.protocol";
    let wanted = values.lookup(KEY).map_or("GSSAPI", |(text, _)| text.trim());
    let names: Vec<_> = sasl.mechanisms.iter().map(|mechanism| mechanism.name).collect();
    let Some(found) = sasl.mechanisms.iter().find(|mechanism| mechanism.name == wanted) else {
        return Err(Problem::new(format!(
            "{KEY}={wanted}, with which this node would prove itself to others, is not a mechanism of the controller's \
             listener {endpoint}: set it to one of {}",
            names.join(", ")
        )));
    };
    if found.jaas_config.is_none() {
        return Err(Problem::new(format!(
            "{KEY}={wanted} has no user: set {}.{}.sasl.jaas.config to its login module with username and password",
            prefix(endpoint),
            wanted.to_lowercase()
        )));
    }
    Ok(found.name)
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::{SECRET, UNAUTHENTICATED};

    const NODE: &str = "process.roles=broker,controller\nnode.id=2\ncontroller.listener.names=CONTROLLER\n\
                        controller.quorum.voters=1@a:1,2@b:2\n\
                        listeners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093\n";
    const PLAIN: &str = "listener.name.controller.sasl.enabled.mechanisms=PLAIN\n\
                         listener.name.controller.plain.sasl.jaas.config=a.B required user_a=b;\n";

    #[track_caller]
    fn check(protocol: &str, lines: &str, expect: &str) {
        let map = format!(
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:{protocol}\n"
        );
        let file = Properties::parse(format!("{NODE}{map}{lines}").as_bytes()).expect("it is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() });
        let shown = match config {
            Ok(config) => {
                let nodes = config.nodes.expect("there are others");
                let (sasl, tls) = (nodes.sasl.is_some(), nodes.tls.is_some());
                format!("sasl {sasl}, tls {tls}, login {:?}", nodes.login)
            }
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expect), "{lines}: {shown}");
    }

    #[test]
    fn nodes_speak_by_the_protocol_of_the_controllers_listener() {
        check("PLAINTEXT", "", "sasl false, tls false, login None");
        check("SSL", "", "sasl false, tls true, login None");
        let plain = format!("{PLAIN}sasl.mechanism.controller.protocol=PLAIN\n");
        check("SASL_SSL", &plain, "sasl true, tls true, login Some(\"PLAIN\")");
        check("SASL_PLAINTEXT", &plain, "sasl true, tls false, login Some(\"PLAIN\")");
    }

    #[test]
    fn peers_from_other_hosts_prove_something_unless_it_is_said_that_they_need_not() {
        let beyond = "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n";
        let refused = "any peer that connects could act as a node";
        check("PLAINTEXT", beyond, refused);
        check("SSL", beyond, refused);
        check("SSL", &format!("{beyond}ssl.client.auth=required\n"), "sasl false, tls true");
        check("PLAINTEXT", &format!("{beyond}{SECRET}=/a/b\n"), "sasl false, tls false");
        check("PLAINTEXT", &format!("{beyond}{UNAUTHENTICATED}=true\n"), "sasl false, tls false");
        check("PLAINTEXT", &format!("{beyond}{UNAUTHENTICATED}=false\n{SECRET}=\n"), refused);
        for host in ["127.0.0.1", "[::1]", "localhost", "LocalHost", "127.8.8.8"] {
            let on = format!("listeners=PLAINTEXT://:9092,CONTROLLER://{host}:9093\n");
            check("PLAINTEXT", &on, "sasl false, tls false");
        }
    }

    #[test]
    fn a_secret_takes_the_place_of_a_user_of_sasl() {
        let sasl = format!("{PLAIN}sasl.mechanism.controller.protocol=PLAIN\n{SECRET}=/a/b\n");
        check("SASL_SSL", &sasl, "remove the key, or map the listener to SSL");
        check("SASL_PLAINTEXT", &sasl, "remove the key, or map the listener to PLAINTEXT");
        let required = "listeners=SSL://:1,CONTROLLER://127.0.0.1:2\nssl.client.auth=required\n\
                        mainstem.require.authentication=true\n";
        check("PLAINTEXT", &format!("{required}{SECRET}=/a/b\n"), "sasl false, tls false");
    }

    #[test]
    fn what_could_not_work_or_would_be_open_is_refused() {
        check("SASL_SSL", "", "asks for GSSAPI, which this version does not have");
        check(
            "SASL_SSL",
            PLAIN,
            "sasl.mechanism.controller.protocol=GSSAPI, with which this node would prove",
        );
        let scram = "listener.name.controller.sasl.enabled.mechanisms=SCRAM-SHA-512\n\
                     sasl.mechanism.controller.protocol=SCRAM-SHA-512\n";
        check(
            "SASL_SSL",
            scram,
            "SCRAM-SHA-512 has no user: set listener.name.controller.scram-sha-512.sasl.jaas.config",
        );
        let required = "listeners=SSL://:1,CONTROLLER://127.0.0.1:2\nssl.client.auth=required\n\
                        mainstem.require.authentication=true\n";
        check("PLAINTEXT", required, "does not authenticate the nodes that connect to it");
        check("SSL", required, "sasl false, tls true");
        let between =
            "listeners=PLAINTEXT://:3,SSL://:1,CONTROLLER://127.0.0.1:2\ninter.broker.listener.name=SSL\n";
        check("PLAINTEXT", between, "inter.broker.listener.name asks for SSL between brokers");
        check("SSL", between, "sasl false, tls true");
        let mutual = format!("{between}listener.name.ssl.ssl.client.auth=required\n");
        check("SSL", &mutual, "protect that one as well");
        let by_protocol = "listeners=PLAINTEXT://:3,SSL://:1,CONTROLLER://127.0.0.1:2\nsecurity.inter.broker.protocol=SSL\n";
        check("PLAINTEXT", by_protocol, "security.inter.broker.protocol asks for SSL between brokers");
    }
}
