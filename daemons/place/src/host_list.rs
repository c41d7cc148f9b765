//! The hosts of an inventory, made what a file lists, and added up for the status.

use std::collections::BTreeMap;

use ballast_placement::inventory::{HostSpec, HostView, NamedHost, Snapshot};
use ballast_placement::{HostState, Inventory, InventoryError};
use ballast_types::wire::{ChassisBalance, InventoryStatus};

use super::store::Record;
use crate::config::HostEntry;

/// What a host is, without its VMs.
pub(super) fn spec(host: &HostView<'_>) -> HostSpec {
    HostSpec { chassis: host.chassis.to_owned(), capacity: host.capacity, state: host.state }
}

/// Makes the hosts what a file says. Where it does not say whether VMs may come, that stays. One that it no
/// longer has is gone, or drains while it has VMs.
pub(super) fn follow(
    inventory: &mut Inventory,
    listed: &[HostEntry],
) -> Result<Option<Record>, InventoryError> {
    let before = inventory.snapshot();
    let mut after: BTreeMap<String, HostSpec> = BTreeMap::new();
    for HostEntry { host, state, .. } in listed {
        let before = inventory.host(&host.name).map(|host| host.state);
        let state = state.or(before).unwrap_or_default();
        after.insert(host.name.clone(), HostSpec { state, ..host.spec.clone() });
    }

    let mut gone = vec![];
    for host in inventory.hosts().filter(|host| !after.contains_key(host.name)).collect::<Vec<_>>() {
        if host.vms == 0 {
            gone.push(host.name.to_owned());
        } else {
            let leaves = HostSpec { state: HostState::Draining, ..spec(&host) };
            after.insert(host.name.to_owned(), leaves);
        }
    }

    let hosts: Vec<NamedHost> = after.into_iter().map(|(name, spec)| NamedHost { name, spec }).collect();
    if hosts == before.hosts {
        return Ok(None);
    }
    let is_new = |host: &&NamedHost| {
        let before = inventory.host(&host.name).as_ref().map(spec);
        before.as_ref() != Some(&host.spec)
    };

    let set = hosts.iter().filter(is_new).cloned().collect();
    inventory.replace(ballast_runtime::unix_now(), &Snapshot { hosts, vms: before.vms })?;

    Ok(Some(Record::Hosts { set, gone }))
}

/// What status says of all of it.
pub(super) fn status(inventory: &Inventory) -> InventoryStatus {
    let mut all = InventoryStatus::default();
    let mut chassis: BTreeMap<&str, ChassisBalance> = BTreeMap::new();
    for host in inventory.hosts() {
        all.hosts += 1;
        match host.state {
            HostState::Open => {}
            HostState::Cordoned => all.cordoned_hosts += 1,
            HostState::Draining => all.draining_hosts += 1,
        }

        let (cores, memory_gb) = (host.capacity.cores.cores(), host.capacity.memory.gb());
        let taken = host.taken;
        let over = taken.milli_cores > u64::from(host.capacity.cores.milli())
            || taken.memory_kb > host.capacity.memory.kb();
        all.used_hosts += u64::from(host.vms > 0);
        all.overcommitted_hosts += u64::from(over);
        all.vms += u64::from(host.vms);
        all.cores += cores;
        all.memory_gb += memory_gb;
        all.allocated_cores += taken.milli_cores as f64 / 1e3;
        all.allocated_memory_gb += taken.memory_kb as f64 / 1e6;
        let its = chassis.entry(host.chassis).or_default();
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
