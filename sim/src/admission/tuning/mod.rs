//! Thresholds of admission policies that keep a share of failed scale-outs.
//!
//! Thresholds are tuned by racing: few runs for many thresholds, then all runs for those near the wanted share of failures.
//! All arms see the same runs, but the zeroth moment, whose failures are in few: it takes more of the bad ones, and each
//! counts as much less.
//!
//! Source: Dierks, Kash, Seuken, arXiv 1804.07571v8, Sections 5 to 7.

mod estimate;
mod race;
mod rows;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::{Arm, Moment, Site, Tally, run};

pub use race::{Part, Tuner};
pub use rows::{ArmResult, Difference, SetResult, result};

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

impl Options {
    /// The three moments for one cluster and one share of failures; priors are made of so many observations.
    pub fn tune(site: Site, observations: u32, sla: f64, runs: u64, seed: u64) -> Self {
        use Moment::{First, Second};
        let [first, second] = [First, Second].map(|moment| Arm::new(moment, observations, observations > 0));
        let sets = vec![Set {
            name: "tuned",
            site,
            arms: vec![Arm::new(Moment::Zeroth, 0, false), first, second],
            runs,
        }];
        Self { seed, slas: vec![sla], sets, pilot_runs: (runs / 8).clamp(8, 60), pool: 4 * runs, grid: 4 }
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
