//! How full a cluster can be while scale-outs seldom fail: policies, priors and thresholds.
//!
//! Thresholds are tuned by racing: few runs for many thresholds, then all runs for those near the wanted share of failures.
//! All arms see the same runs, but the zeroth moment, whose failures are in few: it takes more of the bad ones, and each
//! counts as much less.
//!
//! Source: Dierks, Kash, Seuken, arXiv 1804.07571v8, Sections 5 to 7.

mod estimate;
mod rows;
mod tuning;

#[cfg(test)]
mod tests;

use ballast_placement::admission::{Belief, Gamma};
use ballast_sim::admission::{Arm, Labels, Moment, Site, Tally, run};
use serde::{Deserialize, Serialize};

pub use rows::{ArmResult, Difference, SetResult, result};
pub use tuning::{Part, Tuner};

use crate::OptionError;

/// Three years, in hours.
const HOURS: f64 = 26_280.0;

/// A law and a cluster, with the policies that are compared there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Set {
    pub name: &'static str,
    pub site: Site,
    pub arms: Vec<Arm>,
    pub runs: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    pub seed: u64,
    /// Shares of scale-outs that may fail, from the lowest.
    pub slas: Vec<f64>,
    pub sets: Vec<Set>,
    /// Runs of the first look, but at most a quarter of the set's.
    pub pilot_runs: u64,
    /// Among how many runs the zeroth moment's bad ones are chosen.
    pub pool: u64,
    /// How many thresholds get all runs.
    pub grid: usize,
}

/// Between `SUB_A` and `SUB_B`: a random walk of 250 steps from their geometric mean, at kappa .8, towards the paper's four
/// numbers and a deployment that shrinks to .55 of its size from a week to three years. Of 60,000 deployments: 140.5
/// activated cores each (paper 145.1), 97.4 % of them dead after the month (97.5), 74.1 % of deployments died (74.7), 26.9 %
/// of these by shutdown (26.9).
pub const BETWEEN: Belief = Belief {
    kappa: 0.8,
    delta: 0.0256,
    mu: Gamma::new(0.3076, 0.2220),
    lambda: Gamma::new(1.4536, 0.6046),
    sigma: Gamma::new(0.4854, 0.2459),
};

const fn arm(moment: Moment, n: u32, marginal: bool) -> Arm {
    Arm::new(moment, n, marginal)
}

const ZEROTH: Arm = arm(Moment::Zeroth, 0, false);
const UNLABELLED: Arm = Arm { labels: Labels::Mixed, ..arm(Moment::Second, 1, false) };

impl Options {
    /// The whole experiment: 500 runs of a tenth of the paper's cluster, and `full_runs` of the paper's.
    pub fn whole(seed: u64, runs: u64, full_runs: u64) -> Self {
        use Moment::{First, Second};
        let tenth = |law| Site { law, capacity: 2_000.0, arrivals_per_h: 0.1, hours: HOURS };
        let full = |law| Site { law, capacity: 20_000.0, arrivals_per_h: 1.0, hours: HOURS };
        let first = [0, 1, 50].map(|n| arm(First, n, n > 0));
        let plain = [0, 1, 5, 50].map(|n| arm(Second, n, false));
        let marginal = [1, 5, 50].map(|n| arm(Second, n, true));
        let few = vec![ZEROTH, arm(Second, 0, false), arm(Second, 1, true), arm(Second, 50, true)];

        let all: Vec<Arm> =
            [ZEROTH].into_iter().chain(first).chain(plain).chain([UNLABELLED]).chain(marginal).collect();
        let with_first = [few.clone(), vec![arm(First, 0, false)]].concat();
        let sets = vec![
            Set { name: "SUB-B, a tenth", site: tenth(Belief::SUB_B), arms: all, runs },
            Set { name: "between, a tenth", site: tenth(BETWEEN), arms: few.clone(), runs },
            Set { name: "SUB-B", site: full(Belief::SUB_B), arms: with_first, runs: full_runs },
            Set { name: "SUB-A", site: full(Belief::SUB_A), arms: few, runs: full_runs },
        ];
        Self { seed, slas: vec![1e-4, 1e-3], sets, pilot_runs: (runs / 8).clamp(8, 60), pool: 4_000, grid: 6 }
    }

    /// Five arms, 60 runs of a tenth of the cluster.
    pub fn quick(seed: u64) -> Self {
        use Moment::{First, Second};
        let arms = vec![
            ZEROTH,
            arm(First, 0, false),
            arm(Second, 0, false),
            arm(Second, 1, true),
            arm(Second, 50, true),
        ];
        let site = Site { law: Belief::SUB_B, capacity: 2_000.0, arrivals_per_h: 0.1, hours: HOURS };
        let sets = vec![Set { name: "SUB-B, a tenth", site, arms, runs: 60 }];
        Self { seed, slas: vec![1e-4], sets, pilot_runs: 6, pool: 400, grid: 2 }
    }

    /// The three moments for one cluster and one share of failures; priors are made of so many observations.
    pub fn tune(site: Site, observations: u32, sla: f64, runs: u64, seed: u64) -> Self {
        use Moment::{First, Second};
        let [first, second] = [First, Second].map(|moment| arm(moment, observations, observations > 0));
        let sets = vec![Set { name: "tuned", site, arms: vec![ZEROTH, first, second], runs }];
        Self { seed, slas: vec![sla], sets, pilot_runs: (runs / 8).clamp(8, 60), pool: 4 * runs, grid: 4 }
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), OptionError> {
        for set in &self.sets {
            if !(20..=100_000).contains(&set.runs) {
                return Err(OptionError::new("runs", set.runs, "20 to 100000"));
            }
        }
        Ok(())
    }
}

/// One run of one arm with one threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    pub set: usize,
    pub arm: usize,
    site: Site,
    policy: Arm,
    at: f64,
    seed: u64,
    pub run: u64,
}

impl Job {
    pub fn run(&self) -> Tally {
        run(&self.site, &self.policy, self.at, self.seed, self.run)
    }
}

/// What one run of an arm came to, for every threshold of its grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub run: u64,
    pub tallies: Vec<Tally>,
}
