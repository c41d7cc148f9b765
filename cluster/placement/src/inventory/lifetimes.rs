//! How long VMs live of which nobody has told it, and the deadlines of rules that go by it.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use ballast_types::Instant;
use ballast_types::survival::{CurveId, Curves};

use super::{Inventory, VmSpec, VmTraits};
use crate::{ExpectedEnd, Policy, VmKey};

/// Predicts lifetimes as curves of survival.
pub trait PredictLifetimes: fmt::Debug + Send + Sync {
    /// All curves that it names.
    fn curves(&self) -> Arc<Curves>;
    /// The curve of a VM that came then; `None` where nothing can be said.
    fn curve(&self, vm: &VmSpec, since: Instant) -> Option<CurveId>;
}

impl Inventory {
    /// Goes on with other predictions, or none: every VM of which nobody has told when it will end has what these say of
    /// it. Rules are made anew.
    pub fn set_lifetimes(&mut self, now: Instant, lifetimes: Option<Arc<dyn PredictLifetimes>>) {
        self.lifetimes = lifetimes;
        let curves = self.lifetimes.as_ref().map(|lifetimes| lifetimes.curves()).unwrap_or_default();

        let residents = self.cluster().all().into_iter();
        let ends: BTreeMap<VmKey, Option<ExpectedEnd>> =
            residents.map(|there| (there.vm.id, self.end(&self.spec(&there), there.since))).collect();
        let policy = self.policy;
        self.scheduler.set_curves(
            curves,
            |there| ends.get(&there.vm.id).copied().flatten(),
            |cluster| policy.rules(cluster),
        );

        self.catch_up(now);
        self.tell_measured(now);
    }

    /// How hosts are chosen.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Says how long VMs live of which nobody has told it.
    pub fn lifetimes(&self) -> Option<&Arc<dyn PredictLifetimes>> {
        self.lifetimes.as_ref()
    }

    /// Wakes rules whose time has come: what is asked after this is answered by what is known now.
    pub fn catch_up(&mut self, now: Instant) {
        if self.scheduler.poll_timeout().is_some_and(|due| due <= now) {
            self.scheduler.handle_timeout(now);
        }
    }

    pub(super) fn note_traits(&mut self, vm: VmKey, traits: &VmTraits) {
        if *traits == VmTraits::NONE {
            self.traits.remove(&vm);
        } else {
            self.traits.insert(vm, traits.clone());
        }
    }

    /// A VM's own name is no longer in use, and what was kept by it.
    pub(super) fn drop_name(&mut self, vm: VmKey) {
        self.vms.give_back(vm.0);
        self.traits.remove(&vm);
    }
}
