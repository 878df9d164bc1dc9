//! Every message in every version, made from the table and not by the generated code, comes back byte for byte.

use mainstem_wire::catalogue::{MESSAGES, MessageInfo};
use mainstem_wire::sample::{Rng, Sampler};

const SAMPLES_PER_VERSION: u64 = 60;

fn for_each_version(mut body: impl FnMut(&MessageInfo, i16)) {
    for message in MESSAGES {
        (message.oldest..=message.newest).for_each(|version| body(message, version));
    }
}

#[test]
fn every_version_of_every_message_comes_back() {
    let sampler = Sampler::new();
    for_each_version(|message, version| {
        for seed in 0..SAMPLES_PER_VERSION {
            let bytes = sampler.message(message.name, version, &mut Rng(seed));
            let back = message.reencode(&bytes, version);
            assert_eq!(back, Ok(bytes), "{} version {version} seed {seed}", message.name);
        }
    });
}

/// A message cut anywhere is an error that names the message, never a panic or a shorter message.
#[test]
fn a_message_that_is_cut_is_refused() {
    let sampler = Sampler::new();
    for_each_version(|message, version| {
        let bytes = sampler.message(message.name, version, &mut Rng(7));
        for end in 0..bytes.len() {
            let error = message.reencode(&bytes[..end], version).expect_err("a cut message decodes");
            let text = error.to_string();
            assert!(text.starts_with(&format!("{}.", message.name)), "{text} does not name {}", message.name);
        }
    });
}

#[test]
fn bytes_after_a_message_are_noticed() {
    let sampler = Sampler::new();
    for_each_version(|message, version| {
        let mut bytes = sampler.message(message.name, version, &mut Rng(8));
        bytes.push(0);
        assert!(message.reencode(&bytes, version).is_err(), "{} version {version}", message.name);
    });
}

#[test]
fn versions_outside_of_the_table_are_refused() {
    for message in MESSAGES {
        for version in [message.oldest - 1, message.newest + 1, i16::MIN, i16::MAX] {
            assert!(message.reencode(&[0; 64], version).is_err(), "{} version {version}", message.name);
        }
    }
}
