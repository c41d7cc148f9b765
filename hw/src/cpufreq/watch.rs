//! Looking after caps: whether they are obeyed, and what is written again where they are not.
//!
//! Nothing here may delay an alert. So files are read without holding the caps, and what must be written
//! is written one policy a call. Each step gives the value that the next one takes, so that none can be
//! forgotten or come too early:
//!
//! ```text
//! plan_readback ─▶ ReadbackPlan::read ─▶ apply_readback ─▶ Clear ────────────────────────▶ plan_rewrites
//!                  (without the caps)                    └▶ Unsure ─▶ a scan is tried ──┘  for each of them:
//!                                                           (see ScanPlan)                 lift ─▶ rewrite
//! ```

use std::path::PathBuf;

use ballast_types::KiloHertz;
use tracing::warn;

use super::caps::Cpufreq;
use super::frequency::read_khz;
use super::hold::Hold;
use super::policy::Policy;
use crate::error::HwError;

/// One policy of one clock: the index of the clock and that of the policy. Both lists only ever grow.
pub(super) type PolicyIndex = (usize, usize);

/// Which policies with a cap of ours are to be read.
#[derive(Debug)]
#[must_use = "read it"]
pub struct ReadbackPlan {
    policies: Vec<(Capped, PathBuf)>,
    /// Everything that is capped is read.
    all: bool,
}

/// A policy, and the cap that was on it when the readback was planned: one that is written meanwhile is
/// not judged by it.
#[derive(Clone, Copy, Debug)]
struct Capped {
    policy: PolicyIndex,
    khz: KiloHertz,
}

impl ReadbackPlan {
    /// Reads the policies, some 10 to 50 ms after the newest cap was written or later: the kernel applies
    /// caps after the write returns.
    pub fn read(self) -> Readback {
        let read = |(capped, file): (Capped, PathBuf)| (capped, read_khz(&file));
        Readback { shown: self.policies.into_iter().map(read).collect(), all: self.all }
    }
}

#[derive(Debug)]
#[must_use = "apply it"]
pub struct Readback {
    shown: Vec<(Capped, Result<KiloHertz, HwError>)>,
    all: bool,
}

#[derive(Debug)]
#[must_use = "caps may have to be written again"]
pub enum Judged {
    /// Every policy is where it was: caps may be written again.
    Clear(MayRewrite),
    /// A policy is away, or somebody else has raised it: which CPUs and policies there are must be
    /// scanned first.
    Unsure(ScanFirst),
}

/// A scan must be tried before any cap is written again.
#[derive(Debug)]
#[must_use = "try a scan"]
pub struct ScanFirst(());

impl ScanFirst {
    /// The scan was tried. One that failed holds nothing up: a policy that is away is not written.
    pub fn tried<T>(self, _scan: &Result<T, HwError>) -> MayRewrite {
        MayRewrite(())
    }
}

/// The caps were read back, so that they may be written again.
#[derive(Debug)]
#[must_use = "write again what has to be"]
pub struct MayRewrite(pub(super) ());

/// A cap that must be written again.
#[derive(Debug)]
#[must_use = "lift it, then write it again"]
pub struct RewriteDue(PolicyIndex);

/// A cap that was taken off so that it can be written again.
#[derive(Debug)]
#[must_use = "write it again: it is off"]
pub struct Lifted(PolicyIndex);

impl Cpufreq {
    pub fn capped(&self) -> bool {
        self.clocks.iter().any(|clock| clock.goal.is_some())
    }

    /// What to read: `all` that is capped, once a second or so; or just what was not seen in force yet.
    pub fn plan_readback(&self, all: bool) -> ReadbackPlan {
        let capped = |(policy, it): (PolicyIndex, &Policy)| {
            let hold = it.hold.filter(|hold| it.takes_values() && (all || !hold.observed))?;
            Some((Capped { policy, khz: hold.khz }, it.file()))
        };
        ReadbackPlan { policies: self.to_be_capped().filter_map(capped).collect(), all }
    }

    pub fn apply_readback(&mut self, readback: Readback) -> Judged {
        let mut unsure = std::mem::take(&mut self.unsure);

        for (Capped { policy, khz }, shown) in readback.shown {
            let policy = self.policy(policy);
            if policy.hold.is_none_or(|hold| hold.khz != khz) {
                continue;
            }
            let raised = policy.judge(shown, readback.all);
            unsure |= raised || policy.away;
            self.foreign_writes += u64::from(raised);
        }

        if unsure { Judged::Unsure(ScanFirst(())) } else { Judged::Clear(MayRewrite(())) }
    }

    /// The machine slept: firmware may have forgotten every cap, and the kernel believes they are in force.
    pub fn resumed(&mut self) {
        for clock in self.clocks.iter_mut().filter(|clock| clock.goal.is_some()) {
            for policy in &mut clock.policies {
                policy.hold = policy.hold.map(|hold| Hold { push: true, ..hold });
            }
        }
    }

    /// The caps that must be written again: [`Self::lift`] each, and some 10 to 50 ms later
    /// [`Self::rewrite`] it, since a value that the kernel believes to be in force does nothing.
    pub fn plan_rewrites(&self, _: MayRewrite) -> Vec<RewriteDue> {
        let due = self.to_be_capped().filter(|(_, policy)| policy.is_due());
        due.map(|(policy, _)| RewriteDue(policy)).collect()
    }

    /// Takes one of them off, unless it need not be on any more.
    pub fn lift(&mut self, RewriteDue(policy): RewriteDue) -> Lifted {
        if self.is_due(policy)
            && let Err(error) = self.policy(policy).restore()
        {
            warn!(%error, "a cap that must be written again could not be lifted: it is tried again");
        }
        Lifted(policy)
    }

    /// Writes it again, unless it need not be on any more.
    pub fn rewrite(&mut self, Lifted(policy): Lifted) {
        let root = self.root.clone();
        let is_due = self.is_due(policy);
        let policy = self.policy(policy);

        if let Some(mut hold) = policy.hold.filter(|_| is_due) {
            hold.pushed();
            if let Err(error) = policy.cap(&root, hold.khz) {
                warn!(%error, "a cap could not be written again: it is tried again");
            }
            // One that did not take is found by the next readback.
            policy.hold = Some(hold);
        }
    }

    fn to_be_capped(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> {
        let clocks = self.clocks.iter().enumerate().filter(|(_, clock)| clock.goal.is_some());
        clocks.flat_map(|(c, clock)| clock.policies.iter().enumerate().map(move |(p, it)| ((c, p), it)))
    }

    pub(super) fn policy(&mut self, (clock, policy): PolicyIndex) -> &mut Policy {
        &mut self.clocks[clock].policies[policy]
    }

    fn is_due(&self, (clock, policy): PolicyIndex) -> bool {
        let clock = &self.clocks[clock];
        clock.goal.is_some() && clock.policies[policy].is_due()
    }
}

impl Policy {
    fn takes_values(&self) -> bool {
        !self.away && self.journalled
    }

    /// Whether its cap must be written again.
    fn is_due(&self) -> bool {
        self.takes_values() && self.hold.is_some_and(|hold| hold.push)
    }
}
