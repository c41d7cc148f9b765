//! `ballast plan`: how low a chassis budget may be set, from the history of its draw.

mod answer;
mod args;
mod columns;
mod curves;
mod histograms;
mod history;
mod levels;
mod plot;
mod recorded;
mod report;
mod request;
mod telemetry;
mod verified;
mod verify;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_planner::{Approach, Histogram, Plan, Rejected};

use answer::Answer;
pub(crate) use args::PlanArgs;
use report::Report;
use request::PlanRequest;
use telemetry::Telemetry;
use verified::Verified;

use crate::common::terminal::tell;

/// The exit code when the plan was not kept: that of a model that is worse than the one that it would
/// replace.
const NOT_KEPT: u8 = 3;

/// What the history was counted into.
#[derive(Default)]
struct History {
    draws: BTreeMap<String, Histogram>,
    rejected: Rejected,
}

impl History {
    fn of(telemetry: &mut Telemetry<'_>) -> anyhow::Result<Self> {
        let mut all = Self::default();
        telemetry.looks(|readings| {
            for (generation, draws) in readings.histograms()? {
                match all.draws.get_mut(generation) {
                    Some(sum) => sum.merge(&draws)?,
                    None => drop(all.draws.insert(generation.to_owned(), draws)),
                }
            }
            all.rejected.add(&readings.rejected());
            Ok(())
        })?;
        Ok(all)
    }
}

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let asked = args.asked()?;
    let mut telemetry =
        Telemetry::new(&args.telemetry, &args.columns, asked.intake).during(args.verify.planned(&asked));
    let mut history = if args.histogram.is_empty() {
        History::of(&mut telemetry)?
    } else {
        let draws = histograms::read(&args.histogram, &asked.intake)?;
        History { draws, rejected: Rejected::default() }
    };

    history.draws.retain(|_, draws| draws.readings() > 0);

    if history.draws.is_empty() {
        bail!("no reading counts as a draw: {}", report::rejected(history.rejected));
    }
    let plans = history.draws.iter().map(|(generation, draws)| {
        let (chassis, basis) = asked.chassis(generation)?;
        let make = |approach| Plan::make(draws, approach, &chassis, &asked.terms);
        let table = Approach::ALL.iter();
        let table = table.filter_map(|approach| Some((approach.name, make(approach)?))).collect();
        let plan = make(&asked.approach).context("a history without readings")?;
        let generation = generation.clone();

        Ok(Answer { generation, basis, plan, longest_event_s: None, table, verified: None })
    });

    for generation in asked.curves.unused(|name| history.draws.contains_key(name)) {
        tell(&format!("--profile {generation}=…: no reading is of that generation"));
    }
    let mut answers: Vec<Answer> = plans.collect::<anyhow::Result<_>>()?;

    if args.histogram.is_empty() {
        longest(&mut telemetry, &asked, &mut answers)?;
    }
    if let Some(file) = &args.plot {
        plot::draw(file, &history.draws, &answers, asked.terms.provisioned)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }

    let of = |generation: &str| history.draws.get(generation);
    args.verify.run(&args.telemetry, &args.columns, &asked, &mut answers, of)?;
    let levels = args.levels.plan(&mut telemetry, &asked, &history.draws, &answers)?;
    let report = Report { asked: &asked, answers: &answers, rejected: history.rejected, levels };

    if args.json {
        report.json()?;
    } else {
        report.text()?;
    }

    let kept = answers.iter().filter_map(|answer| answer.verified.as_ref()).all(Verified::kept);

    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::from(NOT_KEPT) })
}

/// Finds the longest event of each plan: a histogram does not know what came after what.
fn longest(telemetry: &mut Telemetry<'_>, asked: &PlanRequest, answers: &mut [Answer]) -> anyhow::Result<()> {
    let mut units = vec![0; answers.len()];
    if answers.iter().any(|answer| answer.plan.events.all() > 0) {
        telemetry.looks(|readings| {
            for (units, answer) in units.iter_mut().zip(&*answers) {
                let here = readings.longest_above(&answer.generation, answer.plan.budget);
                *units = here.max(*units);
            }

            Ok(())
        })?;
    }

    for (answer, units) in answers.iter_mut().zip(units) {
        answer.longest_event_s = Some(units * u64::from(asked.intake.period_s));
    }
    Ok(())
}
