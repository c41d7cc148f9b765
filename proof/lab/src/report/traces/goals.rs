//! What the defaults must reach on measured load.

use crate::report::{Goal, number, percent};
use crate::traces::{TracePolicy, TraceResult};

/// The policy that a user gets.
const DEFAULT: TracePolicy = TracePolicy::Stepwise;

/// Points of batch work that may be lost beside what the oracle loses.
const POINTS: f64 = 0.002;

/// How often as much as the oracle a controller may lose.
const TIMES: f64 = 1.15;

/// How far a breaker may go towards its trip.
const TRIP: f64 = 0.5;

/// The share of 100 ms means that may be above the budget.
const ABOVE: f64 = 0.013;

/// The share of the budget that must be used while the load would draw more.
const USED: f64 = 0.98;

/// For every data set and policy: load that fits, load at its own peak, and load that does not fit.
pub(super) fn of(rows: &[TraceResult], names: &[String]) -> Vec<Goal> {
    let goals = names.iter().flat_map(|name| {
        let mine: Vec<&TraceResult> = rows.iter().filter(|row| row.data == *name).collect();
        [fits(name, &mine), peak(name, &mine), below(name, &mine)]
    });
    goals.collect()
}

fn fits(name: &str, rows: &[&TraceResult]) -> Goal {
    let all = Worst::of(rows.iter().filter(|row| row.policy == DEFAULT && row.budget_percent == 102.0));
    Goal::new(
        format!(
            "{name}, 102 %, stepwise: no user-facing core-second, no hardware, 99.5 % of batch work, in any \
             seed"
        ),
        all.map(|worst| {
            let met = worst.user_facing == 0.0 && worst.hardware_s == 0.0 && worst.work >= 0.995;
            (worst.words(), met)
        }),
    )
}

fn peak(name: &str, rows: &[&TraceResult]) -> Goal {
    let pairs = beside_oracle(rows);
    let pairs = pairs.into_iter().filter(|(row, _)| row.budget_percent == 100.0);
    Goal::new(
        format!(
            "{name}, 100 %, stepwise: no user-facing core-second, batch work lost at most the \
             set-point oracle's and 0.2 points, in any seed"
        ),
        excess(pairs, 1.0).map(|(worst, excess)| {
            let met = worst.user_facing == 0.0 && excess <= POINTS;
            (format!("{}, {} points beside the oracle", worst.words(), points(excess)), met)
        }),
    )
}

fn below(name: &str, rows: &[&TraceResult]) -> Goal {
    let feasible = |row: &TraceResult| {
        let oracle = |other: &&&TraceResult| other.policy == TracePolicy::Oracle && same_load(row, other);
        rows.iter().find(oracle).is_some_and(|oracle| oracle.user_facing_throttled_core_s == 0.0)
    };

    let pairs = beside_oracle(rows);
    let pairs = pairs.into_iter().filter(|(row, _)| row.budget_percent < 100.0 && feasible(row));

    Goal::new(
        format!(
            "{name}, below 100 %, stepwise, where the oracle throttles no user-facing core: none, \
             batch work lost at most 1.15 × the set-point oracle's and 0.2 points, trip fraction at most \
             0.5, above at most 1.3 %, budget used at least 98 %, in any seed"
        ),
        excess(pairs, TIMES).map(|(worst, excess)| {
            let met = worst.user_facing == 0.0
                && excess <= POINTS
                && worst.trip <= TRIP
                && worst.above <= ABOVE
                && worst.used >= USED;
            let measured = format!(
                "{}, {} points beside 1.15 × the oracle's, trip fraction {}, above {} %, used {} %",
                worst.words(),
                points(excess),
                number(worst.trip, 3),
                percent(worst.above, 2),
                percent(worst.used, 2),
            );

            (measured, met)
        }),
    )
}

fn points(share: f64) -> String {
    format!("{:+.2}", 100.0 * share)
}

fn same_load(row: &TraceResult, other: &TraceResult) -> bool {
    row.seed == other.seed && row.budget_percent == other.budget_percent
}

/// Every row of the default with the set-point oracle's under the same load and budget.
fn beside_oracle<'a>(rows: &[&'a TraceResult]) -> Vec<(&'a TraceResult, &'a TraceResult)> {
    let of = |policy| rows.iter().copied().filter(move |row: &&TraceResult| row.policy == policy);
    let pairs = of(DEFAULT).filter_map(|row| {
        let oracle = of(TracePolicy::OracleAtSetPoint).find(|other| same_load(row, other))?;
        Some((row, oracle))
    });
    pairs.collect()
}

/// The worst of them, and the highest loss of batch work beyond `times` the other's, as a share.
fn excess<'a>(
    pairs: impl Iterator<Item = (&'a TraceResult, &'a TraceResult)>,
    times: f64,
) -> Option<(Worst, f64)> {
    let pairs: Vec<_> = pairs.collect();
    let lost = |row: &TraceResult| row.batch_work_ratio.map_or(0.0, |done| 1.0 - done);
    let excess = pairs.iter().map(|(row, other)| lost(row) - times * lost(other).max(0.0));
    let excess = excess.max_by(f64::total_cmp)?;
    Some((Worst::of(pairs.iter().map(|(row, _)| row))?, excess))
}

/// The worst figures of several rows, each for itself.
struct Worst {
    user_facing: f64,
    hardware_s: f64,
    work: f64,
    trip: f64,
    above: f64,
    used: f64,
}

impl Worst {
    /// `None` of no row.
    fn of<'a>(rows: impl Iterator<Item = &'a &'a TraceResult>) -> Option<Self> {
        rows.map(|row| Self {
            user_facing: row.user_facing_throttled_core_s,
            hardware_s: row.hardware_s,
            work: row.batch_work_ratio.unwrap_or(1.0),
            trip: row.trip_fraction_max,
            above: row.over_budget_share,
            used: row.budget_used_ratio.unwrap_or(1.0),
        })
        .reduce(|a, b| Self {
            user_facing: a.user_facing.max(b.user_facing),
            hardware_s: a.hardware_s.max(b.hardware_s),
            work: a.work.min(b.work),
            trip: a.trip.max(b.trip),
            above: a.above.max(b.above),
            used: a.used.min(b.used),
        })
    }

    fn words(&self) -> String {
        format!(
            "{} core-s, hardware {} s, batch work {} %",
            number(self.user_facing, 0),
            number(self.hardware_s, 1),
            percent(self.work, 2),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    fn verdicts(rows: &[TraceResult]) -> Vec<Option<bool>> {
        let goals = of(rows, &["made".to_owned()]);
        goals.iter().map(|goal| goal.met).collect()
    }

    fn good(policy: TracePolicy, seed: u64, budget: f64, lost: f64) -> TraceResult {
        TraceResult {
            batch_work_ratio: Some(1.0 - lost),
            hardware_s: 0.0,
            budget_used_ratio: (budget < 100.0).then_some(0.985),
            ..row(policy, seed, budget, 0.0)
        }
    }

    #[test]
    fn load_that_fits_is_judged_by_the_worst_seed() {
        let of = |lost, user_facing| {
            let second = TraceResult {
                user_facing_throttled_core_s: user_facing,
                ..good(TracePolicy::Stepwise, 2, 102.0, lost)
            };
            verdicts(&[good(TracePolicy::Stepwise, 1, 102.0, 0.0), second])
        };
        assert_eq!(of(0.004, 0.0), [Some(true), None, None]);
        assert_eq!(of(0.006, 0.0)[0], Some(false));
        assert_eq!(of(0.0, 0.5)[0], Some(false));
    }

    #[test]
    fn at_its_peak_a_load_loses_what_the_set_point_costs() {
        let of = |lost| {
            let rows = [
                good(TracePolicy::OracleAtSetPoint, 1, 100.0, 0.010),
                good(TracePolicy::Stepwise, 1, 100.0, lost),
            ];
            verdicts(&rows)[1]
        };
        assert_eq!((of(0.0119), of(0.0125)), (Some(true), Some(false)));
    }

    #[test]
    fn a_budget_that_the_oracle_cannot_keep_is_not_judged() {
        let of = |oracle: f64, change: fn(&mut TraceResult)| {
            let mut mine =
                TraceResult { trip_fraction_max: 0.4, ..good(TracePolicy::Stepwise, 1, 90.0, 0.11) };
            change(&mut mine);
            let rows = [
                TraceResult {
                    user_facing_throttled_core_s: oracle,
                    ..good(TracePolicy::Oracle, 1, 90.0, 0.09)
                },
                good(TracePolicy::OracleAtSetPoint, 1, 90.0, 0.10),
                mine,
            ];

            verdicts(&rows)[2]
        };

        assert_eq!((of(0.0, |_| ()), of(1.0, |_| ())), (Some(true), None));
        let worse: [fn(&mut TraceResult); 5] = [
            |row| row.user_facing_throttled_core_s = 0.1,
            |row| row.batch_work_ratio = Some(0.88),
            |row| row.trip_fraction_max = 0.51,
            |row| row.over_budget_share = 0.02,
            |row| row.budget_used_ratio = Some(0.97),
        ];

        for change in worse {
            assert_eq!(of(0.0, change), Some(false));
        }
    }
}
