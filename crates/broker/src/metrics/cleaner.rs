//! Figures of compaction, under the names of the common configuration of Kafka's JMX exporter.

use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;
use mainstem_store::cleaner::{CleanerFigures, Uncleanable};

/// A figure: its name, its meaning, and its source.
type Figure<T> = (&'static str, &'static str, fn(&T) -> f64);

const FIGURES: [Figure<CleanerFigures>; 6] = [
    (
        "kafka_log_logcleanermanager_max_dirty_percent",
        "Largest share of a compacted log that is dirty.",
        |figures| figures.max_dirty_percent,
    ),
    (
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Since a cleaner has looked for work.",
        |figures| figures.time_since_last_run_ms as f64,
    ),
    (
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "Share of what the last compaction read that it wrote again.",
        |figures| figures.cleaner_recopy_percent,
    ),
    ("kafka_log_logcleaner_max_clean_time_secs", "Duration of the last compaction.", |figures| {
        figures.max_clean_time_secs
    }),
    (
        "kafka_log_logcleaner_max_buffer_utilization_percent",
        "How full the map of keys was in the last compaction.",
        |figures| figures.max_buffer_utilization_percent,
    ),
    (
        "kafka_log_logcleaner_max_compaction_delay_secs",
        "For how long max.compaction.lag.ms is exceeded.",
        |figures| figures.max_compaction_delay_secs,
    ),
];

const BY_DIRECTORY: [Figure<Uncleanable>; 2] = [
    (
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions that cannot be compacted.",
        |dir| dir.partitions as f64,
    ),
    (
        "kafka_log_logcleanermanager_uncleanable_bytes",
        "Dirty bytes of partitions that cannot be compacted.",
        |dir| dir.bytes as f64,
    ),
];

/// Writes them all.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    let figures = broker.store.cleaning.figures(&broker.store);
    for (name, help, value) in FIGURES {
        text.one(name, Kind::Gauge, help, value(&figures));
    }
    for (name, help, value) in BY_DIRECTORY {
        text.describe(name, Kind::Gauge, help);
        for dir in &figures.uncleanable {
            text.sample(name, &[("logDirectory", &dir.log_directory)], value(dir));
        }
    }
}
