//! Lost, wrong and forbidden things: each is a clear error at the consumer, and harms nothing else.

use crate::support;
use crate::support::log::{log, until_logged};
use crate::support::tls::{certificates, refusal_of};
use crate::support::{Reader, admin, config, open, serve, serve_at};
use mainstem_direct::proto::publisher_client::PublisherClient;
use mainstem_direct::proto::{self, FromConsumer, FromPublisher, from_consumer::Frame, from_publisher};
use mainstem_direct::{
    Address, Call, Consumer, ConsumerConfig, DirectError, Grant, Publisher, Refused, SliceRange, criteria,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

async fn error_of(config: ConsumerConfig) -> DirectError {
    let mut consumer = Consumer::new(config);
    loop {
        let next = tokio::time::timeout(support::DEADLINE, consumer.next()).await.expect("it is refused");
        if let Err(error) = next {
            return error;
        }
    }
}

fn refusal(error: DirectError) -> Refused {
    match error {
        DirectError::Refused { refused, .. } => refused,
        other => panic!("{other}"),
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// Runs until the subscription is refused.
async fn until_refused(mut reader: Reader) -> Refused {
    loop {
        if let Err(error) = reader.step().await {
            return refusal(error);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_lost_or_is_older_than_what_was_read_stops_the_consumer() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, backup) = (dir.path().join("cart"), dir.path().join("backup"));
    let journal = open(&directory);
    let serving = serve(&journal).await;
    let (id, address) = (journal.id(), serving.address());
    for _ in 0..5 {
        journal.append("key", "kept").await.unwrap();
    }
    copy(&directory, &backup);
    for _ in 0..5 {
        journal.append("key", "lost").await.unwrap();
    }
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(10).await;
    serving.stop().await.unwrap();
    drop(journal);
    // The backup was made of an open journal, so its start is an unclean one. It has the same length, and still
    // differs.
    std::fs::remove_dir_all(&directory).unwrap();
    copy(&backup, &directory);
    let journal = open(&directory);
    assert_eq!((journal.id(), journal.epoch()), (id, 1));
    for _ in 0..20 {
        journal.append("key", "other").await.unwrap();
    }
    let serving = serve_at(&journal, address).await;
    assert_eq!(until_refused(reader).await, Refused::Diverged { at: 5 });
    // A consumer without a position of its own resumes at the one of the copy.
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(20).await;
    serving.stop().await.unwrap();
    drop(journal);
    std::fs::remove_dir_all(&directory).unwrap();
    let journal = open(&directory);
    let _serving = serve_at(&journal, address).await;
    assert_eq!(until_refused(reader).await, Refused::JournalReplaced { was: id, now: journal.id() });
}

/// Appends events of a kind.
async fn append(journal: &mainstem_direct::Journal, count: usize, kind: &str) {
    for _ in 0..count {
        journal.append("key", kind).await.unwrap();
    }
}

/// A running consumer reads one history; then the publisher serves another one, which began at a copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_closed_in_order_is_another_history_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, backup) = (dir.path().join("cart"), dir.path().join("backup"));
    let journal = open(&directory);
    let serving = serve(&journal).await;
    let address = serving.address();
    append(&journal, 5, "kept").await;
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(5).await;
    serving.stop().await.unwrap();
    drop(journal);
    copy(&directory, &backup);
    let journal = open(&directory);
    let serving = serve_at(&journal, address).await;
    append(&journal, 5, "lost").await;
    reader.read(10).await;
    serving.stop().await.unwrap();
    drop(journal);
    std::fs::remove_dir_all(&directory).unwrap();
    copy(&backup, &directory);
    // More events than were lost, so that no offset shows the loss.
    let journal = open(&directory);
    append(&journal, 20, "other").await;
    assert_eq!((journal.epoch(), journal.end()), (0, 25));
    let serving = serve_at(&journal, address).await;
    assert_eq!(until_refused(reader).await, Refused::Diverged { at: 5 });
    drop(serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_unclean_histories_with_one_number_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let (live, backup, directory) =
        (dir.path().join("live"), dir.path().join("backup"), dir.path().join("cart"));
    let journal = open(&live);
    append(&journal, 5, "kept").await;
    // A copy of an open journal is what a kill leaves behind.
    copy(&live, &backup);
    copy(&backup, &directory);
    let journal = open(&directory);
    let serving = serve(&journal).await;
    let address = serving.address();
    append(&journal, 5, "lost").await;
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(10).await;
    let epoch = journal.epoch();
    serving.stop().await.unwrap();
    drop(journal);
    std::fs::remove_dir_all(&directory).unwrap();
    copy(&backup, &directory);
    let journal = open(&directory);
    append(&journal, 20, "other").await;
    assert_eq!(journal.epoch(), epoch);
    let _serving = serve_at(&journal, address).await;
    assert_eq!(until_refused(reader).await, Refused::Diverged { at: 5 });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retention_has_taken_stops_the_consumer() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let options = mainstem_direct::JournalOptions::new();
    let journal = options
        .queue(|queue| queue.segment_bytes(64 << 10).retention_bytes(100_000))
        .open(dir.path().join("retained"))
        .unwrap();
    let serving = serve(&journal).await;
    let mut reader = Reader::new(config(serving.address(), "retained"));
    journal.append("key", "first").await.unwrap();
    reader.read(1).await;
    reader.consumer.leave().await;
    for _ in 0..100 {
        journal.append("key", &[b'x'; 5_000]).await.unwrap();
    }
    let refused = refusal(error_of(config(serving.address(), "retained")).await);
    assert!(matches!(refused, Refused::OutOfRange { offset: 1, end: 101, .. }), "{refused:?}");
    assert!(refused.to_string().contains("mainstem direct reset --to-earliest"));
    let words =
        ["Subscribe by 127.0.0.1:", "\"retained\"", "\"analytics\"", "offset 1 is not in the journal"];
    until_logged(0, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_of_a_name_fences_the_first() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("fenced"));
    let serving = serve(&journal).await;
    let of_name = || config(serving.address(), "fenced").instance("one");
    let mut first = Reader::new(of_name());
    while first.assigned.is_none() {
        first.step().await.unwrap();
    }
    let mut second = Reader::new(of_name());
    journal.append("key", "value").await.unwrap();
    second.read(1).await;
    assert_eq!(until_refused(first).await, Refused::Fenced);
    let ended = "instance one of consumer analytics of stream fenced ends: another connection has the place";
    until_logged(0, &[ended]).await;
    let pinned = |from, to| config(serving.address(), "fenced").pinned(SliceRange::new(from, to).unwrap());
    let mixed = error_of(pinned(0, 512)).await.to_string();
    assert!(mixed.contains("pin those of all, or of none"), "{mixed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_and_the_publisher_lives() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let address = serving.address();
    let unknown = error_of(config(address, "carts")).await.to_string();
    assert!(unknown.contains("there is no stream \"carts\" here, but cart"), "{unknown}");
    let bomb = criteria::only([criteria::key_pattern("(?:(?:(?:a{1000}){1000}){1000}){1000}")]);
    let bomb = error_of(config(address, "cart").filter(bomb)).await.to_string();
    assert!(bomb.contains("cannot be used"), "{bomb}");
    let nameless = error_of(ConsumerConfig::new(support::address(address), "cart", "")).await.to_string();
    assert!(nameless.contains("1 to 100"), "{nameless}");
    // Garbage, cut frames, and silence.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00", &[0xff; 5_000]]
    {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let peer = format!("the connection of {} ", socket.local_addr().unwrap());
        // The other end may be faster with closing it.
        let _ = socket.write_all(bytes).await;
        let _ = socket.shutdown().await;
        assert!(tokio::time::timeout(support::DEADLINE, is_ended(&mut socket)).await.expect("it ends"));
        until_logged(0, &[&peer, "has ended without a request"]).await;
    }
    journal.append("key", "value").await.unwrap();
    Reader::new(config(address, "cart")).read(1).await;
    let info = admin(address).await.describe("").await.unwrap();
    assert_eq!(info[0].consumers.len(), 1, "what was refused left nothing behind: {info:?}");
}

/// Sends frames as they are.
async fn subscribe(
    address: std::net::SocketAddr,
    frames: Vec<Frame>,
) -> Result<tonic::Streaming<FromPublisher>, tonic::Status> {
    let mut client = PublisherClient::connect(format!("http://{address}")).await.unwrap();
    let frames = frames.into_iter().map(|frame| FromConsumer { frame: Some(frame) });
    let outbound = futures_util::StreamExt::chain(
        futures_util::stream::iter(frames.collect::<Vec<_>>()),
        futures_util::stream::pending(),
    );
    client.subscribe(outbound).await.map(tonic::Response::into_inner)
}

/// The status that ends a call.
async fn end_of(mut inbound: tonic::Streaming<FromPublisher>) -> tonic::Status {
    loop {
        if let Err(status) =
            tokio::time::timeout(support::DEADLINE, inbound.message()).await.expect("it ends")
        {
            return status;
        }
    }
}

/// Sends frames as they are, and returns the status that ends the call.
async fn status_of(address: std::net::SocketAddr, mut frames: Vec<Frame>, consumer: &str) -> tonic::Status {
    if let Frame::Open(open) = &mut frames[0] {
        open.consumer = consumer.to_owned();
    }
    match subscribe(address, frames).await {
        Ok(inbound) => end_of(inbound).await,
        Err(status) => status,
    }
}

/// Reports that all events of the first assignment before an offset are done; returns the status that ends the call.
async fn status_of_done(address: std::net::SocketAddr, open: proto::Open, offset: i64) -> tonic::Status {
    let mut client = PublisherClient::connect(format!("http://{address}")).await.unwrap();
    let (to_send, mut frames) = tokio::sync::mpsc::unbounded_channel();
    let send = |frame| to_send.send(FromConsumer { frame: Some(frame) }).unwrap();
    send(Frame::Open(open));
    let outbound = futures_util::stream::poll_fn(move |context| frames.poll_recv(context));
    let mut inbound = client.subscribe(outbound).await.unwrap().into_inner();
    loop {
        let message = tokio::time::timeout(support::DEADLINE, inbound.message()).await.expect("it ends");
        match message {
            Err(status) => return status,
            Ok(message) => {
                let frame = message.expect("it ends by a status").frame;
                if let Some(from_publisher::Frame::Assign(assign)) = frame {
                    let assignment = assign.assignment;
                    send(Frame::Credit(proto::Credit { bytes: u64::MAX }));
                    send(Frame::Done(proto::Done { assignment, offset, finished: vec![] }));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_comes_late_takes_nothing_of_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let open = |attempt| {
        vec![Frame::Open(proto::Open {
            stream: "cart".to_owned(),
            consumer: "analytics".to_owned(),
            instance: "one".to_owned(),
            credit_bytes: 1_000,
            attempt,
            ..proto::Open::default()
        })]
    };
    let attempt = |number| Some(proto::Attempt { process: 7, number });
    let mut later = subscribe(serving.address(), open(attempt(2))).await.unwrap();
    let late = status_of(serving.address(), open(attempt(1)), "analytics").await;
    assert_eq!(late.code(), tonic::Code::Aborted, "{late:?}");
    journal.append("key", "value").await.unwrap();
    loop {
        let message =
            tokio::time::timeout(support::DEADLINE, later.message()).await.expect("something comes");
        if let Some(from_publisher::Frame::Records(records)) = message.unwrap().unwrap().frame {
            assert_eq!((records.from, records.next), (0, 1));
            break;
        }
    }
    // Earlier versions send no `Attempt`: their last connection counts.
    let _of_before = subscribe(serving.address(), open(None)).await.unwrap();
    let fenced = end_of(later).await;
    assert!(fenced.message().contains("pin no slice twice"), "{fenced:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_lie_end_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    journal.append("key", "value").await.unwrap();
    let open = || proto::Open {
        stream: "cart".to_owned(),
        instance: "one".to_owned(),
        credit_bytes: u64::MAX,
        ..proto::Open::default()
    };
    let done = proto::Done { assignment: 1, offset: 1, finished: vec![] };
    let future = |offset| proto::Open { journal_id: journal.id().0.to_vec().into(), offset, ..open() };
    let more = proto::Held {
        done: Some(proto::Done { assignment: 1, offset: 9, finished: vec![] }),
        slices: Some(proto::Slices { from: 0, to: 1_024 }),
    };
    for (frames, reason) in [
        (vec![Frame::Done(done)], "the first frame has to be Open"),
        (vec![Frame::Open(open()), Frame::Open(open())], "comes first, and once"),
        (vec![Frame::Open(future(2))], "events from offset 1 on that were received are not in the journal"),
        (vec![Frame::Open(future(i64::MAX))], "are not in the journal"),
        (vec![Frame::Open(proto::Open { journal_id: vec![1, 2].into(), ..open() })], "16 bytes"),
        (vec![Frame::Open(proto::Open { held: Some(more), ..future(1) })], "more was done than was received"),
        (vec![Frame::Open(proto::Open { start: 7, ..open() })], "later version"),
        (
            vec![Frame::Open(proto::Open { pinned: Some(proto::Slices { from: 5, to: 5 }), ..open() })],
            "slices 5 to 5 are none",
        ),
    ] {
        let status = status_of(serving.address(), frames, &format!("liar: {reason}")).await;
        assert!(status.message().contains(reason), "{status:?}");
    }
    let too_far = proto::Open { consumer: "liar: done".to_owned(), ..open() };
    let status = status_of_done(serving.address(), too_far, 1_000).await;
    assert!(status.message().contains("cannot be done"), "{status:?}");
    // A report about an assignment that the instance does not have is ignored.
    let mut reader = Reader::new(ConsumerConfig::new(support::address(serving.address()), "cart", "other"));
    reader.consumer.positions().done(mainstem_direct::Done { assignment: 77, offset: 5, finished: vec![] });
    reader.read(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_in_the_log_with_peer_stream_and_consumer() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("logged"));
    let serving = serve(&journal).await;
    let at = serving.address();
    let of = |stream: &str, consumer: &str| ConsumerConfig::new(support::address(at), stream, consumer);
    error_of(of("missing", "logged-1")).await;
    until_logged(0, &["Subscribe by 127.0.0.1:", "\"missing\"", "\"logged-1\"", "there is no stream"]).await;
    error_of(of("logged", "logged-2").filter(criteria::only([criteria::key_pattern("(")]))).await;
    until_logged(0, &["\"logged\"", "\"logged-2\"", "cannot be used"]).await;
    let pause = proto::manage_request::Action::Pause(proto::Pause {});
    admin(at).await.manage("logged", "logged-3", pause).await.unwrap_err();
    until_logged(0, &["Manage by 127.0.0.1:", "\"logged-3\"", "has no consumer"]).await;
    let open = |id: Vec<u8>, offset| {
        vec![Frame::Open(proto::Open {
            stream: "logged".to_owned(),
            instance: "one".to_owned(),
            journal_id: id.into(),
            offset,
            ..proto::Open::default()
        })]
    };
    status_of(at, open(vec![9; 16], 0), "logged-4").await;
    until_logged(0, &["\"logged-4\"", "is not there any more"]).await;
    status_of(at, open(journal.id().0.to_vec(), 5), "logged-5").await;
    until_logged(0, &["\"logged-5\"", "events from offset 0 on"]).await;
}

/// Returns true when the other end has ended a connection.
async fn is_ended(socket: &mut TcpStream) -> bool {
    use tokio::io::AsyncReadExt as _;
    let mut buffer = [0; 256];
    loop {
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return true,
            // Its own preface.
            Ok(_) => {}
        }
    }
}

/// More than may wait for their first request.
const SILENT: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_end_and_hold_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let address = serving.address();
    let mut silent = Vec::new();
    for n in 0..SILENT {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // Some have begun to speak.
        socket.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM"[..n % 20]).await.unwrap();
        silent.push(socket);
    }
    // One that speaks has a place.
    journal.append("key", "value").await.unwrap();
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(1).await;
    for socket in &mut silent {
        assert!(tokio::time::timeout(support::DEADLINE, is_ended(socket)).await.expect("each ends"));
    }
    // It was served, and is not silent.
    journal.append("key", "another").await.unwrap();
    reader.read(2).await;
    assert_eq!(reader.others, []);
    // What is silent now does not hold up the end.
    let mut last = TcpStream::connect(address).await.unwrap();
    let mut preface = TcpStream::connect(address).await.unwrap();
    preface.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00").await.unwrap();
    tokio::time::timeout(support::DEADLINE, serving.stop()).await.expect("it stops").unwrap();
    assert!(is_ended(&mut last).await && is_ended(&mut preface).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_asked_for_certificates_by_tls_alone_in_whatever_order_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let authority = certificates().authority;
    let open =
        Publisher::new().stream(&journal).client_authorities(authority.clone()).start("127.0.0.1:0").await;
    assert!(open.unwrap_err().to_string().contains("by TLS alone"));
    // In either order.
    let own = certificates();
    let publisher = Publisher::new()
        .stream(&journal)
        .client_authorities(authority)
        .tls(own.server.0.clone(), own.server.1.clone());
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    let address = Address::new(&format!("grpc://localhost:{}", serving.address().port())).unwrap();
    let refused = refusal_of(address.tls(&own.authority)).await;
    assert!(refused.contains("certificate of this client"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn by_tls_both_ends_know_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let (known, other) = (certificates(), certificates());
    let publisher = Publisher::new()
        .stream(&journal)
        .tls(known.server.0.clone(), known.server.1.clone())
        .client_authorities(known.authority.clone())
        .authorize(|access| match (access.call, access.certificates.len()) {
            (Call::Subscribe, 1) => Ok(Grant::Only(criteria::only([criteria::key("public")]))),
            _ => Err("only subscriptions are served here".to_owned()),
        });
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    journal.append("private", "1").await.unwrap();
    journal.append("public", "2").await.unwrap();
    let address = Address::new(&format!("grpc://localhost:{}", serving.address().port())).unwrap();
    let known_client = || address.clone().tls(&known.authority).identity(&known.client.0, &known.client.1);
    let read = |address| ConsumerConfig::new(address, "cart", "analytics");
    // What it was granted it cannot widen.
    let everything =
        mainstem_direct::proto::Filter { exclude: vec![], include: vec![criteria::everything()] };
    let mut reader = Reader::new(read(known_client()).filter(everything));
    assert_eq!(reader.read(1).await, [(1, "2".to_owned())]);
    let describe =
        mainstem_direct::Admin::connect(known_client()).await.unwrap().describe("").await.unwrap_err();
    assert!(describe.to_string().contains("only subscriptions"), "{describe}");
    for (address, words, logged) in [
        (
            address.clone(),
            "a publisher that serves by TLS ends connections without it",
            "it speaks no TLS, and TLS is served",
        ),
        (address.clone().tls(&known.authority), "a certificate of this client", "certificate"),
        (
            address.clone().tls(&known.authority).identity(&other.client.0, &other.client.1),
            "certificate",
            "certificate",
        ),
        (
            address.clone().tls(&other.authority).identity(&known.client.0, &known.client.1),
            "is refused: ",
            "certificate",
        ),
    ] {
        let before = log().lines().count();
        let error = refusal_of(address).await;
        assert!(error.contains("cannot reach the publisher"), "{error}");
        assert!(error.contains(words), "{words}: {error}");
        until_logged(before, &["has ended without a request", logged]).await;
    }
    // A consumer that never had a connection says so, and one that has waits for another certificate (certificates.rs).
    let error = error_of(read(address.clone().tls(&other.authority))).await;
    assert!(matches!(error, DirectError::Tls { .. }), "{error:?}");
    assert!(error.to_string().contains("is refused: "), "{error}");
    let serving_plain = serve(&open(&dir.path().join("plain"))).await;
    let before = log().lines().count();
    let by_tls = Address::new(&format!("grpc://localhost:{}", serving_plain.address().port())).unwrap();
    let error = mainstem_direct::Admin::connect(by_tls.tls(&known.authority)).await.unwrap_err().to_string();
    assert!(error.contains("cannot reach the publisher"), "{error}");
    until_logged(before, &["it speaks TLS, and plain text is served"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_beyond_this_machine_has_to_be_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let error = Publisher::new().stream(&journal).start("0.0.0.0:0").await.unwrap_err().to_string();
    assert!(error.contains("Publisher::tls") && error.contains("Publisher::insecure"), "{error}");
    Publisher::new().stream(&journal).insecure().start("0.0.0.0:0").await.unwrap().stop().await.unwrap();
    assert!(Publisher::new().start("127.0.0.1:0").await.is_err(), "no stream");
    let twice = Publisher::new().stream(&journal).stream(&journal).start("127.0.0.1:0").await;
    assert!(twice.unwrap_err().to_string().contains("two streams have the name cart"));
    let bad = Publisher::new().stream(&journal).tls("no certificate", "no key").start("127.0.0.1:0").await;
    assert!(bad.unwrap_err().to_string().contains("certificate"));
}
