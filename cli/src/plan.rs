//! `ballast plan`: how low a chassis budget may be set, from the history of its draw.

mod args;
mod plot;
mod read;
mod report;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_planner::{Histogram, Longest, Plan, Readings, Rejected};

use args::Asked;
pub(crate) use args::PlanArgs;
use report::{Answer, Report};

/// What the history was counted into.
struct History {
    /// By hardware generation.
    draws: BTreeMap<String, Histogram>,
    rejected: Rejected,
    /// Telemetry, not a histogram: there is more to ask of it.
    readings: Option<Readings>,
}

/// Plans.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let asked = args.asked()?;
    let mut history = match (args.telemetry.is_empty(), args.histogram.is_empty()) {
        (false, true) => {
            let readings = read::telemetry(&args.telemetry, &args.columns, asked.intake)?;
            let draws = readings.histograms().into_iter();
            let draws = draws.map(|(name, draws)| (name.to_owned(), draws.clone())).collect();
            History { draws, rejected: readings.rejected(), readings: Some(readings) }
        }
        _ => {
            let draws = read::histograms(&args.histogram, asked.intake.resolution)?;
            History { draws, rejected: Rejected::default(), readings: None }
        }
    };
    history.draws.retain(|_, draws| draws.readings() > 0);
    if history.draws.is_empty() {
        bail!("no reading counts as a draw: {}", report::rejected(history.rejected));
    }
    let mut answers = vec![];
    for (generation, draws) in &history.draws {
        answers.push(answer(args, &asked, &history, generation, draws)?);
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

/// The plan for one hardware generation.
fn answer(
    args: &PlanArgs,
    asked: &Asked,
    history: &History,
    generation: &str,
    draws: &Histogram,
) -> anyhow::Result<Answer> {
    let make = |approach| Plan::make(draws, approach, &asked.chassis, &asked.terms);
    let plan = make(&asked.approach).context("a history without readings")?;
    // A second look is needed only for what a histogram does not know.
    let longest = match &history.readings {
        None => None,
        Some(_) if plan.events.all() == 0 => Some(0),
        Some(readings) => {
            let mut longest = Longest::default();
            let mut again = Readings::new(asked.intake)?;
            read::each(&args.telemetry, &args.columns, &mut again, |all, chassis, t_s, watts| {
                let above = asked.intake.draw(watts).is_some_and(|draw| draw > plan.budget);
                if above && all.generation(chassis) == generation {
                    longest.above(chassis, readings.unit(t_s))?;
                }
                Ok(())
            })?;
            Some(longest.units() * u64::from(asked.intake.period_s))
        }
    };
    let table = ballast_planner::Approach::ALL.iter();
    let table = table.filter_map(|approach| Some((approach.name, make(approach)?))).collect();
    Ok(Answer { generation: generation.to_owned(), plan, longest_event_s: longest, table })
}
