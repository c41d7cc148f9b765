//! Runs drawn from seeds in which nothing fails: whether a user-facing core is slowed.

use ballast_sim::campaign::Case;
use ballast_sim::plant::peak_draw;
use ballast_sim::world::Checks;
use ballast_types::Watts;
use serde::Serialize;

/// Highest draw with all batch cores at their lowest frequency, as a share of the limit, in a calm run.
const FLOOR_MAX: f64 = 0.95;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomResult {
    pub seed: u64,
    pub actuator: &'static str,
    /// How the manager splits the budget.
    pub shares: &'static str,
    pub servers: usize,
    /// Highest draw with all batch cores at their lowest frequency, in percent of the limit.
    pub floor_percent: f64,
    /// User-facing core-seconds below the highest frequency.
    pub user_facing_slowed_core_s: f64,
}

/// The first `count` seeds from `first` on whose floor is at most 95 % of the limit, with that floor.
pub fn draw_faultless(first: u64, count: usize) -> Vec<(u64, f64)> {
    (first..).map(|seed| (seed, floor(seed))).filter(|(_, floor)| *floor <= FLOOR_MAX).take(count).collect()
}

fn floor(seed: u64) -> f64 {
    let case = Case::faultless(seed);
    let scenario = case.scenario();
    let plant = &scenario.plant;
    let rated: Watts = plant.supplies.iter().map(|supply| supply.rated).sum();
    let seconds = scenario.length.as_secs_f64();
    let peak = peak_draw(plant, seconds, (seconds * 20.0) as u32, true);
    peak.as_f64() / plant.budget.min(rated).as_f64()
}

/// Runs a seed of [`draw_faultless`].
pub fn run_random((seed, floor): (u64, f64)) -> RandomResult {
    let mut scenario = Case::faultless(seed).scenario().clone();
    scenario.checks = Checks::NONE;
    let actuator = scenario.agents.first().map_or("", |agent| agent.actuator.name());
    let (shares, servers) = (scenario.chassis.shares.name(), scenario.plant.servers.len());
    let report = scenario.run(&mut []);
    RandomResult {
        seed,
        actuator,
        shares,
        servers,
        floor_percent: 100.0 * floor,
        user_facing_slowed_core_s: report.truth().user_facing_throttled_core_s.total(),
    }
}

/// Runs, and runs in which a user-facing core was slowed, by actuator and shares.
pub fn random_rows(runs: &[RandomResult]) -> Vec<([String; 2], usize, usize)> {
    let mut rows: Vec<([String; 2], usize, usize)> = Vec::new();
    for run in runs {
        let key = [run.actuator.to_owned(), run.shares.to_owned()];
        let slowed = usize::from(run.user_facing_slowed_core_s > 0.0);
        match rows.iter_mut().find(|(known, ..)| *known == key) {
            Some((_, count, count_slowed)) => (*count, *count_slowed) = (*count + 1, *count_slowed + slowed),
            None => rows.push((key, 1, slowed)),
        }
    }
    rows.sort();
    rows
}
