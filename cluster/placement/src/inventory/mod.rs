//! Hosts and VMs by name, placed by the standard [`Policy`].
//!
//! To add, remove, resize or re-rack a host costs what that host has. Ties are the same after a restart, whatever was told
//! first: they hash the names of hosts. Ties by id go by the order of names, so a host whose name is not the last
//! renumbers all of them ([`crate::Ties::Id`] is there to compare with). VMs, deployments and tenants get numbers that are
//! never given twice.
//!
//! Every call is checked whole before anything is changed: what fails changes nothing.

mod convert;
mod drain;
mod error;
mod lifetimes;
mod measured;
mod names;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ballast_types::Instant;

use convert::{check_demand, check_spec};
pub use error::InventoryError;
pub use lifetimes::PredictLifetimes;
use names::Names;
pub use types::{
    HostSpec, HostView, NamedHost, NamedVm, Overcommit, Placed, Ratio, Snapshot, VmSpec, VmTraits, VmView,
};

use crate::measured::Measured;
use crate::{
    Cluster, HostId, HostState, PlacementError, Policy, Resident, Scheduler, Scores, Shortage, Ties, Verdict,
    VmKey, VmRequest,
};

/// How many hosts each constraint refuses, and what there is too little of, where room alone is missing.
type WhyNoHost = (Vec<(&'static str, usize)>, Option<Shortage>);

fn why_no_host(scheduler: &Scheduler, now: Instant, vm: &VmRequest) -> WhyNoHost {
    let cluster = scheduler.cluster();
    let refused = scheduler.score(now, vm, 0).map_or(Vec::new(), |scores| scores.refused);
    let by_room = |(fit, hosts): &(&str, usize)| matches!(*fit, "capacity" | "open") || *hosts == 0;
    let is_open = |host| cluster.state(host) == HostState::Open;
    let room = refused.iter().all(by_room) && cluster.ids().any(is_open);
    (refused, room.then(|| cluster.shortage(&[vm.resources])))
}

/// Whether no two of these have one name.
fn check_twice<'a>(
    what: &'static str,
    mut names: impl Iterator<Item = &'a str>,
) -> Result<(), InventoryError> {
    let mut seen = BTreeSet::new();
    let twice = names.find(|name| !seen.insert(*name));
    twice.map_or(Ok(()), |name| Err(InventoryError::Twice { what, name: name.to_owned() }))
}

/// The inventory. Nothing is changed by a call that fails.
#[derive(Debug)]
pub struct Inventory {
    policy: Policy,
    hosts: BTreeMap<Arc<str>, HostId>,
    /// By the host's number; what stands at a number that no host has means nothing.
    named: Vec<Named>,
    chassis: Names,
    domains: Names,
    /// Kinds of resources beside cores and memory.
    kinds: Names,
    vms: Names,
    deployments: Names,
    tenants: Names,
    /// Of VMs that have any.
    traits: BTreeMap<VmKey, VmTraits>,
    /// Says how long VMs live of which nobody has told it.
    lifetimes: Option<Arc<dyn PredictLifetimes>>,
    /// What was last measured on every host, by its name.
    measured: BTreeMap<String, Measured<String>>,
    scheduler: Scheduler,
}

#[derive(Debug)]
struct Named {
    name: Arc<str>,
    spec: HostSpec,
}

impl Inventory {
    /// Without hosts.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            hosts: BTreeMap::new(),
            named: Vec::new(),
            chassis: Names::dense(),
            domains: Names::dense(),
            kinds: Names::dense(),
            vms: Names::default(),
            deployments: Names::default(),
            tenants: Names::default(),
            traits: BTreeMap::new(),
            lifetimes: None,
            measured: BTreeMap::new(),
            scheduler: policy.scheduler(Cluster::new(&[])),
        }
    }

    /// Without hosts, of the same policy, and with the same predictions.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let mut empty = Self::new(self.policy);
        empty.set_lifetimes(Instant::ZERO, self.lifetimes.clone());
        empty
    }

    /// Free and taken, in numbers.
    pub fn cluster(&self) -> &Cluster {
        self.scheduler.cluster()
    }
    /// Every host, in the order of names.
    pub fn hosts(&self) -> impl Iterator<Item = HostView<'_>> {
        self.hosts.values().map(|host| self.view(*host))
    }
    /// A host by its name.
    pub fn host(&self, name: &str) -> Option<HostView<'_>> {
        self.find(name).map(|host| self.view(host))
    }
    /// The name of a host of [`Inventory::score`].
    ///
    /// # Panics
    /// Where there is no such host.
    pub fn host_name(&self, host: HostId) -> &str {
        &self.named[host.0 as usize].name
    }
    /// The name of the chassis of a host of [`Inventory::score`].
    ///
    /// # Panics
    /// Where there is no such host.
    pub fn chassis_of(&self, host: HostId) -> &str {
        &self.named[host.0 as usize].spec.chassis
    }
    /// Every VM, in the order of names.
    pub fn vms(&self) -> impl Iterator<Item = VmView<'_>> {
        self.vms_after(None)
    }
    /// The VMs after this name, in the order of names.
    pub fn vms_after(&self, name: Option<&str>) -> impl Iterator<Item = VmView<'_>> {
        let view = |(name, key)| self.cluster().resident(VmKey(key)).map(|it| self.vm_view(name, &it));
        self.vms.after(name).filter_map(view)
    }
    /// The VMs of these hosts, in the order of names.
    pub fn vms_of<'a>(&self, hosts: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = VmView<'_>> {
        let hosts: BTreeSet<HostId> = hosts.into_iter().filter_map(|host| self.find(host)).collect();
        let residents = hosts.into_iter().flat_map(|host| self.cluster().residents_of(host));
        let named = residents.map(|resident| (self.vms.name(resident.vm.id.0), resident));
        let named: BTreeMap<&str, Resident> = named.collect();
        named.into_iter().map(|(name, resident)| self.vm_view(name, &resident))
    }
    /// A VM by its name.
    pub fn vm(&self, name: &str) -> Option<VmView<'_>> {
        let number = self.vms.number(name)?;
        Some(self.vm_view(self.vms.name(number), &self.cluster().resident(VmKey(number))?))
    }
    /// How evenly power is spread: the standard deviations of κ over chassis, and of η over servers.
    pub fn balance(&self) -> (f64, f64) {
        self.cluster().balance().deviations()
    }
    /// All that is known.
    pub fn snapshot(&self) -> Snapshot {
        let host = |view: HostView<'_>| NamedHost { name: view.name.to_owned(), spec: view.spec.clone() };
        let vm = |view: VmView<'_>| Placed {
            vm: NamedVm { name: view.name.to_owned(), spec: view.spec },
            host: view.host.to_owned(),
            since: view.since,
        };
        Snapshot { hosts: self.hosts().map(host).collect(), vms: self.vms().map(vm).collect() }
    }

    /// Replaces the whole inventory. VMs keep their hosts, even without room.
    ///
    /// # Errors
    /// Names the first host or VM that is wrong, is listed twice, or is on a host that is not in the list.
    pub fn replace(&mut self, now: Instant, snapshot: &Snapshot) -> Result<(), InventoryError> {
        let mut fresh = self.emptied();
        // In the order of names, so that the same list in another order makes the same.
        let mut hosts: Vec<&NamedHost> = snapshot.hosts.iter().collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        check_twice("host", hosts.iter().map(|host| host.name.as_str()))?;
        for host in hosts {
            fresh.set_host(now, &host.name, &host.spec)?;
        }

        let mut vms: Vec<&Placed> = snapshot.vms.iter().collect();
        vms.sort_by(|a, b| a.vm.name.cmp(&b.vm.name));
        check_twice("VM", vms.iter().map(|placed| placed.vm.name.as_str()))?;
        for placed in vms {
            fresh.observe(placed.since, &placed.vm, &placed.host)?;
        }
        fresh.catch_up(now);
        fresh.measured = core::mem::take(&mut self.measured);
        fresh.tell_measured(now);
        *self = fresh;

        Ok(())
    }

    /// Takes note of a host, new or otherwise than before. One that is now smaller than what its VMs take keeps them, and
    /// gets no more.
    ///
    /// # Errors
    /// Where a name is none, the host has no cores, or there are too many kinds of resources.
    pub fn set_host(&mut self, now: Instant, name: &str, spec: &HostSpec) -> Result<(), InventoryError> {
        self.set_hosts(now, &[NamedHost { name: name.to_owned(), spec: spec.clone() }], &[])
    }

    /// Takes note of hosts, as [`Inventory::set_host`] does, and forgets others, which are empty: all or none.
    ///
    /// # Errors
    /// Names the first that is wrong, or is to go and is not known or has VMs.
    pub fn set_hosts(
        &mut self,
        now: Instant,
        set: &[NamedHost],
        gone: &[String],
    ) -> Result<(), InventoryError> {
        set.iter().try_for_each(NamedHost::check)?;
        check_twice("host", set.iter().map(|host| host.name.as_str()))?;
        for name in gone {
            let host = self.host_id(name)?;
            self.check_empty(host)?;
        }

        // What these hosts have now makes room for what they will have.
        let is_other = |host: &&NamedHost| self.host(&host.name).is_some_and(|now| *now.spec != host.spec);
        let others = set.iter().filter(is_other).map(|host| &host.name);
        let before: Vec<HostId> = others.chain(gone).filter_map(|name| self.find(name)).collect();
        let specs = before.iter().map(|host| &self.named[host.0 as usize].spec.extras);
        self.check_kinds(specs, set.iter().map(|host| &host.spec.extras))?;
        for host in before {
            self.forget_kinds(self.cluster().host(host).capacity.extras);
        }

        for name in gone {
            let host = self.host_id(name)?;
            self.drop_host(now, host)?;
        }
        set.iter().try_for_each(|host| self.note_host(now, host))
    }

    /// A host that was checked; what it had before is no longer in use.
    fn note_host(&mut self, now: Instant, told: &NamedHost) -> Result<(), InventoryError> {
        let NamedHost { name, spec } = told;
        let by_name = |this: &Self, error| this.by_name("", &error);
        match self.find(name) {
            Some(id) => {
                let before = core::mem::replace(&mut self.named[id.0 as usize].spec, spec.clone());
                if before != *spec {
                    let (old, new) = (*self.cluster().host(id), self.take_host(name, spec));
                    let changed = self.scheduler.change_host(now, id, &new);
                    changed.map_err(|error| by_name(self, error))?;
                    self.forget_host(&old);
                }
                self.scheduler.set_state(id, spec.state).map_err(|error| by_name(self, error))
            }
            None if self.policy.ties == Ties::Id && !self.comes_last(name) => {
                let mut all = self.snapshot();
                all.hosts.push(told.clone());
                self.replace(now, &all)
            }
            None => {
                let host = self.take_host(name, spec);
                let id = self.scheduler.add_host(now, &host, spec.state);
                let named = Named { name: Arc::from(name.as_str()), spec: spec.clone() };
                self.hosts.insert(Arc::clone(&named.name), id);
                match self.named.get_mut(id.0 as usize) {
                    Some(old) => *old = named,
                    None => self.named.push(named),
                }
                Ok(())
            }
        }
    }

    /// Whether a new host of this name gets the highest number.
    fn comes_last(&self, name: &str) -> bool {
        let last = self.hosts.last_key_value();
        self.named.len() == self.hosts.len() && last.is_none_or(|(last, _)| &**last < name)
    }

    fn check_empty(&self, host: HostId) -> Result<(), InventoryError> {
        match self.cluster().vms(host) {
            0 => Ok(()),
            vms => Err(InventoryError::NotEmpty { host: self.host_name(host).to_owned(), vms }),
        }
    }

    /// A host without VMs goes, whose kinds are no longer in use; what is held there is released.
    fn drop_host(&mut self, now: Instant, host: HostId) -> Result<(), InventoryError> {
        let held: Vec<_> = self.scheduler.holds().filter(|it| it.host == host).map(|it| it.vm.id).collect();
        for vm in held {
            self.scheduler.cancel_move(now, vm);
        }

        let gone = self.scheduler.remove_host(now, host).map_err(|error| self.by_name("", &error))?;
        self.forget_host(&gone);
        self.hosts.remove(&self.named[host.0 as usize].name);
        Ok(())
    }

    /// Forgets a host: an empty one, or `with_vms` one and all its VMs; these come back, in the order of names.
    ///
    /// # Errors
    /// Where it is not known, or has VMs that nobody has told to forget.
    pub fn remove_host(
        &mut self,
        now: Instant,
        name: &str,
        with_vms: bool,
    ) -> Result<Vec<Placed>, InventoryError> {
        let host = self.host_id(name)?;
        if !with_vms {
            self.check_empty(host)?;
        }
        let here: Vec<String> = self.vms_of([name]).map(|vm| vm.name.to_owned()).collect();
        let gone = here.iter().map(|vm| self.remove(now, vm)).collect::<Result<_, _>>()?;
        self.forget_kinds(self.cluster().host(host).capacity.extras);
        self.drop_host(now, host)?;
        Ok(gone)
    }

    /// The best `top` hosts for a VM, with reasons; `name` is what errors call it. None fits: the list is empty, and
    /// says why.
    ///
    /// # Errors
    /// Where the VM takes no cores, or is larger than every host.
    pub fn score(
        &self,
        now: Instant,
        name: &str,
        spec: &VmSpec,
        top: usize,
    ) -> Result<Scores, InventoryError> {
        check_demand(name, spec)?;
        let scores = self.scheduler.score(now, &self.unplaced_request(now, name, spec)?, top);
        let mut scores = scores.map_err(|error| self.by_name(name, &error))?;
        scores.hosts.iter_mut().for_each(|scored| self.name_host(scored.host, &mut scored.verdicts));
        Ok(scores)
    }

    /// Why a host may not have a VM: each constraint that refuses, with its reason. None does: it may.
    ///
    /// # Errors
    /// Where the host is not known, or no host has what the VM asks for.
    pub fn refusals(
        &self,
        now: Instant,
        spec: &VmSpec,
        host: &str,
    ) -> Result<Vec<(&'static str, String)>, InventoryError> {
        let host = self.host_id(host)?;
        let refusals = self.scheduler.refusals(now, &self.unplaced_request(now, "", spec)?, host);
        refusals.map_err(|error| self.by_name("", &error))
    }

    /// What every rule says of a VM on this host, in the order in which they decide.
    ///
    /// # Errors
    /// Where the host is not known, or no host has what the VM asks for.
    pub fn explain(&self, now: Instant, spec: &VmSpec, host: &str) -> Result<Vec<Verdict>, InventoryError> {
        let host = self.host_id(host)?;
        let verdicts = self.scheduler.explain(now, &self.unplaced_request(now, "", spec)?, host);
        let mut verdicts = verdicts.map_err(|error| self.by_name("", &error))?;
        self.name_host(host, &mut verdicts);
        Ok(verdicts)
    }

    /// Rules know no names: where one begins with the host, its name stands there.
    fn name_host(&self, host: HostId, verdicts: &mut [Verdict]) {
        for verdict in verdicts {
            if let Some(rest) = verdict.reason.strip_prefix("the host ") {
                verdict.reason = format!("{} {rest}", self.host_name(host));
            }
        }
    }

    /// How these hosts stand for a VM, in their order: 0 is the best, the next is 1, hosts that no rule tells apart stand
    /// alike. Whether they fit is not asked.
    ///
    /// # Errors
    /// Where a host is not known, or no host has what the VM asks for.
    pub fn standings(
        &self,
        now: Instant,
        spec: &VmSpec,
        hosts: &[&str],
    ) -> Result<Vec<usize>, InventoryError> {
        let hosts: Vec<HostId> = hosts.iter().map(|host| self.host_id(host)).collect::<Result<_, _>>()?;
        Ok(self.scheduler.standings(now, &self.unplaced_request(now, "", spec)?, &hosts))
    }

    /// Places all of these VMs, or none: the names of their hosts, in their order.
    ///
    /// # Errors
    /// Names the first VM that is wrong, is placed already, or finds no host.
    pub fn place(&mut self, now: Instant, vms: &[NamedVm]) -> Result<Vec<String>, InventoryError> {
        check_twice("VM", vms.iter().map(|vm| vm.name.as_str()))?;
        for vm in vms {
            self.check_new(vm)?;
            let asked = self.cluster().check_request(&self.unplaced_request(now, &vm.name, &vm.spec)?);
            asked.map_err(|error| self.by_name(&vm.name, &error))?;
        }

        let before = [&self.vms, &self.deployments, &self.tenants].map(Names::fresh);
        let requests: Vec<VmRequest> = vms
            .iter()
            .map(|vm| {
                let key = VmKey(self.vms.take(&vm.name));
                self.note_traits(key, &vm.spec.traits);
                self.take(&vm.spec, key, now)
            })
            .collect();

        let why =
            |scheduler: &Scheduler, vm: &VmRequest, error| (vm.id, error, why_no_host(scheduler, now, vm));
        match self.scheduler.place_all_or(now, &requests, why) {
            Ok(hosts) => Ok(hosts.into_iter().map(|host| self.host_name(host).to_owned()).collect()),
            Err((vm, error, why)) => {
                let mut error = self.by_name(self.vms.name(vm.0), &error);
                if let InventoryError::NoHost { refused, short, .. } = &mut error {
                    (*refused, *short) = why;
                }
                for request in requests {
                    self.drop_name(request.id);
                    self.forget(&request);
                }
                // Nobody has seen these numbers.
                for (names, next) in
                    [&mut self.vms, &mut self.deployments, &mut self.tenants].into_iter().zip(before)
                {
                    names.reset(next);
                }
                Err(error)
            }
        }
    }

    /// Takes note of a VM that somebody else has put on a host then.
    ///
    /// # Errors
    /// Where the VM is wrong, is placed already, the host is not known, or has not the room.
    pub fn put(&mut self, since: Instant, vm: &NamedVm, host: &str) -> Result<(), InventoryError> {
        self.add(since, vm, host, Scheduler::put)
    }

    /// As [`Inventory::put`], whether or not there is room: where VMs take more than their host has, nothing of it is free.
    ///
    /// # Errors
    /// Where the VM is wrong, is placed already, or the host is not known.
    pub fn observe(&mut self, since: Instant, vm: &NamedVm, host: &str) -> Result<(), InventoryError> {
        self.add(since, vm, host, Scheduler::observe)
    }

    /// Takes a VM out that has ended; says what and where it was.
    ///
    /// # Errors
    /// Where it is not placed.
    pub fn remove(&mut self, now: Instant, name: &str) -> Result<Placed, InventoryError> {
        let key = self.key(name)?;
        let gone = self.scheduler.remove(now, key).map_err(|error| self.by_name(name, &error))?;
        let Resident { vm, host, since } = gone;
        let gone = Placed {
            vm: NamedVm { name: name.to_owned(), spec: self.spec(&gone) },
            host: self.host_name(host).to_owned(),
            since,
        };
        self.drop_name(key);
        self.forget(&vm);
        Ok(gone)
    }

    /// Takes note of a VM that has moved.
    ///
    /// # Errors
    /// Where VM or host are not known, or there is no room.
    pub fn migrate(&mut self, now: Instant, name: &str, to: &str) -> Result<(), InventoryError> {
        let (key, to) = (self.key(name)?, self.host_id(to)?);
        self.scheduler.migrate(now, key, to).map_err(|error| self.by_name(name, &error))
    }

    /// Takes note of what a VM now asks for, and what is now predicted of it.
    ///
    /// # Errors
    /// Where it is not placed, what is told is wrong, or its host has not the room for more.
    pub fn change(&mut self, now: Instant, vm: &NamedVm) -> Result<(), InventoryError> {
        check_spec(vm)?;
        self.check_kinds(core::iter::empty(), core::iter::once(&vm.spec.extras))?;
        let key = self.key(&vm.name)?;
        let before = self.cluster().resident(key);
        let after = self.take(&vm.spec, key, before.map_or(now, |before| before.since));
        if let Err(error) = self.scheduler.change(now, &after) {
            let error = self.by_name(&vm.name, &error);
            self.forget(&after);
            return Err(error);
        }
        self.note_traits(key, &vm.spec.traits);
        if let Some(Resident { vm: before, .. }) = before {
            self.forget(&before);
        }
        Ok(())
    }

    /// A new VM: numbers for its names, then what `put` does.
    fn add(
        &mut self,
        since: Instant,
        vm: &NamedVm,
        host: &str,
        put: fn(&mut Scheduler, Instant, &VmRequest, HostId) -> Result<(), PlacementError>,
    ) -> Result<(), InventoryError> {
        self.check_new(vm)?;
        let host = self.host_id(host)?;
        self.check_kinds(core::iter::empty(), core::iter::once(&vm.spec.extras))?;
        let key = VmKey(self.vms.take(&vm.name));
        self.note_traits(key, &vm.spec.traits);
        let request = self.take(&vm.spec, key, since);
        put(&mut self.scheduler, since, &request, host).map_err(|error| {
            let error = self.by_name(&vm.name, &error);
            self.drop_name(key);
            self.forget(&request);
            error
        })
    }

    fn find(&self, name: &str) -> Option<HostId> {
        self.hosts.get(name).copied()
    }
    fn host_id(&self, name: &str) -> Result<HostId, InventoryError> {
        self.find(name).ok_or_else(|| InventoryError::UnknownHost { host: name.to_owned() })
    }
    fn key(&self, name: &str) -> Result<VmKey, InventoryError> {
        let number = self.vms.number(name).map(VmKey);
        number.ok_or_else(|| InventoryError::UnknownVm { vm: name.to_owned() })
    }
}
