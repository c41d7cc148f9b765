//! Whether VMs are taken on at all, before anybody looks for a host.
//!
//! Deployments grow after they were let in, and a scale-out that finds no room fails. [`Reserve`] keeps a fixed share
//! free. The other policies ask how large the deployments will be: a [`Belief`] says what is expected of one deployment,
//! [`Demand`](demand::Demand) adds up all of them, and a [`Threshold`](demand::Threshold) decides.
//!
//! Source: Dierks, Kash, Seuken, "On the Cluster Admission Problem for Cloud Computing", arXiv 1804.07571v8.

mod absorbed;
mod belief;
pub mod demand;
mod deployments;
pub mod events;
pub mod fit;
mod gamma;
mod moments;
mod paper;
pub mod pricing;
mod priors;
mod reserve;
pub mod vector;

use core::fmt;

use ballast_types::Instant;
use thiserror::Error;

use crate::rule::Event;
use crate::{Cluster, DeploymentId, VmRequest};

pub use belief::{Belief, BeliefError, Gamma, Observed};
pub use deployments::{Deployments, Member};
pub use moments::{Form, Moments};
pub use priors::{Order, Priors, PriorsError, PseudoObservations, Tuned};
pub use reserve::Reserve;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub enum AdmissionRequest<'a> {
    /// A new deployment: all of its VMs.
    Deployment(&'a [VmRequest]),
    /// More VMs of a deployment that runs already.
    ScaleOut(DeploymentId, &'a [VmRequest]),
}

impl<'a> AdmissionRequest<'a> {
    /// The VMs.
    pub const fn vms(&self) -> &'a [VmRequest] {
        match *self {
            Self::Deployment(vms) | Self::ScaleOut(_, vms) => vms,
        }
    }
}

/// VMs are not taken on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{by}: {why}")]
pub struct Refused {
    /// Whose decision it is.
    pub by: &'static str,
    /// Why, in words for people.
    pub why: String,
}

/// Stands before placement: it says whether what is asked for may come, whatever host it would get.
pub trait Admission: fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// Whether it may come.
    ///
    /// # Errors
    /// Why it may not.
    fn decide(&self, cluster: &Cluster, request: &AdmissionRequest<'_>, now: Instant) -> Result<(), String>;
    /// Learns what happened.
    fn handle_event(&mut self, _now: Instant, _cluster: &Cluster, _event: &Event<'_>) {}
    /// When it wants [`Event::Deadline`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
