//! Embedded queues that a broker serves as topics: local processes and remote clients on one log, and the death of each.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mainstem_direct::{Address, Consumer, ConsumerConfig, ConsumerEvent, Done, JournalOptions, Publisher};
use mainstem_queue::{Options, Queue, Start, Wait};
use mainstem_records::{BatchOptions, ProducerFields};
use mainstem_testkit::figure;
use mainstem_tests::broker::{Setup, binary, share_of_a_core};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{
    EARLIEST, LATEST, batch, batch_with, bytes_of, fetch_request, fetch_topic, idempotent, produce_request,
    records_in, refusal,
};
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::produce_request::ProduceRequest;
use rustix::process::{Pid, Signal, kill_process};

const TOPIC: &str = "trades";
/// The position of the sleepers' word in the control file (docs/format.md).
const SLEEPERS: u64 = 4096 + 64;
/// The variable that makes this program a local process: see [`as_a_local_process`].
const CHILD: &str = "MAINSTEM_ATTACHED_CHILD";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn queue_dir(&self) -> PathBuf {
        self.dir.path().join("queue")
    }

    fn queue(&self) -> Queue {
        Queue::open(self.queue_dir()).unwrap()
    }

    fn setup(&self, name: &str) -> Setup {
        Setup::new(name).set("mainstem.attach", format!("{TOPIC}={}", self.queue_dir().display()))
    }
}

/// The local processes. `write NAME DIR` appends "NAME number" until it is killed, and prints its progress.
/// `hold DIR` takes the lock, prints that, and releases it when its input ends. `tail NAME DIR` reads under a name.
#[test]
fn as_a_local_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = task.splitn(3, ' ').collect();
    let say = |text: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).unwrap();
    };
    match words.as_slice() {
        ["write", name, dir] => {
            let queue = Queue::open(dir).unwrap();
            let mut appender = queue.appender().unwrap();
            for number in 0.. {
                appender.append(format!("{name} {number}")).unwrap();
                say(&format!("done {number}"));
                if number % 64 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        ["hold", _, dir] => {
            let queue = Queue::open(dir).unwrap();
            let mut appender = queue.appender().unwrap();
            let reservation = appender.reserve(10).unwrap();
            say("holding");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            reservation.roll_back();
        }
        ["tail", name, dir] => {
            let queue = Queue::open(dir).unwrap();
            let mut tailer = queue.tailer(name).unwrap();
            say(&format!("begins {}", tailer.position()));
            for message in tailer.follow(Wait::Sleep) {
                let message = message.unwrap();
                say(&format!("{} {}", message.offset(), String::from_utf8_lossy(message.value())));
            }
        }
        other => panic!("no task: {other:?}"),
    }
}

/// A local process, which is killed when it is dropped.
struct Local(Child);

impl Local {
    fn start(task: &str, name: &str, dir: &Path) -> Local {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["attached::as_a_local_process", "--exact", "--nocapture"]);
        command.env(CHILD, format!("{task} {name} {}", dir.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Local(command.spawn().unwrap())
    }

    /// Reads lines until one has this text.
    fn wait_for(&mut self, begin: &str) -> String {
        let mut lines = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).lines();
        // The test harness prints lines of its own, the first one before ours on the same line.
        lines.find_map(|line| Some(line.unwrap()).filter(|line| line.contains(begin))).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn remote_values(client: &mut Client, from: i64) -> Vec<String> {
    let records = client.read_all(TOPIC, 0, from).unwrap();
    records.into_iter().map(|record| String::from_utf8(record.value).unwrap()).collect()
}

fn local_values(queue: &Queue) -> Vec<String> {
    let reader = queue.reader(Start::Earliest).unwrap();
    reader.map(|message| String::from_utf8(message.unwrap().value().to_vec()).unwrap()).collect()
}

/// The numbers of each writer, in the order of the queue.
fn by_writer(values: &[String]) -> BTreeMap<String, Vec<u64>> {
    let mut writers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for value in values {
        let (writer, number) = value.rsplit_once(' ').unwrap();
        writers.entry(writer.to_owned()).or_default().push(number.parse().unwrap());
    }
    writers
}

#[test]
fn local_and_remote_processes_are_on_one_log() {
    let place = Place::new();
    let queue = place.queue();
    queue.append("local 0").unwrap();
    let mut broker = place.setup("attached").start();
    assert_eq!(broker.ready()["attached"][0], TOPIC);
    let mut client = broker.connect();
    assert_eq!(client.topics().unwrap(), [TOPIC]);
    assert_eq!(client.produce(TOPIC, 0, 1, &batch(&[b"remote 0", b"remote 1"])).unwrap(), 1);
    queue.append("local 1").unwrap();
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"remote 2"])).unwrap(), 4);
    assert_eq!(queue.ends().synced, 5, "acks=all is synced, and all processes know");
    let all = ["local 0", "remote 0", "remote 1", "local 1", "remote 2"];
    assert_eq!(local_values(&queue), all);
    assert_eq!(remote_values(&mut client, 0), all);
    assert_eq!(remote_values(&mut client, 2), &all[2..], "a batch may be entered anywhere");
    assert_eq!(client.offset_at(TOPIC, 0, EARLIEST).unwrap(), 0);
    assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), 5);
    let timestamp = queue.reader(Start::Offset(3)).unwrap().read().unwrap().unwrap().timestamp;
    let found = client.offset_at(TOPIC, 0, timestamp).unwrap();
    assert!(found <= 3, "{found}");
    assert_eq!(client.offset_at(TOPIC, 0, timestamp + 100_000).unwrap(), -1);
    assert_eq!(refusal(client.fetch(TOPIC, 0, 6)), ErrorCode::OFFSET_OUT_OF_RANGE);

    // The command line's tools are local processes.
    let mut append = Command::new(binary());
    append.args(["queue", "append"]).arg(place.queue_dir()).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut append = append.spawn().unwrap();
    append.stdin.take().unwrap().write_all(b"by the tool 1\n").unwrap();
    assert!(append.wait().unwrap().success());
    assert_eq!(remote_values(&mut client, 5), ["by the tool 1"]);

    broker.stop();
    assert_eq!(queue.append("without a broker").unwrap(), 6);
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(remote_values(&mut client, 6), ["without a broker"]);
    // Without --attach the directory is a queue and no topic.
    broker.stop();
    broker.unset("mainstem.attach");
    broker.start_again();
    assert_eq!(broker.connect().topics().unwrap(), [] as [&str; 0]);
    assert_eq!(local_values(&queue).len(), 7);
    broker.assert_healthy();
}

#[test]
fn a_long_poll_wakes_when_a_local_process_appends() {
    let place = Place::new();
    let queue = place.queue();
    let broker = place.setup("attached-poll").start();
    let mut client = broker.connect();
    client.fetch(TOPIC, 0, 0).unwrap();
    /// The interval at which a broker looks at a queue without a wake-up.
    const LOOK: Duration = Duration::from_millis(100);
    let rounds = 100;
    let (mut took, mut asked) = (Vec::new(), Vec::new());
    for offset in 0..rounds {
        poll(&mut client, TOPIC, offset);
        let begun = Instant::now();
        queue.append(format!("message {offset}")).unwrap();
        let (_, response) = client.receive::<FetchRequest<'_>>(12).unwrap();
        took.push(begun.elapsed());
        let records = records_in(bytes_of(&response.responses[0].partitions[0].records));
        assert_eq!(records.last().unwrap().offset, offset);
        let begun = Instant::now();
        client.fetch(TOPIC, 0, offset).unwrap();
        asked.push(begun.elapsed());
    }
    took.sort_unstable();
    asked.sort_unstable();
    // Without a wake-up the broker looks only after a tenth of a second, each time. A busy machine does not take that
    // long a hundred times in a row.
    assert!(took[0] < LOOK / 2, "{:?} at the best", took[0]);
    // The time from a local append to the answer of the poll, as a multiple of the time of an answer.
    figure("wake_up_p50", took[took.len() / 2].div_duration_f64(asked[asked.len() / 2]));
}

/// Sends a long poll from an offset that the broker has read. It waits for longer than the client does.
fn poll(client: &mut Client, topic: &str, offset: i64) {
    const AN_HOUR_MS: i32 = 3_600_000;
    let wanted = FetchRequest {
        max_wait_ms: AN_HOUR_MS,
        min_bytes: 1,
        ..fetch_request(vec![fetch_topic(topic, 0, offset)])
    };
    client.send(&wanted, 12).unwrap();
    eventually("the poll is there", || client.is_read().then_some(()));
}

#[test]
fn one_thread_waits_for_many_queues_takes_no_time_for_it_and_misses_no_append() {
    /// The most wake-ups a second of an idle broker's threads: ten for all queues, and a few for its own work. A
    /// thread for each queue would have eighty.
    const SLEEPS_MAX: f64 = 30.0;
    /// Wake-ups for work that is done once after the start.
    const SLEEPS_ONCE: f64 = 60.0;
    let place = Place::new();
    let name = |number: usize| format!("{TOPIC}-{number}");
    let dir = |number: usize| place.dir.path().join(name(number));
    let attach: Vec<String> =
        (0..8).map(|number| format!("{}={}", name(number), dir(number).display())).collect();
    let broker = Setup::new("attached-many").set("mainstem.attach", attach.join(",")).start();
    let mut client = broker.connect();
    let topic = name(5);
    let answered = |client: &mut Client| {
        let (_, response) = client.receive::<FetchRequest<'_>>(12).unwrap();
        records_in(bytes_of(&response.responses[0].partitions[0].records)).len()
    };
    client.fetch(&topic, 0, 0).unwrap();
    poll(&mut client, &topic, 0);
    let (before, of_watcher, begun) = (broker.sleeps(), broker.sleeps_of("attached"), Instant::now());
    // The time of observation. If it takes longer, more wake-ups are allowed.
    thread::sleep(Duration::from_secs(5));
    // Threads may have ended meanwhile.
    let sleeps = broker.sleeps().saturating_sub(before) as f64;
    assert!(broker.sleeps_of("attached") > of_watcher, "the thread that watches the queues does not sleep");
    let permitted = SLEEPS_MAX * begun.elapsed().as_secs_f64() + SLEEPS_ONCE;
    assert!(sleeps <= permitted, "threads went to sleep {sleeps} times in {:?}", begun.elapsed());
    let threads = std::fs::read_dir(format!("/proc/{}/task", broker.process_id())).unwrap();
    let names = threads.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    assert_eq!(names.filter(|name| name.trim() == "attached").count(), 1);

    let queue = Queue::open(dir(5)).unwrap();
    queue.append("wakes").unwrap();
    assert_eq!(answered(&mut client), 1);
    // A process that has appended, seen that the broker sleeps (docs/format.md), and dies before it wakes it.
    poll(&mut client, &topic, 1);
    let control = std::fs::File::options().read(true).write(true).open(dir(5).join("queue.control")).unwrap();
    eventually("the broker sleeps", || {
        let mut sleepers = [0; 4];
        control.read_exact_at(&mut sleepers, SLEEPERS).unwrap();
        (sleepers != [0; 4]).then_some(())
    });
    control.write_all_at(&[0; 4], SLEEPERS).unwrap();
    queue.append("does not wake").unwrap();
    assert_eq!(answered(&mut client), 1);
}

/// The share of a core that a broker with an attached queue uses while nothing happens.
#[test]
#[ignore = "mainstem-bench bounds runs it: it measures, and does nothing else"]
fn an_idle_broker_with_a_queue_takes_little_time() {
    let place = Place::new();
    let queue = place.queue();
    let broker = place.setup("attached-idle").start();
    let mut client = broker.connect();
    client.fetch(TOPIC, 0, 0).unwrap();
    poll(&mut client, TOPIC, 0);
    figure("cpu_permille", 1_000.0 * share_of_a_core(&broker, Duration::from_secs(5)));
    queue.append("wakes").unwrap();
    client.receive::<FetchRequest<'_>>(12).unwrap();
}

#[test]
fn many_writers_of_both_kinds_lose_nothing_while_they_are_killed() {
    let place = Place::new();
    let mut broker = place.setup("attached-kills").start();
    let dir = place.queue_dir();
    let mut locals: Vec<Local> = Vec::new();
    let mut acknowledged = 0;
    let mut appended: Vec<(String, u64)> = Vec::new();
    let producer_id = broker.connect().init_producer_id().unwrap();
    let rounds = 6;
    for round in 0..rounds {
        let name = format!("local-{round}");
        locals.push(Local::start("write", &name, &dir));
        locals.last_mut().unwrap().wait_for("done 10");
        let (stop, ahead) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut client = broker.connect();
        // The remote producer numbers its batches, and repeats those without an acknowledgement.
        let until = thread::scope(|scope| {
            let (stop, ahead) = (&stop, &ahead);
            let writing = scope.spawn(move || {
                let mut number = acknowledged;
                while !stop.load(Ordering::Acquire) {
                    let value = format!("remote {number}");
                    let sequence = number;
                    let batch = idempotent(producer_id, 0, sequence, &[value.as_bytes()]);
                    match client.produce(TOPIC, 0, if number % 8 == 0 { -1 } else { 1 }, &batch) {
                        Ok(_) => {
                            number += 1;
                            ahead.fetch_add(1, Ordering::Release);
                        }
                        Err(_) => break,
                    }
                }
                number
            });
            eventually("both kinds of writers are at it", || {
                (ahead.load(Ordering::Acquire) > 20 || writing.is_finished()).then_some(())
            });
            match round % 2 {
                0 => broker.kill(),
                _ => {
                    // A local writer dies, perhaps with the lock.
                    let mut victim = locals.remove(0);
                    victim.signal(Signal::KILL);
                    let mut rest = String::new();
                    victim.0.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
                    let done = rest.lines().rev().find_map(|line| line.strip_prefix("done ")?.parse().ok());
                    appended.push((format!("local-{}", round / 2), done.unwrap()));
                    stop.store(true, Ordering::Release);
                }
            }
            writing.join().unwrap()
        });
        acknowledged = until;
        if round % 2 == 0 {
            broker.start_again();
        }
    }
    drop(locals);
    let mut client = broker.connect();
    // The last batch without an acknowledgement may be in the log. Sent again, it is there once.
    let value = format!("remote {acknowledged}");
    let last = idempotent(producer_id, 0, acknowledged, &[value.as_bytes()]);
    client.produce(TOPIC, 0, -1, &last).unwrap();
    let remote = remote_values(&mut client, 0);
    assert_eq!(local_values(&place.queue()), remote, "all readers read the same");
    let writers = by_writer(&remote);
    for (writer, numbers) in &writers {
        let expected: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, &expected, "{writer} is there once, whole and in its order");
    }
    assert_eq!(writers["remote"].len() as u64, u64::try_from(acknowledged).unwrap() + 1);
    for (writer, done) in appended {
        assert!(writers[&writer].len() as u64 > done, "{writer} had appended {done}");
    }
    broker.assert_healthy();
    broker.stop();
    let verified = Command::new(binary()).args(["queue", "verify"]).arg(&dir).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

#[test]
fn a_stopped_local_writer_delays_its_topic_alone() {
    let place = Place::new();
    let broker = place.setup("attached-stopped").start();
    let mut client = broker.connect();
    client.create_topic("other", 1, &[]).unwrap();
    client.produce(TOPIC, 0, 1, &batch(&[b"before"])).unwrap();
    let mut holder = Local::start("hold", "-", &place.queue_dir());
    holder.wait_for("holding");
    holder.signal(Signal::STOP);

    let patient = |value: &'static [u8], timeout_ms: i32, client: &mut Client| {
        let bytes = batch(&[value]);
        let request = ProduceRequest { timeout_ms, ..produce_request(TOPIC, 0, 1, &bytes) };
        client.send(&request, 9).unwrap();
    };
    let code = |client: &mut Client| {
        let (_, response) = client.receive::<ProduceRequest<'_>>(9).unwrap();
        let partition = &response.responses[0].partition_responses[0];
        (ErrorCode::from(partition.error_code), partition.base_offset)
    };
    let mut waiting = broker.connect();
    patient(b"too late", 300, &mut waiting);
    assert_eq!(code(&mut waiting).0, ErrorCode::REQUEST_TIMED_OUT);
    patient(b"first", 60_000, &mut waiting);
    patient(b"second", 60_000, &mut waiting);
    // Everything else works: another topic, reads of this one, and other requests.
    for _ in 0..50 {
        client.produce("other", 0, -1, &batch(&[b"x"])).unwrap();
        assert_eq!(client.fetch(TOPIC, 0, 0).unwrap().len(), 1);
    }
    assert_eq!(client.topics().unwrap().len(), 2);

    // The holder resumes and releases the lock, and the appends are made in their order. If something had waited for the lock, their
    // timeouts would have passed.
    holder.signal(Signal::CONT);
    drop(holder.0.stdin.take());
    assert_eq!(code(&mut waiting), (ErrorCode::NONE, 1));
    assert_eq!(code(&mut waiting), (ErrorCode::NONE, 2));
    assert_eq!(remote_values(&mut client, 0), ["before", "first", "second"]);

    // A holder that dies while it is stopped loses the lock.
    let mut holder = Local::start("hold", "-", &place.queue_dir());
    holder.wait_for("holding");
    holder.signal(Signal::STOP);
    patient(b"third", 60_000, &mut waiting);
    eventually("it waits for the lock", || waiting.is_read().then_some(()));
    holder.kill();
    assert_eq!(code(&mut waiting), (ErrorCode::NONE, 3));
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"fourth"])).unwrap(), 4, "the lock is free again");
}

#[test]
fn a_named_tailer_is_a_consumer_group() {
    let place = Place::new();
    let queue = place.queue();
    for number in 0..10 {
        queue.append(format!("value {number}")).unwrap();
    }
    let broker = place.setup("attached-tailers").start();
    let mut client = broker.connect();
    client.find_coordinator("me").unwrap();
    let mut tailer = queue.tailer("me").unwrap();
    for _ in 0..4 {
        tailer.read().unwrap();
    }
    tailer.commit();

    let state = |client: &mut Client, group: &str| {
        let request = DescribeGroupsRequest { groups: vec![group.to_owned().into()], ..Default::default() };
        let response = client.call(&request, 5);
        let group = &response.groups[0];
        assert_eq!(group.error_code, 0);
        let assignments: Vec<Vec<u8>> =
            group.members.iter().map(|member| member.member_assignment.to_vec()).collect();
        (group.group_state.to_string(), assignments)
    };
    let listed = |client: &mut Client, states: &[&str]| {
        let states_filter = states.iter().map(|state| (*state).to_owned().into()).collect();
        let request = ListGroupsRequest { states_filter, ..Default::default() };
        let response = client.call(&request, 5);
        let groups = response.groups.iter();
        groups.map(|group| (group.group_id.to_string(), group.group_state.to_string())).collect::<Vec<_>>()
    };
    let assignment = [&[0, 0, 0, 0, 0, 1, 0, 6][..], b"trades", &[0, 0, 0, 1, 0, 0, 0, 0], &[0xff; 4]];
    assert_eq!(state(&mut client, "me"), ("Stable".to_owned(), vec![assignment.concat()]));
    assert_eq!(listed(&mut client, &[]), [("me".to_owned(), "Stable".to_owned())]);
    assert_eq!(listed(&mut client, &["Empty"]), []);
    assert_eq!(client.committed("me", TOPIC, 0).unwrap(), 4);
    // Its position cannot be changed while it is live, and there is no other member.
    assert_eq!(refusal(client.commit("me", TOPIC, 0, 1)), ErrorCode::UNKNOWN_MEMBER_ID);
    let protocol = JoinGroupRequestProtocol { name: "range".into(), ..Default::default() };
    let join = JoinGroupRequest {
        group_id: "me".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    let refused = client.call(&join, 5).error_code;
    assert_eq!(ErrorCode::from(refused), ErrorCode::GROUP_MAX_SIZE_REACHED);
    let delete = DeleteGroupsRequest { groups_names: vec!["me".into()], ..Default::default() };
    let refused = client.call(&delete, 2).results[0].error_code;
    assert_eq!(ErrorCode::from(refused), ErrorCode::NON_EMPTY_GROUP);

    drop(tailer);
    assert_eq!(state(&mut client, "me"), ("Empty".to_owned(), vec![]));
    client.commit("me", TOPIC, 0, 7).unwrap();
    assert_eq!(client.committed("me", TOPIC, 0).unwrap(), 7);
    let mut tailer = queue.tailer("me").unwrap();
    assert_eq!(tailer.read().unwrap().unwrap().value, Some(&b"value 7"[..]));
    drop(tailer);

    // Other groups work as before: the coordinator has their positions.
    client.commit("remote", TOPIC, 0, 3).unwrap();
    assert_eq!(client.committed("remote", TOPIC, 0).unwrap(), 3);
    assert_eq!(listed(&mut client, &["Empty"]).len(), 2);
    assert_eq!(queue.tailers().unwrap().len(), 1);
    assert_eq!(client.call(&delete, 2).results[0].error_code, 0);
    assert_eq!(queue.tailers().unwrap(), []);
    assert_eq!(client.committed("me", TOPIC, 0).unwrap(), -1);
}

#[test]
fn a_consumer_of_a_stream_is_a_group_where_its_journal_is_attached() {
    let place = Place::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let journal = JournalOptions::new().name(TOPIC).open(place.queue_dir()).unwrap();
    let append = |number: i64| runtime.block_on(journal.append("key", &format!("event {number}"))).unwrap();
    (0..10).for_each(|number| assert_eq!(append(number), number));
    let mut broker = place.setup("attached-stream").start();
    let mut client = broker.connect();
    client.find_coordinator("analytics").unwrap();
    let serving = runtime.block_on(Publisher::new().stream(&journal).start("127.0.0.1:0")).unwrap();
    let address = Address::new(&serving.address().to_string()).unwrap();
    let config = ConsumerConfig::new(address, TOPIC, "analytics");
    // A new consumer begins to read, which needs a runtime.
    let mut consumer = runtime.block_on(async { Consumer::new(config) });
    let mut of = 0;
    let mut read_to = |offset: i64| {
        runtime.block_on(async {
            loop {
                match consumer.next().await.unwrap() {
                    ConsumerEvent::Assigned { assignment, .. } => of = assignment,
                    ConsumerEvent::Records { next, .. } if next >= offset => return,
                    _ => {}
                }
            }
        });
        // It has done all of its events but the last three.
        consumer.positions().done(Done { assignment: of, offset: offset - 3, finished: Vec::new() });
    };
    read_to(10);
    let has_committed = |client: &mut Client, offset: i64| {
        eventually("the position of the stream's consumer is the group's", || {
            (client.committed("analytics", TOPIC, 0).unwrap() == offset).then_some(())
        });
        client.offset_at(TOPIC, 0, LATEST).unwrap() - offset
    };
    assert_eq!(has_committed(&mut client, 7), 3, "its lag, as any tool of Kafka's finds it");
    let state = |client: &mut Client| {
        let request = DescribeGroupsRequest { groups: vec!["analytics".into()], ..Default::default() };
        client.call(&request, 5).groups[0].group_state.to_string()
    };
    assert_eq!(state(&mut client), "Stable");
    // The publisher keeps this position.
    assert_eq!(refusal(client.commit("analytics", TOPIC, 0, 1)), ErrorCode::UNKNOWN_MEMBER_ID);

    // Records of a remote client are streamed too.
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"remote 0", b"remote 1"])).unwrap(), 10);
    read_to(12);
    assert_eq!(has_committed(&mut client, 9), 3);

    runtime.block_on(serving.stop()).unwrap();
    drop(journal);
    eventually("without its publisher the group has no member", || {
        (state(&mut client) == "Empty").then_some(())
    });
    assert_eq!(client.committed("analytics", TOPIC, 0).unwrap(), 9);
    broker.assert_healthy();
}

#[test]
fn a_tailer_of_another_process_is_live_until_it_is_killed() {
    let place = Place::new();
    let queue = place.queue();
    queue.append("one").unwrap();
    let broker = place.setup("attached-tail").start();
    let mut client = broker.connect();
    let mut tail = Local::start("tail", "reader", &place.queue_dir());
    tail.wait_for("begins 0");
    client.produce(TOPIC, 0, 1, &batch(&[b"two"])).unwrap();
    tail.wait_for("1 two");
    let state = |client: &mut Client| {
        let request = DescribeGroupsRequest { groups: vec!["reader".into()], ..Default::default() };
        client.call(&request, 5).groups[0].group_state.to_string()
    };
    assert_eq!(state(&mut client), "Stable");
    tail.kill();
    eventually("its death is seen", || (state(&mut client) == "Empty").then_some(()));
    client.commit("reader", TOPIC, 0, 0).unwrap();
    let mut tail = Local::start("tail", "reader", &place.queue_dir());
    tail.wait_for("begins 0");
}

#[test]
fn what_an_attached_topic_cannot_be_is_refused_by_name() {
    let place = Place::new();
    let queue = Options::new().segment_bytes(2 << 20).retention(Duration::from_secs(3600));
    let queue = queue.open(place.queue_dir()).unwrap();
    let mut broker = place.setup("attached-refusals").start();
    let mut client = broker.connect();
    for number in 0..10 {
        queue.append(format!("value {number}")).unwrap();
    }
    assert_eq!(refusal(client.delete_topic(TOPIC)), ErrorCode::POLICY_VIOLATION);
    let more = CreatePartitionsTopic { name: TOPIC.into(), count: 2, ..Default::default() };
    let more = CreatePartitionsRequest { topics: vec![more], timeout_ms: 5000, ..Default::default() };
    let refused = client.call(&more, 3);
    assert_eq!(ErrorCode::from(refused.results[0].error_code), ErrorCode::POLICY_VIOLATION);
    assert!(refused.results[0].error_message.as_ref().unwrap().contains("embedded queue"));
    let change =
        AlterableConfig { name: "retention.ms".into(), value: Some("5".into()), ..Default::default() };
    let resource = AlterConfigsResource {
        resource_type: 2,
        resource_name: TOPIC.into(),
        configs: vec![change],
        ..Default::default()
    };
    let alter = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let refused = client.call(&alter, 1);
    assert_eq!(ErrorCode::from(refused.responses[0].error_code), ErrorCode::POLICY_VIOLATION);

    let resource = DescribeConfigsResource {
        resource_type: 2,
        resource_name: TOPIC.into(),
        configuration_keys: None,
        ..Default::default()
    };
    let describe = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let described = client.call(&describe, 4);
    let value = |name: &str| {
        let configs = &described.results[0].configs;
        configs.iter().find(|config| config.name == name).unwrap().value.clone().unwrap().into_owned()
    };
    assert_eq!((value("segment.bytes"), value("retention.ms")), ("2097152".into(), "3600000".into()));
    assert_eq!((value("retention.bytes"), value("cleanup.policy")), ("-1".into(), "delete".into()));

    let described = client.call(&DescribeLogDirsRequest { topics: None, ..Default::default() }, 4);
    let dir = place.queue_dir().display().to_string();
    let own = described.results.iter().find(|result| *result.log_dir == dir).unwrap();
    assert!(own.topics[0].partitions[0].partition_size > 0 && *own.topics[0].name == *TOPIC);

    let transactional = BatchOptions {
        producer: ProducerFields { producer_id: 1, producer_epoch: 0, base_sequence: 0 },
        is_transactional: true,
        ..Default::default()
    };
    let transactional = batch_with(transactional, &[b"in a transaction"]);
    let request = ProduceRequest {
        transactional_id: Some("id".into()),
        ..produce_request(TOPIC, 0, -1, &transactional)
    };
    let code = client.call(&request, 9).responses[0].partition_responses[0].error_code;
    assert_eq!(ErrorCode::from(code), ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT);

    assert_eq!(client.delete_records(TOPIC, 0, 4).unwrap(), 4);
    assert_eq!(queue.ends().start, 4);
    assert_eq!(client.offset_at(TOPIC, 0, EARLIEST).unwrap(), 4);
    assert_eq!(refusal(client.fetch(TOPIC, 0, 3)), ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(refusal(client.delete_records(TOPIC, 0, 11)), ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(local_values(&queue).len(), 6);

    // A queue has one broker at a time, and lies in no log directory of a broker.
    let other = place.dir.path().join("other");
    let (status, said) = broker.start_another("127.0.0.1:0", &other);
    assert!(!status.success() && said.contains("another broker serves it already"), "{said}");
    broker.stop();
    let inside = broker.data_dir().join("queue");
    broker.set("mainstem.attach", format!("{TOPIC}={}", inside.display()));
    let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert!(!status.success() && said.contains("is within the log directory"), "{said}");
    assert!(!inside.exists(), "nothing was made");
    let not_a_queue = place.dir.path().join("file");
    std::fs::write(&not_a_queue, "").unwrap();
    broker.set("mainstem.attach", format!("{TOPIC}={}", not_a_queue.display()));
    let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert!(!status.success() && said.contains("cannot be attached"), "{said}");
}

#[test]
fn what_local_processes_damage_is_not_served() {
    let place = Place::new();
    let queue = Options::new().segment_bytes(64 << 10).open(place.queue_dir()).unwrap();
    for number in 0..2000 {
        queue.append(format!("value {number} {}", "x".repeat(90))).unwrap();
    }
    let broker = place.setup("attached-damaged").start();
    let mut client = broker.connect();
    assert_eq!(client.read_all(TOPIC, 0, 0).unwrap().len(), 2000);
    let segments = queue.segments().unwrap();
    let path = |base: i64| place.queue_dir().join(format!("{base:020}.log"));
    // Damages a byte of a closed segment, and the sealed length of another.
    let (second, fourth) = (segments[1].base_offset, segments[3].base_offset);
    let mut bytes = std::fs::read(path(second)).unwrap();
    bytes[100] ^= 1;
    std::fs::write(path(second), bytes).unwrap();
    let bytes = std::fs::read(path(fourth)).unwrap();
    std::fs::write(path(fourth), &bytes[..bytes.len() - 10]).unwrap();
    assert_eq!(refusal(client.fetch(TOPIC, 0, second)), ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(refusal(client.fetch(TOPIC, 0, fourth)), ErrorCode::KAFKA_STORAGE_ERROR);
    for base in [segments[0].base_offset, segments[2].base_offset, segments.last().unwrap().base_offset] {
        assert_eq!(client.fetch(TOPIC, 0, base).unwrap()[0].offset, base);
    }
    assert!(broker.log().contains("its CRC is not that of its bytes"), "the operator is shown where");
    client.produce(TOPIC, 0, -1, &batch(&[b"and it works"])).unwrap();
}

#[test]
fn producers_are_known_after_a_restart_in_order_and_after_a_kill() {
    let place = Place::new();
    let mut broker = place.setup("attached-producers").start();
    let mut client = broker.connect();
    let producer_id = client.init_producer_id().unwrap();
    let nth = |sequence: i32| idempotent(producer_id, 0, sequence, &[b"a"]);
    for sequence in 0..3 {
        assert_eq!(client.produce(TOPIC, 0, 1, &nth(sequence)).unwrap(), i64::from(sequence));
    }
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.produce(TOPIC, 0, 1, &nth(2)).unwrap(), 2, "it is there already");
    assert_eq!(client.produce(TOPIC, 0, 1, &nth(3)).unwrap(), 3);
    place.queue().append("a local one between").unwrap();
    broker.stop();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.produce(TOPIC, 0, 1, &nth(3)).unwrap(), 3);
    assert_eq!(refusal(client.produce(TOPIC, 0, 1, &nth(7))), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(client.produce(TOPIC, 0, 1, &nth(4)).unwrap(), 5);
}
