//! One server under a fixed cap: the paper's Figures 4 and 5.

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_types::{PowerModel, VmClass, Watts};
use serde::Serialize;

use super::load::{self, CORES, Kind, Work};
use super::medians::Medians;
use super::trial::{self, Judged, LONGEST, Measured, Windows};
use super::{Arrivals, Contender, OptionError, Shape, watts, within};
use ballast_sim::baseline::Baseline;
use ballast_sim::plant::{Plant, PlantSpec, SensorSpec};
use ballast_sim::scenario::{Controller, Scenario};
use ballast_sim::world::{Checks, Violation};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    pub shape: Shape,
    pub arrivals: Arrivals,
    /// The share of the batch work that scales with the clock (0.6).
    pub batch_share: f64,
    /// Mean service time of one request, in milliseconds (0.5).
    pub service_ms: f64,
    pub caps_w: Vec<f64>,
    pub contenders: Vec<Contender>,
    pub seeds: Vec<u64>,
    /// How long the batch work takes when nobody is in its way (10).
    pub minutes: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shape: Shape::PAPER,
            arrivals: Arrivals::default(),
            batch_share: 0.6,
            service_ms: load::SERVICE_MS,
            caps_w: vec![250.0, 240.0, 230.0, 220.0, 210.0],
            contenders: Contender::ALL.to_vec(),
            seeds: (1..=10).collect(),
            minutes: 10.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    plan: Plan,
    pub contender: Contender,
    /// The cap; `None` for the run without one.
    pub(super) cap: Option<Watts>,
    pub(super) seed: u64,
}

/// What all runs have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    model: PowerModel,
    pub(super) options: Options,
    batch_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub(super) contender: Contender,
    pub(super) cap: Option<Watts>,
    pub(super) seed: u64,
    pub(super) measured: Measured,
}

/// One contender under one cap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServerResult {
    pub cap_w: f64,
    pub policy: &'static str,
    #[serde(flatten)]
    pub(crate) figures: Medians,
}

/// The draw and the frequencies of one run over time: Figure 4.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    pub policy: &'static str,
    /// The cap, in watts; `null` where there is none.
    pub cap_w: Option<f64>,
    pub seed: u64,
    /// One point every 100 ms.
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub t_s: f64,
    /// Mean draw over the 100 ms before, in watts.
    pub power_w: f64,
    /// Frequency of the lowest batch core, as a share of the highest.
    pub batch_frequency_ratio_min: f64,
}

/// All runs that [`rows`] needs: `none` and `oracle` are always among them.
pub fn jobs(options: &Options) -> Result<Vec<Job>, OptionError> {
    let plan = Plan::new(options)?;
    let caps = options.caps_w.iter().map(|w| watts("caps_w", *w, 1.0, 1e5));
    let caps = caps.collect::<Result<Vec<_>, _>>()?;
    let mut jobs = Vec::new();
    for seed in options.seeds.iter().copied() {
        let job = |contender, cap| Job { plan: plan.clone(), contender, cap, seed };
        jobs.push(job(Contender::None, None));
        for cap in &caps {
            let asked = |c: &Contender| options.contenders.contains(c) || *c == Contender::Oracle;
            let capped = Contender::ALL.into_iter().filter(|c| *c != Contender::None && asked(c));
            jobs.extend(capped.map(|contender| job(contender, Some(*cap))));
        }
    }
    Ok(jobs)
}

impl Plan {
    pub(super) fn new(options: &Options) -> Result<Self, OptionError> {
        let model = options.shape.model()?;
        for cap_w in &options.caps_w {
            within("caps_w", *cap_w, model.half_idle_w, model.full_w)?;
        }
        within("batch_share", options.batch_share, 0.0, 1.0)?;
        within("service_ms", options.service_ms, 0.05, 1000.0)?;
        let batch_s = 60.0 * within("minutes", options.minutes, 0.01, 10_000.0)?;
        Ok(Self { model, options: options.clone(), batch_s })
    }

    /// One server; the supplies lose nothing, so that their input is the server's draw.
    fn plant(&self, seed: u64, cap: Option<Watts>) -> PlantSpec {
        let budget = cap.or(Watts::from_f64(self.model.full_w)).unwrap_or(Watts::MAX);
        let work = Work {
            arrivals: self.options.arrivals,
            batch_share: self.options.batch_share,
            service_ms: self.options.service_ms,
            batch_s: self.batch_s,
            quiet_s: 0.0,
            length_s: LONGEST * self.batch_s,
            seed,
        };
        let kinds = [VmClass::UserFacing, VmClass::NonUserFacing];
        let kinds = kinds.map(|class| Kind { class, cores: CORES / 2 });
        PlantSpec::lossless(vec![work.server(0, self.model, &kinds)], SensorSpec::default(), budget)
    }

    /// Twice the meter's noise, as the daemon's configuration advises.
    fn deadband(&self) -> Watts {
        let noise = 2.0 * f64::from(SensorSpec::default().noise_ppm) * 1e-6;
        Watts::from_f64(noise * self.model.power(0.5, 1.0).as_f64()).unwrap_or(Watts::ZERO)
    }
}

impl Job {
    /// Makes the run. This fails when a controller breaks a promise that holds for every contender.
    pub fn run(&self) -> Result<Run, Violation> {
        let limits = self.cap.map_or_else(|| self.plan.options.caps_w.clone(), |cap| vec![cap.as_f64()]);
        let measured = trial::run(self.scenario(), &limits, 0.0, self.plan.batch_s)?;
        Ok(Run { contender: self.contender, cap: self.cap, seed: self.seed, measured })
    }

    /// Makes the run and gives its draw over time, until batch work would be done unhindered.
    pub fn trace(&self) -> Result<Trace, Violation> {
        let mut points = Vec::new();
        let mut windows = Windows::new(|plant: &Plant, t_s, power_w| {
            let batch_frequency_ratio_min = plant.batch_frequency_ratio_min();
            points.push(Point { t_s, power_w, batch_frequency_ratio_min });
        });
        let length = trial::length(self.plan.batch_s);
        Scenario { length, ..self.scenario() }.run(&mut [&mut windows]).kept()?;
        let (policy, cap_w) = (self.contender.name(), self.cap.map(Watts::as_f64));
        Ok(Trace { policy, cap_w, seed: self.seed, points })
    }

    pub(super) fn scenario(&self) -> Scenario {
        let Self { plan, seed, .. } = self;
        let length = Duration::from_secs_f64(LONGEST * plan.batch_s);
        let mut scenario = Scenario::new(plan.plant(*seed, self.cap), Policy::Stepwise, *seed, length);
        scenario.checks = Checks::NONE;
        scenario.controller = self.controller();
        for agent in &mut scenario.agents {
            agent.deadband = agent.deadband.max(plan.deadband());
        }
        scenario
    }

    fn controller(&self) -> Controller {
        let Some(watts) = self.cap else { return Controller::Baseline(Baseline::Nobody) };
        match self.contender {
            Contender::Stepwise => Controller::FixedCap { watts },
            Contender::Manager => Controller::Manager,
            Contender::FullServer => Controller::Baseline(Baseline::HardwareCap(watts)),
            Contender::Oracle => Controller::Baseline(Baseline::Oracle(watts)),
            Contender::Thunderbolt => Controller::Baseline(Baseline::Thunderbolt),
            Contender::None => Controller::Baseline(Baseline::Nobody),
        }
    }
}

/// What the runs came to: by cap as in the options, and then by contender.
pub fn rows(options: &Options, runs: &[Run]) -> Vec<ServerResult> {
    let mut rows = Vec::new();
    for (n, cap_w) in options.caps_w.iter().copied().enumerate() {
        let cap = Watts::from_f64(cap_w);
        for contender in options.contenders.iter().copied() {
            let limit = if contender == Contender::None { n } else { 0 };
            let seeds = options.seeds.iter().filter_map(|seed| {
                Judged::of(contender, limit, |contender| {
                    let cap = cap.filter(|_| contender != Contender::None);
                    let run = runs.iter().find(|r| (r.contender, r.cap, r.seed) == (contender, cap, *seed));
                    run.map(|run| &run.measured)
                })
            });
            let figures = Medians::of("over_cap", &seeds.collect::<Vec<_>>());
            rows.push(ServerResult { cap_w, policy: contender.name(), figures });
        }
    }
    rows
}
