//! Hostile names in all that is logged or answered: none controls a terminal, ends a line, turns the direction of writing, or is too
//! long to read.

use std::net::SocketAddr;

use crate::support;
use crate::support::log::{json_log, log};
use crate::support::{admin, open, serve};
use futures_util::StreamExt as _;
use mainstem_direct::proto::publisher_client::PublisherClient;
use mainstem_direct::proto::{
    self, FromConsumer, from_consumer::Frame, from_publisher, manage_request::Action,
};
use mainstem_direct::{ConsumerConfig, DirectError, Publisher, criteria};
use mainstem_lines::is_hidden;
use tonic::Status;

/// Characters by which a name may do harm, each with what is shown in its place.
const HOSTILE: [(&str, &str); 6] = [
    ("\u{1b}[2J", r"\u{1b}[2J"),
    ("\n", r"\n"),
    ("\r", r"\r"),
    ("\u{202e}", r"\u{202e}"),
    ("\u{9b}31m", r"\u{9b}31m"),
    ("\u{200b}", r"\u{200b}"),
];

/// Longer than any shown line with a name of 10,000 characters.
const SHOWN_BYTES_MAX: usize = 6_000;

/// All hostile characters, within the limits of a consumer's or an instance's name.
fn short(place: &str) -> String {
    let all: String = HOSTILE.iter().map(|(hostile, _)| *hostile).collect();
    format!("{place}{all}")
}

fn shown(place: &str) -> String {
    let all: String = HOSTILE.iter().map(|(_, shown)| *shown).collect();
    format!("{place}{all}")
}

fn long(place: &str) -> String {
    format!("{}{}", short(place), "x".repeat(10_000))
}

/// Checks a text that is shown to a person.
fn check(place: &str, text: &str) {
    assert!(!text.contains(is_hidden), "{place}: {text:?}");
    assert!(text.len() <= SHOWN_BYTES_MAX, "{place}: {} bytes", text.len());
    assert!(text.contains(&shown(place)), "{place}: {text}");
}

/// Checks the lines of the log about a place, in both formats.
async fn check_logged(place: &str) {
    // A raw name of the place would have a line too, so this does not wait for what must fail. An event is written in one format after
    // the other, so each is waited for.
    let each = || [log(), json_log()].map(|log| log.lines().any(|line| line.contains(place)));
    support::until(&format!("{place} is in both logs"), || std::future::ready(each() == [true; 2])).await;
    for log in [log(), json_log()] {
        // The form of JSON writes a backslash twice.
        let lines = log.lines().filter(|line| line.contains(place));
        lines.for_each(|line| check(place, &line.replace(r"\\", r"\")));
    }
}

async fn status_of(at: SocketAddr, open: proto::Open) -> Status {
    let mut client = PublisherClient::connect(format!("http://{at}")).await.unwrap();
    let frame = FromConsumer { frame: Some(Frame::Open(open)) };
    let frames = futures_util::stream::iter([frame]).chain(futures_util::stream::pending());
    let mut inbound = match client.subscribe(frames).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    loop {
        let message = tokio::time::timeout(support::DEADLINE, inbound.message()).await.expect("it ends");
        if let Err(status) = message {
            return status;
        }
    }
}

fn open_of(stream: &str, consumer: &str, instance: &str) -> proto::Open {
    proto::Open {
        stream: stream.to_owned(),
        consumer: consumer.to_owned(),
        instance: instance.to_owned(),
        credit_bytes: 1_000,
        ..proto::Open::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_publisher_refuses_shows_no_name_as_it_came() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("named"));
    let serving = serve(&journal).await;
    let at = serving.address();
    let mut client = PublisherClient::connect(format!("http://{at}")).await.unwrap();

    let subscribed = status_of(at, open_of(&long("stream-1"), "analytics", "one")).await;
    check("stream-1", subscribed.message());
    check_logged("stream-1").await;

    let described = client.describe(proto::DescribeRequest { stream: long("stream-2") }).await.unwrap_err();
    check("stream-2", described.message());
    check_logged("stream-2").await;

    let pause = Some(Action::Pause(proto::Pause {}));
    let managed =
        proto::ManageRequest { stream: "named".to_owned(), consumer: long("consumer-3"), action: pause };
    let managed = client.manage(managed).await.unwrap_err();
    check("consumer-3", managed.message());
    check_logged("consumer-3").await;

    let replayed =
        proto::ReplayRequest { stream: long("stream-4"), consumer: long("consumer-4"), ..Default::default() };
    let replayed = client.replay(replayed).await.unwrap_err();
    check("stream-4", replayed.message());
    check_logged("stream-4").await;
    check_logged("consumer-4").await;
    let replayed = proto::ReplayRequest {
        stream: "named".to_owned(),
        consumer: long("consumer-5"),
        ..Default::default()
    };
    check("consumer-5", client.replay(replayed).await.unwrap_err().message());
    check_logged("consumer-5").await;

    // An invalid pattern: the parser reports its position in lines of its own.
    let filter = criteria::only([criteria::key_pattern(format!("{}(", short("pattern-6")))]);
    let filtered =
        status_of(at, proto::Open { filter: Some(filter), ..open_of("named", "analytics", "one") }).await;
    check("pattern-6", filtered.message());
    check_logged("pattern-6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_publisher_keeps_shows_no_name_as_it_came() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("kept"));
    let serving = serve(&journal).await;
    let at = serving.address();
    let (consumer, instance) = (short("consumer-7"), short("instance-7"));
    let first = tokio::spawn(status_of_owned(at, "kept".to_owned(), consumer.clone(), instance.clone()));
    support::until("the instance is there", async || {
        let streams = admin(at).await.describe("").await.unwrap();
        streams[0].consumers.iter().any(|one| !one.instances.is_empty())
    })
    .await;
    let mut admin = admin(at).await;
    // A connected consumer is not forgotten.
    let forget = Action::Forget(proto::Forget {});
    let forgotten = admin.manage("kept", &consumer, forget).await.unwrap_err().to_string();
    check("consumer-7", &forgotten);
    // The name is in the answer to others.
    let unknown = admin.manage("kept", "unknown", Action::Pause(proto::Pause {})).await.unwrap_err();
    check("consumer-7", &unknown.to_string());
    // The second connection of its name ends the first.
    let second = tokio::spawn(status_of_owned(at, "kept".to_owned(), consumer, instance));
    let fenced = tokio::time::timeout(support::DEADLINE, first).await.expect("it is fenced").unwrap();
    assert_eq!(fenced.code(), tonic::Code::Aborted);
    check_logged("instance-7").await;
    check_logged("consumer-7").await;
    second.abort();
}

async fn status_of_owned(at: SocketAddr, stream: String, consumer: String, instance: String) -> Status {
    status_of(at, open_of(&stream, &consumer, &instance)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_many_consumers_are_not_all_answered() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("many"));
    let serving = serve(&journal).await;
    let at = serving.address();
    let mut client = PublisherClient::connect(format!("http://{at}")).await.unwrap();
    for n in 0..200 {
        let open = open_of("many", &format!("{n:090}"), "one");
        let frame = FromConsumer { frame: Some(Frame::Open(open)) };
        let frames = futures_util::stream::iter([frame]).chain(futures_util::stream::pending());
        let mut inbound = client.subscribe(frames).await.unwrap().into_inner();
        let opened = inbound.message().await.unwrap().unwrap().frame;
        assert!(matches!(opened, Some(from_publisher::Frame::Opened(_))));
    }
    let pause = Action::Pause(proto::Pause {});
    let unknown = admin(at).await.manage("many", "unknown", pause).await.unwrap_err().to_string();
    assert!(unknown.len() <= SHOWN_BYTES_MAX && unknown.contains("..."), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_words_of_who_judges_show_no_name_as_it_came() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("judged"));
    let publisher = Publisher::new()
        .stream(&journal)
        .authorize(|access| Err(format!("{} is not known to the judge", access.consumer)));
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    let refused = status_of(serving.address(), open_of("judged", &long("consumer-8"), "one")).await;
    check("consumer-8", refused.message());
    check_logged("consumer-8").await;
}

/// A publisher that answers each call with hostile words.
struct Hostile(fn(String) -> Status, &'static str);

#[tonic::async_trait]
impl proto::publisher_server::Publisher for Hostile {
    type SubscribeStream = futures_util::stream::Empty<Result<proto::FromPublisher, Status>>;
    type ReplayStream = futures_util::stream::Empty<Result<proto::Replayed, Status>>;

    async fn subscribe(
        &self,
        _: tonic::Request<tonic::Streaming<FromConsumer>>,
    ) -> Result<tonic::Response<Self::SubscribeStream>, Status> {
        Err(self.0(long(self.1)))
    }

    async fn describe(
        &self,
        _: tonic::Request<proto::DescribeRequest>,
    ) -> Result<tonic::Response<proto::DescribeReply>, Status> {
        Err(self.0(long(self.1)))
    }

    async fn manage(
        &self,
        _: tonic::Request<proto::ManageRequest>,
    ) -> Result<tonic::Response<proto::ManageReply>, Status> {
        Err(self.0(long(self.1)))
    }

    async fn replay(
        &self,
        _: tonic::Request<proto::ReplayRequest>,
    ) -> Result<tonic::Response<Self::ReplayStream>, Status> {
        Err(self.0(long(self.1)))
    }
}

async fn hostile(status: fn(String) -> Status, place: &'static str) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let incoming = futures_util::stream::unfold(listener, |listener| async {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let service = proto::publisher_server::PublisherServer::new(Hostile(status, place));
    let server = tonic::transport::Server::builder();
    tokio::spawn(async move {
        server.serve_with_incoming_shutdown(service, incoming, std::future::pending()).await
    });
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn the_words_of_a_publisher_are_shown_in_one_line() {
    let _ = log();
    // The subscription ends by it.
    let at = hostile(Status::not_found, "words-9").await;
    let mut consumer =
        mainstem_direct::Consumer::new(ConsumerConfig::new(support::address(at), "cart", "analytics"));
    let error =
        tokio::time::timeout(support::DEADLINE, consumer.next()).await.expect("it is refused").unwrap_err();
    check("words-9", &error.to_string());
    let DirectError::Status { message, .. } = error else { panic!("{error}") };
    check("words-9", &message);
    check_logged("words-9").await;
    let error = admin(at).await.describe("").await.unwrap_err();
    check("words-9", &error.to_string());
    // It connects again.
    let at = hostile(Status::unavailable, "words-10").await;
    let _consumer =
        mainstem_direct::Consumer::new(ConsumerConfig::new(support::address(at), "cart", "analytics"));
    check_logged("words-10").await;
}
