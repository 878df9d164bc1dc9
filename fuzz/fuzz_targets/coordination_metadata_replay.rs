#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_coordination::metadata::fuzz::metadata_replay(data));
