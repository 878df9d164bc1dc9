//! Reports of this node about its replicas that are lost: the metadata name others in their place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cluster;
use super::leaders::PartitionKey;
use crate::controller::LEVEL_OF_REPLACEMENTS;

/// Time after which a report is repeated that nothing has come of.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The time at which lost replicas were reported last.
#[derive(Default)]
pub(super) struct LostReports {
    reported: Option<Instant>,
}

impl LostReports {
    /// Returns true if a report is due of a node that has waited for so long for what may come back.
    fn is_due(&self, since: Instant, timeout_ms: u64, now: Instant) -> bool {
        let has_waited = now.saturating_duration_since(since) >= Duration::from_millis(timeout_ms);
        let again = |at: Instant| now.saturating_duration_since(at) >= AGAIN_AFTER;
        has_waited && self.reported.is_none_or(again)
    }
}

impl Cluster {
    /// Reports the lost replicas of this node, when it has waited for them for long enough: those of groups that another node leads.
    pub(super) fn report_lost_replicas(self: &Arc<Self>, reports: &mut LostReports) {
        let (store, now) = (&self.local.store, self.local.clock.instant());
        let timeout_ms = self.local.config().replication.lost_replica_timeout_ms;
        if !store.members.lost_since().is_some_and(|since| reports.is_due(since, timeout_ms, now)) {
            return;
        }
        let image = self.controller.image();
        let (lost, level) = (store.members.lost(&image, self.own), image.mainstem_version());
        drop(image);
        let connected = self.links.connected();
        let is_led = |key: &PartitionKey| {
            self.leaders.get(*key).is_some_and(|leader| connected.contains(&leader.node))
        };
        let lost = lost.into_iter().filter(|(key, _)| is_led(key));
        let lost: Vec<_> = lost.map(|(key, own)| (key.0.0, key.1, own)).collect();
        if lost.is_empty() || level < LEVEL_OF_REPLACEMENTS {
            return;
        }
        reports.reported = Some(now);
        tracing::warn!(
            replicas = lost.len(),
            "replicas of this node are lost, with their disk or without enough of their files: new ones take their place"
        );
        self.report_lost(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_replicas_are_reported_after_the_time_for_a_disk_to_be_mounted() {
        let begin = mainstem_runtime::clock::Clock::start().instant();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut reports = LostReports::default();
        let is_due = |reports: &LostReports, now| reports.is_due(begin, 60_000, now);
        assert!(!is_due(&reports, at(59)) && is_due(&reports, at(60)));
        reports.reported = Some(at(60));
        assert!(!is_due(&reports, at(69)) && is_due(&reports, at(70)));
    }
}
