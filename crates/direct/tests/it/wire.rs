//! Messages that no end of this version sends: frames and actions of a later one, cut, senseless and too large frames, other
//! services. Unknown ones that are allowed are passed over. The rest is refused with a reason, and logged by the publisher.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::support;
use crate::support::log::{log, until_logged};
use crate::support::{Reader, admin, config, open, serve};
use futures_util::{StreamExt as _, stream};
use mainstem_direct::proto::{self, FromConsumer, FromPublisher, from_publisher};
use mainstem_direct::{Consumer, ConsumerEvent, DirectError};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::body::Body;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse, uri::PathAndQuery};
use tonic::codegen::{BoxFuture, BoxStream, Service};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

const SUBSCRIBE: &str = "/mainstem.direct.v1.Publisher/Subscribe";
const MANAGE: &str = "/mainstem.direct.v1.Publisher/Manage";

/// The value of a field that is not known now.
const LATER: &str = "of a later version";

/// `FromConsumer` of a later version.
#[derive(Clone, PartialEq, Message)]
struct LaterFromConsumer {
    #[prost(message, optional, tag = "1")]
    open: Option<proto::Open>,
    #[prost(message, optional, tag = "4")]
    filter: Option<proto::Filter>,
    #[prost(string, optional, tag = "99")]
    later: Option<String>,
}

/// `FromPublisher` of a later version.
#[derive(Clone, PartialEq, Message)]
struct LaterFromPublisher {
    #[prost(message, optional, tag = "1")]
    opened: Option<proto::Opened>,
    #[prost(message, optional, tag = "2")]
    assign: Option<proto::Assign>,
    #[prost(message, optional, tag = "4")]
    skip: Option<proto::Skip>,
    #[prost(string, optional, tag = "99")]
    later: Option<String>,
}

/// `ManageRequest` of a later version.
#[derive(Clone, PartialEq, Message)]
struct LaterManageRequest {
    #[prost(string, tag = "1")]
    stream: String,
    #[prost(string, tag = "2")]
    consumer: String,
    #[prost(string, optional, tag = "99")]
    later: Option<String>,
}

/// Calls anything by its path.
async fn client(at: SocketAddr) -> tonic::client::Grpc<Channel> {
    let channel = Endpoint::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    client
}

/// Sends messages of any kind as the frames of a subscription.
async fn subscribe<M: Message + 'static>(
    at: SocketAddr,
    frames: Vec<M>,
) -> Result<Streaming<FromPublisher>, Status> {
    let frames = Request::new(stream::iter(frames).chain(stream::pending()));
    let codec = ProstCodec::<M, FromPublisher>::default();
    let called = client(at).await.streaming(frames, PathAndQuery::from_static(SUBSCRIBE), codec).await;
    called.map(Response::into_inner)
}

/// The next frame of a publisher, or what has ended its call.
async fn next(inbound: &mut Streaming<FromPublisher>) -> Result<from_publisher::Frame, Status> {
    let message = tokio::time::timeout(support::DEADLINE, inbound.message()).await.expect("something comes");
    Ok(message?.expect("it ends by a status").frame.expect("it is known"))
}

/// The status that ends a subscription, of which these are the frames.
async fn status_of<M: Message + 'static>(at: SocketAddr, frames: Vec<M>) -> Status {
    let mut inbound = match subscribe(at, frames).await {
        Ok(inbound) => inbound,
        Err(status) => return status,
    };
    loop {
        if let Err(status) = next(&mut inbound).await {
            return status;
        }
    }
}

fn open_frame(stream: &str) -> proto::Open {
    let (consumer, instance) = ("analytics".to_owned(), "one".to_owned());
    proto::Open {
        stream: stream.to_owned(),
        consumer,
        instance,
        credit_bytes: 1_000,
        ..proto::Open::default()
    }
}

/// Starts a server of another service at a publisher's address.
async fn serve_instead<S>(service: S) -> SocketAddr
where
    S: Service<HttpRequest<Body>, Response = HttpResponse<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tokio::spawn(Server::builder().serve_with_incoming(service, Box::pin(incoming)));
    address
}

/// A publisher of a later version, which says the same to each instance.
#[derive(Clone)]
struct LaterPublisher(Vec<LaterFromPublisher>);

impl Service<HttpRequest<Body>> for LaterPublisher {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let subscribed = Subscribed(self.0.clone());
        Box::pin(async move {
            let codec = ProstCodec::<LaterFromPublisher, FromConsumer>::default();
            Ok(tonic::server::Grpc::new(codec).streaming(subscribed, request).await)
        })
    }
}

struct Subscribed(Vec<LaterFromPublisher>);

impl tonic::server::StreamingService<FromConsumer> for Subscribed {
    type Response = LaterFromPublisher;
    type ResponseStream = BoxStream<LaterFromPublisher>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<FromConsumer>>) -> Self::Future {
        let (frames, inbound) = (std::mem::take(&mut self.0), request.into_inner());
        let said = stream::iter(frames).map(Ok::<_, Status>).chain(stream::pending()).map(move |frame| {
            // The frames of the instance are never read, as long as this lasts.
            let _ = &inbound;
            frame
        });
        Box::pin(std::future::ready(Ok(Response::new(Box::pin(said) as BoxStream<_>))))
    }
}

/// Another service of gRPC, which knows none of these calls.
#[derive(Clone)]
struct AnotherService;

impl Service<HttpRequest<Body>> for AnotherService {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: HttpRequest<Body>) -> Self::Future {
        std::future::ready(Ok(Status::unimplemented("").into_http()))
    }
}

/// The error of a consumer that cannot continue.
async fn error_of(at: SocketAddr) -> DirectError {
    let mut consumer = Consumer::new(config(at, "cart"));
    loop {
        let next = tokio::time::timeout(support::DEADLINE, consumer.next()).await.expect("it fails");
        if let Err(error) = next {
            return error;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_passes_over_frames_of_a_later_version() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = serve(&journal).await;
    journal.append("key", "value").await.unwrap();
    let opens = LaterFromConsumer { open: Some(open_frame("cart")), ..LaterFromConsumer::default() };
    let later = LaterFromConsumer { later: Some(LATER.to_owned()), ..LaterFromConsumer::default() };
    let filters =
        LaterFromConsumer { filter: Some(proto::Filter::default()), ..LaterFromConsumer::default() };
    let mut inbound =
        subscribe(serving.address(), vec![opens, later.clone(), filters, later.clone()]).await.unwrap();
    let (mut is_answered, mut next_offset) = (false, 0);
    // The frame behind the unknown one is answered, and events come.
    while !is_answered || next_offset == 0 {
        match next(&mut inbound).await.unwrap() {
            from_publisher::Frame::FilteredFrom(_) => is_answered = true,
            from_publisher::Frame::Records(records) => next_offset = records.next,
            _ => {}
        }
    }
    assert_eq!(next_offset, 1);
    let refused = status_of(serving.address(), vec![later]).await;
    assert!(refused.message().contains("the first frame has to be Open"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_passes_over_frames_of_a_later_version() {
    let later = || LaterFromPublisher { later: Some(LATER.to_owned()), ..LaterFromPublisher::default() };
    let epochs = vec![proto::Epoch { epoch: 0, start: 0, run: 7 }];
    let opened = proto::Opened { journal_id: vec![1; 16].into(), epochs, end: 5, ..proto::Opened::default() };
    let slices = Some(proto::Slices { from: 0, to: 1_024 });
    let assign = proto::Assign { assignment: 1, slices, offset: 0, resumed: false };
    let skip = proto::Skip { from: 0, next: 5 };
    let address = serve_instead(LaterPublisher(vec![
        LaterFromPublisher { opened: Some(opened), ..LaterFromPublisher::default() },
        later(),
        LaterFromPublisher { assign: Some(assign), ..LaterFromPublisher::default() },
        later(),
        LaterFromPublisher { skip: Some(skip), ..LaterFromPublisher::default() },
    ]))
    .await;
    let mut reader = Reader::new(config(address, "cart"));
    reader.read_to(5).await;
    assert_eq!((reader.assigned.map(|(assignment, _)| assignment), reader.others), (Some(1), vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_of_a_later_version_is_refused_and_logged() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("managed"));
    let serving = serve(&journal).await;
    journal.append("key", "value").await.unwrap();
    let mut reader = Reader::new(config(serving.address(), "managed"));
    reader.read(1).await;
    let (stream, consumer) = ("managed".to_owned(), "analytics".to_owned());
    let asked = LaterManageRequest { stream, consumer, later: Some(LATER.to_owned()) };
    let codec = ProstCodec::<LaterManageRequest, proto::ManageReply>::default();
    let path = PathAndQuery::from_static(MANAGE);
    let refused = client(serving.address()).await.unary(Request::new(asked), path, codec).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("a later version of the protocol"), "{refused:?}");
    until_logged(0, &["Manage by 127.0.0.1:", "\"managed\"", "\"analytics\"", "a later version"]).await;
    // The unknown action has changed nothing.
    journal.append("key", "another").await.unwrap();
    reader.read(2).await;
    assert_eq!(reader.others, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_service_at_either_end_is_recognized() {
    let _ = log();
    let address = serve_instead(AnotherService).await;
    let error = error_of(address).await;
    assert!(matches!(error, DirectError::Status { code: Code::Unimplemented, .. }), "{error:?}");
    assert!(error.to_string().contains("another service is there"), "{error}");
    let error = admin(address).await.describe("").await.unwrap_err().to_string();
    assert!(error.contains("another service is there"), "{error}");
    // And a client of another one at a publisher.
    let dir = tempfile::tempdir().unwrap();
    let serving = serve(&open(&dir.path().join("cart"))).await;
    let codec = ProstCodec::<proto::Alive, proto::Alive>::default();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let mut other = client(serving.address()).await;
    let refused = other.unary(Request::new(proto::Alive {}), path, codec).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    drop(other);
    until_logged(0, &["WARN", "the connection of 127.0.0.1:", "has ended without a request"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_nonsense_and_too_large_ones_end_their_call_and_are_logged() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("nonsense"));
    let serving = serve(&journal).await;
    // The only field of such a message is that of `Open`.
    let nonsense = status_of(serving.address(), vec![vec![0xff_u8; 20]]).await;
    assert!(nonsense.message().contains("failed to decode"), "{nonsense:?}");
    until_logged(0, &["Subscribe by 127.0.0.1:", "is refused", "failed to decode"]).await;
    let large = status_of(serving.address(), vec![vec![0_u8; 200 << 10]]).await;
    assert!(large.message().contains("too large"), "{large:?}");
    until_logged(0, &["Subscribe by 127.0.0.1:", "is refused", "too large"]).await;
    let later =
        status_of(serving.address(), vec![open_frame("nonsense").encode_to_vec(), vec![0xff; 20]]).await;
    assert!(later.message().contains("failed to decode"), "{later:?}");
    until_logged(0, &["instance one of consumer analytics of stream nonsense ends", "failed to decode"])
        .await;
    // Others notice nothing.
    journal.append("key", "value").await.unwrap();
    Reader::new(config(serving.address(), "nonsense")).read(1).await;
    // Nor does a consumer take a frame above 4 MiB.
    let large = LaterFromPublisher { later: Some("x".repeat(5 << 20)), ..LaterFromPublisher::default() };
    let error = error_of(serve_instead(LaterPublisher(vec![large])).await).await.to_string();
    assert!(error.contains("too large"), "{error}");
}

/// A frame of HTTP/2.
fn http2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header of HPACK's static table, or a new one, with a value that is not indexed.
fn header(name: &[u8], value: &str) -> Vec<u8> {
    [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_is_cut_ends_its_call_and_is_logged() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cut"));
    let serving = serve(&journal).await;
    let headers = [
        // POST, and http.
        vec![0x83, 0x86],
        header(&[0x04], SUBSCRIBE),
        header(&[0x01], "localhost"),
        header(&[0x0f, 0x10], "application/grpc"),
        header(b"\x00\x02te", "trailers"),
    ];
    // The message has a length of 100 bytes, and ends after 10.
    let cut = [&[0, 0, 0, 0, 100][..], &[0; 10]].concat();
    let mut socket = TcpStream::connect(serving.address()).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    for frame in [http2(4, 0, 0, &[]), http2(1, 0x4, 1, &headers.concat()), http2(0, 0x1, 1, &cut)] {
        socket.write_all(&frame).await.unwrap();
    }
    let peer = format!("Subscribe by {} ", socket.local_addr().unwrap());
    until_logged(0, &[&peer, "is refused", "Unexpected EOF"]).await;
    // The answer comes before the connection ends.
    assert!(socket.read(&mut [0; 16]).await.unwrap() > 0);
    journal.append("key", "value").await.unwrap();
    let mut consumer = Consumer::new(config(serving.address(), "cut"));
    let first =
        tokio::time::timeout(support::DEADLINE, consumer.next()).await.expect("events follow").unwrap();
    assert!(matches!(first, ConsumerEvent::Assigned { .. }), "{first:?}");
}
