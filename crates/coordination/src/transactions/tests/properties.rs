//! Properties that hold for every sequence of requests, outcomes, time-outs and changes of coordinator.

use std::path::Path;

use mainstem_wire::ErrorCode;
use proptest::collection::vec;
use proptest::prelude::*;

use super::transcript::stored;
use super::world::World;
use crate::transactions::{MarkerOutcome, State, TransactionConfig, fuzz};

/// One step. Producers, appends and markers are chosen among the existing ones, by index.
#[derive(Debug, Clone)]
enum Op {
    Init {
        id: u8,
        producer: Option<usize>,
        is_new: bool,
        timeout_ms: i32,
    },
    Add {
        producer: usize,
        partitions: u8,
        verify: bool,
    },
    AddOffsets {
        producer: usize,
    },
    End {
        producer: usize,
        committed: bool,
        late: bool,
    },
    /// A whole transaction without faults: otherwise few would ever get far.
    Run {
        producer: usize,
        partitions: u8,
        committed: bool,
    },
    List,
    Finish {
        append: usize,
        error: bool,
    },
    GiveId {
        error: bool,
    },
    Mark {
        marker: usize,
        outcome: u8,
    },
    Flow,
    Wait {
        ms: u64,
    },
    Wall {
        ms: i64,
    },
    Crash {
        kept: usize,
    },
    Resign,
}

fn op() -> impl Strategy<Value = Op> {
    let producer = proptest::option::weighted(0.5, any::<usize>());
    let timeout_ms = prop_oneof![Just(15_000), Just(60_000)];
    prop_oneof![
        6 => (0..2_u8, producer, any::<bool>(), timeout_ms)
            .prop_map(|(id, producer, is_new, timeout_ms)| Op::Init { id, producer, is_new, timeout_ms }),
        8 => (any::<usize>(), 0..8_u8, proptest::bool::weighted(0.1))
            .prop_map(|(producer, partitions, verify)| Op::Add { producer, partitions, verify }),
        2 => any::<usize>().prop_map(|producer| Op::AddOffsets { producer }),
        6 => (any::<usize>(), any::<bool>(), proptest::bool::weighted(0.2))
            .prop_map(|(producer, committed, late)| Op::End { producer, committed, late }),
        3 => (any::<usize>(), 1..8_u8, any::<bool>())
            .prop_map(|(producer, partitions, committed)| Op::Run { producer, partitions, committed }),
        1 => Just(Op::List),
        12 => (any::<usize>(), proptest::bool::weighted(0.2))
            .prop_map(|(append, error)| Op::Finish { append, error }),
        4 => proptest::bool::weighted(0.2).prop_map(|error| Op::GiveId { error }),
        8 => (any::<usize>(), 0..12_u8).prop_map(|(marker, outcome)| Op::Mark { marker, outcome }),
        3 => Just(Op::Flow),
        4 => prop_oneof![1..1_000_u64, Just(12_000), Just(80_000), Just(4_000_000)].prop_map(|ms| Op::Wait { ms }),
        1 => (-10_000_000..10_000_000_i64).prop_map(|ms| Op::Wall { ms }),
        1 => (0..3_usize).prop_map(|kept| Op::Crash { kept }),
        1 => Just(Op::Resign),
    ]
}

fn run(world: &mut World, op: &Op) {
    match *op {
        Op::Init { id, producer, is_new, timeout_ms } => {
            let id = if id == 0 { "t" } else { "u" };
            world.init(id, producer, is_new, timeout_ms);
        }
        Op::Add { producer, partitions, verify } => world.add(producer, partitions, verify),
        Op::AddOffsets { producer } => world.add_offsets(producer),
        Op::End { producer, committed, late } => world.end(producer, committed, late),
        Op::Run { producer, partitions, committed } => {
            world.add(producer, partitions, false);
            world.flow();
            world.end(producer, committed, false);
            world.flow();
        }
        Op::List => world.list(),
        Op::Finish { append, error } => world.finish(append, error),
        Op::GiveId { error } => world.give_id(error),
        Op::Mark { marker, outcome } => world.mark(marker, marker_outcome(outcome)),
        Op::Flow => world.flow(),
        Op::Wait { ms } => world.wait(ms, false),
        Op::Wall { ms } => world.cluster.now.wall_ms += ms,
        Op::Crash { kept } => world.crash(kept),
        Op::Resign => world.resign(),
    }
}

fn marker_outcome(number: u8) -> MarkerOutcome {
    match number {
        0 => MarkerOutcome::Failed(ErrorCode::TRANSACTION_COORDINATOR_FENCED),
        1..=3 => MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        4 => MarkerOutcome::Gone,
        _ => MarkerOutcome::Written,
    }
}

fn config(transaction_version: i16) -> TransactionConfig {
    TransactionConfig {
        transaction_version,
        transactional_id_expiration_ms: 1_000_000,
        abort_timed_out_interval_ms: 30_000,
        tombstones_per_append_max: 1,
        ending_wait_ms: 500,
        // AddOffsetsToTxn of the group g finds partition 3 here.
        offsets_topic_num_partitions: 50,
        ..TransactionConfig::default()
    }
}

/// Plays all steps, then ends the faults. One of the producers has used most of its epochs.
fn play(config: TransactionConfig, ops: &[Op]) {
    let log = vec![stored("u", State::Empty, (7, i16::MAX - 5), &[])];
    let mut world = World::new(config, log);
    for op in ops {
        run(&mut world, op);
    }
    world.check_end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(1_000), max_shrink_iters: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn answers_keep_their_promises_whatever_happens(ops in vec(op(), 1..100)) {
        play(config(2), &ops);
    }

    #[test]
    fn answers_keep_their_promises_in_older_versions(version in 0..2_i16, ops in vec(op(), 1..60)) {
        play(config(version), &ops);
    }

    #[test]
    fn answers_keep_their_promises_with_little_memory(kib in 1..5_usize, ops in vec(op(), 1..60)) {
        play(TransactionConfig { memory_bytes_max: kib << 10, ..config(2) }, &ops);
    }

    #[test]
    fn any_records_can_be_loaded(data in vec(any::<u8>(), 0..300)) {
        fuzz::transaction_records(&data);
    }

    #[test]
    fn records_with_a_fault_can_be_loaded(seed in 0..4_usize, at in any::<usize>(), byte in any::<u8>()) {
        let mut data = corpus().swap_remove(seed);
        let at = at % data.len();
        data[at] = byte;
        fuzz::transaction_records(&data);
    }
}

/// The checked-in inputs of the fuzz body.
fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/transaction_records");
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).expect("the corpus").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

#[test]
fn the_corpus_can_be_loaded() {
    let corpus = corpus();
    assert!(corpus.len() >= 4);
    for data in corpus {
        fuzz::transaction_records(&data);
    }
}
