//! The lenses of a stream: consumers with equal filters look through one, so that an event is evaluated once for all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};

use mainstem_peers::Peer;
use parking_lot::Mutex;
use prost::Message as _;

use crate::chunk::{Lens, Transform};
use crate::filter::{Filter, FilterError, PATTERNS_IN_ALL_MAX};
use crate::proto;

/// The number of patterns of filters that are in use, of all streams that share it, and those that each address has brought.
#[derive(Debug, Clone)]
pub(crate) struct Patterns(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    max: usize,
    taken: usize,
    /// The number of each address with some.
    by_peer: HashMap<Peer, usize>,
}

impl Patterns {
    pub(crate) fn new(max: usize) -> Patterns {
        Patterns(Arc::new(Mutex::new(Counts { max, taken: 0, by_peer: HashMap::new() })))
    }

    /// Counts so many more until they are dropped, and how many of them an address has brought. One address has half of all, so that it keeps
    /// no other one out; who asks in this process may have all.
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

/// Patterns that are in use. They are given back when it is dropped.
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

    /// The lens that events pass through before a consumer with these filters, and the one that is kept for its name, sees them. `peer` has brought the
    /// former, if it was not this process. Who asks for equal filters at one time waits for the one that
    /// compiles them; others do not.
    ///
    /// # Errors
    /// Of the first filter that cannot be compiled, or that there are too many patterns.
    pub(crate) fn lens<'a>(
        &self,
        filters: impl IntoIterator<Item = &'a proto::Filter>,
        kept: Option<&'a proto::Filter>,
        peer: Option<IpAddr>,
    ) -> Result<Arc<Lens>, FilterError> {
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
        let caches = [LensCache::default(), LensCache::default()];
        caches.iter().for_each(|cache| cache.count_among(&all));
        let three = caches[0].lens([&patterns(&["a", "b", "c"])], None, None).unwrap();
        let same = caches[0].lens([&patterns(&["a", "b", "c"])], None, None).unwrap();
        assert!(Arc::ptr_eq(&three, &same), "it counts once");
        let two = patterns(&["a", "b"]);
        let refused = caches[1].lens([&two], None, None).unwrap_err();
        assert_eq!(refused, FilterError::TooManyInAll);
        assert_eq!(refused.to_status().code(), tonic::Code::ResourceExhausted);
        caches[1].lens([&criteria::only([criteria::key("a")])], None, None).unwrap();
        let one = caches[1].lens([&patterns(&["a"])], None, None).unwrap();
        drop((three, one));
        caches[1].lens([&two], None, None).unwrap_err();
        drop(same);
        let _two = caches[1].lens([&two], None, None).unwrap();
        // What cannot be compiled counts for nothing.
        caches[0].lens([&patterns(&["a", "("])], None, None).unwrap_err();
        caches[0].lens([&patterns(&["c", "d"])], None, None).unwrap();
    }

    #[test]
    fn one_address_keeps_no_other_out() {
        let cache = LensCache::default();
        cache.count_among(&Patterns::new(4));
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|address| Some(address.parse::<IpAddr>().unwrap()));
        let two = cache.lens([&patterns(&["a", "b"])], None, one).unwrap();
        assert_eq!(
            cache.lens([&patterns(&["c"])], None, one).unwrap_err(),
            FilterError::TooManyOfPeer { most: 2 }
        );
        let same = cache.lens([&patterns(&["a", "b"])], None, other).unwrap();
        assert!(Arc::ptr_eq(&two, &same), "it counts for who brought it");
        let _two = cache.lens([&patterns(&["c", "d"])], None, other).unwrap();
        assert_eq!(cache.lens([&patterns(&["e"])], None, None).unwrap_err(), FilterError::TooManyInAll);
        drop((two, same));
        let kept = patterns(&["h"]);
        cache.lens([&patterns(&["f", "g"])], None, one).unwrap();
        cache.lens([&patterns(&["f"])], Some(&kept), one).unwrap();
        let _one = cache.lens([&patterns(&["f"])], None, one).unwrap();
        cache.lens([&patterns(&["g"])], Some(&kept), one).unwrap_err();
    }

    #[test]
    fn filters_that_nobody_uses_are_forgotten() {
        let cache = LensCache::default();
        let used = cache.lens([&patterns(&["used"])], None, None).unwrap();
        for n in 0..100 {
            cache.lens([&criteria::only([criteria::key(format!("{n}"))])], None, None).unwrap();
        }
        assert!(cache.places.lock().len() <= 2, "the last one may be there");
        assert!(Arc::ptr_eq(&used, &cache.lens([&patterns(&["used"])], None, None).unwrap()));
    }
}
