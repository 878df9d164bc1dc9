//! `/live`, `/ready` and `/metrics` over HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use mainstem_operator::{Service, text};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::status::Status;

const PLAIN: &str = "text/plain";

/// The task that answers; it ends when this is dropped.
pub(crate) struct Serving {
    task: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves at an address.
pub(crate) async fn serve(address: &str, status: Arc<Status>) -> Result<Serving> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Error::Invalid(format!(
            "{address} cannot be listened on: {error}; choose another address (App::http)"
        ))
    })?;
    Ok(Serving { task: tokio::spawn(mainstem_operator::serve(listener, Arc::new(Served(status)))) })
}

struct Served(Arc<Status>);

impl Service for Served {
    type Stream = TcpStream;
    type Client = ();

    fn open(&self, stream: TcpStream, _: SocketAddr) -> io::Result<(TcpStream, ())> {
        Ok((stream, ()))
    }

    async fn answer(&self, request: &Request<Incoming>, _: &()) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/live" => said(self.0.live()),
            "/ready" => said(self.0.ready()),
            "/metrics" => text(StatusCode::OK, "text/plain; version=0.0.4", self.0.metrics()),
            _ => text(StatusCode::NOT_FOUND, PLAIN, "There are /live, /ready and /metrics.\n".to_owned()),
        }
    }
}

fn said(outcome: Result<(), String>) -> Response<Full<Bytes>> {
    match outcome {
        Ok(()) => text(StatusCode::OK, PLAIN, "ok\n".to_owned()),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
    }
}
