//! Figures to reach.

use ballast_sim::verify::Promise;

use super::fleet::{Fleet, promised};
use crate::report::{Goal, number, percent};

/// All goals; a fleet that is not there has none.
pub(super) fn goals(fleets: &[Fleet]) -> Vec<Goal> {
    let of = |fleet| promised().map(move |approach| kept(fleet, approach.name));
    fleets.iter().flat_map(of).collect()
}

/// Whether later weeks keep what was accepted.
fn kept(fleet: &Fleet, approach: &str) -> Goal {
    let measured = fleet.row(approach).filter(|row| row.held_out).map(|row| {
        let rates = |user_facing, batch| {
            format!("user-facing {} %, batch {} %", percent(user_facing, 3), percent(batch, 3))
        };
        let mut words = rates(row.rates.user_facing, row.rates.batch);
        let mut kept = row.rates.kept;

        if let Some(replayed) = fleet.replay(approach, row.buffer_percent) {
            let again = rates(replayed.events_user_facing_rate, replayed.events_batch_rate);
            words = format!("arithmetic: {words}; replayed: {again}");
            kept &= replayed.kept;

            for promise in replayed.broken() {
                let Promise { what, accepted, measured, .. } = promise;
                let numbers = format!("{} (accepted {accepted})", number(*measured, 4));
                words.push_str(&format!("; broken: {}: {numbers}", what.words()));
            }
        }

        (format!("{} % buffer: {words}", number(row.buffer_percent, 1)), kept)
    });

    let goal = format!(
        "{}, {approach}: with the buffer that the history proposes later weeks keep the promise",
        fleet.name()
    );

    Goal::new(goal, measured)
}
