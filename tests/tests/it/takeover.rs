//! In Kafka's place: Mainstem serves a directory of Apache Kafka (one node, combined roles) with the same
//! server.properties, and Kafka serves it again. Kafka's own clients write all data and check them
//! (`tests/takeover/TakeoverData.java`).
//!
//! It needs a JVM and Kafka's jars in `target/interop/kafka-VERSION/lib`, which `cargo xtask test` installs. Without
//! them a test prints that it is skipped; under `CI=true` it fails.

use mainstem_tests::kafka_node::{BEFORE_4, Home, NEWEST};

/// Kafka, Mainstem, Kafka, Mainstem, Kafka: after stops in order and after kills of either side. One idempotent
/// producer writes all the while. A transactional one has a transaction open at each change, which it ends with the
/// next broker.
#[test]
fn a_directory_goes_to_mainstem_and_back() {
    let Some(home) = Home::new("takeover", &NEWEST) else { return };
    home.format(&[]);
    let kafka = home.start_kafka();
    home.data("write", 0);
    let fed = home.feed();
    let mut transactions = home.transactions();
    home.data("check", 1);
    // The check has ended the open transaction: each phase leaves a new one.
    home.data("write", 1);
    transactions.ask("begin");
    kafka.stop();

    let mainstem = home.start_mainstem(&[]);
    transactions.ask("commit");
    home.data("check", 2);
    home.data("write", 2);
    transactions.ask("begin");
    mainstem.stop();

    let kafka = home.start_kafka();
    transactions.ask("commit");
    home.data("check", 3);
    home.data("write", 3);
    transactions.ask("begin");
    kafka.kill();

    let mainstem = home.start_mainstem(&[]);
    transactions.ask("abort");
    home.data("check", 4);
    home.data("write", 4);
    transactions.ask("begin");
    mainstem.kill();

    let kafka = home.start_kafka();
    transactions.ask("commit");
    home.data("check", 5);
    transactions.ask("check");
    transactions.end();
    fed.end();
    kafka.stop();
    home.assert_no_fault_in_the_files();
}

/// Kafka 3.9 with voters in its configuration, and a user's credential in its metadata. Afterwards `metadata.version`
/// is that of 4.3: Kafka 4.3 accepts the directory, 3.9 does not.
#[test]
fn a_directory_of_an_older_release_goes_one_way() {
    let Some(mut home) = Home::new("takeover-3.9", &BEFORE_4) else { return };
    home.format(&["--add-scram", "SCRAM-SHA-256=[name=alice,password=secret]"]);
    let kafka = home.start_kafka();
    home.data("write", 0);
    kafka.stop();

    let said = home.mainstem_refuses();
    assert!(said.contains("1 SCRAM credentials of users"), "{said}");
    assert!(said.contains("--accept-unprotected"), "{said}");
    let mainstem = home.start_mainstem(&["--accept-unprotected"]);
    home.data("check", 1);
    home.data("write", 1);
    mainstem.kill();
    let mainstem = home.start_mainstem(&["--accept-unprotected"]);
    home.data("check", 2);
    home.data("write", 2);
    mainstem.stop();

    if home.change_release(&NEWEST) {
        let kafka = home.start_kafka();
        home.data("check", 3);
        kafka.stop();
        home.assert_no_fault_in_the_files();
    }
}

/// Kafka ends its reading of the log at a snapshot that replaces it. Ours names its voters as Kafka's does.
#[test]
fn kafka_goes_on_from_our_snapshot() {
    let Some(home) = Home::new("takeover-snapshot", &NEWEST) else { return };
    home.format(&[]);
    let kafka = home.start_kafka();
    home.data("write", 0);
    kafka.stop();
    let mainstem = home.start_mainstem(&["--set", "metadata.log.max.snapshot.interval.ms=100"]);
    home.data("check", 1);
    home.data("write", 1);
    home.wait_for_a_snapshot();
    mainstem.stop();
    let kafka = home.start_kafka();
    home.data("check", 2);
    kafka.stop();
}
