//! The program from outside: what every command says, writes, and ends with.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod common;

mod admission;
mod demo;
mod fleet;
mod installed;
mod label;
mod lifetimes;
mod pack;
mod plan;
mod profile;
mod recommend;

mod reference;
mod replay;
mod simulate;
mod telemetry;
mod verify;
