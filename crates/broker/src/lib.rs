//! Listeners, connections and one file per API: the only crate that joins network and log.
