//! Nodes that do not fit together, damaged directories, garbage from unknown peers. Each is refused by name, once,
//! and the nodes that belong together are not disturbed.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstem_client::{Admin, NewTopic};
use mainstem_replication::link;
use mainstem_testkit::figure;
use mainstem_tests::broker::binary;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::wait::eventually;
use mainstem_wire::sample::Rng;
use tokio::runtime::Runtime;

const TOPIC: &str = "t";
/// The longest wait for a refused start to end, and for a line of a log.
const SAID_MAX: Duration = Duration::from_secs(60);
/// Connections that send garbage.
const BAD_CONNECTIONS: u64 = 60;
/// The API key of the first request on a link, and the version of links.
const HELLO: (i16, i16) = (0x4D53, 1);
/// The kind of a request between nodes that forwards a client's request.
const FORWARD: u8 = 3;

fn start(setup: Setup) -> (Cluster, Runtime) {
    let mut cluster = setup.start().expect("our own binary");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(cluster.wait_until_ready());
    (cluster, runtime)
}

/// A node's process beside the harness, with its output.
struct Stray {
    child: Child,
    log: PathBuf,
}

impl Stray {
    /// Starts `node` of a cluster with other settings, which come first.
    fn start(cluster: &Cluster, node: i32, settings: &[(&str, &str)]) -> Stray {
        let log = cluster.home().join(format!("stray-{}.log", fs::read_dir(cluster.home()).unwrap().count()));
        let file = fs::File::create(&log).unwrap();
        let mut command = Command::new(binary());
        let properties = cluster.home().join(format!("node-{node}/node.properties"));
        command.args(["start", "--config"]).arg(properties);
        settings.iter().for_each(|(key, value)| _ = command.args(["--set", &format!("{key}={value}")]));
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Stray { child: command.spawn().unwrap(), log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a line of its output with all of these words.
    #[track_caller]
    fn await_line(&mut self, parts: &[&str]) {
        let deadline = Instant::now() + SAID_MAX;
        let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
        while !self.said().lines().any(is_it) {
            assert!(Instant::now() < deadline, "{parts:?} is not said:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!self.said().contains("panicked"), "{}", self.said());
    }

    /// Waits for its end, which has to be a refusal with all of these words in one line.
    #[track_caller]
    fn ends_refused(mut self, parts: &[&str]) {
        let deadline = Instant::now() + SAID_MAX;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it is not refused:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = self.said();
        assert!(!status.success() && !said.contains("panicked"), "{said}");
        let lines: Vec<_> =
            said.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect();
        assert_eq!(lines.len(), 1, "{parts:?} is to be said once:\n{said}");
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the tool. Returns whether it succeeded, and its output.
fn tool(cluster: &Cluster, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary())
        .args(arguments)
        .args(["--bootstrap", &cluster.bootstrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to.join(entry.file_name())),
            false => _ = fs::copy(entry.path(), to.join(entry.file_name())).unwrap(),
        }
    }
}

/// Replaces a text of a file, which must have it.
#[track_caller]
fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{}: {text}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

/// The lines of `controller.quorum.voters` of a node.
fn voters(cluster: &Cluster) -> Vec<String> {
    let text = fs::read_to_string(cluster.home().join("node-1/node.properties")).unwrap();
    let voters = text.lines().find_map(|line| line.strip_prefix("controller.quorum.voters=")).unwrap();
    voters.split(',').map(str::to_owned).collect()
}

fn controller_port(cluster: &Cluster, node: i32) -> u16 {
    let voters = voters(cluster);
    voters[node as usize - 1].rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn nodes_that_do_not_fit_are_refused_by_name() {
    let (mut cluster, runtime) = start(Setup::new("cluster-bad-input", System::Mainstem));
    let admin = Admin::new(cluster.client());
    let of = |name: &str, replicas| NewTopic { replication_factor: Some(replicas), ..NewTopic::new(name) };
    runtime.block_on(admin.create_topic(&of(TOPIC, 3))).unwrap();
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    let id = runtime.block_on(admin.cluster()).unwrap().cluster_id;

    // A replication factor above the number of nodes.
    let refused = runtime.block_on(admin.create_topic(&of("four", 4))).unwrap_err().to_string();
    assert!(refused.contains('4') && refused.contains('3'), "{refused}");

    // The same node id twice: another process with it, and the same directory.
    let elsewhere = cluster.home().join("elsewhere").display().to_string();
    let other_dir = |dir: &str| -> Vec<(&str, String)> {
        let listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0".to_owned();
        vec![("listeners", listeners), ("log.dirs", dir.to_owned())]
    };
    let start_with = |cluster: &Cluster, node, settings: &[(&str, String)]| {
        let settings: Vec<_> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        Stray::start(cluster, node, &settings)
    };
    start_with(&cluster, 2, &other_dir(&elsewhere)).ends_refused(&["node.id=2 is running already"]);
    let own = cluster.log_dir(2).display().to_string();
    start_with(&cluster, 2, &other_dir(&own)).ends_refused(&[&own, "lock"]);

    cluster.stop(3);
    let dir = cluster.log_dir(3);
    // A directory of another cluster.
    let foreign = cluster.home().join("foreign");
    copy_dir(&dir, &foreign);
    edit(&foreign.join("meta.properties"), &id, "AAAAAAAAAAAAAAAAAAAAAA");
    edit(&foreign.join("mainstem.cluster"), &id, "AAAAAAAAAAAAAAAAAAAAAA");
    let of_foreign = [("log.dirs", foreign.to_str().unwrap())];
    let theirs = format!("another one: node 1 of {id}, node 2 of {id}");
    Stray::start(&cluster, 3, &of_foreign)
        .ends_refused(&["of this node are of cluster AAAAAAAAAAAAAAAAAAAAAA", &theirs]);
    // While a node does not answer it may be of this cluster, so that the start waits.
    cluster.kill(2);
    let mut stray = Stray::start(&cluster, 3, &of_foreign);
    stray.await_line(&["no metadata leader", "2@"]);
    let refusal =
        ["node 3 is of cluster AAAAAAAAAAAAAAAAAAAAAA", &id, "one of both has another cluster's directory"];
    stray.await_line(&refusal);
    assert!(stray.child.try_wait().unwrap().is_none(), "{}", stray.said());
    // The wait lasts until the last node has answered, too.
    cluster.start_node(2);
    stray.ends_refused(&["of this node are of cluster AAAAAAAAAAAAAAAAAAAAAA", &theirs]);
    // Another directory of the same node.
    let empty = [("log.dirs", elsewhere.as_str())];
    Stray::start(&cluster, 3, &empty).ends_refused(&["knows node 3 by another directory", &id]);
    // Lists of nodes that disagree: from a node that knows the cluster, and from a new one.
    let all = voters(&cluster);
    let fewer = all[1..].join(",");
    Stray::start(&cluster, 3, &[("controller.quorum.voters", &fewer)])
        .ends_refused(&["was founded by the nodes [1, 2, 3]", "[2, 3]"]);
    let more = format!("{},4@127.0.0.1:1", all.join(","));
    Stray::start(&cluster, 3, &[("controller.quorum.voters", &more), ("log.dirs", &elsewhere)])
        .ends_refused(&["[1, 2, 3]", "[1, 2, 3, 4]", "name the same ones"]);

    // A journal that is missing, or damaged in its durable part.
    let (journal, kept) = (dir.join("mainstem.groups"), dir.join("kept"));
    fs::rename(&journal, &kept).unwrap();
    Stray::start(&cluster, 3, &[]).ends_refused(&["mainstem.groups", "does not know how it voted"]);
    let mut bytes = fs::read(&kept).unwrap();
    bytes[40] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    Stray::start(&cluster, 3, &[]).ends_refused(&["mainstem.groups is damaged at byte"]);
    bytes[40] ^= 1;
    bytes[7] = b'9';
    fs::write(&journal, &bytes).unwrap();
    Stray::start(&cluster, 3, &[]).ends_refused(&["mainstem.groups", "start the version that wrote it"]);
    fs::rename(&kept, &journal).unwrap();
    // Data of a later release.
    let meta = dir.join("meta.properties");
    let whole = fs::read_to_string(&meta).unwrap();
    let format = whole.lines().find(|line| line.starts_with("mainstem.format=")).unwrap();
    edit(&meta, format, "mainstem.format=9\nmainstem.release=9.1.0");
    Stray::start(&cluster, 3, &[])
        .ends_refused(&["mainstem.format=9 is newer than", "Mainstem 9.1.0 has written"]);
    fs::write(&meta, whole).unwrap();

    // None of it has done any harm.
    cluster.start_node(3);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    // A status may report a node that got no processor time for a while.
    eventually("a status without a fault", || tool(&cluster, &["cluster", "status"]).0.then_some(()));
}

#[test]
fn who_is_missing_is_named_while_it_is_waited_for() {
    let (mut cluster, runtime) = start(Setup::new("cluster-missing", System::Mainstem));
    let admin = Admin::new(cluster.client());
    let topic = NewTopic { replication_factor: Some(3), ..NewTopic::new(TOPIC) };
    runtime.block_on(admin.create_topic(&topic)).unwrap();
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    let all = voters(&cluster);

    // A majority is lost: the remaining node and the tool say what that means.
    cluster.kill(2);
    cluster.kill(3);
    let deadline = Instant::now() + SAID_MAX;
    loop {
        let (succeeded, said) = tool(&cluster, &["cluster", "status"]);
        let parts =
            ["no metadata leader: a majority of the nodes is needed", " 2 (127", " 3 (127", "no leader: t-0"];
        if !succeeded && parts.iter().all(|part| said.contains(part)) {
            break;
        }
        assert!(Instant::now() < deadline, "{said}\n{}", cluster.tails());
        std::thread::sleep(Duration::from_millis(200));
    }
    // A node that starts waits for the others, and continues when one is there.
    cluster.kill(1);
    let mut waiting = Stray::start(&cluster, 1, &[]);
    waiting.await_line(&["a majority of the 3 nodes is needed", &all[1], &all[2], "start them"]);
    drop(waiting);
    (1..=3).for_each(|node| cluster.start_node(node));
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));

    // A cluster that is not founded yet, with a node that the others cannot reach at its address.
    let [one, two, three] =
        [1, 2, 3].map(|node| cluster.home().join(format!("new-{node}")).display().to_string());
    (1..=3).for_each(|node| cluster.kill(node));
    let wrong = format!("{},{},3@127.0.0.1:1", all[0], all[1]);
    let dirs = |dir| [("log.dirs", dir), ("controller.quorum.voters", wrong.as_str())];
    let mut first = Stray::start(&cluster, 1, &dirs(&one));
    let mut second = Stray::start(&cluster, 2, &dirs(&two));
    for waiting in [&mut first, &mut second] {
        waiting.await_line(&["a new cluster waits for all of its nodes; missing: 3@127.0.0.1:1"]);
    }
    // That node reaches the others, so it does not count as missing. It reports its own fault.
    let mut third = Stray::start(&cluster, 3, &dirs(&three));
    third.await_line(&["3@127.0.0.1:1, where the other nodes look for this one, does not answer"]);
    assert!(!Path::new(&one).join("mainstem.cluster").exists(), "it was founded without a node");
}

/// The first request of a node on a link, made by hand.
fn hello(cluster_id: &str, from: i32, to: i32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(HELLO.0.to_be_bytes());
    frame.extend(HELLO.1.to_be_bytes());
    frame.extend(0_i32.to_be_bytes());
    frame.extend((-1_i16).to_be_bytes());
    frame.extend((cluster_id.len() as u16).to_be_bytes());
    frame.extend(cluster_id.as_bytes());
    frame.extend(from.to_be_bytes());
    // An incarnation after any start of the node itself.
    frame.extend((u64::MAX >> 1).to_be_bytes());
    frame.extend(to.to_be_bytes());
    [&(frame.len() as u32).to_be_bytes()[..], &frame].concat()
}

#[test]
fn garbage_at_the_controllers_listener_changes_nothing() {
    let setup = Setup::new("cluster-garbage", System::Mainstem).set("mainstem.http.listener", "127.0.0.1:0");
    let (mut cluster, runtime) = start(setup);
    let admin = Admin::new(cluster.client());
    let topic = NewTopic { replication_factor: Some(3), ..NewTopic::new(TOPIC).partitions(3) };
    runtime.block_on(admin.create_topic(&topic)).unwrap();
    let id = runtime.block_on(admin.cluster()).unwrap().cluster_id;
    let memory = |cluster: &Cluster, node| {
        let metrics = cluster.http(node, "/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        line.unwrap().parse::<f64>().unwrap()
    };
    // The leaders, with their epochs.
    let epochs = |cluster: &mut Cluster| -> Vec<_> {
        let topic = runtime.block_on(cluster.wait_until_in_sync(TOPIC));
        topic.partitions.iter().map(|one| (one.leader, one.leader_epoch)).collect()
    };
    epochs(&mut cluster);
    let is_linked = |node: i32, other: i32| cluster.log(node).contains(&format!("linked to node {other}"));
    eventually("links between all nodes", || {
        let mut others = [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)].into_iter();
        others.all(|(node, other)| is_linked(node, other)).then_some(())
    });
    let used = memory(&cluster, 1);
    let mut rng = Rng(18);
    let begin: Vec<_> = cluster.ids().into_iter().map(|node| cluster.log(node).len()).collect();
    let before = epochs(&mut cluster);
    let held = send_garbage(&cluster, &id, &mut rng);
    let grown = memory(&cluster, 1) - used;
    assert!(grown < 32e6, "{grown} bytes for garbage");
    drop(held);
    let after = epochs(&mut cluster);
    let said = cluster.ids().into_iter().zip(&begin).map(|(node, begin)| cluster.log(node).split_off(*begin));
    let said = said.collect::<Vec<_>>().concat();
    assert!(!said.contains("panicked"), "{said}");
    // A link that another peer took over is made again. So is one without messages for long.
    let was_replaced = said.contains("linked to node") && !said.contains("nothing came for");
    assert!(!was_replaced, "another peer ended a link:\n{said}");
    let log = cluster.log(1).split_off(begin[0]);
    let refusals = log.lines().filter(|line| line.contains("refused")).count() as u64;
    assert!(
        (1..BAD_CONNECTIONS).contains(&refusals),
        "{refusals} lines of {BAD_CONNECTIONS} bad connections:\n{log}"
    );
    // A node without processor time for as long as an election takes loses its leaderships, too.
    let elected = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    figure("one_and_new_leaders", 1.0 + elected as f64);
}

/// Sends garbage of each kind to the controllers' listener of node 1. Returns half of the connections, which stay open.
fn send_garbage(cluster: &Cluster, id: &str, rng: &mut Rng) -> Vec<TcpStream> {
    let port = controller_port(cluster, 1);
    let mut held = Vec::new();
    for round in 0..BAD_CONNECTIONS {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut garbage: Vec<u8> = (0..1 + rng.below(3_000)).map(|_| rng.below(256) as u8).collect();
        match round % 6 {
            // Random bytes.
            0 => {}
            // A length without a frame.
            1 => garbage = u32::MAX.to_be_bytes().to_vec(),
            // An invalid request of founding.
            2 => garbage = [&(garbage.len() as u32 + 4).to_be_bytes()[..], b"MSF1", &garbage].concat(),
            // A node of another cluster, one that is not in the list, this node itself.
            3 => {
                let (cluster_id, from) = [("x", 2), (id, 9), (id, 1)][rng.below(3) as usize];
                garbage = hello(cluster_id, from, 1);
            }
            // A client of Kafka's protocol.
            4 => garbage = vec![0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff],
            // Nothing at all.
            _ => garbage.clear(),
        }
        // The connection may be refused while it is written to.
        let _ = stream.write_all(&garbage);
        let mut answer = [0; 4 << 10];
        let _ = stream.read(&mut answer);
        if round % 2 == 0 {
            held.push(stream);
        }
    }
    held
}

/// A node may forward requests of its own clients, and of no other node's: a request in another node's name is refused.
#[test]
fn a_node_hands_on_no_request_of_another_nodes_clients() {
    let (mut cluster, runtime) = start(Setup::new("cluster-forged", System::Mainstem));
    let admin = Admin::new(cluster.client());
    let id = runtime.block_on(admin.cluster()).unwrap().cluster_id;
    // Another process takes the place of a node that is away. Without authentication of nodes it counts as that node.
    let leads = |status: &str, node: i32| status.contains(&format!("\"metadata_leader\":{node},"));
    let deadline = Instant::now() + SAID_MAX;
    let leader = loop {
        let (_, status) = tool(&cluster, &["cluster", "status", "--json"]);
        if let Some(leader) = cluster.ids().into_iter().find(|node| leads(&status, *node)) {
            break leader;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let (away, third) = match leader {
        1 => (2, 3),
        2 => (1, 3),
        _ => (1, 2),
    };
    cluster.kill(away);
    let mut stream = TcpStream::connect(("127.0.0.1", controller_port(&cluster, leader))).unwrap();
    stream.set_read_timeout(Some(SAID_MAX)).unwrap();
    stream.write_all(&hello(&id, away, leader)).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut welcome = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut welcome).unwrap();
    let mut call = |number: u64, node: i32, name: &str| -> u8 {
        let who = serde_json::json!({
            "node": node, "principal": "User:admin", "listener": "PLAINTEXT", "peer": "127.0.0.1:5",
            "client_id": null, "api": 19, "version": 5, "correlation_id": 1,
        });
        let who = who.to_string().into_bytes();
        let body = [&(who.len() as u32).to_be_bytes()[..], &who, &create_topic(name)].concat();
        let mut frame = Vec::new();
        link::call(number, FORWARD, &body, &mut frame);
        stream.write_all(&frame).unwrap();
        let mut answer = Vec::new();
        loop {
            if let Some((link::Frame::Answer { id, status, .. }, _)) = link::decode(&answer, 1 << 20).unwrap()
            {
                assert_eq!(id, number);
                return status;
            }
            let mut more = [0; 4 << 10];
            let read = stream.read(&mut more).unwrap();
            assert!(read > 0, "the link was ended");
            answer.extend_from_slice(&more[..read]);
        }
    };
    assert_ne!(call(1, third, "forged"), 0, "a request of a client of another node was served");
    assert_eq!(call(2, away, "honest"), 0, "a request of a client of its own was not served");
    drop(stream);
    cluster.start_node(away);
    runtime.block_on(cluster.wait_until_in_sync("honest"));
    let topics = runtime.block_on(admin.topics()).unwrap();
    assert!(!topics.iter().any(|topic| &*topic.name == "forged"), "it was created");
}

/// CreateTopics, version 5, of a topic with one partition.
fn create_topic(name: &str) -> Vec<u8> {
    use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
    use mainstem_wire::{Encoder, Message};
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: 3,
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let mut bytes = Vec::new();
    request.encode(&mut Encoder::new(&mut bytes), 5).expect("it can be encoded");
    bytes
}
