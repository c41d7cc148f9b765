//! What of the past is learnt from, what the threshold is chosen on, and what is held out. Split by time.
//!
//! ```text
//! first arrival   warm-up    fit          tune    until_s      hold-out      horizon_s
//!       ├─────────────┼────────────────────┼─────────┼────────────────────────────┤
//! ```
//! Nothing that became known at `until_s` or later is learnt from. Arrivals of the warm-up make history but
//! are not learnt from: there every subscription looks new.

use ballast_types::VmClass;
use thiserror::Error;

use crate::features::{FeatureRow, Types};
use crate::history::{self, Arrival};
use crate::vm::{Bucket, DAY_S, VmHistory};

/// The hold-out's share of the time.
const HOLDOUT: f64 = 0.25;
/// The warm-up's, at most.
const WARM_UP: f64 = 0.25;
/// And no longer than this.
const WARM_UP_S: i64 = 14 * DAY_S;
/// Of the rows that may be learnt from, so many at the end choose the threshold and stop the boosting.
const TUNE: f64 = 0.2;
/// Fewer rows of a class or side than this are not learnt from, or scored on.
const MIN_ROWS: usize = 20;

/// When what begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The first arrival that is learnt from or later, in Unix seconds.
    pub from_s: i64,
    pub until_s: i64,
    /// The last thing that is known.
    pub horizon_s: i64,
}

/// Too little to learn from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}: {count} VMs; at least {MIN_ROWS} are needed")]
pub struct TooFew {
    /// What there is too little of.
    pub what: String,
    /// How many there are.
    pub count: usize,
}

/// Rows with their answers; the first of two answers is `false`.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRows<A> {
    pub rows: Vec<FeatureRow>,
    pub answers: Vec<A>,
    /// Which VM each is.
    pub vms: Vec<usize>,
}

impl<A: Copy> TrainingRows<A> {
    pub(crate) fn none() -> Self {
        Self { rows: Vec::new(), answers: Vec::new(), vms: Vec::new() }
    }

    pub(crate) fn push(&mut self, vm: usize, row: FeatureRow, answer: A) {
        self.rows.push(row);
        self.answers.push(answer);
        self.vms.push(vm);
    }

    /// Takes what stands from `at` on.
    fn split_off(&mut self, at: usize) -> Self {
        let Self { rows, answers, vms } = self;
        Self { rows: rows.split_off(at), answers: answers.split_off(at), vms: vms.split_off(at) }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// One question's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Question<A> {
    /// What is learnt from.
    pub fit: TrainingRows<A>,
    /// What thresholds are chosen on.
    pub tune: TrainingRows<A>,
}

impl Split {
    /// Splits the time of these VMs.
    pub fn of(vms: &[VmHistory]) -> Self {
        let first = vms.iter().map(|vm| vm.arrival_s).min().unwrap_or(0);
        let last = |vm: &VmHistory| vm.end_s.unwrap_or(vm.arrival_s);
        let horizon_s = vms.iter().map(last).max().unwrap_or(0);
        let span = (horizon_s - first) as f64;
        let warm_up = ((span * WARM_UP) as i64).min(WARM_UP_S);
        Self { from_s: first + warm_up, until_s: horizon_s - (span * HOLDOUT) as i64, horizon_s }
    }

    /// What the class is learnt from: VMs that were five weekdays old before the hold-out. `true` is batch.
    pub fn class(self, vms: &[VmHistory], arrivals: &[Arrival]) -> Result<Question<bool>, TooFew> {
        let known = |vm: &VmHistory| vm.aged_s().filter(|_| vm.class.is_some());
        let rows = self.past(vms, arrivals, known, |vm| vm.class == Some(VmClass::NonUserFacing));
        for (batch, what) in [(false, "user-facing"), (true, "non-user-facing")] {
            for (rows, part) in [(&rows.fit, "to learn from"), (&rows.tune, "to choose a threshold on")] {
                let found = rows.answers.iter().filter(|answer| **answer == batch).count();
                enough(&format!("{what}, five weekdays old, {part}"), found)?;
            }
        }
        Ok(rows)
    }

    /// What the P95 is learnt from: VMs that had ended or were five weekdays old before the hold-out.
    pub fn p95(self, vms: &[VmHistory], arrivals: &[Arrival]) -> Result<Question<Bucket>, TooFew> {
        let known = |vm: &VmHistory| vm.bucket().map(|_| vm.observed_s());
        let rows = self.past(vms, arrivals, known, |vm| vm.bucket().unwrap_or(Bucket::HIGHEST));
        for bucket in Bucket::ALL {
            let found = rows.fit.answers.iter().filter(|answer| **answer == bucket).count();
            enough(&format!("P95 bucket {} to learn from", bucket.number()), found)?;
        }
        Ok(rows)
    }

    /// What the class is scored on: VMs that arrived in the hold-out and are five weekdays old by now.
    pub fn class_held_out(
        self,
        vms: &[VmHistory],
        arrivals: &[Arrival],
    ) -> Result<TrainingRows<bool>, TooFew> {
        let rows = self.held_out(vms, arrivals, |vm| {
            let aged = vm.aged_s().is_some_and(|aged| aged <= self.horizon_s);
            vm.class.filter(|_| aged).map(|class| class == VmClass::NonUserFacing)
        });
        enough("with a class to score on", rows.len())?;
        Ok(rows)
    }

    /// What the P95 is scored on: VMs that arrived in the hold-out and have ended or aged by now.
    pub fn p95_held_out(
        self,
        vms: &[VmHistory],
        arrivals: &[Arrival],
    ) -> Result<TrainingRows<Bucket>, TooFew> {
        let rows =
            self.held_out(vms, arrivals, |vm| vm.bucket().filter(|_| vm.observed_s() <= self.horizon_s));
        enough("with a P95 to score on", rows.len())?;
        Ok(rows)
    }

    fn past<A: Copy>(
        self,
        vms: &[VmHistory],
        arrivals: &[Arrival],
        observed_s: impl Fn(&VmHistory) -> Option<i64>,
        answer: impl Fn(&VmHistory) -> A,
    ) -> Question<A> {
        let mut fit = TrainingRows::none();
        for arrival in arrivals {
            let vm = &vms[arrival.vm];
            if vm.arrival_s >= self.from_s && observed_s(vm).is_some_and(|at| at < self.until_s) {
                fit.push(arrival.vm, arrival.row, answer(vm));
            }
        }
        let tune = fit.split_off(fit.len() - (fit.len() as f64 * TUNE) as usize);
        Question { fit, tune }
    }

    fn held_out<A: Copy>(
        self,
        vms: &[VmHistory],
        arrivals: &[Arrival],
        answer: impl Fn(&VmHistory) -> Option<A>,
    ) -> TrainingRows<A> {
        let mut rows = TrainingRows::none();
        for arrival in arrivals.iter().filter(|a| vms[a.vm].arrival_s >= self.until_s) {
            if let Some(answer) = answer(&vms[arrival.vm]) {
                rows.push(arrival.vm, arrival.row, answer);
            }
        }
        rows
    }
}

/// All arrivals with their features, and the numbers of the VM types: those that arrived before the hold-out.
pub fn prepared(vms: &[VmHistory], split: Split) -> (Types, Vec<Arrival>) {
    let before = vms.iter().filter(|vm| vm.arrival_s < split.until_s);
    let types = Types::among(before.map(|vm| vm.vm_type.as_str()));
    let arrivals = history::arrivals(vms, &types);
    (types, arrivals)
}

fn enough(what: &str, count: usize) -> Result<(), TooFew> {
    if count < MIN_ROWS { Err(TooFew { what: what.to_owned(), count }) } else { Ok(()) }
}
