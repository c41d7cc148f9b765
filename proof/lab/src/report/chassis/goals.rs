//! The figures to reach on a chassis.

use crate::chassis::ChassisResult;
use crate::report::{Goal, number};

/// Imbalanced, `even` loses "as much as" full-server capping: at least so much of what that loses.
const AS_MUCH: f64 = 0.8;

pub(super) fn goals(rows: &[ChassisResult]) -> Vec<Goal> {
    let mut goals = paper(rows);
    ours(rows, "stepwise", &mut goals);
    goals
}

/// What the paper states of its Figure 6.
fn paper(rows: &[ChassisResult]) -> Vec<Goal> {
    let p95 = |placement, policy| {
        find(rows, placement, policy, "even").map(|r| r.figures.user_facing_p95_norm.median)
    };
    let runtime = |placement, policy| {
        find(rows, placement, policy, "even").map(|r| r.figures.batch_runtime_norm.median)
    };
    let balanced = p95("balanced", "stepwise").map(|p95| (number(p95, 3), (p95 - 1.0).abs() <= 0.02));
    let imbalanced = p95("imbalanced", "stepwise").zip(p95("imbalanced", "full-server"));
    let mut goals = vec![
        Goal::new("paper: balanced, per-VM capping keeps P95, within 2 %", balanced),
        Goal::new(
            "paper: imbalanced, per-VM capping with even shares loses as much P95 as full-server \
             capping, at least 0.8 × it",
            imbalanced.map(|(ours, full)| {
                let words = format!("{} against {}", number(ours, 3), number(full, 3));
                (words, full > 1.0 && ours - 1.0 >= AS_MUCH * (full - 1.0))
            }),
        ),
    ];

    for placement in ["balanced", "imbalanced"] {
        let both = runtime(placement, "full-server").zip(runtime(placement, "stepwise"));
        goals.push(Goal::new(
            format!("paper: {placement}, full-server capping is kinder to batch than per-VM capping"),
            both.map(|(full, stepwise)| less(full, stepwise)),
        ));
    }

    for policy in ["full-server", "stepwise"] {
        let both = runtime("imbalanced", policy).zip(runtime("balanced", policy));
        goals.push(Goal::new(
            format!("paper: {policy} is kinder to batch when imbalanced than when balanced"),
            both.map(|(imbalanced, balanced)| less(imbalanced, balanced)),
        ));
    }

    goals
}

/// What `critical-first` shares are for.
fn ours(rows: &[ChassisResult], policy: &str, goals: &mut Vec<Goal>) {
    let row = find(rows, "imbalanced", policy, "critical-first");
    goals.push(Goal::new(
        format!("imbalanced, {policy}: P95 with critical-first shares within 3 % of uncapped"),
        row.map(|r| {
            let p95 = r.figures.user_facing_p95_norm.median;
            (number(p95, 3), (p95 - 1.0).abs() <= 0.03)
        }),
    ));

    for placement in ["balanced", "imbalanced"] {
        let longest = |shares| find(rows, placement, policy, shares).map(|r| r.figures.over_s_max.max);
        goals.push(Goal::new(
            format!(
                "{placement}, {policy}: never above the budget longer with critical-first shares \
                 than with even ones, in any seed"
            ),
            longest("critical-first").zip(longest("even")).map(|(ours, even)| {
                (format!("{} s against {} s", number(ours, 1), number(even, 1)), ours <= even)
            }),
        ));
    }
}

/// Hardware that caps every server alike has no shares: it stands for even ones.
fn find<'a>(
    rows: &'a [ChassisResult],
    placement: &str,
    policy: &str,
    shares: &str,
) -> Option<&'a ChassisResult> {
    let fits = |row: &&ChassisResult| row.placement == placement && row.policy == policy;
    rows.iter().filter(fits).find(|row| row.shares.is_none_or(|s| s == shares))
}

fn less(ours: f64, other: f64) -> (String, bool) {
    (format!("{} against {}", number(ours, 3), number(other, 3)), ours <= other)
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    fn good() -> Vec<ChassisResult> {
        let (even, first) = (Some("even"), Some("critical-first"));
        vec![
            row("balanced", "full-server", None, 1.15, 1.05),
            row("balanced", "stepwise", even, 1.0, 1.25),
            row("balanced", "stepwise", first, 1.0, 1.25),
            row("imbalanced", "full-server", None, 1.2, 1.04),
            row("imbalanced", "stepwise", even, 1.2, 1.1),
            row("imbalanced", "stepwise", first, 1.01, 1.3),
        ]
    }

    #[test]
    fn good_rows_meet_every_goal_that_they_measure() {
        let goals = goals(&good());
        for goal in &goals {
            assert_eq!(goal.met, Some(true), "{goal:?}");
        }
    }

    #[test]
    fn one_bad_row_fails_its_goal() {
        type Spoil = fn(&mut ChassisResult);
        let table: [(usize, Spoil, &str); 6] = [
            (1, |r| r.figures.user_facing_p95_norm.median = 1.05, "keeps P95"),
            (4, |r| r.figures.user_facing_p95_norm.median = 1.05, "loses as much"),
            (0, |r| r.figures.batch_runtime_norm.median = 1.5, "balanced, full-server capping is kinder"),
            (5, |r| r.figures.user_facing_p95_norm.median = 1.1, "within 3 %"),
            (5, |r| r.figures.over_s_max.max = 9.0, "imbalanced, stepwise: never above"),
            (4, |r| r.figures.batch_runtime_norm.median = 1.4, "stepwise is kinder"),
        ];
        for (index, spoil, part) in table {
            let mut rows = good();
            spoil(&mut rows[index]);
            let goals = goals(&rows);
            let goal = goals.iter().find(|goal| goal.goal.contains(part)).unwrap();
            assert_eq!(goal.met, Some(false), "{goal:?}");
        }
    }
}
