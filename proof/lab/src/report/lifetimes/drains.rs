//! Rounds of drains: what each order of moves saves, over all pools.

use ballast_placement::drain::DrainOrder;
use serde::Serialize;

use super::super::{Goal, number};
use crate::lifetimes::lars::{LarsRow, ORDERS};
use crate::lifetimes::{DrainRun, LEARNT, ORACLE};
use ballast_cli::common::text_table::TextTable;

/// One order over all pools of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DrainSum {
    pool: String,
    scenario: String,
    prediction: String,
    order: DrainOrder,
    pools: usize,
    scheduled: u64,
    moved: u64,
    /// Of the moves in the order of arrival the share that is not made, in percent.
    saved_percent: f64,
    /// How long a host takes until it is free, in hours.
    host_free_h: f64,
}

pub(super) fn sums(runs: &[DrainRun]) -> Vec<DrainSum> {
    let mut keys: Vec<(&str, &str, &str)> = Vec::new();
    for run in runs {
        let key = key(run);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }

    let mut sums = Vec::new();
    for (pool, scenario, prediction) in keys {
        let of = |order: DrainOrder| -> Vec<&LarsRow> {
            let runs = runs.iter().filter(|run| key(run) == (pool, scenario, prediction));
            runs.flat_map(|run| &run.orders).filter(|row| row.order == order).collect()
        };
        let moved = |rows: &[&LarsRow]| rows.iter().map(|row| row.moved).sum::<u64>();
        let baseline = moved(&of(DrainOrder::Arrival));
        sums.extend(ORDERS.map(|order| {
            let rows = of(order);
            let free_s: f64 = rows.iter().map(|row| row.host_free_s).sum();
            DrainSum {
                pool: pool.to_owned(),
                scenario: scenario.to_owned(),
                prediction: prediction.to_owned(),
                order,
                pools: rows.len(),
                scheduled: rows.iter().map(|row| row.scheduled).sum(),
                moved: moved(&rows),
                saved_percent: 100.0 * (1.0 - moved(&rows) as f64 / baseline.max(1) as f64),
                host_free_h: free_s / rows.len() as f64 / 3600.0,
            }
        }));
    }
    sums
}

fn key(run: &DrainRun) -> (&str, &str, &str) {
    (&run.pool, &run.scenario, &run.prediction)
}

fn name(order: DrainOrder) -> &'static str {
    match order {
        DrainOrder::Largest => "largest",
        DrainOrder::Arrival => "arrival",
        DrainOrder::PerHost => "per-host",
        DrainOrder::Global => "global",
    }
}

pub(super) fn table(sums: &[DrainSum]) -> TextTable {
    TextTable::of(
        4,
        sums,
        &[
            ("pool", &|sum| sum.pool.clone()),
            ("scenario", &|sum| sum.scenario.clone()),
            ("prediction", &|sum| sum.prediction.clone()),
            ("order", &|sum| name(sum.order).to_owned()),
            ("scheduled", &|sum| sum.scheduled.to_string()),
            ("moved", &|sum| sum.moved.to_string()),
            ("saved %", &|sum| number(sum.saved_percent, 2)),
            ("host free after h", &|sum| number(sum.host_free_h, 2)),
        ],
    )
}

/// L11 and L12: the least that is saved in any scenario counts.
pub(super) fn goals(sums: &[DrainSum]) -> [Goal; 2] {
    let least = |order, prediction| {
        let of = sums.iter().filter(|sum| sum.order == order && sum.prediction == prediction);
        of.map(|sum| sum.saved_percent).min_by(f64::total_cmp)
    };
    let goal = |name: &str, order, met: fn(f64, f64) -> bool| {
        let both = least(order, ORACLE).zip(least(order, LEARNT));
        let measured = both.map(|(oracle, learnt)| {
            (format!("{oracle:.2} % with an oracle, {learnt:.2} % learnt"), met(oracle, learnt))
        });
        Goal::new(name, measured)
    };
    [
        goal(
            "L11: drains in one order over all hosts of a round save at least 6 % (oracle) and 2.5 % \
             (learnt) of the moves, at the least",
            DrainOrder::Global,
            |oracle, learnt| oracle >= 6.0 && learnt >= 2.5,
        ),
        goal(
            "L12: drains in an order for each host save at least 0.6 % (oracle) and more than 0 (learnt), \
             at the least",
            DrainOrder::PerHost,
            |oracle, learnt| oracle >= 0.6 && learnt > 0.0,
        ),
    ]
}
