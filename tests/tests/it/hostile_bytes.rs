//! Bytes that no client sends. The answer is an error or a closed connection with one log line, and no other client notices.

use std::io::{self, Write};
use std::net::Shutdown;
use std::time::Duration;

use mainstem_records::Compression;
use mainstem_tests::hostile::batches::batch;
use mainstem_tests::hostile::client::{
    Client, PRODUCE_VERSION, TIMEOUT, produce, raw_request, request_bytes,
};
use mainstem_tests::hostile::victim::Victim;
use mainstem_tests::hostile::wait_until;
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_wire::messages::create_partitions_response::CreatePartitionsResponse;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::create_topics_response::CreateTopicsResponse;
use mainstem_wire::sample::{Rng, Sampler};
use mainstem_wire::{ApiKey, Decoder, Message};

/// The line in the log when the broker ends a connection by itself.
const CLOSED: &str = "connection closed";

/// Sends bytes, ends the sending side, and reads until the broker closes.
fn deliver(victim: &Victim, bytes: &[u8]) {
    let mut client = Client::connect(victim.address);
    // The broker may close before all bytes are sent.
    match client.socket.write_all(bytes).and_then(|()| client.socket.shutdown(Shutdown::Write)) {
        Err(error)
            if error.kind() != io::ErrorKind::BrokenPipe
                && error.kind() != io::ErrorKind::ConnectionReset =>
        {
            assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
        }
        _ => {}
    }
    assert!(client.is_closed(), "the broker does not close what has ended");
}

fn random_bytes(rng: &mut Rng, count: u64) -> Vec<u8> {
    (0..count).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn random_bytes_and_absurd_lengths_close_and_are_counted() {
    let mut victim = Victim::start(&[]);
    let mut rng = Rng(0x5eed_0001);
    let mut expected = 0;
    for length in [-1, i32::MIN, i32::MAX, 104_857_601, 0x1603_0100] {
        deliver(&victim, &i32::to_be_bytes(length));
        expected += 1;
        victim.expect_logged(CLOSED, expected);
    }
    for _ in 0..200 {
        let count = 5 + rng.below(300);
        // The first byte makes the length negative or absurd.
        let mut bytes = random_bytes(&mut rng, count);
        bytes[0] |= 0x40;
        deliver(&victim, &bytes);
        expected += 1;
    }
    victim.expect_ended(expected);
    for header in [[0x7f, 0xff, 0, 0], [0, 1, 0x7f, 0xff], [0, 24, 0, 5], [0xff; 4]] {
        deliver(&victim, &[&8_i32.to_be_bytes()[..], &header, &[0; 4]].concat());
        expected += 1;
    }
    victim.expect_ended(expected);
    assert!(
        victim.memory_kib("VmHWM") < 24 << 10,
        "no length sizes an allocation: {}",
        victim.memory_kib("VmHWM")
    );
    victim.assert_sound();
}

#[test]
fn every_truncation_of_a_request_closes_and_is_counted_once_at_most() {
    let mut victim = Victim::start(&[]);
    Client::connect(victim.address).create_topic("cut", 1, &[]);
    let batch = batch(Compression::None, 100);
    let request = request_bytes(PRODUCE_VERSION, 1, &produce("cut", 0, 1, &batch));
    for length in 1..request.len() {
        deliver(&victim, &request[..length]);
    }
    victim.expect_ended(request.len() - 1);
    let before = request.len() as isize - 1;
    // The frame is complete and its contents are not.
    for length in 14..request.len() - 1 {
        let mut frame = request[..length].to_vec();
        frame[..4].copy_from_slice(&(length as i32 - 4).to_be_bytes());
        deliver(&victim, &frame);
    }
    wait_until("the connections are closed", TIMEOUT, || {
        victim.ended() - before > (request.len() as isize - 16) / 2
    });
    assert!(victim.ended() - before <= request.len() as isize - 15);
    victim.assert_sound();
}

#[test]
fn garbage_and_random_values_for_every_api_and_version() {
    let mut victim =
        Victim::start(&[("group.initial.rebalance.delay.ms", "0"), ("auto.create.topics.enable", "false")]);
    let (sampler, mut rng) = (Sampler::new(), Rng(0x5eed_0002));
    let served = Client::connect(victim.address).served();
    assert!(served.len() >= 24, "{served:?}");
    for api in served {
        for version in api.versions() {
            for _ in 0..3 {
                let count = rng.below(400);
                deliver(&victim, &raw_request(api, version, &random_bytes(&mut rng, count)));
                let values = sampler.message(&format!("{}Request", api.name()), version, &mut rng);
                deliver(&victim, &raw_request(api, version, &values));
                let mut damaged = values;
                if let Some(at) = rng.next_u64().checked_rem(damaged.len() as u64) {
                    damaged[at as usize] ^= 1 << rng.below(8);
                }
                deliver(&victim, &raw_request(api, version, &damaged));
            }
        }
        victim.assert_sound();
    }
    Client::connect(victim.address).ask(0, &ApiVersionsRequest::default());
    assert!(victim.memory_kib("VmHWM") < 64 << 10, "VmHWM {} KiB", victim.memory_kib("VmHWM"));
}

#[test]
fn counts_that_are_too_large_are_refused_in_words() {
    let mut victim = Victim::start(&[]);
    let mut client = Client::connect(victim.address);
    client.create_topic("grows", 1, &[]);
    for num_partitions in [100_001, i32::MAX] {
        let topic = CreatableTopic {
            name: "huge".into(),
            num_partitions,
            replication_factor: 1,
            ..Default::default()
        };
        let body = client
            .ask(7, &CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() });
        let response = CreateTopicsResponse::decode(&mut Decoder::new(&body), 7).unwrap();
        assert_ne!(response.topics[0].error_code, 0);
        let topic =
            CreatePartitionsTopic { name: "grows".into(), count: num_partitions, ..Default::default() };
        let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
        let body = client.ask(3, &request);
        let response = CreatePartitionsResponse::decode(&mut Decoder::new(&body), 3).unwrap();
        assert_ne!(response.results[0].error_code, 0);
    }
    assert!(victim.memory_kib("VmHWM") < 24 << 10, "VmHWM {} KiB", victim.memory_kib("VmHWM"));
    victim.assert_sound();
}

#[test]
fn vanished_clients_leave_nothing_behind() {
    let mut victim = Victim::start(&[]);
    Client::connect(victim.address).create_topic("gone", 1, &[]);
    let descriptors = victim.descriptors();
    let batch = batch(Compression::None, 50_000);
    let request = request_bytes(PRODUCE_VERSION, 1, &produce("gone", 0, -1, &batch));
    for length in (0..request.len()).step_by(997) {
        let mut client = Client::connect(victim.address);
        client.socket.write_all(&request[..length]).unwrap();
        client.vanish();
        let mut client = Client::connect(victim.address);
        client.socket.write_all(&request).unwrap();
        client.vanish();
    }
    wait_until("all are noticed", Duration::from_secs(30), || victim.descriptors() <= descriptors);
    victim.assert_sound();
}

#[test]
fn an_api_that_is_not_served_is_refused() {
    let mut victim = Victim::start(&[]);
    let served = Client::connect(victim.address).served();
    let others: Vec<_> = ApiKey::ALL.iter().copied().filter(|api| !served.contains(api)).collect();
    for api in &others {
        deliver(&victim, &raw_request(*api, *api.versions().start(), &[0; 8]));
    }
    victim.expect_logged(CLOSED, others.len());
    victim.assert_sound();
}
