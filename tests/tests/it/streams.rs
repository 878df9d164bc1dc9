//! Kafka Streams with `exactly_once_v2` over a real text, with kills of the application and of the broker. Its counts
//! equal a plain count, and each count of a word is written once.
//!
//! There is one kill for three of `TEST_KILLS`, ten at most, as the application is slow to resume work.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use mainstem_tests::kafka_node::{Beside, Home, NEWEST};

const PROGRAM: &str = "interop/java/src/mainstem/interop/WordCount.java";
/// The default of `TEST_KILLS`, and the other kills for each one here.
const OTHER_KILLS: u64 = 10;
const OTHERS_FOR_ONE: u64 = 3;
/// The most kills; half of them are the broker's.
const KILLS_MAX: u64 = 10;
/// The pause between kills: the application has resumed work for a part of it.
const PAUSE: Duration = Duration::from_secs(7);
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn a_word_count_is_exact_whatever_is_killed() {
    let Some(home) = Home::new("streams", &NEWEST) else { return };
    let kills = std::env::var("TEST_KILLS").ok().and_then(|kills| kills.parse().ok());
    let kills = kills.unwrap_or(OTHER_KILLS).div_ceil(OTHERS_FOR_ONE).min(KILLS_MAX);
    let text = home.path("text");
    fs::write(&text, repository_text()).unwrap();
    let text = text.display().to_string();

    let mut broker = home.start_mainstem(&[]);
    let seconds = (kills + 1) * PAUSE.as_secs();
    let fill = home.spawn("fill", home.program(PROGRAM, &["fill", &text, &seconds.to_string()]));
    wait_until("the topics are there", || fill.said().contains("created"));
    let mut counter = start_counter(&home);
    for kill in 0..kills {
        std::thread::sleep(PAUSE);
        assert!(counter.is_running(), "{}", counter.said());
        if kill % 2 == 0 {
            drop(counter);
            counter = start_counter(&home);
        } else {
            broker.kill();
            broker = home.start_mainstem(&[]);
        }
    }
    fill.end();
    home.spawn("check", home.program(PROGRAM, &["check", &text])).end();
    broker.stop();
    home.assert_no_fault_in_the_files();
}

fn start_counter(home: &Home) -> Beside {
    let state = home.path("state").display().to_string();
    home.spawn("counter", home.program(PROGRAM, &["run", &state]))
}

/// The pages of this repository.
fn repository_text() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "docs/operations.md",
        "docs/deviations.md",
        "docs/format.md",
    ];
    let text: String = pages.iter().map(|page| fs::read_to_string(root.join(page)).unwrap()).collect();
    assert!(text.lines().count() > 1000, "a text worth counting");
    text
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
