//! The broker as the service behind its connections.

use std::net::SocketAddr;
use std::sync::Arc;

use mainstem_listener_security::{SaslSettings, TlsSettings};
use mainstem_net::Service;
use mainstem_net::handled::{ClientState, Handled};
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{ANONYMOUS, ConnectionContext};
use mainstem_security::Credentials;
use parking_lot::Mutex;

use crate::api::dispatch;
use crate::broker::Broker;
use crate::users::KnownUsers;

/// A broker whose APIs are served.
pub(crate) struct Apis(pub(crate) Arc<Broker>);

impl Service for Apis {
    fn serve(
        &self,
        connection: &Arc<ConnectionContext>,
        client: &mut ClientState,
        request: &[u8],
        response: &mut ResponseBuffer,
    ) -> Handled {
        dispatch::handle(&self.0, connection, client, request, response)
    }

    fn connected(&self, id: u64, listener: usize, peer: SocketAddr) -> ConnectionContext {
        ConnectionContext {
            id,
            listener,
            peer,
            principal: ANONYMOUS.into(),
            authorization: self.0.security.authorization().cloned(),
            quotas: self.0.quotas.clone(),
            software: Mutex::default(),
            asked: None,
        }
    }

    fn tls(&self, listener: usize) -> Option<Arc<TlsSettings>> {
        self.0.security.tls(listener).cloned()
    }

    fn sasl(&self, listener: usize) -> Option<Arc<SaslSettings>> {
        self.0.security.sasl(listener)
    }

    fn users<'a>(&'a self, settings: &'a SaslSettings) -> Box<dyn Credentials + 'a> {
        Box::new(KnownUsers { broker: &self.0, settings })
    }
}
