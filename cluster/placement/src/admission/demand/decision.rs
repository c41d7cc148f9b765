//! Whether one more deployment may come.

use super::{Curve, Demand, HORIZONS, Prior};
use crate::admission::Observed;

/// A deployment that is expected to have fewer cores than this at a horizon is marginal there.
pub const MARGINAL_CORES: f64 = 1.0;

/// What must hold after one more deployment has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Zeroth moment: fewer cores than this are active.
    Zeroth {
        /// Chosen by tuning, mostly far below what the cluster has.
        cores: f64,
    },
    /// First moment: fewer cores than this are expected at every horizon.
    First {
        /// Chosen by tuning; may be above what the cluster has, since expectations are too high.
        cores: f64,
    },
    /// Second moment: at every horizon the cores that are expected are fewer than there are, and the chance that they do
    /// not suffice is at most `risk`, by Cantelli's inequality.
    Second {
        /// In cores, above 0.
        capacity: f64,
        /// Above 0, to 1.
        risk: f64,
    },
}

impl Threshold {
    /// The cores that must not be reached.
    pub const fn cores(self) -> f64 {
        match self {
            Self::Zeroth { cores } | Self::First { cores } => cores,
            Self::Second { capacity, .. } => capacity,
        }
    }

    fn holds(self, mean: f64, variance: f64) -> bool {
        match self {
            Self::Zeroth { .. } => true,
            Self::First { cores } => mean < cores,
            Self::Second { capacity, risk } => {
                let free = capacity - mean;
                free > 0.0 && variance * (1.0 - risk) <= risk * free * free
            }
        }
    }
}

/// The most that the chance can be that a demand of this mean and variance is above the capacity: Cantelli's inequality.
pub fn cantelli(mean: f64, variance: f64, capacity: f64) -> f64 {
    let free = capacity - mean;
    if free > 0.0 { variance / (variance + free * free) } else { 1.0 }
}

/// Where it is tightest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Binding {
    /// The horizon, in hours.
    pub after_h: f64,
    /// The cores that are expected there, with the new deployment.
    pub expected_cores: f64,
    /// The standard deviation of these.
    pub sd_cores: f64,
}

/// The answer, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Whether it may come.
    pub admit: bool,
    /// The highest of Cantelli's bounds over the horizons, against the threshold's cores; `None` under the zeroth moment.
    pub risk: Option<f64>,
    /// Where that bound is highest. `None` under the zeroth moment.
    pub binds: Option<Binding>,
    /// Whether it comes only because it is marginal wherever the condition does not hold.
    pub marginal: bool,
    /// Whether it could not be computed: it is refused then.
    pub incomputable: bool,
}

impl Demand {
    /// Whether a deployment of so many cores may come. The sums are those of the last [`Demand::refresh`]. `marginal`: at a
    /// horizon where the condition does not hold, a deployment that is marginal there may come all the same.
    pub fn decide(&self, threshold: Threshold, prior: &Prior, cores: f64, marginal: bool) -> Decision {
        let after = self.cores + cores;
        if let Threshold::Zeroth { cores } = threshold {
            let incomputable = !after.is_finite();
            return Decision { admit: after < cores, risk: None, binds: None, marginal: false, incomputable };
        }

        let belief = prior.posterior(&Observed::first(cores));
        let new = Curve::of(&belief, &self.hours);
        let square = cores * cores;
        let mut mean = self.mean;
        let mut variance = self.variance;
        let mut small = [false; HORIZONS];
        for i in 0..HORIZONS {
            let own = new.mean[0][i] + cores * new.mean[1][i];
            small[i] = own < MARGINAL_CORES;
            mean[i] += own;
            variance[i] += new.variance[0][i] + cores * new.variance[1][i] + square * new.variance[2][i];
        }

        let incomputable = self.incomputable > 0 || !new.finite || !after.is_finite();
        let holds = |i: usize| threshold.holds(mean[i], variance[i].max(0.0));
        let (mut admit, mut by_margin) = (!incomputable && after <= threshold.cores(), false);
        for (i, small) in small.iter().enumerate() {
            if !holds(i) {
                by_margin = true;
                admit &= marginal && *small;
            }
        }

        let risk = |i: usize| cantelli(mean[i], variance[i].max(0.0), threshold.cores());
        let (mut tightest, mut highest) = (0, risk(0));
        for i in 1..HORIZONS {
            let here = risk(i);
            let worse = here > highest || (here == highest && mean[i] > mean[tightest]);
            if worse {
                (tightest, highest) = (i, here);
            }
        }
        let binds = Binding {
            after_h: self.hours[tightest],
            expected_cores: mean[tightest],
            sd_cores: libm::sqrt(variance[tightest].max(0.0)),
        };
        Decision {
            admit,
            risk: (!incomputable).then_some(highest),
            binds: (!incomputable).then_some(binds),
            marginal: admit && by_margin,
            incomputable,
        }
    }
}
