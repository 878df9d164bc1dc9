//! Fuzz bodies of the text files and names of a log directory. Any bytes are read without a panic, and a parsed value is
//! the same after it was written and read again.

/// `meta.properties`.
pub fn meta_properties(data: &[u8]) {
    crate::meta_properties::fuzz(data);
}

/// Checkpoint files.
pub fn checkpoint(data: &[u8]) {
    crate::checkpoint::fuzz(data);
}

/// The clean-shutdown marker.
pub fn clean_shutdown(data: &[u8]) {
    crate::marker::fuzz(data);
    crate::segment_record::fuzz(data);
}

/// `partition.metadata`.
pub fn partition_metadata(data: &[u8]) {
    crate::partition_metadata::fuzz(data);
}

/// Names of directories.
pub fn partition_dir(data: &[u8]) {
    crate::partition_dir::fuzz(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    type Body = fn(&[u8]);

    const BODIES: [(&str, Body); 9] = [
        ("meta_properties", super::meta_properties),
        ("checkpoint", super::checkpoint),
        ("clean_shutdown", super::clean_shutdown),
        ("partition_metadata", super::partition_metadata),
        ("partition_dir", super::partition_dir),
        ("leader_epochs", crate::fuzz::leader_epochs),
        ("producer_snapshot", crate::fuzz::producer_snapshot),
        ("segment", crate::fuzz::segment),
        ("transaction_index", crate::fuzz::transaction_index),
    ];

    fn corpus(name: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let files = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let corpus: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(!corpus.is_empty(), "{} is empty", dir.display());
        corpus
    }

    #[test]
    fn the_corpus_passes() {
        for (name, body) in BODIES {
            corpus(name).iter().for_each(|data| body(data));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_pass(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            BODIES.iter().for_each(|(_, body)| body(&data));
        }

        /// Files of the corpus with bytes replaced, removed and doubled: these get past the first check.
        #[test]
        fn damaged_files_pass(seed: usize, edits in proptest::collection::vec((0..3, any::<usize>(), any::<u8>()), 1..6)) {
            for (name, body) in BODIES {
                let mut corpus = corpus(name);
                let index = seed % corpus.len();
                let data = &mut corpus[index];
                for (edit, at, byte) in &edits {
                    let at = at % (data.len() + 1);
                    match edit {
                        0 => data.insert(at, *byte),
                        1 => data.truncate(at),
                        _ => data.get_mut(at).map_or((), |old| *old = *byte),
                    }
                }
                body(data);
            }
        }
    }
}
