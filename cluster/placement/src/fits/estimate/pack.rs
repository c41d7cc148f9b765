//! VMs onto machines, one after the other.

use super::{Load, Moments, Promise};

/// Which machine takes a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heuristic {
    /// The first of those that keep the promise.
    FirstFit,
    /// The one with the highest risk among those that keep it, the first of several.
    BestFit,
}

/// A machine with its VMs.
#[derive(Clone, Debug, Default)]
pub struct Machine<L> {
    pub(super) load: L,
    pub(super) vms: Vec<usize>,
}

impl<L: Load> Machine<L> {
    /// The VMs, as indices into what was packed, in the order in which they came.
    pub fn vms(&self) -> &[usize] {
        &self.vms
    }

    /// The risk that was estimated.
    pub fn risk(&self, promise: &Promise) -> f64 {
        self.load.risk(None, promise)
    }

    pub(super) fn put(&mut self, vm: usize, usage: &L::Usage) {
        self.load.add(usage);
        self.vms.push(vm);
    }
}

/// Packs VMs in this order; a VM goes to a new machine where none keeps the promise with it. A VM that does not even fit an
/// empty machine has one for itself, which breaks the promise.
pub fn pack<L: Load>(
    vms: &[L::Usage],
    order: impl IntoIterator<Item = usize>,
    promise: &Promise,
    heuristic: Heuristic,
) -> Vec<Machine<L>> {
    let mut machines: Vec<Machine<L>> = Vec::new();
    for vm in order {
        let usage = &vms[vm];
        let found = match heuristic {
            Heuristic::FirstFit => machines.iter().position(|machine| machine.load.fits(usage, promise)),
            Heuristic::BestFit => best(&machines, usage, promise),
        };

        let machine = found.unwrap_or_else(|| {
            machines.push(Machine { load: L::default(), vms: Vec::new() });
            machines.len() - 1
        });
        machines[machine].put(vm, usage);
    }
    machines
}

fn best<L: Load>(machines: &[Machine<L>], usage: &L::Usage, promise: &Promise) -> Option<usize> {
    let mut best: Option<(f64, usize)> = None;
    for (n, machine) in machines.iter().enumerate() {
        let risk = machine.load.risk(Some(usage), promise);
        if risk <= promise.target() && best.is_none_or(|(highest, _)| risk > highest) {
            best = Some((risk, n));
        }
    }
    best.map(|(_, machine)| machine)
}

/// The VMs with the largest variance for their mean first: those are then together, on machines that pay for them. This needs
/// fewer machines where VMs are independent, and more where they are not.
pub fn by_variance_to_mean(vms: &[Moments]) -> Vec<usize> {
    let ratio = |vm: usize| {
        let Some(vm) = vms.get(vm) else { return 0.0 };
        if vm.mean() > 0.0 { vm.variance() / vm.mean() } else { 0.0 }
    };
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by(|a, b| ratio(*b).total_cmp(&ratio(*a)));
    order
}
