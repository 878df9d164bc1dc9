#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_queue::fuzz::directory(data));
