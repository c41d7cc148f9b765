//! Figures to reach; the worst fleet counts. Each is a comparison with the best rule that learns nothing, so
//! that no constant and no GROUP BY can reach it.

use ballast_predict::compare::{GROUP_BYS, PredictedValue};
use ballast_predict::model::Algorithm;

use super::row::ArmRow;
use crate::report::{Goal, number, percent};

/// The most that confidence may be off, in the mean.
const CALIBRATED: f64 = 0.02;

pub(super) fn goals(rows: &[ArmRow]) -> Vec<Goal> {
    use PredictedValue::{Criticality, P95};
    let mut goals = Vec::new();

    for algorithm in Algorithm::ALL {
        let name = algorithm.name();
        let pairs = pairs(rows, P95, name);
        goals.push(worst(
            format!("P95, {name}: accuracy of all predictions at least 1 point above the best GROUP BY's"),
            pairs.iter().map(|(row, rule)| row.accuracy_all - rule.accuracy_all),
            |gain| (format!("{} points", percent(gain, 1)), gain >= 0.01),
        ));
        goals.push(calibrated(&format!("P95, {name}"), &pairs));

        let pairs = self::pairs(rows, Criticality, name);
        goals.push(worst(
            format!(
                "criticality, {name}: user-facing recall at least 99 %, with a loss below the best GROUP BY's"
            ),
            pairs.iter().map(|(row, rule)| match row.loss < rule.loss {
                true => row.buckets[0].each.recall,
                false => rule.loss - row.loss,
            }),
            |value| match value < 0.0 {
                true => (format!("loss higher by {}", number(-value, 4)), false),
                false => (format!("{} %", percent(value, 1)), value >= 0.99),
            },
        ));
        goals.push(calibrated(&format!("criticality, {name}"), &pairs));
    }

    goals
}

/// A constant or a rule may well know how often it is wrong; a model has to say more than they do, too.
fn calibrated(what: &str, pairs: &[(&ArmRow, &ArmRow)]) -> Goal {
    worst(
        format!(
            "{what}: calibration error at most 2 %, and below the best GROUP BY's or with more right answers"
        ),
        pairs.iter().map(|(row, rule)| {
            let more = row.calibration_error < rule.calibration_error || row.accuracy_all > rule.accuracy_all;
            if more { -row.calibration_error } else { -1.0 }
        }),
        |error| match error <= -1.0 {
            true => ("neither".to_owned(), false),
            false => (format!("{} %", percent(-error, 2)), -error <= CALIBRATED),
        },
    )
}

/// The rows of an arm, each beside the best rule on the same fleet.
fn pairs<'a>(rows: &'a [ArmRow], asked: PredictedValue, arm: &str) -> Vec<(&'a ArmRow, &'a ArmRow)> {
    let of = |row: &&ArmRow| row.model == asked && row.arm == arm;
    let best = |row: &'a ArmRow| {
        let same =
            |rule: &&ArmRow| rule.model == asked && rule.seed == row.seed && GROUP_BYS.contains(&rule.arm);
        let rule = rows.iter().filter(same).min_by(|a, b| match asked {
            PredictedValue::Criticality => a.loss.total_cmp(&b.loss),
            _ => b.accuracy_all.total_cmp(&a.accuracy_all),
        });
        Some((row, rule?))
    };
    rows.iter().filter(of).filter_map(best).collect()
}

/// The lowest of these values, which is the worst, and what it means. One that is no number is worse still.
fn worst(goal: String, values: impl Iterator<Item = f64>, verdict: impl Fn(f64) -> (String, bool)) -> Goal {
    let lower = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) };
    Goal::new(goal, values.reduce(lower).map(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_predict::compare::Arm;
    use ballast_predict::score::{Each, Scores};

    fn row(arm: &'static str, model: PredictedValue, accuracy: f64, error: f64) -> ArmRow {
        let each = Each { rows: 1, recall: 1.0, precision: 1.0 };
        let scores = Scores {
            each: vec![each; 4],
            accuracy_all: accuracy,
            loss: 1.0 - accuracy,
            calibration_error: error,
            ..Scores::of(0, &[])
        };
        ArmRow::new(Some(1), Arm { model, arm, scores, importance: vec![] })
    }

    fn verdicts(forest: (f64, f64), rule: (f64, f64)) -> Vec<Option<bool>> {
        let of = |model| {
            [row("random-forest", model, forest.0, forest.1), row(GROUP_BYS[1], model, rule.0, rule.1)]
        };
        let rows: Vec<ArmRow> =
            [PredictedValue::P95, PredictedValue::Criticality].into_iter().flat_map(of).collect();
        goals(&rows).into_iter().take(4).map(|goal| goal.met).collect()
    }

    #[test]
    fn a_model_is_held_against_the_best_rule() {
        assert_eq!(verdicts((0.85, 0.01), (0.83, 0.1)), [Some(true); 4]);
        assert_eq!(
            verdicts((0.835, 0.021), (0.83, 0.1)),
            [Some(false), Some(false), Some(true), Some(false)]
        );
        assert_eq!(verdicts((f64::NAN, f64::NAN), (0.83, 0.1)), [Some(false); 4]);
        assert_eq!(goals(&[])[0].met, None);
    }

    #[test]
    fn no_rule_and_no_constant_reaches_a_figure() {
        // Who answers as the rule does, or is right no more often, has reached nothing.
        assert_eq!(verdicts((0.83, 0.01), (0.83, 0.01)), [Some(false); 4]);
    }
}
