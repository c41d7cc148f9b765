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

    /// Whether so much may come beside what is promised to others.
    ///
    /// # Errors
    /// Which of cores and memory does not suffice.
    pub fn holds(self, cluster: &Cluster, requested: Totals, promised: Totals) -> Result<(), String> {
        let (open, whole) = (cluster.open(), cluster.capacity());
        let holds = |unit, per_unit, [requested, open, whole, promised]: [u64; 4]| {
            let (kept, wanted) = (self.of(whole), requested.saturating_add(promised));
            if open.checked_sub(wanted).is_some_and(|it| it >= kept) {
                return Ok(());
            }
            let [requested, open, kept, promised] =
                [requested, open, kept, promised].map(|it| it as f64 / per_unit);
            let promised = if promised > 0.0 { format!(" and {promised} promised") } else { String::new() };
            Err(format!("{requested} {unit} requested, {open} free, of which {kept} are kept{promised}"))
        };
        holds("cores", 1e3, [requested, open, whole, promised].map(|it| it.milli_cores))?;
        holds("GB", 1e6, [requested, open, whole, promised].map(|it| it.memory_kb))
    }
}

impl Admission for Reserve {
    fn name(&self) -> &'static str {
        "reserve"
    }

    fn decide(&self, cluster: &Cluster, request: &AdmissionRequest<'_>, _now: Instant) -> Result<(), String> {
        let AdmissionRequest::Deployment(vms) = request else { return Ok(()) };
        let requested = vms.iter().fold(Totals::default(), |sum, vm| sum + vm.resources);
        self.holds(cluster, requested, Totals::default())
    }
}
