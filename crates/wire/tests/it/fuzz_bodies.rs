//! The fuzz bodies over the checked-in corpus, over messages with a few bytes changed, and over random bytes.

use std::path::Path;

use mainstem_wire::catalogue::MESSAGES;
use mainstem_wire::fuzz;
use mainstem_wire::sample::{Rng, Sampler};

const ROUNDS: u64 = 20_000;

fn run_corpus(name: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(&folder).expect("the corpus is checked in");
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("the corpus can be listed").path();
        body(&std::fs::read(path).expect("the corpus can be read"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

/// Runs `body` on `ROUNDS` inputs; a panic is preceded by the seed that brings the input back.
fn run_random(body: fn(&[u8]), mut input: impl FnMut(&mut Rng) -> Vec<u8>) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}", self.0);
            }
        }
    }
    for seed in 0..ROUNDS {
        let _seed = Seed(seed);
        body(&input(&mut Rng(seed)));
    }
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    (0..rng.below(80))
        .map(|_| if rng.once_in(2) { rng.below(4) as u8 } else { rng.below(256) as u8 })
        .collect()
}

/// Overwrites a few bytes with values that lengths and counts are sensitive to.
fn damage(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..rng.below(4) {
        if !bytes.is_empty() {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = [0, 1, 2, 0x7f, 0x80, 0xff, rng.below(256) as u8][rng.below(7) as usize];
        }
    }
}

#[test]
fn message() {
    run_corpus("message", fuzz::message);
    run_random(fuzz::message, noise);
    let sampler = Sampler::new();
    run_random(fuzz::message, |rng| {
        let index = rng.below(MESSAGES.len() as u64) as usize;
        let message = &MESSAGES[index];
        let version = rng.below((message.newest - message.oldest + 1) as u64) as i16;
        let mut body = sampler.message(message.name, message.oldest + version, rng);
        damage(&mut body, rng);
        let mut data = vec![(index >> 8) as u8, index as u8, version as u8];
        data.append(&mut body);
        data
    });
}

#[test]
fn connection() {
    run_corpus("connection", fuzz::connection);
    run_random(fuzz::connection, noise);
    let sampler = Sampler::new();
    let requests: Vec<_> = MESSAGES
        .iter()
        .filter(|message| message.name.ends_with("Request") && message.key.is_some())
        .collect();
    run_random(fuzz::connection, |rng| {
        let message = requests[rng.below(requests.len() as u64) as usize];
        let version = message.oldest + rng.below((message.newest - message.oldest + 1) as u64) as i16;
        let key = mainstem_wire::ApiKey::try_from(message.key.unwrap()).unwrap();
        let mut body = sampler.message("RequestHeader", key.request_header_version(version), rng);
        body[..2].copy_from_slice(&key.key().to_be_bytes());
        body[2..4].copy_from_slice(&version.to_be_bytes());
        body.extend(sampler.message(message.name, version, rng));
        let mut data = (body.len() as u32).to_be_bytes().to_vec();
        data.append(&mut body);
        damage(&mut data, rng);
        data
    });
}

#[test]
fn metadata_record() {
    run_corpus("metadata_record", fuzz::metadata_record);
    run_random(fuzz::metadata_record, |rng| {
        let mut data = noise(rng);
        data.splice(0..0, [1, rng.below(30) as u8, rng.below(5) as u8]);
        data
    });
}
