//! Users, rules, secrets and TLS: commands against secured brokers of the same binary.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::broker::Broker;
use crate::support::{run, run_with_input};

/// The longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(120);

const AUTHORIZER: &str = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";

/// The client properties of a user with this name and password.
fn scram_login(dir: &Path, name: &str, password: &str) -> String {
    scram_login_by("SCRAM-SHA-512", dir, name, password)
}

fn scram_login_by(mechanism: &str, dir: &Path, name: &str, password: &str) -> String {
    let login = format!("ScramLoginModule required username=\"{name}\" password=\"{password}\";");
    let lines = [
        "security.protocol=SASL_PLAINTEXT",
        &format!("sasl.mechanism={mechanism}"),
        &format!("sasl.jaas.config=org.apache.kafka.common.security.scram.{login}"),
    ];
    let file = dir.join(format!("{name}-{password}-{mechanism}.properties"));
    std::fs::write(&file, lines.join("\n")).unwrap();
    format!("--command-config {}", file.display())
}

#[test]
fn secrets_are_neither_repeated_nor_dumped() {
    let mut broker = Broker::start();
    let secret = "ssl.key.password=hunter2";
    let own = format!("listener.name.plaintext.{secret}");
    let node = broker.run("cluster --json").json()["nodes"][0]["id"].to_string();
    for (resource, settings) in [
        (format!("broker/{node}"), format!("{own} log.cleaner.threads=2")),
        ("broker".to_owned(), "log.cleaner.threads=3".to_owned()),
    ] {
        for json in ["", "--json"] {
            let said = broker.run(&format!("config set {resource} {settings} {json}")).ok();
            assert!(said.contains("log.cleaner.threads") && !said.contains("hunter2"), "{said}");
            assert_eq!(said.contains("[hidden]"), settings.contains(secret), "{said}");
        }
    }
    let read = broker.run(&format!("config get broker/{node} --all --json")).ok();
    assert!(!read.contains("hunter2"), "{read}");
    run_with_input(&broker.address, "user create alice", b"a-secret\n").ok();
    broker.stop();
    let log = broker.data().join("__cluster_metadata-0");
    let kept = std::fs::read(log.join("00000000000000000000.log")).unwrap();
    assert!(kept.windows(7).any(|part| part == b"hunter2"), "the broker keeps it");
    // The secrets are hidden in a copy elsewhere, too.
    let copy = broker.data().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::write(copy.join("00000000000000000000.log"), &kept).unwrap();
    for directory in [log, copy] {
        let dumped = broker.run(&format!("log dump {} --records", directory.display())).ok();
        assert!(dumped.contains("alice") && dumped.contains("ssl.key.password"), "{dumped}");
        assert!(!dumped.contains("hunter2"), "{dumped}");
        // The setting, and salt, stored key and server key of the user.
        assert!(dumped.matches("[hidden]").count() >= 4, "{dumped}");
        let dumped = broker.run(&format!("log dump {} --records --json", directory.display())).ok();
        assert!(!dumped.contains("hunter2"), "{dumped}");
    }
}

#[test]
fn rules_are_chosen_by_all_that_they_say() {
    let broker = Broker::start_with(&[AUTHORIZER, "super.users=User:ANONYMOUS;User:root"]);
    let run = |arguments: &str| broker.run(arguments).ok();
    run("acl add --allow alice --operation read,write --topic t");
    run("acl add --allow alice --operation read --topic t --prefix");
    run("acl add --deny alice --operation read --topic t --host 10.0.0.1");
    run("acl add --allow bob --operation read --topic *");
    let count =
        |chosen: &str| broker.run(&format!("acl list {chosen} --json")).json().as_array().unwrap().len();
    for (chosen, expected) in [
        ("", 5),
        ("--topic t", 4),
        ("--topic t --pattern literal", 3),
        ("--pattern prefixed", 1),
        ("--topic t --pattern any", 4),
        ("--topic t --pattern match", 5),
        ("--topic ten --pattern match", 2),
        ("--host 10.0.0.1", 1),
        ("--host *", 4),
        ("--permission deny", 1),
        ("--permission allow --operation read", 3),
        ("--user bob --permission deny", 0),
    ] {
        assert_eq!(count(chosen), expected, "{chosen}");
    }
    for wrong in ["--pattern some", "--permission perhaps"] {
        assert_eq!(broker.run(&format!("acl list {wrong}")).code, Some(2), "{wrong}");
    }
    assert!(broker.run("acl remove --pattern any").failed().contains("say which rules"));
    assert_eq!(count(""), 5);
    assert!(run("acl remove --topic t --permission deny --host 10.0.0.1").contains("removed 1 rule"));
    // Prefixed rules with the same name stay.
    assert!(run("acl remove --topic t").contains("removed 2 rules"));
    assert_eq!(count("--pattern prefixed"), 1);
    assert!(run("acl remove --pattern prefixed").contains("removed 1 rule"));
    assert_eq!(count(""), 1);
}

#[test]
fn rules_are_printed_in_words() {
    let broker = Broker::start_with(&[AUTHORIZER, "super.users=User:ANONYMOUS"]);
    let added = broker.run("acl add --allow alice --deny bob --operation read --topic t").ok();
    let expected = "added 2 rules:\n  User:alice may Read the topic t from any address\n  \
                    User:bob may not Read the topic t from any address\n";
    assert_eq!(added, expected);
    let open = Broker::start();
    let refused = open.run("acl add --allow alice --operation read --topic t").failed();
    let said = "cannot create the rule that User:alice may Read the topic t from any address: ";
    assert!(refused.contains(said) && !refused.contains("StandardAcl"), "{refused}");
}

/// Rules and users that would have no effect are refused.
#[test]
fn rules_and_users_that_concern_nobody_are_refused() {
    let broker = Broker::start_with(&[AUTHORIZER, "super.users=User:ANONYMOUS"]);
    let user = "user create --generate";
    for (command, reason) in [
        ("acl add --allow alice --operation read --topic * --prefix", "begins with an asterisk"),
        ("acl add --allow alice --operation read --group * --prefix", "a group whose name"),
        ("acl add --allow alice --operation alter --cluster --prefix", "the cluster has one name"),
        (&format!("{user} zo\u{eb}"), "a user name in a SCRAM message is ASCII"),
        ("user passwd --generate zo\u{eb}", "a user name in a SCRAM message is ASCII"),
    ] {
        let refused = broker.run(command).failed();
        assert!(refused.contains(reason), "{command}: {refused}");
    }
    for command in
        ["acl add --allow Group:admins --operation read --topic t", "acl check Group:admins read --topic t"]
    {
        let refused = broker.run(command);
        assert!(
            refused.code == Some(2) && refused.stderr.contains("the type User alone"),
            "{command}: {refused:?}"
        );
    }
    broker.run("acl add --allow User:Group:admins --operation read --topic t").ok();
    assert!(broker.run("acl list --user Group:admins").ok().contains("there are no such rules"));
    assert!(broker.run("acl list").ok().contains("User:Group:admins"));
    assert!(broker.run("user list").ok().contains("no users"));
}

#[test]
fn access_without_a_rule_is_reported() {
    let open = "allow.everyone.if.no.acl.found=true";
    for (settings, free) in [
        (&[AUTHORIZER, "super.users=User:ANONYMOUS;User:root", open][..], true),
        (&[AUTHORIZER, "super.users=User:ANONYMOUS;User:root"], false),
    ] {
        let broker = Broker::start_with(settings);
        broker.run("acl add --allow alice --operation read --topic t").ok();
        let check = |arguments: &str| broker.run(&format!("acl check {arguments}")).ok();
        assert_eq!(check("root write --topic t"), "allowed: User:root is one of super.users\n");
        let answer = match free {
            true => "allowed: no rule concerns it, and allow.everyone.if.no.acl.found is true\n",
            false => "denied: no rule allows it\n",
        };
        assert_eq!(check("bob write --topic another"), answer);
        assert_eq!(check("bob write --topic t"), "denied: no rule allows it\n");
        let allowed = "allowed: by the rule that says: User:alice may Read the topic t from any address\n";
        assert_eq!(check("alice read --topic t"), allowed);
        let json = broker.run("acl check root write --topic t --json").json();
        assert_eq!(json, json!({"allowed": true, "super_user": true, "rule": null}));
    }
}

#[test]
fn a_password_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let properties = tempfile::tempdir().unwrap();
    let file = include_bytes!("../fixtures/bootstrap.checkpoint");
    std::fs::write(dir.path().join("bootstrap.checkpoint"), file).unwrap();
    let broker = Broker::start_on(
        dir,
        &[
            "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256",
        ],
    );
    let login = |name: &str, password: &str| scram_login(properties.path(), name, password);
    let admin = login("admin", "pw");
    let with_input = |command: &str, input: &[u8]| {
        run_with_input(&broker.address, &format!("user {command} {admin}"), input)
    };
    let unknown = with_input("passwd alice", b"first\n").failed();
    assert!(unknown.contains("there is no user alice"), "{unknown}");
    with_input("create alice", b"first\n").ok();
    let known = with_input("create alice", b"other\n").failed();
    assert!(known.contains("user passwd alice"), "{known}");
    broker.run(&format!("topic list {}", login("alice", "first"))).ok();
    let changed = with_input("passwd alice", b"second\n").ok();
    assert_eq!(changed, "changed the password of user alice (SCRAM-SHA-512)\n");
    broker.run(&format!("topic list {}", login("alice", "second"))).ok();
    let refused = broker.run(&format!("topic list {}", login("alice", "first"))).failed();
    assert!(refused.contains("authenticat"), "{refused}");
    let made = broker.run(&format!("user passwd alice --generate --json {admin}")).json();
    let password = made["password"].as_str().unwrap();
    broker.run(&format!("topic list {}", login("alice", password))).ok();
    broker.run(&format!("topic list {}", login("alice", "second"))).failed();
    let empty = with_input("passwd alice", b"\n").failed();
    assert!(empty.contains("first line is empty"), "{empty}");

    // A password that is replaced is replaced for all mechanisms, unless one is named.
    let by_256 = |password: &str| {
        let login = scram_login_by("SCRAM-SHA-256", properties.path(), "bob", password);
        broker.run(&format!("topic list {login}"))
    };
    with_input("create bob --mechanism SCRAM-SHA-256 --iterations 9000", b"old\n").ok();
    by_256("old").ok();
    let changed = with_input("passwd bob", b"new\n").ok();
    assert_eq!(changed, "changed the password of user bob (SCRAM-SHA-256)\n");
    by_256("new").ok();
    by_256("old").failed();
    let listed = broker.run(&format!("user list {admin}")).ok();
    assert!(listed.contains("9000"), "it is hashed as often as before: {listed}");
    let one = with_input("passwd bob --mechanism SCRAM-SHA-512", b"third\n").ok();
    assert!(one.contains("by SCRAM-SHA-256 the password from before still logs in"), "{one}");
    let both = with_input("passwd bob", b"fourth\n").ok();
    assert_eq!(both, "changed the password of user bob (SCRAM-SHA-256, SCRAM-SHA-512)\n");
    by_256("fourth").ok();
    by_256("new").failed();
    broker.run(&format!("topic list {}", login("bob", "third"))).failed();
}

#[test]
fn a_directory_that_is_there_keeps_its_mode_and_an_address_of_all_interfaces_needs_a_name() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let (there, new) = (home.path().join("there"), home.path().join("new"));
    std::fs::create_dir(&there).unwrap();
    std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    run("", &format!("security init {}", there.display())).ok();
    assert_eq!((mode(&there), mode(&there.join("data")), mode(&there.join("ca.key"))), (0o755, 0o700, 0o600));
    for listen in ["0.0.0.0:9092", "[::]:9092", ":9092"] {
        let refused = run("", &format!("security init {} --listen {listen}", new.display())).failed();
        assert!(refused.contains("--host NAME"), "{refused}");
        assert!(!new.exists(), "nothing is made");
    }
    let init = format!(
        "security init {} --listen 0.0.0.0:9092 --host broker.example --host 10.1.2.3",
        new.display()
    );
    let made = run("", &init).ok();
    assert!(made.contains("--bootstrap broker.example:9092"), "{made}");
    assert_eq!(mode(&new), 0o700);
    let settings = std::fs::read_to_string(new.join("server.properties")).unwrap();
    assert!(settings.contains(
        "listeners=SASL_SSL://0.0.0.0:9092\nadvertised.listeners=SASL_SSL://broker.example:9092\n"
    ));
}

#[test]
fn a_file_of_properties_says_who_the_user_is() {
    let jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"secret\";";
    let broker = Broker::start_with(&[
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN",
        &format!("listener.name.plaintext.plain.sasl.jaas.config={jaas}"),
    ]);
    let file = broker.data().join("client.properties");
    let write = |password: &str| {
        let login = format!("PlainLoginModule required username=\"alice\" password=\"{password}\";");
        let lines = [
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            &format!("sasl.jaas.config=org.apache.kafka.common.security.plain.{login}"),
        ];
        std::fs::write(&file, lines.join("\n")).unwrap();
    };
    write("secret");
    let with = format!("--command-config {}", file.display());
    broker.run(&format!("topic create orders {with}")).ok();
    broker.produce(&format!("orders {with}"), "one\n");
    assert!(broker.run(&format!("topic list {with}")).ok().contains("orders"));
    write("wrong");
    let refused = broker.run(&format!("topic list {with}")).failed();
    assert!(refused.contains("Invalid username or password"), "{refused}");
    assert!(!refused.contains("wrong"), "{refused}");
}

#[test]
fn a_secure_broker_is_two_commands_away() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("secure");
    let port = mainstem_testkit::port();
    let address = format!("localhost:{port}");
    // On every interface, as in a container; the broker advertises a name.
    run("", &format!("security init {} --listen 0.0.0.0:{port} --host localhost", made.display())).ok();
    let again = run("", &format!("security init {}", made.display())).failed();
    assert!(again.contains("nothing is overwritten"), "{again}");
    for secret in ["ca.key", "server.pem", "server.properties", "admin.properties"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(made.join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{secret} is its owner's");
    }
    let settings = std::fs::read_to_string(made.join("server.properties")).unwrap();
    assert!(!settings.contains("jaas"), "the administrator is a user of SCRAM: {settings}");
    // A secret in an environment variable.
    let more = "config.providers=env\n\
                config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n\
                log.retention.hours=${env:HOURS}\n";
    std::fs::write(made.join("server.properties"), settings + more).unwrap();
    let start = format!("start --config {}", made.join("server.properties").display());
    let refused = run("", &start).failed();
    assert!(refused.contains("log.retention.hours: there is no environment variable HOURS"), "{refused}");
    let mut process = Command::new(crate::support::binary::mainstem())
        .args(["start", "--json", "--config"])
        .arg(made.join("server.properties"))
        .env("HOURS", "7")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let broker = Broker { dir, process, address };
    let admin = format!("--command-config {}", made.join("admin.properties").display());
    broker.run(&format!("topic create orders {admin}")).ok();
    let shown = run("", &format!("security check {} {admin}", broker.address)).ok();
    // Without the file of the administrator, the client speaks in plain text.
    let plain = broker.run("topic list --timeout 1").failed();
    let hint = "the broker speaks TLS: use --command-config with security.protocol=SSL";
    assert!(plain.contains(hint) && plain.contains("does not answer as a Kafka broker does"), "{plain}");
    let lines = [
        "CN=broker",
        "localhost, 127.0.0.1",
        "(730 days)",
        "believed     yes",
        "SCRAM-SHA-512, SCRAM-SHA-256",
    ];
    for line in lines {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let elsewhere = broker.dir.path().join("elsewhere");
    run("", &format!("security init {}", elsewhere.display())).ok();
    let other = elsewhere.join("admin.properties");
    let refused =
        run("", &format!("security check {} --command-config {}", broker.address, other.display())).failed();
    assert!(refused.contains("refuse the listener"), "{refused}");
    // A machine that stalls may use up the whole of a short time.
    let refused = [1, 8].map(|seconds| format!("topic list --timeout {seconds}"));
    let is_said = |command: &String| {
        let refused = broker.run(command).failed();
        refused.contains("lost") || refused.contains("closed")
    };
    assert!(refused.iter().any(is_said), "why there was no answer is not said");

    run_with_input(&broker.address, &format!("user create alice {admin}"), b"a-secret\n").ok();
    assert!(broker.run(&format!("user list {admin}")).ok().contains("SCRAM-SHA-512"));
    let alice = made.join("alice.properties");
    let text = std::fs::read_to_string(made.join("admin.properties")).unwrap();
    let kept = text.lines().filter(|line| !line.starts_with("sasl."));
    let login = "sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=\
                 org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" password=\"a-secret\";";
    std::fs::write(&alice, kept.chain([login]).collect::<Vec<_>>().join("\n")).unwrap();
    let alice = format!("--command-config {}", alice.display());
    let denied = broker.run(&format!("topic describe orders {alice}")).failed();
    assert!(denied.contains("TOPIC_AUTHORIZATION_FAILED"), "{denied}");
    let rule = "--user alice --topic orders";
    broker
        .run(&format!("acl add --allow alice --operation read,write,describe-configs --topic orders {admin}"))
        .ok();
    broker.run(&format!("topic describe orders {alice}")).ok();
    assert!(broker.run(&format!("acl list {rule} {admin}")).ok().contains("User:alice"));
    let checked = broker.run(&format!("acl check alice write --topic orders {admin}")).ok();
    assert!(checked.starts_with("allowed: by the rule"), "{checked}");
    let checked = broker.run(&format!("acl check alice delete --topic orders {admin}")).ok();
    assert!(checked.starts_with("denied: no rule allows it"), "{checked}");
    assert!(broker.run(&format!("acl remove {rule} {admin}")).ok().contains("removed 3 rules"));
    broker.run(&format!("topic describe orders {alice}")).failed();
    broker.run(&format!("user delete alice {admin}")).ok();
    let gone = broker.run(&format!("topic list {alice}")).failed();
    assert!(gone.contains("authenticat"), "{gone}");
    run("", &format!("security cert client-1 --dir {}", made.display())).ok();
    a_certificate_is_renewed_while_the_broker_runs(&broker, &made, &admin);
}

/// The broker takes a new certificate from the file; clients that trust the authority notice nothing.
fn a_certificate_is_renewed_while_the_broker_runs(broker: &Broker, made: &Path, admin: &str) {
    let fingerprint = || {
        let shown = run("", &format!("security check {} {admin} --json", broker.address)).json();
        shown["tls"]["certificates"][0]["fingerprint"].as_str().expect("one is shown").to_owned()
    };
    let before = fingerprint();
    let said = run("", &format!("security cert server --renew --dir {}", made.display())).ok();
    for part in [
        "a new key and certificate of CN=broker, for localhost, 127.0.0.1",
        "(730 days)",
        "within ten seconds",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let deadline = Instant::now() + DEADLINE;
    while fingerprint() == before {
        assert!(Instant::now() < deadline, "the broker shows the old certificate after {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    broker.run(&format!("topic describe orders {admin}")).ok();
}

/// The file of a name in a directory of `security init`.
fn file(dir: &Path, name: &str) -> (String, u32) {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join(name);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    (std::fs::read_to_string(path).unwrap(), mode)
}

#[test]
fn a_certificate_is_renewed_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (made, other) = (dir.path().join("secure"), dir.path().join("other"));
    for dir in [&made, &other] {
        run("", &format!("security init {}", dir.display())).ok();
    }
    let cert = |arguments: &str| run("", &format!("security cert {arguments} --dir {}", made.display()));
    cert("node-1 --host node-1.example --host 10.0.0.1 --days 20").ok();
    let again = cert("node-1").failed();
    assert!(again.contains("node-1.pem is there already") && again.contains("--renew"), "{again}");
    // A power cut left a partly written file.
    std::fs::write(made.join("node-1.pem.new"), "-----BEGIN").unwrap();
    let (first, mode) = file(&made, "node-1.pem");
    assert_eq!(mode, 0o600);
    let json = cert("node-1 --renew --json").json();
    assert_eq!((&json["name"], &json["hosts"]), (&json!("node-1"), &json!(["node-1.example", "10.0.0.1"])));
    assert_eq!(json["expires"], json["expired"], "for as long, on the same day");
    let (second, mode) = file(&made, "node-1.pem");
    let key = |text: &str| text.split_once("-----END").expect("a key comes first").0.to_owned();
    assert!(
        second != first && key(&second) != key(&first) && mode == 0o600,
        "a new key, for its owner alone"
    );
    assert!(!made.join("node-1.pem.new").exists());
    // The file stays readable for its group, and never for others.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(made.join("node-1.pem"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = cert("node-1 --renew --host node-1.example --days 40").ok();
    assert!(said.contains("(40 days)") && said.contains("(20 days)"), "{said}");
    assert!(said.contains("its names have changed"), "{said}");
    assert_eq!(file(&made, "node-1.pem").1, 0o640);
    let client = cert("admin --renew --json").json();
    assert_eq!((&client["name"], &client["hosts"]), (&json!("admin"), &json!([])));

    let untouched = file(&made, "node-1.pem");
    let missing = cert("node-2 --renew").failed();
    assert!(
        missing.contains("node-2.pem") && missing.contains("without --renew a new one is made"),
        "{missing}"
    );
    let longer = cert("node-1 --renew --days 5000").failed();
    assert!(
        longer.contains("the authority of ca.pem ends at") && longer.contains("at most --days 36"),
        "{longer}"
    );
    let longer = cert("node-3 --days 5000").failed();
    assert!(longer.contains("the authority of ca.pem ends at"), "{longer}");
    std::fs::copy(other.join("admin.pem"), made.join("foreign.pem")).unwrap();
    let foreign = cert("foreign --renew").failed();
    assert!(foreign.contains("is not of the authority that is here"), "{foreign}");
    std::fs::rename(made.join("ca.key"), dir.path().join("ca.key")).unwrap();
    let keyless = cert("node-1 --renew").failed();
    assert!(keyless.contains("ca.key") && keyless.contains("run this where they are kept"), "{keyless}");
    assert_eq!(file(&made, "node-1.pem"), untouched, "what is refused changes nothing");
}

/// The file is of Kafka 4.3.0: `kafka-storage format --add-scram 'SCRAM-SHA-512=[name=admin,password=pw]'`.
#[test]
fn users_that_kafka_has_formatted_a_directory_with_are_there_at_the_first_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = include_bytes!("../fixtures/bootstrap.checkpoint");
    std::fs::write(dir.path().join("bootstrap.checkpoint"), file).unwrap();
    let admin = scram_login(dir.path(), "admin", "pw");
    let broker = Broker::start_on(
        dir,
        &[
            "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=SCRAM-SHA-512",
            AUTHORIZER,
            "super.users=User:admin",
        ],
    );
    let users = broker.run(&format!("user list {admin}")).ok();
    assert!(users.contains("admin"), "{users}");
}
