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

use crate::common::terminal::tell;

/// The exit code when the plan was not kept: that of a model that is worse than the one that it would
/// replace.
const NOT_KEPT: u8 = 3;

#[derive(Default)]
struct History {
    draws: BTreeMap<String, Histogram>,
    rejected: Rejected,
}

impl History {
    /// Of histograms, if they are given, else of the telemetry.
    fn read(args: &PlanArgs, asked: &PlanRequest, telemetry: &mut Telemetry<'_>) -> anyhow::Result<Self> {
        let mut history = if args.histogram.is_empty() {
            Self::of(telemetry)?
        } else {
            let draws = histograms::read(&args.histogram, &asked.intake)?;
            Self { draws, rejected: Rejected::default() }
        };
        history.draws.retain(|_, draws| draws.readings() > 0);
        if history.draws.is_empty() {
            bail!("no reading counts as a draw: {}", report::rejected(history.rejected));
        }
        Ok(history)
    }

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
    let history = History::read(args, &asked, &mut telemetry)?;
    let mut tests = BTreeMap::new();
    if args.back_test || !args.loads.is_empty() {
        let grids = trials::grids(&mut telemetry, &loads)?;
        tests = trials::run(&mut asked, &grids, args.back_test, &args.verify.options())?;
    }

    let asked = asked;
    for generation in asked.curves.unused(|name| history.draws.contains_key(name)) {
        tell(&format!("--profile {generation}=…: no reading is of that generation"));
    }
    let answers = history.draws.iter().map(|(generation, draws)| {
        let tests = tests.get(generation).map_or(&[][..], Vec::as_slice);
        answer(&asked, generation, draws, tests)
    });
    let mut answers: Vec<Answer> = answers.collect::<anyhow::Result<_>>()?;
    if args.histogram.is_empty() {
        longest(&mut telemetry, &asked, &mut answers)?;
    }
    if let Some(file) = &args.plot {
        plot::draw(file, &history.draws, &answers, asked.terms.provisioned)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }

    if let Some(held_out) = args.verify.held_out(&args.telemetry, &args.columns, &asked, from)? {
        args.verify
            .run(held_out, &asked, &loads, &mut answers, |generation| history.draws.get(generation))?;
    }
    let levels = args.levels.plan(&mut telemetry, &asked, &history.draws, &answers)?;
    let report = Report { asked: &asked, answers: &answers, rejected: history.rejected, levels };

    if args.json {
        report.json()?;
    } else {
        report.text()?;
    }

    let kept = answers.iter().filter_map(|answer| answer.verified.as_ref()).all(|it| it.verdict.kept);
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::from(NOT_KEPT) })
}

/// The plan of one generation, by every approach.
fn answer(
    asked: &PlanRequest,
    generation: &str,
    draws: &Histogram,
    tests: &[BackTest],
) -> anyhow::Result<Answer> {
    let (chassis, basis) = asked.chassis(generation)?;
    let make =
        |approach: &Approach| Plan::make(draws, approach, &chassis, &asked.terms(generation, approach));
    let table = Approach::ALL.iter().filter_map(|approach| Some((approach.name, make(approach)?))).collect();
    let plan = make(&asked.approach).context("a history without readings")?;
    let tests = tests.iter().filter_map(|test| policy_test(asked, test, make)).collect();
    let generation = generation.to_owned();
    Ok(Answer { generation, basis, plan, longest_event_s: None, table, verified: None, tests })
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
