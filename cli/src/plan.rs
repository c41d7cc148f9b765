//! `ballast plan`: how low a chassis budget may be set, from the history of its draw.

mod answer;
mod args;
mod columns;
mod curves;
mod histograms;
mod history;
mod levels;
mod loads;
mod plot;
mod recorded;
mod report;
mod request;
mod telemetry;
mod trials;
mod verified;
mod verify;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_planner::{Approach, Histogram, Plan, Rejected};
use ballast_sim::verify::BackTest;

use answer::{Answer, PolicyTest};
pub(crate) use args::PlanArgs;
use loads::ClassLoads;
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
    let mut asked = args.asked()?;
    let loads = ClassLoads::read(&args.loads, &args.columns, &asked.intake, asked.servers)?;
    let from = held_out_from(args, &asked)?;
    let mut telemetry = Telemetry::new(&args.telemetry, &args.columns, asked.intake)
        .during(i64::MIN..from.unwrap_or(i64::MAX));
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

    let mut tests = BTreeMap::new();
    if args.back_test || !args.loads.is_empty() {
        let grids = trials::grids(&mut telemetry, &loads)?;
        tests = trials::run(&mut asked, &grids, args.back_test, &args.verify.options())?;
    }

    let asked = asked;
    let plans = history.draws.iter().map(|(generation, draws)| {
        let (chassis, basis) = asked.chassis(generation)?;
        let make =
            |approach: &Approach| Plan::make(draws, approach, &chassis, &asked.terms(generation, approach));
        let table = Approach::ALL.iter();
        let table = table.filter_map(|approach| Some((approach.name, make(approach)?))).collect();
        let plan = make(&asked.approach).context("a history without readings")?;
        let tests = tests.get(generation).into_iter().flatten();
        let tests = tests.filter_map(|test| policy_test(&asked, test, make));
        let (generation, tests) = (generation.clone(), tests.collect());

        Ok(Answer { generation, basis, plan, longest_event_s: None, table, verified: None, tests })
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
    if let Some(held_out) = args.verify.held_out(&args.telemetry, &args.columns, &asked, from)? {
        args.verify.run(held_out, &asked, &loads, &mut answers, of)?;
    }
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

/// The plan with the buffer that a back-test proposes.
fn policy_test(
    asked: &PlanRequest,
    test: &BackTest,
    make: impl Fn(&Approach) -> Option<Plan>,
) -> Option<PolicyTest> {
    let own = (test.approach == asked.approach.name).then_some(asked.approach);
    let plan = make(&own.or_else(|| Approach::named(test.approach))?)?;
    let buffer = f64::from(test.proposed_ppm) / 1e6;
    Some(PolicyTest {
        test: test.clone(),
        buffer,
        plan,
        rack: asked.fit(&plan),
        held_out_needed_buffer: None,
        next_buffer: buffer,
        verify: None,
    })
}

/// Where held-out readings begin, if they are part of the telemetry: as told, or for a back-test in its middle.
fn held_out_from(args: &PlanArgs, asked: &PlanRequest) -> anyhow::Result<Option<i64>> {
    if !args.back_test || args.verify.is_told() {
        return Ok(args.verify.from(asked));
    }
    let mut telemetry = Telemetry::new(&args.telemetry, &args.columns, asked.intake);
    let (first, last) = trials::span(&mut telemetry)?.context("no reading counts as a draw")?;
    Ok(Some((first + (last + 1 - first) / 2) * i64::from(asked.intake.period_s)))
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
