//! The controller of one server, pure: no clock, file, thread, socket, randomness or hash order.
//!
//! ```text
//!   Alert ──▶ orders (epochs, leases) ──cap──┐
//!   Power ──▶ meter (fresh? current?) ─draw──┤
//!   Vms ────▶ fleet (who owns a core) ─class─┤
//!                                            ▼
//!                     agent (states) ──▶ throttle (p-states) ──▶ actuators ──▶ Output
//!                          ▲                                         │
//!   Applied ───────────────┴──────────── retries, give-ups ◀─────────┘
//! ```
//! Restrictions persist, permissions expire: a lower cap always applies, a raise needs a live lease;
//! a missing reading is never taken for low power.

mod actuators;
mod agent;
mod auto_class;
mod bandwidth;
mod enforced;
mod episode;
mod estimate;
mod fleet;
mod fusion;
mod groups;
mod impact;
mod io;
mod lease;
mod memory_limit;
mod meter;
mod overdraw;
mod overflow;
mod params;
mod past;
mod pools;
mod recent;
mod shed;
mod state;
mod throttle;
mod tuning;
mod units;
mod usage;

pub use agent::Agent;
pub use auto_class::AutoClass;
pub use fusion::Fused;
pub use groups::{GroupError, PhysicalCore, core_groups};
pub use io::*;
pub use memory_limit::{MemoryBounds, MemoryHold, MemoryLimiter, MemoryReading, MemoryWrite};
pub use overflow::OverflowMeter;
pub use params::{Actuator, Params, Policy, Steps};
pub use pools::{PoolCores, Pools};
pub use tuning::Tuning;
pub use usage::{ServerSecond, SlowReading, UsageReading, UsageRecorder};
