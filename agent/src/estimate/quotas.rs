//! Dynamic watts of floating VMs: a bandwidth limit stops a VM for part of the time and leaves the frequency
//! alone, so it lowers power in proportion, and only once it bites.

use serde::{Deserialize, Serialize};

use super::Dynamic;
use crate::Params;
use crate::bandwidth::{View, bandwidths};
use crate::throttle::Class;

/// The same for every core: a floating VM runs on any of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Quotas {
    /// Of one fully busy core.
    per_core: f64,
    cores: usize,
}

impl Quotas {
    pub(super) fn new(params: &Params) -> Self {
        let cores = params.cores.len();
        let online = cores.saturating_sub(params.offline_cores.into()).max(1);
        Self { per_core: params.model.dynamic_w() / online as f64, cores }
    }
}

impl Dynamic for Quotas {
    fn core_w(&self, view: &View<'_>, unit: usize, level: usize) -> f64 {
        let &View { throttle, fleet, .. } = view;
        self.per_core * fleet.fast_demand(unit, throttle).min(throttle.share(unit, level))
    }

    fn used_core_w(&self, view: &View<'_>, unit: usize, _: usize, level: usize) -> Option<f64> {
        let &View { now, throttle, fleet, .. } = view;
        Some(self.per_core * fleet.demand(now, unit, throttle)?.min(throttle.share(unit, level)))
    }

    fn drawn_low(&self, view: &View<'_>) -> f64 {
        view.throttle.throttled().map(|unit| self.per_core * view.fleet.fast_use(unit)).sum()
    }

    fn drawn_all(&self, view: &View<'_>) -> f64 {
        self.per_core * view.fleet.fast_cores()
    }

    fn sheddable(&self, view: &View<'_>, class: &Class) -> f64 {
        self.per_core * bandwidths(view, Some(class)).map(|vm| vm.sheds()).sum::<f64>()
    }

    fn restorable(&self, view: &View<'_>, class: Option<&Class>) -> f64 {
        self.per_core * bandwidths(view, class).map(|vm| vm.restores()).sum::<f64>()
    }

    /// The cores that no VM accounts for count as the others do.
    fn unrestricted(&self, view: &View<'_>) -> Option<f64> {
        let (mut known, mut busy) = (0.0, 0.0);
        for vm in bandwidths(view, None) {
            if let Some(demand) = vm.demand() {
                known += vm.cores;
                busy += demand;
            }
        }
        (known > 0.0).then(|| self.per_core * busy * (self.cores as f64 / known).max(1.0))
    }
}
