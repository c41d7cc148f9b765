//! How long VMs live: curves of survival, learnt from starts and ends, and how good they are.
//!
//! [`Lifetimes`] are the VMs of the past, cleaned; VMs that still run count as long as they were seen. A
//! [`LifetimeModel`] is a tree of hazard tables over categories known at the arrival, and answers with a
//! [`SurvivalCurve`](ballast_types::survival::SurvivalCurve): when a VM runs on, its curve is looked up again at its
//! uptime. [`train`] compares it with Kaplan and Meier's estimator on VMs that came later.
//!
//! Source: Ling et al., *LAVA*, arXiv 2412.09840, for the question; what is learnt is a discrete-time hazard (J. Singer
//! and J. Willett, Journal of Educational Statistics 18, 1993) with shrinkage to the wider category.

pub mod boosted;
pub mod concordance;
pub mod counts;
pub mod data;
pub mod feature;
pub mod kaplan_meier;
pub mod model;
pub mod question;
pub mod score;
pub mod tables;
pub mod train;

pub use data::{Cleaned, Lifetimes, VmEnd, VmLifetime};
pub use feature::{Column, LifetimeFeatures};
pub use model::{LifetimeAnswer, LifetimeModel};
pub use question::LifetimeQuestion;
pub use score::LifetimeScores;
pub use train::{LifetimeFile, LifetimeTrial};
