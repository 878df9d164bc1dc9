//! Connections: limits, idleness, churn, and the cost of thousands of them.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mainstem_records::Compression;
use mainstem_tests::hostile::batches::batch;
use mainstem_tests::hostile::client::{Client, TIMEOUT, request_bytes};
use mainstem_tests::hostile::probe::Probe;
use mainstem_tests::hostile::victim::Victim;
use mainstem_tests::hostile::wait_until;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};

fn ping(client: &mut Client) {
    client.ask(0, &ApiVersionsRequest::default());
}

/// Connections that have been served once.
fn served_clients(victim: &Victim, count: usize) -> Vec<Client> {
    let connect = |_| {
        let mut client = Client::connect(victim.address);
        ping(&mut client);
        client
    };
    (0..count).map(connect).collect()
}

/// A fetch that waits for a minute on an empty partition.
fn long_poll(topic: &str) -> FetchRequest<'_> {
    let partition = FetchPartition { partition: 0, partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..Default::default() };
    FetchRequest {
        max_wait_ms: 60_000,
        min_bytes: 1,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

#[test]
fn connections_above_the_limits_are_refused_with_one_log_line_each() {
    for (key, text) in
        [("max.connections", "(max.connections)"), ("max.connections.per.ip", "(max.connections.per.ip)")]
    {
        let mut victim = Victim::start(&[(key, "20")]);
        let descriptors = victim.descriptors();
        let mut clients = served_clients(&victim, 20);
        for _ in 0..5 {
            assert!(Client::connect(victim.address).is_closed());
        }
        victim.expect_logged(text, 5);
        clients.iter_mut().for_each(ping);
        clients.pop();
        // The place is free as soon as the broker has noticed.
        wait_until("another one is admitted", TIMEOUT, || {
            let mut client = Client::connect(victim.address);
            let _ = client.send(0, &ApiVersionsRequest::default());
            client.frame().is_ok()
        });
        drop(clients);
        wait_until("all places are free", TIMEOUT, || victim.descriptors() <= descriptors);
        victim.assert_sound();
    }
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let mut victim = Victim::start(&[("connections.max.idle.ms", "5000")]);
    let descriptors = victim.descriptors();
    let mut silent = Client::connect(victim.address);
    let mut idle = served_clients(&victim, 20);
    let mut half = Client::connect(victim.address);
    half.socket.write_all(&request_bytes(0, 1, &ApiVersionsRequest::default())[..9]).unwrap();
    let mut busy = Client::connect(victim.address);
    wait_until("idle connections are closed", Duration::from_secs(60), || {
        ping(&mut busy);
        victim.descriptors() <= descriptors + 1
    });
    assert!(silent.is_closed() && half.is_closed() && idle.iter_mut().all(Client::is_closed));
    ping(&mut busy);
    victim.assert_sound();
}

#[test]
fn churn_leaks_neither_descriptors_nor_memory() {
    let mut victim = Victim::start(&[]);
    Client::connect(victim.address).create_topic("quiet", 1, &[]);
    let descriptors = victim.descriptors();
    let are_closed = || victim.descriptors() <= descriptors;
    let churn = |count: usize| {
        for round in 0..count {
            // The broker may keep the memory of open connections for later ones.
            if round % 100 == 0 {
                wait_until("those before are closed", TIMEOUT, are_closed);
            }
            let mut client = Client::connect(victim.address);
            match round % 6 {
                0 => ping(&mut client),
                1 => {}
                2 | 3 => client.send(11, &long_poll("quiet")).unwrap(),
                _ => {
                    client.send(11, &long_poll("quiet")).unwrap();
                    client.vanish();
                }
            }
        }
    };
    churn(1000);
    wait_until("all are closed", TIMEOUT, are_closed);
    let before = victim.memory_kib("VmRSS");
    churn(4000);
    wait_until("all are closed", TIMEOUT, are_closed);
    let after = victim.memory_kib("VmRSS");
    println!("churn: {before} KiB, then {after} KiB");
    assert!(after < before + 400, "4,000 connections left {} KiB behind", after - before);
    victim.assert_sound();
}

#[test]
fn five_thousand_idle_connections_cost_little_and_disturb_no_other() {
    let mut victim = Victim::start(&[]);
    let count = 5000;
    served_clients(&victim, 50);
    let probe = Probe::start(victim.address);
    let before = victim.memory_kib("VmRSS");
    let clients = served_clients(&victim, count);
    let after = victim.memory_kib("VmRSS");
    let bytes = (after - before) * 1024 / count as u64;
    println!("{count} idle connections: {before} KiB to {after} KiB, {bytes} bytes each");
    assert!(bytes <= 6 << 10, "{bytes} bytes per idle connection");
    probe.measure(1000);
    probe.finish();
    drop(clients);
    victim.assert_sound();
}

#[test]
fn a_thousand_partitions_and_connections_within_4096_descriptors() {
    let mut victim = Victim::with_descriptors(1024, 4096);
    let mut admin = Client::connect(victim.address);
    for topic in 0..10 {
        admin.create_topic(&format!("topic-{topic}"), 100, &[]);
    }
    let mut clients = served_clients(&victim, 1000);
    let batch = batch(Compression::None, 100);
    for (index, client) in clients.iter_mut().enumerate() {
        let topic = format!("topic-{}", index % 10);
        assert_eq!(client.produce(&topic, (index / 10) as i32, 1, &batch), ErrorCode::NONE);
    }
    for (index, client) in clients.iter_mut().enumerate() {
        let topic = format!("topic-{}", index % 10);
        let mut request = long_poll(&topic);
        request.topics[0].partitions[0].partition = (index / 10) as i32;
        assert!(client.ask(11, &request).len() > 100, "{topic} gives its record");
    }
    assert!(victim.logged("could not be accepted").is_empty());
    let (rss, peak, open) = (victim.memory_kib("VmRSS"), victim.memory_kib("VmHWM"), victim.descriptors());
    println!("1,000 partitions, 1,000 connections: RSS {rss} KiB, peak {peak} KiB, {open} descriptors");
    assert!(peak <= 40 << 10, "VmHWM {peak} KiB");
    victim.assert_sound();
}

#[test]
fn more_connections_than_descriptors_are_refused_in_words() {
    let mut victim = Victim::with_descriptors(128, 256);
    let mut clients = Vec::new();
    let mut refused = 0;
    for _ in 0..300 {
        let mut client = Client::connect(victim.address);
        let _ = client.send(0, &ApiVersionsRequest::default());
        match client.frame() {
            Ok(_) => clients.push(client),
            Err(_) => refused += 1,
        }
    }
    assert!(clients.len() >= 64, "{} of 300 are served", clients.len());
    victim.expect_ended(refused);
    clients.iter_mut().for_each(ping);
    clients[0].create_topic("still-works", 4, &[]);
    let descriptors = victim.descriptors();
    let served = clients.len();
    drop(clients);
    wait_until("they are closed", TIMEOUT, || victim.descriptors() <= descriptors - served);
    victim.assert_sound();
}

#[test]
fn the_wait_of_a_client_that_went_away_ends() {
    let mut victim = Victim::start(&[]);
    Client::connect(victim.address).create_topic("quiet", 1, &[]);
    let descriptors = victim.descriptors();
    let mut clients: Vec<_> = (0..50).map(|_| Client::connect(victim.address)).collect();
    clients.iter_mut().for_each(|client| client.send(11, &long_poll("quiet")).unwrap());
    for (index, client) in clients.into_iter().enumerate() {
        if index % 2 == 0 {
            client.vanish()
        }
    }
    wait_until("their connections are closed", TIMEOUT, || victim.descriptors() <= descriptors);
    victim.assert_sound();
}

#[test]
fn answers_keep_the_order_of_requests_also_around_acks_0() {
    let mut victim = Victim::start(&[]);
    let mut client = Client::connect(victim.address);
    client.create_topic("ordered", 1, &[]);
    let batch = batch(Compression::None, 10);
    let produce = |acks| mainstem_tests::hostile::client::produce("ordered", 0, acks, &batch);
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for id in 1..=2000 {
        let acks = [-1, 0, 1][id as usize % 3];
        if id % 7 == 0 {
            bytes.extend(request_bytes(0, id, &ApiVersionsRequest::default()));
        } else {
            bytes.extend(request_bytes(12, id, &produce(acks)));
        }
        if id % 7 == 0 || acks != 0 {
            expected.push(id);
        }
    }
    let mut socket: TcpStream = client.socket.try_clone().unwrap();
    let writer = std::thread::spawn(move || socket.write_all(&bytes).unwrap());
    for id in expected {
        let frame = client.frame().unwrap();
        assert_eq!(frame[..4], i32::to_be_bytes(id), "answer to {id}");
    }
    writer.join().unwrap();
    // Its answer is the next one: acks=0 has none.
    ping(&mut client);
    victim.assert_sound();
}

/// Connections that leave in the middle of a request free the memory of its received part.
#[test]
fn half_requests_leave_no_memory_behind() {
    const HALVES: usize = 600;
    const ARRIVED: usize = 60_000;
    let mut victim = Victim::with_descriptors(4_096, 4_096);
    let mut client = Client::connect(victim.address);
    ping(&mut client);
    let before = victim.memory_kib("VmRSS");
    let mut half = vec![0; ARRIVED];
    half[..4].copy_from_slice(&100_000_u32.to_be_bytes());
    let began = Instant::now();
    let halves: Vec<Client> = (0..HALVES)
        .map(|_| {
            let mut client = Client::connect(victim.address);
            client.socket.write_all(&half).unwrap();
            client
        })
        .collect();
    let arrived = (HALVES * ARRIVED / 1024 / 2) as u64;
    wait_until("the halves have arrived", TIMEOUT, || victim.memory_kib("VmRSS") > before + arrived);
    println!("{HALVES} halves have arrived after {:?}", began.elapsed());
    drop(halves);
    wait_until("their memory is given back", TIMEOUT, || {
        ping(&mut client);
        victim.memory_kib("VmRSS") < before + 16 * 1024
    });
    victim.assert_sound();
}
