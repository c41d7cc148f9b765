//! The experiments from outside: what every one says, writes, and ends with.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests read files, and a failed helper is a failed test"
)]

mod experiment;
