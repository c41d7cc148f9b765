//! Whether VMs are taken on at all, before anybody looks for a host.

use core::fmt;

use ballast_types::Instant;
use thiserror::Error;

use crate::rule::Event;
use crate::{Cluster, DeploymentId, Totals, VmRequest};

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

/// Keeps a share of the cluster's cores and memory free on hosts that are open. Only deployments that run already may
/// use it when they scale out: a new one has other clusters to go to, these have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    share: u16,
}

impl Reserve {
    /// From 0 to 1, to the next thousandth; `None` outside.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then(|| Self { share: libm::round(share * 1e3) as u16 })
    }

    fn of(self, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(self.share)).div_ceil(1000) as u64
    }
}

impl Admission for Reserve {
    fn name(&self) -> &'static str {
        "reserve"
    }

    fn decide(&self, cluster: &Cluster, request: &AdmissionRequest<'_>, _now: Instant) -> Result<(), String> {
        let AdmissionRequest::Deployment(vms) = request else { return Ok(()) };
        let requested = vms.iter().fold(Totals::default(), |sum, vm| sum + vm.resources);
        let (open, whole) = (cluster.open(), cluster.capacity());
        let (milli_cores, memory_kb) = (self.of(whole.milli_cores), self.of(whole.memory_kb));
        let kept = Totals { milli_cores, memory_kb, ..Totals::default() };
        let holds = |free: u64, requested: u64, kept| free.saturating_sub(requested) >= kept;

        if !holds(open.milli_cores, requested.milli_cores, kept.milli_cores) {
            let cores = |milli: u64| milli as f64 / 1e3;
            let [requested, open, kept] =
                [requested.milli_cores, open.milli_cores, kept.milli_cores].map(cores);
            Err(format!("{requested} cores requested, {open} free, of which {kept} are kept"))
        } else if !holds(open.memory_kb, requested.memory_kb, kept.memory_kb) {
            let gb = |kb: u64| kb as f64 / 1e6;
            let [requested, open, kept] = [requested.memory_kb, open.memory_kb, kept.memory_kb].map(gb);
            Err(format!("{requested} GB requested, {open} free, of which {kept} are kept"))
        } else {
            Ok(())
        }
    }
}
