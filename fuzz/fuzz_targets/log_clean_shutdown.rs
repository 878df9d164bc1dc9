#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_log::fuzz_texts::clean_shutdown(data));
