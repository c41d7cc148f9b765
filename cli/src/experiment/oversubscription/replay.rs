//! Later weeks under the planned budgets, with the real controllers in virtual time.

use ballast_lab::oversubscription::BUFFERS_PPM;
use ballast_lab::report::oversubscription::fleet::{Fleet, Replayed, promised};
use ballast_planner::{Plan, Terms};
use ballast_sim::verify::{Measured, Options, Planned, Verdict, replay};

use super::choice::Choice;
use crate::common::threads::run_all;

struct Budget {
    fleet: usize,
    buffer_ppm: u32,
    planned: Planned,
}

/// Replays fleets whose chassis are made of VMs, the first chassis of each, under the budgets that arithmetic says
/// later weeks keep: controllers act before a budget is reached, so they cannot keep the others.
pub(super) fn run(choice: &Choice, fleets: &mut [Fleet]) -> anyhow::Result<()> {
    let mut budgets = Vec::new();
    for (number, fleet) in fleets.iter().enumerate().filter(|(_, fleet)| !fleet.later.is_empty()) {
        for approach in promised() {
            let judged = fleet.row(approach.name).map_or(&[][..], |row| &row.buffers);
            let kept = BUFFERS_PPM.iter().zip(judged).filter(|(_, judged)| judged.rates.kept);
            for (&buffer_ppm, _) in kept {
                let (chassis, terms) = (fleet.case.chassis, fleet.case.terms);
                let terms = Terms { buffer_ppm, ..terms };
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

    let options = Options { seed: choice.seed, ..Options::default() };
    let done = run_all("replay", &jobs, choice.threads(), |&(budget, chassis)| {
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
