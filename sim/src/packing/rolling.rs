//! Learn, pack, look at what came; then one step on.

use core::ops::Range;

use ballast_placement::fits::estimate::EstimateError;
use serde::Serialize;
use thiserror::Error;

use super::{Estimator, Family, Learnt};

/// Where a file is long enough, so much is learnt from.
const TRAIN_S: f64 = 7.0 * 86_400.0;
/// Where a file is long enough, so much is held out at a time.
const STEP_S: f64 = 86_400.0;
/// So many held-out steps a shorter file is cut into, behind a first half that is learnt from.
const SHORT_STEPS: usize = 12;
/// Use of exactly the capacity is not above it, however it was rounded on its way.
const ROUNDING: f64 = 1e-5;
/// What an oracle allows each machine, in targets: most machines have less than they may, so that the first keeps it.
const ORACLE_FACTORS: [f64; 8] = [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0];

/// A VM's use over time.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetVm {
    pub name: String,
    /// What it uses when it is fully busy, in cores.
    pub cores: f32,
    /// In cores, at the fleet's instants; NaN is a gap.
    pub used: Vec<f32>,
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum PackError {
    #[error("{0} VMs: at least 1 is needed")]
    Empty(usize),
    #[error("VM {name} has {length} instants, the first VM {first}: all need the same")]
    Length { name: String, length: usize, first: usize },
    #[error("VM {name}, instant {index}: {used} cores: 0 to its size of {cores} cores is needed, or a gap")]
    Use { name: String, index: usize, used: f32, cores: f32 },
    #[error("{instants} instants: at least {needed} are needed to learn from {train} and hold out {step}")]
    Short { instants: usize, needed: usize, train: usize, step: usize },
    #[error(transparent)]
    Estimate(#[from] EstimateError),
}

/// VMs with their use at the same instants.
#[derive(Clone, Debug)]
pub struct Fleet {
    vms: Vec<FleetVm>,
    /// The first instant, in seconds after a midnight.
    start_s: f64,
    period_s: f64,
}

impl Fleet {
    /// Fails where there is no VM, a VM has another number of instants than the first, or a use is below 0 or above the VM's
    /// size.
    pub fn new(vms: Vec<FleetVm>, start_s: f64, period_s: f64) -> Result<Self, PackError> {
        let Some(first) = vms.first().map(|vm| vm.used.len()) else { return Err(PackError::Empty(0)) };
        for FleetVm { name, cores, used } in &vms {
            let (name, cores) = (name.clone(), *cores);
            if used.len() != first {
                return Err(PackError::Length { name, length: used.len(), first });
            }
            let wrong = used.iter().position(|used| !used.is_nan() && !(0.0..=cores).contains(used));
            if let Some(index) = wrong {
                return Err(PackError::Use { name, index, used: used[index], cores });
            }
        }
        Ok(Self { vms, start_s, period_s })
    }

    pub fn vms(&self) -> &[FleetVm] {
        &self.vms
    }

    pub fn instants(&self) -> usize {
        self.vms[0].used.len()
    }

    /// The first instant, in seconds after a midnight.
    pub const fn start_s(&self) -> f64 {
        self.start_s
    }

    pub const fn period_s(&self) -> f64 {
        self.period_s
    }

    /// What a long file is cut into: a week to learn from, days held out. A file of less than eight days is learnt from for its
    /// first half, and the rest is held out in twelve steps.
    pub fn usual_steps(&self) -> Rolling {
        if !self.is_short() {
            return self.week_and_day();
        }
        let train = (self.instants() / 2).max(1);
        Rolling { train, step: ((self.instants() - train) / SHORT_STEPS).max(1) }
    }

    /// Whether it is shorter than a week and a day.
    pub fn is_short(&self) -> bool {
        let Rolling { train, step } = self.week_and_day();
        train + step > self.instants()
    }

    fn week_and_day(&self) -> Rolling {
        let steps = |seconds: f64| libm::round(seconds / self.period_s).max(1.0) as usize;
        Rolling { train: steps(TRAIN_S), step: steps(STEP_S) }
    }

    /// What was used in these instants. A gap holds the reading before it, whenever that was; before the first reading, the
    /// first of these instants. A VM without a reading so far is fully busy.
    fn used(&self, instants: &Range<usize>) -> Vec<Vec<f32>> {
        let used = |vm: &FleetVm| {
            let range = &vm.used[instants.clone()];
            let before = vm.used[..instants.start].iter().rev().find(|used| !used.is_nan());
            let first = before.or_else(|| range.iter().find(|used| !used.is_nan()));
            let mut last = first.copied().unwrap_or(vm.cores);
            let hold = |used: &f32| {
                if !used.is_nan() {
                    last = *used;
                }
                last
            };
            range.iter().map(hold).collect()
        };
        self.vms.iter().map(used).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub train: Range<usize>,
    pub test: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rolling {
    pub train: usize,
    /// Instants after these that are held out; then all moves on by as many.
    pub step: usize,
}

impl Rolling {
    /// The held-out steps of a fleet. Fails where there is none.
    pub fn steps(&self, fleet: &Fleet) -> Result<Vec<Step>, PackError> {
        let Self { train, step } = *self;
        let (instants, needed) = (fleet.instants(), train.saturating_add(step));
        if train == 0 || step == 0 || needed > instants {
            return Err(PackError::Short { instants, needed: needed.max(2), train, step });
        }
        let starts = (0..=instants - needed).step_by(step);
        Ok(starts
            .map(|start| Step { train: start..start + train, test: start + train..start + needed })
            .collect())
    }
}

/// What a packing came to in one held-out step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub machines: u64,
    /// Machine-instants above the capacity.
    pub over: u64,
    pub all: u64,
}

impl Outcome {
    /// What these machines came to when their VMs used so much.
    pub fn of(machines: &[Vec<usize>], used: &[Vec<f32>], capacity: f64) -> Self {
        let instants = used.first().map_or(0, Vec::len);
        let (machines, over) = (machines.len() as u64, overflow(machines, used, capacity));
        Self { machines, over, all: machines * instants as u64 }
    }

    /// The share of machine-instants above the capacity, over several steps.
    pub fn realised<'a>(outcomes: impl IntoIterator<Item = &'a Self>) -> f64 {
        let (over, all) = outcomes.into_iter().fold((0, 0), |(over, all), o| (over + o.over, all + o.all));
        if all == 0 { 0.0 } else { over as f64 / all as f64 }
    }

    /// The mean number of machines over several steps.
    pub fn mean_machines<'a>(outcomes: impl IntoIterator<Item = &'a Self>) -> f64 {
        let (sum, count) =
            outcomes.into_iter().fold((0, 0_u64), |(sum, count), o| (sum + o.machines, count + 1));
        if count == 0 { 0.0 } else { sum as f64 / count as f64 }
    }
}

/// Machine-instants in which the use of a machine's VMs is above the capacity.
pub fn overflow(machines: &[Vec<usize>], used: &[Vec<f32>], capacity: f64) -> u64 {
    let instants = used.first().map_or(0, Vec::len);
    let most = capacity * (1.0 + ROUNDING);
    let mut over = 0;
    let mut sums = vec![0.0_f64; instants];
    for vms in machines {
        sums.fill(0.0);
        for vm in vms {
            for (sum, used) in sums.iter_mut().zip(&used[*vm]) {
                *sum += f64::from(*used);
            }
        }
        over += sums.iter().filter(|sum| **sum > most).count() as u64;
    }
    over
}

impl Fleet {
    /// One held-out step: what each estimator's machines came to, and those of an oracle. The oracle packs by what the held-out
    /// time will bring, and allows each machine as much overflow as keeps that of all machines at the target.
    pub fn replay(
        &self,
        Step { train, test }: &Step,
        estimators: &[Estimator],
        capacity: f64,
        target: f64,
    ) -> Result<(Vec<Outcome>, Outcome), PackError> {
        let learnt = self.learn(train, capacity)?;
        let used = self.used(test);
        let outcomes = estimators
            .iter()
            .map(|estimator| Ok(Outcome::of(&learnt.pack(*estimator)?, &used, capacity)))
            .collect::<Result<_, PackError>>()?;

        let known = self.learn(test, capacity)?;
        let mut oracle: Option<Outcome> = None;
        for factor in ORACLE_FACTORS {
            let foresight = Estimator { family: Family::Simultaneous, parameter: (factor * target).min(1.0) };
            let outcome = Outcome::of(&known.pack(foresight)?, &used, capacity);
            let keeps = oracle.is_none() || Outcome::realised([&outcome]) <= target;
            if keeps && oracle.is_none_or(|best| outcome.machines < best.machines) {
                oracle = Some(outcome);
            }
        }
        Ok((outcomes, oracle.unwrap_or_default()))
    }

    pub fn learn(&self, instants: &Range<usize>, capacity: f64) -> Result<Learnt, PackError> {
        let start_s = self.start_s + instants.start as f64 * self.period_s;
        Ok(Learnt::new(self.used(instants), capacity, start_s, self.period_s)?)
    }
}
