//! VMs that share cores: how much of a core's time each of their CPUs gets.
//!
//! A scheduler gives all that want to run alike. So while the CPUs of a pool's VMs that want to run are more than its
//! cores, each gets the same part of a core. Who wants to run is known from the step before.

use crate::plant::vm::SimVm;

/// The cores of a pool, and what was wanted of them.
#[derive(Clone, Debug, Default)]
struct Pool {
    cores: Vec<usize>,
    vcpus: f64,
    /// CPUs that wanted to run in this step, and in the one before.
    wanted: f64,
    part: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sharing(Vec<Pool>);

impl Sharing {
    pub(super) fn find(&mut self, vms: &mut [SimVm]) {
        self.0.clear();
        for vm in vms {
            vm.pool = None;
            let Some(vcpus) = vm.vcpus.filter(|_| !vm.cores.is_empty()) else { continue };
            let known = self.0.iter().position(|pool| pool.cores == vm.cores);
            let index = known.unwrap_or(self.0.len());
            if known.is_none() {
                self.0.push(Pool { cores: vm.cores.clone(), part: 1.0, ..Pool::default() });
            }
            self.0[index].vcpus += f64::from(vcpus);
            vm.pool = Some(index);
        }
    }

    pub(super) fn begin(&mut self) {
        for pool in &mut self.0 {
            pool.part = (pool.cores.len() as f64 / pool.wanted.max(f64::MIN_POSITIVE)).min(1.0);
            pool.wanted = 0.0;
        }
    }

    /// What a CPU of this VM gets of a core's time while it wants to run.
    pub(super) fn part(&self, vm: &SimVm) -> f64 {
        vm.pool.map_or(1.0, |pool| self.0[pool].part)
    }

    /// So many CPUs of a VM want to run in this step.
    pub(super) fn want(&mut self, vm: &SimVm, cpus: f64) {
        if let Some(pool) = vm.pool {
            self.0[pool].wanted += cpus;
        }
    }

    /// A VM's part of the cores that it shares, by the CPUs of all.
    pub(super) fn own(&self, vm: &SimVm) -> f64 {
        let all = vm.pool.map(|pool| self.0[pool].vcpus);
        all.map_or(1.0, |all| f64::from(vm.vcpus.unwrap_or(0)) / all.max(1.0))
    }
}
