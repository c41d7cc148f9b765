//! Constraints, ranking and inventory together.

use ballast_types::Instant;
use serde::Serialize;

use crate::rule::{Ask, Event, Fit, Search};
use crate::{
    Admission, AdmissionRequest, Cluster, HostId, HostState, PlacementError, Ranking, Refused, Resident,
    Ties, VmKey, VmRequest,
};

/// Places VMs. Nothing is changed by a call that fails.
#[derive(Debug)]
pub struct Scheduler {
    cluster: Cluster,
    admissions: Vec<Box<dyn Admission>>,
    fits: Vec<Box<dyn Fit>>,
    ranking: Ranking,
}

/// What one rule says of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Which tier the rule belongs to; 0 decides first.
    pub tier: usize,
    /// The name of the rule that refuses the host.
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
    /// A scheduler of this inventory. Constraints are asked in their order: put the cheap ones first. Rules learn of
    /// the VMs that are there already as `Placed`, each at the time at which it came, in the order of their ids.
    pub fn new(cluster: Cluster, fits: Vec<Box<dyn Fit>>, ranking: Ranking) -> Self {
        let none = Ranking::new(Vec::new(), Ties::Id);
        let mut this = Self { cluster, admissions: Vec::new(), fits: Vec::new(), ranking: none };
        this.set_policy(fits, ranking);
        this
    }

    /// Goes on with other constraints and another ranking, made for the inventory as it is now. They learn of the VMs
    /// that are there as `Placed`, each at the time at which it came, in the order of their ids. Admissions stay.
    pub fn set_policy(&mut self, fits: Vec<Box<dyn Fit>>, ranking: Ranking) {
        (self.fits, self.ranking) = (fits, ranking);
        for Resident { vm, host, since } in self.cluster.all() {
            let event = Event::Placed { vm: &vm, host };
            self.fits.iter_mut().for_each(|fit| fit.handle_event(since, &self.cluster, &event));
            self.ranking.handle_event(since, &self.cluster, &event);
        }
    }

    /// Asks one more admission from now on, after those that are there already. It learns of the VMs that are there.
    pub fn add_admission(&mut self, mut admission: Box<dyn Admission>) {
        for Resident { vm, host, since } in self.cluster.all() {
            admission.handle_event(since, &self.cluster, &Event::Placed { vm: &vm, host });
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
        self.find(now, vm).ok_or(PlacementError::NoHost { vm: vm.id })
    }

    fn find(&self, now: Instant, vm: &VmRequest) -> Option<HostId> {
        let ask = Ask { now, vm, cluster: &self.cluster };
        let mut admits = |host| self.fits.iter().all(|fit| fit.admits(&ask, host));
        match self.ranking.search(&ask, &mut admits) {
            Search::Best(host) => host,
            Search::Unordered => {
                let mut hosts: Vec<HostId> = self.cluster.ids().collect();
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

    fn verdicts(&self, ask: &Ask<'_>, host: HostId) -> Vec<Verdict> {
        let rules = self.ranking.tiers().iter().enumerate();
        let rules = rules.flat_map(|(tier, t)| t.rules().map(move |(w, rule)| (tier, w, rule)));
        let verdict = |(tier, weight, rule): (usize, u32, &dyn crate::Rule)| Verdict {
            tier,
            rule: rule.name(),
            weight,
            score: rule.score(ask, host),
            reason: rule.explain(ask, host),
        };
        rules.map(verdict).collect()
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
    /// Names the first VM that cannot be placed. Those before it are taken back, the last first; rules see them
    /// placed and ended at the same instant.
    pub fn place_all(&mut self, now: Instant, vms: &[VmRequest]) -> Result<Vec<HostId>, PlacementError> {
        let mut hosts = Vec::with_capacity(vms.len());
        for vm in vms {
            match self.place(now, vm) {
                Ok(host) => hosts.push(host),
                Err(error) => {
                    for placed in vms[..hosts.len()].iter().rev() {
                        self.remove(now, placed.id)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(hosts)
    }

    /// Takes note of a VM that is on a host, whoever put it there; only its room is checked.
    ///
    /// # Errors
    /// Where the host is unknown, the VM is placed already, or there is no room.
    pub fn put(&mut self, now: Instant, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.cluster.add(vm, host, now)?;
        self.tell(now, &Event::Placed { vm, host });
        Ok(())
    }

    /// Takes note of a VM that was found on a host: not even its room is checked. Where VMs take more than the host has,
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
        Ok(resident)
    }

    /// Takes note of a VM that has moved; only the room is checked. A move to where it is changes nothing.
    ///
    /// # Errors
    /// Where host or VM are unknown, or there is no room.
    pub fn migrate(&mut self, now: Instant, vm: VmKey, to: HostId) -> Result<(), PlacementError> {
        let before = self.cluster.migrate(vm, to)?;
        if before.host != to {
            self.tell(now, &Event::Migrated { vm: &before.vm, from: before.host, to });
        }
        Ok(())
    }

    /// Takes note of what a VM now asks for, and what is now predicted of it.
    ///
    /// # Errors
    /// Where it is not placed, or its host has not the room.
    pub fn change(&mut self, now: Instant, after: &VmRequest) -> Result<(), PlacementError> {
        let Resident { vm: before, host, .. } = self.cluster.change(after)?;
        let before = &before;
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
        self.fits.iter_mut().for_each(|fit| fit.handle_event(now, cluster, event));
        self.ranking.handle_event(now, cluster, event);
    }
}
