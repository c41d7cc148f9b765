//! Constraints, ranking and inventory together.
//!
//! The VMs of a deployment are chosen one after the other, each as if those before it were there, and come together at the end.
//! What stands for those before it is room that is held: constraints and rules learn of it as `Held`, and before anything
//! comes as `Released`, the last first. So an attempt costs what its VMs cost, whatever the size of the cluster; a copy of
//! what every rule keeps would cost what the cluster has. A failed attempt leaves no trace, since integers take back exactly
//! what they were given; admissions, slots, lists and deadlines never learn of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ballast_types::Instant;
use ballast_types::survival::Curves;
use serde::Serialize;

use crate::hold::Hold;
use crate::measured::Measured;
use crate::rule::{Ask, Event, Fit, Search};
use crate::{
    Admission, AdmissionRequest, Cluster, ExpectedEnd, Host, HostId, HostState, PlacementError, Ranking,
    Refused, Resident, Ties, VmKey, VmRequest,
};

/// Places VMs. Nothing is changed by a call that fails.
#[derive(Debug)]
pub struct Scheduler {
    cluster: Cluster,
    /// Room for VMs on their way.
    holds: BTreeMap<VmKey, Hold>,
    admissions: Vec<Box<dyn Admission>>,
    fits: Vec<Box<dyn Fit>>,
    ranking: Ranking,
}

/// What one rule says of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Which tier the rule belongs to, of those that have something to say; 0 decides first.
    pub tier: usize,
    /// The name of the rule.
    pub rule: &'static str,
    /// Its weight in the tier.
    pub weight: u32,
    /// Its score: higher is better; only the order matters.
    pub score: i64,
    /// The reason, in words for people.
    pub reason: String,
}

/// A host that fits, and why it stands where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scored {
    /// The host that this is about.
    pub host: HostId,
    /// What every rule says.
    pub verdicts: Vec<Verdict>,
}

/// Hosts for a VM, the best first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scores {
    /// The best of those that fit.
    pub hosts: Vec<Scored>,
    /// How many hosts pass every constraint.
    pub fitting: usize,
    /// How many hosts every constraint refused; a host counts where it is refused first.
    pub refused: Vec<(&'static str, usize)>,
}

impl Scheduler {
    /// A scheduler of this inventory. Constraints are asked in their order: put the cheap ones first. They and the rules
    /// learn of the VMs that are there already as `Placed`, each at the time at which it came, in the order of their ids.
    pub fn new(cluster: Cluster, wanted: Vec<Box<dyn Fit>>, ranking: Ranking) -> Self {
        let none = Ranking::new(Vec::new(), Ties::Id);
        let (holds, fits) = (BTreeMap::new(), Vec::new());
        let mut this = Self { cluster, holds, admissions: Vec::new(), fits, ranking: none };
        this.set_policy(wanted, ranking);
        this
    }

    /// Goes on with other constraints and another ranking, made for the inventory as it is now. They learn of the VMs
    /// that are there as `Placed`, each at the time at which it came, in the order of their ids, and of what is `Held`.
    /// Admissions stay.
    pub fn set_policy(&mut self, fits: Vec<Box<dyn Fit>>, ranking: Ranking) {
        (self.fits, self.ranking) = (fits, ranking);
        for Resident { vm, host, since } in self.cluster.all() {
            self.tell_rules(since, &Event::Placed { vm: &vm, host });
        }
        for Hold { vm, host, since } in self.holds.values().copied().collect::<Vec<_>>() {
            self.tell_rules(since, &Event::Held { vm: &vm, host });
        }
    }

    /// Other curves, and what is known of every VM's end by them; then constraints and a ranking as in
    /// [`Scheduler::set_policy`], for what rules keep is of the old curves.
    pub fn set_curves(
        &mut self,
        curves: Arc<Curves>,
        mut end: impl FnMut(&Resident) -> Option<ExpectedEnd>,
        rules: impl FnOnce(&Cluster) -> (Vec<Box<dyn Fit>>, Ranking),
    ) {
        self.cluster.set_curves(curves, &mut end);
        for hold in self.holds.values_mut() {
            hold.vm.end = end(&Resident { vm: hold.vm, host: hold.host, since: hold.since });
        }
        let (fits, ranking) = rules(&self.cluster);
        self.set_policy(fits, ranking);
    }

    /// Asks one more admission from now on, after those that are there already. It learns of the VMs that are there.
    pub fn add_admission(&mut self, mut admission: Box<dyn Admission>) {
        for Resident { vm, host, since } in self.cluster.all() {
            admission.handle_event(since, &self.cluster, &Event::Placed { vm: &vm, host });
        }
        for Hold { vm, host, since } in self.holds.values() {
            admission.handle_event(*since, &self.cluster, &Event::Held { vm, host: *host });
        }
        self.admissions.push(admission);
    }

    /// Whether anybody decides on admission.
    pub fn has_admissions(&self) -> bool {
        !self.admissions.is_empty()
    }

    /// Whether the VMs may come at all. Nothing is changed; whoever places asks first.
    ///
    /// # Errors
    /// Names the first admission that refuses, and why.
    pub fn admit(&self, now: Instant, wanted: &AdmissionRequest<'_>) -> Result<(), Refused> {
        self.admissions.iter().try_for_each(|admission| {
            let decided = admission.decide(&self.cluster, wanted, now);
            decided.map_err(|why| Refused { by: admission.name(), why })
        })
    }

    /// The inventory.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The ranking, with its rules.
    pub fn ranking(&self) -> &Ranking {
        &self.ranking
    }

    /// Where the VM should go. Nothing is changed.
    ///
    /// # Errors
    /// Where it is placed already, no host could ever hold it, or none fits now.
    pub fn choose(&self, now: Instant, vm: &VmRequest) -> Result<HostId, PlacementError> {
        self.cluster.check_request(vm)?;
        self.find(now, vm, None).ok_or(PlacementError::NoHost { vm: vm.id })
    }

    fn find(&self, now: Instant, vm: &VmRequest, but: Option<HostId>) -> Option<HostId> {
        let ask = Ask { now, vm, cluster: &self.cluster };
        let mut admits = |host| Some(host) != but && self.fits.iter().all(|fit| fit.admits(&ask, host));
        match self.ranking.search(&ask, &mut admits) {
            Search::Best(host) => host,
            Search::Unordered => {
                let mut hosts: Vec<HostId> = self.cluster.ids().filter(|host| Some(*host) != but).collect();
                self.fits.iter().for_each(|fit| fit.retain(&ask, &mut hosts));
                self.ranking.best(&ask, hosts)
            }
        }
    }

    /// The best `top` hosts with reasons. Nothing is changed. None fits: the list is empty, and says why.
    ///
    /// # Errors
    /// Where the VM is placed already, or no host could ever hold it.
    pub fn score(&self, now: Instant, vm: &VmRequest, top: usize) -> Result<Scores, PlacementError> {
        self.cluster.check_request(vm)?;
        let ask = Ask { now, vm, cluster: &self.cluster };
        let mut hosts: Vec<HostId> = self.cluster.ids().collect();
        let mut refused = Vec::new();

        for fit in &self.fits {
            let before = hosts.len();
            fit.retain(&ask, &mut hosts);
            refused.push((fit.name(), before - hosts.len()));
        }

        self.ranking.order(&ask, &mut hosts, top);
        let best = hosts.iter().take(top);
        let scored = best.map(|host| Scored { host: *host, verdicts: self.verdicts(&ask, *host) });

        Ok(Scores { hosts: scored.collect(), fitting: hosts.len(), refused })
    }

    /// What the rules say that have something to say of this VM, or of why they have not.
    fn verdicts(&self, ask: &Ask<'_>, host: HostId) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let mut tier = 0;
        for rules in self.ranking.tiers() {
            let before = verdicts.len();
            let verdict = |(weight, rule): (u32, &dyn crate::Rule)| {
                let reason = rule.explain(ask, host);
                let score = rule.score(ask, host);
                (!reason.is_empty()).then(|| Verdict { tier, rule: rule.name(), weight, score, reason })
            };
            verdicts.extend(rules.rules().filter_map(verdict));
            tier += usize::from(verdicts.len() > before);
        }
        for fit in &self.fits {
            let risk = fit.risk(ask.cluster, Some(ask.vm), host);
            let Some((risk, reason)) = risk.zip(fit.remark(ask, host)) else { continue };
            verdicts.push(Verdict {
                tier,
                rule: fit.name(),
                weight: 0,
                score: -((1e6 * risk) as i64),
                reason,
            });
        }
        verdicts
    }

    /// For which share of the time the host breaks a promise as it is, or would with the VM, the largest of several; `None`
    /// where nothing is promised.
    ///
    /// # Errors
    /// Where there is no such host.
    pub fn risk(&self, vm: Option<&VmRequest>, host: HostId) -> Result<Option<f64>, PlacementError> {
        self.cluster.check(host)?;
        Ok(self.fits.iter().filter_map(|fit| fit.risk(&self.cluster, vm, host)).reduce(f64::max))
    }

    /// Takes note of what was measured on a host.
    ///
    /// # Errors
    /// Where there is no such host.
    pub fn measure(
        &mut self,
        now: Instant,
        host: HostId,
        measured: &Measured<VmKey>,
    ) -> Result<(), PlacementError> {
        self.cluster.check(host)?;
        self.tell_rules(now, &Event::Measured { host, measured });
        Ok(())
    }

    /// What every rule says of the VM on this host.
    ///
    /// # Errors
    /// Where there is no such host.
    pub fn explain(
        &self,
        now: Instant,
        vm: &VmRequest,
        host: HostId,
    ) -> Result<Vec<Verdict>, PlacementError> {
        self.cluster.check(host)?;
        Ok(self.verdicts(&Ask { now, vm, cluster: &self.cluster }, host))
    }

    /// How these hosts stand for the VM: 0 is the best, the next is 1, hosts that no tier tells apart stand alike. Whether they
    /// fit is not asked. In the order of `hosts`, each of which exists.
    pub fn standings(&self, now: Instant, vm: &VmRequest, hosts: &[HostId]) -> Vec<usize> {
        self.ranking.standings(&Ask { now, vm, cluster: &self.cluster }, hosts)
    }

    /// Why the host may not have the VM: each constraint that refuses, with its reason.
    ///
    /// # Errors
    /// Where there is no such host.
    pub fn refusals(
        &self,
        now: Instant,
        vm: &VmRequest,
        host: HostId,
    ) -> Result<Vec<(&'static str, String)>, PlacementError> {
        self.cluster.check(host)?;
        let ask = Ask { now, vm, cluster: &self.cluster };
        let refusals = self.fits.iter();
        Ok(refusals.filter_map(|fit| Some((fit.name(), fit.refusal(&ask, host)?))).collect())
    }

    /// Places the VM on the best host.
    ///
    /// # Errors
    /// As [`Scheduler::choose`].
    pub fn place(&mut self, now: Instant, vm: &VmRequest) -> Result<HostId, PlacementError> {
        let host = self.choose(now, vm)?;
        self.put(now, vm, host)?;
        Ok(host)
    }

    /// Places all of these VMs, or none: hosts in the VMs' order.
    ///
    /// # Errors
    /// Names the first VM that cannot be placed: then none has come.
    pub fn place_all(&mut self, now: Instant, vms: &[VmRequest]) -> Result<Vec<HostId>, PlacementError> {
        self.place_all_or(now, vms, |_, _, error| error)
    }

    /// As [`Scheduler::place_all`]; `failed` is asked for the error while those before the VM hold their room.
    pub(crate) fn place_all_or<E>(
        &mut self,
        now: Instant,
        vms: &[VmRequest],
        failed: impl FnOnce(&Self, &VmRequest, PlacementError) -> E,
    ) -> Result<Vec<HostId>, E> {
        if let [vm] = vms {
            return self.place(now, vm).map(|host| vec![host]).map_err(|error| failed(self, vm, error));
        }

        let mut chosen: BTreeMap<VmKey, HostId> = BTreeMap::new();
        let mut hosts = Vec::with_capacity(vms.len());
        let tried = vms.iter().try_for_each(|vm| {
            let host = match chosen.get(&vm.id) {
                Some(host) => Err(PlacementError::AlreadyPlaced { vm: vm.id, host: *host }),
                None => self.choose(now, vm),
            };
            let held = host.and_then(|host| self.cluster.hold(vm, host).map(|()| host));
            let host = held.map_err(|error| (vm, error))?;
            self.tell_rules(now, &Event::Held { vm, host });
            chosen.insert(vm.id, host);
            hosts.push(host);
            Ok(())
        });
        if let Err((vm, error)) = tried {
            let error = failed(self, vm, error);
            self.untry(now, vms, &hosts);
            return Err(error);
        }

        self.untry(now, vms, &hosts);
        for (vm, host) in vms.iter().zip(&hosts) {
            // There is room: it was held.
            if let Err(error) = self.put(now, vm, *host) {
                return Err(failed(self, vm, error));
            }
        }

        Ok(hosts)
    }

    /// Nothing is held any more for the first of these VMs, so many as have a host.
    fn untry(&mut self, now: Instant, vms: &[VmRequest], hosts: &[HostId]) {
        for (vm, host) in vms.iter().zip(hosts).rev() {
            self.cluster.release(vm, *host);
            self.tell_rules(now, &Event::Released { vm, host: *host });
        }
    }

    /// Takes note of a VM that came to a host at `now`, whoever put it there; only its room is checked. That may be long
    /// ago: rules learn of it at that time.
    ///
    /// # Errors
    /// Where the host is unknown, the VM is placed already, or there is no room.
    pub fn put(&mut self, now: Instant, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.cluster.add(vm, host, now)?;
        self.tell(now, &Event::Placed { vm, host });
        Ok(())
    }

    /// Takes note of a VM that was found on a host, where it came at `now`: not even its room is checked. Where VMs take more than the host has,
    /// nothing of it is free.
    ///
    /// # Errors
    /// Where the host is unknown, or the VM is placed already.
    pub fn observe(&mut self, now: Instant, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.cluster.observe(vm, host, now)?;
        self.tell(now, &Event::Placed { vm, host });
        Ok(())
    }

    /// Takes a VM out that has ended.
    ///
    /// # Errors
    /// Where it is not placed.
    pub fn remove(&mut self, now: Instant, vm: VmKey) -> Result<Resident, PlacementError> {
        let resident = self.cluster.remove(vm)?;
        self.tell(now, &Event::Ended { vm: &resident.vm, host: resident.host });
        self.cancel_move(now, vm);
        Ok(resident)
    }

    /// Takes note of a VM that has moved; only the room is checked. A move to where it is changes nothing. One that was on
    /// its way, be it elsewhere, no longer is: what was held for it is released.
    ///
    /// # Errors
    /// Where host or VM are unknown, or there is no room.
    pub fn migrate(&mut self, now: Instant, vm: VmKey, to: HostId) -> Result<(), PlacementError> {
        let held = self.on_the_way(vm);
        let arrives = held == Some(to);
        let before = self.cluster.migrate(vm, to, arrives)?;
        if arrives {
            self.holds.remove(&vm);
            self.tell(now, &Event::Released { vm: &before.vm, host: to });
        }
        if before.host != to {
            self.tell(now, &Event::Migrated { vm: &before.vm, from: before.host, to });
        }
        if held.is_some() && !arrives {
            self.cancel_move(now, vm);
        }
        Ok(())
    }

    /// Sends a VM on its way to the best host other than its own, which holds its room until [`Scheduler::migrate`] says that it is
    /// there, or it has ended. One that is on its way goes on.
    ///
    /// # Errors
    /// Where it is not placed, or no host fits.
    pub fn start_move(&mut self, now: Instant, vm: VmKey) -> Result<HostId, PlacementError> {
        let there = self.cluster.resident(vm).ok_or(PlacementError::NotPlaced { vm })?;
        if let Some(host) = self.on_the_way(vm) {
            return Ok(host);
        }
        let host = self.find(now, &there.vm, Some(there.host)).ok_or(PlacementError::NoHost { vm })?;
        self.hold(now, there.vm, host)?;
        Ok(host)
    }

    /// As [`Scheduler::start_move`], to this host, whatever the constraints say; only the room is checked.
    ///
    /// # Errors
    /// Where it is not placed, or is on its way elsewhere, or the host is unknown, its own, or has not the room.
    pub fn start_move_to(&mut self, now: Instant, vm: VmKey, host: HostId) -> Result<(), PlacementError> {
        let there = self.cluster.resident(vm).ok_or(PlacementError::NotPlaced { vm })?;
        match self.on_the_way(vm) {
            Some(to) if to == host => return Ok(()),
            Some(_) => return Err(PlacementError::NoHost { vm }),
            None if there.host == host => return Err(PlacementError::AlreadyPlaced { vm, host }),
            None => {}
        }
        self.hold(now, there.vm, host)
    }

    /// The host that holds room for a VM on its way; `None` where it is not.
    pub fn on_the_way(&self, vm: VmKey) -> Option<HostId> {
        self.holds.get(&vm).map(|hold| hold.host)
    }

    /// A VM on its way stays where it is: its room on the other host is released. Nothing happens to one that is not.
    pub fn cancel_move(&mut self, now: Instant, vm: VmKey) {
        if let Some(Hold { vm, host, .. }) = self.holds.remove(&vm) {
            self.cluster.release(&vm, host);
            self.tell(now, &Event::Released { vm: &vm, host });
        }
    }

    /// The room that is held for VMs on their way, in the order of their ids.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.values()
    }

    fn hold(&mut self, now: Instant, vm: VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.cluster.hold(&vm, host)?;
        self.holds.insert(vm.id, Hold { vm, host, since: now });
        self.tell(now, &Event::Held { vm: &vm, host });
        Ok(())
    }

    /// Takes note of what a VM now asks for, and what is now predicted of it. Of one on its way, both hosts hold that.
    ///
    /// # Errors
    /// Where it is not placed, or its host, or the one that it is on its way to, has not the room.
    pub fn change(&mut self, now: Instant, after: &VmRequest) -> Result<(), PlacementError> {
        if let Some(hold) = self.holds.get(&after.id) {
            self.cluster.check_change(&hold.vm, after, hold.host)?;
        }
        let Resident { vm: before, host, .. } = self.cluster.change(after)?;
        let before = &before;
        if let Some(hold) = self.holds.get_mut(&after.id) {
            hold.vm = *after;
            let target = hold.host;
            self.cluster.rehold(before, after, target);
            self.tell(now, &Event::Released { vm: before, host: target });
            self.tell(now, &Event::Held { vm: after, host: target });
        }
        if before.resources == after.resources {
            self.tell(now, &Event::Repredicted { before, after, host });
        } else {
            self.tell(now, &Event::Resized { before, after, host });
        }
        Ok(())
    }

    /// Opens, cordons or drains a host.
    ///
    /// # Errors
    /// Where there is no such host.
    pub fn set_state(&mut self, host: HostId, state: HostState) -> Result<(), PlacementError> {
        self.cluster.set_state(host, state)
    }

    /// Takes note of a new host, without VMs.
    pub fn add_host(&mut self, now: Instant, host: &Host, state: HostState) -> HostId {
        let id = self.cluster.add_host(host, state);
        self.tell(now, &Event::HostChanged { host: id, before: None });
        id
    }

    /// Forgets an empty host; says what it was. Its id is given to the next that comes.
    ///
    /// # Errors
    /// Where there is no such host, or it has VMs, or room is held there.
    pub fn remove_host(&mut self, now: Instant, id: HostId) -> Result<Host, PlacementError> {
        let before = self.cluster.remove_host(id)?;
        self.tell(now, &Event::HostChanged { host: id, before: Some(&before) });
        Ok(before)
    }

    /// Takes note of a host that is now larger, smaller, or elsewhere. Its VMs stay, and what is held there: one that is now
    /// smaller than what they take gets no more.
    ///
    /// # Errors
    /// Where there is no such host.
    pub fn change_host(&mut self, now: Instant, id: HostId, after: &Host) -> Result<(), PlacementError> {
        self.cluster.check(id)?;
        let held: Vec<VmRequest> = self.holds().filter(|it| it.host == id).map(|it| it.vm).collect();
        for vm in &held {
            self.cluster.release(vm, id);
            self.tell(now, &Event::Released { vm, host: id });
        }

        let before = self.cluster.change_host(id, after)?;
        self.tell(now, &Event::HostChanged { host: id, before: Some(&before) });

        for vm in &held {
            self.cluster.hold_on(vm, id);
            self.tell(now, &Event::Held { vm, host: id });
        }
        Ok(())
    }

    /// When an admission, constraint or rule wants to be woken.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let admissions = self.admissions.iter().filter_map(|admission| admission.poll_timeout());
        let fits = self.fits.iter().filter_map(|fit| fit.poll_timeout());
        admissions.chain(fits).chain(self.ranking.poll_timeout()).min()
    }

    /// Wakes them.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tell(now, &Event::Deadline);
    }

    fn tell(&mut self, now: Instant, event: &Event<'_>) {
        let cluster = &self.cluster;
        self.admissions.iter_mut().for_each(|a| a.handle_event(now, cluster, event));
        self.tell_rules(now, event);
    }

    fn tell_rules(&mut self, now: Instant, event: &Event<'_>) {
        let cluster = &self.cluster;
        self.fits.iter_mut().for_each(|fit| fit.handle_event(now, cluster, event));
        self.ranking.handle_event(now, cluster, event);
    }
}
