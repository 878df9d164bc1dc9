#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_replication::fuzz::copies(data));
