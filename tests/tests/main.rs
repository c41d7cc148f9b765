//! Real daemons and the program itself, end to end: processes on loopback, files instead of hardware.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod access;
mod admission;
mod bmc;
mod browser;
mod confined;
mod cores;
mod daemons;
mod floating;
mod full_disk;
mod kubernetes;
mod lifecycle;
mod lifetimes;
mod limits;
mod machines;
mod nodes;
mod place;
mod placing;
mod pools;
mod profile;
mod promtool;
mod records;
mod redfish;
mod reload;
mod sensors;
mod shedding;
mod support;
mod tagging;
mod ten_minutes;
mod tls;
mod vms;
