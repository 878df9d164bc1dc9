//! A broker behind connections that break.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Broker, World};
use crate::config::ClientConfig;

/// A broker that is reached through a proxy, as it advertises the proxy's address.
pub(crate) struct BrokenNetwork {
    /// The broker, with whole connections.
    pub(crate) world: World,
    address: String,
    proxy: JoinHandle<()>,
}

impl BrokenNetwork {
    /// Cuts each connection after so many bytes of answers, in the midst of what is under way; from the connection number
    /// `whole_from` on it cuts none.
    pub(crate) fn start(world: World, after_bytes: u64, whole_from: usize) -> BrokenNetwork {
        let (world, listener, to) = match &world.broker {
            Broker::Kafka(kafka) => {
                let (listener, to) = kafka.take_proxied();
                (world, listener, to)
            }
            Broker::Mainstem(_) => {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let advertised = format!("PLAINTEXT://{}", listener.local_addr().unwrap());
                let world = World::with_settings(&[("advertised.listeners", &advertised)]);
                let to = world.address().to_owned();
                (world, listener, to)
            }
        };
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        BrokenNetwork { world, address, proxy: tokio::spawn(pass_on(listener, to, after_bytes, whole_from)) }
    }

    /// The configuration of clients, without long waits between attempts.
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
