//! What was measured of the CPU that VMs use.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What was measured of one VM: how many cores it used for which share of the time.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuUse {
    /// What it had while it was measured.
    pub(crate) cores: f64,
    /// Uses in cores, each for a share of the time.
    pub(crate) shares: Vec<(f64, f64)>,
}

impl CpuUse {
    /// Of a VM of so many cores: uses in cores, each with the seconds that it was measured for. `None` where no second was
    /// measured, or a use is no number from 0 on.
    pub fn new(cores: f64, uses: &[(f64, u64)]) -> Option<Self> {
        let seconds: u64 = uses.iter().map(|(_, seconds)| seconds).sum();
        let possible = |used: f64| used.is_finite() && used >= 0.0;
        let sound = seconds > 0 && cores > 0.0 && uses.iter().all(|(used, _)| possible(*used));
        let share = |(used, count): &(f64, u64)| (*used, *count as f64 / seconds as f64);
        sound.then(|| Self { cores, shares: uses.iter().map(share).collect() })
    }
}

/// What was measured on a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured<K> {
    /// Its VMs; one that is not among them was not measured, or too long ago.
    pub vms: BTreeMap<K, Arc<CpuUse>>,
    /// It takes nobody, for the share of time in which its VMs' demand was above its cores.
    pub closed: Option<f64>,
    /// The share of time for which its VMs and a newcomer may be said to demand too much; `None` is what is promised.
    pub allowed: Option<f64>,
}
