//! Later weeks under the planned budgets, with the real controllers in virtual time.

use ballast_lab::report::oversubscription::fleet::{Fleet, Replayed, Scaling, promised};
use ballast_planner::Plan;
use ballast_sim::verify::{Measured, Planned, Verdict, replay};

use super::choice::Choice;
use ballast_cli::common::threads::run_all;

struct Budget {
    fleet: usize,
    buffer_ppm: u32,
    planned: Planned,
}

/// Those that are too idle to be planned for are not worth hours of replays.
fn is_replayed(fleet: &Fleet) -> bool {
    !fleet.later.is_empty() && fleet.about.scaling == Scaling::Mean
}

/// Replays fleets whose chassis are made of VMs, the first chassis of each, under the proposed budgets that
/// arithmetic says later weeks keep: controllers act before a budget is reached, so they cannot keep the others.
pub(super) fn run(choice: &Choice, threads: usize, fleets: &mut [Fleet]) -> anyhow::Result<()> {
    let mut budgets = Vec::new();
    for (number, fleet) in fleets.iter().enumerate().filter(|(_, fleet)| is_replayed(fleet)) {
        for approach in promised() {
            let terms = fleet.case.terms(approach);
            let buffer_ppm = terms.buffer_ppm;
            if fleet.row(approach.name).is_some_and(|row| row.rates.kept) {
                let chassis = fleet.case.chassis;
                let plan = Plan::make(&fleet.case.history, approach, &chassis, &terms);
                let planned =
                    plan.map(|plan| Planned { approach: *approach, plan, chassis, period: terms.period });

                budgets.extend(planned.map(|p| Budget { fleet: number, buffer_ppm, planned: p }));
            }
        }
    }

    let mut jobs = Vec::new();

    for (number, budget) in budgets.iter().enumerate() {
        let chassis = fleets[budget.fleet].later.len().min(choice.replay_chassis as usize);
        jobs.extend((0..chassis).map(|chassis| (number, chassis)));
    }

    let options = choice.replay_options();
    let done = run_all("replay", &jobs, threads, |&(budget, chassis)| {
        let Budget { fleet, planned, .. } = &budgets[budget];
        replay(&fleets[*fleet].later[chassis], planned, &options, |_| ())
    })?;

    let mut measured = vec![Measured::default(); budgets.len()];

    for ((budget, _), one) in jobs.iter().zip(&done) {
        measured[*budget].add(one);
    }
    for (budget, measured) in budgets.iter().zip(&measured) {
        fleets[budget.fleet].replayed.extend(Verdict::of(&budget.planned, measured).map(|verdict| {
            Replayed {
                approach: budget.planned.approach.name,
                buffer_percent: f64::from(budget.buffer_ppm) / 1e4,
                verdict,
            }
        }));
    }

    Ok(())
}
