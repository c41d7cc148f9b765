//! The caps on every clock domain of this machine: found, set and taken off.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ballast_types::{Core, CoreId, KiloHertz, Ladder};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::driver::Driver;
use super::frequency::{DIR, Floor};
use super::kernel_limits::KernelLimits;
use super::ladder::common;
use super::policy::{Policy, PolicyFacts};
use crate::error::{HwError, Operation};
use crate::root::numbered;
use crate::{CpuList, Domain, Root, Topology};

/// What was there before anything was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpufreqOriginals {
    /// `scaling_driver`; another driver has other limits, and has dropped ours.
    pub driver: String,
    /// `scaling_max_freq` per policy: what is written back, so 2147483647 where nobody had limited it.
    pub max_khz: BTreeMap<CoreId, KiloHertz>,
}

/// Every clock domain of this machine that can be capped.
#[derive(Debug)]
pub struct Cpufreq {
    pub(super) root: Root,
    pub(super) floor: Floor,
    pub(super) driver: Driver,
    /// The driver at start, if there is another one now.
    pub(super) former: Option<Driver>,
    pub(super) domains: Vec<Domain>,
    /// What each of them is capped by.
    pub(super) clocks: Vec<Clock>,
    /// What a previous instance saved of policies that are offline since the start.
    pub(super) absent: BTreeMap<CoreId, KiloHertz>,
    /// How often somebody else raised a cap.
    pub(super) foreign_writes: u64,
    /// A write found a policy away.
    pub(super) unsure: bool,
    /// What is put back has changed, and is not on disk yet.
    pub(super) unwritten: bool,
}

#[derive(Debug)]
pub(super) struct Clock {
    /// What all its policies can be capped to.
    pub(super) ladder: Ladder,
    /// Every CPU that it was seen with.
    pub(super) cpus: CpuList,
    pub(super) was_online: bool,
    /// The cap in force, or meant to be.
    pub(super) goal: Option<KiloHertz>,
    pub(super) policies: Vec<Policy>,
}

impl Cpufreq {
    /// Reads every policy and works out what it can be capped to. Changes nothing.
    ///
    /// A policy whose CPUs are all offline (EBUSY) is left out, and so is a domain without a policy. Fails if
    /// there is no policy, a file of one is missing or garbage, or the policies of a domain have no step in
    /// common.
    pub fn discover(root: &Root, floor: Floor) -> Result<Self, HwError> {
        let dir = root.path(DIR);
        let topology = Topology::read(root)?;
        let mut driver = None;
        let mut clocks = BTreeMap::<CoreId, Clock>::new();
        let kernel = KernelLimits::new(root);

        for (number, path) in numbered(&dir, "policy")? {
            let id = u16::try_from(number)
                .map_err(|_| HwError::value(&path, Operation::Read, number, "a policy number up to 65535"))?;
            let policy = match Policy::read(root, &path, CoreId(id), floor, &kernel) {
                Ok(policy) => policy,
                Err(e) if e.is(&[Errno::EBUSY]) => {
                    warn!(%e, "a cpufreq policy is offline: it is not capped until its CPUs are online");
                    continue;
                }
                Err(e) => return Err(e),
            };

            let Some(domain) = topology.of(number) else {
                warn!(policy = %path.display(), "no CPU of a cpufreq policy is online: it is not capped \
                    until one is");
                continue;
            };

            driver.get_or_insert_with(|| policy.facts.driver.clone());

            match clocks.get_mut(&domain.id) {
                Some(clock) => {
                    clock.ladder = common(&clock.ladder, &policy.facts.ladder).ok_or_else(|| {
                        let steps = format!("{:?}", policy.facts.ladder);
                        let allowed = "a step that the core's other policies have as well";
                        HwError::value(&path, Operation::Read, steps, allowed)
                    })?;
                    clock.policies.push(policy);
                }
                None => {
                    let (ladder, cpus) = (policy.facts.ladder.clone(), domain.cpus.clone());
                    let clock = Clock { ladder, cpus, was_online: true, goal: None, policies: vec![policy] };
                    clocks.insert(domain.id, clock);
                }
            }
        }

        let driver = driver.ok_or_else(|| {
            HwError::value(&dir, Operation::Read, "no policy", "at least one online policyN")
        })?;
        let domains =
            topology.domains().iter().filter(|domain| clocks.contains_key(&domain.id)).cloned().collect();

        Ok(Self::from_parts(root, floor, driver, domains, clocks.into_values().collect()))
    }

    pub(super) fn from_parts(
        root: &Root,
        floor: Floor,
        driver: Driver,
        domains: Vec<Domain>,
        clocks: Vec<Clock>,
    ) -> Self {
        Self {
            root: root.clone(),
            floor,
            driver,
            former: None,
            domains,
            clocks,
            absent: BTreeMap::new(),
            foreign_writes: 0,
            unsure: false,
            unwritten: false,
        }
    }

    /// The domains that can be capped, or will be once they are online, ascending by id. One whose CPUs are
    /// all offline has no CPU.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// One core per domain, ascending by id.
    pub fn cores(&self) -> Vec<Core> {
        let both = self.domains.iter().zip(&self.clocks);
        both.map(|(domain, clock)| Core { id: domain.id, ladder: clock.ladder.clone() }).collect()
    }

    /// One core per CPU, ascending by id: for what follows threads and caps no clock.
    pub fn cpus(&self) -> Vec<Core> {
        let both = self.domains.iter().zip(&self.clocks);
        let cpus = both.flat_map(|(domain, clock)| {
            domain.cpus.iter().map(|cpu| Core { id: CoreId(cpu as u16), ladder: clock.ladder.clone() })
        });
        let mut cpus: Vec<_> = cpus.collect();
        cpus.sort_unstable_by_key(|core| core.id);
        cpus
    }

    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    pub fn policies(&self) -> impl Iterator<Item = &PolicyFacts> {
        self.all().map(|policy| &policy.facts)
    }

    /// What must be put back at the end.
    pub fn originals(&self) -> CpufreqOriginals {
        let present = self.policies().map(|policy| (policy.id, policy.put_back()));
        let max_khz = self.absent.clone().into_iter().chain(present).collect();
        CpufreqOriginals { driver: self.driver.name().to_owned(), max_khz }
    }

    /// Takes over what a previous instance of the agent had found, and tells which cores it left capped.
    ///
    /// A core counts as capped if it stands below its original; to its floor, if below that. One that stands
    /// at or above its original was changed by somebody else since: the present value is kept.
    pub fn adopt(&mut self, saved: &CpufreqOriginals) -> Result<Vec<(CoreId, KiloHertz)>, HwError> {
        if saved.driver != self.driver.name() {
            warn!(
                was = saved.driver,
                is = %self.driver,
                "the cpufreq driver is another one than the journal's: what the previous instance saved \
                 does not apply"
            );

            return Ok(Vec::new());
        }

        self.absent = saved.max_khz.clone();
        let mut capped = Vec::new();

        for (domain, clock) in self.domains.iter().zip(&mut self.clocks) {
            let top = clock.ladder.max();
            let (mut any, mut highest) = (false, KiloHertz::default());
            for policy in &mut clock.policies {
                let original = self.absent.remove(&policy.facts.id);
                let ours = original.map_or(Ok(None), |khz| policy.adopt(khz, policy.read_back()))?;
                any |= ours.is_some();

                // The clock follows the highest request of its threads.
                highest = highest.max(ours.unwrap_or(top).min(top));
            }

            // Lower than our lowest is a stronger limit of the kernel, and ours may be hidden behind it.
            if any {
                let khz = highest.max(clock.ladder.floor());
                clock.goal = Some(khz);
                capped.push((domain.id, khz));
            }
        }

        Ok(capped)
    }

    /// Caps one core, all its policies. Never raises one above what it was limited to before. Where its CPUs
    /// are offline nothing has to be done, until they are back. Fails if there is no such core, the frequency
    /// is outside its ladder, or the kernel refuses; then all policies were tried.
    pub fn set(&mut self, core: CoreId, khz: KiloHertz) -> Result<(), HwError> {
        let at = self.index(core)?;
        let clock = &mut self.clocks[at];
        let (low, high) = (clock.ladder.floor(), clock.ladder.max());
        if !(low..=high).contains(&khz) {
            let allowed = format!("{} to {high}", low.get());
            return Err(HwError::value(&name(core), Operation::Write, khz, allowed));
        }
        clock.goal = Some(khz);
        // One that came later may have another floor than its core was thought to have.
        let done = clock.each(|policy| policy.cap(&self.root, khz.max(policy.facts.ladder.floor())));
        self.unsure |= clock.policies.iter().any(|policy| policy.away);
        done
    }

    /// Takes our cap off one core; does nothing if there is none.
    ///
    /// Where nobody had limited it before, it is left without any user limit; otherwise the limit of before
    /// is put back. What somebody else has raised above our cap since is theirs, and stays. Fails if there is
    /// no such core, or the kernel refuses; then all policies were tried.
    pub fn release(&mut self, core: CoreId) -> Result<(), HwError> {
        let at = self.index(core)?;
        let clock = &mut self.clocks[at];
        clock.goal = None;
        clock.each(|policy| policy.release(&self.root))
    }

    /// Takes our caps off every core; tells what is left. A policy that is offline keeps its limit, so one
    /// that is or may be ours is left on it; a policy that is gone has none.
    pub fn release_all(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for at in 0..self.domains.len() {
            left.extend(self.release(self.domains[at].id).err().map(|error| error.to_string()));
        }
        let away = self.all().filter(|policy| policy.away && policy.hold.is_some());
        let mut offline: Vec<_> = away.map(Policy::file).collect();
        let file = |id: &CoreId| self.root.path(&format!("{DIR}/policy{id}/scaling_max_freq"));
        offline.extend(self.absent.keys().map(file));
        offline.retain(|file| file.exists());
        left.extend(offline.iter().map(|file| format!("{}: its CPUs are offline", file.display())));
        left
    }

    /// The limit in force: the highest of its policies, each of which has the least of our limit and the
    /// kernel's own. Fails if there is no such core, or a file of it is unreadable or garbage. Policies that
    /// are offline do not count.
    pub fn read_back(&self, core: CoreId) -> Result<KiloHertz, HwError> {
        let at = self.index(core)?;
        let highest = |max: KiloHertz, policy: &Policy| Ok(max.max(policy.read_back()?));
        self.clocks[at].policies.iter().filter(|policy| !policy.away).try_fold(KiloHertz::default(), highest)
    }

    fn index(&self, core: CoreId) -> Result<usize, HwError> {
        self.domains
            .binary_search_by_key(&core, |domain| domain.id)
            .map_err(|_| HwError::value(&name(core), Operation::Read, core, "a core that was found at start"))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Policy> {
        self.clocks.iter().flat_map(|clock| &clock.policies)
    }
}

impl Clock {
    /// Does something to every policy; gives the first error.
    fn each(&mut self, act: impl Fn(&mut Policy) -> Result<(), HwError>) -> Result<(), HwError> {
        let mut result = Ok(());
        for policy in &mut self.policies {
            result = result.and(act(policy));
        }
        result
    }
}

/// How a core is named where no single file is to blame.
fn name(core: CoreId) -> PathBuf {
    PathBuf::from(format!("sys/devices/system/cpu/cpu{core}/cpufreq"))
}
