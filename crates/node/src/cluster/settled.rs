//! Reports of this node as leader: groups that have the members that the metadata want.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cluster;
use super::leaders::PartitionKey;
use super::roles::LedHere;

/// Time after which a report is repeated that the metadata do not show.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The last report of each partition: leader epoch, version, and when it was made.
#[derive(Default)]
pub(super) struct Reports(BTreeMap<PartitionKey, (i32, u32, Instant)>);

impl Reports {
    /// Returns true if a report is to be made now.
    fn is_due(&mut self, key: PartitionKey, (epoch, version): (i32, u32), now: Instant) -> bool {
        let is_known = self.0.get(&key).is_some_and(|(known_epoch, known_version, at)| {
            (*known_epoch, *known_version) == (epoch, version)
                && now.saturating_duration_since(*at) < AGAIN_AFTER
        });
        if !is_known {
            self.0.insert(key, (epoch, version, now));
        }
        !is_known
    }
}

impl Cluster {
    /// Reports the groups that are led here, have the members that are wanted, and are not known to.
    pub(super) fn report_new_members(
        self: &Arc<Self>,
        reports: &mut Reports,
        led: &BTreeMap<PartitionKey, LedHere>,
    ) {
        let (image, now) = (self.controller.image(), self.local.clock.instant());
        reports.0.retain(|key, _| led.contains_key(key));
        let mut due = Vec::new();
        for (key, LedHere { partition, epoch, .. }) in led {
            let (topic, index) = (image.topic_by_id(key.0), usize::try_from(key.1).ok());
            let Some(known) = topic.zip(index).and_then(|(topic, index)| topic.partitions.get(index)) else {
                continue;
            };
            let is_moving = known.is_moving() || !known.removing.is_empty();
            if known.group.is_none() || (!is_moving && known.settled_epoch() >= epoch.get()) {
                continue;
            }
            let Some(version) =
                partition.settled_version().filter(|version| *version == known.wanted_version())
            else {
                continue;
            };
            if reports.is_due(*key, (epoch.get(), version), now) {
                due.push((key.0.0, key.1, epoch.get(), version));
            }
        }
        drop(image);
        if !due.is_empty() {
            self.report_settled(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;

    #[test]
    fn a_report_is_made_once_and_again_where_nothing_comes_of_it() {
        let (mut reports, now) = (Reports::default(), mainstem_runtime::clock::Clock::start().instant());
        let key = (Uuid::from_u128(7), 0);
        assert!(reports.is_due(key, (3, 1), now));
        assert!(!reports.is_due(key, (3, 1), now + Duration::from_secs(4)));
        assert!(reports.is_due(key, (3, 1), now + AGAIN_AFTER));
        assert!(reports.is_due(key, (4, 1), now + AGAIN_AFTER), "another epoch");
        assert!(reports.is_due(key, (4, 2), now + AGAIN_AFTER), "another version");
    }
}
