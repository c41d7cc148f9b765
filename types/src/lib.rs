//! The words that every part of Ballast shares: time, units, ids, the wire, and the [`Machine`] trait.
//!
//! This crate is pure and small. Quantities are private integers inside newtypes, so that watts are
//! never added to kilohertz, and a difference is only taken where it means something.

#![warn(missing_docs)]

pub mod cap;
pub mod ids;
mod impact;
mod instant;
pub mod machine;
mod power_model;
pub mod recording;
mod role;
pub mod server;
mod split_mix;
mod statistics;
mod supply;
pub mod survival;
pub mod table_one;
mod trip;
mod units;
pub mod usage;
pub mod wire;

pub use cap::{Cap, CapError, noise_above};
pub use ids::{ActionId, BootId, ChassisId, CoreId, Epoch, IdError, Instance, PeerName, Seq, ServerId, VmId};
pub use instant::Instant;
pub use machine::{Cause, Machine, Shell, Turn, Why, turn};
pub use power_model::PowerModel;
pub use role::{Role, RoleError};
pub use server::{Core, Ladder, LadderError, OnExtreme, VmClass};
pub use split_mix::SplitMix64;
pub use statistics::{median, standard_deviation};
pub use supply::{Supply, SupplyState};
pub use trip::{METER_CLASS, TRIP_TIME, TripCurve, TripFraction, TripPoint};
pub use units::{KiloHertz, Microjoules, Utilisation, Watts};
pub use usage::{Counters, CpuSeconds, Histogram, MemoryUse, UsageBin, UsageRecord, VmStart};
