//! Cores and memory that are kept for deployments that run already.

use ballast_types::Instant;

use super::{Admission, AdmissionRequest};
use crate::{Cluster, Totals};

/// Keeps a share of the cluster's cores and memory free on hosts that are open. Only deployments that run already may
/// use it when they scale out: a new one has other clusters to go to, these have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    millionths: u32,
}

impl Reserve {
    /// From 0 to 1, to the next millionth; `None` outside.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then(|| Self { millionths: libm::round(share * 1e6) as u32 })
    }

    fn of(self, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(self.millionths)).div_ceil(1_000_000) as u64
    }

    /// Whether so much may come.
    ///
    /// # Errors
    /// Which of cores and memory does not suffice.
    pub fn holds(self, cluster: &Cluster, requested: Totals) -> Result<(), String> {
        let (open, whole) = (cluster.open(), cluster.capacity());
        let (milli_cores, memory_kb) = (self.of(whole.milli_cores), self.of(whole.memory_kb));
        let kept = Totals { milli_cores, memory_kb, ..Totals::default() };
        let holds = |free: u64, requested, kept| free.checked_sub(requested).is_some_and(|it| it >= kept);

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

impl Admission for Reserve {
    fn name(&self) -> &'static str {
        "reserve"
    }

    fn decide(&self, cluster: &Cluster, request: &AdmissionRequest<'_>, _now: Instant) -> Result<(), String> {
        let AdmissionRequest::Deployment(vms) = request else { return Ok(()) };
        self.holds(cluster, vms.iter().fold(Totals::default(), |sum, vm| sum + vm.resources))
    }
}
