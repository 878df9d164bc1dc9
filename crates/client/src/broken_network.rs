//! A broker behind connections that break, for tests.

use std::time::Duration;

use mainstem_broker::EmbeddedBroker;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::config::ClientConfig;

/// A broker that is reached only through a proxy, as it advertises the proxy's address.
pub(crate) struct BrokenNetwork {
    pub(crate) broker: EmbeddedBroker,
    address: String,
    proxy: JoinHandle<()>,
}

impl BrokenNetwork {
    /// Each connection is cut after so many bytes of answers, in the midst of what is under way; from the connection
    /// number `whole_from` on none is.
    pub(crate) async fn start(after_bytes: u64, whole_from: usize) -> BrokenNetwork {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let broker = EmbeddedBroker::start(&[("advertised.listeners", &format!("PLAINTEXT://{address}"))]);
        let proxy = tokio::spawn(pass_on(listener, broker.address().to_owned(), after_bytes, whole_from));
        BrokenNetwork { broker, address, proxy }
    }

    /// How to connect, without long waits between attempts.
    pub(crate) fn client(&self) -> ClientConfig {
        ClientConfig {
            retry_backoff: Duration::from_millis(1),
            retry_backoff_max: Duration::from_millis(5),
            ..ClientConfig::new(&self.address).unwrap()
        }
    }
}

impl Drop for BrokenNetwork {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

async fn pass_on(listener: TcpListener, to: String, after_bytes: u64, whole_from: usize) {
    for number in 0.. {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut broker = TcpStream::connect(&to).await.unwrap();
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.split();
            let (from_broker, mut to_broker) = broker.split();
            let mut answers = from_broker.take(if number < whole_from { after_bytes } else { u64::MAX });
            tokio::select! {
                _ = tokio::io::copy(&mut from_client, &mut to_broker) => {}
                _ = tokio::io::copy(&mut answers, &mut to_client) => {}
            }
        });
    }
}
