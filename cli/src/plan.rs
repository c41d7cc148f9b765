//! `ballast plan`: how low a chassis budget may be set, from the history of its draw.

mod args;
mod curves;
mod plot;
mod read;
mod report;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_planner::{Approach, Histogram, Longest, Plan, Readings, Rejected};

use args::Asked;
pub(crate) use args::PlanArgs;
use report::{Answer, Report};

use crate::tell;

/// What the history was counted into.
struct History {
    /// By hardware generation.
    draws: BTreeMap<String, Histogram>,
    rejected: Rejected,
}

/// Plans.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let asked = args.asked()?;
    let mut history = match (args.telemetry.is_empty(), args.histogram.is_empty()) {
        (false, true) => {
            let readings = read::telemetry(&args.telemetry, &args.columns, asked.intake)?;
            let draws = readings.histograms().into_iter();
            let draws = draws.map(|(name, draws)| (name.to_owned(), draws.clone())).collect();
            History { draws, rejected: readings.rejected() }
        }
        _ => {
            let draws = read::histograms(&args.histogram, asked.intake.resolution)?;
            History { draws, rejected: Rejected::default() }
        }
    };
    history.draws.retain(|_, draws| draws.readings() > 0);
    if history.draws.is_empty() {
        bail!("no reading counts as a draw: {}", report::rejected(history.rejected));
    }
    let plans = history.draws.iter().map(|(generation, draws)| {
        let (chassis, curves) = asked.chassis(generation)?;
        let make = |approach| Plan::make(draws, approach, &chassis, &asked.terms);
        let table = Approach::ALL.iter();
        let table = table.filter_map(|approach| Some((approach.name, make(approach)?))).collect();
        let plan = make(&asked.approach).context("a history without readings")?;
        let (generation, curves) = (generation.clone(), curves.to_owned());
        Ok(Answer { generation, curves, plan, longest_event_s: None, table })
    });
    for generation in asked.curves.unused(|name| history.draws.contains_key(name)) {
        tell(&format!("--profile {generation}=…: no reading is of that generation"));
    }
    let mut answers: Vec<Answer> = plans.collect::<anyhow::Result<_>>()?;
    if !args.telemetry.is_empty() {
        longest(args, &asked, &mut answers)?;
    }
    if let Some(file) = &args.plot {
        plot::draw(file, &history.draws, &answers, asked.terms.provisioned)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let report = Report { asked: &asked, answers: &answers, rejected: history.rejected };
    if args.json {
        report.json()?;
    } else {
        report.text()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the longest event of each plan. Where there is any it takes a second look at the telemetry: a
/// histogram does not know what came after what.
fn longest(args: &PlanArgs, asked: &Asked, answers: &mut [Answer]) -> anyhow::Result<()> {
    let mut found = vec![Longest::default(); answers.len()];
    if answers.iter().any(|answer| answer.plan.events.all() > 0) {
        let mut again = Readings::new(asked.intake)?;
        read::each(&args.telemetry, &args.columns, &mut again, |all, chassis, t_s, watts| {
            let of = all.generation(chassis);
            let Some(place) = answers.iter().position(|answer| answer.generation == of) else {
                return Ok(());
            };
            let budget = answers[place].plan.budget;
            if asked.intake.draw(watts).is_some_and(|draw| draw > budget) {
                found[place].above(chassis, all.unit(t_s))?;
            }
            Ok(())
        })?;
    }
    for (answer, longest) in answers.iter_mut().zip(found) {
        answer.longest_event_s = Some(longest.units() * u64::from(asked.intake.period_s));
    }
    Ok(())
}
