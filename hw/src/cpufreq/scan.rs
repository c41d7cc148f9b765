//! Which cores and policies come and go.
//!
//! Nothing here may delay an alert: [`Cpufreq::known`] says what need not be read, [`Scan::read`] reads
//! without holding the caps, [`Cpufreq::rescan`] takes it in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ballast_types::CoreId;
use nix::errno::Errno;
use tracing::{info, warn};

use super::hold::Hold;
use super::policy::{Driven, Policy, driven, driver};
use super::{Clock, Cpufreq, DIR, Driver, Floor, read_khz};
use crate::error::HwError;
use crate::root::{numbered, optional};
use crate::{CpuList, Domain, Root, Topology};

/// What is known already, and need not be read again.
#[derive(Clone, Debug)]
pub struct Known {
    floor: Floor,
    driver: Driver,
    /// Whether each is away.
    policies: BTreeMap<CoreId, bool>,
}

/// Which CPUs and policies there are now.
#[derive(Debug)]
pub struct Scan {
    topology: Topology,
    /// `None` if no policy tells.
    driver: Option<Driver>,
    policies: Vec<(CoreId, Read)>,
}

/// What was read of a policy.
#[derive(Debug)]
enum Read {
    /// Nothing: it is known.
    Nothing,
    /// It is known and was away: whether it takes values again.
    Back(bool),
    /// It is known by another driver.
    Driven(Result<Driven, HwError>),
    /// It is not known.
    New(Box<Result<Policy, HwError>>),
}

impl Scan {
    /// Reads it.
    ///
    /// # Errors
    /// If the topology cannot be read.
    pub fn read(root: &Root, known: &Known) -> Result<Self, HwError> {
        let topology = Topology::read(root)?;
        let found = optional(numbered(&root.path(DIR), "policy"))?.unwrap_or_default();
        let driver = found.iter().find_map(|(_, path)| driver(path).ok());
        let is_other = driver.as_ref().is_some_and(|driver| *driver != known.driver);
        let read = |id: CoreId, path: &Path| match known.policies.get(&id) {
            None => Read::New(Box::new(Policy::read(root, path, id, known.floor))),
            Some(_) if is_other => Read::Driven(driven(path)),
            Some(true) => Read::Back(read_khz(&path.join("scaling_max_freq")).is_ok()),
            Some(false) => Read::Nothing,
        };
        let policy = |(n, path): (u32, PathBuf)| {
            let id = CoreId(n.try_into().ok()?);
            Some((id, read(id, &path)))
        };
        Ok(Self { topology, driver, policies: found.into_iter().filter_map(policy).collect() })
    }
}

/// What a scan found changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// CPUs went or came: [`Cpufreq::domains`] says which are online.
    pub cpus: bool,
    /// What must be put back at the end is something else: journal it.
    pub originals: bool,
    /// A policy does not take values although its CPU is online: scan again soon.
    pub unsettled: bool,
}

impl Cpufreq {
    /// What is known, for a scan.
    #[must_use]
    pub fn known(&self) -> Known {
        let policies = self.all().map(|policy| (policy.facts.id, policy.away)).collect();
        Known { floor: self.floor, driver: self.driver.clone(), policies }
    }

    /// [`Self::originals`] are on disk: what has come may be capped.
    pub fn journalled(&mut self) {
        for policy in self.clocks.iter_mut().flat_map(|clock| &mut clock.policies) {
            policy.journalled = true;
        }
    }

    /// Takes in which CPUs and policies there are; only what an earlier life left on the policy of no core
    /// of ours is taken off at once. Policies that came back are to be let
    /// go, or written anew; those of CPUs that came are capped as their core is, once what was there
    /// before is on disk.
    pub fn rescan(&mut self, scan: Scan) -> Changed {
        let mut changed = Changed::default();
        if let Some(driver) = scan.driver.as_ref().filter(|driver| **driver != self.driver) {
            self.driver_changed(driver);
        }
        for at in 0..self.domains.len() {
            let mine = |other: &&Domain| self.is_of(other, at);
            let mut of = scan.topology.domains().iter().filter(mine).peekable();
            let first = of.peek().map(|first| (first.node, first.package));
            let cpus: CpuList = of.flat_map(|it| it.cpus.iter()).collect();
            let (domain, clock) = (&mut self.domains[at], &mut self.clocks[at]);

            if let Some((node, package)) = first.filter(|_| !clock.seen) {
                (clock.seen, domain.node, domain.package) = (true, node, package);
            }
            if cpus != domain.cpus {
                info!(core = %domain.id, was = %domain.cpus, is = %cpus, "CPUs went or came");
                clock.cpus.extend(cpus.iter());
                domain.cpus = cpus;
                changed.cpus = true;
            }
        }

        let mut back = Vec::new();

        for (id, read) in scan.policies {
            match read {
                Read::Nothing | Read::Back(false) => {}
                Read::Back(true) => back.push(id),
                Read::Driven(Ok(driven)) => {
                    back.push(id);
                    if let Some(policy) = self.of(id) {
                        policy.driver_changed(driven);
                    }
                }
                Read::Driven(Err(error)) => warn!(%error, "policy of another driver"),
                Read::New(policy) => match *policy {
                    Ok(policy) => self.came(&scan.topology, policy),
                    // Still offline.
                    Err(e) if e.is(&[Errno::EBUSY]) => {}
                    Err(error) => warn!(%error, "policy left out"),
                },
            }
        }

        for clock in &mut self.clocks {
            let wanted = clock.wanted.is_some();
            for policy in &mut clock.policies {
                if !online(&scan.topology, &policy.facts.cpus) {
                    policy.away = true;
                } else if policy.away && back.contains(&policy.facts.id) {
                    policy.back(wanted);
                }

                changed.unsettled |= policy.away && online(&scan.topology, &policy.facts.cpus);
                changed.originals |= !policy.journalled;
            }
        }

        changed
    }

    /// Whether a domain of the kernel's is the one at `at`. One that was never online gets what is nobody
    /// else's: it may turn out to be a sibling.
    fn is_of(&self, other: &Domain, at: usize) -> bool {
        let shares = |clock: &Clock| other.cpus.iter().any(|cpu| clock.cpus.contains(cpu));
        let first = |(n, clock): (usize, &Clock)| (clock.seen || n < at) && shares(clock);
        let clock = &self.clocks[at];
        shares(clock) && (clock.seen || !self.clocks.iter().enumerate().any(first))
    }

    /// A policy that was not there at start.
    fn came(&mut self, topology: &Topology, mut policy: Policy) {
        let id = policy.facts.id;
        let left = self.absent.remove(&id);
        let shown = policy.facts.original;

        // Of what an earlier life left the original is in the journal.
        policy.journalled = match left.map(|original| policy.adopt(original, Ok(shown))) {
            Some(Ok(ours)) => ours.is_some(),
            Some(Err(error)) => return warn!(%error, "policy left out"),
            None => false,
        };

        let cpus = topology.of(id.0.into()).map(|domain| &domain.cpus);
        let owns =
            |domain: &Domain| cpus.is_some_and(|cpus| cpus.iter().any(|cpu| domain.cpus.contains(cpu)));
        let Some(at) = self.domains.iter().position(owns) else {
            // Not a core of ours. What an earlier life left on it is taken off once.
            if policy.hold.is_some()
                && let Err(error) = policy.release(&self.root)
            {
                warn!(%error, "policy that came");
                self.absent.extend(left.map(|khz| (id, khz)));
            }

            return;
        };

        let clock = &mut self.clocks[at];

        match clock.wanted {
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

/// Whether one of these CPUs is online.
fn online(topology: &Topology, cpus: &CpuList) -> bool {
    let any = |domain: &Domain| domain.cpus.iter().any(|cpu| cpus.contains(cpu));
    topology.domains().iter().any(any)
}

impl Policy {
    /// It takes values again.
    fn back(&mut self, wanted: bool) {
        self.away = false;
        info!(file = %self.file().display(), "policy is back");
        match &mut self.hold {
            Some(hold) if wanted => hold.push = true,
            hold => self.unwanted = hold.is_some(),
        }
    }
}
