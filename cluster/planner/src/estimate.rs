//! How busy a chassis's VMs were: allocation, the user-facing share and utilisations, from labelled history.
//!
//! Every figure is a mean over allocated cores and time: a VM weighs as many core-hours as it had. Utilisation is
//! a VM's P95, as the paper has it: capping hurts when VMs are busy.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-E, steps 1 and 2; weights are ours, the paper says
//! "average over virtual cores".

use std::collections::BTreeMap;

use ballast_types::VmClass;
use serde::Serialize;

/// VMs of a class with a P95 that an estimate needs: fewer say little.
pub const MIN_VMS: u64 = 30;

#[derive(Clone, Debug, PartialEq)]
pub struct PastVm {
    pub cores: u32,
    /// How long it ran in the time that is looked at, in seconds; 0 if it did not.
    pub seconds: u64,
    /// Its class, where somebody told or predicted it.
    pub class: Option<VmClass>,
    /// Its P95 utilisation, 0 to 1, where that is known.
    pub p95: Option<f64>,
    pub owner: Option<Owner>,
    /// VMs of one group (a subscription) are alike, and count as one for the standard error.
    pub group: String,
}

/// Whom a VM belongs to: it says who may be capped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The provider itself.
    Internal,
    /// A third party that pays for a premium.
    Premium,
    /// Another third party.
    NonPremium,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    pub mean: f64,
    /// Its standard error, with groups taken as independent.
    pub error: f64,
    /// How many VMs it is over.
    pub vms: u64,
}

/// What was estimated of one hardware generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Allocated cores as a share of the physical ones, where these were told.
    pub alloc: Option<f64>,
    /// User-facing cores as a share of the allocated ones. A VM without a class counts as user-facing: so it
    /// does for the agent, which does not cap it first.
    pub beta: Option<Mean>,
    /// P95 utilisation of user-facing VMs.
    pub util_user_facing: Option<Mean>,
    /// That of the others.
    pub util_non_user_facing: Option<Mean>,
    /// How much of the others' load is the provider's own, and how much premium third parties', where owners
    /// are known.
    pub internal_share: Option<Mean>,
    pub premium_share: Option<Mean>,
    pub vms: u64,
    /// Of them, those without a class.
    pub unlabelled: u64,
    /// Of them, those without a P95: left out of the utilisations.
    pub without_p95: u64,
    pub without_time: u64,
}

/// Adds up VMs of one hardware generation.
#[derive(Clone, Debug, Default)]
pub struct Past {
    estimate: Estimate,
    core_s: f64,
    beta: Sums,
    utils: [Sums; 2],
    owners: [Sums; 2],
}

/// Weighted sums, by group.
#[derive(Clone, Debug, Default)]
struct Sums {
    vms: u64,
    weight: f64,
    sum: f64,
    groups: BTreeMap<String, (f64, f64)>,
}

impl Sums {
    fn add(&mut self, group: &str, weight: f64, value: f64) {
        self.vms += 1;
        self.weight += weight;
        self.sum += weight * value;
        match self.groups.get_mut(group) {
            Some((all, sum)) => {
                *all += weight;
                *sum += weight * value;
            }
            None => drop(self.groups.insert(group.to_owned(), (weight, weight * value))),
        }
    }

    fn mean(&self) -> Option<Mean> {
        if self.vms < MIN_VMS || self.weight <= 0.0 {
            return None;
        }
        let (mean, n) = (self.sum / self.weight, self.groups.len() as f64);
        let square = |(weight, sum): &(f64, f64)| {
            let off = sum - mean * weight;
            off * off
        };
        let squares: f64 = self.groups.values().map(square).sum();
        // One group says nothing of how groups differ.
        let error = if n > 1.0 { libm::sqrt(squares * n / (n - 1.0)) / self.weight } else { f64::INFINITY };
        Some(Mean { mean, error, vms: self.vms })
    }
}

impl Past {
    pub fn take(&mut self, vm: &PastVm) {
        let weight = f64::from(vm.cores) * vm.seconds as f64;
        if weight <= 0.0 {
            self.estimate.without_time += 1;
            return;
        }
        self.estimate.vms += 1;
        self.core_s += weight;
        self.estimate.unlabelled += u64::from(vm.class.is_none());
        let batch = vm.class == Some(VmClass::NonUserFacing);
        self.beta.add(&vm.group, weight, f64::from(u8::from(!batch)));

        if let (true, Some(p95), Some(owner)) = (batch, vm.p95, vm.owner) {
            for (sums, counted) in self.owners.iter_mut().zip([Owner::Internal, Owner::Premium]) {
                sums.add(&vm.group, weight * p95, f64::from(u8::from(owner == counted)));
            }
        }

        match (vm.p95, vm.class) {
            (None, _) => self.estimate.without_p95 += 1,
            // What it would be capped as is not what it is.
            (Some(_), None) => {}
            (Some(p95), Some(_)) => self.utils[usize::from(batch)].add(&vm.group, weight, p95),
        }
    }

    /// The figures; `physical_core_s` is the time of all physical cores together, where it is known. A figure
    /// of fewer than [`MIN_VMS`] VMs is none.
    pub fn estimate(&self, physical_core_s: Option<f64>) -> Estimate {
        Estimate {
            alloc: physical_core_s.map(|all| self.core_s / all),
            beta: self.beta.mean(),
            util_user_facing: self.utils[0].mean(),
            util_non_user_facing: self.utils[1].mean(),
            internal_share: self.owners[0].mean(),
            premium_share: self.owners[1].mean(),
            ..self.estimate
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(cores: u32, seconds: u64, class: Option<VmClass>, p95: Option<f64>, group: u32) -> PastVm {
        PastVm { cores, seconds, class, p95, owner: None, group: group.to_string() }
    }

    const UF: Option<VmClass> = Some(VmClass::UserFacing);
    const NUF: Option<VmClass> = Some(VmClass::NonUserFacing);

    #[test]
    fn every_figure_is_a_mean_over_cores_and_time() {
        let mut past = Past::default();
        for n in 0..40 {
            // 40 × 2 core-hours at 0.8; 40 × 6 core-hours, half at 0.2 and half at 0.4.
            past.take(&vm(2, 3600, UF, Some(0.8), n));
            past.take(&vm(3, 7200, NUF, Some(if n % 2 == 0 { 0.2 } else { 0.4 }), 100 + n));
        }

        let found = past.estimate(Some(40.0 * 16.0 * 3600.0));
        let beta = found.beta.unwrap();
        assert!((beta.mean - 0.25).abs() < 1e-12 && beta.vms == 80, "{found:?}");
        assert!((found.alloc.unwrap() - 0.5).abs() < 1e-12);
        let (uf, nuf) = (found.util_user_facing.unwrap(), found.util_non_user_facing.unwrap());
        assert!((uf.mean - 0.8).abs() < 1e-12 && uf.error < 1e-12, "{uf:?}");

        // 0.1 of deviation over 40 VMs.
        assert!((nuf.mean - 0.3).abs() < 1e-12, "{nuf:?}");
        assert!((nuf.error - 0.1 / libm::sqrt(39.0)).abs() < 1e-12, "{nuf:?}");

        // All of one owner: nothing tells how owners differ.
        let mut one = Past::default();
        (0..40).for_each(|n| one.take(&vm(1, 60, NUF, Some(f64::from(n) / 40.0), 0)));
        assert_eq!(one.estimate(None).util_non_user_facing.unwrap().error, f64::INFINITY);
    }

    #[test]
    fn owners_count_by_what_their_vms_keep_busy() {
        let mut past = Past::default();
        for n in 0..20 {
            let owned = |owner, p95| PastVm { owner: Some(owner), ..vm(1, 60, NUF, Some(p95), n) };
            past.take(&owned(Owner::Internal, 0.6));
            past.take(&owned(Owner::Premium, 0.1));
            past.take(&owned(Owner::NonPremium, 0.3));
            // Neither a class without an owner nor user-facing VMs say who is capped first.
            past.take(&vm(9, 60, NUF, Some(1.0), n));
            past.take(&PastVm { class: UF, ..owned(Owner::Premium, 1.0) });
        }
        let found = past.estimate(None);
        let [internal, premium] =
            [found.internal_share, found.premium_share].map(|share| share.unwrap().mean);
        assert!((internal - 0.6).abs() < 1e-12 && (premium - 0.1).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn what_is_not_known_sheds_less_and_is_counted() {
        let mut past = Past::default();
        for n in 0..30 {
            past.take(&vm(1, 60, NUF, Some(0.5), n));
            past.take(&vm(1, 60, None, Some(0.9), n));
            past.take(&vm(1, 60, NUF, None, n));
            past.take(&vm(1, 0, NUF, Some(1.0), n));
        }
        (0..29).for_each(|n| past.take(&vm(1, 60, UF, Some(0.7), n)));
        let found = past.estimate(None);
        let counts = (found.vms, found.unlabelled, found.without_p95, found.without_time);
        assert_eq!(counts, (119, 30, 30, 30));
        // Those without a class count as user-facing, and are in no utilisation.
        assert!((found.beta.unwrap().mean - 59.0 / 119.0).abs() < 1e-12);
        assert!((found.util_non_user_facing.unwrap().mean - 0.5).abs() < 1e-12);
        assert_eq!((found.util_user_facing, found.alloc), (None, None), "29 are too few");
        assert_eq!(Past::default().estimate(None), Estimate::default());
    }
}
