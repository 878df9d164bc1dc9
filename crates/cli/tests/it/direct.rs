//! `mainstem direct`: streams, and their consumers from outside, with a process that serves them and without one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mainstem_direct::{Address, Consumer, ConsumerConfig, ConsumerEvent, Done};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

struct Served {
    child: Child,
    url: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_of(directory: &str) -> String {
    format!("{directory}.log")
}

fn serve(directory: &str) -> Served {
    serve_with(directory, "")
}

/// Serves with further options, separated by blanks.
fn serve_with(directory: &str, options: &str) -> Served {
    let mut command = Command::new(crate::support::binary::mainstem());
    command.args(["direct", "serve", &format!("cart={directory}"), "--address", "127.0.0.1:0"]);
    command.args(options.split_whitespace());
    let log = std::fs::File::create(log_of(directory)).unwrap();
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("streams are served at ").expect("it says where").to_owned();
    Served { child, url: format!("grpc://{address}") }
}

/// Runs a command. Returns its output, or the error.
fn run(arguments: &str) -> Result<String, String> {
    let output = Command::new(crate::support::binary::mainstem())
        .arg("direct")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn append(directory: &str, lines: &[u8]) {
    let mut append = Command::new(crate::support::binary::mainstem())
        .args(["queue", "append", directory])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    append.stdin.take().unwrap().write_all(lines).unwrap();
    assert!(append.wait().unwrap().success());
}

/// Has a consumer acknowledge so many events and leave.
async fn consume(url: &str, events: i64) {
    let mut consumer = Consumer::new(ConsumerConfig::new(Address::new(url).unwrap(), "cart", "analytics"));
    let mut assigned = 0;
    loop {
        match tokio::time::timeout(Duration::from_secs(30), consumer.next()).await.unwrap().unwrap() {
            ConsumerEvent::Assigned { assignment, .. } => assigned = assignment,
            ConsumerEvent::Records { next, .. } if next >= events => break,
            _ => {}
        }
    }
    consumer.positions().done(Done { assignment: assigned, offset: events, finished: Vec::new() });
    consumer.leave().await;
}

#[tokio::test]
async fn consumers_are_looked_after_from_outside() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart").display().to_string();
    append(&directory, b"tea\nmilk\nbread\n");
    let served = serve(&directory);
    let url = served.url.clone();
    consume(&url, 2).await;
    let listed = run(&format!("list {url}")).unwrap();
    assert!(listed.contains("analytics") && listed.contains("away"), "{listed}");
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let lag = json(run(&format!("lag {url} --json")).unwrap());
    assert_eq!(
        (&lag[0]["consumer"], &lag[0]["offset"], &lag[0]["lag"]),
        (&"analytics".into(), &2.into(), &1.into())
    );
    assert!(lag[0]["lag_ms"].as_i64().unwrap() > 0);
    let planned = run(&format!("reset {url} cart analytics --to-earliest")).unwrap();
    let expected = "consumer analytics of cart is at offset 2, 1 events behind; it would continue at the first event of the \
                    stream\n\nnothing was changed: --execute does it\n";
    assert_eq!(planned, expected);
    let planned = json(run(&format!("forget {url} cart analytics --json")).unwrap());
    assert_eq!((&planned["executed"], &planned["consumer"]["offset"]), (&false.into(), &2.into()));
    let beyond = run(&format!("reset {url} cart analytics --to-offset 99 --execute")).unwrap_err();
    assert!(beyond.contains("which has 0 to 3: it is behind the end"), "{beyond}");
    assert!(!beyond.contains("retention"), "{beyond}");
    let changed = run(&format!("reset {url} cart analytics --to-earliest --execute")).unwrap();
    assert_eq!(changed, "consumer analytics of cart continues, at offset 0 and 3 events behind\n");
    let filtered = run(&format!("filter {url} cart analytics --exclude all --include prefix=cart-")).unwrap();
    assert!(filtered.contains("what the filter lets pass from offset "), "{filtered}");
    let paused = json(run(&format!("pause {url} cart analytics --json")).unwrap());
    assert_eq!(paused["consumer"]["filter"], "--exclude all --include prefix=cart-");
    let unknown = run(&format!("resume {url} cart missing")).unwrap_err();
    assert!(unknown.contains("it has analytics"), "{unknown}");
    // Refused requests are in the log, which is stderr.
    let log = std::fs::read_to_string(log_of(&directory)).unwrap();
    assert!(log.contains("Manage by 127.0.0.1") && log.contains("missing"), "{log}");
    let served_already = run(&format!("list {directory}")).unwrap_err();
    assert!(served_already.contains("is open as a journal already, in process"), "{served_already}");
    // Unlike a kill, SIGTERM closes the journal in order.
    let pid = served.child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    let mut served = served;
    assert!(served.child.wait().unwrap().success());
    let local = json(run(&format!("list {directory} --json")).unwrap());
    let consumer = &local[0]["consumers"][0];
    assert_eq!(
        (&local[0]["epoch"], &consumer["offset"], &consumer["paused"]),
        (&0.into(), &0.into(), &true.into())
    );
    assert_eq!(
        run(&format!("forget {directory} cart analytics --execute")).unwrap(),
        "consumer analytics of cart is forgotten\n"
    );
    assert!(!run(&format!("list {directory}")).unwrap().contains("analytics"));
    let unknown = run(&format!("forget {directory} cart analytics")).unwrap_err();
    assert!(unknown.contains("has no consumer analytics"), "{unknown}");
    // A command that reads a queue does not make it a journal.
    let queue = dir.path().join("queue").display().to_string();
    append(&queue, b"one\n");
    let error = run(&format!("list {queue}")).unwrap_err();
    assert!(error.contains("is a queue, and not the journal of a stream"), "{error}");
    let away = run(&format!("list {url}")).unwrap_err();
    assert!(away.contains("cannot reach the publisher"), "{away}");
}

#[test]
fn what_serve_refuses_it_names_by_its_flags() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart").display().to_string();
    let open = run(&format!("serve cart={directory} --address 0.0.0.0:0")).unwrap_err();
    assert!(open.contains("--cert and --key") && open.contains("--insecure"), "{open}");
    assert!(!open.contains("Publisher::"), "{open}");
}

/// Writes an authority, and its certificates for a publisher and a client, as `NAME.ca`, `NAME.crt` and so on.
fn write_certificates(dir: &std::path::Path, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let write = |file: String, text: &str| {
        let new = dir.join(format!("{file}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, dir.join(file)).unwrap();
    };
    for role in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        write(format!("{name}.{role}.crt"), &params.signed_by(&key, &authority).unwrap().pem());
        write(format!("{name}.{role}.key"), &key.serialize_pem());
    }
    write(format!("{name}.ca"), &authority.pem());
}

#[test]
fn streams_are_looked_at_by_tls_whose_certificates_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("cart").display().to_string();
    let file = |name: &str| dir.path().join(name).display().to_string();
    write_certificates(dir.path(), "live");
    let own = format!("--cert {} --key {}", file("live.server.crt"), file("live.server.key"));
    let served = serve_with(&directory, &format!("{own} --client-ca {}", file("live.ca")));
    let url = served.url.clone();
    let shown = format!("--cert {} --key {}", file("live.client.crt"), file("live.client.key"));
    let by_tls = format!("--ca {}", file("live.ca"));
    let list = |options: &str| run(format!("list {url} {options}").trim());
    assert!(list(&format!("{by_tls} {shown}")).unwrap().contains("cart"));
    for refused in ["", &by_tls] {
        let error = list(refused).unwrap_err();
        assert!(error.contains("cannot reach the publisher"), "{error}");
    }
    let error = list(&shown).unwrap_err();
    assert!(error.contains("by TLS alone"), "{error}");
    let missing = format!("--ca {}", file("none"));
    assert!(list(&missing).unwrap_err().contains("cannot read"));

    // All of them are replaced while the process serves.
    std::fs::copy(file("live.ca"), file("before.ca")).unwrap();
    write_certificates(dir.path(), "live");
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while let Err(error) = list(&format!("{by_tls} {shown}")) {
        assert!(std::time::Instant::now() < deadline, "{error}");
    }
    let error = list(&format!("--ca {} {shown}", file("before.ca"))).unwrap_err();
    assert!(error.contains("is refused: "), "{error}");
    drop(served);

    let mut bad = Command::new(crate::support::binary::mainstem());
    bad.args(["direct", "serve", &format!("cart={directory}"), "--address", "127.0.0.1:0"]);
    bad.args(["--cert", &file("none"), "--key", &file("live.server.key")]);
    let output = bad.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("none cannot be read"), "{error}");
}
