//! Placement from outside: what is decided, admitted, and kept.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod admission;
mod beliefs;
mod decisions;
mod drain;
mod inventory;
mod lifetimes;
mod properties;
mod room;

use ballast_placement::fits::{AntiAffinity, Capacity, Open};
use ballast_placement::{Fit, MemoryKb, MilliCores, Resources};
use ballast_types::Instant;

const NOW: Instant = Instant::ZERO;

fn gb(cores: u16, memory: f64) -> Resources {
    Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(memory).unwrap())
}

fn size(milli: u64, kb: u64) -> Resources {
    Resources::new(MilliCores::from_milli(milli).unwrap(), MemoryKb::from_kb(kb).unwrap())
}

fn fits() -> Vec<Box<dyn Fit>> {
    vec![Box::new(Capacity), Box::new(Open), Box::new(AntiAffinity::default())]
}
