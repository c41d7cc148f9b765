//! `ballast plan --verify`: held-out telemetry under the planned budget, with the real controllers.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ballast_planner::{ChassisIndex, Histogram, Plan, Readings, Terms};
use ballast_sim::verify::{Demand, Draws, Measured, Options, Planned, Verdict, replay};
use clap::{Args, ValueEnum};

use super::answer::{Answer, labelled};
use super::columns::Columns;
use super::request::{PlanRequest, ppm};
use super::telemetry::Telemetry;
use super::verified::{BufferVerdict, Verified};
use crate::common::control::SharesArg;
use crate::common::numbers::share;
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
    #[arg(long, alias = "verify-shares", value_enum, value_name = "NAME", default_value_t = SharesArg::Even)]
    shares: SharesArg,
    /// What non-user-facing VMs do whose cores are slowed
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    verify_demand: DemandArg,
    /// How far a server's dynamic power may lie from the chassis's mean, as a share of it
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    verify_imbalance: f64,
    /// Seed of meters, latencies and imbalance
    #[arg(long, alias = "verify-seed", value_name = "S", default_value_t = 1)]
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
    /// Which times the plan is made from.
    pub(super) fn planned(&self, asked: &PlanRequest) -> Range<i64> {
        i64::MIN..self.from(asked).unwrap_or(i64::MAX)
    }

    /// Where held-out readings begin: with a whole unit of time.
    fn from(&self, asked: &PlanRequest) -> Option<i64> {
        let period = i64::from(asked.intake.period_s);
        let up = |t_s: i64| t_s.saturating_add(period - 1).div_euclid(period).saturating_mul(period);
        self.verify_from.map(up)
    }

    /// The held-out telemetry, if there is any.
    fn held_out<'a>(
        &'a self,
        telemetry: &'a [PathBuf],
        columns: &'a Columns,
        asked: &PlanRequest,
    ) -> Option<Telemetry<'a>> {
        let from = self.from(asked);
        let files = if from.is_some() { telemetry } else { &self.verify };
        let range = from.unwrap_or(i64::MIN)..i64::MAX;
        (!files.is_empty()).then(|| Telemetry::new(files, columns, asked.intake).during(range))
    }

    fn options(&self) -> Options {
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

    /// Verifies every answer, if that is asked for. `draws` is what each was planned from.
    pub(super) fn run<'d>(
        &self,
        telemetry: &[PathBuf],
        columns: &Columns,
        asked: &PlanRequest,
        answers: &mut [Answer],
        draws: impl Fn(&str) -> Option<&'d Histogram>,
    ) -> anyhow::Result<()> {
        let Some(mut held_out) = self.held_out(telemetry, columns, asked) else {
            if self.verify_buffers.is_empty() {
                return Ok(());
            }
            bail!("--verify-buffers: --verify or --verify-from is needed");
        };

        // The plan's own buffer first.
        let mut buffers = vec![asked.terms.buffer_ppm];
        buffers.extend(self.verify_buffers.iter().map(|buffer| ppm(*buffer)));
        let mut budgets = Vec::new();

        for answer in &*answers {
            let draws = draws(&answer.generation).context("a plan without a history")?;
            for &buffer_ppm in &buffers {
                let terms = Terms { buffer_ppm, ..asked.terms };
                let planned = planned(asked, &terms, &answer.generation, draws)?;
                let (budget, idle) = (planned.plan.budget, planned.idle());

                if budget <= idle {
                    bail!(
                        "a budget of {budget} cannot be verified: {} such servers draw {idle} while idle; \
                         see --servers, --idle-w and --profile",
                        planned.chassis.servers
                    );
                }

                budgets.push((planned, Measured::default()));
            }
        }

        let (options, mut rejected) = (self.options(), 0);
        held_out.looks(|readings| {
            rejected += readings.rejected().all();
            one_look(readings, &options, answers, buffers.len(), &mut budgets)
        })?;

        for (answer, budgets) in answers.iter_mut().zip(budgets.chunks(buffers.len())) {
            let mut rows = Vec::new();
            for ((planned, measured), buffer_ppm) in budgets.iter().zip(&buffers) {
                let verdict = Verdict::of(planned, measured).with_context(|| {
                    format!(
                        "nothing to verify on: no held-out reading counts as a draw{}",
                        labelled(&answer.generation)
                    )
                })?;

                let delta_percent = planned.plan.delta_percent;
                rows.push(BufferVerdict { buffer: f64::from(*buffer_ppm) / 1e6, delta_percent, verdict });
            }

            answer.verified = Some(Verified {
                verdict: rows[0].verdict.clone(),
                unit_s: asked.intake.period_s,
                options,
                rejected_readings: rejected,
                buffers: rows.into_iter().skip(usize::from(self.verify_buffers.is_empty())).collect(),
            });
        }

        Ok(())
    }
}

/// The plan for one generation under these terms, as it is verified.
fn planned(
    asked: &PlanRequest,
    terms: &Terms,
    generation: &str,
    draws: &Histogram,
) -> anyhow::Result<Planned> {
    let approach = asked.approach;
    let (chassis, _) = asked.chassis(generation)?;
    let plan = Plan::make(draws, &approach, &chassis, terms).context("a history without readings")?;
    Ok(Planned { approach, plan, chassis, period: terms.period })
}

/// Replays the chassis of one look under all budgets of their generation, `per_answer` each.
fn one_look(
    readings: &Readings,
    options: &Options,
    answers: &[Answer],
    per_answer: usize,
    budgets: &mut [(Planned, Measured)],
) -> anyhow::Result<()> {
    let mut all: Vec<_> = readings.all().collect();

    // Sums of seconds come out the same whatever the order in the files was.
    all.sort_by_key(|&chassis| readings.name(chassis));
    let mut jobs = Vec::new();

    for chassis in all {
        let draws = draws(readings, chassis);
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
        let own = answer * per_answer..(answer + 1) * per_answer;
        jobs.extend(own.map(|budget| (draws.clone(), budget)));
    }

    let run = |(draws, budget): &(Arc<Draws>, usize)| replay(draws, &budgets[*budget].0, options, |_| ());
    let measured = threads::run("replay", &jobs, all_cores().get(), run);

    for ((_, budget), measured) in jobs.iter().zip(measured) {
        budgets[*budget].1.add(&measured?);
    }
    Ok(())
}

/// A chassis's draws in time; a gap of any length is one missing unit.
fn draws(readings: &Readings, chassis: ChassisIndex) -> Draws {
    let mut all = Vec::new();
    let mut next = None;
    for (unit, draw) in readings.draws(chassis) {
        if next.is_some_and(|next| next != unit) {
            all.push(None);
        }
        all.push(Some(draw));
        next = Some(unit + 1);
    }
    Draws::new(readings.name(chassis), all)
}
