//! What of the past is learnt from, and what is held out. Deployments are never torn apart.
//!
//! Split by time, where the history is long enough:
//! ```text
//! first arrival   warm-up         fit         until_s        hold-out       horizon_s
//!       ├─────────────┼─────────────────────────┼─────────────────────────────┤
//! ```
//! Nothing that became known at `until_s` or later is fitted to. Arrivals of the warm-up make history but
//! are not learnt from: there every subscription looks new. When the hold-out has been scored, all of it is
//! learnt from.
//!
//! A label is known a week after its VM arrived. Under six weeks that leaves nothing to split by time:
//! then a quarter of the deployments is held out, and each VM is told of by the other deployments.

use std::collections::BTreeSet;

use ballast_types::{SplitMix64, VmClass};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::features::FeatureRow;
use crate::history::{self, Arrival};
use crate::vm::{self, Bucket, DAY_S, VmHistory};

/// The hold-out's share of the time, or of the deployments.
const HOLDOUT: f64 = 0.25;
/// The warm-up's, at most.
const WARM_UP: f64 = 0.25;
/// And no longer than this.
const WARM_UP_S: i64 = 14 * DAY_S;
/// The shortest history whose labels are split by time.
const SIX_WEEKS_S: i64 = 42 * DAY_S;
/// Fewer rows of a class or side than this are not learnt from, or scored on.
const MIN_ROWS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The first arrival that is learnt from or later, in Unix seconds.
    pub from_s: i64,
    pub until_s: i64,
    /// The last thing that is known.
    pub horizon_s: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}: {count} VMs; at least {MIN_ROWS} are needed")]
pub struct TooFew {
    pub what: String,
    pub count: usize,
}

/// How a hold-out is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitBy {
    /// It came last.
    Time,
    /// Its deployments were drawn; it is of the same time as what was learnt from.
    Deployments,
}

/// Rows with their answers; the first of two answers is `false`.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRows<A> {
    pub rows: Vec<FeatureRow>,
    pub answers: Vec<A>,
    pub vms: Vec<usize>,
    pub deployments: Vec<u32>,
}

impl<A: Copy> TrainingRows<A> {
    pub(crate) fn none() -> Self {
        Self { rows: Vec::new(), answers: Vec::new(), vms: Vec::new(), deployments: Vec::new() }
    }

    pub(crate) fn push(&mut self, vm: usize, deployment: u32, row: FeatureRow, answer: A) {
        self.rows.push(row);
        self.answers.push(answer);
        self.vms.push(vm);
        self.deployments.push(deployment);
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn count(&self, test: impl Fn(A) -> bool) -> usize {
        self.answers.iter().filter(|answer| test(**answer)).count()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Question<A> {
    pub by: SplitBy,
    /// What is learnt from before the scoring.
    pub fit: TrainingRows<A>,
    pub held_out: TrainingRows<A>,
    /// All that is learnt from in the end.
    pub all: TrainingRows<A>,
}

/// VMs of the past with the features of each, and their split.
#[derive(Debug)]
pub struct Prepared<'a> {
    vms: &'a [VmHistory],
    pub split: Split,
    deployments: Vec<u32>,
    arrivals: Vec<Arrival>,
}

impl Split {
    pub fn of(vms: &[VmHistory]) -> Self {
        let first = vms.iter().map(|vm| vm.arrival_s).min().unwrap_or(0);
        let horizon_s = vms.iter().map(|vm: &VmHistory| vm.end_s.unwrap_or(vm.arrival_s)).max().unwrap_or(0);
        let span = (horizon_s - first) as f64;
        let warm_up = ((span * WARM_UP) as i64).min(WARM_UP_S);
        Self { from_s: first + warm_up, until_s: horizon_s - (span * HOLDOUT) as i64, horizon_s }
    }
}

impl<'a> Prepared<'a> {
    pub fn new(vms: &'a [VmHistory]) -> Self {
        let deployments = vm::deployments(vms);
        let arrivals = history::arrivals(vms, &deployments);
        Self { vms, split: Split::of(vms), deployments, arrivals }
    }

    /// What the class is learnt from: VMs that are five weekdays old. `true` is batch.
    pub fn class(&self) -> Result<Question<bool>, TooFew> {
        let tell = |vm: &VmHistory| {
            let class = vm.class? == VmClass::NonUserFacing;
            Some((vm.aged_s()?, class))
        };
        let sound = |question: &Question<bool>| {
            for (batch, what) in [(false, "user-facing"), (true, "non-user-facing")] {
                let found = question.fit.count(|answer| answer == batch);
                enough(&format!("{what}, five weekdays old, to learn from"), found)?;
            }
            enough("with a class to score on", question.held_out.len())
        };
        let long = self.split.horizon_s - self.first_s() >= SIX_WEEKS_S;
        self.question(tell, sound, long)
    }

    /// What the P95 is learnt from: VMs that have ended or are five weekdays old.
    pub fn p95(&self) -> Result<Question<Bucket>, TooFew> {
        let tell = |vm: &VmHistory| Some((vm.observed_s(), vm.bucket()?));
        let sound = |question: &Question<Bucket>| {
            for bucket in Bucket::ALL {
                let found = question.fit.count(|answer| answer == bucket);
                enough(&format!("P95 bucket {} to learn from", bucket.number()), found)?;
            }
            enough("with a P95 to score on", question.held_out.len())
        };
        self.question(tell, sound, true)
    }

    /// The rows of a question that `tell` answers, with the second at which the answer was known: by time
    /// where that may be and suffices.
    fn question<A: Copy>(
        &self,
        tell: impl Fn(&VmHistory) -> Option<(i64, A)>,
        sound: impl Fn(&Question<A>) -> Result<(), TooFew>,
        by_time: bool,
    ) -> Result<Question<A>, TooFew> {
        if by_time {
            let question = self.by_time(&tell);
            if sound(&question).is_ok() {
                return Ok(question);
            }
        }
        let question = self.by_deployments(&tell);
        sound(&question).map(|()| question)
    }

    fn by_time<A: Copy>(&self, tell: impl Fn(&VmHistory) -> Option<(i64, A)>) -> Question<A> {
        let Split { from_s, until_s, horizon_s } = self.split;
        let mut question = Question::none(SplitBy::Time);
        let mut later = Vec::new();

        for arrival in self.arrivals.iter().filter(|arrival| self.vms[arrival.vm].arrival_s >= from_s) {
            let vm = &self.vms[arrival.vm];
            let Some((at_s, answer)) = tell(vm).filter(|(at_s, _)| *at_s <= horizon_s) else { continue };
            let deployment = self.deployments[arrival.vm];
            question.all.push(arrival.vm, deployment, arrival.row, answer);
            if at_s < until_s {
                question.fit.push(arrival.vm, deployment, arrival.row, answer);
            } else if vm.arrival_s >= until_s {
                later.push((arrival, answer));
            }
        }

        // One that began before and went on arriving is learnt from already.
        let learnt: BTreeSet<u32> = question.fit.deployments.iter().copied().collect();
        for (arrival, answer) in later {
            let deployment = self.deployments[arrival.vm];
            if !learnt.contains(&deployment) {
                question.held_out.push(arrival.vm, deployment, arrival.row, answer);
            }
        }

        question
    }

    fn by_deployments<A: Copy>(&self, tell: impl Fn(&VmHistory) -> Option<(i64, A)>) -> Question<A> {
        let at_s = self.split.horizon_s;
        let told = |vm: usize| tell(&self.vms[vm]).filter(|(known_s, _)| *known_s <= at_s);
        let picked: Vec<usize> =
            self.arrivals.iter().map(|a| a.vm).filter(|vm| told(*vm).is_some()).collect();
        let held_out = self.drawn();
        let mut question = Question::none(SplitBy::Deployments);

        for arrival in history::beside_others(self.vms, &self.deployments, &picked, at_s + 1) {
            let Some((_, answer)) = told(arrival.vm) else { continue };
            let deployment = self.deployments[arrival.vm];
            let part = match held_out[deployment as usize] {
                true => &mut question.held_out,
                false => &mut question.fit,
            };
            part.push(arrival.vm, deployment, arrival.row, answer);
            question.all.push(arrival.vm, deployment, arrival.row, answer);
        }

        question
    }

    /// Which deployments are held out: by a hash of whose and which they are, so that it is the same ones
    /// when a day has been added.
    fn drawn(&self) -> Vec<bool> {
        let mut drawn = vec![None; self.deployments.len()];
        for vm in self.arrivals.iter().map(|arrival| arrival.vm) {
            let VmHistory { subscription, deployment, arrival_s, .. } = &self.vms[vm];
            let first = if deployment.is_empty() { arrival_s.to_string() } else { deployment.clone() };
            let mix = |hash, byte| SplitMix64::first(hash ^ u64::from(byte));
            let hash = || subscription.bytes().chain([0]).chain(first.bytes()).fold(0, mix);
            let share = || (hash() >> 11) as f64 / (1_u64 << 53) as f64;
            drawn[self.deployments[vm] as usize].get_or_insert_with(|| share() < HOLDOUT);
        }
        drawn.into_iter().map(|drawn| drawn == Some(true)).collect()
    }

    fn first_s(&self) -> i64 {
        self.arrivals.first().map_or(0, |arrival| self.vms[arrival.vm].arrival_s)
    }
}

impl<A: Copy> Question<A> {
    fn none(by: SplitBy) -> Self {
        Self { by, fit: TrainingRows::none(), held_out: TrainingRows::none(), all: TrainingRows::none() }
    }
}

fn enough(what: &str, count: usize) -> Result<(), TooFew> {
    if count < MIN_ROWS { Err(TooFew { what: what.to_owned(), count }) } else { Ok(()) }
}
