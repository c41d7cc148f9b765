//! The recommenders with their settings: what is compared, and what is chosen among.

use core::fmt;

use serde::Serialize;

use super::experts::Experts;
use super::learned::Learned;
use super::steady::{Patience, Steady};
use super::vpa::Vpa;
use super::window::{MovingWindow, Statistic};
use super::{Costs, Recommender, UseWindow};

/// Settings of a resource that differ between CPU and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Cpu,
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// What people do: the peak that was seen at first, times a factor, for ever; or all that there is.
    Manual,
    /// The paper's moving window: percentiles of the load.
    Window,
    /// The peak of the last days, with a margin.
    Peak,
    /// The paper's learnt models, with costs that are well posed.
    Learned,
    /// Kubernetes' Vertical Pod Autoscaler.
    Vpa,
    /// Many simple limits, of which each job follows the best.
    Experts,
    /// The same with fewer changes.
    Quiet,
}

impl Family {
    pub const ALL: [Self; 7] =
        [Self::Manual, Self::Window, Self::Peak, Self::Learned, Self::Vpa, Self::Experts, Self::Quiet];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Window => "window",
            Self::Peak => "peak",
            Self::Learned => "learned",
            Self::Vpa => "vpa",
            Self::Experts => "experts",
            Self::Quiet => "quiet",
        }
    }

    pub fn settings(self, resource: Resource) -> Vec<Settings> {
        let half_lives_h = match resource {
            Resource::Cpu => [12.0, 24.0, 48.0],
            Resource::Memory => [24.0, 48.0, 96.0],
        };
        match self {
            Self::Manual => FACTORS.map(|factor| Settings::Manual { factor }).to_vec(),
            Self::Window => {
                let all = WINDOW_SHARES.into_iter().flat_map(|share| half_lives_h.map(|h| (share, h)));
                let all = all.flat_map(|(share, h)| WINDOW_MARGINS.map(|margin| (share, h, margin)));
                all.map(|(share, half_life_h, margin)| Settings::Window { share, half_life_h, margin })
                    .collect()
            }
            Self::Peak => {
                let all = PEAK_HOURS.into_iter().flat_map(|hours| PEAK_MARGINS.map(|margin| (hours, margin)));
                all.map(|(hours, margin)| Settings::Peak { hours, margin }).collect()
            }
            Self::Learned => LEARNED_OVER.map(|over| Settings::Learned { over }).to_vec(),
            Self::Vpa => VPA_SHARES.map(|share| Settings::Vpa { share, resource }).to_vec(),
            Self::Experts => EXPERTS_OVER.map(|over| Settings::Experts { over, quiet: false }).to_vec(),
            Self::Quiet => EXPERTS_OVER.map(|over| Settings::Experts { over, quiet: true }).to_vec(),
        }
    }
}

impl Settings {
    /// What a family is run with where nobody has compared settings: of CPU and memory alike, but that `vpa` takes its own
    /// percentile of memory, whose kills raise it.
    pub const fn usual(family: Family, resource: Resource) -> Self {
        match (family, resource) {
            (Family::Manual, _) => Self::Manual { factor: 2.0 },
            (Family::Window, _) => Self::Window { share: 0.98, half_life_h: 48.0, margin: 0.15 },
            (Family::Peak, _) => Self::Peak { hours: 168, margin: 0.1 },
            (Family::Learned, _) => Self::Learned { over: 300.0 },
            (Family::Vpa, Resource::Cpu) => Self::Vpa { share: 0.98, resource },
            (Family::Vpa, Resource::Memory) => Self::Vpa { share: 0.9, resource },
            (Family::Experts, _) => Self::Experts { over: 200.0, quiet: false },
            (Family::Quiet, _) => Self::Experts { over: 200.0, quiet: true },
        }
    }
}

const FACTORS: [f32; 4] = [1.0, 1.5, 2.0, f32::INFINITY];
const WINDOW_SHARES: [f32; 6] = [0.9, 0.95, 0.98, 0.99, 0.995, 0.999];
const WINDOW_MARGINS: [f32; 3] = [0.1, 0.15, 0.3];
const PEAK_HOURS: [usize; 3] = [24, 48, 168];
const PEAK_MARGINS: [f32; 4] = [0.0, 0.1, 0.3, 0.5];
const LEARNED_OVER: [f32; 5] = [20.0, 100.0, 300.0, 1000.0, 3000.0];
const VPA_SHARES: [f32; 5] = [0.9, 0.95, 0.98, 0.99, 0.999];
const EXPERTS_OVER: [f32; 12] =
    [5.0, 10.0, 20.0, 35.0, 50.0, 70.0, 100.0, 140.0, 200.0, 300.0, 500.0, 1000.0];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Settings {
    /// The peak of the first windows, times a factor; of infinity all that there is.
    Manual {
        factor: f32,
    },
    Window {
        share: f32,
        half_life_h: f32,
        margin: f32,
    },
    Peak {
        hours: usize,
        margin: f32,
    },
    Learned {
        over: f32,
    },
    Vpa {
        share: f32,
        resource: Resource,
    },
    /// `over` is what a window above the limit costs, in units of a limit that stands unused for as long.
    Experts {
        over: f32,
        quiet: bool,
    },
}

impl Settings {
    pub const fn family(self) -> Family {
        match self {
            Self::Manual { .. } => Family::Manual,
            Self::Window { .. } => Family::Window,
            Self::Peak { .. } => Family::Peak,
            Self::Learned { .. } => Family::Learned,
            Self::Vpa { .. } => Family::Vpa,
            Self::Experts { quiet: false, .. } => Family::Experts,
            Self::Experts { quiet: true, .. } => Family::Quiet,
        }
    }

    /// A recommender that has seen nothing; `Manual` looks at so many windows.
    pub fn recommender(self, look: usize) -> Box<dyn Recommender + Send> {
        match self {
            Self::Manual { factor } => Box::new(Manual { factor, look, peak: None }),
            Self::Window { share, half_life_h, margin } => {
                Box::new(MovingWindow::new(Statistic::Percentile(share), half_life_h, margin))
            }
            Self::Peak { hours, margin } => {
                Box::new(MovingWindow::new(Statistic::Peak { hours }, 12.0, margin))
            }
            Self::Learned { over } => {
                let costs = Costs { over, change: 0.01, switch: 0.01, newest: 0.001 };
                Box::new(Learned::new(costs))
            }
            Self::Vpa { share, resource: Resource::Cpu } => Box::new(Vpa::cpu().at(share)),
            Self::Vpa { share, resource: Resource::Memory } => Box::new(Vpa::memory().at(share)),
            Self::Experts { over, quiet } => {
                let change = if quiet { 3.0 } else { 0.0 };
                let patience = if quiet { QUIET } else { PATIENCE };
                let costs = Costs { over, change, switch: 0.02, newest: 0.002 };
                Box::new(Steady::new(Experts::new(costs), patience))
            }
        }
    }
}

/// Measured on recorded CPU use: a limit that may fall by a tenth and more, and after half an hour, changes half as often as one
/// that follows its expert, and is broken a quarter less.
const PATIENCE: Patience = Patience { deadband: 0.1, windows: 6, headroom: 0.0 };
/// One that waits for three tenths and an hour changes twice a day.
const QUIET: Patience = Patience { deadband: 0.3, windows: 12, headroom: 0.0 };

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Manual { factor } if factor.is_infinite() => f.write_str("all there is"),
            Self::Manual { factor } => write!(f, "first peak × {factor}"),
            Self::Window { share, half_life_h, margin } => {
                write!(
                    f,
                    "p{} of the load, half-life {half_life_h} h, + {:.0} %",
                    share * 100.0,
                    margin * 100.0
                )
            }
            Self::Peak { hours, margin } => write!(f, "peak of {hours} h, + {:.0} %", margin * 100.0),
            Self::Learned { over } => write!(f, "an overrun costs {over}"),
            Self::Vpa { share, .. } => write!(f, "p{}, half-life 24 h, + 15 %", share * 100.0),
            Self::Experts { over, .. } => write!(f, "an overrun costs {over}"),
        }
    }
}

/// A limit that is set once.
#[derive(Clone, Debug)]
struct Manual {
    factor: f32,
    /// Windows that are still looked at.
    look: usize,
    peak: Option<f32>,
}

impl Recommender for Manual {
    fn observe(&mut self, window: &UseWindow<'_>) {
        if let Some(peak) = window.peak().filter(|_| self.look > 0) {
            self.look -= 1;
            self.peak = Some(self.peak.unwrap_or(0.0).max(peak.edge()));
        }
    }

    fn limit(&self) -> Option<f32> {
        self.peak.map(|peak| (peak * self.factor).min(1.0))
    }
}
