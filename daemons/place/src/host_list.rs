//! The hosts of an inventory, made what a file lists, and added up for the status.

use std::collections::{BTreeMap, BTreeSet};

use ballast_placement::inventory::{HostSpec, NamedHost};
use ballast_placement::{HostState, Inventory, InventoryError};
use ballast_types::wire::{ChassisBalance, InventoryStatus};

use super::store::Record;
use crate::config::HostEntry;

/// Makes the hosts what a file says. Where it does not say whether VMs may come, that stays. One that it no
/// longer has is gone, or drains while it has VMs.
pub(super) fn follow(
    inventory: &mut Inventory,
    listed: &[HostEntry],
) -> Result<Option<Record>, InventoryError> {
    let mut set = Vec::new();
    for HostEntry { host, state, .. } in listed {
        let before = inventory.host(&host.name).map(|before| before.spec);
        let state = state.or(before.map(|before| before.state)).unwrap_or_default();
        let after = HostSpec { state, ..host.spec.clone() };
        if before != Some(&after) {
            set.push(NamedHost { name: host.name.clone(), spec: after });
        }
    }

    let told: BTreeSet<&str> = listed.iter().map(|entry| entry.host.name.as_str()).collect();
    let mut gone = vec![];
    for host in inventory.hosts().filter(|host| !told.contains(host.name)) {
        let leaves = HostSpec { state: HostState::Draining, ..host.spec.clone() };
        if host.vms == 0 {
            gone.push(host.name.to_owned());
        } else if leaves != *host.spec {
            set.push(NamedHost { name: host.name.to_owned(), spec: leaves });
        }
    }

    if set.is_empty() && gone.is_empty() {
        return Ok(None);
    }
    inventory.set_hosts(ballast_runtime::unix_now(), &set, &gone)?;

    Ok(Some(Record { hosts: set, gone_hosts: gone, ..Record::default() }))
}

/// The hosts that no drain may open again: their file closes them, or no longer has them.
pub(super) fn closed(inventory: &Inventory, listed: &[HostEntry]) -> BTreeSet<String> {
    let may_open = |entry: &&HostEntry| entry.state.is_none_or(|state| state == HostState::Open);
    let may_open: BTreeSet<&str> =
        listed.iter().filter(may_open).map(|entry| entry.host.name.as_str()).collect();
    let names = inventory.hosts().map(|host| host.name);
    names.filter(|name| !may_open.contains(name)).map(str::to_owned).collect()
}

pub(super) fn status(inventory: &Inventory) -> InventoryStatus {
    let mut all = InventoryStatus::default();
    let mut chassis: BTreeMap<&str, ChassisBalance> = BTreeMap::new();
    for host in inventory.hosts() {
        all.hosts += 1;
        match host.spec.state {
            HostState::Open => {}
            HostState::Cordoned => all.cordoned_hosts += 1,
            HostState::Draining => all.draining_hosts += 1,
        }

        let (cores, memory_gb) = (host.spec.capacity.cores.cores(), host.spec.capacity.memory.gb());
        let taken = host.taken;
        all.used_hosts += u64::from(host.vms > 0);
        all.overcommitted_hosts += u64::from(taken.exceed(host.room));
        all.vms += u64::from(host.vms);
        all.cores += cores;
        all.memory_gb += memory_gb;
        all.allocated_cores += taken.milli_cores as f64 / 1e3;
        all.allocated_memory_gb += taken.memory_kb as f64 / 1e6;
        let its = chassis.entry(&host.spec.chassis).or_default();
        its.hosts += 1;
        its.vms += u64::from(host.vms);
        its.cores += cores;
        its.allocated_cores += taken.milli_cores as f64 / 1e3;
        its.score = host.chassis_score;
    }

    (all.chassis_score_std, all.server_score_std) = inventory.balance();
    let named = |(name, its): (&str, ChassisBalance)| ChassisBalance { chassis: name.into(), ..its };
    all.chassis = chassis.into_iter().map(named).collect();

    all
}
