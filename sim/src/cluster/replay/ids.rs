//! Ids of copies, and who comes together.

use std::collections::BTreeMap;

use ballast_placement::{DeploymentId, VmKey, VmRequest};

use super::ReplayOptions;
use super::error::ReplayError;
use crate::cluster::Arrival;

/// The first ids that no VM of the trace has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    vm: u64,
    batch: u64,
}

impl Strides {
    /// The last copy's largest ids must still be ids.
    pub(super) fn of(file: &str, vms: &[Arrival], options: &ReplayOptions) -> Result<Self, ReplayError> {
        let stride = |column, of: fn(&Arrival) -> u64| {
            let (repeat, largest) = (options.repeat, vms.iter().map(of).max().unwrap_or(0));
            let all = largest.checked_add(1).and_then(|all| all.checked_mul(u64::from(repeat)));

            if all.is_some() || repeat == 1 {
                Ok(largest.saturating_add(1))
            } else {
                Err(ReplayError::Ids { file: file.to_owned(), repeat, column, largest })
            }
        };

        Ok(Self { vm: stride("vm_id", |vm| vm.id)?, batch: stride("batch_id", |vm| vm.batch)? })
    }

    pub(super) const fn id(self, vm: &Arrival, copy: u64) -> u64 {
        vm.id + copy * self.vm
    }

    pub(super) const fn deployment(self, vm: &Arrival, copy: u64) -> DeploymentId {
        DeploymentId(vm.batch + copy * self.batch)
    }

    pub(super) fn request(self, vm: &Arrival, copy: u64) -> VmRequest {
        let deployment = Some(self.deployment(vm, copy));
        VmRequest { deployment, ..VmRequest::new(VmKey(self.id(vm, copy)), vm.resources) }
    }
}

/// The VMs of every batch.
#[derive(Debug, Default)]
pub(super) struct Batches<'a> {
    /// In the order of the batches' first VMs.
    pub(super) all: Vec<Vec<&'a Arrival>>,
    /// Where every batch is in `all`.
    pub(super) places: BTreeMap<u64, usize>,
}

impl<'a> Batches<'a> {
    pub(super) fn of(together: &'a [Arrival]) -> Self {
        let mut this = Self::default();
        for vm in together {
            let place = *this.places.entry(vm.batch).or_insert(this.all.len());
            if place == this.all.len() {
                this.all.push(Vec::new());
            }
            this.all[place].push(vm);
        }
        this
    }
}
