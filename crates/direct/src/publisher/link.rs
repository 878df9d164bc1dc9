//! The bytes of a connection for HTTP/2: of its socket, or of TLS over that.
//!
//! The handshake takes place when HTTP/2 first reads or writes, in the task of its connection. So it is within the time limit of
//! the first request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::{FallibleAccept, TlsStream};
use tonic::transport::server::Connected;

use super::connections::{PeerInfo, Socket};
use crate::tls_words;

/// A connection.
pub(super) struct Link {
    peer: PeerInfo,
    stage: Stage,
}

enum Stage {
    Plain(Socket),
    Handshake(Box<FallibleAccept<Socket>>),
    Sealed(Box<TlsStream<Socket>>),
    Failed,
}

/// Bytes in both directions.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl Link {
    /// Makes a connection; with TLS if a configuration is given.
    pub(super) fn new(socket: Socket, tls: Option<Arc<ServerConfig>>) -> Link {
        let peer = socket.info();
        let stage = match tls {
            None => Stage::Plain(socket),
            Some(config) => {
                Stage::Handshake(Box::new(TlsAcceptor::from(config).accept(socket).into_fallible()))
            }
        };
        Link { peer, stage }
    }

    /// Returns the stream for reads and writes, after the handshake.
    fn open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        if let Stage::Handshake(accept) = &mut self.stage {
            match ready!(Pin::new(accept).poll(context)) {
                Ok(sealed) => {
                    let certificates = sealed.get_ref().1.peer_certificates().unwrap_or_default();
                    self.peer.shows(certificates.iter().map(|one| one.to_vec()).collect());
                    self.stage = Stage::Sealed(Box::new(sealed));
                }
                Err((error, mut socket)) => {
                    socket.fail(tls_words::of_publisher(&error));
                    self.stage = Stage::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(match &mut self.stage {
            Stage::Plain(socket) => Ok(Pin::new(socket)),
            Stage::Sealed(sealed) => Ok(Pin::new(sealed.as_mut())),
            Stage::Handshake(_) | Stage::Failed => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "the handshake of TLS has failed"))
            }
        })
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.open(context))?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.open(context))?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        // Both kinds of streams do.
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.open(context))?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stage {
            Stage::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Stage::Sealed(sealed) => Pin::new(sealed.as_mut()).poll_shutdown(context),
            // Nothing was sent that has to arrive.
            Stage::Handshake(_) | Stage::Failed => Poll::Ready(Ok(())),
        }
    }
}

impl Connected for Link {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.peer.clone()
    }
}
