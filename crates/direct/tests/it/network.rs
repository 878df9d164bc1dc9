//! A network that delays and cuts connections at any byte, and a publisher that restarts meanwhile. An instance that stays
//! alive gets every event once, in order.
//!
//! `TEST_DIRECT_SEED` chooses another course of events.
#![allow(clippy::print_stderr, reason = "a role reports to the test that started it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::{Reader, config, open, serve_at};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Connections through it end after a number of bytes, each in its own time.
struct Network {
    to: SocketAddr,
    random: AtomicU64,
    cuts: AtomicU64,
}

impl Network {
    fn below(&self, bound: u64) -> u64 {
        let next = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (next ^ next >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) % bound
    }

    async fn run(self: Arc<Network>, listener: TcpListener) {
        while let Ok((near, _)) = listener.accept().await {
            let network = self.clone();
            tokio::spawn(async move {
                let Ok(far) = TcpStream::connect(network.to).await else { return };
                // Small budgets cut within the handshake, large ones within events.
                let budget = 1 << network.below(18);
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::select! {
                    () = network.clone().carry(near_in, far_out, budget) => {}
                    () = network.clone().carry(far_in, near_out, budget) => {}
                }
                network.cuts.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    async fn carry(self: Arc<Network>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, budget: u64) {
        let mut left = budget;
        let mut buffer = vec![0; 4_096];
        while left > 0 {
            let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
            if self.below(4) == 0 {
                tokio::time::sleep(Duration::from_micros(self.below(2_000))).await;
            }
            let count = count.min(usize::try_from(left).unwrap());
            left -= count as u64;
            if to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_network_does_an_instance_gets_each_event_once() {
    const ROUNDS: usize = 6;
    const EVENTS: usize = 150;
    let seed = std::env::var("TEST_DIRECT_SEED").map_or(4_711, |seed| seed.parse().unwrap());
    eprintln!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart");
    let mut journal = open(&directory);
    let mut serving = support::serve(&journal).await;
    let address = serving.address();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = listener.local_addr().unwrap();
    let network = Arc::new(Network { to: address, random: AtomicU64::new(seed), cuts: AtomicU64::new(0) });
    let carrying = tokio::spawn(network.clone().run(listener));
    let total = i64::try_from(ROUNDS * EVENTS).unwrap();
    let read = Arc::new(AtomicI64::new(0));
    let progress = read.clone();
    let reading = tokio::spawn(async move {
        let mut reader = Reader::new(config(through, "cart").credit_bytes(4_000));
        for upto in 1..=total {
            reader.read_to(upto).await;
            progress.store(upto, Ordering::Relaxed);
        }
        (reader.offsets(), reader.others.clone())
    });
    for round in 0..ROUNDS {
        for n in 0..EVENTS {
            journal
                .append(format!("key {}", n % 10), &format!("{round}/{n} {}", "x".repeat(n)))
                .await
                .unwrap();
        }
        // What is left of a round fits into one frame, and that through a connection of the longer ones.
        let half = i64::try_from(round * EVENTS + EVENTS / 2).unwrap();
        while read.load(Ordering::Relaxed) < half && !reading.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        serving.stop().await.unwrap();
        drop(journal);
        journal = open(&directory);
        serving = serve_at(&journal, address).await;
    }
    let (offsets, others) = tokio::time::timeout(Duration::from_secs(120), reading).await.unwrap().unwrap();
    carrying.abort();
    assert_eq!(offsets, (0..total).collect::<Vec<_>>());
    assert_eq!(others, [], "it is the only instance, and keeps what it has");
    eprintln!("{} connections were cut", network.cuts.load(Ordering::Relaxed));
    assert!(network.cuts.load(Ordering::Relaxed) > 3, "the network was no trouble");
}

/// Carries bytes both ways until it has to stop, and keeps the connection open then.
async fn carry_until(near: TcpStream, far: TcpStream, mut silent: tokio::sync::watch::Receiver<bool>) {
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        _ = tokio::io::copy(&mut near_in, &mut far_out) => return,
        _ = tokio::io::copy(&mut far_in, &mut near_out) => return,
        _ = silent.wait_for(|is_silent| *is_silent) => {}
    }
    // Until the test ends.
    let () = std::future::pending().await;
}

/// No connection is reset: only its silence shows that a publisher is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_leaves_a_connection_that_has_fallen_silent() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let serving = support::serve(&journal).await;
    let to = serving.address();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = listener.local_addr().unwrap();
    let (silence, silent) = tokio::sync::watch::channel(false);
    let carrying = tokio::spawn(async move {
        let mut connections = 0;
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.unwrap();
            connections += 1;
            match connections {
                1 => drop(tokio::spawn(carry_until(near, far, silent.clone()))),
                // Later connections get an answer.
                _ => {
                    let (mut near, mut far) = (near, far);
                    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
                }
            }
        }
    });
    journal.append("key", "before").await.unwrap();
    let mut reader = Reader::new(config(through, "cart"));
    reader.read(1).await;
    silence.send(true).unwrap();
    journal.append("key", "after").await.unwrap();
    // It takes 15 s to notice, and the machine may be busy.
    let noticed = tokio::time::timeout(Duration::from_secs(120), async {
        while reader.events.len() < 2 {
            let next = tokio::time::timeout(Duration::from_secs(100), reader.consumer.next()).await;
            reader.take(next.expect("something comes").unwrap());
        }
    });
    noticed.await.expect("it connects again");
    assert_eq!(reader.offsets(), [0, 1]);
    assert_eq!(reader.others, [], "it kept what it had");
    carrying.abort();
}
