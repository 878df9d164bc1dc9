//! Three nodes whose links are encrypted and authenticated. A peer that is no node is refused at both ends and takes
//! part in nothing. Clients are authorised as themselves, whichever node they ask.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mainstem_testkit::port;
use mainstem_tests::broker::binary;
use serde_json::Value;
use tempfile::TempDir;

/// The longest wait for a node's start, also on a busy machine.
const READY_MAX: Duration = Duration::from_secs(60);
/// The longest wait for a line of a log.
const SAID_MAX: Duration = Duration::from_secs(60);

const PLAIN: &str = "org.apache.kafka.common.security.plain.PlainLoginModule required";
const SCRAM: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required";

type Settings = BTreeMap<String, String>;

/// The nodes 1, 2 and 3, two authorities, and the settings of all nodes.
struct Nodes {
    home: TempDir,
    /// The ports for clients and for other nodes, by node.
    ports: BTreeMap<u16, (u16, u16)>,
    common: Settings,
    running: BTreeMap<u16, Child>,
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the binary runs")
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

impl Nodes {
    /// Creates authorities; `settings` are those of all nodes.
    fn new(settings: &[(&str, &str)]) -> Nodes {
        let home = tempfile::tempdir().expect("a directory can be made");
        let ports: BTreeMap<u16, _> = (1..=3).map(|id| (id, (port(), port()))).collect();
        let voters: Vec<_> = ports.iter().map(|(id, (_, port))| format!("{id}@127.0.0.1:{port}")).collect();
        let mut nodes = Nodes { home, ports, common: Settings::new(), running: BTreeMap::new() };
        for name in ["own", "foreign"] {
            succeed(Command::new(binary()).args(["security", "init"]).arg(nodes.path(name)));
            let mut cert = Command::new(binary());
            cert.args(["security", "cert", "node", "--host", "127.0.0.1", "--dir"]).arg(nodes.path(name));
            succeed(&mut cert);
        }
        for id in 1..=3 {
            // The administrator exists from the first start on, as `kafka-storage format --add-scram` creates it.
            fs::create_dir_all(nodes.dir(id)).expect("a directory can be made");
            let file = "bootstrap.checkpoint";
            fs::copy(nodes.path("own/data").join(file), nodes.dir(id).join(file)).expect("it is there");
        }
        for (key, value) in [
            ("process.roles", "broker,controller"),
            ("controller.quorum.voters", &voters.join(",")),
            ("controller.listener.names", "CONTROLLER"),
            ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            ("ssl.keystore.type", "PEM"),
            ("ssl.truststore.type", "PEM"),
        ] {
            nodes.common.insert(key.to_owned(), value.to_owned());
        }
        nodes.set_stores("own", "node.pem");
        nodes.common.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        nodes
    }

    fn set_stores(&mut self, authority: &str, certificate: &str) {
        let stores = stores(&self.path(authority), certificate);
        self.common.extend(stores);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn dir(&self, id: u16) -> PathBuf {
        self.path(&format!("node-{id}"))
    }

    /// Starts a node, with settings of its own over the common ones. The channel gets its ready line.
    fn start_with(&mut self, id: u16, own: &Settings) -> mpsc::Receiver<Value> {
        let (clients, nodes) = self.ports[&id];
        let mut settings = self.common.clone();
        settings.insert("node.id".into(), id.to_string());
        settings.insert(
            "listeners".into(),
            format!("CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{nodes}"),
        );
        settings.insert("log.dirs".into(), self.dir(id).display().to_string());
        settings.extend(own.clone());
        let text: String = settings.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let file = self.path(&format!("{id}.properties"));
        fs::write(&file, text).expect("it can be written");
        let log =
            File::options().create(true).append(true).open(self.log_path(id)).expect("a log can be made");
        let mut command = Command::new(binary());
        command.args(["start", "--json", "--config"]).arg(file).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary runs");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test may be over.
                let _ = sender.send(serde_json::from_str(&line).expect("a line of JSON"));
            }
        });
        self.running.insert(id, child);
        ready
    }

    /// Starts a node with the common settings, and waits until it is ready.
    fn start(&mut self, id: u16) {
        let ready = self.start_with(id, &Settings::new());
        self.await_ready(id, &ready);
    }

    fn await_ready(&self, id: u16, ready: &mpsc::Receiver<Value>) {
        ready.recv_timeout(READY_MAX).unwrap_or_else(|_| panic!("node {id} is not ready:\n{}", self.log(id)));
    }

    fn start_all(&mut self) {
        let ready: Vec<_> = [2, 3, 1].map(|id| (id, self.start_with(id, &Settings::new()))).into();
        ready.iter().for_each(|(id, ready)| self.await_ready(*id, ready));
    }

    fn log_path(&self, id: u16) -> PathBuf {
        self.path(&format!("{id}.log"))
    }

    fn log(&self, id: u16) -> String {
        fs::read_to_string(self.log_path(id)).unwrap_or_default()
    }

    /// Waits for a line of a node's log behind its first `behind` bytes.
    #[track_caller]
    fn await_line(&self, id: u16, behind: usize, parts: &[&str]) {
        let deadline = Instant::now() + SAID_MAX;
        loop {
            let log = self.log(id);
            let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
            if log.get(behind..).unwrap_or_default().lines().any(is_it) {
                return;
            }
            assert!(Instant::now() < deadline, "node {id} does not say {parts:?}:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for as long as node 1 needs to report that it sends nothing to node 3, whether it does or not.
    fn await_silence(&self, behind: usize) {
        let deadline = Instant::now() + Duration::from_millis(2_500);
        let is_said =
            || self.log(1).get(behind..).is_some_and(|log| log.contains("nothing is sent to node 3"));
        while Instant::now() < deadline && !is_said() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns true if the metadata log of a node has a text.
    fn has(&self, id: u16, text: &str) -> bool {
        let files = fs::read_dir(self.dir(id).join("__cluster_metadata-0")).expect("it is there");
        let mut files =
            files.map(|entry| fs::read(entry.expect("it is there").path()).expect("it can be read"));
        files.any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    fn kill(&mut self, id: u16) {
        let mut child = self.running.remove(&id).expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    /// The tool against one node, as a user.
    fn tool(&self, id: u16, user: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--bootstrap", &format!("127.0.0.1:{}", self.ports[&id].0)]);
        command.arg("--command-config").arg(self.path("own").join(format!("{user}.properties")));
        command
    }

    /// The status of the cluster, by a node. It asks again while there is no metadata leader, since the tool fails then.
    #[track_caller]
    fn status(&self, id: u16, user: &str) -> Value {
        let deadline = Instant::now() + SAID_MAX;
        loop {
            let output = run(&mut self.tool(id, user, &["cluster", "status", "--json"]));
            if output.status.success() {
                return serde_json::from_slice(&output.stdout).expect("JSON");
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(Instant::now() < deadline, "no status of node {id}: {said}\n{}", self.log(id));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The salt and the iterations that the controllers' listener of a node shows for a SCRAM user, in clear.
    fn salt_of(&self, id: u16, user: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[&id].1)).expect("it listens");
        stream.set_read_timeout(Some(SAID_MAX)).expect("it can be set");
        let mut ask = |key: i16, body: &[u8]| {
            // The version is 1, the correlation id 0, and the client id null.
            let mut request = Vec::new();
            request.extend(key.to_be_bytes());
            request.extend(1_i16.to_be_bytes());
            request.extend(0_i32.to_be_bytes());
            request.extend((-1_i16).to_be_bytes());
            request.extend(body);
            stream.write_all(&(request.len() as u32).to_be_bytes()).expect("it can be written");
            stream.write_all(&request).expect("it can be written");
            let mut length = [0; 4];
            stream.read_exact(&mut length).expect("an answer");
            let mut answer = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut answer).expect("an answer");
            String::from_utf8_lossy(&answer).into_owned()
        };
        let mechanism = b"SCRAM-SHA-512";
        ask(17, &[&(mechanism.len() as u16).to_be_bytes()[..], mechanism].concat());
        let token = format!("n,,n={user},r=nonce");
        let answer = ask(36, &[&(token.len() as u32).to_be_bytes()[..], token.as_bytes()].concat());
        let (_, shown) = answer.split_once(",s=").expect("a challenge");
        // The length of the session follows.
        shown.trim_end_matches('\0').to_owned()
    }

    /// Waits until node 1 or 2 leads the metadata.
    #[track_caller]
    fn await_leader_of_others(&self, user: &str) {
        let deadline = Instant::now() + SAID_MAX;
        loop {
            let status = self.status(1, user);
            if [1, 2].map(Value::from).contains(&status["metadata_leader"]) {
                return;
            }
            assert!(Instant::now() < deadline, "no other node leads: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts node 3 with settings that make it no node of the cluster. It is refused, the nodes report why, and it takes part in
    /// nothing. `said` are lines of the nodes' logs.
    #[track_caller]
    fn refuses(&mut self, user: &str, own: &Settings, said: &[(u16, &[&str])]) {
        self.await_leader_of_others(user);
        let (here, there) = (self.log(1).len(), self.log(3).len());
        let ready = self.start_with(3, own);
        for (id, parts) in said {
            self.await_line(*id, if *id == 3 { there } else { here }, parts);
        }
        // Records from now on are for nodes alone.
        let secret = format!("for-nodes-alone-{}", self.log(3).len());
        succeed(&mut self.tool(1, user, &["topic", "create", &secret, "--replication-factor", "2"]));
        let deadline = Instant::now() + SAID_MAX;
        while ![1, 2].iter().all(|node| self.has(*node, &secret)) {
            assert!(Instant::now() < deadline, "nodes do not know of the topic");
            std::thread::sleep(Duration::from_millis(20));
        }
        // This is long enough for the others to send it something, if they trusted it.
        self.await_silence(here);
        assert_eq!(ready.try_recv().ok(), None, "it is ready");
        assert!(!self.has(3, &secret), "an unauthenticated peer has got the metadata");
        // One of both may have taken over from the other, if a busy machine gave one of them no processor time.
        self.await_leader_of_others(user);
        let log = self.log(3);
        let own = log.get(there..).unwrap_or_default();
        assert!(!own.contains("linked to node"), "{own}");
        assert!(!own.contains("this node is the metadata leader"), "{own}");
        let log = self.log(1);
        assert!(!log.get(here..).unwrap_or_default().contains("linked to node 3"), "{log}");
        self.kill(3);
    }
}

fn stores(dir: &Path, certificate: &str) -> Settings {
    let path = |name: &str| dir.join(name).display().to_string();
    let pairs = [("ssl.keystore.location", certificate), ("ssl.truststore.location", "ca.pem")];
    pairs.map(|(key, name)| (key.to_owned(), path(name))).into()
}

fn setting(key: &str, value: impl Into<String>) -> Settings {
    [(key.to_owned(), value.into())].into()
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (id, child) in &mut self.running {
            // The node may have ended.
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = fs::read_to_string(self.home.path().join(format!("{id}.log")));
                eprintln!("--- node {id}\n{}", log.unwrap_or_default());
            }
        }
    }
}

#[test]
fn nodes_by_passwords_over_tls_keep_out_who_does_not_belong() {
    let login = |user: &str, password: &str| {
        format!(
            "{PLAIN} username=\"{user}\" password=\"{password}\" user_node=\"secret\" user_mallory=\"known\";"
        )
    };
    const LOGIN: &str = "listener.name.controller.plain.sasl.jaas.config";
    let mut nodes = Nodes::new(&[
        ("listener.security.protocol.map", "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL"),
        ("mainstem.require.authentication", "true"),
        ("sasl.mechanism.controller.protocol", "PLAIN"),
        ("listener.name.controller.sasl.enabled.mechanisms", "PLAIN"),
        (LOGIN, &login("node", "secret")),
        ("listener.name.clients.sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("super.users", "User:node;User:admin"),
    ]);
    nodes.start_all();
    succeed(&mut nodes.tool(
        1,
        "admin",
        &["topic", "create", "t", "--partitions", "3", "--replication-factor", "3"],
    ));

    // A client is authorised as itself, whichever node it asks.
    let mut create = nodes.tool(2, "admin", &["user", "create", "alice"]);
    let mut child = create.stdin(Stdio::piped()).spawn().expect("the binary runs");
    child.stdin.take().expect("it is piped").write_all(b"a-password\n").expect("it reads");
    assert!(child.wait().expect("it ends").success());
    let admin = fs::read_to_string(nodes.path("own/admin.properties")).expect("it is there");
    let until = admin.find("sasl.jaas.config").expect("it is there");
    let alice =
        format!("{}sasl.jaas.config={SCRAM} username=\"alice\" password=\"a-password\";\n", &admin[..until]);
    fs::write(nodes.path("own/alice.properties"), alice).expect("it can be written");
    let leader = nodes.status(1, "admin")["metadata_leader"].as_u64();
    let quota = ["quota", "set", "--client", "app", "producer_byte_rate=1000000"];
    for id in 1..=3 {
        for asked in [&["topic", "create", "hers"][..], &quota] {
            let denied = run(&mut nodes.tool(id, "alice", asked));
            let said = String::from_utf8_lossy(&denied.stderr).to_lowercase();
            assert!(!denied.status.success() && said.contains("authoriz"), "{said}");
        }
        succeed(&mut nodes.tool(id, "admin", &quota));
    }
    each_node_has_settings_of_its_own(&nodes);
    // The tool asks the metadata leader to create topics, and any node to change quotas.
    let denies = |id: u16| nodes.log(id).contains("User:alice is Denied operation = ALTER_CONFIGS");
    assert!((1..=3).any(|id| Some(u64::from(id)) != leader && denies(id)), "only the leader judges");
    let rule = ["acl", "add", "--allow", "alice", "--operation", "create,write,read", "--topic", "hers"];
    succeed(&mut nodes.tool(3, "admin", &rule));
    let deadline = Instant::now() + SAID_MAX;
    while !run(&mut nodes.tool(2, "alice", &["topic", "create", "hers"])).status.success() {
        assert!(Instant::now() < deadline, "the rule does not count at node 2");
        std::thread::sleep(Duration::from_millis(50));
    }

    // Records go over the links.
    for id in 1..=3 {
        let mut produce = nodes.tool(id, "admin", &["produce", "t"]);
        let mut child = produce.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary runs");
        let text: String = (0..500).map(|line| format!("{id}-{line}-{}\n", "x".repeat(400))).collect();
        child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
        assert!(child.wait().expect("it ends").success());
    }
    nodes.kill(3);
    let read = succeed(&mut nodes.tool(1, "admin", &["consume", "t"]));
    assert_eq!(read.lines().count(), 1_500);

    // A certificate of another authority.
    let foreign = stores(&nodes.path("foreign"), "node.pem");
    let foreign: Settings =
        foreign.into_iter().map(|(key, value)| (format!("listener.name.controller.{key}"), value)).collect();
    nodes.refuses("admin", &foreign, &[(1, &["127.0.0.1", "refused", "alert"]), (3, &["no link to", "TLS"])]);
    // The certificate is right, and the password is not.
    let wrong = setting(LOGIN, login("node", "guessed"));
    nodes.refuses(
        "admin",
        &wrong,
        &[
            (1, &["127.0.0.1", "refused", "Invalid username or password"]),
            (3, &["no link to", "PLAIN as user node"]),
            // It takes the links of the others, who know its certificate, and they wait for its own.
            (1, &["nothing is sent to node 3", "until it has proven who it is"]),
        ],
    );
    // Everything is right, but it is not a node.
    let mallory = setting(LOGIN, login("mallory", "known"));
    nodes.refuses(
        "admin",
        &mallory,
        &[
            (1, &["refused", "User:mallory may not act as a node"]),
            (3, &["no link to", "User:mallory may not act as a node"]),
        ],
    );
    // An unauthenticated peer without TLS.
    let mut open = TcpStream::connect(("127.0.0.1", nodes.ports[&1].1)).expect("it listens");
    open.write_all(b"\0\0\0\x04MSF1").expect("it can be written");
    let mut answer = Vec::new();
    // The connection may be reset.
    let _ = open.read_to_end(&mut answer);
    assert!(!answer.windows(7).any(|part| part == b"Founded"), "an unauthenticated peer is answered");
    nodes.await_line(1, 0, &["refused", "is not TLS"]);

    nodes.start(3);
    let status = nodes.status(2, "admin");
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(3), "{status}");
}

/// Settings of one node do not apply to another, whichever node leads the metadata, and they are checked against the listeners of their
/// own node.
fn each_node_has_settings_of_its_own(nodes: &Nodes) {
    const MECHANISMS: &str = "listener.name.clients.sasl.enabled.mechanisms";
    let both = format!("{MECHANISMS}=SCRAM-SHA-512,SCRAM-SHA-256");
    let set = |id: u16, changes: &[&str]| {
        let node = format!("broker/{id}");
        run(&mut nodes.tool(id, "admin", &[&["config", "set", &node][..], changes].concat()))
    };
    // The settings of its properties are there as well.
    let own = |id: u16| {
        let all = succeed(&mut nodes.tool(id, "admin", &["config", "get", &format!("broker/{id}")]));
        all.lines().filter(|line| line.contains("DYNAMIC_BROKER_CONFIG")).collect::<Vec<_>>().join("\n")
    };
    for id in 1..=3 {
        for (change, why) in [
            ("listener.name.clients.ssl.keystore.location=/missing.pem", "CLIENTS cannot use TLS"),
            ("listener.name.clients.sasl.enabled.mechanisms=GSSAPI", "asks for GSSAPI"),
            ("listener.name.controller.plain.sasl.jaas.config=other", "CONTROLLER cannot be changed"),
        ] {
            let refused = set(id, &[change]);
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && said.contains(why), "{id} {change}: {said}");
        }
        assert!(!own(id).contains("listener.name"), "{}", own(id));
    }
    // A node describes a setting when it has carried it out, which may be a moment after the answer.
    let await_own = |id: u16, is_set: bool| {
        let deadline = Instant::now() + SAID_MAX;
        while own(id).contains(MECHANISMS) != is_set {
            assert!(Instant::now() < deadline, "node {id}, set: {is_set}: {}", own(id));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for id in 1..=3 {
        // The same as for another node.
        assert!(set(id, &[&both]).status.success(), "{id}");
        await_own(id, true);
    }
    for id in [3, 2, 1] {
        assert!(set(id, &["--delete", MECHANISMS]).status.success(), "{id}");
        await_own(id, false);
    }
}

#[test]
fn nodes_by_certificates_keep_out_other_certificates() {
    let mut nodes = Nodes::new(&[
        ("listener.security.protocol.map", "CLIENTS:PLAINTEXT,CONTROLLER:SSL"),
        ("listener.name.controller.ssl.client.auth", "required"),
        ("super.users", "User:CN=node;User:ANONYMOUS"),
    ]);
    // A change of users is accepted although no listener asks for them.
    for id in 1..=3 {
        fs::remove_file(nodes.dir(id).join("bootstrap.checkpoint")).expect("it is there");
    }
    fs::write(nodes.path("own/anonymous.properties"), "security.protocol=PLAINTEXT\n")
        .expect("it can be written");
    nodes.start_all();
    succeed(&mut nodes.tool(2, "anonymous", &["topic", "create", "t", "--replication-factor", "3"]));
    nodes.kill(3);
    let admin = stores(&nodes.path("own"), "admin.pem");
    nodes.refuses(
        "anonymous",
        &admin,
        &[
            (1, &["refused", "User:CN=admin may not act as a node"]),
            (3, &["no link to", "User:CN=admin may not act as a node"]),
        ],
    );
    nodes.start(3);
}

#[test]
fn nodes_by_scram_need_users_that_are_there_before_the_metadata() {
    let mut nodes = Nodes::new(&[
        ("listener.security.protocol.map", "CLIENTS:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"),
        ("sasl.mechanism.controller.protocol", "SCRAM-SHA-512"),
        ("listener.name.controller.sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("super.users", "User:admin;User:ANONYMOUS"),
    ]);
    let admin = fs::read_to_string(nodes.path("own/admin.properties")).expect("it is there");
    let login = admin.lines().find_map(|line| line.strip_prefix("sasl.jaas.config=")).expect("it is there");
    const LOGIN: &str = "listener.name.controller.scram-sha-512.sasl.jaas.config";
    let unknown = setting(LOGIN, format!("{SCRAM} username=\"other\" password=\"secret\";"));
    let refused = nodes.start_with(1, &unknown);
    nodes.await_line(1, 0, &["the user other of SCRAM-SHA-512 is not in bootstrap.checkpoint"]);
    assert!(refused.recv_timeout(READY_MAX).is_err(), "it starts");
    nodes.running.remove(&1).expect("it was started").wait().expect("it has ended");

    nodes.common.insert(LOGIN.to_owned(), login.to_owned());
    fs::write(nodes.path("own/anonymous.properties"), "security.protocol=PLAINTEXT\n")
        .expect("it can be written");
    nodes.start_all();
    succeed(&mut nodes.tool(2, "anonymous", &["topic", "create", "t", "--replication-factor", "3"]));
    let users = succeed(&mut nodes.tool(3, "anonymous", &["user", "list"]));
    assert!(users.contains("admin"), "the users of the file are those of the cluster: {users}");
    // No node reveals which users exist, not even after a restart.
    let shown = nodes.salt_of(1, "nobody");
    assert_ne!(shown, nodes.salt_of(1, "another"));
    for id in [2, 3] {
        assert_eq!(nodes.salt_of(id, "nobody"), shown, "node {id}");
    }
    nodes.kill(2);
    nodes.start(2);
    assert_eq!(nodes.salt_of(2, "nobody"), shown);
}

/// Certificates of another authority replace the old ones while all nodes serve. Existing links stay, and new ones
/// have the new certificates at both ends.
#[test]
fn certificates_of_nodes_are_replaced_while_they_serve() {
    let mut nodes = Nodes::new(&[
        ("listener.security.protocol.map", "CLIENTS:PLAINTEXT,CONTROLLER:SSL"),
        ("listener.name.controller.ssl.client.auth", "required"),
        ("super.users", "User:CN=node;User:ANONYMOUS"),
    ]);
    for id in 1..=3 {
        fs::remove_file(nodes.dir(id).join("bootstrap.checkpoint")).expect("it is there");
    }
    fs::write(nodes.path("own/anonymous.properties"), "security.protocol=PLAINTEXT\n")
        .expect("it can be written");
    nodes.start_all();
    succeed(&mut nodes.tool(2, "anonymous", &["topic", "create", "t", "--replication-factor", "3"]));
    nodes.kill(3);
    // Node 3 has the new ones alone, and the others trust both authorities.
    let foreign = stores(&nodes.path("foreign"), "node.pem");
    let read = |nodes: &Nodes, name: &str| fs::read_to_string(nodes.path(name)).expect("it is there");
    let both = [read(&nodes, "own/ca.pem"), read(&nodes, "foreign/ca.pem")].concat();
    let ready = nodes.start_with(3, &foreign);
    nodes.await_line(3, 0, &["TLS"]);
    assert!(ready.try_recv().is_err(), "it is ready");
    // The files are replaced as a person does it: by a rename.
    for (name, text) in [("own/ca.pem", both), ("own/node.pem", read(&nodes, "foreign/node.pem"))] {
        let new = nodes.path("new.pem");
        fs::write(&new, text).expect("it can be written");
        fs::rename(&new, nodes.path(name)).expect("it can be renamed");
    }
    nodes.await_ready(3, &ready);
    let deadline = Instant::now() + SAID_MAX;
    while nodes.status(3, "anonymous")["under_replicated"] != Value::Array(Vec::new()) {
        assert!(Instant::now() < deadline, "{}", nodes.status(3, "anonymous"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn nodes_by_a_secret_keep_out_who_does_not_know_it() {
    const SECRET: &str = "mainstem.node.secret.location";
    let mut nodes = Nodes::new(&[
        ("listener.security.protocol.map", "CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT"),
        ("mainstem.require.authentication", "true"),
        ("listener.name.clients.sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("super.users", "User:admin"),
    ]);
    let make = |name: &str| {
        let path = nodes.path("secrets").join(name);
        succeed(Command::new(binary()).args(["security", "node-secret"]).arg(&path));
        path.display().to_string()
    };
    let (own, foreign) = (make("own"), make("foreign"));
    nodes.common.extend(setting(SECRET, own));
    nodes.start_all();
    succeed(&mut nodes.tool(1, "admin", &["topic", "create", "orders", "--replication-factor", "3"]));
    nodes.kill(3);

    let said: [(u16, &[&str]); 2] = [
        (
            1,
            &[
                "a connection of 127.0.0.1 to the controllers' listener was refused: Invalid client credentials",
            ],
        ),
        (3, &["SCRAM-SHA-256 as user node:3>1: Authentication failed"]),
    ];
    nodes.refuses("admin", &setting(SECRET, foreign), &said);
    let mut without = setting(SECRET, "");
    without.extend(setting("mainstem.require.authentication", "false"));
    nodes.refuses("admin", &without, &[(1, &["was refused: it speaks as a node and proves nothing"])]);

    // The same node with the secret belongs to the others.
    nodes.start(3);
    let deadline = Instant::now() + SAID_MAX;
    while !nodes.has(3, "orders") || !nodes.has(3, "for-nodes-alone") {
        assert!(Instant::now() < deadline, "node 3 does not catch up:\n{}", nodes.log(3));
        std::thread::sleep(Duration::from_millis(20));
    }
}
