//! Figures to reach; the worst fleet counts.

use ballast_predict::compare::PredictedValue;
use ballast_predict::model::Algorithm;

use super::row::ArmRow;
use crate::report::{Goal, percent};

pub(super) fn goals(rows: &[ArmRow]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for algorithm in Algorithm::ALL {
        let name = algorithm.name();
        let class = of(rows, PredictedValue::Criticality, name);
        let goal = |what: &str, least: f64, value: fn(&ArmRow) -> f64| {
            at_least(&format!("criticality, {name}: {what}"), &class, least, value)
        };
        goals.push(goal("user-facing recall", 0.99, |row| row.buckets[0].each.recall));
        goals.push(goal("non-user-facing recall", 0.69, |row| row.buckets[1].each.recall));
        goals.push(goal("non-user-facing precision", 0.78, |row| row.buckets[1].each.precision));
        goals.push(goal("confident predictions", 0.95, |row| row.confident));
        let p95 = of(rows, PredictedValue::P95, name);
        let goal = |what: &str, least: f64, value: fn(&ArmRow) -> f64| {
            at_least(&format!("P95, {name}: {what}"), &p95, least, value)
        };
        goals.push(goal("accuracy of confident predictions", 0.84, |row| row.accuracy));
        goals.push(goal("confident predictions", 0.73, |row| row.confident));
        goals.push(goal("accuracy, of the ceiling of the same VMs", 0.95, |row| row.ceiling_share));
        goals.push(goal("the same of all predictions", 0.95, |row| row.ceiling_share_all));
    }

    let ceilings: Vec<f64> =
        of(rows, PredictedValue::P95, "best-possible").iter().map(|row| row.ceiling_all).collect();
    let met = ceilings.iter().all(|ceiling| (0.86..=0.90).contains(ceiling));
    let list: Vec<String> = ceilings.iter().map(|ceiling| percent(*ceiling, 1)).collect();
    let measured = (!list.is_empty()).then(|| (format!("{} %", list.join(", ")), met));
    goals.push(Goal::new("P95: the ceiling is 86 to 90 %", measured));

    goals
}

fn of<'a>(rows: &'a [ArmRow], asked: PredictedValue, arm: &str) -> Vec<&'a ArmRow> {
    rows.iter().filter(|row| row.model == asked && row.arm == arm).collect()
}

fn at_least(what: &str, rows: &[&ArmRow], least: f64, value: fn(&ArmRow) -> f64) -> Goal {
    // A value that is no number is the worst of all.
    let worse = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) };
    let worst = rows.iter().map(|row| value(row)).reduce(worse);
    let measured = worst.map(|worst| (format!("{} %", percent(worst, 1)), worst >= least));
    Goal::new(format!("{what} at least {} %", percent(least, 0)), measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_predict::compare::Arm;
    use ballast_predict::score::{Each, Scores};

    fn row(seed: u64, recall: f64) -> ArmRow {
        let each = Each { rows: 1, recall, precision: 1.0 };
        let scores = Scores { each: vec![each; 2], ..Scores::of(0, &[]) };
        let arm = "random-forest";
        ArmRow::new(Some(seed), Arm { model: PredictedValue::Criticality, arm, scores, importance: vec![] })
    }

    #[test]
    fn the_worst_fleet_decides_and_a_missing_number_is_no_success() {
        let verdict = |rows: &[ArmRow]| goals(rows)[0].met;
        assert_eq!(verdict(&[row(1, 0.995), row(2, 0.99)]), Some(true));
        assert_eq!(verdict(&[row(1, 0.995), row(2, 0.989)]), Some(false));
        assert_eq!(verdict(&[row(1, f64::NAN), row(2, 1.0)]), Some(false));
        assert_eq!(verdict(&[]), None);
    }
}
