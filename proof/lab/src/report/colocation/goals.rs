//! The figures to reach.

use ballast_sim::packing::{Estimator, Family};

use super::find;
use crate::colocation::TARGET;
use crate::colocation::population::{CaseRow, TARGETS, Vary};
use crate::colocation::recorded::{Arm, SetRow};
use crate::report::{Goal, number};

/// Names of the recorded sets, as the goals have them.
pub const SETS: [&str; 6] =
    ["bitbrains-share", "bitbrains-cores", "azure-average", "azure-maximum", "google-2011", "planetlab"];
/// Machines of the reference for GPA at these targets, and for the mean use.
const REFERENCE: [(Family, f64, f64); 5] = [
    (Family::Gaussian, 0.1, 34.0),
    (Family::Gaussian, 0.05, 36.2),
    (Family::Gaussian, 0.01, 40.2),
    (Family::Gaussian, 0.001, 45.5),
    (Family::Average, 1.0, 28.0),
];

pub(super) fn goals(cases: &[CaseRow], sets: &[SetRow]) -> Vec<Goal> {
    let mut goals = population(cases);
    goals.extend(recorded(sets));
    goals
}

fn case(cases: &[CaseRow], vary: Vary, family: Family, parameter: f64) -> Option<&CaseRow> {
    let estimator = Estimator { family, parameter };
    cases.iter().find(|row| row.vary == vary && row.estimator == estimator)
}

/// Overflow in targets, at each of these targets.
fn ratios(cases: &[CaseRow], family: Family, targets: &[f64]) -> Option<Vec<f64>> {
    let ratio = |target: &f64| Some(case(cases, Vary::Nothing, family, *target)?.realised / target);
    targets.iter().map(ratio).collect()
}

fn listed(values: &[f64], places: usize) -> String {
    values.iter().map(|value| number(*value, places)).collect::<Vec<_>>().join(", ")
}

fn within(values: Option<Vec<f64>>, low: f64, high: f64) -> Option<(String, bool)> {
    let values = values?;
    let met = values.iter().all(|value| (low..=high).contains(value));
    Some((listed(&values, 2), met))
}

fn population(cases: &[CaseRow]) -> Vec<Goal> {
    let linear = linearity(cases).map(|r2| (number(r2, 4), r2 >= 0.98));

    vec![
        Goal::new(
            "G1: machines of GPA at .1, .05, .01, .001 and of the mean within 1 or 3 % of 34.0, 36.2, 40.2, \
            45.5, 28.0",
            machines(cases),
        ),
        Goal::new(
            "G1: GPA's q / target at .1, .05, .01 from 0.8 to 1.4",
            within(ratios(cases, Family::Gaussian, &TARGETS[..3]), 0.8, 1.4),
        ),
        Goal::new(
            "G1: GPA's q / target at .001 from 1.2 to 2.4",
            within(ratios(cases, Family::Gaussian, &TARGETS[3..4]), 1.2, 2.4),
        ),
        Goal::new("G1: best fit differs from first fit by at most 1 machine and 1 % of q", best_fit(cases)),
        Goal::new(
            "G1: log q from 1e-5 to 0.25 is linear in machines (GPA, average, percentile): R² at least 0.98",
            linear,
        ),
        Goal::new(
            "G2: with the third cumulant q / target from 0.85 to 1.2 at .1 to .0005",
            within(ratios(cases, Family::Skewed, &TARGETS), 0.85, 1.2),
        ),
        Goal::new(
            "G2: by convolution q / target from 0.8 to 1 at .1 to .0005",
            within(ratios(cases, Family::Convolution, &TARGETS), 0.8, 1.0),
        ),
        Goal::new(
            "G3: heavy spikes at .001: GPA's q / target at least 2.5, the convolution's at most 1",
            heavy_spikes(cases),
        ),
        Goal::new(
            "G4: rebalancing at .05, .01, .001: round robin -4 % of q, greedy -10 %, 5 % of tasks moved",
            rebalancing(cases),
        ),
    ]
}

/// Machines against the paper's.
fn machines(cases: &[CaseRow]) -> Option<(String, bool)> {
    let counts = REFERENCE.iter().map(|(family, parameter, reference)| {
        Some((case(cases, Vary::Nothing, *family, *parameter)?.machines, *reference))
    });
    let counts: Vec<(f64, f64)> = counts.collect::<Option<_>>()?;
    let machines: Vec<f64> = counts.iter().map(|(machines, _)| *machines).collect();
    let is_met = counts
        .iter()
        .all(|(machines, reference)| (machines - reference).abs() <= f64::max(1.0, 0.03 * reference));
    Some((listed(&machines, 1), is_met))
}

/// By how much best fit differs from first fit.
fn best_fit(cases: &[CaseRow]) -> Option<(String, bool)> {
    let (mut machines, mut overflow) = (0, 0.0);
    for target in TARGETS {
        let first = case(cases, Vary::Nothing, Family::Gaussian, target)?;
        let best = case(cases, Vary::BestFit, Family::Gaussian, target)?;
        machines = first.largest_difference(best).max(machines);
        overflow = f64::max(overflow, (best.realised / first.realised - 1.0).abs());
    }
    let text = format!("{machines} machines, {} % at most", number(100.0 * overflow, 2));
    Some((text, machines <= 1 && overflow <= 0.01))
}

fn heavy_spikes(cases: &[CaseRow]) -> Option<(String, bool)> {
    let heavy = |family| Some(case(cases, Vary::HeavySpikes, family, 0.001)?.realised / 0.001);
    heavy(Family::Gaussian).zip(heavy(Family::Convolution)).map(|(gaussian, convolution)| {
        (listed(&[gaussian, convolution], 2), gaussian >= 2.5 && convolution <= 1.0)
    })
}

fn rebalancing(cases: &[CaseRow]) -> Option<(String, bool)> {
    let rebalanced = |vary| {
        let change = |target: f64| {
            let after = case(cases, vary, Family::Gaussian, target)?;
            Some((
                after.realised / case(cases, Vary::Nothing, Family::Gaussian, target)?.realised - 1.0,
                after.moved,
            ))
        };
        [0.05, 0.01, 0.001].into_iter().map(change).collect::<Option<Vec<_>>>()
    };
    rebalanced(Vary::RoundRobin).zip(rebalanced(Vary::Greedy)).map(|(robin, greedy)| {
        let changes =
            |pairs: &[(f64, f64)]| pairs.iter().map(|(change, _)| 100.0 * change).collect::<Vec<_>>();
        let moved = robin.iter().chain(&greedy).map(|(_, moved)| *moved).fold(0.0, f64::max);
        let text = format!(
            "{} %; {} %; {} % of tasks at most",
            listed(&changes(&robin), 1),
            listed(&changes(&greedy), 1),
            number(100.0 * moved, 1)
        );
        let met = robin.iter().all(|(change, _)| *change <= -0.04)
            && greedy.iter().all(|(change, _)| *change <= -0.1)
            && moved <= 0.05;
        (text, met)
    })
}

/// R² of log q against machines. Above a quarter q saturates; below 1e-5 there is next to nothing to count.
fn linearity(cases: &[CaseRow]) -> Option<f64> {
    let frontier = cases.iter().filter(|row| {
        let family = matches!(row.estimator.family, Family::Gaussian | Family::Average | Family::Percentile);
        row.vary == Vary::Nothing && family && (1e-5..0.25).contains(&row.realised)
    });
    let points: Vec<(f64, f64)> = frontier.map(|row| (row.machines, libm::log(row.realised))).collect();
    if points.len() < 3 {
        return None;
    }
    let count = points.len() as f64;
    let mean = |f: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / count;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let (xx, yy) = (mean(&|p| (p.0 - x) * (p.0 - x)), mean(&|p| (p.1 - y) * (p.1 - y)));
    let xy = mean(&|p| (p.0 - x) * (p.1 - y));
    Some(xy * xy / (xx * yy))
}

fn recorded(sets: &[SetRow]) -> Vec<Goal> {
    let auto = |set: &str| {
        let row = find(sets, set, Arm::Auto, None)?;
        row.machines.zip(row.realised)
    };
    let family = |set: &str, arm, family| find(sets, set, arm, Some(family));

    let kept: Option<Vec<f64>> = SETS.iter().map(|set| Some(auto(set)?.1 / TARGET)).collect();
    let nominal: Option<Vec<f64>> = SETS
        .iter()
        .map(|set| Some(family(set, Arm::Nominal, Family::Gaussian)?.realised? / TARGET))
        .collect();
    let kept = kept.zip(nominal).map(|(kept, nominal)| {
        let text = format!("{} (GPA at its word: {})", listed(&kept, 2), listed(&nominal, 1));
        (text, kept.iter().all(|ratio| *ratio <= 1.5))
    });

    let fewer = |set: &'static str, arm: Arm, share: f64| {
        let known = if arm == Arm::Hindsight { "tuned in hindsight" } else { "replay-selected" };
        let goal =
            format!("G6: {set}: auto needs {} % fewer machines than GPA {known}", number(100.0 * share, 0));
        let measured = auto(set).zip(family(set, arm, Family::Gaussian)).map(|((machines, _), gaussian)| {
            let Some(theirs) = gaussian.machines else {
                return ("GPA never meets it".to_owned(), true);
            };
            let change = machines / theirs - 1.0;
            let text = format!(
                "{} against {}: {} %",
                number(machines, 1),
                number(theirs, 1),
                number(100.0 * change, 1)
            );
            (text, change <= -share)
        });
        Goal::new(goal, measured)
    };
    // With a target stretched to 1e-19 GPA can be tuned here, too: it stands beside, and is no goal.
    let google = "google-2011";
    let theirs = family(google, Arm::Tuned, Family::Gaussian).and_then(|row| row.machines.zip(row.realised));
    let met = auto(google).zip(theirs).map(|((machines, realised), (theirs, broken))| {
        let text = format!(
            "{} targets with {} machines (GPA replay-selected: {} with {})",
            number(realised / TARGET, 2),
            number(machines, 1),
            number(broken / TARGET, 2),
            number(theirs, 1)
        );
        (text, realised <= TARGET)
    });

    vec![
        Goal::new(format!("G5: auto's realised overflow at most 1.5 targets on {}", SETS.join(", ")), kept),
        fewer("bitbrains-share", Arm::Hindsight, 0.14),
        fewer("bitbrains-cores", Arm::Hindsight, 0.1),
        fewer("azure-average", Arm::Hindsight, 0.03),
        fewer("azure-maximum", Arm::Hindsight, 0.03),
        fewer("planetlab", Arm::Tuned, 0.02),
        Goal::new(format!("G6: {google}: auto keeps the target"), met),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(set: &str, arm: Arm, family: Option<Family>, machines: f64, realised: f64) -> SetRow {
        SetRow { set: set.to_owned(), arm, family, machines: Some(machines), realised: Some(realised) }
    }

    #[test]
    fn one_set_above_its_target_is_a_miss_and_one_that_is_not_there_is_not_measured() {
        let rows = |worst: f64| {
            let mut rows: Vec<SetRow> =
                SETS.iter().map(|set| row(set, Arm::Auto, None, 10.0, 0.01)).collect();
            rows.extend(SETS.map(|set| row(set, Arm::Nominal, Some(Family::Gaussian), 8.0, 0.05)));
            rows[3].realised = Some(worst);
            rows
        };
        let verdict = |rows: &[SetRow]| recorded(rows)[0].met;
        assert_eq!((verdict(&rows(0.015)), verdict(&rows(0.0151))), (Some(true), Some(false)));
        assert_eq!(verdict(&rows(0.01)[1..]), None);
    }

    #[test]
    fn machines_are_compared_with_the_strongest_of_the_same_kind() {
        let rows = |machines| {
            [
                row("azure-average", Arm::Auto, None, machines, 0.01),
                row("azure-average", Arm::Hindsight, Some(Family::Gaussian), 10.0, 0.01),
            ]
        };
        assert_eq!(recorded(&rows(9.7))[3].met, Some(true));
        assert_eq!(recorded(&rows(9.8))[3].met, Some(false));
    }
}
