//! `ballast-lab experiment oversubscription`: how low a budget may be (Table IV).

mod choice;
mod export;
mod replay;
mod traces;
mod units;

use core::time::Duration;

use ballast_lab::report::oversubscription::fleet::Fleet;
use ballast_lab::report::{self, Report};
use ballast_planner::{Chassis, Terms};
use ballast_types::Watts;

pub(crate) use self::choice::Choice;
use super::Setting;

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    Chassis { server: choice.server.model(), ..Chassis::default() }.check()?;
    let (mut fleets, missing) = fleets(choice, setting.threads())?;
    replay::run(choice, setting.threads(), &mut fleets)?;
    let command = setting.command("oversubscription");

    report::oversubscription::report(&choice.settings(), &fleets, &missing, command)
}

/// Finer than any meter, so that rounding moves no budget by 0.01 %.
const RESOLUTION: Watts = Watts::from_milli(100);

fn terms(chassis: &Chassis, period_s: u32) -> Terms {
    Terms { period: Duration::from_secs(period_s.into()), ..Terms::paper(chassis) }
}

fn fleets(choice: &Choice, threads: usize) -> anyhow::Result<(Vec<Fleet>, Vec<&'static str>)> {
    let (mut fleets, mut missing) = (Vec::new(), Vec::new());
    match traces::bitbrains()? {
        Some(traces) => fleets.extend(traces.fleets(choice, threads)?),
        None => missing.push("bitbrains_rnd"),
    }
    match traces::azure(choice)? {
        Some(traces) => fleets.extend(traces.fleets(choice, threads)?),
        None => missing.push("azure2017_util"),
    }
    match units::units(choice)? {
        Some(units) => fleets.push(units),
        None => missing.push("google_power2019"),
    }
    Ok((fleets, missing))
}
