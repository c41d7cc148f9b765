//! `ballast experiment oversubscription`: how low a budget may be (Table IV).

mod choice;
mod fleets;
mod replay;
mod traces;
mod units;

use ballast_lab::report::oversubscription::fleet::Fleet;
use ballast_lab::report::{self, Detail, Report};
use ballast_planner::Chassis;

pub(crate) use self::choice::Choice;

pub(super) fn report(choice: &Choice, detail: Detail) -> anyhow::Result<Report> {
    Chassis { server: choice.server.model(), ..Chassis::default() }.check()?;
    let (mut fleets, missing) = fleets(choice)?;
    replay::run(choice, &mut fleets)?;
    let command = command(choice, detail);

    report::oversubscription::report(&choice.settings(), &fleets, &missing, command, detail.figures)
}

/// All fleets, and what is not there.
fn fleets(choice: &Choice) -> anyhow::Result<(Vec<Fleet>, Vec<&'static str>)> {
    let (mut fleets, mut missing) = (vec![fleets::paper(choice)?], Vec::new());
    match traces::bitbrains()? {
        Some(traces) => fleets.extend(traces.fleets(choice)?),
        None => missing.push("bitbrains_rnd"),
    }
    match traces::azure(choice)? {
        Some(traces) => fleets.extend(traces.fleets(choice)?),
        None => missing.push("azure2017_util"),
    }
    match units::units(choice)? {
        Some(units) => fleets.push(units),
        None => missing.push("google_power2019"),
    }
    Ok((fleets, missing))
}

fn command(choice: &Choice, detail: Detail) -> String {
    let Choice {
        synthetic_chassis, synthetic_weeks, chassis, replicates, replay_chassis, seed, server, ..
    } = choice;
    let document = if detail.document { " --output docs" } else { "" };
    format!(
        "ballast experiment oversubscription --synthetic-chassis {synthetic_chassis} \
         --synthetic-weeks {synthetic_weeks} --chassis {chassis} --replicates {replicates} \
         --replay-chassis {replay_chassis} --seed {seed}{}{document}",
        server.flags()
    )
}
