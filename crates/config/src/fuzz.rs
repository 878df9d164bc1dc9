//! Bodies for fuzzing: each takes any bytes and asserts what must hold for them.

use super::broker::BrokerConfig;
use super::properties::Properties;
use super::sources::Sources;

/// Any bytes parse or are refused. The properties that were parsed are read back from their text.
pub fn properties(data: &[u8]) {
    let Ok(parsed) = Properties::parse(data) else { return };
    let size: usize = parsed.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
    // A letter of Latin-1 takes two bytes in UTF-8.
    assert!(size <= 2 * data.len(), "{size} bytes out of {}", data.len());
    let again = Properties::parse(parsed.to_text().as_bytes()).expect("what was written is well formed");
    let entries = |properties: &Properties| -> Vec<(String, String)> {
        properties.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect()
    };
    assert_eq!(entries(&again), entries(&parsed));
    // A start with it either succeeds or names the mistakes.
    if let Err(error) = BrokerConfig::from_sources(Sources { file: Some(&parsed), ..Sources::default() }) {
        assert!(!error.to_string().is_empty());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn properties_hold_over_the_corpus() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/properties");
        let files: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is checked in").collect();
        assert!(!files.is_empty());
        for file in files {
            let path = file.expect("a readable directory").path();
            super::properties(&std::fs::read(path).expect("a readable file"));
        }
    }

    proptest! {
        #[test]
        fn properties_hold_over_random_bytes(data in proptest::collection::vec(any::<u8>(), 0..256)) {
            super::properties(&data);
        }

        #[test]
        fn properties_hold_over_text_of_the_format(
            text in r"(([a-z.=:# !]|\\[tnrfu\\=0-9a-f\n]|\\u[0-9a-fdD8]{4}|[\n\r]){0,12}\n){0,12}",
        ) {
            super::properties(text.as_bytes());
        }

        #[test]
        fn properties_hold_over_keys_of_the_table(
            lines in proptest::collection::vec((0usize..400, r"[-0-9a-zA-Z:/,.]{0,20}"), 0..10),
        ) {
            let keys: Vec<_> = crate::table::all().collect();
            let lines = lines.iter().map(|(at, value)| format!("{}={value}\n", keys[at % keys.len()].name));
            super::properties(lines.collect::<String>().as_bytes());
        }
    }
}
