//! The filter pipelines of a stream. Consumers with equal filters share one, so that an event is evaluated once for all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};

use mainstem_peers::Peer;
use parking_lot::Mutex;
use prost::Message as _;

use crate::chunk::{FilterPipeline, Transform};
use crate::filter::{Filter, FilterError, PATTERNS_IN_ALL_MAX};
use crate::proto;

/// The number of patterns in the filters that are in use, for all streams that share it, with the number that each address
/// has brought.
#[derive(Debug, Clone)]
pub(crate) struct Patterns(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    max: usize,
    taken: usize,
    /// The number of patterns that each address has brought, if any.
    by_peer: HashMap<Peer, usize>,
}

impl Patterns {
    pub(crate) fn new(max: usize) -> Patterns {
        Patterns(Arc::new(Mutex::new(Counts { max, taken: 0, by_peer: HashMap::new() })))
    }

    /// Counts more patterns until they are dropped, and those of them that an address has brought. One address may have half of all, so
    /// that it keeps no other one out. This process itself may have all.
    fn take(&self, count: usize, peer: Option<(Peer, usize)>) -> Result<CountedPatterns, FilterError> {
        let mut counts = self.0.lock();
        if counts.taken + count > counts.max {
            return Err(FilterError::TooManyInAll);
        }
        let peer = peer.filter(|(_, own)| *own > 0);
        if let Some((peer, own)) = peer {
            let most = counts.max / 2;
            let before = counts.by_peer.get(&peer).copied().unwrap_or(0);
            if before + own > most {
                return Err(FilterError::TooManyOfPeer { most });
            }
            counts.by_peer.insert(peer, before + own);
        }
        counts.taken += count;
        Ok(CountedPatterns { patterns: self.clone(), peer, count })
    }
}

impl Default for Patterns {
    fn default() -> Patterns {
        Patterns::new(PATTERNS_IN_ALL_MAX)
    }
}

/// Patterns that are in use. They are no longer counted when this is dropped.
#[derive(Debug)]
pub(crate) struct CountedPatterns {
    patterns: Patterns,
    /// The address that has brought some of them, and how many.
    peer: Option<(Peer, usize)>,
    count: usize,
}

impl Drop for CountedPatterns {
    fn drop(&mut self) {
        let mut counts = self.patterns.0.lock();
        counts.taken -= self.count;
        let Some((peer, own)) = self.peer else { return };
        let Some(left) = counts.by_peer.get_mut(&peer) else { return };
        *left -= own;
        if *left == 0 {
            counts.by_peer.remove(&peer);
        }
    }
}

/// The pipeline of some filters, if one is in use. It is locked while one caller makes it.
type Place = Arc<Mutex<Weak<FilterPipeline>>>;

/// Makes pipelines, and shares those that are in use.
#[derive(Default)]
pub(crate) struct PipelineCache {
    transform: Option<Arc<Transform>>,
    patterns: OnceLock<Patterns>,
    /// By the encoded bytes of the filters.
    places: Mutex<HashMap<Vec<u8>, Place>>,
}

impl std::fmt::Debug for PipelineCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelineCache").field("places", &self.places).finish_non_exhaustive()
    }
}

impl PipelineCache {
    /// Makes a cache for a stream with a transformation, or without.
    pub(crate) fn new(transform: Option<Arc<Transform>>) -> PipelineCache {
        PipelineCache { transform, patterns: OnceLock::new(), places: Mutex::default() }
    }

    /// Counts patterns together with those of other streams, if this cache has not made a pipeline yet.
    pub(crate) fn count_among(&self, patterns: &Patterns) {
        // A cache that has made one counts alone.
        let _ = self.patterns.set(patterns.clone());
    }

    /// The pipeline for a consumer with these filters and the one that is stored for its name. `peer` has brought the former; none if it
    /// was this process. Callers with equal filters wait for the first of them, which compiles the filters; others do not wait.
    ///
    /// # Errors
    /// The error of the first filter that cannot be compiled, or that there are too many patterns.
    pub(crate) fn pipeline<'a>(
        &self,
        filters: impl IntoIterator<Item = &'a proto::Filter>,
        kept: Option<&'a proto::Filter>,
        peer: Option<IpAddr>,
    ) -> Result<Arc<FilterPipeline>, FilterError> {
        let says_something = |filter: &&proto::Filter| !filter.exclude.is_empty();
        let mut filters: Vec<&proto::Filter> = filters.into_iter().filter(says_something).collect();
        let own = count(&filters)?;
        filters.extend(kept.filter(says_something));
        let mut key = Vec::new();
        filters.iter().for_each(|filter| key.extend(filter.encode_length_delimited_to_vec()));
        let place = self.place(key);
        let mut place = place.lock();
        if let Some(known) = place.upgrade() {
            return Ok(known);
        }
        let all = count(&filters)?;
        let patterns =
            self.patterns.get_or_init(Patterns::default).take(all, peer.map(|peer| (Peer::of(peer), own)))?;
        let compiled = filters.into_iter().map(Filter::compile).collect::<Result<Vec<_>, _>>()?;
        let pipeline = Arc::new(FilterPipeline::new(self.transform.clone(), compiled).counted(patterns));
        *place = Arc::downgrade(&pipeline);
        Ok(pipeline)
    }

    fn place(&self, key: Vec<u8>) -> Place {
        let mut places = self.places.lock();
        if let Some(known) = places.get(&key) {
            return known.clone();
        }
        // An entry that only the map has is locked by no one.
        places.retain(|_, place| Arc::strong_count(place) > 1 || place.lock().strong_count() > 0);
        places.entry(key).or_default().clone()
    }
}

fn count(filters: &[&proto::Filter]) -> Result<usize, FilterError> {
    filters.iter().map(|filter| Filter::patterns_of(filter)).sum()
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
        let caches = [PipelineCache::default(), PipelineCache::default()];
        caches.iter().for_each(|cache| cache.count_among(&all));
        let three = caches[0].pipeline([&patterns(&["a", "b", "c"])], None, None).unwrap();
        let same = caches[0].pipeline([&patterns(&["a", "b", "c"])], None, None).unwrap();
        assert!(Arc::ptr_eq(&three, &same), "it counts once");
        let two = patterns(&["a", "b"]);
        let refused = caches[1].pipeline([&two], None, None).unwrap_err();
        assert_eq!(refused, FilterError::TooManyInAll);
        assert_eq!(refused.to_status().code(), tonic::Code::ResourceExhausted);
        caches[1].pipeline([&criteria::only([criteria::key("a")])], None, None).unwrap();
        let one = caches[1].pipeline([&patterns(&["a"])], None, None).unwrap();
        drop((three, one));
        caches[1].pipeline([&two], None, None).unwrap_err();
        drop(same);
        let _two = caches[1].pipeline([&two], None, None).unwrap();
        // What cannot be compiled counts for nothing.
        caches[0].pipeline([&patterns(&["a", "("])], None, None).unwrap_err();
        caches[0].pipeline([&patterns(&["c", "d"])], None, None).unwrap();
    }

    #[test]
    fn one_address_keeps_no_other_out() {
        let cache = PipelineCache::default();
        cache.count_among(&Patterns::new(4));
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|address| Some(address.parse::<IpAddr>().unwrap()));
        let two = cache.pipeline([&patterns(&["a", "b"])], None, one).unwrap();
        assert_eq!(
            cache.pipeline([&patterns(&["c"])], None, one).unwrap_err(),
            FilterError::TooManyOfPeer { most: 2 }
        );
        let same = cache.pipeline([&patterns(&["a", "b"])], None, other).unwrap();
        assert!(Arc::ptr_eq(&two, &same), "it counts for who brought it");
        let _two = cache.pipeline([&patterns(&["c", "d"])], None, other).unwrap();
        assert_eq!(cache.pipeline([&patterns(&["e"])], None, None).unwrap_err(), FilterError::TooManyInAll);
        drop((two, same));
        let kept = patterns(&["h"]);
        cache.pipeline([&patterns(&["f", "g"])], None, one).unwrap();
        cache.pipeline([&patterns(&["f"])], Some(&kept), one).unwrap();
        let _one = cache.pipeline([&patterns(&["f"])], None, one).unwrap();
        cache.pipeline([&patterns(&["g"])], Some(&kept), one).unwrap_err();
    }

    #[test]
    fn filters_that_nobody_uses_are_forgotten() {
        let cache = PipelineCache::default();
        let used = cache.pipeline([&patterns(&["used"])], None, None).unwrap();
        for n in 0..100 {
            cache.pipeline([&criteria::only([criteria::key(format!("{n}"))])], None, None).unwrap();
        }
        assert!(cache.places.lock().len() <= 2, "the last one may be there");
        assert!(Arc::ptr_eq(&used, &cache.pipeline([&patterns(&["used"])], None, None).unwrap()));
    }
}
