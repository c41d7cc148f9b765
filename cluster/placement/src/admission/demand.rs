//! The demand of all deployments together: what is expected of it, and whether one more may come.
//!
//! Every deployment's moments are kept as functions of its cores, and their sums for every horizon. A change of cores is
//! then a few multiplications, and a decision reads the sums. The moments of a deployment are computed anew only once a
//! parameter of its belief has moved by 3 %: by an event, or by time, for which a queue says when.

mod decision;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use thiserror::Error;

pub use super::moments::HORIZONS;
use super::moments::{Coefficients, Moments, combined};
use super::{Belief, Observed};
pub use decision::{Binding, Decision, MARGINAL_CORES, Threshold, cantelli};

/// The last one: three years, in hours.
pub const LOOK_AHEAD_H: f64 = 26_280.0;
/// A belief that moved less keeps its moments.
const MOVED: f64 = 0.03;
/// After so many changes the sums are added up anew: rounding errors stay below a millionth of a core.
const SUM_ANEW: u32 = 1 << 16;

/// What is believed of a deployment before its size is seen: one belief, or that it is of one of two types, each as
/// likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    one: Belief,
    other: Option<Belief>,
}

impl From<Belief> for Prior {
    fn from(one: Belief) -> Self {
        Self { one, other: None }
    }
}

impl Prior {
    /// The mixture of two types. Observations change both beliefs, and leave both as likely.
    pub const fn either(one: Belief, other: Belief) -> Self {
        Self { one, other: Some(other) }
    }

    fn posterior(&self, seen: &Observed) -> Self {
        Self { one: self.one.posterior(seen), other: self.other.map(|it| it.posterior(seen)) }
    }

    fn beliefs(&self) -> impl Iterator<Item = &Belief> {
        core::iter::once(&self.one).chain(&self.other)
    }
}

type Row = [f64; HORIZONS];

/// Names a deployment within [`Demand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DemandId(u32);

/// An event that the demand does not take. Nothing is changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum DemandError {
    /// The deployment is not there, or no more.
    #[error("the deployment is not there")]
    Unknown,
    /// More cores end than there are.
    #[error("{ended} cores end of {cores}")]
    TooMany {
        /// How many it has.
        cores: f64,
        /// How many are said to end.
        ended: f64,
    },
    /// No number of cores.
    #[error("{0} cores: a finite number above 0")]
    Cores(f64),
    /// The event is before one that was taken already.
    #[error("the event at {at_h} h is before the last one, at {last_h} h")]
    OutOfOrder {
        /// The event's time, in hours.
        at_h: f64,
        /// The latest time so far.
        last_h: f64,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    prior: Prior,
    seen: Observed,
    cores: f64,
    begun_h: f64,
    /// Up to when core-hours are added up.
    until_h: f64,
    /// The belief that the moments were computed from.
    believed: Prior,
    /// The means of mu^kappa under its beliefs; 0 before the first time.
    paces: [f64; 2],
    /// The cores that the sums contain; the moments follow at the next refresh.
    summed_cores: f64,
    /// When the belief will have moved by time alone.
    due_h: f64,
    changed: bool,
    moments: Curve,
}

/// The moments of one deployment as functions of its cores C: the mean is C · `mean[1]` + `mean[0]`, the variance
/// `variance[0]` + C · `variance[1]` + C² · `variance[2]`.
#[derive(Clone, Debug)]
struct Curve {
    mean: [Row; 2],
    variance: [Row; 3],
    finite: bool,
}

/// All deployments of a cluster.
#[derive(Clone, Debug)]
pub struct Demand {
    hours: Row,
    entries: Vec<Option<Box<Entry>>>,
    free: Vec<u32>,
    /// Deployments with events since their moments were brought up to date.
    changed: Vec<u32>,
    /// When beliefs will have moved: hours (as ordered bits) and deployment. One that no longer holds is skipped.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    mean: Row,
    variance: Row,
    cores: f64,
    live: usize,
    /// How many deployments have moments that are not finite.
    incomputable: usize,
    now_h: f64,
    changes: u32,
    refreshes: u64,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            hours: horizons(),
            entries: Vec::new(),
            free: Vec::new(),
            changed: Vec::new(),
            due: BinaryHeap::new(),
            mean: [0.0; HORIZONS],
            variance: [0.0; HORIZONS],
            cores: 0.0,
            live: 0,
            incomputable: 0,
            now_h: 0.0,
            changes: 0,
            refreshes: 0,
        }
    }
}

/// The horizons in hours, from one hour on, each the same factor later than the one before.
pub fn horizons() -> Row {
    let step = libm::log(LOOK_AHEAD_H) / (HORIZONS - 1) as f64;
    core::array::from_fn(|i| libm::exp(step * i as f64))
}

impl Demand {
    /// The cores that all deployments have now.
    pub fn cores(&self) -> f64 {
        self.cores
    }

    /// How many deployments there are.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// How often a deployment's moments were computed.
    pub fn refreshes(&self) -> u64 {
        self.refreshes
    }

    /// The cores of one.
    pub fn cores_of(&self, id: DemandId) -> Option<f64> {
        self.entry(id).map(|entry| entry.cores)
    }

    /// What has been seen of one, and what was believed of it when it came.
    pub fn observed(&self, id: DemandId) -> Option<(&Observed, &Prior)> {
        self.entry(id).map(|entry| (&entry.seen, &entry.prior))
    }

    /// When one began, in hours, and what has been seen of it until now.
    pub fn observed_until(&self, now_h: f64, id: DemandId) -> Option<(f64, Observed)> {
        self.entry(id).map(|entry| (entry.begun_h, entry.observed(now_h)))
    }

    /// A deployment comes: `prior` is what is believed before its size is seen.
    ///
    /// # Errors
    /// For an impossible size, or a time before the last event.
    pub fn insert(&mut self, now_h: f64, prior: &Prior, cores: f64) -> Result<DemandId, DemandError> {
        self.insert_since(now_h, now_h, prior, cores, Observed::first(cores))
    }

    /// A deployment that began earlier is found, with what has been seen of it until now.
    ///
    /// # Errors
    /// As for [`Demand::insert`].
    pub fn insert_since(
        &mut self,
        now_h: f64,
        begun_h: f64,
        prior: &Prior,
        cores: f64,
        seen: Observed,
    ) -> Result<DemandId, DemandError> {
        check(cores)?;
        self.advance(now_h)?;

        let entry = Box::new(Entry {
            prior: *prior,
            seen,
            cores,
            begun_h: begun_h.min(now_h),
            until_h: now_h,
            believed: *prior,
            paces: [0.0; 2],
            summed_cores: 0.0,
            due_h: f64::INFINITY,
            changed: true,
            moments: Curve { mean: [[0.0; HORIZONS]; 2], variance: [[0.0; HORIZONS]; 3], finite: true },
        });
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[slot as usize] = Some(entry);
        self.changed.push(slot);
        self.cores += cores;
        self.live += 1;
        Ok(DemandId(slot))
    }

    /// A deployment asks for more cores; with `granted` it has them from now on.
    ///
    /// # Errors
    /// Where it is not there, for an impossible size, or a time before the last event.
    pub fn scale_out(
        &mut self,
        now_h: f64,
        id: DemandId,
        cores: f64,
        granted: bool,
    ) -> Result<(), DemandError> {
        check(cores)?;
        self.known(id)?;
        self.advance(now_h)?;
        self.change(id, |entry| {
            entry.seen.scale_out(cores);
            entry.cores += if granted { cores } else { 0.0 };
        });
        self.cores += if granted { cores } else { 0.0 };
        Ok(())
    }

    /// Cores of a deployment end. With the last one the deployment is over: `false` is returned.
    ///
    /// # Errors
    /// Where it is not there or has fewer cores, for an impossible number, or a time before the last event.
    pub fn end_cores(&mut self, now_h: f64, id: DemandId, ended: f64) -> Result<bool, DemandError> {
        check(ended)?;
        let cores = self.known(id)?.cores;
        if ended > cores + 1e-6 {
            return Err(DemandError::TooMany { cores, ended });
        }
        if ended >= cores - 1e-6 {
            return self.remove(now_h, id).map(|()| false);
        }
        self.advance(now_h)?;
        self.change(id, |entry| {
            entry.seen.core_ends += ended;
            entry.cores -= ended;
        });
        self.cores -= ended;
        Ok(true)
    }

    /// A deployment has more or fewer cores than before without a request or an end: it was resized.
    ///
    /// # Errors
    /// As for [`Demand::scale_out`].
    pub fn resize(&mut self, now_h: f64, id: DemandId, cores: f64) -> Result<(), DemandError> {
        check(cores)?;
        let before = self.known(id)?.cores;
        self.advance(now_h)?;
        self.change(id, |entry| entry.cores = cores);
        self.cores += cores - before;
        Ok(())
    }

    /// A deployment ends as a whole.
    ///
    /// # Errors
    /// Where it is not there, or for a time before the last event.
    pub fn remove(&mut self, now_h: f64, id: DemandId) -> Result<(), DemandError> {
        self.known(id)?;
        self.advance(now_h)?;
        let Some(entry) = self.entries[id.0 as usize].take() else { return Err(DemandError::Unknown) };
        self.add(&entry.moments, entry.summed_cores, -1.0);
        self.cores -= entry.cores;
        self.live -= 1;

        // A slot that waits in `changed` is free once that list has been gone through.
        if !entry.changed {
            self.free.push(id.0);
        }
        if self.live == 0 {
            (self.mean, self.variance, self.cores) = ([0.0; HORIZONS], [0.0; HORIZONS], 0.0);
        }
        Ok(())
    }

    /// Brings the sums up to date: beliefs that events or time have moved.
    ///
    /// # Errors
    /// For a time before the last event.
    pub fn refresh(&mut self, now_h: f64) -> Result<(), DemandError> {
        self.advance(now_h)?;
        for slot in core::mem::take(&mut self.changed) {
            self.update(slot);
        }
        while let Some(Reverse((due, slot))) = self.due.peek().copied() {
            if f64::from_bits(due) > now_h {
                break;
            }
            self.due.pop();
            let entry = self.entries[slot as usize].as_ref();
            if entry.is_some_and(|entry| entry.due_h.to_bits() == due) {
                self.update(slot);
            }
        }
        if self.changes >= SUM_ANEW {
            self.sum_anew();
        }
        Ok(())
    }

    /// Mean and variance of the cores of all deployments at any horizons, computed anew from every belief as it is now.
    pub fn forecast(&self, now_h: f64, hours: &[f64]) -> Vec<Moments> {
        let mut sums = vec![Moments::default(); hours.len()];
        let mut rows = [(); 5].map(|()| vec![0.0; hours.len()]);
        for entry in self.entries.iter().flatten() {
            let prior = entry.belief(now_h);
            let share = if prior.other.is_some() { 0.5 } else { 1.0 };
            let mut squares = vec![Moments::default(); hours.len()];
            for belief in prior.beliefs() {
                belief.coefficients(hours, rows.each_mut().map(Vec::as_mut_slice));
                for (i, it) in squares.iter_mut().enumerate() {
                    let at = rows.each_ref().map(|row| row[i]);
                    let one = combined(at, entry.cores);
                    it.mean += share * one.mean;
                    it.variance += share * (one.variance + one.mean * one.mean);
                }
            }
            for (sum, it) in sums.iter_mut().zip(squares) {
                sum.mean += it.mean;
                sum.variance += it.variance - it.mean * it.mean;
            }
        }
        sums
    }

    fn entry(&self, id: DemandId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_deref()
    }

    fn known(&self, id: DemandId) -> Result<&Entry, DemandError> {
        self.entry(id).ok_or(DemandError::Unknown)
    }

    fn advance(&mut self, now_h: f64) -> Result<(), DemandError> {
        if now_h.is_nan() || now_h < self.now_h {
            return Err(DemandError::OutOfOrder { at_h: now_h, last_h: self.now_h });
        }
        self.now_h = now_h;
        Ok(())
    }

    fn change(&mut self, id: DemandId, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        entry.run(self.now_h);
        change(entry);
        if !entry.changed {
            entry.changed = true;
            self.changed.push(id.0);
        }
    }

    /// Brings one deployment's share of the sums up to date.
    fn update(&mut self, slot: u32) {
        let Some(mut entry) = self.entries[slot as usize].take() else {
            self.free.push(slot);
            return;
        };
        entry.run(self.now_h);
        entry.changed = false;

        let moved = entry.has_moved();
        if moved {
            self.add(&entry.moments, entry.summed_cores, -1.0);
            entry.compute(&self.hours);
            self.refreshes += 1;
            self.add(&entry.moments, entry.cores, 1.0);
        } else if entry.cores != entry.summed_cores {
            self.shift(&entry.moments, entry.summed_cores, entry.cores);
        }
        entry.summed_cores = entry.cores;

        // A large number of hours may be too coarse for the next move: it comes at the next instant all the same.
        let due_h = (self.now_h + entry.moves_after()).max(self.now_h.next_up());
        if moved || due_h < entry.due_h || entry.due_h <= self.now_h {
            entry.due_h = due_h;
            self.due.push(Reverse((due_h.to_bits(), slot)));
        }
        self.entries[slot as usize] = Some(entry);
    }

    /// Adds what a deployment of so many cores is expected to need, or takes it away.
    fn add(&mut self, curve: &Curve, cores: f64, sign: f64) {
        self.changes += 1;
        if !curve.finite {
            self.incomputable = self.incomputable.saturating_add_signed(if sign > 0.0 { 1 } else { -1 });
            return;
        }
        let square = cores * cores;
        for i in 0..HORIZONS {
            self.mean[i] += sign * (curve.mean[0][i] + cores * curve.mean[1][i]);
            let [constant, linear, quadratic] = &curve.variance;
            self.variance[i] += sign * (constant[i] + cores * linear[i] + square * quadratic[i]);
        }
    }

    /// The same deployment has other cores.
    fn shift(&mut self, curve: &Curve, from: f64, to: f64) {
        self.changes += 1;
        if !curve.finite {
            return;
        }
        let (more, square) = (to - from, to * to - from * from);
        for i in 0..HORIZONS {
            self.mean[i] += more * curve.mean[1][i];
            self.variance[i] += more * curve.variance[1][i] + square * curve.variance[2][i];
        }
    }

    fn sum_anew(&mut self) {
        (self.mean, self.variance, self.incomputable) = ([0.0; HORIZONS], [0.0; HORIZONS], 0);
        let entries = core::mem::take(&mut self.entries);
        for entry in entries.iter().flatten() {
            self.add(&entry.moments, entry.summed_cores, 1.0);
        }
        self.cores = entries.iter().flatten().map(|entry| entry.cores).sum();
        (self.entries, self.changes) = (entries, 0);
    }
}

impl Entry {
    /// Adds up core-hours until now.
    fn run(&mut self, now_h: f64) {
        self.seen.core_hours += self.cores * (now_h - self.until_h);
        self.seen.age_h = now_h - self.begun_h;
        self.until_h = now_h;
    }

    fn observed(&self, now_h: f64) -> Observed {
        let core_hours = self.seen.core_hours + self.cores * (now_h - self.until_h);
        Observed { core_hours, age_h: now_h - self.begun_h, ..self.seen }
    }

    fn belief(&self, now_h: f64) -> Prior {
        self.prior.posterior(&self.observed(now_h))
    }

    /// Whether a belief has moved since the moments were computed. The mean of mu^kappa is the one of that time: it
    /// moves by less than `mu` does.
    fn has_moved(&self) -> bool {
        let Self { prior, seen, believed, paces, .. } = self;
        let moved = |((prior, believed), pace): ((&Belief, &Belief), &f64)| {
            prior.posterior_at_pace(seen, *pace).differs(believed, MOVED)
        };
        paces[0] == 0.0 || prior.beliefs().zip(believed.beliefs()).zip(paces).any(moved)
    }

    /// After how many hours time alone will have moved a belief.
    fn moves_after(&self) -> f64 {
        let by_time = |(believed, pace): (&Belief, &f64)| {
            (believed.mu.rate / (self.cores + believed.delta)).min(believed.lambda.rate / pace)
        };
        let after = self.believed.beliefs().zip(&self.paces).map(by_time).fold(f64::INFINITY, f64::min);
        1.001 * MOVED * after
    }

    fn compute(&mut self, hours: &Row) {
        (self.believed.one, self.paces[0]) = self.prior.one.posterior_and_pace(&self.seen);
        if let Some(other) = &self.prior.other {
            let (other, pace) = other.posterior_and_pace(&self.seen);
            (self.believed.other, self.paces[1]) = (Some(other), pace);
        }
        self.moments = Curve::of(&self.believed, hours);
    }
}

impl Curve {
    fn of(belief: &Prior, hours: &Row) -> Self {
        let one = |belief: &Belief| {
            let mut it = [[0.0; HORIZONS]; 5];
            let [mean_c, mean_0, square_0, square_1, square_2] = &mut it;
            let into: Coefficients<'_> = [mean_c, mean_0, square_0, square_1, square_2];
            belief.coefficients(hours, into);
            it
        };
        let mut all = one(&belief.one);
        if let Some(other) = &belief.other {
            // Means of a mixture are means; so are means of squares.
            let other = one(other);
            all.iter_mut()
                .flatten()
                .zip(other.iter().flatten())
                .for_each(|(it, other)| *it = 0.5 * (*it + other));
        }

        let [mean_c, mean_0, mut v0, mut v1, mut v2] = all;
        for i in 0..HORIZONS {
            v0[i] -= mean_0[i] * mean_0[i];
            v1[i] -= 2.0 * mean_c[i] * mean_0[i];
            v2[i] -= mean_c[i] * mean_c[i];
        }
        // All are looked at: a loop without a way out becomes vector instructions.
        let all = [mean_c, mean_0, v0, v1, v2];
        let finite = all.iter().flatten().fold(true, |finite, it| finite & it.is_finite());
        Self { mean: [mean_0, mean_c], variance: [v0, v1, v2], finite }
    }
}

pub(super) fn check(cores: f64) -> Result<(), DemandError> {
    if cores.is_finite() && cores > 0.0 { Ok(()) } else { Err(DemandError::Cores(cores)) }
}
