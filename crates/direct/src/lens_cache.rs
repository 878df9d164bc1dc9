//! The lenses of a stream: consumers with equal filters look through one, so that an event is evaluated once for all of them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::chunk::{Lens, Transform};
use crate::filter::{Filter, FilterError, PATTERNS_IN_ALL_MAX};
use crate::proto;

/// How many patterns of filters there are, of all streams that share it.
#[derive(Debug, Clone)]
pub(crate) struct Patterns(Arc<Semaphore>);

impl Patterns {
    pub(crate) fn new(max: usize) -> Patterns {
        Patterns(Arc::new(Semaphore::new(max)))
    }

    /// Counts so many more until the permit is dropped.
    fn take(&self, count: usize) -> Result<OwnedSemaphorePermit, FilterError> {
        let taken = u32::try_from(count).ok().map(|count| self.0.clone().try_acquire_many_owned(count));
        taken.and_then(Result::ok).ok_or(FilterError::TooManyInAll)
    }
}

impl Default for Patterns {
    fn default() -> Patterns {
        Patterns::new(PATTERNS_IN_ALL_MAX)
    }
}

/// The lens of some filters, if one is in use. Who makes it has it locked meanwhile.
type Place = Arc<Mutex<Weak<Lens>>>;

/// Makes lenses, and keeps those that are in use.
#[derive(Default)]
pub(crate) struct LensCache {
    transform: Option<Arc<Transform>>,
    patterns: OnceLock<Patterns>,
    /// By the filters' bytes.
    places: Mutex<HashMap<Vec<u8>, Place>>,
}

impl std::fmt::Debug for LensCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LensCache").field("places", &self.places).finish_non_exhaustive()
    }
}

impl LensCache {
    /// Of a stream with a transformation, or without.
    pub(crate) fn new(transform: Option<Arc<Transform>>) -> LensCache {
        LensCache { transform, patterns: OnceLock::new(), places: Mutex::default() }
    }

    /// Counts patterns among those of other streams, if it has not made a lens yet.
    pub(crate) fn count_among(&self, patterns: &Patterns) {
        // One that has, counts for itself.
        let _ = self.patterns.set(patterns.clone());
    }

    /// What events pass through before a consumer with these filters sees them. Who asks for equal filters at one time waits for the one that
    /// compiles them; others do not.
    ///
    /// # Errors
    /// Of the first filter that cannot be compiled, or that there are too many patterns.
    pub(crate) fn lens<'a>(
        &self,
        filters: impl IntoIterator<Item = &'a proto::Filter>,
    ) -> Result<Arc<Lens>, FilterError> {
        let filters: Vec<&proto::Filter> =
            filters.into_iter().filter(|filter| !filter.exclude.is_empty()).collect();
        let mut key = Vec::new();
        filters.iter().for_each(|filter| key.extend(filter.encode_length_delimited_to_vec()));
        let place = self.place(key);
        let mut place = place.lock();
        if let Some(known) = place.upgrade() {
            return Ok(known);
        }
        let patterns = filters.iter().map(|filter| Filter::patterns_of(filter));
        let count = patterns.sum::<Result<usize, FilterError>>()?;
        let patterns = self.patterns.get_or_init(Patterns::default).take(count)?;
        let compiled = filters.into_iter().map(Filter::compile).collect::<Result<Vec<_>, _>>()?;
        let lens = Arc::new(Lens::new(self.transform.clone(), compiled).counted(patterns));
        *place = Arc::downgrade(&lens);
        Ok(lens)
    }

    fn place(&self, key: Vec<u8>) -> Place {
        let mut places = self.places.lock();
        if let Some(known) = places.get(&key) {
            return known.clone();
        }
        // One that is only here is locked by no one.
        places.retain(|_, place| Arc::strong_count(place) > 1 || place.lock().strong_count() > 0);
        places.entry(key).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::criteria;

    fn patterns(texts: &[&str]) -> proto::Filter {
        criteria::only(texts.iter().map(|text| criteria::key_pattern(*text)))
    }

    #[test]
    fn patterns_of_all_filters_that_are_in_use_are_bounded_together() {
        let all = Patterns::new(4);
        let caches = [LensCache::default(), LensCache::default()];
        caches.iter().for_each(|cache| cache.count_among(&all));
        let three = caches[0].lens([&patterns(&["a", "b", "c"])]).unwrap();
        let same = caches[0].lens([&patterns(&["a", "b", "c"])]).unwrap();
        assert!(Arc::ptr_eq(&three, &same), "it counts once");
        let two = patterns(&["a", "b"]);
        let refused = caches[1].lens([&two]).unwrap_err();
        assert_eq!(refused, FilterError::TooManyInAll);
        assert_eq!(refused.to_status().code(), tonic::Code::ResourceExhausted);
        caches[1].lens([&criteria::only([criteria::key("a")])]).unwrap();
        let one = caches[1].lens([&patterns(&["a"])]).unwrap();
        drop((three, one));
        caches[1].lens([&two]).unwrap_err();
        drop(same);
        let _two = caches[1].lens([&two]).unwrap();
        // What cannot be compiled counts for nothing.
        caches[0].lens([&patterns(&["a", "("])]).unwrap_err();
        caches[0].lens([&patterns(&["c", "d"])]).unwrap();
    }

    #[test]
    fn filters_that_nobody_uses_are_forgotten() {
        let cache = LensCache::default();
        let used = cache.lens([&patterns(&["used"])]).unwrap();
        for n in 0..100 {
            cache.lens([&criteria::only([criteria::key(format!("{n}"))])]).unwrap();
        }
        assert!(cache.places.lock().len() <= 2, "the last one may be there");
        assert!(Arc::ptr_eq(&used, &cache.lens([&patterns(&["used"])]).unwrap()));
    }
}
