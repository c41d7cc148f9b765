//! The experiments from outside: what every one says, writes, and ends with.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod common;

mod experiment;
