//! `/live`, `/ready` and `/metrics` over HTTP.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::status::Status;

/// A request has at most this many bytes up to its end.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// So many are answered at a time.
const CONNECTIONS_MAX: usize = 16;
/// A request that takes longer is not answered.
const LIMIT: Duration = Duration::from_secs(5);

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
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let task = tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let status = status.clone();
                    tokio::spawn(async move {
                        // Who does not ask in time, or goes, gets no answer.
                        let _ = tokio::time::timeout(LIMIT, answer(stream, &status)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!("a connection cannot be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(Serving { task })
}

async fn answer(mut stream: TcpStream, status: &Status) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.lines().next().unwrap_or_default().split(' ');
    let (code, body) = respond(words.next().unwrap_or_default(), words.next().unwrap_or_default(), status);
    let head = format!(
        "HTTP/1.1 {code}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn respond(method: &str, path: &str, status: &Status) -> (&'static str, String) {
    let said = |outcome: std::result::Result<(), String>| match outcome {
        Ok(()) => ("200 OK", "ok\n".to_owned()),
        Err(why) => ("503 Service Unavailable", format!("{why}\n")),
    };
    match (method, path.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/live") => said(status.live()),
        ("GET" | "HEAD", "/ready") => said(status.ready()),
        ("GET" | "HEAD", "/metrics") => ("200 OK", status.metrics()),
        ("GET" | "HEAD", _) => ("404 Not Found", "there are /live, /ready and /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is served\n".to_owned()),
    }
}
