//! Partitions that move between log directories while they are written to and read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use mainstem_tests::broker::Broker;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::Failure;
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::sample::Rng;

use crate::crash::{Load, PARTITIONS, TOPIC};

/// The topic of the groups' offsets, which moves too.
const OFFSETS: &str = "__consumer_offsets";

/// Moves partitions from one directory to another; does nothing if there is only one.
pub(crate) struct Moves {
    dirs: Vec<PathBuf>,
    done: u64,
    rng: Rng,
}

impl Moves {
    pub(crate) fn new(broker: &Broker, rng: &mut Rng) -> Moves {
        let dirs = broker.connect().log_dirs().expect("the log directories");
        let dirs = dirs.into_iter().map(|dir| dir.path).collect();
        Moves { dirs, done: 0, rng: Rng(rng.next_u64()) }
    }

    /// The number of completed moves.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    pub(crate) fn run(&mut self, load: &Load) {
        if self.dirs.len() == 1 {
            return;
        }
        let Some(mut client) = load.connect() else { return };
        while self.move_one(load, &mut client).is_some() {}
    }

    fn move_one(&mut self, load: &Load, client: &mut Client) -> Option<()> {
        let topic = if self.rng.below(3) == 0 { OFFSETS } else { TOPIC };
        let partition = self.rng.below(PARTITIONS as u64) as i32;
        let to = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].clone();
        match client.move_partition(topic, partition, &to) {
            // The topic of the offsets may not exist yet.
            Err(Failure::Refused(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)) if topic == OFFSETS => {}
            result => load.outcome("a move", result)?,
        }
        // Most moves are completed; some are overtaken by the next.
        while self.rng.below(8) > 0 {
            let dirs = load.outcome("DescribeLogDirs", client.log_dirs())?;
            let place = dirs.iter().find(|dir| dir.has(topic, partition));
            if place.is_some_and(|dir| dir.path == to) {
                self.done += 1;
                break;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Some(())
    }

    /// Asserts that every partition is in one directory, and waits for the end of every copy.
    pub(crate) fn check(&mut self, client: &mut Client) {
        let dirs = eventually("moves that were cut short are over", || {
            let dirs = client.log_dirs().expect("the log directories");
            let settled = dirs.iter().all(|dir| dir.replicas.iter().all(|replica| !replica.is_future));
            settled.then_some(dirs)
        });
        let mut places = BTreeMap::new();
        for dir in &dirs {
            assert_eq!(dir.error, ErrorCode::NONE, "{}", dir.path.display());
            for replica in &dir.replicas {
                let other = places.insert((&replica.topic, replica.partition), &dir.path);
                assert_eq!(other, None, "{replica:?} is also in {}", dir.path.display());
            }
        }
    }
}
