//! Which cores and policies come and go.
//!
//! Nothing here may delay an alert: the files are read without holding the caps. Each step gives the value
//! that the next one takes:
//!
//! ```text
//! plan_scan ─▶ ScanPlan::read ─▶ apply_scan ─▶ Changed
//!                                               ├▶ NewOriginals::journal ─▶ allow_new_caps
//!                                               └▶ UnwantedCap ─▶ release_unwanted
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ballast_types::CoreId;
use nix::errno::Errno;
use tracing::{info, warn};

use super::caps::{Clock, Cpufreq, CpufreqOriginals};
use super::driver::Driver;
use super::frequency::{DIR, Floor, read_khz};
use super::hold::Hold;
use super::kernel_limits::KernelLimits;
use super::policy::{Driven, Free, Policy, driven, driver};
use super::watch::PolicyIndex;
use crate::error::HwError;
use crate::root::{numbered, optional};
use crate::{CpuList, Domain, Root, Topology};

/// What is to be read: what is known already need not be read again.
#[derive(Clone, Debug)]
#[must_use = "read it"]
pub struct ScanPlan {
    floor: Floor,
    driver: Driver,
    policies: BTreeMap<CoreId, Capping>,
}

/// Whether a policy has a cap of ours.
#[derive(Clone, Copy, Debug)]
enum Capping {
    Away,
    Held,
    Free,
}

/// Which CPUs and policies there are now.
#[derive(Debug)]
#[must_use = "apply it"]
pub struct Scan {
    topology: Topology,
    /// `None` if no policy tells.
    driver: Option<Driver>,
    policies: Vec<(CoreId, Read)>,
}

#[derive(Debug)]
enum Read {
    /// Nothing: it is known.
    Nothing,
    /// It is known and has no cap of ours: how it is limited.
    Free(Free),
    /// It is known and was away: whether it takes values again.
    Back(bool),
    /// It is known by another driver.
    Driven(Result<Driven, HwError>),
    New(Box<Result<Policy, HwError>>),
}

impl ScanPlan {
    /// Reads which CPUs and policies there are.
    pub fn read(&self, root: &Root) -> Result<Scan, HwError> {
        let topology = Topology::read(root)?;
        let found = optional(numbered(&root.path(DIR), "policy"))?.unwrap_or_default();
        let driver = found.iter().find_map(|(_, path)| driver(path).ok());
        let kernel = KernelLimits::new(root);
        let is_other = driver.as_ref().is_some_and(|driver| *driver != self.driver);
        let read = |id: CoreId, path: &Path| match self.policies.get(&id) {
            None => Read::New(Box::new(Policy::read(root, path, id, self.floor, &kernel))),
            Some(_) if is_other => Read::Driven(driven(path)),
            Some(Capping::Away) => Read::Back(read_khz(&path.join("scaling_max_freq")).is_ok()),
            // One that went meanwhile is noticed by its CPUs.
            Some(Capping::Free) => Free::read(path, &kernel).map_or(Read::Nothing, Read::Free),
            Some(Capping::Held) => Read::Nothing,
        };
        let policy = |(n, path): (u32, PathBuf)| {
            let id = CoreId(n.try_into().ok()?);
            Some((id, read(id, &path)))
        };
        Ok(Scan { topology, driver, policies: found.into_iter().filter_map(policy).collect() })
    }
}

#[derive(Debug, Default)]
#[must_use = "journal the new originals, and release the unwanted caps"]
pub struct Changed {
    /// CPUs went or came: [`Cpufreq::domains`] says which are online.
    pub cpus: bool,
    /// A policy does not take values although its CPU is online: scan again soon.
    pub unsettled: bool,
    /// What must be put back at the end is something else: until that is on disk, what came is not capped.
    pub new_originals: Option<NewOriginals>,
    /// Caps that are on policies that came or are back, and should not be.
    pub unwanted: Vec<UnwantedCap>,
}

/// Originals that are not on disk yet.
#[derive(Debug)]
#[must_use = "journal them: what came is not capped before"]
pub struct NewOriginals(CpufreqOriginals);

impl NewOriginals {
    /// Has `write` put them on disk.
    pub fn journal<E>(self, write: impl FnOnce(CpufreqOriginals) -> Result<(), E>) -> Result<Journalled, E> {
        write(self.0).map(|()| Journalled(()))
    }
}

#[derive(Debug)]
#[must_use = "what came may be capped now"]
pub struct Journalled(());

/// A cap on a policy that came or is back, which should not be there.
#[derive(Debug)]
#[must_use = "release it"]
pub struct UnwantedCap(PolicyIndex);

impl Cpufreq {
    pub fn plan_scan(&self) -> ScanPlan {
        let known = |policy: &Policy| match (policy.away, policy.hold) {
            (true, _) => Capping::Away,
            (false, Some(_)) => Capping::Held,
            (false, None) => Capping::Free,
        };
        let policies = self.all().map(|policy| (policy.facts.id, known(policy))).collect();
        ScanPlan { floor: self.floor, driver: self.driver.clone(), policies }
    }

    /// The originals are on disk: what has come may be capped.
    pub fn allow_new_caps(&mut self, _: Journalled) {
        self.unwritten = false;
        for policy in self.clocks.iter_mut().flat_map(|clock| &mut clock.policies) {
            policy.journalled = true;
        }
    }

    /// Takes off one cap that a scan found, unless it was wanted again meanwhile or its policy is away.
    pub fn release_unwanted(&mut self, UnwantedCap(policy): UnwantedCap) {
        let root = self.root.clone();
        let policy = self.policy(policy);

        if policy.is_unwanted() {
            policy.unwanted = false;
            if let Err(error) = policy.release(&root) {
                warn!(%error, "a cap on a policy that came back could not be taken off");
            }
        }
    }

    /// Takes in which CPUs and policies there are; only what a previous instance left on the policy of no
    /// core of ours is taken off at once. Policies that came back are to be released, or written again;
    /// those of CPUs that came are capped as their core is, once what was there before is on disk.
    pub fn apply_scan(&mut self, scan: Scan) -> Changed {
        if let Some(driver) = scan.driver.as_ref().filter(|driver| **driver != self.driver) {
            self.driver_changed(driver);
        }

        let cpus = self.apply_topology(&scan.topology);
        let back = self.apply_policies(&scan.topology, scan.policies);
        let (mut unsettled, mut new_originals) = (false, self.unwritten);
        let mut unwanted = Vec::new();

        for (c, clock) in self.clocks.iter_mut().enumerate() {
            let goal = clock.goal.is_some();
            for (p, policy) in clock.policies.iter_mut().enumerate() {
                let online = online(&scan.topology, &policy.facts.cpus);
                if !online {
                    policy.away = true;
                } else if policy.away && back.contains(&policy.facts.id) {
                    policy.back(goal);
                }

                unsettled |= policy.away && online;
                new_originals |= !policy.journalled;
                unwanted.extend(policy.is_unwanted().then_some(UnwantedCap((c, p))));
            }
        }

        let new_originals = new_originals.then(|| NewOriginals(self.originals()));

        Changed { cpus, unsettled, new_originals, unwanted }
    }

    /// Takes in which CPUs are online; true if any went or came.
    fn apply_topology(&mut self, topology: &Topology) -> bool {
        let mut changed = false;

        for at in 0..self.domains.len() {
            let mut of = topology.domains().iter().filter(|other| self.is_of(other, at)).peekable();
            let first = of.peek().map(|first| (first.node, first.package));
            let cpus: CpuList = of.flat_map(|it| it.cpus.iter()).collect();
            let (domain, clock) = (&mut self.domains[at], &mut self.clocks[at]);

            if let Some((node, package)) = first.filter(|_| !clock.was_online) {
                (clock.was_online, domain.node, domain.package) = (true, node, package);
            }
            if cpus != domain.cpus {
                info!(core = %domain.id, was = %domain.cpus, is = %cpus, "CPUs went or came");
                clock.cpus.extend(cpus.iter());
                domain.cpus = cpus;
                changed = true;
            }
        }

        changed
    }

    /// Takes in what was read of the policies; those that take values again.
    fn apply_policies(&mut self, topology: &Topology, policies: Vec<(CoreId, Read)>) -> Vec<CoreId> {
        let mut back = Vec::new();

        for (id, read) in policies {
            match read {
                Read::Nothing | Read::Back(false) => {}
                Read::Back(true) => back.push(id),
                Read::Free(free) => {
                    let is_new = self.of(id).is_some_and(|policy| policy.follow(&free));
                    self.unwritten |= is_new;
                }
                Read::Driven(Ok(driven)) => {
                    back.push(id);
                    if let Some(policy) = self.of(id) {
                        policy.driver_changed(driven);
                    }
                }
                Read::Driven(Err(error)) => {
                    warn!(%error, "a policy has another driver and cannot be read: it keeps the facts of \
                                   the old one");
                }
                Read::New(policy) => match *policy {
                    Ok(policy) => self.came(topology, policy),
                    // Still offline.
                    Err(e) if e.is(&[Errno::EBUSY]) => {}
                    Err(error) => warn!(%error, "a policy that came cannot be read: it is not capped"),
                },
            }
        }

        back
    }

    /// Whether a domain of the kernel's is the one at `at`. One that was never online gets what is nobody
    /// else's: it may turn out to be a sibling.
    fn is_of(&self, other: &Domain, at: usize) -> bool {
        let shares = |clock: &Clock| other.cpus.iter().any(|cpu| clock.cpus.contains(cpu));
        let first = |(n, clock): (usize, &Clock)| (clock.was_online || n < at) && shares(clock);
        let clock = &self.clocks[at];
        shares(clock) && (clock.was_online || !self.clocks.iter().enumerate().any(first))
    }

    /// A policy that was not there at start.
    fn came(&mut self, topology: &Topology, mut policy: Policy) {
        let id = policy.facts.id;
        let left = self.absent.remove(&id);
        let shown = policy.facts.original;

        // Of what a previous instance left the original is in the journal.
        policy.journalled = match left.map(|original| policy.adopt(original, Ok(shown))) {
            Some(Ok(ours)) => ours.is_some(),
            Some(Err(error)) => return warn!(%error, "a policy that came cannot be read: it is not capped"),
            None => false,
        };

        let cpus = topology.of(id.0.into()).map(|domain| &domain.cpus);
        let owns =
            |domain: &Domain| cpus.is_some_and(|cpus| cpus.iter().any(|cpu| domain.cpus.contains(cpu)));
        let Some(at) = self.domains.iter().position(owns) else {
            // Not a core of ours. What a previous instance left on it is taken off once.
            if policy.hold.is_some()
                && let Err(error) = policy.release(&self.root)
            {
                warn!(%error, "a cap of a previous instance could not be taken off");
                self.absent.extend(left.map(|khz| (id, khz)));
            }

            return;
        };

        let clock = &mut self.clocks[at];

        match clock.goal {
            Some(khz) => {
                let khz = khz.max(policy.facts.ladder.floor()).min(policy.facts.original);
                policy.hold = Some(Hold { push: true, ..Hold::after(None, khz) });
            }
            None => policy.unwanted = policy.hold.is_some(),
        }

        clock.policies.push(policy);
    }

    fn of(&mut self, id: CoreId) -> Option<&mut Policy> {
        self.clocks.iter_mut().flat_map(|it| &mut it.policies).find(|it| it.facts.id == id)
    }

    fn driver_changed(&mut self, to: &Driver) {
        let was = std::mem::replace(&mut self.driver, to.clone());
        self.former.get_or_insert(was);
        self.absent.clear();
    }
}

fn online(topology: &Topology, cpus: &CpuList) -> bool {
    let any = |domain: &Domain| domain.cpus.iter().any(|cpu| cpus.contains(cpu));
    topology.domains().iter().any(any)
}

impl Policy {
    /// Whether it has a cap that should not be there, and can be taken off.
    fn is_unwanted(&self) -> bool {
        self.unwanted && !self.away
    }

    /// It takes values again; `goal` says whether its core is to be capped.
    fn back(&mut self, goal: bool) {
        self.away = false;
        info!(file = %self.file().display(), "the CPUs of a cpufreq policy are online again");
        match &mut self.hold {
            Some(hold) if goal => hold.push = true,
            hold => self.unwanted = hold.is_some(),
        }
    }
}
