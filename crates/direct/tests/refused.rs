//! What is lost, wrong, or not allowed: each is a clear error at the consumer, and harms nothing else.
#![allow(clippy::unwrap_used)]

mod support;

use mainstem_direct::proto::publisher_client::PublisherClient;
use mainstem_direct::proto::{self, FromConsumer, from_consumer::Frame};
use mainstem_direct::{
    Address, Call, Consumer, ConsumerConfig, DirectError, Grant, Publisher, Refused, SliceRange, criteria,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{Reader, admin, config, open, serve, serve_at};
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
    // The backup was made of an open journal, so that its start is an unclean one: even as long as before, it differs.
    std::fs::remove_dir_all(&directory).unwrap();
    copy(&backup, &directory);
    let journal = open(&directory);
    assert_eq!((journal.id(), journal.epoch()), (id, 1));
    for _ in 0..20 {
        journal.append("key", "other").await.unwrap();
    }
    let serving = serve_at(&journal, address).await;
    assert_eq!(until_refused(reader).await, Refused::Diverged { at: 5 });
    // Without a memory of its own a consumer goes on where the copy says.
    let mut reader = Reader::new(config(address, "cart"));
    reader.read(20).await;
    serving.stop().await.unwrap();
    drop(journal);
    std::fs::remove_dir_all(&directory).unwrap();
    let journal = open(&directory);
    let _serving = serve_at(&journal, address).await;
    assert_eq!(until_refused(reader).await, Refused::JournalReplaced { was: id, now: journal.id() });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retention_has_taken_stops_the_consumer() {
    let dir = tempfile::tempdir().unwrap();
    let options = mainstem_direct::JournalOptions::new();
    let journal = options
        .queue(|queue| queue.segment_bytes(64 << 10).retention_bytes(100_000))
        .open(dir.path().join("cart"))
        .unwrap();
    let serving = serve(&journal).await;
    let mut reader = Reader::new(config(serving.address(), "cart"));
    journal.append("key", "first").await.unwrap();
    reader.read(1).await;
    reader.consumer.leave().await;
    for _ in 0..100 {
        journal.append("key", &[b'x'; 5_000]).await.unwrap();
    }
    let refused = refusal(error_of(config(serving.address(), "cart")).await);
    assert!(matches!(refused, Refused::OutOfRange { offset: 1, end: 101, .. }), "{refused:?}");
    assert!(refused.to_string().contains("mainstem direct reset --to-earliest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_of_a_name_fences_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let mut first = Reader::new(config(serving.address(), "cart").instance("one"));
    while first.assigned.is_none() {
        first.step().await.unwrap();
    }
    let mut second = Reader::new(config(serving.address(), "cart").instance("one"));
    journal.append("key", "value").await.unwrap();
    second.read(1).await;
    assert_eq!(until_refused(first).await, Refused::Fenced);
    let pinned = |from, to| config(serving.address(), "cart").pinned(SliceRange::new(from, to).unwrap());
    let mixed = error_of(pinned(0, 512)).await.to_string();
    assert!(mixed.contains("pin those of all, or of none"), "{mixed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_and_the_publisher_lives() {
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
        // The other end may be faster with closing it.
        let _ = socket.write_all(bytes).await;
    }
    journal.append("key", "value").await.unwrap();
    Reader::new(config(address, "cart")).read(1).await;
    let info = admin(address).await.describe("").await.unwrap();
    assert_eq!(info[0].consumers.len(), 1, "what was refused left nothing behind: {info:?}");
}

/// Sends frames as they are, and returns the status that ends the call.
async fn status_of(address: std::net::SocketAddr, mut frames: Vec<Frame>, consumer: &str) -> tonic::Status {
    if let Frame::Open(open) = &mut frames[0] {
        open.consumer = consumer.to_owned();
    }
    let mut client = PublisherClient::connect(format!("http://{address}")).await.unwrap();
    let frames = frames.into_iter().map(|frame| FromConsumer { frame: Some(frame) });
    let outbound = futures_util::StreamExt::chain(
        futures_util::stream::iter(frames.collect::<Vec<_>>()),
        futures_util::stream::pending(),
    );
    let mut inbound = match client.subscribe(outbound).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    loop {
        if let Err(status) =
            tokio::time::timeout(support::DEADLINE, inbound.message()).await.expect("it ends")
        {
            return status;
        }
    }
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
    let done = |assignment, offset| Frame::Done(proto::Done { assignment, offset, finished: vec![] });
    let future = |offset| proto::Open { journal_id: journal.id().0.to_vec().into(), offset, ..open() };
    let more = proto::Held {
        done: Some(proto::Done { assignment: 1, offset: 9, finished: vec![] }),
        slices: Some(proto::Slices { from: 0, to: 1_024 }),
    };
    for (frames, reason) in [
        (vec![done(1, 1)], "the first frame has to be Open"),
        (vec![Frame::Open(open()), Frame::Open(open())], "comes first, and once"),
        (
            vec![Frame::Open(open()), Frame::Credit(proto::Credit { bytes: u64::MAX }), done(1, 1_000)],
            "cannot be done",
        ),
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
    // Stale words are no lies.
    let mut reader = Reader::new(ConsumerConfig::new(support::address(serving.address()), "cart", "other"));
    reader.consumer.positions().done(mainstem_direct::Done { assignment: 77, offset: 5, finished: vec![] });
    reader.read(1).await;
}

struct Certificates {
    authority: String,
    server: (String, String),
    client: (String, String),
}

fn certificates() -> Certificates {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    Certificates { server: issue("localhost"), client: issue("analytics"), authority: authority.pem() }
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
    for (what, address) in [
        ("plain text", address.clone()),
        ("no certificate", address.clone().tls(&known.authority)),
        (
            "another's certificate",
            address.clone().tls(&known.authority).identity(&other.client.0, &other.client.1),
        ),
        (
            "another authority",
            address.clone().tls(&other.authority).identity(&known.client.0, &known.client.1),
        ),
    ] {
        // With TLS 1.3 a refused certificate shows at the first call.
        let outcome = match mainstem_direct::Admin::connect(address).await {
            Ok(mut admin) => admin.describe("").await.map(drop),
            Err(error) => Err(error),
        };
        let error = outcome.expect_err(what).to_string();
        assert!(!error.contains("only subscriptions"), "{what}: {error}");
    }
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
