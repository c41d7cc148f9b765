//! Looking after caps: whether they are obeyed, and which cores come and go.
//!
//! Nothing here may delay an alert, so the files are read without holding the caps: [`Cpufreq::to_look`]
//! says what to read, [`Look::read`] reads, [`Cpufreq::looked`] takes it in; and the same with [`Scan`].

use std::path::{Path, PathBuf};

use ballast_types::wire::CoresStatus;
use ballast_types::{CoreId, KiloHertz};
use nix::errno::Errno;
use tracing::{info, warn};

use super::hold::{Hold, Verdict};
use super::policy::{Policy, driver};
use super::{Clock, Cpufreq, Driver, read_khz};
use crate::error::HwError;
use crate::root::{numbered, optional};
use crate::{CpuList, Domain, Root, Topology};

/// What is to be read of the policies with a cap of ours.
#[derive(Debug)]
pub struct Look {
    items: Vec<Item>,
    /// Everything that is capped is looked at.
    all: bool,
}

#[derive(Debug)]
struct Item {
    /// Which policy of which clock; both only ever grow.
    at: (usize, usize),
    file: PathBuf,
    /// What was on it then; a cap that was written meanwhile is not judged by it.
    khz: KiloHertz,
    read: Option<Result<KiloHertz, HwError>>,
}

impl Look {
    /// Reads it, some 10 to 50 ms after the newest cap was written or later: the kernel applies caps
    /// after the write returns.
    #[must_use]
    pub fn read(mut self) -> Self {
        for item in &mut self.items {
            item.read = Some(read_khz(&item.file));
        }
        self
    }
}

/// Which CPUs and policies there are now.
#[derive(Debug)]
pub struct Scan {
    topology: Topology,
    /// `None` if no policy tells.
    driver: Option<Driver>,
    policies: Vec<(CoreId, PathBuf)>,
}

impl Scan {
    /// Reads it.
    ///
    /// # Errors
    /// If the topology cannot be read.
    pub fn read(root: &Root) -> Result<Self, HwError> {
        let topology = Topology::read(root)?;
        let dir = root.path("sys/devices/system/cpu/cpufreq");
        let found = optional(numbered(&dir, "policy"))?.unwrap_or_default();
        let driver = found.iter().find_map(|(_, path)| driver(path).ok());
        let policies = found.into_iter();
        let policies = policies.filter_map(|(n, path)| Some((CoreId(n.try_into().ok()?), path)));
        Ok(Self { topology, driver, policies: policies.collect() })
    }

    fn online(&self, cpus: &CpuList) -> bool {
        self.topology
            .domains()
            .iter()
            .any(|domain| domain.cpus.iter().any(|cpu| cpus.contains(cpu)))
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
    /// Whether anything is capped.
    #[must_use]
    pub fn capped(&self) -> bool {
        self.clocks.iter().any(|clock| clock.wanted.is_some())
    }

    /// What to look at: `all` that is capped, once a second or so; or just what was not seen in force yet.
    #[must_use]
    pub fn to_look(&self, all: bool) -> Look {
        let mut items = Vec::new();
        for (c, clock) in self.clocks.iter().enumerate().filter(|(_, it)| it.wanted.is_some()) {
            for (p, policy) in clock.policies.iter().enumerate().filter(|(_, it)| !it.away) {
                if let Some(hold) = policy.hold.filter(|hold| all || !hold.seen) {
                    items.push(Item { at: (c, p), file: policy.file(), khz: hold.khz, read: None });
                }
            }
        }
        Look { items, all }
    }

    /// Takes in what was seen; true if a scan should follow before anything is pushed.
    pub fn looked(&mut self, look: Look) -> bool {
        let mut scan = std::mem::take(&mut self.unsure);
        for Item { at: (c, p), khz, read, .. } in look.items {
            let policy = &mut self.clocks[c].policies[p];
            let same = policy.hold.is_some_and(|hold| hold.khz == khz);
            let Some(read) = read.filter(|_| same) else { continue };
            let raised = policy.judge(read, look.all);
            self.foreign_writes += u64::from(raised);
            scan |= raised || policy.away;
        }
        scan
    }

    /// The machine slept: firmware may have forgotten every cap, and the kernel believes they are in force.
    pub fn resumed(&mut self) {
        for policy in self.wanted() {
            policy.hold = policy.hold.map(|hold| Hold { push: true, ..hold });
        }
    }

    /// Takes the caps off that must be written anew; true if there are any. Some 10 to 50 ms later
    /// [`Self::tighten`] writes them: a value that the kernel believes to be in force does nothing.
    pub fn loosen(&mut self) -> bool {
        let due = |policy: &&mut Policy| !policy.away && policy.hold.is_some_and(|hold| hold.push);
        let mut any = false;
        for policy in self.wanted().filter(due) {
            any = true;
            if let Err(error) = policy.restore() {
                warn!(%error, "not written anew yet");
            }
        }
        any
    }

    /// Writes them again.
    pub fn tighten(&mut self) {
        let root = self.root.clone();
        for policy in self.wanted() {
            if let Some(mut hold) = policy.hold.filter(|hold| hold.push && !policy.away) {
                hold.pushed();
                if let Err(error) = policy.cap(&root, hold.khz) {
                    warn!(%error, "not written anew yet");
                }
                // One that did not take is found by the next looks.
                policy.hold = Some(hold);
            }
        }
    }

    /// Takes in which CPUs and policies there are. Policies that came back are released, or marked to be
    /// written anew; those of CPUs that came to a known core are capped as the core is. A core that was not
    /// there at start is left alone.
    pub fn rescan(&mut self, scan: &Scan) -> Changed {
        let mut changed = Changed::default();
        if let Some(driver) = scan.driver.as_ref().filter(|driver| **driver != self.driver) {
            self.driver_changed(driver);
            changed.originals = true;
        }
        for (domain, clock) in self.domains.iter_mut().zip(&mut self.clocks) {
            let same = |other: &&Domain| other.cpus.iter().any(|cpu| clock.cpus.contains(cpu));
            let cpus: CpuList =
                scan.topology.domains().iter().filter(same).flat_map(|it| it.cpus.iter()).collect();
            if cpus != domain.cpus {
                info!(core = %domain.id, was = %domain.cpus, is = %cpus, "CPUs went or came");
                clock.cpus.extend(cpus.iter());
                domain.cpus = cpus;
                changed.cpus = true;
            }
        }
        for (id, path) in &scan.policies {
            if !self.policies().any(|policy| policy.id == *id) {
                changed.originals |= self.came(scan, *id, path);
            }
        }
        let root = self.root.clone();
        for clock in &mut self.clocks {
            for policy in &mut clock.policies {
                if !scan.online(&policy.facts.cpus) {
                    policy.away = true;
                } else if policy.away {
                    back(policy, clock.wanted.is_some(), &root);
                    changed.unsettled |= policy.away;
                }
            }
        }
        changed
    }

    /// A policy that was not there at start; true if it is watched from now on.
    fn came(&mut self, scan: &Scan, id: CoreId, path: &Path) -> bool {
        let mut policy = match Policy::read(&self.root, path, id, self.floor) {
            Ok(policy) => policy,
            // Still offline.
            Err(e) if e.is(&[Errno::EBUSY]) => return false,
            Err(error) => {
                warn!(%error, "policy left out");
                return false;
            }
        };
        let left = self.absent.remove(&id);
        if let Some(Err(error)) = left.map(|original| policy.adopt(original)) {
            warn!(%error, "policy left out");
            return false;
        }
        let known = scan.topology.of(id.0.into()).and_then(|domain| {
            let same = |clock: &Clock| domain.cpus.iter().any(|cpu| clock.cpus.contains(cpu));
            self.clocks.iter_mut().find(|clock| same(clock))
        });
        if let Some(khz) = known.as_ref().and_then(|clock| clock.wanted) {
            // Not written before what was there is journalled.
            let khz = khz.min(policy.facts.original);
            policy.hold = Some(Hold { push: true, ..Hold::after(None, khz) });
        } else if let Err(error) = policy.release(&self.root) {
            // An earlier life may have left a cap on it.
            warn!(%error, "policy that came");
        }
        let Some(clock) = known else {
            // Not a core of ours. What could not be released yet is tried at the next scan.
            self.absent.extend(left.filter(|_| policy.hold.is_some()).map(|khz| (id, khz)));
            return false;
        };
        clock.policies.push(policy);
        true
    }

    /// The policies of the cores that are to be capped.
    fn wanted(&mut self) -> impl Iterator<Item = &mut Policy> {
        let wanted = self.clocks.iter_mut().filter(|clock| clock.wanted.is_some());
        wanted.flat_map(|clock| &mut clock.policies)
    }

    fn driver_changed(&mut self, to: &Driver) {
        let was = std::mem::replace(&mut self.driver, to.clone());
        self.former.get_or_insert(was);
        self.absent.clear();
        for policy in self.clocks.iter_mut().flat_map(|clock| &mut clock.policies) {
            if let Err(error) = policy.driver_changed() {
                warn!(%error, "policy of another driver");
            }
        }
    }

    /// How the cores obey.
    #[must_use]
    pub fn status(&self) -> CoresStatus {
        CoresStatus {
            driver: self.driver.name().to_owned(),
            cores: self.domains.len() as u16,
            offline: self.domains.iter().filter(|domain| domain.cpus.is_empty()).count() as u16,
            raised: self.with(|verdict| matches!(verdict, Verdict::Raised(_))).count() as u16,
            limited: self.with(|verdict| matches!(verdict, Verdict::Limited(_))).count() as u16,
            foreign_writes: self.foreign_writes,
        }
    }

    /// What an operator should look at.
    #[must_use]
    pub fn alarms(&self) -> Vec<String> {
        let raised = self.with(|verdict| matches!(verdict, Verdict::Raised(_))).collect::<Vec<_>>();
        let first = raised.first().and_then(|policy| Some((policy.file(), policy.hold?)));
        let raised = first.map(|(file, hold)| {
            let then = if hold.given_up() { "left as it is" } else { "written again" };
            format!(
                "{} cores are raised above their cap by somebody else: {} is not {}: {then}",
                raised.len(),
                file.display(),
                hold.khz.get(),
            )
        });
        let former = self.former.as_ref().filter(|was| **was != self.driver).map(|was| {
            let is = &self.driver;
            format!("the cpufreq driver was {was} at start and is {is} now: restart the agent for its steps")
        });
        raised.into_iter().chain(former).collect()
    }

    /// One policy of every core that has one with such a cap.
    fn with(&self, is: fn(Verdict) -> bool) -> impl Iterator<Item = &Policy> {
        let so = move |policy: &&Policy| policy.hold.is_some_and(|hold| is(hold.verdict));
        self.clocks.iter().filter_map(move |clock| clock.policies.iter().find(so))
    }
}

/// A policy whose CPUs are online takes values again.
fn back(policy: &mut Policy, wanted: bool, root: &Root) {
    // Its folder may come later than its CPU.
    if policy.read_back().is_err() {
        return;
    }
    policy.away = false;
    info!(file = %policy.file().display(), "policy is back");
    match &mut policy.hold {
        Some(hold) if wanted => hold.push = true,
        _ => {
            if let Err(error) = policy.release(root) {
                warn!(%error, "policy that is back");
            }
        }
    }
}
