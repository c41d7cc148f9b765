//! How low a chassis budget may be set: the lowest one whose capping events stay as rare and as shallow as
//! the operator accepts, from the history of draws.
//!
//! ```text
//!   readings ──▶ Histogram ──┐
//!   Chassis (curves, load) ──┼─ reductions ─┐
//!   Policy (rates, floors) ──┴──────────────┴─▶ lowest() ──buffer──▶ Plan ──▶ what it would have done
//! ```
//! | module | what it knows |
//! |---|---|
//! | `histogram` | draws, exact at the meter's resolution, mergeable |
//! | `readings`, `cells` | telemetry as it comes: each chassis's draws in time, once a unit; histograms of them; the longest event |
//! | `parts` | histograms that were counted elsewhere: none counts a reading again |
//! | `chassis` | what a chassis can shed at a frequency floor |
//! | `policy` | accepted rates and floors; the approaches of the paper's Table IV |
//! | `lowest` | the lowest admissible budget: closed form, and the paper's walk |
//! | `events` | what a budget would have done to the history |
//! | `plan` | buffer, savings, servers of a rack |
//! | `held_out` | which buffer later draws would have needed, and which one to propose |
//! | `levels` | racks, rows, UPSs: budgets that every breaker can carry |
//! | `estimate` | how busy VMs were, from labelled history |
//! | `curves` | a server's draw by load and frequency, fitted to measurements |
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-E and IV-F.

mod cells;
mod chassis;
mod curves;
mod estimate;
mod events;
mod held_out;
mod histogram;
mod levels;
mod lowest;
mod parts;
mod plan;
mod policy;
mod readings;

pub use chassis::{Chassis, ChassisError, ClassLoad, Reductions};
pub use curves::{CurvesError, Fit, Linear, Point, Residuals};
pub use estimate::{Estimate, MIN_VMS, Mean, Owner, Past, PastVm};
pub use events::Events;
pub use held_out::{HeldOut, buffer_needed, propose, whole_steps};
pub use histogram::{Histogram, HistogramError};
pub use levels::{ChassisBudget, Generation, Levels, LevelsError, Node, NodePlan, Topology, TopologyError};
pub use lowest::{Binding, Lowest, lowest, walk};
pub use parts::{Part, PartError, Parts};
pub use plan::{Plan, RackFit, Terms, TermsError};
pub use policy::{Approach, Policy, PolicyError, Treated};
pub use readings::{ChassisIndex, Intake, Readings, ReadingsError, Rejected};
