//! Where the next VM goes: constraints filter, preferences rank, the best host wins.
//!
//! * [`Cluster`]: the hosts, what is free on each, and which VM is where.
//! * [`Fit`]: a constraint. [`Rule`]: a preference. Both own what they keep per host, and learn of
//!   changes by [`Event`]s.
//! * [`Ranking`]: tiers of rules, compared one after the other; the rules of one tier are weighed by
//!   rank. What still ties goes by [`Ties`].
//! * [`Admission`]: whether VMs are taken on at all, before anybody looks for a host.
//! * [`Scheduler`]: all of it together: score, place, remove, migrate, and why.
//! * [`Balance`]: how the expected load is spread, kept once for all who ask.
//! * [`Hold`]: room for a VM that is not there yet: it is on its way, or somebody has reserved it.
//!
//! * [`drain::Round`]: hosts that are drained, and which VM is moved next.
//! * [`Policy`]: the rules that the simulator plays and the daemon serves; [`Inventory`]: hosts and VMs by name under them.
//!
//! Quantities are integers, so that removing a VM undoes exactly what placing it did. Hosts, VMs and
//! deployments are numbers in all but the [`Inventory`]. The crate is pure: time is an argument.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Sections II-C and III-C.

#![warn(missing_docs)]

pub mod admission;
mod balance;
mod cluster;
pub mod drain;
mod error;
pub mod fits;
mod hold;
pub mod inventory;
mod measured;
mod policy;
mod ranking;
mod request;
mod rule;
pub mod rules;
mod scheduler;
mod ties;
mod units;
mod walk;

pub use admission::{Admission, AdmissionRequest, Refused, Reserve};
pub use balance::Balance;
pub use cluster::{Cluster, Host, HostState, Resident, Shortage};
pub use error::PlacementError;
pub use hold::Hold;
pub use inventory::{Inventory, InventoryError};
pub use measured::{CpuUse, Measured};
pub use policy::{LifetimeRule, Policy};
pub use ranking::{Ranking, Tier};
pub use request::{
    ChassisId, Demand, DeploymentId, DomainId, Expected, ExpectedEnd, HostId, TenantId, VmKey, VmRequest,
};
pub use rule::{Ask, Event, Fit, Rule, Search, Walk};
pub use scheduler::{Scheduler, Scored, Scores, Verdict};
pub use ties::Ties;
pub use units::{EXTRAS, Extras, MemoryKb, MilliCores, Resources, Totals};
