//! Certificates that change on the disk: at a publisher that serves, and at a consumer that connects again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support;
use crate::support::log::{log, until_logged};
use crate::support::tls::{answered, certificates, refusal_of};
use crate::support::{Reader, open, until};
use mainstem_direct::{Address, Call, ConsumerConfig, DirectError, Grant, Journal, Publisher, Serving};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// A certificate and its key, in files.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(dir: &Path, name: &str, contents: &(String, String)) -> Files {
        let files =
            Files { certificate: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        files.write(contents);
        files
    }

    /// One after the other, each whole.
    fn write(&self, (certificate, key): &(String, String)) {
        replace(&self.certificate, certificate);
        replace(&self.key, key);
    }
}

fn replace(file: &Path, contents: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, contents).unwrap();
    std::fs::rename(new, file).unwrap();
}

fn der(certificate: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap().to_vec()
}

fn at(serving: &Serving) -> Address {
    Address::new(&format!("grpc://localhost:{}", serving.address().port())).unwrap()
}

/// An address that no other takes between two publishers.
fn own_place() -> String {
    format!("127.0.0.1:{}", mainstem_testkit::port())
}

/// Starts where another one was a moment ago.
async fn start_at(address: SocketAddr, publisher: impl Fn() -> Publisher) -> Serving {
    let deadline = tokio::time::Instant::now() + support::DEADLINE;
    loop {
        match publisher().start(&address.to_string()).await {
            Err(DirectError::Bind { .. }) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            started => return started.unwrap(),
        }
    }
}

/// Appends until the flag ends it; returns how many events there are.
async fn append(journal: Journal, ends: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !ends.load(Ordering::Relaxed) {
        journal.append("key", "value").await.unwrap();
        count += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_replaced_under_a_stream_that_goes_on() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let (first, second) = (certificates(), certificates());
    let files = Files::new(dir.path(), "server", &first.server);
    let subscriptions = Arc::new(AtomicU64::new(0));
    let counted = subscriptions.clone();
    let publisher = Publisher::new().stream(&journal).tls_files(&files.certificate, &files.key);
    let publisher = publisher.authorize(move |access| {
        counted.fetch_add(u64::from(access.call == Call::Subscribe), Ordering::Relaxed);
        Ok(Grant::Everything)
    });
    let serving = publisher.start("127.0.0.1:0").await.unwrap();
    let (of_first, of_second) =
        (|| at(&serving).tls(&first.authority), || at(&serving).tls(&second.authority));
    let ends = Arc::new(AtomicBool::new(false));
    let appending = tokio::spawn(append(journal.clone(), ends.clone()));
    let mut reader = Reader::new(ConsumerConfig::new(of_first(), "cart", "analytics"));
    reader.read(10).await;

    // What cannot be used changes nothing but the log: a key of another certificate, and none at all.
    for (key, reason) in [(second.server.1.as_str(), "KeyMismatch"), ("none", "server.key")] {
        let before = log().lines().count();
        replace(&files.key, key);
        until_logged(before, &["WARN", "cannot be used", reason, "go on with those before"]).await;
        answered(of_first()).await.unwrap();
    }

    files.write(&second.server);
    let is_replaced = async || answered(of_second()).await.is_ok();
    until("new connections see the new certificate", is_replaced).await;
    let refused = refusal_of(of_first()).await;
    assert!(refused.contains("is refused: "), "{refused}");
    until_logged(0, &["INFO", "new connections use them"]).await;

    // The consumer trusts the first authority alone: its connection is the one that it had.
    let before = reader.events.len();
    reader.read(before + 100).await;
    ends.store(true, Ordering::Relaxed);
    let appended = appending.await.unwrap();
    reader.read(appended).await;
    assert_eq!(reader.offsets(), (0..appended as i64).collect::<Vec<_>>());
    assert_eq!((reader.others.as_slice(), subscriptions.load(Ordering::Relaxed)), (&[][..], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_of_clients_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let (first, second) = (certificates(), certificates());
    let authorities = dir.path().join("clients.crt");
    replace(&authorities, &first.authority);
    let publisher = Publisher::new().stream(&journal).tls(first.server.0.clone(), first.server.1.clone());
    let serving = publisher.client_authorities_file(&authorities).start("127.0.0.1:0").await.unwrap();
    let address =
        |client: &(String, String)| at(&serving).tls(&first.authority).identity(&client.0, &client.1);
    answered(address(&first.client)).await.unwrap();
    assert!(answered(address(&second.client)).await.is_err());
    replace(&authorities, &second.authority);
    until("the other authority counts", async || answered(address(&second.client)).await.is_ok()).await;
    assert!(answered(address(&first.client)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_shows_the_certificate_that_is_there_when_it_connects() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let known = certificates();
    let files = Files::new(dir.path(), "client", &known.client);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let publisher = || {
        let shown = shown.clone();
        let publisher = Publisher::new().stream(&journal).tls(known.server.0.clone(), known.server.1.clone());
        publisher.client_authorities(known.authority.clone()).authorize(move |access| {
            shown.lock().unwrap().push(access.certificates[0].clone());
            Ok(Grant::Everything)
        })
    };
    let mut serving = publisher().start(&own_place()).await.unwrap();
    let address = at(&serving).tls(&known.authority).identity_files(&files.certificate, &files.key);
    let mut reader = Reader::new(ConsumerConfig::new(address, "cart", "analytics"));
    journal.append("key", "1").await.unwrap();
    reader.read(1).await;
    // The second one is another, of the third there is a certificate alone.
    let [second, third] = [known.issue("analytics"), known.issue("analytics")];
    for (events, (certificate, key)) in [(2, second.clone()), (3, (third.0, "none".to_owned()))] {
        files.write(&(certificate, key));
        let place = serving.address();
        serving.stop().await.unwrap();
        serving = start_at(place, publisher).await;
        journal.append("key", "another").await.unwrap();
        reader.read(events).await;
    }
    until_logged(0, &["cannot be used as they are now", "localhost"]).await;
    let mut shown = shown.lock().unwrap().clone();
    assert!(shown.len() >= 3);
    shown.dedup();
    assert_eq!(shown, [known.client.clone(), second].map(|(certificate, _)| der(&certificate)));
}

/// Certificates are replaced one after the other, so that both ends do not agree for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_had_a_connection_waits_for_a_certificate_that_it_accepts() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let (known, other) = (certificates(), certificates());
    let publisher =
        |shown: &(String, String)| Publisher::new().stream(&journal).tls(shown.0.clone(), shown.1.clone());
    let serving = publisher(&known.server).start(&own_place()).await.unwrap();
    let place = serving.address();
    let mut reader = Reader::new(ConsumerConfig::new(at(&serving).tls(&known.authority), "cart", "waits"));
    journal.append("key", "1").await.unwrap();
    reader.read(1).await;
    serving.stop().await.unwrap();
    let before = log().lines().count();
    let serving = start_at(place, || publisher(&other.server)).await;
    until_logged(before, &["WARN", "stream cart", "is refused: ", "again in"]).await;
    serving.stop().await.unwrap();
    let _serving = start_at(place, || publisher(&known.server)).await;
    journal.append("key", "2").await.unwrap();
    reader.read(2).await;
    assert_eq!(reader.offsets(), [0, 1]);
}

#[tokio::test]
async fn keys_are_not_printed() {
    let known = certificates();
    let address = Address::new("localhost:1").unwrap().tls(&known.authority);
    let address = address.identity(&known.client.0, &known.client.1);
    // What was read for a connection is kept.
    assert!(answered(address.clone()).await.is_err());
    let printed = format!("{address:?}");
    assert!(printed.contains("Text") && printed.len() < 300, "{printed}");
}
