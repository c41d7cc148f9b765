//! Rows and differences of one set.

use serde::Serialize;

use super::super::{Arm, Labels, Moment};
use super::estimate::{Measure, Sample, interval};
use super::race::{Race, Tuner};
use super::{Measured, Options};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmResult {
    pub set: &'static str,
    pub policy: Moment,
    /// Observations that a deployment's prior is made of.
    pub prior_n: u32,
    pub marginal: bool,
    pub labels: Labels,
    /// The share of scale-outs that may fail, on average over runs.
    pub sla: f64,
    /// The mean share of cores that are active, with its 95 % interval.
    pub utilisation: f64,
    pub low: f64,
    pub high: f64,
    /// In cores; of the second moment a risk.
    pub threshold: f64,
    /// Scale-outs that fail in a run there.
    pub failures_per_run: f64,
    /// The utilisation where as many fail in a run as under the zeroth moment at this share.
    pub utilisation_at_equal_failures: f64,
    /// Whether no more fail there.
    pub kept: bool,
    /// Whether the share lies between two thresholds that were run.
    pub bracketed: bool,
    pub runs: usize,
}

/// One arm's utilisation less another's, on the same runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub arm: Arm,
    pub less: Arm,
    pub points: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetResult {
    pub set: &'static str,
    pub rows: Vec<ArmResult>,
    /// At the lowest share of failures.
    pub differences: Vec<Difference>,
    /// The utilisation where everything that fits comes.
    pub ceiling: f64,
}

const fn second(n: u32, marginal: bool) -> Arm {
    Arm::new(Moment::Second, n, marginal)
}

const ZEROTH: Arm = Arm::new(Moment::Zeroth, 0, false);
const FIRST: Arm = Arm::new(Moment::First, 0, false);
const UNLABELLED: Arm = Arm { labels: Labels::Mixed, ..second(1, false) };
const PAIRS: [(Arm, Arm); 8] = [
    (second(0, false), ZEROTH),
    (second(0, false), FIRST),
    (second(1, true), second(0, false)),
    (second(50, true), second(0, false)),
    (second(50, true), second(50, false)),
    (second(50, true), ZEROTH),
    (FIRST, ZEROTH),
    (second(1, false), UNLABELLED),
];

/// Rows, differences and ceiling of one set.
pub fn result(options: &Options, tuner: &Tuner, measured: &[Vec<Measured>], set: usize) -> SetResult {
    let of = |(race, measured): (&Race, &Vec<Measured>)| {
        let scaled = race.thresholds.iter().map(|it| race.scale(*it)).collect();
        (race.clone(), Sample::new(&race.strata, measured, scaled), measured.len())
    };
    let all = tuner.races.iter().zip(measured);
    let samples: Vec<_> = all.filter(|(race, _)| race.set == set).map(of).collect();
    let find = |arm: Arm| samples.iter().find(|(race, ..)| race.policy == arm).map(|it| &it.1);
    let zeroth = find(ZEROTH);
    let name = options.sets[set].name;

    let row = |(race, sample, runs): &(Race, Sample, usize), sla: f64| {
        let at = sample.now(Measure::Share, sla);
        let estimate = interval(sample, None, sla);
        let equal = zeroth.map(|zeroth| {
            let failures = zeroth.now(Measure::Share, sla).failures_per_run;
            sample.now(Measure::PerRun, failures).utilisation
        });
        ArmResult {
            set: name,
            policy: race.policy.moment,
            prior_n: race.policy.observations,
            marginal: race.policy.marginal,
            labels: race.policy.labels,
            sla,
            utilisation: estimate.value,
            low: estimate.low,
            high: estimate.high,
            threshold: race.unscale(at.threshold),
            failures_per_run: at.failures_per_run,
            utilisation_at_equal_failures: equal.unwrap_or(f64::NAN),
            kept: at.kept,
            bracketed: at.bracketed,
            runs: *runs,
        }
    };
    let rows = samples.iter().flat_map(|sample| options.slas.iter().map(|sla| row(sample, *sla))).collect();

    let lowest = options.slas.first().copied().unwrap_or(1e-4);
    let difference = |(arm, less): (Arm, Arm)| {
        let estimate = interval(find(arm)?, Some(find(less)?), lowest);
        let [points, low, high] = [estimate.value, estimate.low, estimate.high].map(|it| 100.0 * it);
        Some(Difference { arm, less, points, low, high })
    };
    let differences = PAIRS.into_iter().filter_map(difference).collect();
    SetResult { set: name, rows, differences, ceiling: zeroth.map_or(f64::NAN, Sample::ceiling) }
}
