//! The lenses of a stream: consumers with equal filters look through one, so that an event is evaluated once for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prost::Message as _;

use crate::chunk::{Lens, Transform};
use crate::filter::{Filter, FilterError};
use crate::proto;

/// Makes lenses, and keeps those that are in use.
#[derive(Default)]
pub(crate) struct LensCache {
    transform: Option<Arc<Transform>>,
    /// By the filters' bytes.
    lenses: Mutex<HashMap<Vec<u8>, Weak<Lens>>>,
}

impl std::fmt::Debug for LensCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LensCache").field("lenses", &self.lenses).finish_non_exhaustive()
    }
}

impl LensCache {
    /// Of a stream with a transformation, or without.
    pub(crate) fn new(transform: Option<Arc<Transform>>) -> LensCache {
        LensCache { transform, lenses: Mutex::default() }
    }

    /// What events pass through before a consumer with these filters sees them.
    ///
    /// # Errors
    /// Of the first filter that cannot be compiled.
    pub(crate) fn lens<'a>(
        &self,
        filters: impl IntoIterator<Item = &'a proto::Filter>,
    ) -> Result<Arc<Lens>, FilterError> {
        let filters: Vec<&proto::Filter> =
            filters.into_iter().filter(|filter| !filter.exclude.is_empty()).collect();
        let mut key = Vec::new();
        filters.iter().for_each(|filter| key.extend(filter.encode_length_delimited_to_vec()));
        let mut lenses = self.lenses.lock();
        if let Some(known) = lenses.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let compiled = filters.into_iter().map(Filter::compile).collect::<Result<Vec<_>, _>>()?;
        let lens = Arc::new(Lens::new(self.transform.clone(), compiled));
        lenses.retain(|_, lens| lens.strong_count() > 0);
        lenses.insert(key, Arc::downgrade(&lens));
        Ok(lens)
    }
}
