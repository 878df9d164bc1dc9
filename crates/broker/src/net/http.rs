//! The operator's HTTP listener: `/metrics` for Prometheus and `/health`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::broker::Broker;
use crate::metrics;
use crate::net::listener::ACCEPT_PAUSE;

/// Scrapers that are served at the same time; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

/// A request's header has to arrive in this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection is for one request, and its answer has to be read in this time: a seat does not stay taken.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until the broker stops.
pub(crate) async fn serve(broker: Arc<Broker>, socket: std::net::TcpListener) {
    let socket = match TcpListener::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!("the HTTP listener cannot be served: {error}"),
    };
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut stopping = std::pin::pin!(broker.stopping.notified());
    while !broker.stopping.is_stopping() {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = &mut stopping => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let broker = broker.clone();
        tokio::spawn(async move {
            answer(broker, stream).await;
            drop(seat);
        });
    }
}

async fn answer(broker: Arc<Broker>, stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = route(&broker, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut stopping = std::pin::pin!(broker.stopping.notified());
    tokio::select! {
        // A scraper that goes away early is its own affair.
        _ = tokio::time::timeout(CONNECTION_TIMEOUT, served) => {}
        () = &mut stopping => {}
    }
}

fn route(broker: &Broker, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused =
            text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "Nothing is changed here: GET.\n".into());
        refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/metrics" => text(StatusCode::OK, "text/plain; version=0.0.4", metrics::exposition(broker)),
        "/health" => match broker.health() {
            Ok(()) => text(StatusCode::OK, "application/json", "{\"status\":\"ok\"}\n".into()),
            Err(why) => {
                let body = format!("{}\n", serde_json::json!({ "status": "failed", "reason": why }));
                text(StatusCode::SERVICE_UNAVAILABLE, "application/json", body)
            }
        },
        _ => text(StatusCode::NOT_FOUND, "text/plain", "There are /metrics and /health.\n".into()),
    }
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
