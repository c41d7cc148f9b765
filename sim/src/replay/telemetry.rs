//! Foreign telemetry, played on the plant under the very same controllers.

use core::fmt;
use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_types::{Instant, Watts};
use serde::Serialize;

use super::loads::{Loads, Meaning, Playback, Sizes, idle};
use super::uncapped::{BudgetUse, Uncapped, batch_demand_core_s, batch_work_core_s};
use crate::scenario::{Control, Probe, Report, Run, Scenario};
use crate::trace::Trace;
use crate::world::{Bucket, Checks, Outcome, Violation};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A budget that no chassis can keep.
    #[error(
        "budget_w = {budget}: the {servers} servers and what they share draw {idle} while idle; allowed is \
         more than that"
    )]
    Budget { budget: Watts, idle: Watts, servers: usize },
    #[error("{key} = {value}: {allowed}")]
    Value { key: &'static str, value: String, allowed: String },
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl TelemetryError {
    pub(super) fn value(key: &'static str, value: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self::Value { key, value: value.to_string(), allowed: allowed.into() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub playback: Playback,
    /// The chassis's budget, at the supplies' input.
    pub budget: Watts,
    pub control: Control,
    pub seed: u64,
    pub points: usize,
}

/// What a replay of telemetry came to. All power is the plant's true power, at every 10 ms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TelemetryReport {
    pub telemetry: String,
    pub series_are: Meaning,
    pub series_used: usize,
    pub policy: &'static str,
    pub actuator: &'static str,
    pub shares: &'static str,
    pub seed: u64,
    pub budget_w: f64,
    pub servers: usize,
    /// Seconds that the trace covers.
    pub telemetry_s: f64,
    pub replayed_s: f64,
    pub max_power_w: f64,
    pub mean_power_w: f64,
    /// Longest stretch above the budget.
    pub over_budget_s_max: f64,
    pub over_budget_s_total: f64,
    /// Seconds in which hardware held back at least one core.
    pub hardware_engaged_s: f64,
    /// Core-seconds that user-facing cores were held down, by any cause.
    pub user_facing_throttled_core_s: f64,
    /// Core-seconds that batch cores were held down, by any cause.
    pub batch_throttled_core_s: f64,
    /// Frequency of batch cores as a share of the highest: over cores and time.
    pub batch_frequency_ratio_mean: f64,
    /// The mean over cores at the end.
    pub batch_frequency_ratio_end: f64,
    /// Batch VMs' work done ÷ what they would have done without a budget; `null` without such work.
    pub batch_work_ratio: Option<f64>,
    /// Drawn ÷ allowed by the budget, over the seconds in which the same load would draw more than the
    /// budget if nobody capped it; `null` when it never would.
    pub budget_used_ratio: Option<f64>,
    /// Values that no utilisation stands for, clamped: in the file, by the scale, by the power model.
    pub clamped_values: u64,
    /// Gaps in what was played; the value before held.
    pub gaps: u64,
    /// Values of the file that no machine can show; they count as missing.
    pub implausible_values: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The draw and the frequencies over time; extremes are kept. Not in JSON: it is for the plot.
    #[serde(skip)]
    pub curve: Vec<Bucket>,
}

/// Telemetry, ready to be played under the controllers.
#[derive(Debug)]
pub struct Telemetry {
    name: String,
    loads: Loads,
    covered_s: f64,
    options: Options,
    scenario: Scenario,
}

/// Looks every second at how much of the budget is used, and tells how far the run is.
struct Seconds<F> {
    uncapped: Uncapped,
    used: BudgetUse,
    before_j: f64,
    budget_w: f64,
    begun: u64,
    progress: F,
}

impl<F: FnMut(Duration)> Probe for Seconds<F> {
    fn next(&self, now: Instant) -> Instant {
        Instant::from_millis(1000 * (now.as_nanos() / SECOND_NS + 1))
    }

    fn begins(&mut self, run: &Run) {
        self.before_j = run.plant().energy_j();
        self.begun = run.now().as_nanos() / SECOND_NS;
    }

    fn ends(&mut self, run: &Run) {
        if let Some(uncapped_w) = self.uncapped.mean_w(self.begun) {
            let drawn_w = run.plant().energy_j() - self.before_j;
            self.used.second(drawn_w, uncapped_w, self.budget_w);
        }
        (self.progress)(run.now().since(Instant::ZERO));
    }
}

const SECOND_NS: u64 = 1_000_000_000;

impl Telemetry {
    /// Builds the chassis for this trace.
    /// This fails if an option is out of range, or the budget is under what the idle chassis draws.
    pub fn new(trace: &Trace, options: &Options) -> Result<Self, TelemetryError> {
        let Options { budget, control, seed, .. } = *options;
        if budget <= Watts::ZERO {
            let allowed = "allowed is a power above 0";
            return Err(TelemetryError::value("budget_w", budget.as_f64(), allowed));
        }

        let loads = Loads::cut(trace, &options.playback)?;
        let hardware_caps = control.policy != Policy::None;
        let plant = loads.plant(|place| place, Sizes::Equal, budget, hardware_caps);
        let idle = idle(&plant);
        if budget <= idle {
            return Err(TelemetryError::Budget { budget, idle, servers: loads.servers });
        }

        // Figures are needed here, not the first broken promise: the report says how long the excess
        // lasted and how far the breaker went, also where no controller could have kept the budget.
        let mut scenario = control.scenario(plant, seed, loads.length);
        scenario.checks = Checks { breaker: false, trip_time: false, ..scenario.checks };
        scenario.points = options.points;

        let (name, covered_s) = (trace.name.clone(), trace.span_s());
        Ok(Self { name, loads, covered_s, options: options.clone(), scenario })
    }

    /// The whole length of the run, in virtual time.
    pub fn length(&self) -> Duration {
        self.scenario.length
    }

    /// Runs it. `progress` is told every second of virtual time how much is done.
    pub fn run(self, progress: impl FnMut(Duration)) -> Result<TelemetryReport, TelemetryError> {
        let mut seconds = Seconds {
            uncapped: Uncapped::new(&self.scenario.plant, self.scenario.length),
            used: BudgetUse::default(),
            before_j: 0.0,
            budget_w: self.options.budget.as_f64(),
            begun: 0,
            progress,
        };
        let report = self.scenario.clone().run(&mut [&mut seconds]).kept()?;
        Ok(self.report(&report, seconds.used.ratio()))
    }

    fn report(&self, report: &Report, budget_used_ratio: Option<f64>) -> TelemetryReport {
        let Self { loads, options, scenario, .. } = self;
        let (truth, outcome) = (report.truth(), report.outcome().unwrap_or_default());
        let demand_core_s = batch_demand_core_s(&scenario.plant, outcome.elapsed_s);
        let work_core_s = batch_work_core_s(truth);

        TelemetryReport {
            telemetry: self.name.clone(),
            series_are: loads.meaning,
            series_used: loads.series(),
            policy: options.control.policy.name(),
            actuator: options.control.actuator.name(),
            shares: scenario.chassis.shares.name(),
            seed: options.seed,
            budget_w: options.budget.as_f64(),
            servers: loads.servers,
            telemetry_s: self.covered_s,
            replayed_s: outcome.elapsed_s,
            max_power_w: truth.max_power_w.as_f64(),
            mean_power_w: truth.mean_power_w.as_f64(),
            over_budget_s_max: truth.over_budget_s_max,
            over_budget_s_total: truth.over_budget_s_total,
            hardware_engaged_s: truth.hardware_engaged_s,
            user_facing_throttled_core_s: truth.user_facing_throttled_core_s.total(),
            batch_throttled_core_s: truth.batch_throttled_core_s.total(),
            batch_frequency_ratio_mean: truth.batch_frequency_ratio_mean,
            batch_frequency_ratio_end: truth.batch_frequency_ratio_end,
            batch_work_ratio: (demand_core_s > 0.0).then(|| work_core_s / demand_core_s),
            budget_used_ratio,
            clamped_values: loads.clamped,
            gaps: loads.gaps,
            implausible_values: loads.implausible_values,
            outcome,
            curve: report.curve().to_vec(),
        }
    }
}
