//! The memory that clients can make a publisher use is bounded, whatever they send and do not read.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::support;
use crate::support::log::log;
use crate::support::{Reader, address, admin, config, open, serve, until};
use mainstem_direct::proto::publisher_client::PublisherClient;
use mainstem_direct::proto::{self, FromConsumer, from_consumer::Frame, manage_request::Action};
use mainstem_direct::{ConsumerConfig, PATTERNS_IN_ALL_MAX, PATTERNS_MAX, Publisher, criteria};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Types of frames of HTTP/2 (RFC 9113, 6), and the flags that this client sets.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: u16 = 4;
/// The window of a connection before any `WINDOW_UPDATE`.
const FIRST_WINDOW_BYTES: i64 = 65_535;
const FRAME_BYTES: usize = 16_384;

/// A client that gives no window for answers, and sends as much as it is allowed to.
struct Hoarder {
    socket: TcpStream,
    /// The bytes that it may still send on the connection, beside the window of each stream.
    window: i64,
    streams: BTreeMap<u32, i64>,
    /// The first window of a stream.
    first_window: Option<i64>,
    is_answered: bool,
    sent: usize,
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// A message as gRPC sends it.
fn message(frame: Frame) -> Vec<u8> {
    let encoded = FromConsumer { frame: Some(frame) }.encode_to_vec();
    let length = u32::try_from(encoded.len()).unwrap();
    [&[0u8][..], &length.to_be_bytes(), &encoded].concat()
}

impl Hoarder {
    /// Connects, and gives streams no window for answers.
    async fn connect(at: SocketAddr) -> Hoarder {
        let socket = TcpStream::connect(at).await.unwrap();
        let (streams, first_window) = (BTreeMap::new(), None);
        let mut hoarder = Hoarder {
            socket,
            window: FIRST_WINDOW_BYTES,
            streams,
            first_window,
            is_answered: false,
            sent: 0,
        };
        hoarder.socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let no_window = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &0u32.to_be_bytes()].concat();
        hoarder.write(SETTINGS, 0, 0, &no_window).await;
        while hoarder.first_window.is_none() {
            hoarder.read().await;
        }
        hoarder
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()[..]].concat();
        self.socket.write_all(&[&head[..], payload].concat()).await.unwrap();
    }

    /// Takes a frame of the publisher.
    async fn read(&mut self) {
        let (kind, flags, stream, payload) =
            tokio::time::timeout(support::DEADLINE, self.read_frame()).await.expect("a frame comes");
        match kind {
            SETTINGS if flags & ACK == 0 => {
                let value = |setting: &[u8]| i64::from(be_u32(&setting[2..]));
                let all = payload.chunks_exact(6);
                let mut windows = all.filter(|one| one[..2] == INITIAL_WINDOW_SIZE.to_be_bytes()).map(value);
                self.first_window = Some(windows.next_back().unwrap_or(FIRST_WINDOW_BYTES));
                self.write(SETTINGS, ACK, 0, &[]).await;
            }
            WINDOW_UPDATE => {
                let more = i64::from(be_u32(&payload));
                match stream {
                    0 => self.window += more,
                    stream => *self.streams.entry(stream).or_default() += more,
                }
            }
            PING if flags & ACK == 0 => self.write(PING, ACK, 0, &payload).await,
            PING => self.is_answered = true,
            GO_AWAY => panic!("the publisher ends the connection: {}", String::from_utf8_lossy(&payload)),
            _ => {}
        }
    }

    async fn read_frame(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; be_u32(&[0, head[0], head[1], head[2]]) as usize];
        self.socket.read_exact(&mut payload).await.unwrap();
        (head[3], head[4], be_u32(&head[5..]), payload)
    }

    /// Subscribes as an instance of this name.
    async fn subscribe(&mut self, stream: u32, instance: &str) {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", "/mainstem.direct.v1.Publisher/Subscribe"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        // Literals without an index (RFC 7541, 6.2.2).
        let field = |(name, value): (&str, &str)| {
            let text = |text: &str| [&[u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
            [vec![0], text(name), text(value)].concat()
        };
        let block: Vec<u8> = fields.into_iter().flat_map(field).collect();
        self.write(HEADERS, END_HEADERS, stream, &block).await;
        self.streams.insert(stream, self.first_window.unwrap());
        let open = message(Frame::Open(proto::Open {
            stream: "cart".to_owned(),
            consumer: "hoarder".to_owned(),
            instance: instance.to_owned(),
            credit_bytes: 1 << 20,
            ..proto::Open::default()
        }));
        self.send(stream, &open).await;
    }

    async fn send(&mut self, stream: u32, bytes: &[u8]) {
        self.write(DATA, 0, stream, bytes).await;
        let length = i64::try_from(bytes.len()).unwrap();
        self.window -= length;
        *self.streams.get_mut(&stream).unwrap() -= length;
        self.sent += bytes.len();
    }

    /// Sends credit as long as it may; returns the bytes that it has sent.
    async fn send_all(&mut self) -> usize {
        let (before, credit) = (self.sent, message(Frame::Credit(proto::Credit { bytes: 1 })));
        for stream in self.streams.keys().copied().collect::<Vec<_>>() {
            loop {
                let sendable = self.window.min(self.streams[&stream]).clamp(0, FRAME_BYTES as i64);
                let count = usize::try_from(sendable).unwrap() / credit.len();
                if count == 0 {
                    break;
                }
                self.send(stream, &credit.repeat(count)).await;
            }
        }
        self.sent - before
    }

    /// Waits until the publisher has taken what was sent, and takes what it says.
    async fn settle(&mut self) {
        // The answer to a ping may overtake a window update that was sent before. The answer to a second one does not.
        for _ in 0..2 {
            self.is_answered = false;
            self.write(PING, 0, 0, &[7; 8]).await;
            while !self.is_answered {
                self.read().await;
            }
        }
    }
}

/// Subscriptions of one connection. Their windows together exceed that of the connection.
const HOARDERS: u32 = 8;
/// The window of a connection, which bounds the bytes that the publisher keeps of it.
const KEPT_BYTES_MAX: i64 = 256 << 10;
/// A subscription reads until it has a frame to send, which is soon. It reads no more until that frame is taken.
const SENT_BYTES_MAX: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_and_does_not_read_has_little_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let mut hoarder = Hoarder::connect(serving.address()).await;
    for n in 0..HOARDERS {
        hoarder.subscribe(2 * n + 1, &format!("instance {n}")).await;
    }
    hoarder.settle().await;
    while hoarder.send_all().await > 0 {
        assert!(hoarder.sent <= SENT_BYTES_MAX, "{} bytes were sent, and more may come", hoarder.sent);
        hoarder.settle().await;
        assert!(hoarder.window <= KEPT_BYTES_MAX, "there is room for {} bytes", hoarder.window);
    }
    assert!(hoarder.sent > 64 << 10, "{} bytes were sent", hoarder.sent);
    // Others are served meanwhile.
    journal.append("key", "value").await.unwrap();
    Reader::new(config(serving.address(), "cart")).read(1).await;
}

/// Subscribes once; none if that is taken.
async fn refusal_of(at: SocketAddr, consumer: &str) -> Option<tonic::Status> {
    let mut client = PublisherClient::connect(format!("http://{at}")).await.unwrap();
    let open = Frame::Open(proto::Open {
        stream: "cart".to_owned(),
        consumer: consumer.to_owned(),
        instance: "one".to_owned(),
        ..proto::Open::default()
    });
    let frames = [FromConsumer { frame: Some(open) }];
    client.subscribe(futures_util::stream::iter(frames)).await.err()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_too_many_is_refused_and_has_the_place_of_one_that_goes() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = Publisher::new().stream(&journal).sessions_max(2).start("127.0.0.1:0").await.unwrap();
    journal.append("key", "value").await.unwrap();
    let reader =
        |consumer: &str| Reader::new(ConsumerConfig::new(address(serving.address()), "cart", consumer));
    let (mut first, mut second) = (reader("first"), reader("second"));
    first.read(1).await;
    second.read(1).await;
    for _ in 0..3 {
        let refused = refusal_of(serving.address(), "third").await.expect("there is no place");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("2 instances are connected"), "{refused:?}");
    }
    let log = log();
    let lines = log.lines().filter(|line| line.contains("2 instances are connected to this publisher"));
    assert_eq!(lines.count(), 1, "{log}");
    second.consumer.leave().await;
    reader("third").read(1).await;
    journal.append("key", "another").await.unwrap();
    first.read(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patterns_of_all_consumers_of_an_address_are_bounded_together() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    let at = serving.address();
    journal.append("key", "value").await.unwrap();
    let reader = |n: usize| {
        let patterns = (0..PATTERNS_MAX).map(|one| criteria::key_pattern(format!("key|{n} {one}")));
        let of_one = ConsumerConfig::new(address(at), "cart", format!("consumer {n}"));
        Reader::new(of_one.filter(criteria::only(patterns)))
    };
    // All come from one address, which has half of all.
    let mut readers: Vec<Reader> = (0..PATTERNS_IN_ALL_MAX / PATTERNS_MAX / 2).map(reader).collect();
    for one in &mut readers {
        one.read(1).await;
    }
    let one_more = Action::Filter(criteria::only([criteria::key_pattern("key")]));
    let refused = admin(at).await.manage("cart", "consumer 0", one_more.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("more than 512 patterns"), "{refused}");
    // A filter without patterns is served, and one with them when others go.
    Reader::new(config(at, "cart")).read(1).await;
    let mut last = reader(readers.len());
    readers.remove(0).consumer.leave().await;
    last.read(1).await;
    last.consumer.leave().await;
    drop(readers);
    until("it is kept", || {
        let one_more = one_more.clone();
        async move { admin(at).await.manage("cart", "consumer 0", one_more).await.is_ok() }
    })
    .await;
}
