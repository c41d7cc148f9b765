//! `ballast plan --back-test`: plans of the past against what came after them.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use ballast_planner::{Approach, Chassis, Policy};
use ballast_sim::verify::{BackTest, Draws, Options, Past, peaks};

use super::answer::{PolicyTest, labelled};
use super::loads::ClassLoads;
use super::request::PlanRequest;
use super::telemetry::Telemetry;
use crate::common::grid::plain;
use crate::common::replays::replays;
use crate::common::threads::all_cores;

/// Besides the policy that is asked for.
const VERIFIED: [&str; 2] = ["no-impact", "minimal-impact"];

/// The approaches that are verified: the one that is asked for, and those that people choose between.
pub(super) fn verified(asked: &Approach) -> impl Iterator<Item = Approach> {
    let others = VERIFIED.into_iter().filter_map(Approach::named);
    others.filter(move |other| other.name != asked.name)
}

/// Draws of one hardware generation, all from the same unit of time on.
pub(super) struct Grid {
    pub(super) first_unit: i64,
    pub(super) draws: Vec<Draws>,
}

/// The first and the last unit of time with a reading.
pub(super) fn span(telemetry: &mut Telemetry<'_>) -> anyhow::Result<Option<(i64, i64)>> {
    let mut span: Option<(i64, i64)> = None;
    telemetry.looks(|readings| {
        for (unit, _) in readings.all().flat_map(|chassis| readings.draws(chassis)) {
            let (first, last) = span.unwrap_or((unit, unit));
            span = Some((first.min(unit), last.max(unit)));
        }
        Ok(())
    })?;
    Ok(span)
}

/// All draws with their loads, by generation.
pub(super) fn grids(
    telemetry: &mut Telemetry<'_>,
    loads: &ClassLoads,
) -> anyhow::Result<BTreeMap<String, Grid>> {
    let (first_unit, last) = span(telemetry)?.context("no reading counts as a draw")?;
    let units: Vec<Option<i64>> = (first_unit..=last).map(Some).collect();
    let mut all = BTreeMap::new();

    telemetry.looks(|readings| {
        for chassis in readings.all() {
            let mut row = vec![None; units.len()];
            for (unit, draw) in readings.draws(chassis) {
                row[(unit - first_unit) as usize] = Some(draw);
            }

            let name = readings.name(chassis);
            let draws = Draws::new(name, row);
            let draws = match loads.of(name, &units) {
                Some(loads) => draws.with_loads(loads),
                None => draws,
            };
            let grid = all.entry(readings.generation(chassis).to_owned());
            grid.or_insert_with(|| Grid { first_unit, draws: vec![] }).draws.push(draws);
        }
        Ok(())
    })?;

    let names = all.values().flat_map(|grid: &Grid| grid.draws.iter().map(Draws::name));
    loads.check(names)?;
    Ok(all)
}

/// Sets the peaks of all generations, and with `back_test` the buffers; gives the tests by generation.
pub(super) fn run(
    asked: &mut PlanRequest,
    grids: &BTreeMap<String, Grid>,
    back_test: bool,
    options: &Options,
) -> anyhow::Result<BTreeMap<String, Vec<BackTest>>> {
    let mut all = BTreeMap::new();
    for (generation, grid) in grids {
        let (means, _) = asked.chassis(generation)?;
        if let Some(peak) = peaks(&grid.draws, usize::MAX) {
            asked.peaks.insert(generation.clone(), peak);
        }
        if !back_test {
            continue;
        }

        let others = Approach::ALL.into_iter().filter(|approach| approach.name != asked.approach.name);
        let tests = std::iter::once(asked.approach).chain(others);
        let tests = tests.filter(|approach| approach.policy != Policy::Provisioned);
        let past = past(asked, grid, &means);
        let mut found = Vec::new();

        for approach in tests {
            let mut test = past.back_test(&approach)?.with_context(|| {
                format!(
                    "--back-test{}: two days with readings are needed after a first week, before what is \
                     held out",
                    labelled(generation)
                )
            })?;

            if approach.name == asked.approach.name || VERIFIED.contains(&approach.name) {
                past.confirm(&approach, &mut test, |draws, planned| {
                    replays(draws, planned, options, all_cores().get())
                })?;
            }
            found.push(test);
        }

        for test in &found {
            asked.buffers.insert((generation.clone(), test.approach), test.proposed_ppm);
        }
        all.insert(generation.clone(), found);
    }
    Ok(all)
}

pub(super) fn past<'a>(asked: &'a PlanRequest, grid: &'a Grid, chassis: &'a Chassis) -> Past<'a> {
    Past {
        draws: &grid.draws,
        start_s: grid.first_unit * i64::from(asked.intake.period_s),
        chassis,
        terms: &asked.terms,
        resolution: asked.intake.resolution,
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// Tells of all policies that were verified.
pub(super) fn text(out: &mut impl Write, tests: &[PolicyTest]) -> std::io::Result<()> {
    let trials = tests.first().map_or(0, |test| test.test.trials.len());
    writeln!(
        out,
        "Back-test: {trials} days, each planned from all readings before it. Held out: what came after \
         them all.\n"
    )?;
    let head = [
        "policy",
        "held on all days %",
        "buffer %",
        "budget",
        "under %",
        "servers in the rack",
        "held-out needed %",
        "held-out",
        "next --buffer",
    ];
    let rows = tests.iter().filter_map(|row| {
        let verdict = row.verify.as_ref()?;
        Some([
            row.test.approach.to_owned(),
            percent(row.test.held_buffer),
            percent(row.buffer),
            row.plan.budget.to_string(),
            format!("{:.1}", row.plan.delta_percent),
            format!("{} → {}", row.rack.servers_provisioned, row.rack.servers),
            row.held_out_needed_buffer.map_or_else(String::new, percent),
            if verdict.kept { "kept" } else { "BROKEN" }.to_owned(),
            row.next_buffer.to_string(),
        ])
    });
    writeln!(out, "{}\n", plain(head, rows))?;
    writeln!(
        out,
        "Next: plan from all of the telemetry, with the last column's buffer instead of --back-test.\n"
    )
}
