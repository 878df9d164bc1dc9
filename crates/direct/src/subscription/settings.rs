//! What holds for all instances of a consumer, and is kept: its filter, those of before while they are needed, a pause.

use prost::Message as _;

use crate::proto;

/// What holds for all instances of a consumer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) is_paused: bool,
    pub(crate) filter: Option<proto::Filter>,
    /// The first offset that `filter` is asked about.
    pub(crate) filtered_from: i64,
    /// Filters of before, ascending: what is not done of their events goes through them still, also after a restart.
    pub(crate) earlier: Vec<Earlier>,
    /// Which change of the filter it is, of this process.
    pub(crate) version: u64,
}

/// A filter that another one has followed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Earlier {
    pub(crate) filter: Option<proto::Filter>,
    /// The offset behind the last event that goes through it.
    pub(crate) until: i64,
}

/// So many changes of the filter are kept while events of before them are not done; of more, the oldest count as one.
const EARLIER_MAX: usize = 4;
/// What a filter and those before it may have in all: beside the positions of all slices it fits into the file.
const FILTERS_BYTES_MAX: usize = 33 << 10;

impl Settings {
    /// Has another filter hold from an offset on.
    pub(super) fn change_filter(&mut self, filter: Option<proto::Filter>, from: i64, frontier: i64) {
        assert!(from >= self.filtered_from, "a filter from {from} on follows {self:?}");
        let before = Earlier { filter: std::mem::replace(&mut self.filter, filter), until: from };
        // One that holds for no event is none.
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

    /// Has the filter hold for all events, as when a consumer goes on elsewhere.
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
        // Of two changes before the same event the second holds from there on, and the first nowhere.
        let mut settings = Settings::default();
        settings.change_filter(filter(10), 10, 0);
        settings.change_filter(filter(11), 10, 0);
        assert_eq!((untils(&settings), settings.earlier[0].filter.as_ref()), (vec![10], None));
        settings.forget_earlier();
        assert_eq!(settings.filtered_from, 0);
    }
}
