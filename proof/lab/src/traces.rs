//! Measured load on a chassis, under budgets a little above and below what it draws unrestricted.
//!
//! First every data set is played once without a budget: [`Case::uncapped`]. Its highest mean over 100 ms
//! is 100 %. Then every controller gets the same load under every budget: [`jobs`].

use core::time::Duration;
use std::sync::Arc;

use ballast_agent_core::Policy;
use ballast_types::wire::SharePolicy;
use ballast_types::{PowerModel, TripFraction, Watts};
use serde::Serialize;

use super::trial::{self, Windows};
use super::watch::Watch;
use ballast_sim::baseline::Baseline;
use ballast_sim::plant::{Plant, PlantSpec, Truth, WINDOW_S};
use ballast_sim::replay::{
    BudgetUse, Loads, Meaning, Playback, Sizes, TelemetryError, batch_work_core_s, idle,
};
use ballast_sim::rng::{Purpose, Stream};
use ballast_sim::scenario::{Control, Controller, Scenario};
use ballast_sim::trace::Trace;
use ballast_sim::world::{Checks, Violation};

/// A run begins in the middle of a load, with a manager that has not heard of any server. What that does to
/// user-facing cores is no policy's, and is not counted.
const BEGINNING_S: f64 = 10.0;

/// Where controllers aim, as a share of the limit; flicker of the draw may lower theirs further.
const SET_POINT: f64 = 0.99;

/// Windows of 100 ms in a second.
const WINDOWS_A_SECOND: usize = 10;

/// Who keeps the draw down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TracePolicy {
    /// Nobody.
    None,
    /// Hardware: on the supplies' alert every server above its even share is capped, all cores alike.
    FullServer,
    /// The paper's controller: steps, even shares, a plain timer.
    Paper,
    /// The controllers as they ship: a common height, and shares by need.
    Stepwise,
    /// The highest p-states that fit at every instant, knowing the load: the physical limit.
    Oracle,
    /// The same, held where controllers aim: at 99 % of the budget.
    OracleAtSetPoint,
}

impl TracePolicy {
    pub const ALL: [Self; 6] =
        [Self::None, Self::FullServer, Self::Paper, Self::Stepwise, Self::Oracle, Self::OracleAtSetPoint];

    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::FullServer => "full-server",
            Self::Paper => "paper",
            Self::Stepwise => "stepwise",
            Self::Oracle => "oracle",
            Self::OracleAtSetPoint => "oracle-at-set-point",
        }
    }

    /// How the budget is split; `None` where nobody splits it.
    pub const fn shares(self) -> Option<SharePolicy> {
        match self {
            Self::None | Self::Oracle | Self::OracleAtSetPoint => None,
            Self::FullServer | Self::Paper => Some(SharePolicy::Even),
            Self::Stepwise => Some(SharePolicy::CriticalFirst),
        }
    }

    /// The controllers of the project, where it is they.
    fn control(self) -> Option<Control> {
        match self {
            Self::None | Self::FullServer | Self::Oracle | Self::OracleAtSetPoint => None,
            Self::Paper => Some(Control::PAPER),
            Self::Stepwise => Some(Control { shares: self.shares(), ..Control::new(Policy::Stepwise) }),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Budgets, in percent of the uncapped peak.
    pub budgets_percent: Vec<f64>,
    pub policies: Vec<TracePolicy>,
    /// For each, series are dealt anew to the servers; also of all other chance.
    pub seeds: Vec<u64>,
    pub servers: usize,
    pub sizes: Sizes,
    /// Recorded hours to leave out at the start; `None` to play the hours around the busiest instant.
    pub skip_hours: Option<f64>,
    /// Recorded hours to play; `None` for all.
    pub hours: Option<f64>,
    /// A server of 40 cores.
    pub model: PowerModel,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            budgets_percent: vec![102.0, 100.0, 95.0, 90.0, 85.0, 80.0],
            policies: TracePolicy::ALL.to_vec(),
            seeds: vec![1],
            servers: 12,
            sizes: Sizes::Equal,
            skip_hours: None,
            hours: Some(3.0),
            model: PowerModel::PAPER,
        }
    }
}

/// One data set, dealt to the servers by one seed.
#[derive(Clone, Debug)]
pub struct Case {
    data: String,
    seed: u64,
    sizes: Sizes,
    meaning: Meaning,
    series: usize,
    skip_s: f64,
    length: Duration,
    plant: PlantSpec,
    idle: Watts,
}

/// What a case draws and does without a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Uncapped {
    /// Means over 100 ms, in watts.
    windows_w: Vec<f64>,
    peak_w: f64,
    mean_w: f64,
    batch_work_core_s: f64,
}

/// One controller under one budget.
#[derive(Clone, Debug)]
pub struct Job {
    case: Arc<Case>,
    uncapped: Arc<Uncapped>,
    budget_percent: f64,
    policy: TracePolicy,
}

/// One controller under one budget. Power is the true power at the supplies' input; runs of one data set
/// and seed have the same load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceResult {
    pub data: String,
    /// By which the series were dealt to the servers.
    pub seed: u64,
    /// The budget, in percent of `peak_w`.
    pub budget_percent: f64,
    pub policy: TracePolicy,
    /// How the budget was split; `null` where nobody splits it.
    pub shares: Option<&'static str>,
    /// Core-seconds that user-facing cores were held below their highest frequency, by any cause; the first
    /// 10 s left out.
    pub user_facing_throttled_core_s: f64,
    /// Batch VMs' work done ÷ that without a budget; `null` without such work.
    pub batch_work_ratio: Option<f64>,
    /// The share of 100 ms means above the budget.
    pub over_budget_share: f64,
    /// How far the breaker of that budget went towards its trip: 1 or more is a trip.
    pub trip_fraction_max: f64,
    /// Drawn ÷ allowed, over the seconds whose mean draw without a budget is above it; `null` without one.
    pub budget_used_ratio: Option<f64>,
    /// Seconds in which an out-of-band cap, a server's own limit (RAPL) or the supplies' overload alert
    /// held at least one core of a VM below what software let it have; the first 10 s left out.
    pub hardware_s: f64,
    /// Changes of a batch core's p-state by software in a minute, as a mean over them.
    pub pstate_changes_per_core_min: f64,
    pub series_are: Meaning,
    pub series_used: usize,
    pub servers: usize,
    /// Recorded seconds that were left out at the start.
    pub skipped_s: f64,
    pub played_s: f64,
    pub budget_w: f64,
    /// The highest mean over 100 ms without a budget.
    pub peak_w: f64,
    /// What the chassis draws while nothing runs on it: no throttling goes much below it.
    pub idle_w: f64,
    /// The highest mean over 100 ms.
    pub max_power_w: f64,
    pub mean_power_w: f64,
}

/// Every data set with every seed, in order.
pub fn cases(options: &Options, traces: &[(String, Trace)]) -> Result<Vec<Case>, TelemetryError> {
    let length_s = options.hours.map(|hours| 3600.0 * hours);
    let mut cases = Vec::new();
    for (data, trace) in traces {
        let skip_s = match options.skip_hours {
            Some(hours) => 3600.0 * hours,
            None => length_s.map_or(0.0, |length_s| busiest_window(trace, length_s)),
        };

        let playback =
            Playback { servers: Some(options.servers), skip_s, length_s, scale: 1.0, model: options.model };

        let loads = Loads::cut(trace, &playback)?;
        let case = |seed: &u64| Case { skip_s, ..Case::new(data, &loads, options, *seed) };
        cases.extend(options.seeds.iter().map(case));
    }

    Ok(cases)
}

/// Where `length_s` seconds begin with the highest sum of all series in their middle, in seconds from the
/// trace's start; a whole number of its periods. A peak near an end is not in the middle.
fn busiest_window(trace: &Trace, length_s: f64) -> f64 {
    let samples = trace.series.first().map_or(0, |series| series.values.len());
    let (mut busiest, mut highest) = (0, 0.0);
    for n in 0..samples {
        let values = trace.series.iter().map(|series| f64::from(series.values[n]));
        let sum: f64 = values.filter(|value| !value.is_nan()).sum();
        if sum > highest {
            (busiest, highest) = (n, sum);
        }
    }

    let period_s = trace.period_s;
    let last_s = (samples.saturating_sub(1) as f64 * period_s - length_s).max(0.0);
    let begin_s = (busiest as f64 * period_s - 0.5 * length_s).clamp(0.0, last_s);
    libm::floor(begin_s / period_s) * period_s
}

impl Case {
    fn new(data: &str, loads: &Loads, options: &Options, seed: u64) -> Self {
        let order = dealt(loads.places(), seed);
        let plant = loads.plant(|place| order[place], options.sizes, Watts::ZERO, true);
        Self {
            data: data.to_owned(),
            seed,
            sizes: options.sizes,
            meaning: loads.meaning,
            series: loads.series(),
            skip_s: 0.0,
            length: loads.length,
            idle: idle(&plant),
            plant,
        }
    }

    /// Plays it without a budget.
    pub fn uncapped(&self) -> Result<Uncapped, Violation> {
        let plant = PlantSpec { hardware_caps: false, ..self.plant.clone() };
        let mut windows_w = Vec::new();
        let mut windows = Windows::new(|_: &Plant, _, mean_w| windows_w.push(mean_w));
        let report = self.alone(plant, Baseline::Nobody).run(&mut [&mut windows]).kept()?;
        let (peak_w, mean_w) = (windows.watch.max_w(), windows.watch.mean_w());
        Ok(Uncapped { peak_w, mean_w, batch_work_core_s: batch_work_core_s(report.truth()), windows_w })
    }

    fn alone(&self, plant: PlantSpec, baseline: Baseline) -> Scenario {
        let scenario = Scenario::new(plant, Policy::None, self.seed, self.steps());
        Scenario { controller: Controller::Baseline(baseline), ..scenario }
    }

    /// How long a run is: whole steps of the plant.
    fn steps(&self) -> Duration {
        trial::length(self.length.as_secs_f64())
    }
}

/// The series of every place, a seeded permutation (Fisher and Yates): also the first seed deals anew.
fn dealt(places: usize, seed: u64) -> Vec<usize> {
    let mut stream = Stream::new(seed, Purpose::Placement, 0, 0);
    let mut order: Vec<usize> = (0..places).collect();
    for last in (1..places).rev() {
        order.swap(last, stream.below(last + 1));
    }
    order
}

/// Every controller under every budget: by case, then by budget, then by policy. `uncapped` is in the
/// cases' order.
pub fn jobs(options: &Options, cases: Vec<Case>, uncapped: Vec<Uncapped>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (case, uncapped) in cases.into_iter().zip(uncapped) {
        let (case, uncapped) = (Arc::new(case), Arc::new(uncapped));
        for budget_percent in options.budgets_percent.iter().copied() {
            jobs.extend(options.policies.iter().map(|policy| Job {
                case: Arc::clone(&case),
                uncapped: Arc::clone(&uncapped),
                budget_percent,
                policy: *policy,
            }));
        }
    }
    jobs
}

impl Job {
    /// Makes the run. That of nobody was made before.
    /// This fails when a controller breaks a promise that holds for every contender.
    pub fn run(&self) -> Result<TraceResult, Violation> {
        let mut judge = Judge::new(self.budget().as_f64(), &self.uncapped.windows_w);
        if self.policy == TracePolicy::None {
            self.uncapped.windows_w.iter().for_each(|mean_w| judge.window(*mean_w));
            return Ok(self.unhindered(&judge));
        }

        let (mut begun, mut before) = (false, (0.0, 0.0));
        let mut windows = Windows::new(|plant: &Plant, t_s, mean_w| {
            judge.window(mean_w);
            if !begun && t_s >= BEGINNING_S {
                (begun, before) = (true, harm(plant.truth()));
            }
        });
        let report = self.scenario().run(&mut [&mut windows]).kept()?;
        let watch = windows.watch;

        let mut row = self.row(&judge, &watch, report.run().plant());
        row.user_facing_throttled_core_s -= before.0;
        row.hardware_s -= before.1;

        Ok(row)
    }

    fn budget(&self) -> Watts {
        let budget_w = self.uncapped.peak_w * self.budget_percent / 100.0;
        Watts::from_f64(budget_w).unwrap_or(Watts::MAX)
    }

    fn scenario(&self) -> Scenario {
        let (seed, length) = (self.case.seed, self.case.steps());
        let budget = self.budget();
        let plant = PlantSpec { budget, ..self.case.plant.clone() };

        if let Some(control) = self.policy.control() {
            let mut scenario = control.scenario(plant, seed, length);
            scenario.checks = Checks::NONE;
            self.fit_floors(&mut scenario);
            return scenario;
        }

        let baseline = if self.policy == TracePolicy::FullServer {
            // A server's share is of what is left behind losses, fans and switch.
            let dc_w = Plant::new(plant.clone(), seed).dc_behind(budget.as_f64());
            let dc = Watts::from_f64(dc_w).unwrap_or(budget);
            Baseline::FullServer { share: dc.per(plant.servers.len() as u64) }
        } else {
            let share = if self.policy == TracePolicy::OracleAtSetPoint { SET_POINT } else { 1.0 };
            Baseline::Oracle(Watts::from_f64(share * budget.as_f64()).unwrap_or(budget))
        };
        self.case.alone(plant, baseline)
    }

    /// A small server can be capped lower than a usual one, a large one not as low.
    fn fit_floors(&self, scenario: &mut Scenario) {
        let fit = |n: usize, floor: &mut Option<Watts>| {
            let scaled = |w: Watts| Watts::from_f64(self.case.sizes.of(n) * w.as_f64());
            *floor = floor.and_then(scaled);
        };
        for (n, server) in scenario.chassis.servers.iter_mut().enumerate() {
            fit(n, &mut server.out_of_band_floor);
        }
        for (n, agent) in scenario.agents.iter_mut().enumerate() {
            fit(n, &mut agent.server_limit_floor);
        }
    }

    fn unhindered(&self, judge: &Judge<'_>) -> TraceResult {
        let Case { data, seed, meaning, series, plant, idle, .. } = &*self.case;
        let Uncapped { peak_w, mean_w, batch_work_core_s, .. } = *self.uncapped;
        TraceResult {
            data: data.clone(),
            seed: *seed,
            budget_percent: self.budget_percent,
            policy: self.policy,
            shares: self.policy.shares().map(SharePolicy::name),
            user_facing_throttled_core_s: 0.0,
            batch_work_ratio: (batch_work_core_s > 0.0).then_some(1.0),
            over_budget_share: judge.over_share(),
            trip_fraction_max: judge.trip.max(),
            budget_used_ratio: judge.used.ratio(),
            hardware_s: 0.0,
            pstate_changes_per_core_min: 0.0,
            series_are: *meaning,
            series_used: *series,
            servers: plant.servers.len(),
            skipped_s: self.case.skip_s,
            played_s: self.case.length.as_secs_f64(),
            budget_w: self.budget().as_f64(),
            peak_w,
            idle_w: idle.as_f64(),
            max_power_w: peak_w,
            mean_power_w: mean_w,
        }
    }

    fn row(&self, judge: &Judge<'_>, watch: &Watch, plant: &Plant) -> TraceResult {
        let truth = plant.truth();
        let (user_facing_throttled_core_s, hardware_s) = harm(truth);
        let unhindered = self.unhindered(judge);
        let done = batch_work_core_s(truth) / self.uncapped.batch_work_core_s;
        TraceResult {
            user_facing_throttled_core_s,
            batch_work_ratio: unhindered.batch_work_ratio.map(|_| done),
            hardware_s,
            pstate_changes_per_core_min: trial::changes_per_core_min(plant, truth.elapsed_s),
            max_power_w: watch.max_w(),
            mean_power_w: watch.mean_w(),
            ..unhindered
        }
    }
}

/// User-facing core-seconds, and seconds of hardware, so far.
fn harm(truth: &Truth) -> (f64, f64) {
    (truth.user_facing_throttled_core_s.total(), truth.hardware_engaged_s)
}

/// Judges the draw of one run against its budget, window by window, beside the same load without one.
#[derive(Debug)]
struct Judge<'a> {
    budget_w: f64,
    uncapped_w: &'a [f64],
    windows: usize,
    over: usize,
    second_w: f64,
    trip: TripFraction,
    used: BudgetUse,
}

impl<'a> Judge<'a> {
    fn new(budget_w: f64, uncapped_w: &'a [f64]) -> Self {
        Self {
            budget_w,
            uncapped_w,
            windows: 0,
            over: 0,
            second_w: 0.0,
            trip: TripFraction::default(),
            used: BudgetUse::default(),
        }
    }

    /// Takes the mean of the next 100 ms.
    fn window(&mut self, mean_w: f64) {
        self.windows += 1;
        self.over += usize::from(mean_w > self.budget_w);
        self.trip.take(mean_w / self.budget_w, WINDOW_S);
        self.second_w += mean_w / WINDOWS_A_SECOND as f64;
        if self.windows.is_multiple_of(WINDOWS_A_SECOND) {
            let second = self.windows - WINDOWS_A_SECOND..self.windows;
            let uncapped_w: f64 = self.uncapped_w.get(second).unwrap_or_default().iter().sum::<f64>();
            let uncapped_w = uncapped_w / WINDOWS_A_SECOND as f64;
            self.used.second(self.second_w, uncapped_w, self.budget_w);
            self.second_w = 0.0;
        }
    }

    fn over_share(&self) -> f64 {
        self.over as f64 / self.windows.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_sim::trace::ReadOptions;

    /// Eighteen VMs for three servers: half of them rise for the second minute.
    fn data() -> Vec<(String, Trace)> {
        let mut text = String::from("timestamp,vm,cpu_pct\n");
        for t in (0..=180).step_by(20) {
            for vm in 0..18 {
                let high = (60..=120).contains(&t) && vm < 9;
                text += &format!("{t},v{vm},{}\n", if high { 95 } else { 20 + vm });
            }
        }
        let options = ReadOptions { series_column: Some("vm".to_owned()), ..ReadOptions::default() };
        let trace = Trace::read(text.as_bytes(), "made", &options).unwrap();
        vec![("made".to_owned(), trace)]
    }

    fn options() -> Options {
        Options { servers: 3, budgets_percent: vec![102.0, 85.0], ..Options::default() }
    }

    fn rows(options: &Options) -> Vec<TraceResult> {
        let cases = cases(options, &data()).unwrap();
        let uncapped = cases.iter().map(|case| case.uncapped().unwrap()).collect();
        jobs(options, cases, uncapped).iter().map(|job| job.run().unwrap()).collect()
    }

    #[test]
    fn windows_are_judged_by_hand() {
        // Two seconds: the first fits, the second would draw 1200 W in the mean.
        let mut uncapped = vec![900.0; 10];
        uncapped.extend([1400.0, 1000.0].repeat(5));
        let mut judge = Judge::new(1000.0, &uncapped);
        for _ in 0..10 {
            judge.window(900.0);
        }
        assert_eq!((judge.over_share(), judge.used.ratio()), (0.0, None));
        for mean_w in [1100.0, 800.0].repeat(5) {
            judge.window(mean_w);
        }
        assert_eq!(judge.over_share(), 0.25);
        assert_eq!(judge.used.ratio(), Some(0.95));
        // A tenth of a second at 1.1 of 10 s; one at 0.8 cools by more, so nothing is left of that.
        let trip = judge.trip.max();
        assert!((trip - 0.01).abs() < 1e-9, "{trip}");
        assert_eq!(judge.trip.now(), 0.0);
    }

    #[test]
    fn the_hours_around_the_peak_are_played_where_nobody_says_which() {
        let trace = |busy: usize| {
            let mut text = String::from("t_s,a,b\n");
            for n in 0..100 {
                text += &format!("{},{},\n", 300 * n, if n == busy { 90 } else { 10 });
            }
            text += "30000,10,5\n";
            Trace::read(text.as_bytes(), "made", &ReadOptions::default()).unwrap()
        };
        assert_eq!(busiest_window(&trace(50), 3600.0), 44.0 * 300.0);
        assert_eq!(busiest_window(&trace(50), 3500.0), 44.0 * 300.0);
        assert_eq!(busiest_window(&trace(2), 3600.0), 0.0);
        assert_eq!(busiest_window(&trace(99), 3600.0), 30_000.0 - 3600.0);
        assert_eq!(busiest_window(&trace(50), 1e9), 0.0);
    }

    #[test]
    fn every_seed_deals_anew_and_nobody_gets_lost() {
        let (one, two) = (dealt(72, 1), dealt(72, 2));
        assert_ne!(one, two);
        assert_eq!(one, dealt(72, 1));
        let mut sorted = one.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..72).collect::<Vec<_>>());
        assert_ne!(one, sorted, "the first seed too");
    }

    #[test]
    fn the_load_alone_is_what_all_are_judged_against() {
        let all = rows(&options());
        assert_eq!(all.len(), 12);
        let find = |policy, percent| {
            let mine = |row: &&TraceResult| row.policy == policy && row.budget_percent == percent;
            all.iter().find(mine).unwrap()
        };

        let fits = find(TracePolicy::None, 102.0);
        assert_eq!((fits.over_budget_share, fits.trip_fraction_max), (0.0, 0.0));
        assert_eq!((fits.budget_used_ratio, fits.batch_work_ratio), (None, Some(1.0)));
        assert!((fits.budget_w / fits.peak_w - 1.02).abs() < 1e-6);
        assert_eq!((fits.series_are, fits.series_used), (Meaning::Vm, 18));
        let tight = find(TracePolicy::None, 85.0);
        assert!(tight.trip_fraction_max > 1.0 && tight.over_budget_share > 0.2, "{tight:?}");
        assert!(tight.budget_used_ratio.unwrap() > 1.0);

        let oracle = find(TracePolicy::Oracle, 85.0);
        assert_eq!((oracle.over_budget_share, oracle.shares), (0.0, None));
        assert!((0.95..=1.0).contains(&oracle.budget_used_ratio.unwrap()), "{oracle:?}");
        assert!(oracle.batch_work_ratio.unwrap() < 1.0);
        let full = find(TracePolicy::FullServer, 85.0);
        assert!(full.hardware_s > 10.0 && full.over_budget_share < 0.2, "{full:?}");
        assert!(full.user_facing_throttled_core_s > 0.0);

        for policy in [TracePolicy::Paper, TracePolicy::Stepwise] {
            let row = find(policy, 85.0);
            assert!(row.trip_fraction_max < 1.0, "{row:?}");
            assert!((0.5..1.0).contains(&row.batch_work_ratio.unwrap()), "{row:?}");
            assert!(row.budget_used_ratio.unwrap() < 1.02, "{row:?}");
            assert!(row.pstate_changes_per_core_min > 0.0, "{row:?}");
        }

        assert_eq!(find(TracePolicy::Paper, 85.0).shares, Some("even"));
        assert_eq!(find(TracePolicy::Stepwise, 85.0).shares, Some("critical-first"));
    }

    #[test]
    fn the_same_run_is_the_same_and_unequal_servers_are_kept_too() {
        let options = Options {
            sizes: Sizes::Unequal,
            policies: vec![TracePolicy::Stepwise],
            seeds: vec![1, 2],
            budgets_percent: vec![85.0],
            ..options()
        };
        let all = rows(&options);
        assert_eq!(all, rows(&options));
        assert_ne!(all[0].peak_w, all[1].peak_w, "other places, other cores");
        assert!(all.iter().all(|row| row.trip_fraction_max < 1.0), "{all:?}");
    }
}
