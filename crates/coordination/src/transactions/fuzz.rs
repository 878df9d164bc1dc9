//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use mainstem_records::{LeaderEpoch, ProducerId};

use super::{Effect, MarkerOutcome, State, TransactionConfig, TransactionCoordinator};
use crate::groups::fuzz::records;
use crate::time::Now;

/// The only partition here.
const PARTITION: i32 = 0;
/// More than any time-out that a record can set.
const LONG_MS: u64 = 40 * 86_400_000;

/// Loads any records. The coordinator must load them, end transactions that are decided or have timed out, remove expired transactional
/// ids, and free all that it holds in the end.
pub fn transaction_records(data: &[u8]) {
    let config =
        TransactionConfig { transaction_state_log_num_partitions: 1, ..TransactionConfig::default() };
    let mut coordinator = TransactionCoordinator::new(config);
    let now = Now { mono_ms: 1, wall_ms: 1 };
    let mut loader = coordinator.begin_load(PARTITION, LeaderEpoch::new(1));
    let records = records(data);
    let replayed = loader.load(now, PARTITION, records.iter().copied());
    assert_eq!(replayed.applied + replayed.skipped + replayed.malformed, records.len() as u64);
    coordinator.finish_load(now, PARTITION, loader);
    carry_out(&mut coordinator, now);
    let later = Now { mono_ms: LONG_MS, wall_ms: i64::MAX };
    coordinator.tick(later);
    carry_out(&mut coordinator, later);
    let stats = coordinator.stats();
    assert_eq!((stats.pending_appends, stats.pending_markers), (0, 0));
    let is_over = |state: &State| !matches!(state, State::PrepareCommit | State::PrepareAbort);
    assert!(coordinator.count_by_state().keys().all(is_over), "a transaction does not end");
    coordinator.unload(later, PARTITION);
    assert_eq!(coordinator.stats(), Default::default());
    assert_eq!(coordinator.next_deadline_ms(), None);
}

/// Carries out the coordinator's effects until there are none.
fn carry_out(coordinator: &mut TransactionCoordinator, now: Now) {
    loop {
        let effects: Vec<Effect> = coordinator.effects().collect();
        if effects.is_empty() {
            return;
        }
        for effect in effects {
            match effect {
                Effect::Append { ticket, .. } => coordinator.appended(now, ticket, Ok(())),
                Effect::NewProducerId { ticket } => {
                    coordinator.producer_id(now, ticket, Ok(ProducerId::new(1)))
                }
                Effect::WriteMarkers(markers) => {
                    for topic in &markers.topics {
                        for partition in &topic.partitions {
                            coordinator.marked(
                                now,
                                markers.ticket,
                                &topic.name,
                                *partition,
                                MarkerOutcome::Written,
                            );
                        }
                    }
                }
                Effect::Reply { token, .. } => unreachable!("no client asked as {token:?}"),
            }
        }
    }
}
