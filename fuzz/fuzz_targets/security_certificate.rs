#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_security::fuzz::certificate(data));
