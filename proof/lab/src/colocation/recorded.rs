//! Recorded VMs, held out in time: learn from some days, pack, judge by the next.

use ballast_placement::fits::calibration::{Calibration, Overflow};
use ballast_sim::packing::{AutoOptions, Estimator, Family, Fleet, Outcome, PackError, Step, auto};
use serde::Serialize;

use super::{SHORT_WINDOW, TARGET, WINDOW};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The promise at its word.
    Nominal,
    /// The parameter with which the target is met, known only afterwards: machines between two parameters.
    Hindsight,
    /// Replay-selected among all.
    Auto,
    /// The same with a shorter window.
    AutoShort,
    /// As the placement daemon serves it.
    InService,
    /// Replay-selected within the family.
    Tuned,
    Oracle,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetRow {
    pub set: String,
    pub arm: Arm,
    /// `None` where all may be chosen, or none is.
    pub family: Option<Family>,
    /// The mean over the steps; `None` where no parameter meets the target.
    pub machines: Option<f64>,
    pub realised: Option<f64>,
}

/// A set's fleet, machines and time.
#[derive(Clone, Debug)]
pub struct Set {
    pub name: String,
    pub fleet: Fleet,
    pub capacity: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    pub set: String,
    pub vms: usize,
    pub capacity: f64,
    pub train_h: f64,
    pub step_h: f64,
    /// Steps that are judged, after those of the first window.
    pub steps: usize,
}

/// One held-out step of a set.
pub struct Job<'a> {
    set: usize,
    sets: &'a [Set],
    step: Step,
}

pub struct Done {
    set: usize,
    outcomes: Vec<Outcome>,
    oracle: Outcome,
}

/// Every step of every set. Fails where a set is too short.
pub fn jobs(sets: &[Set]) -> Result<Vec<Job<'_>>, PackError> {
    let mut jobs = Vec::new();
    for (n, set) in sets.iter().enumerate() {
        let steps = set.fleet.usual_steps().steps(&set.fleet)?;
        jobs.extend(steps.into_iter().map(|step| Job { set: n, sets, step }));
    }
    Ok(jobs)
}

impl Job<'_> {
    pub fn run(&self) -> Result<Done, PackError> {
        let Set { fleet, capacity, .. } = &self.sets[self.set];
        let (outcomes, oracle) = fleet.replay(&self.step, &Estimator::all(), *capacity, TARGET)?;
        Ok(Done { set: self.set, outcomes, oracle })
    }
}

/// All that is said of these sets, each over the steps that have a window behind them.
pub fn rows(sets: &[Set], done: &[Done]) -> (Vec<About>, Vec<SetRow>) {
    let (mut abouts, mut rows) = (Vec::new(), Vec::new());
    for (n, set) in sets.iter().enumerate() {
        let steps: Vec<&Done> = done.iter().filter(|done| done.set == n).collect();
        let hours = |instants: usize| instants as f64 * set.fleet.period_s() / 3600.0;
        let cut = set.fleet.usual_steps();
        abouts.push(About {
            set: set.name.clone(),
            vms: set.fleet.vms().len(),
            capacity: set.capacity,
            train_h: hours(cut.train),
            step_h: hours(cut.step),
            steps: steps.len().saturating_sub(WINDOW),
        });
        rows.extend(of_set(&set.name, &steps, set.fleet.period_s()));
    }
    (abouts, rows)
}

/// `seconds` lie between two instants.
fn of_set(set: &str, steps: &[&Done], seconds: f64) -> Vec<SetRow> {
    let estimators = Estimator::all();
    let outcomes: Vec<Vec<Outcome>> = steps.iter().map(|step| step.outcomes.clone()).collect();
    let judged = &outcomes[WINDOW.min(outcomes.len())..];
    let row =
        |arm, family, machines, realised| SetRow { set: set.to_owned(), arm, family, machines, realised };
    let mean = |arm, family, outcomes: &[Outcome]| {
        let (machines, realised) = (Outcome::mean_machines(outcomes), Outcome::realised(outcomes));
        row(arm, family, Some(machines), Some(realised))
    };
    let one = |estimator: usize| judged.iter().map(|step| step[estimator]).collect::<Vec<_>>();

    // A shorter window has more steps behind it: those of the longer one are judged.
    let chosen = |outcomes: &[Vec<Outcome>], window: usize| {
        let auto =
            auto(outcomes, AutoOptions { target: TARGET, window }).filter(|auto| !auto.taken.is_empty())?;
        let skip = WINDOW.saturating_sub(auto.first);
        Some(auto.taken.iter().skip(skip).map(|(_, outcome)| *outcome).collect::<Vec<_>>())
    };

    let mut rows = Vec::new();
    for (n, estimator) in estimators.iter().enumerate() {
        if estimator.promised() == Some(TARGET) {
            rows.push(mean(Arm::Nominal, Some(estimator.family), &one(n)));
        }
    }
    for family in Family::ALL {
        let of_family: Vec<usize> =
            (0..estimators.len()).filter(|n| estimators[*n].family == family).collect();
        let curve = of_family.iter().map(|n| one(*n));
        let curve = curve.map(|o| (Outcome::mean_machines(&o), Outcome::realised(&o))).collect();
        rows.push(row(Arm::Hindsight, Some(family), machines_at(curve, TARGET), Some(TARGET)));

        let own: Vec<Vec<Outcome>> =
            outcomes.iter().map(|step| of_family.iter().map(|n| step[*n]).collect()).collect();
        if let Some(taken) = chosen(&own, WINDOW) {
            rows.push(mean(Arm::Tuned, Some(family), &taken));
        }
    }
    for (arm, window) in [(Arm::Auto, WINDOW), (Arm::AutoShort, SHORT_WINDOW)] {
        rows.extend(chosen(&outcomes, window).map(|taken| mean(arm, None, &taken)));
    }
    let convolution = (0..estimators.len()).filter(|n| estimators[*n].family == Family::Convolution);
    let served = in_service(&outcomes, &convolution.rev().collect::<Vec<_>>(), seconds);
    rows.push(mean(Arm::InService, Some(Family::Convolution), &served[WINDOW.min(served.len())..]));
    let oracle: Vec<Outcome> = steps.iter().skip(WINDOW).map(|step| step.oracle).collect();
    rows.push(mean(Arm::Oracle, None, &oracle));
    rows
}

/// What the placement daemon's `auto` would have come to: it sees what the risk that it allowed came to, and no other.
/// `wary` are the convolutions in the order of [`calibration::STEPS`](ballast_placement::fits::calibration::STEPS).
fn in_service(outcomes: &[Vec<Outcome>], wary: &[usize], seconds: f64) -> Vec<Outcome> {
    let mut calibration = Calibration::default();
    let day = |(day, all): (usize, &Vec<Outcome>)| {
        calibration.choose(day as u64, TARGET);
        let outcome = all[wary[calibration.step()]];
        let [measured_s, over_s] = [outcome.all, outcome.over].map(|it| (it as f64 * seconds) as u64);
        calibration.add(day as u64, calibration.allowed(), Overflow { measured_s, over_s });
        outcome
    };
    outcomes.iter().enumerate().map(day).collect()
}

/// The fewest machines with which this much overflow is met, on a line through two neighbouring parameters by the logarithm of
/// the overflow; `None` where no parameter meets it.
fn machines_at(mut curve: Vec<(f64, f64)>, target: f64) -> Option<f64> {
    // Far below all that is measured.
    const NOTHING: f64 = 1e-6;
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    let kept = curve.iter().position(|(_, realised)| *realised <= target)?;
    let (machines, realised) = curve[kept];
    let Some((fewer, broken)) = kept.checked_sub(1).map(|before| curve[before]) else {
        return Some(machines);
    };
    let log = |realised: f64| libm::log(realised.max(NOTHING));
    let part = (log(broken) - log(target)) / (log(broken) - log(realised));
    Some(fewer + part * (machines - fewer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_for_a_target_lie_between_the_parameters_around_it() {
        let curve = vec![(40.0, 0.001), (20.0, 0.1), (30.0, 0.05)];
        let machines = machines_at(curve.clone(), 0.01).unwrap();
        assert!((30.0..40.0).contains(&machines), "{machines}");
        assert_eq!(machines_at(curve.clone(), 0.2), Some(20.0));
        assert_eq!(machines_at(curve, 0.0001), None);
    }
}
