//! `ballast plan --verify`: held-out telemetry under the planned budget, with the real controllers.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ballast_planner::{ChassisIndex, Histogram, Plan, Readings, Terms};
use ballast_sim::verify::{Demand, Draws, Measured, Options, Planned, Verdict, replay};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::Style;

use super::args::{Asked, Columns, ppm};
use super::report::{Answer, labelled};
use super::telemetry::Telemetry;
use crate::common::control::SharesArg;
use crate::common::numbers::share;
use crate::common::threads;
use crate::common::threads::all_cores;

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

/// What came of it, for one hardware generation.
#[derive(Debug, Serialize)]
pub(super) struct Verified {
    #[serde(flatten)]
    verdict: Verdict,
    /// Of one unit of time.
    unit_s: u32,
    options: Options,
    /// Readings of the held-out telemetry that did not count, over all generations.
    rejected_readings: u64,
    /// What other buffers would do.
    buffers: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    buffer: f64,
    delta_percent: f64,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Verified {
    /// Whether the plan was kept.
    pub(super) fn kept(&self) -> bool {
        self.verdict.kept
    }
}

/// A time: whole seconds, or RFC 3339.
fn instant(text: &str) -> Result<i64, String> {
    let stamp = || Some(text.parse::<jiff::Timestamp>().ok()?.as_second());
    text.parse().ok().or_else(stamp).ok_or_else(|| "seconds are needed, or RFC 3339".to_owned())
}

impl VerifyArgs {
    /// Which times the plan is made from.
    pub(super) fn planned(&self, asked: &Asked) -> Range<i64> {
        i64::MIN..self.from(asked).unwrap_or(i64::MAX)
    }

    /// Where held-out readings begin: with a whole unit of time.
    fn from(&self, asked: &Asked) -> Option<i64> {
        let period = i64::from(asked.intake.period_s);
        let up = |t_s: i64| t_s.saturating_add(period - 1).div_euclid(period).saturating_mul(period);
        self.verify_from.map(up)
    }

    /// The held-out telemetry, if there is any.
    fn held_out<'a>(
        &'a self,
        telemetry: &'a [PathBuf],
        columns: &'a Columns,
        asked: &Asked,
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
        asked: &Asked,
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
                        "a budget of {budget} cannot be verified: {} such servers draw {idle} while idle; see \
                         --servers, --idle-w and --profile",
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
                rows.push(Row { buffer: f64::from(*buffer_ppm) / 1e6, delta_percent, verdict });
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
fn planned(asked: &Asked, terms: &Terms, generation: &str, draws: &Histogram) -> anyhow::Result<Planned> {
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

impl Verified {
    /// For people.
    pub(super) fn text(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (verdict, m) = (&self.verdict, &self.verdict.measured);
        let kept = |kept: bool| if kept { "kept" } else { "BROKEN" };
        writeln!(
            out,
            "Verified on {} held-out chassis, {} units of {} s, {} of them near enough to {} to be replayed \
             with the real controllers: {}\n",
            m.chassis,
            m.units,
            self.unit_s,
            m.replayed_units,
            verdict.budget,
            kept(verdict.kept)
        )?;

        let mut table = Builder::default();
        table.push_record(["promise", "accepted", "foretold", "measured", ""]);

        for promise in &verdict.promises {
            table.push_record([
                promise.what.words().to_owned(),
                format!("{:.4}", promise.accepted),
                promise.foretold.map_or_else(String::new, |foretold| format!("{foretold:.4}")),
                format!("{:.4}", promise.measured),
                kept(promise.kept).to_owned(),
            ]);
        }

        writeln!(out, "{}\n", table.build().with(Style::blank()))?;
        writeln!(
            out,
            "  events: {} with user-facing VMs, {} of batch VMs alone, the longest {} s; {} readings were above \
             the budget, by at most {}",
            m.events_user_facing,
            m.events_batch,
            m.longest_event_units * u64::from(self.unit_s),
            m.readings_above_budget,
            m.highest_above.at_least_zero()
        )?;

        writeln!(
            out,
            "  shed: {} at most over a unit (foretold {}), {} in a moment; above the budget for {:.2} s in all, \
             {:.2} s at a stretch; hardware held cores for {:.1} s",
            m.deepest,
            verdict.foretold_deepest,
            m.deepest_moment,
            m.over_budget_s,
            m.over_budget_s_max,
            m.hardware_s
        )?;

        if m.beyond_full_load + m.below_idle > 0 {
            writeln!(
                out,
                "  the servers' curves do not fit all readings: {} were above full load and {} below idle, and \
                 were replayed at that",
                m.beyond_full_load, m.below_idle
            )?;
        }

        if !self.buffers.is_empty() {
            writeln!(out, "\n{}", self.sweep())?;
        }
        writeln!(out)
    }

    /// What other buffers would do.
    fn sweep(&self) -> String {
        let mut table = Builder::default();
        table.push_record([
            "buffer %",
            "budget",
            "under %",
            "events",
            "user-facing",
            "longest s",
            "deepest",
            "lowest batch",
            "user-facing",
            "over budget s",
            "hardware s",
            "",
        ]);

        for row in &self.buffers {
            let (verdict, m) = (&row.verdict, &row.verdict.measured);
            let broken: Vec<_> = verdict.broken().map(|promise| promise.what.short()).collect();
            table.push_record([
                format!("{:.1}", 100.0 * row.buffer),
                verdict.budget.to_string(),
                format!("{:.1}", row.delta_percent),
                format!("{:.4}", verdict.events_rate),
                format!("{:.4}", verdict.events_user_facing_rate),
                (m.longest_event_units * u64::from(self.unit_s)).to_string(),
                m.deepest.to_string(),
                format!("{:.2}", m.lowest_batch_frequency),
                format!("{:.2}", m.lowest_user_facing_frequency),
                format!("{:.2}", m.over_budget_s_max),
                format!("{:.1}", m.hardware_s),
                if verdict.kept { "kept".to_owned() } else { format!("BROKEN: {}", broken.join(", ")) },
            ]);
        }

        table.build().with(Style::blank()).to_string()
    }
}
