//! Who says how many tasks a service gets.

use std::collections::VecDeque;
use std::fmt;

use ballast_usage::limits::tasks::{DailyFloor, FloorSettings, Scaling, Tasks};

use super::load::TICK_S;

#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    /// By all tasks together; no more than those that are ready.
    pub(super) used: f64,
    pub(super) ready: u32,
    pub(super) starting: u32,
    /// Of the five minutes that end with this tick.
    pub(super) window: Option<UsedWindow>,
}

/// What all tasks together used in five minutes.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedWindow {
    pub(super) mean: f64,
    pub(super) peak: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalerSettings {
    /// So many times the peak of the days before anything is judged, whatever comes: what people do.
    Fixed { factor: f64 },
    /// Kubernetes' Horizontal Pod Autoscaler.
    Hpa { target: f64, stabilise_s: usize },
    /// Autopilot's, Section 3.3.
    Autopilot(Scaling),
    /// The Horizontal Pod Autoscaler above a floor by what was needed at this time of the days before.
    Daily { target: f64, floor: FloorSettings },
}

impl ScalerSettings {
    pub fn all() -> Vec<Self> {
        let fixed = [0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0].map(|factor| Self::Fixed { factor });
        let hpa = TARGETS
            .into_iter()
            .flat_map(|target| [300, 900, 3600].map(|stabilise_s| Self::Hpa { target, stabilise_s }));
        let hours = [(1, 1), (1, 24), (24, 24), (24, 48), (72, 48), (72, 72)];
        let autopilot = TARGETS.into_iter().flat_map(|per_task| {
            [0.95, 1.0].into_iter().flat_map(move |percentile| {
                hours.map(|(look_back_h, stabilise_h)| {
                    let usual = Scaling::usual(per_task);
                    Self::Autopilot(Scaling { percentile, look_back_h, stabilise_h, ..usual })
                })
            })
        });
        let daily = [0.5, 0.6, 0.7, 0.8, 0.9].into_iter().flat_map(|target| {
            [3, 7].into_iter().flat_map(move |days| {
                [0.5, 0.75, 1.0].into_iter().flat_map(move |quantile| {
                    let floor = move |factor| FloorSettings { days, quantile, factor };
                    [0.9, 1.0, 1.2].map(|factor| Self::Daily { target, floor: floor(factor) })
                })
            })
        });
        fixed.into_iter().chain(hpa).chain(autopilot).chain(daily).collect()
    }

    pub const fn family(&self) -> &'static str {
        match self {
            Self::Fixed { .. } => "fixed",
            Self::Hpa { .. } => "hpa",
            Self::Autopilot(_) => "autopilot",
            Self::Daily { .. } => "daily",
        }
    }

    pub(super) fn scaler(self, look_ticks: usize) -> Box<dyn Scaler> {
        match self {
            Self::Fixed { factor } => Box::new(Fixed { factor, look_ticks, most: 0.0 }),
            Self::Hpa { target, stabilise_s } => Box::new(Hpa::new(target, stabilise_s)),
            Self::Daily { target, floor } => {
                let (above, below) = (Hpa::new(target, STABILISE_S), DailyFloor::new(floor));
                Box::new(Daily { above, below, floor: 0 })
            }
            Self::Autopilot(scaling) => Box::new(Tasks::new(scaling)),
        }
    }
}

/// What a task is to use in the mean.
const TARGETS: [f64; 8] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

impl fmt::Display for ScalerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { factor } => write!(f, "{factor} × the first peak"),
            Self::Hpa { target, stabilise_s } => write!(f, "target {target}, stabilised {stabilise_s} s"),
            Self::Daily { target, floor: FloorSettings { days, quantile, factor } } => {
                write!(f, "target {target}, above {factor} × p{} of {days} days", quantile * 100.0)
            }
            Self::Autopilot(Scaling { per_task, percentile, look_back_h, stabilise_h, .. }) => {
                write!(
                    f,
                    "target {per_task}, p{} of {look_back_h} h, stabilised {stabilise_h} h",
                    percentile * 100.0
                )
            }
        }
    }
}

pub(super) trait Scaler {
    /// How many tasks there should be from now on, those that are starting among them.
    fn tasks(&mut self, tick: Tick) -> u32;
}

struct Fixed {
    factor: f64,
    look_ticks: usize,
    most: f64,
}

impl Scaler for Fixed {
    fn tasks(&mut self, Tick { used, .. }: Tick) -> u32 {
        if self.look_ticks > 0 {
            self.look_ticks -= 1;
            self.most = self.most.max(used);
            // Enough for a peak to be seen at its height.
            return (3.0 * self.most).ceil().max(1.0) as u32;
        }
        (self.factor * self.most).ceil().max(1.0) as u32
    }
}

/// `replicaCalculator.GetResourceReplicas` and the usual `behavior` of Kubernetes 1.30.
struct Hpa {
    target: f64,
    /// In each tick of the time of stabilisation.
    wanted: VecDeque<u32>,
}

/// `--horizontal-pod-autoscaler-downscale-stabilization`.
const STABILISE_S: usize = 300;
/// `--horizontal-pod-autoscaler-tolerance`.
const TOLERANCE: f64 = 0.1;

impl Hpa {
    fn new(target: f64, stabilise_s: usize) -> Self {
        Self { target, wanted: VecDeque::from(vec![1; stabilise_s / TICK_S]) }
    }
}

impl Scaler for Hpa {
    fn tasks(&mut self, Tick { used, ready, starting, .. }: Tick) -> u32 {
        let (needed, all) = (used / self.target, ready + starting);
        let is_near = (needed / f64::from(ready.max(1)) - 1.0).abs() <= TOLERANCE;
        // Pods that are starting are counted as if they used nothing where those that are ready are too few.
        let will_do = needed > f64::from(ready) && needed <= f64::from(all) * (1.0 + TOLERANCE);
        let wanted = if is_near || will_do { all } else { needed.ceil().max(1.0) as u32 };

        self.wanted.pop_front();
        self.wanted.push_back(wanted);
        // Down goes what was too many for the whole time of stabilisation; up, within a tick, twice as many or four more.
        let most = self.wanted.iter().copied().fold(0, u32::max);
        wanted.max(all.min(most)).min((2 * all).max(all + 4))
    }
}

impl Scaler for Tasks {
    fn tasks(&mut self, Tick { ready, starting, window, .. }: Tick) -> u32 {
        if let Some(window) = window {
            self.observe(window.mean, ready);
        }
        Self::tasks(self).unwrap_or(ready + starting)
    }
}

struct Daily {
    above: Hpa,
    below: DailyFloor,
    floor: u32,
}

impl Scaler for Daily {
    fn tasks(&mut self, tick: Tick) -> u32 {
        if let Some(window) = tick.window {
            self.below.observe(window.peak);
            self.floor = self.below.tasks().unwrap_or(0);
        }
        self.above.tasks(tick).max(self.floor)
    }
}
