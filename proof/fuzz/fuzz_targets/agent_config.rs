#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ballast_tests::agent_config(bytes));
