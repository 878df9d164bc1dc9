//! The service behind connections.

use std::sync::Arc;

use mainstem_listener_security::{SaslSettings, TlsSettings};
use mainstem_requests::context::ConnectionContext;
use mainstem_security::Credentials;

use crate::handled::{ClientState, Handled};
use crate::output::ResponseBuffer;

/// Serves the frames of connections, and decides which connections are admitted.
pub trait Service: Send + Sync + 'static {
    /// Serves one request frame, without its length. Must not block.
    fn serve(
        &self,
        connection: &Arc<ConnectionContext>,
        client: &mut ClientState,
        request: &[u8],
        response: &mut ResponseBuffer,
    ) -> Handled;

    /// A connection that has just been accepted at a listener, before a principal is known.
    fn connected(&self, id: u64, listener: usize, peer: std::net::SocketAddr) -> ConnectionContext;

    /// The sessions of a listener; none without TLS.
    fn tls(&self, listener: usize) -> Option<Arc<TlsSettings>>;

    /// The settings that a listener asks its clients for now; none without SASL.
    fn sasl(&self, listener: usize) -> Option<Arc<SaslSettings>>;

    /// The users of a SASL listener with these settings.
    fn users<'a>(&'a self, settings: &'a SaslSettings) -> Box<dyn Credentials + 'a>;
}
