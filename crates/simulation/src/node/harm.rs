//! Damage that tests do to a simulated node, in addition to faults.

use super::{DIR, Node};
use mainstem_log::LogConfig;
use mainstem_log::storage::{DirEntry, OpenMode, Storage, write_all_at};
use std::path::Path;
use std::sync::Arc;

/// The part of a log that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileLoss {
    /// Half of the last segment.
    Tail,
    /// The last segment.
    Segment,
    /// Bytes of one of the last records.
    Record,
    /// All of it.
    Directory,
}

impl Node {
    /// Alters `write.caching`, whether it runs or not.
    pub(crate) fn alter_write_caching(&mut self, write_caching: bool) {
        if write_caching != self.caches_now {
            self.caches_now = write_caching;
            self.put_settings_into_force();
        }
    }

    /// Removes a part of the log of the first partition. The node must not run.
    pub(crate) fn lose_files(&mut self, loss: FileLoss) {
        assert!(self.running.is_none());
        self.has_lost_files = true;
        let dir = Path::new(DIR).join(self.partitions[0].topic_partition().to_string());
        let is_written = |entry: &DirEntry| entry.name.ends_with(".log") && entry.len > 0;
        let mut segments = self.storage.list(&dir).expect("its directory");
        segments.retain(is_written);
        segments.sort_by(|one, other| one.name.cmp(&other.name));
        let Some(last) = segments.last().filter(|_| loss != FileLoss::Directory) else {
            return self.storage.remove_dir_all(&dir).expect("it is there");
        };
        let path = dir.join(&last.name);
        match loss {
            FileLoss::Directory => {}
            FileLoss::Segment => self.storage.remove_file(&path).expect("it is there"),
            FileLoss::Tail => {
                let file = self.storage.open(&path, OpenMode::ReadWrite).expect("a segment");
                file.set_len(last.len / 2).expect("a cut");
            }
            FileLoss::Record => {
                let file = self.storage.open(&path, OpenMode::ReadWrite).expect("a segment");
                write_all_at(&*file, &[0xFF; 16], last.len.saturating_sub(40)).expect("a write");
            }
        }
    }

    /// Returns true if it runs and lacks records that it has promised.
    pub(crate) fn lacks_promised(&self) -> bool {
        let lacks = |number| {
            let partition = self.partition(number)?;
            partition.with_replica_by_hand(|replica| replica.lacks_promised())
        };
        (0..self.partitions.len()).any(|number| lacks(number).unwrap_or(false))
    }

    /// Removes all that retention may: rolls a segment, and removes the previous one once the new one is durable.
    pub(crate) fn retain_nothing(&mut self) {
        let now_ms = self.clock.mono_ms();
        let Some(partition) = self.partition(0) else { return };
        partition.with_replica_by_hand(|replica| {
            let before = replica.log().config().clone();
            let log = replica.log_mut();
            log.set_config(Arc::new(LogConfig { retention_ms: Some(-1), ..(*before).clone() }));
            // As if the leader had proposed it.
            if let Some(offset) = log.unwanted_before(1 << 50).expect("the ages of segments") {
                log.delete_records_before(offset).expect("a start below the high watermark");
            }
            let mut work = log.begin_maintenance(1 << 50, now_ms).expect("maintenance");
            replica.follow_roll().expect("a mark");
            work.run();
            let log = replica.log_mut();
            log.end_maintenance(work).expect("maintenance");
            log.set_config(before);
        });
        partition.request_flush();
    }

    /// Lets the log of the first partition start at the high watermark, as if all records before it had been deleted, and syncs it.
    /// Returns the new log start.
    pub(crate) fn begin_at_high_watermark(&mut self) -> i64 {
        let running = self.running.as_mut().expect("it runs");
        running.sync_all();
        let begun = running.partitions()[0].with_replica_by_hand(|replica| {
            let offset = replica.log().ends().high_watermark;
            let at = replica.entry_before(offset).expect("it is one of the last");
            replica.remember(at).expect("a mark");
            replica.log_mut().delete_records_before(offset).expect("they are committed");
            replica.follow_log_start().expect("it is noted");
            assert_eq!(replica.start().offset, offset);
            offset
        });
        begun.expect("it takes part")
    }

    /// Removes records from one replica that no client has deleted.
    pub(crate) fn delete_by_mistake(&mut self, partition: usize, offset: i64) {
        let partition = self.partition(partition).expect("it runs");
        let deleted =
            partition.with_replica_by_hand(|replica| replica.log_mut().delete_records_before(offset));
        deleted.expect("it takes part").expect("they are committed");
    }

    /// Log start, log end and index of the last entry, while it runs.
    pub(crate) fn extent(&self) -> Option<(i64, i64, u64)> {
        self.running.as_ref()?.partitions()[0].with_replica_by_hand(|replica| {
            let ends = replica.log().ends();
            (ends.log_start, ends.log_end, replica.last_and_committed().0)
        })
    }
}
