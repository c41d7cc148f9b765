//! Figures to reach.

use ballast_sim::verify::Promise;

use super::fleet::{Fleet, Source, promised};
use crate::report::{Goal, number, paper, percent};

/// The buffer that promises are for, in percent.
const USUAL_BUFFER: f64 = 10.0;

/// All goals; a fleet that is not there has none.
pub(super) fn goals(fleets: &[Fleet]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for fleet in fleets {
        if fleet.about.source == Source::PaperQuantiles {
            goals.extend(table_iv(fleet));
        } else {
            goals.extend(promised().map(|approach| kept(fleet, approach.name)));
        }
    }
    goals
}

/// How far the synthetic fleet is from the paper's table.
fn table_iv(fleet: &Fleet) -> [Goal; 3] {
    let stated = fleet
        .judged
        .iter()
        .filter_map(|row| paper::oversubscription(row.approach).map(|stated| (row, stated)));
    let stated: Vec<_> = stated.collect();
    let farthest = |off: &dyn Fn(usize) -> f64| {
        (0..stated.len()).map(|n| (off(n), stated[n].0.approach)).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let delta = |n: usize| (stated[n].0.delta_percent - stated[n].1.delta_percent).abs();
    let millions = |n: usize| (stated[n].0.savings_usd - stated[n].1.savings_usd).abs() / 1e6;
    let all = stated.len() == 8;
    let same = stated.iter().filter(|(row, stated)| row.binding == stated.binding).count();

    [
        Goal::new(
            "the paper's quantiles: all eight deltas of Table IV to 0.1 points",
            farthest(&delta).map(|(off, approach)| {
                (format!("at most {} points off ({approach})", number(off, 3)), all && off <= 0.1)
            }),
        ),
        Goal::new(
            "the paper's quantiles: all eight savings to $0.5M",
            farthest(&millions).map(|(off, approach)| {
                (format!("at most ${}M off ({approach})", number(off, 2)), all && off <= 0.5)
            }),
        ),
        Goal::new(
            "the paper's quantiles: limited by what follows from the eight deltas",
            Some((format!("{same} of {}", stated.len()), all && same == stated.len())),
        ),
    ]
}

/// Whether later weeks keep what was accepted.
fn kept(fleet: &Fleet, approach: &str) -> Goal {
    let measured = fleet.row(approach).filter(|row| row.held_out).map(|row| {
        let rates = |user_facing, batch| {
            format!("user-facing {} %, batch {} %", percent(user_facing, 3), percent(batch, 3))
        };
        let mut words = rates(row.rates.user_facing, row.rates.batch);
        let mut kept = row.rates.kept;

        if let Some(replayed) = fleet.replay(approach, USUAL_BUFFER) {
            let again = rates(replayed.events_user_facing_rate, replayed.events_batch_rate);
            words = format!("arithmetic: {words}; replayed: {again}");
            kept &= replayed.kept;

            for promise in replayed.broken() {
                let Promise { what, accepted, measured, .. } = promise;
                let numbers = format!("{} (accepted {accepted})", number(*measured, 4));
                words.push_str(&format!("; broken: {}: {numbers}", what.words()));
            }
        }

        (words, kept)
    });

    let goal = format!(
        "{}, {approach}, 10 % buffer: event rates of later weeks within the accepted ones",
        fleet.name()
    );

    Goal::new(goal, measured)
}
