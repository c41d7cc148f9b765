//! The figures to reach on one server.

use super::rows::LoadRows;
use crate::Arrivals;
use crate::report::{Goal, number};
use crate::server::ServerResult;

/// The caps under which the user-facing VM can be protected, in watts.
const PROTECTED_W: [f64; 4] = [250.0, 240.0, 230.0, 220.0];
/// P95s that differ by no more than this share of the uncapped one are alike: seeds differ by more.
const ALIKE: f64 = 0.01;

/// What one cap came to: how far beyond the bound, and the words for it.
type Beyond = (f64, String);

pub(super) fn goals(sets: &[LoadRows]) -> Vec<Goal> {
    let Some(base) = sets.first() else { return Vec::new() };
    let mut goals = Vec::new();
    let judged = |set: &&LoadRows| set.batch_share == base.batch_share && set.service_ms == base.service_ms;
    for set in sets.iter().filter(judged) {
        // The load is calibrated where it is steady; what bursts do then comes out.
        if set.arrivals == Arrivals::Steady {
            calibration(set, &mut goals);
        }
        shape(set, &mut goals);

        if set.arrivals == Arrivals::Bursty {
            let label = format!("{}, 250–220 W", set.arrivals.name());
            against_stepwise(&label, set, &PROTECTED_W, &mut goals);
        }

        against_thunderbolt(set, &mut goals);
    }

    // The request length was chosen: where another one was run, it is judged too, under the caps it has.
    for set in sets.iter().filter(|set| set.service_ms != base.service_ms) {
        let run = |cap_w: &f64| set.rows.iter().any(|row| row.cap_w == *cap_w);
        let caps_w: Vec<f64> = PROTECTED_W.into_iter().filter(run).collect();
        let named: Vec<_> = caps_w.iter().map(|cap_w| format!("{cap_w} W")).collect();
        let LoadRows { arrivals, service_ms, .. } = set;
        let label = format!("{}, requests of {service_ms} ms, {}", arrivals.name(), named.join(", "));
        if !caps_w.is_empty() {
            against_stepwise(&label, set, &caps_w, &mut goals);
        }
    }

    goals
}

fn calibration(set: &LoadRows, goals: &mut Vec<Goal>) {
    let load = set.arrivals.name();
    let uncapped = set.rows.iter().find(|row| row.policy == "none");
    goals.push(Goal::new(
        format!("{load}, calibration: uncapped mean draw well above 250 W, at least 260 W"),
        uncapped.map(|row| {
            (format!("{} W", number(row.figures.mean_power_w, 1)), row.figures.mean_power_w >= 260.0)
        }),
    ));

    for (cap_w, low, high) in [(230.0, 1.13, 1.23), (210.0, 1.30, 1.40)] {
        let row = at(&set.rows, cap_w, "full-server");
        goals.push(Goal::new(
            format!("{load}, calibration: full-server's P95 at {cap_w} W from {low:.2} to {high:.2}"),
            row.map(|r| within(r.figures.user_facing_p95_norm.median, low, high)),
        ));
    }

    let limit = |cap_w| at(&set.rows, cap_w, "stepwise").map(|row| row.figures.server_limit_s);
    goals.push(Goal::new(
        format!("{load}, calibration: RAPL beside per-VM capping at 210 W, and not at 220 W"),
        limit(210.0).zip(limit(220.0)).map(|(low, high)| {
            (format!("{} s, {} s", number(low, 1), number(high, 1)), low > 0.0 && high == 0.0)
        }),
    ));
}

/// What must come out of the calibrated load: the paper's shape.
fn shape(set: &LoadRows, goals: &mut Vec<Goal>) {
    let load = set.arrivals.name();
    goals.push(Goal::new(
        format!("{load}: stepwise's P95 within 2 % of uncapped at 250–220 W"),
        worst(&set.rows, &PROTECTED_W, |rows, cap_w| {
            let p95 = at(rows, cap_w, "stepwise")?.figures.user_facing_p95_norm.median;
            Some(((p95 - 1.0).abs() - 0.02, number(p95, 3)))
        }),
    ));
    goals.push(Goal::new(
        format!("{load}: stepwise's batch run time at 230 W from 1.18 to 1.38 (paper: 1.28)"),
        at(&set.rows, 230.0, "stepwise").map(|r| within(r.figures.batch_runtime_norm.median, 1.18, 1.38)),
    ));
}

/// How manager's row is judged against another policy's.
type Check = fn(&ServerResult, &ServerResult) -> Beyond;

fn against(
    other: &str,
    label: &str,
    (set, caps_w): (&LoadRows, &[f64]),
    checks: &[(&str, Check)],
    goals: &mut Vec<Goal>,
) {
    goals.extend(checks.iter().map(|(goal, check)| {
        let judged =
            |rows: &[ServerResult], cap_w| Some(check(at(rows, cap_w, "manager")?, at(rows, cap_w, other)?));
        Goal::new(format!("{label}: manager's {goal}"), worst(&set.rows, caps_w, judged))
    }));
}

fn against_stepwise(label: &str, set: &LoadRows, caps_w: &[f64], goals: &mut Vec<Goal>) {
    let checks: [(&str, Check); 4] = [
        ("P95 as stepwise's, at most 0.01 more", |ours, paper| versus(p95(ours), p95(paper), 1.0, ALIKE)),
        ("excess at most stepwise's", |ours, paper| {
            versus(ours.figures.excess, paper.figures.excess, 1.0, 0.0)
        }),
        ("time above the cap at most 0.2 × stepwise's", |ours, paper| {
            let percent = |row: &ServerResult| 100.0 * row.figures.over_fraction.median;
            versus(percent(ours), percent(paper), 0.2, 0.0)
        }),
        ("longest stretch above the cap at most 0.6 s, in any seed", |ours, _| {
            let longest = ours.figures.over_s_max.max;
            (longest - 0.6, format!("{} s", number(longest, 1)))
        }),
    ];
    against("stepwise", label, (set, caps_w), &checks, goals);
}

fn against_thunderbolt(set: &LoadRows, goals: &mut Vec<Goal>) {
    let label = format!("{}, 250–220 W", set.arrivals.name());
    let checks: [(&str, Check); 2] = [
        ("P95 no worse than thunderbolt's, at most 0.01 more", |ours, theirs| {
            versus(p95(ours), p95(theirs), 1.0, ALIKE)
        }),
        ("excess at most 0.9 × thunderbolt's", |ours, theirs| {
            versus(ours.figures.excess, theirs.figures.excess, 0.9, 0.0)
        }),
    ];
    against("thunderbolt", &label, (set, &PROTECTED_W), &checks, goals);
}

fn p95(row: &ServerResult) -> f64 {
    row.figures.user_facing_p95_norm.median
}

fn at<'a>(rows: &'a [ServerResult], cap_w: f64, policy: &str) -> Option<&'a ServerResult> {
    rows.iter().find(|row| row.cap_w == cap_w && row.policy == policy)
}

fn within(value: f64, low: f64, high: f64) -> (String, bool) {
    (number(value, 3), (low..=high).contains(&value))
}

/// How far `ours` is beyond `factor` times `theirs` and `more`.
fn versus(ours: f64, theirs: f64, factor: f64, more: f64) -> Beyond {
    let words = format!("{} against {}", number(ours, 3), number(theirs, 3));
    (ours - factor * theirs - more, words)
}

/// The cap where it is worst, of these. `None` where one of them was not run, or a row is missing: then
/// the goal was not put to the test.
fn worst(
    rows: &[ServerResult],
    caps_w: &[f64],
    check: impl Fn(&[ServerResult], f64) -> Option<Beyond>,
) -> Option<(String, bool)> {
    let checked = caps_w.iter().map(|&cap_w| {
        let (beyond, words) = check(rows, cap_w)?;
        Some((missing_last(beyond), cap_w, words))
    });
    let checked = checked.collect::<Option<Vec<_>>>()?.into_iter();
    let (beyond, cap_w, words) = checked.max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
    Some((format!("{words} at {cap_w} W"), beyond <= 0.0))
}

/// What is not a number stands above all numbers, and is not within any bound.
fn missing_last(value: f64) -> f64 {
    if value.is_nan() { f64::INFINITY } else { value }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    fn set(rows: Vec<ServerResult>) -> LoadRows {
        LoadRows { arrivals: Arrivals::Bursty, batch_share: 0.6, service_ms: 0.5, rows }
    }

    /// The same rows on the load that is calibrated, and on the bursty one.
    fn judged(rows: &[ServerResult]) -> Vec<Goal> {
        let steady = LoadRows { arrivals: Arrivals::Steady, ..set(rows.to_vec()) };
        goals(&[steady, set(rows.to_vec())])
    }

    fn verdict(goals: &[Goal], part: &str) -> Option<bool> {
        let found = goals.iter().find(|goal| goal.goal.contains(part));
        found.unwrap_or_else(|| panic!("no goal about {part}: {goals:?}")).met
    }

    /// All policies at all caps, every goal met.
    fn good() -> Vec<ServerResult> {
        let mut rows = Vec::new();
        for cap_w in [250.0, 240.0, 230.0, 220.0, 210.0] {
            let full_server = if cap_w == 210.0 { 1.35 } else { 1.18 };
            let mut rows_of_cap = [
                row(cap_w, "none", 1.0, 1.0),
                row(cap_w, "full-server", full_server, 1.05),
                row(cap_w, "stepwise", 1.0, 1.28),
                row(cap_w, "manager", 1.0, 1.2),
                row(cap_w, "thunderbolt", 1.0, 1.4),
            ];

            let [none, _, stepwise, manager, _] = rows_of_cap.each_mut().map(|row| &mut row.figures);
            none.mean_power_w = 281.0;
            stepwise.server_limit_s = if cap_w == 210.0 { 60.0 } else { 0.0 };
            stepwise.over_fraction.median = 0.1;
            manager.over_fraction.median = 0.01;
            rows.extend(rows_of_cap);
        }
        rows
    }

    #[test]
    fn good_rows_meet_every_goal() {
        let goals = judged(&good());
        assert_eq!(goals.len(), (4 + 2 + 2) + (2 + 4 + 2));
        for goal in goals {
            assert_eq!(goal.met, Some(true), "{goal:?}");
        }
    }

    #[test]
    fn one_bad_row_fails_its_goal_and_names_the_cap() {
        type Spoil = fn(&mut ServerResult);
        let table: [(&str, f64, Spoil, &str); 9] = [
            ("stepwise", 240.0, |r| r.figures.user_facing_p95_norm.median = 1.03, "stepwise's P95"),
            ("stepwise", 230.0, |r| r.figures.batch_runtime_norm.median = 1.5, "run time at 230 W"),
            ("full-server", 230.0, |r| r.figures.user_facing_p95_norm.median = 1.3, "P95 at 230 W from"),
            ("stepwise", 220.0, |r| r.figures.server_limit_s = 1.0, "RAPL beside"),
            ("manager", 220.0, |r| r.figures.user_facing_p95_norm.median = 1.02, "P95 as stepwise's"),
            ("manager", 220.0, |r| r.figures.excess = 0.3, "excess at most stepwise's"),
            ("manager", 250.0, |r| r.figures.over_fraction.median = 0.03, "0.2 ×"),
            ("manager", 250.0, |r| r.figures.over_s_max.max = 0.7, "longest stretch"),
            ("manager", 240.0, |r| r.figures.excess = 0.29, "0.9 × thunderbolt's"),
        ];

        for (policy, cap_w, spoil, part) in table {
            let mut rows = good();
            rows.iter_mut().filter(|r| r.policy == policy && r.cap_w == cap_w).for_each(spoil);
            let goals = judged(&rows);
            assert_eq!(verdict(&goals, part), Some(false), "{part}");
        }
    }

    #[test]
    fn what_was_not_run_is_not_measured_and_a_missing_number_is_not_met() {
        let some: Vec<ServerResult> = good().into_iter().filter(|r| r.cap_w != 240.0).collect();
        let part = "stepwise's P95 within";
        assert_eq!(verdict(&goals(&[set(some)]), part), None);
        let mut missing = good();
        missing.iter_mut().for_each(|r| r.figures.user_facing_p95_norm.median = -f64::NAN);
        assert_eq!(verdict(&goals(&[set(missing)]), part), Some(false));
    }

    #[test]
    fn longer_requests_are_judged_under_the_caps_that_were_run() {
        let mut rows: Vec<ServerResult> = good().into_iter().filter(|r| r.cap_w == 230.0).collect();
        let judged = |rows: &[ServerResult]| {
            let long = LoadRows { service_ms: 5.0, ..set(rows.to_vec()) };
            goals(&[set(good()), long])
        };
        let part = "bursty, requests of 5 ms, 230 W: manager's excess at most stepwise's";
        assert_eq!(verdict(&judged(&rows), part), Some(true));
        rows.iter_mut().filter(|r| r.policy == "manager").for_each(|r| r.figures.excess = 0.3);
        assert_eq!(verdict(&judged(&rows), part), Some(false));
        let base = goals(&[set(good())]).len();
        assert_eq!(judged(&rows).len(), base + 4);
        rows.iter_mut().for_each(|r| r.cap_w = 210.0);
        assert_eq!(judged(&rows).len(), base, "nobody can be protected at 210 W");
    }

    #[test]
    fn other_batch_shares_are_shown_and_not_judged() {
        let other = LoadRows { batch_share: 1.0, ..set(good()) };
        assert_eq!(goals(&[set(good()), other]).len(), goals(&[set(good())]).len());
    }
}
