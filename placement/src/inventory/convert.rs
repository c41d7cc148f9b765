//! Between names and numbers, and what is checked on the way.

use ballast_types::Instant;

use super::names::check;
use super::{HostView, Inventory, InventoryError, NamedHost, NamedVm, VmSpec, VmView};
use crate::{DeploymentId, HostId, PlacementError, Resident, TenantId, VmKey, VmRequest};

/// No VM's demand is beyond this, in cores or cores².
const DEMAND_MAX: f64 = 1e9;

/// Whether this can be a host.
pub(super) fn check_host(host: &NamedHost) -> Result<(), InventoryError> {
    check("host", &host.name)?;
    check("chassis", &host.spec.chassis)?;
    if host.spec.capacity.cores.milli() == 0 {
        return Err(InventoryError::NoCores { host: host.name.clone() });
    }
    Ok(())
}

/// Whether this can be a VM, whoever has it.
pub(super) fn check_spec(vm: &NamedVm) -> Result<(), InventoryError> {
    check("VM", &vm.name)?;
    vm.spec.deployment.iter().try_for_each(|name| check("deployment", name))?;
    vm.spec.tenant.iter().try_for_each(|name| check("tenant", name))?;
    if vm.spec.resources.cores.milli() == 0 {
        return Err(InventoryError::Empty { vm: vm.name.clone() });
    }
    check_demand(&vm.name, &vm.spec)
}

pub(super) fn check_demand(name: &str, spec: &VmSpec) -> Result<(), InventoryError> {
    let Some(demand) = spec.demand else { return Ok(()) };
    let wrong = [("demand.mean", demand.mean), ("demand.variance", demand.variance)]
        .into_iter()
        .find(|(_, value)| !(0.0..=DEMAND_MAX).contains(value));
    match wrong {
        None => Ok(()),
        Some((field, value)) => Err(InventoryError::Demand { vm: name.to_owned(), field, value }),
    }
}

impl Inventory {
    pub(super) fn view(&self, host: HostId) -> HostView<'_> {
        let (cluster, named) = (self.cluster(), &self.hosts[host.0 as usize]);
        HostView {
            name: &named.name,
            chassis: &self.chassis[named.chassis.0 as usize],
            capacity: cluster.host(host).capacity,
            free: cluster.free(host),
            taken: cluster.taken(host),
            state: cluster.state(host),
            vms: cluster.vms(host),
            server_score: self.balance.server_score(host),
            chassis_score: self.balance.chassis_score(host),
        }
    }

    pub(super) fn vm_view<'a>(&'a self, name: &'a str, resident: &Resident) -> VmView<'a> {
        let Resident { host, since, .. } = *resident;
        VmView { name, host: self.host_name(host), spec: self.spec(resident), since }
    }

    pub(super) fn spec(&self, resident: &Resident) -> VmSpec {
        let Resident { vm, since, .. } = resident;
        VmSpec {
            deployment: vm.deployment.map(|id| self.deployments.name(id.0).to_owned()),
            tenant: vm.tenant.map(|id| self.tenants.name(id.0).to_owned()),
            resources: vm.resources,
            known: vm.known,
            class: vm.class,
            p95: vm.p95,
            demand: vm.demand,
            lifetime: vm.exit.map(|exit| exit.since(*since)),
            spread: vm.spread,
        }
    }

    /// A VM that is not placed and would come now, in numbers that a new one would get.
    pub(super) fn unplaced_request(&self, now: Instant, spec: &VmSpec) -> VmRequest {
        let deployment = spec.deployment.as_deref().map(|name| self.deployments.peek(name));
        let tenant = spec.tenant.as_deref().map(|name| self.tenants.peek(name));
        request(spec, VmKey(self.vms.fresh()), deployment, tenant, now)
    }

    /// A VM that came then, with numbers for its deployment and tenant, which are then in use once more.
    pub(super) fn take(&mut self, spec: &VmSpec, key: VmKey, since: Instant) -> VmRequest {
        let deployment = spec.deployment.as_deref().map(|name| self.deployments.take(name));
        let tenant = spec.tenant.as_deref().map(|name| self.tenants.take(name));
        request(spec, key, deployment, tenant, since)
    }

    /// The numbers of its deployment and tenant are in use once less.
    pub(super) fn forget(&mut self, vm: &VmRequest) {
        vm.deployment.iter().for_each(|id| self.deployments.give_back(id.0));
        vm.tenant.iter().for_each(|id| self.tenants.give_back(id.0));
    }

    pub(super) fn check_new(&self, vm: &NamedVm) -> Result<(), InventoryError> {
        check_spec(vm)?;
        match self.vm(&vm.name) {
            None => Ok(()),
            Some(there) => {
                let (vm, host) = (vm.name.clone(), there.host.to_owned());
                Err(InventoryError::AlreadyPlaced { vm, host })
            }
        }
    }

    /// What the numbers in an error stand for; `vm` is the VM that it is about.
    pub(super) fn by_name(&self, vm: &str, error: &PlacementError) -> InventoryError {
        let vm = vm.to_owned();
        let name = |host: HostId| {
            let named = self.hosts.get(host.0 as usize);
            named.map_or_else(|| host.to_string(), |named| named.name.clone())
        };

        match *error {
            PlacementError::UnknownHost { host, .. } => InventoryError::UnknownHost { host: name(host) },
            PlacementError::AlreadyPlaced { host, .. } => {
                InventoryError::AlreadyPlaced { vm, host: name(host) }
            }
            PlacementError::NotPlaced { .. } => InventoryError::UnknownVm { vm },
            PlacementError::Empty { .. } => InventoryError::Empty { vm },
            PlacementError::TooLarge { requested, largest, .. } => {
                InventoryError::TooLarge { vm, requested, largest }
            }
            PlacementError::Full { requested, host, free, .. } => {
                InventoryError::Full { vm, requested, host: name(host), free }
            }
            PlacementError::NoHost { .. } => InventoryError::NoHost { vm, refused: Vec::new(), short: None },
        }
    }
}

fn request(
    spec: &VmSpec,
    id: VmKey,
    deployment: Option<u64>,
    tenant: Option<u64>,
    since: Instant,
) -> VmRequest {
    VmRequest {
        id,
        deployment: deployment.map(DeploymentId),
        tenant: tenant.map(TenantId),
        resources: spec.resources,
        known: spec.known,
        class: spec.class,
        p95: spec.p95,
        demand: spec.demand,
        exit: spec.lifetime.map(|lifetime| since + lifetime),
        spread: spec.spread,
    }
}
