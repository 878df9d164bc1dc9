//! Settings of all instances of a consumer, which are stored: its filter, earlier ones while they are needed, a pause.

use prost::Message as _;

use crate::proto;

/// Settings of all instances of a consumer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) is_paused: bool,
    pub(crate) filter: Option<proto::Filter>,
    /// The first offset to which `filter` applies.
    pub(crate) filtered_from: i64,
    /// Earlier filters, ascending. Events of theirs that are not done still go through them, also after a restart.
    pub(crate) earlier: Vec<Earlier>,
    /// The number of changes of the filter in this process.
    pub(crate) version: u64,
}

/// A filter that another one has replaced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Earlier {
    pub(crate) filter: Option<proto::Filter>,
    /// The offset behind the last event to which it applies.
    pub(crate) until: i64,
}

/// The most earlier filters that are kept while events of theirs are not done. Of more, the oldest are dropped: the
/// next one applies to their events.
const EARLIER_MAX: usize = 4;
/// The most bytes of the filter and the earlier ones together. They fit into the file beside the positions of all
/// slices.
const FILTERS_BYTES_MAX: usize = 33 << 10;

impl Settings {
    /// Replaces the filter from an offset on.
    pub(super) fn change_filter(&mut self, filter: Option<proto::Filter>, from: i64, frontier: i64) {
        assert!(from >= self.filtered_from, "a filter from {from} on follows {self:?}");
        let before = Earlier { filter: std::mem::replace(&mut self.filter, filter), until: from };
        // A filter that applies to no event is not kept.
        if from > self.filtered_from {
            self.earlier.push(before);
        }
        self.earlier.retain(|one| one.until > frontier);
        (self.filtered_from, self.version) = (from, self.version + 1);
        while self.earlier.len() > EARLIER_MAX
            || self.filter_bytes() > FILTERS_BYTES_MAX && !self.earlier.is_empty()
        {
            self.earlier.remove(0);
        }
    }

    fn filter_bytes(&self) -> usize {
        let earlier = self.earlier.iter().filter_map(|one| one.filter.as_ref());
        earlier.chain(&self.filter).map(proto::Filter::encoded_len).sum()
    }

    /// Applies the filter to all events, as after a reset.
    pub(super) fn forget_earlier(&mut self) {
        if self.filtered_from == 0 {
            return;
        }
        self.earlier.clear();
        (self.filtered_from, self.version) = (0, self.version + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::criteria;

    #[test]
    fn filters_of_before_are_kept_as_long_as_they_are_needed_and_within_bounds() {
        let mut settings = Settings::default();
        let filter = |bytes: usize| Some(criteria::only([criteria::key(vec![b'k'; bytes])]));
        let untils = |settings: &Settings| settings.earlier.iter().map(|one| one.until).collect::<Vec<_>>();
        for from in 1..=9 {
            settings.change_filter(filter(10), from * 10, 20);
        }
        assert_eq!((untils(&settings), settings.filtered_from), (vec![60, 70, 80, 90], 90));
        settings.change_filter(filter(11), 100, 85);
        assert_eq!(untils(&settings), [90, 100]);
        settings.change_filter(filter(30_000), 110, 85);
        settings.change_filter(filter(30_001), 120, 85);
        assert_eq!(untils(&settings), [0; 0]);
        // Of two changes before the same event the second holds from there on; the first holds nowhere.
        let mut settings = Settings::default();
        settings.change_filter(filter(10), 10, 0);
        settings.change_filter(filter(11), 10, 0);
        assert_eq!((untils(&settings), settings.earlier[0].filter.as_ref()), (vec![10], None));
        settings.forget_earlier();
        assert_eq!(settings.filtered_from, 0);
    }
}
