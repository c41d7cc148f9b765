//! Looking after caps: whether they are obeyed.
//!
//! Nothing here may delay an alert. So the files are read without holding the caps: [`Cpufreq::to_look`]
//! says what to read, [`Look::read`] reads, [`Cpufreq::looked`] takes it in. What must be written is
//! written one policy a call.

use std::path::PathBuf;

use ballast_types::KiloHertz;
use ballast_types::wire::CoresStatus;
use tracing::warn;

use super::hold::{Hold, Verdict};
use super::policy::Policy;
use super::{Cpufreq, read_khz};
use crate::error::HwError;

/// What is to be read of the policies with a cap of ours.
#[derive(Debug)]
pub struct Look {
    items: Vec<Item>,
    /// Everything that is capped is looked at.
    all: bool,
}

#[derive(Debug)]
struct Item {
    at: Spot,
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

/// One policy of one clock; both only ever grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot(usize, usize);

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
            for (p, policy) in clock.policies.iter().enumerate().filter(|(_, it)| it.takes()) {
                if let Some(hold) = policy.hold.filter(|hold| all || !hold.seen) {
                    items.push(Item { at: Spot(c, p), file: policy.file(), khz: hold.khz, read: None });
                }
            }
        }
        Look { items, all }
    }

    /// Takes in what was seen; true if a scan should follow before anything is pushed.
    pub fn looked(&mut self, look: Look) -> bool {
        let mut scan = std::mem::take(&mut self.unsure);
        for Item { at, khz, read, .. } in look.items {
            let policy = self.at(at);
            let same = policy.hold.is_some_and(|hold| hold.khz == khz);
            let Some(read) = read.filter(|_| same) else { continue };
            let raised = policy.judge(read, look.all);
            scan |= raised || policy.away;
            self.foreign_writes += u64::from(raised);
        }
        scan
    }

    /// The machine slept: firmware may have forgotten every cap, and the kernel believes they are in force.
    pub fn resumed(&mut self) {
        for policy in self.wanted() {
            policy.hold = policy.hold.map(|hold| Hold { push: true, ..hold });
        }
    }

    /// The caps that must be written anew: [`Self::lift_to_rewrite`] each, and some 10 to 50 ms later
    /// [`Self::rewrite`] it, since a value that the kernel believes to be in force does nothing.
    #[must_use]
    pub fn to_push(&self) -> Vec<Spot> {
        let mut due = Vec::new();
        for (c, clock) in self.clocks.iter().enumerate().filter(|(_, it)| it.wanted.is_some()) {
            let spots = clock.policies.iter().enumerate().filter(|(_, policy)| policy.is_due());
            due.extend(spots.map(|(p, _)| Spot(c, p)));
        }
        due
    }

    /// Takes one of them off, unless it is not wanted any more.
    pub fn lift_to_rewrite(&mut self, spot: Spot) {
        if self.is_due(spot)
            && let Err(error) = self.at(spot).restore()
        {
            warn!(%error, "not written anew yet");
        }
    }

    /// Writes it again, unless it is not wanted any more.
    pub fn rewrite(&mut self, spot: Spot) {
        let root = self.root.clone();
        let is_due = self.is_due(spot);
        let policy = self.at(spot);
        if let Some(mut hold) = policy.hold.filter(|_| is_due) {
            hold.pushed();
            if let Err(error) = policy.cap(&root, hold.khz) {
                warn!(%error, "not written anew yet");
            }
            // One that did not take is found by the next looks.
            policy.hold = Some(hold);
        }
    }

    /// Takes one cap off that is not wanted on a policy that came or is back; false once there is none.
    pub fn let_go(&mut self) -> bool {
        let root = self.root.clone();
        let due = |policy: &&mut Policy| policy.unwanted && !policy.away;
        let Some(policy) = self.clocks.iter_mut().flat_map(|it| &mut it.policies).find(due) else {
            return false;
        };
        policy.unwanted = false;
        if let Err(error) = policy.release(&root) {
            warn!(%error, "policy that came");
        }
        true
    }

    /// The policies of the cores that are to be capped.
    fn wanted(&mut self) -> impl Iterator<Item = &mut Policy> {
        let wanted = self.clocks.iter_mut().filter(|clock| clock.wanted.is_some());
        wanted.flat_map(|clock| &mut clock.policies)
    }

    fn at(&mut self, Spot(clock, policy): Spot) -> &mut Policy {
        &mut self.clocks[clock].policies[policy]
    }

    fn is_due(&self, Spot(clock, policy): Spot) -> bool {
        let clock = &self.clocks[clock];
        clock.wanted.is_some() && clock.policies[policy].is_due()
    }

    /// How the cores obey.
    #[must_use]
    pub fn status(&self) -> CoresStatus {
        let both = self.domains.iter().zip(&self.clocks);
        let seen = both.filter(|(_, clock)| clock.seen).map(|(domain, _)| domain);
        CoresStatus {
            driver: self.driver.name().to_owned(),
            cores: seen.clone().count() as u16,
            offline: seen.filter(|domain| domain.cpus.is_empty()).count() as u16,
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

impl Policy {
    /// Whether it may be written.
    fn takes(&self) -> bool {
        !self.away && self.journalled
    }

    /// Whether its cap must be written anew.
    fn is_due(&self) -> bool {
        self.takes() && self.hold.is_some_and(|hold| hold.push)
    }
}
