//! Hosts that are drained: in which order their VMs are moved, when, and what is under way.
//!
//! * [`plan()`]: what is to be expected, before anything is done.
//! * [`Round`]: what is under way. Whoever moves VMs is told what may start, and tells what has been done.
//! * [`Site`]: where VMs are, by numbers ([`crate::Scheduler`]) or by names ([`crate::Inventory`]).
//!
//! A host sends one VM at a time, and no more than a limit are on their way together. A VM that ends before its turn is a
//! move saved, so those with the most of their lives ahead go first.
//!
//! Source: LARS, Ling et al., "LAVA: Lifetime-Aware VM Allocation", MLSys 2025, Section 4.4 and Appendix H.

mod moves;
mod order;
mod plan;
mod round;
mod site;

pub use moves::{DrainCounts, Move, Turn};
pub use order::{DrainOrder, DrainVm};
pub use plan::{DrainPlan, Fate, PlannedMove, Schedule, emptiable, plan, schedule, targets};
pub use round::Round;
pub use site::{Site, emptiest};
