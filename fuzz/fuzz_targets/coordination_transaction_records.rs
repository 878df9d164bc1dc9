#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstem_coordination::transactions::fuzz::transaction_records(data));
