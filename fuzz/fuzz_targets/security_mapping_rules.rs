#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_security::fuzz::mapping_rules(data));
