//! `ballast plan --verify`: held-out telemetry under the planned budget, with the real controllers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ballast_planner::{Approach, ChassisIndex, Histogram, Plan, Readings, Terms, buffer_needed, whole_steps};
use ballast_sim::verify::{Demand, Draws, Measured, Options, Planned, Verdict, buffer_that_holds, replay};
use clap::{Args, ValueEnum};

use super::answer::{Answer, labelled};
use super::columns::Columns;
use super::loads::ClassLoads;
use super::request::{PlanRequest, ppm};
use super::telemetry::Telemetry;
use super::trials::{self, Grid};
use super::verified::{BufferVerdict, Verified};
use crate::common::control::SharesArg;
use crate::common::numbers::share;
use crate::common::replays::replays;
use crate::common::threads::{self, all_cores};

/// What the plan is held against.
#[derive(Args, Debug)]
#[command(next_help_heading = "Verification")]
pub(super) struct VerifyArgs {
    /// Replay this held-out telemetry under the planned budget, with the real chassis manager and agents in
    /// virtual time; exit code 3 if the plan is not kept
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "verify_from")]
    verify: Vec<PathBuf>,
    /// Instead: plan from the readings of --telemetry before this time, and verify on those from it on
    #[arg(long, value_name = "TIME", value_parser = instant, conflicts_with = "histogram")]
    verify_from: Option<i64>,
    /// Verify budgets with these buffers too, as shares of the lowest one
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', value_parser = share)]
    verify_buffers: Vec<f64>,
    /// How the chassis manager splits the budget
    #[arg(long, value_enum, value_name = "NAME",
        default_value_t = SharesArg::CriticalFirst)]
    shares: SharesArg,
    /// What non-user-facing VMs do whose cores are slowed
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    verify_demand: DemandArg,
    /// How far a server's dynamic power may lie from the chassis's mean, as a share of it
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    verify_imbalance: f64,
    /// Seed of meters, latencies and imbalance
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// See [`Demand`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DemandArg {
    /// The same work comes and takes longer: they are busier, and shed less than planned
    #[default]
    Open,
    /// They stay as busy as they were and get less done: what the planner assumes
    Closed,
}

/// A time: whole seconds, or RFC 3339.
fn instant(text: &str) -> Result<i64, String> {
    let stamp = || Some(text.parse::<jiff::Timestamp>().ok()?.as_second());
    text.parse().ok().or_else(stamp).ok_or_else(|| "seconds are needed, or RFC 3339".to_owned())
}

impl VerifyArgs {
    /// Whether it is told what is held out.
    pub(super) fn is_told(&self) -> bool {
        self.verify_from.is_some() || !self.verify.is_empty()
    }

    /// Where held-out readings begin, where that was told: with a whole unit of time.
    pub(super) fn from(&self, asked: &PlanRequest) -> Option<i64> {
        let period = i64::from(asked.intake.period_s);
        let up = |t_s: i64| t_s.saturating_add(period - 1).div_euclid(period).saturating_mul(period);
        self.verify_from.map(up)
    }

    /// The held-out telemetry, if there is any: readings of `telemetry` from a time on, or files of its own.
    pub(super) fn held_out<'a>(
        &'a self,
        telemetry: &'a [PathBuf],
        columns: &'a Columns,
        asked: &PlanRequest,
        from: Option<i64>,
    ) -> anyhow::Result<Option<Telemetry<'a>>> {
        let files = if from.is_some() { telemetry } else { &self.verify };
        if files.is_empty() && !self.verify_buffers.is_empty() {
            bail!("--verify-buffers: --verify, --verify-from or --back-test is needed");
        }
        let range = from.unwrap_or(i64::MIN)..i64::MAX;
        Ok((!files.is_empty()).then(|| Telemetry::new(files, columns, asked.intake).during(range)))
    }

    pub(super) fn options(&self) -> Options {
        Options {
            seed: self.seed,
            shares: self.shares.shares(),
            demand: match self.verify_demand {
                DemandArg::Open => Demand::Open,
                DemandArg::Closed => Demand::Closed,
            },
            imbalance: self.verify_imbalance,
            ..Options::default()
        }
    }

    /// What is replayed for one answer: its plan first, then with other buffers, then other policies of a
    /// back-test.
    fn budgets(
        &self,
        asked: &PlanRequest,
        answer: &Answer,
        draws: &Histogram,
    ) -> anyhow::Result<Vec<Budget>> {
        let generation = &answer.generation;
        let own = asked.terms(generation, &asked.approach);
        let mut all = vec![(asked.approach, own)];
        all.extend(
            self.verify_buffers
                .iter()
                .map(|buffer| (asked.approach, Terms { buffer_ppm: ppm(*buffer), ..own })),
        );

        if !answer.tests.is_empty() {
            let others = trials::verified(&asked.approach);
            all.extend(others.map(|other| (other, asked.terms(generation, &other))));
        }

        let budget = |(approach, terms): (Approach, Terms)| {
            let (chassis, _) = asked.chassis(generation)?;
            let plan =
                Plan::make(draws, &approach, &chassis, &terms).context("a history without readings")?;
            let planned = Planned { approach, plan, chassis, period: terms.period };
            let (budget, idle) = (plan.budget, planned.idle());

            if budget <= idle {
                bail!(
                    "a budget of {budget} cannot be verified: {} such servers draw {idle} while idle; see \
                     --servers, --idle-w and --profile",
                    planned.chassis.servers
                );
            }
            Ok(Budget { planned, buffer_ppm: terms.buffer_ppm, measured: Measured::default() })
        };
        all.into_iter().map(budget).collect()
    }

    /// Verifies every answer. `draws` is what each was planned from.
    pub(super) fn run<'d>(
        &self,
        mut held_out: Telemetry<'_>,
        asked: &PlanRequest,
        loads: &ClassLoads,
        answers: &mut [Answer],
        draws: impl Fn(&str) -> Option<&'d Histogram>,
    ) -> anyhow::Result<()> {
        let budgets = answers.iter().map(|answer| {
            let draws = draws(&answer.generation).context("a plan without a history")?;
            self.budgets(asked, answer, draws)
        });
        let mut budgets: Vec<Vec<Budget>> = budgets.collect::<anyhow::Result<_>>()?;

        let (options, mut rejected) = (self.options(), 0);
        held_out.looks(|readings| {
            rejected += readings.rejected().all();
            one_look(readings, &options, loads, answers, &mut budgets)
        })?;

        let grids = if answers.iter().any(|answer| !answer.tests.is_empty()) {
            trials::grids(&mut held_out, loads)?
        } else {
            BTreeMap::new()
        };

        for (answer, budgets) in answers.iter_mut().zip(&budgets) {
            let verdicts = budgets.iter().map(|budget| {
                Verdict::of(&budget.planned, &budget.measured).with_context(|| {
                    format!(
                        "nothing to verify on: no held-out reading counts as a draw{}",
                        labelled(&answer.generation)
                    )
                })
            });
            let verdicts: Vec<Verdict> = verdicts.collect::<anyhow::Result<_>>()?;

            if let Some(grid) = grids.get(&answer.generation) {
                let draws = draws(&answer.generation).context("a plan without a history")?;
                tested(asked, grid, answer, budgets, &verdicts, &HeldOutReplay { draws, options: &options })?;
            }
            let rows = budgets.iter().zip(&verdicts).take(1 + self.verify_buffers.len());
            let rows = rows.map(|(budget, verdict)| BufferVerdict {
                buffer: f64::from(budget.buffer_ppm) / 1e6,
                delta_percent: budget.planned.plan.delta_percent,
                verdict: verdict.clone(),
            });

            answer.verified = Some(Verified {
                verdict: verdicts[0].clone(),
                unit_s: asked.intake.period_s,
                options,
                rejected_readings: rejected,
                buffers: rows.skip(usize::from(self.verify_buffers.is_empty())).collect(),
            });
        }

        Ok(())
    }
}

/// A budget that is replayed, and what came of it so far.
struct Budget {
    planned: Planned,
    buffer_ppm: u32,
    measured: Measured,
}

/// Tells the policies of a back-test what the held-out readings said of them.
fn tested(
    asked: &PlanRequest,
    grid: &Grid,
    answer: &mut Answer,
    budgets: &[Budget],
    verdicts: &[Verdict],
    again: &HeldOutReplay<'_>,
) -> anyhow::Result<()> {
    for test in &mut answer.tests {
        let name = test.test.approach;
        let found = budgets.iter().zip(verdicts).find(|(budget, _)| budget.planned.approach.name == name);
        let Some((Budget { planned, .. }, verdict)) = found else { continue };
        let past = trials::past(asked, grid, &planned.chassis);
        let needed = past.needed(&planned.approach, &planned.chassis, 0, usize::MAX)?;
        let needed = needed.map(|needed| buffer_needed(needed, planned.plan.p_min));

        let proposed_ppm = test.test.proposed_ppm;
        let next_ppm = proposed_ppm.max(needed.map_or(0, whole_steps));
        let held_ppm = match verdict.kept && next_ppm == proposed_ppm {
            true => next_ppm,
            false => again.held(planned, grid, Terms { buffer_ppm: next_ppm, ..asked.terms })?,
        };

        test.held_out_needed_buffer = needed;
        test.next_buffer = f64::from(held_ppm) / 1e6;
        test.verify = Some(verdict.clone());
    }
    Ok(())
}

/// What it takes to replay held-out draws with other buffers.
struct HeldOutReplay<'a> {
    /// What was planned from.
    draws: &'a Histogram,
    options: &'a Options,
}

impl HeldOutReplay<'_> {
    /// The first buffer, from that of the terms on, with which the held-out draws keep the promise.
    fn held(&self, planned: &Planned, grid: &Grid, terms: Terms) -> anyhow::Result<u32> {
        let Planned { approach, chassis, .. } = planned;
        let replay = |planned: &Planned| replays(&grid.draws, planned, self.options, all_cores().get());
        let held = buffer_that_holds(self.draws, approach, chassis, terms, replay)?;
        Ok(held.context("a history without readings")?.0)
    }
}

/// Replays the chassis of one look under all budgets of their generation.
fn one_look(
    readings: &Readings,
    options: &Options,
    loads: &ClassLoads,
    answers: &[Answer],
    budgets: &mut [Vec<Budget>],
) -> anyhow::Result<()> {
    let mut all: Vec<_> = readings.all().collect();

    // Sums of seconds come out the same whatever the order in the files was.
    all.sort_by_key(|&chassis| readings.name(chassis));
    let mut jobs = Vec::new();

    for chassis in all {
        let draws = draws(readings, chassis, loads);
        if draws.is_empty() {
            continue;
        }
        let generation = readings.generation(chassis);
        let answer = answers.iter().position(|answer| answer.generation == generation);
        let answer = answer.with_context(|| {
            format!(
                "held-out chassis {}{}: the history that the plan is made from has none such",
                readings.name(chassis),
                labelled(generation)
            )
        })?;

        let draws = Arc::new(draws);
        jobs.extend((0..budgets[answer].len()).map(|budget| (draws.clone(), answer, budget)));
    }

    let measured = threads::run("replay", &jobs, all_cores().get(), |(draws, answer, budget)| {
        replay(draws, &budgets[*answer][*budget].planned, options, |_| ())
    });

    for ((_, answer, budget), measured) in jobs.iter().zip(measured) {
        budgets[*answer][*budget].measured.add(&measured?);
    }
    Ok(())
}

/// A chassis's draws in time; a gap of any length is one missing unit.
fn draws(readings: &Readings, chassis: ChassisIndex, loads: &ClassLoads) -> Draws {
    let (mut all, mut units) = (Vec::new(), Vec::new());
    let mut next = None;
    for (unit, draw) in readings.draws(chassis) {
        if next.is_some_and(|next| next != unit) {
            all.push(None);
            units.push(None);
        }
        all.push(Some(draw));
        units.push(Some(unit));
        next = Some(unit + 1);
    }

    let name = readings.name(chassis);
    let draws = Draws::new(name, all);
    match loads.of(name, &units) {
        Some(loads) => draws.with_loads(loads),
        None => draws,
    }
}
