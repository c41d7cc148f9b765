//! Dynamic watts of floating VMs: a bandwidth limit stops a VM for part of the time and leaves the frequency
//! alone, so it lowers power in proportion, and only once it bites.

use serde::{Deserialize, Serialize};

use super::{Dynamic, floating_w, watts_per_core};
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
        Self { per_core: watts_per_core(params), cores: params.cores.len() }
    }
}

impl Dynamic for Quotas {
    fn used_core_w(&self, view: &View<'_>, unit: usize, _: usize, level: usize) -> Option<f64> {
        let &View { now, throttle, fleet, .. } = view;
        Some(self.per_core * fleet.demand(now, unit, throttle)?.min(throttle.share(unit, level)))
    }

    fn sheddable(&self, view: &View<'_>, class: &Class) -> f64 {
        self.per_core * bandwidths(view, Some(class)).map(|vm| vm.sheds()).sum::<f64>()
    }

    fn restorable(&self, view: &View<'_>, class: Option<&Class>) -> f64 {
        self.per_core * bandwidths(view, class).map(|vm| vm.restores()).sum::<f64>()
    }

    fn unrestricted(&self, view: &View<'_>) -> Option<f64> {
        let vms = bandwidths(view, None).map(|vm| (vm.cores, vm.demand()));
        floating_w(self.per_core, self.cores, vms)
    }
}
