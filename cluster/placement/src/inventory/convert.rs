//! Between names and numbers, and what is checked on the way.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use ballast_types::{Instant, SplitMix64};

use super::names::check;
use super::{HostSpec, HostView, Inventory, InventoryError, NamedHost, NamedVm, VmSpec, VmTraits, VmView};
use crate::{
    ChassisId, DeploymentId, DomainId, EXTRAS, ExpectedEnd, Extras, Host, HostId, PlacementError, Resident,
    Resources, TenantId, VmKey, VmRequest,
};

/// No VM's demand is beyond this, in cores or cores².
const DEMAND_MAX: f64 = 1e9;

impl NamedHost {
    /// Whether this can be a host.
    ///
    /// # Errors
    /// Names the wrong value and what is allowed.
    pub fn check(&self) -> Result<(), InventoryError> {
        check("host", &self.name)?;
        check("chassis", &self.spec.chassis)?;
        self.spec.fault_domain.iter().try_for_each(|name| check("fault domain", name))?;
        self.spec.extras.keys().try_for_each(|name| check("resource", name))?;
        match self.spec.capacity.cores.milli() {
            0 => Err(InventoryError::NoCores { host: self.name.clone() }),
            _ => Ok(()),
        }
    }
}

/// Whether this can be a VM, whoever has it.
pub(super) fn check_spec(vm: &NamedVm) -> Result<(), InventoryError> {
    check("VM", &vm.name)?;
    vm.spec.deployment.iter().try_for_each(|name| check("deployment", name))?;
    vm.spec.tenant.iter().try_for_each(|name| check("tenant", name))?;
    vm.spec.extras.keys().try_for_each(|name| check("resource", name))?;
    let VmTraits { vm_type, labels, .. } = &vm.spec.traits;
    vm_type.iter().try_for_each(|name| check("VM type", name))?;
    labels.iter().flat_map(<[_; 2]>::from).try_for_each(|text| check("label", text))?;
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

/// A number for a host's name that is the same after every restart.
pub(super) fn label(name: &str) -> u64 {
    name.bytes().fold(SplitMix64::first(0), |hash, byte| SplitMix64::finalise(hash ^ u64::from(byte)))
}

impl Inventory {
    pub(super) fn view(&self, host: HostId) -> HostView<'_> {
        let (cluster, named) = (self.cluster(), &self.named[host.0 as usize]);
        HostView {
            name: &named.name,
            spec: &named.spec,
            room: cluster.host(host).room,
            free: cluster.free(host),
            taken: cluster.taken(host),
            vms: cluster.vms(host),
            server_score: cluster.balance().server_score(host),
            chassis_score: cluster.balance().chassis_score(host),
        }
    }

    /// Amounts by the names of their kinds.
    pub fn named_extras(&self, amounts: Extras) -> BTreeMap<String, u32> {
        let some = (0..).zip(amounts.0).filter(|(_, amount)| *amount > 0);
        some.map(|(kind, amount)| (self.kinds.name(kind).to_owned(), amount)).collect()
    }

    /// Amounts by the numbers of their kinds, and the first kind that nobody has.
    fn extras<'a>(&self, named: &'a BTreeMap<String, u32>) -> (Extras, Option<&'a str>) {
        let (mut amounts, mut unknown) = (Extras::NONE, None);
        for (name, amount) in named.iter().filter(|(_, amount)| **amount > 0) {
            match self.kinds.number(name) {
                Some(kind) => amounts.0[kind as usize] = *amount,
                None => unknown = unknown.or(Some(name.as_str())),
            }
        }
        (amounts, unknown)
    }

    /// The same, and these kinds are in use once more.
    fn take_kinds(&mut self, named: &BTreeMap<String, u32>) -> Extras {
        for (name, _) in named.iter().filter(|(_, amount)| **amount > 0) {
            self.kinds.take(name);
        }
        self.extras(named).0
    }

    pub(super) fn forget_kinds(&mut self, amounts: Extras) {
        for (kind, _) in (0..).zip(amounts.0).filter(|(_, amount)| *amount > 0) {
            self.kinds.give_back(kind);
        }
    }

    /// Whether all of these kinds can be counted, beside those that there are without one use of each of `before`.
    pub(super) fn check_kinds<'a>(
        &self,
        before: impl Iterator<Item = &'a BTreeMap<String, u32>>,
        all: impl Iterator<Item = &'a BTreeMap<String, u32>>,
    ) -> Result<(), InventoryError> {
        let mut given_back: BTreeMap<&str, u32> = BTreeMap::new();
        for (name, _) in before.flatten().filter(|(_, amount)| **amount > 0) {
            *given_back.entry(name).or_default() += 1;
        }
        let stays = |(name, number): &(&str, u64)| {
            self.kinds.uses(*number) > given_back.get(name).copied().unwrap_or(0)
        };

        let mut known: BTreeSet<&str> = self.kinds.after(None).filter(stays).map(|(name, _)| name).collect();
        for (name, _) in all.flatten().filter(|(_, amount)| **amount > 0) {
            if known.len() >= EXTRAS && !known.contains(name.as_str()) {
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                return Err(InventoryError::Kinds { name: name.clone(), known });
            }
            known.insert(name);
        }
        Ok(())
    }

    /// A host in numbers; its chassis, fault domain and kinds are in use once more.
    pub(super) fn take_host(&mut self, name: &str, spec: &HostSpec) -> Host {
        let extras = self.take_kinds(&spec.extras);
        let capacity = Resources { extras, ..spec.capacity };
        let domain = spec.fault_domain.as_ref().unwrap_or(&spec.chassis);
        Host {
            chassis: ChassisId(self.chassis.take(&spec.chassis) as u32),
            domain: DomainId(self.domains.take(domain) as u32),
            capacity,
            room: spec.overcommit.room(capacity),
            max_vms: spec.max_vms,
            label: Some(label(name)),
        }
    }

    /// Its chassis and fault domain are in use once less.
    pub(super) fn forget_host(&mut self, host: &Host) {
        self.chassis.give_back(u64::from(host.chassis.0));
        self.domains.give_back(u64::from(host.domain.0));
    }

    pub(super) fn vm_view<'a>(&'a self, name: &'a str, resident: &Resident) -> VmView<'a> {
        let Resident { vm, host, since } = *resident;
        VmView { name, host: self.host_name(host), spec: self.spec(resident), since, end: vm.end }
    }

    pub(super) fn spec(&self, resident: &Resident) -> VmSpec {
        let Resident { vm, since, .. } = resident;
        VmSpec {
            deployment: vm.deployment.map(|id| self.deployments.name(id.0).to_owned()),
            tenant: vm.tenant.map(|id| self.tenants.name(id.0).to_owned()),
            resources: Resources { extras: Extras::NONE, ..vm.resources },
            extras: self.named_extras(vm.resources.extras),
            known: vm.known,
            class: vm.class,
            p95: vm.p95,
            demand: vm.demand,
            lifetime: match vm.end {
                Some(ExpectedEnd::At(exit)) => Some(exit.since(*since)),
                Some(ExpectedEnd::Curve(_)) | None => None,
            },
            spread: vm.spread,
            domain_skew: vm.domain_skew,
            traits: self.traits.get(&vm.id).cloned().unwrap_or_default(),
        }
    }

    /// What is known of the end of a VM that came then: what was told, else what is predicted.
    pub(super) fn end(&self, spec: &VmSpec, since: Instant) -> Option<ExpectedEnd> {
        let curve = || self.lifetimes.as_ref()?.curve(spec, since).map(ExpectedEnd::Curve);
        spec.lifetime.map(|lifetime| ExpectedEnd::At(since + lifetime)).or_else(curve)
    }

    /// How much longer a VM that is not placed and would come now is expected to live; `None` where nobody knows.
    pub fn expected(&self, now: Instant, spec: &VmSpec) -> Option<Duration> {
        self.cluster().remaining(now, now, self.end(spec, now))
    }

    /// A VM that is not placed and would come now, in numbers that a new one would get.
    ///
    /// # Errors
    /// Where it asks for a resource that no host has.
    pub(super) fn unplaced_request(
        &self,
        now: Instant,
        name: &str,
        spec: &VmSpec,
    ) -> Result<VmRequest, InventoryError> {
        let deployment = spec.deployment.as_deref().map(|name| self.deployments.peek(name));
        let tenant = spec.tenant.as_deref().map(|name| self.tenants.peek(name));
        let key = VmKey(self.vms.fresh());
        match self.extras(&spec.extras) {
            (extras, None) => Ok(request(spec, key, deployment, tenant, extras, self.end(spec, now))),
            (_, Some(unknown)) => {
                Err(InventoryError::NotOffered { vm: name.to_owned(), name: unknown.to_owned() })
            }
        }
    }

    /// A VM that came then, with numbers for its names, which are then in use once more.
    pub(super) fn take(&mut self, spec: &VmSpec, key: VmKey, since: Instant) -> VmRequest {
        let deployment = spec.deployment.as_deref().map(|name| self.deployments.take(name));
        let tenant = spec.tenant.as_deref().map(|name| self.tenants.take(name));
        let extras = self.take_kinds(&spec.extras);
        request(spec, key, deployment, tenant, extras, self.end(spec, since))
    }

    /// The numbers of its names, but its own, are in use once less.
    pub(super) fn forget(&mut self, vm: &VmRequest) {
        vm.deployment.iter().for_each(|id| self.deployments.give_back(id.0));
        vm.tenant.iter().for_each(|id| self.tenants.give_back(id.0));
        self.forget_kinds(vm.resources.extras);
    }

    fn shown(&self, resources: Resources) -> String {
        let extras = self.named_extras(resources.extras).into_iter();
        let extras: Vec<String> = extras.map(|(name, amount)| format!(", {amount} {name}")).collect();
        format!("{resources}{}", extras.concat())
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
            let named = self.named.get(host.0 as usize);
            named.map_or_else(|| host.to_string(), |named| named.name.to_string())
        };

        match *error {
            PlacementError::UnknownHost { host, .. } => InventoryError::UnknownHost { host: name(host) },
            PlacementError::AlreadyPlaced { host, .. } => {
                InventoryError::AlreadyPlaced { vm, host: name(host) }
            }
            PlacementError::NotPlaced { .. } => InventoryError::UnknownVm { vm },
            PlacementError::Empty { .. } => InventoryError::Empty { vm },
            PlacementError::TooLarge { requested, largest, .. } => {
                let [requested, largest] = [requested, largest].map(|it| self.shown(it));
                InventoryError::TooLarge { vm, requested, largest }
            }
            PlacementError::Full { requested, host, free, .. } => {
                let [requested, free] = [requested, free].map(|it| self.shown(it));
                InventoryError::Full { vm, requested, host: name(host), free }
            }
            PlacementError::Crowded { host, max, .. } => {
                InventoryError::Crowded { vm, host: name(host), max }
            }
            PlacementError::NotEmpty { host, guests } => {
                InventoryError::NotEmpty { host: name(host), vms: guests }
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
    extras: Extras,
    end: Option<ExpectedEnd>,
) -> VmRequest {
    VmRequest {
        id,
        deployment: deployment.map(DeploymentId),
        tenant: tenant.map(TenantId),
        resources: Resources { extras, ..spec.resources },
        known: spec.known,
        class: spec.class,
        p95: spec.p95,
        demand: spec.demand,
        end,
        spread: spec.spread,
        domain_skew: spec.domain_skew,
    }
}
