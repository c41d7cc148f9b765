//! What is run.

use ballast_sim::cluster::PowerDownOptions;
use serde::Serialize;

use crate::OptionError;

/// Memory of a host, in GB: of two kinds.
pub(super) const MEMORY_GB: u16 = 256;
pub(super) const TIGHT_GB: u16 = 192;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    pub pools: u64,
    pub seed: u64,
    /// Hosts of a synthetic pool; a recorded one has as many as make its load.
    pub hosts: u32,
    pub host_cores: u16,
    /// From when who is there at the start is there, the two days of best fit with them.
    pub days: u64,
    pub sets: Sets,
    pub accuracies: Vec<f64>,
    pub inflate_every_h: u64,
    pub inflations: u64,
    pub power: PowerDownOptions,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sets {
    /// Loads of `syn`, with the host's memory in GB.
    pub syn: Vec<(f64, u16)>,
    pub synp: Vec<(f64, u16)>,
    /// At the first load of 70 % of `syn`: the policy from the first VM on, noise, a useless model.
    pub cold: bool,
    pub noise: bool,
    pub shuffled: bool,
    pub recorded: Vec<f64>,
    /// Rounds of drains: at the same load, and on recorded arrivals that the model has not seen.
    pub drains: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pools: 12,
            seed: 1,
            hosts: 200,
            host_cores: 64,
            days: 28,
            sets: Sets {
                syn: vec![(0.6, MEMORY_GB), (0.7, MEMORY_GB), (0.8, MEMORY_GB), (0.7, TIGHT_GB)],
                synp: vec![(0.7, MEMORY_GB)],
                cold: true,
                noise: true,
                shuffled: true,
                recorded: vec![0.7, 0.8],
                drains: true,
            },
            accuracies: vec![0.6, 0.7, 0.8, 0.9, 0.95, 1.0],
            inflate_every_h: 12,
            inflations: 3,
            power: PowerDownOptions { reserve_hosts: 4, idle_w: 112.0, off_w: 8.0, wake_ms: 180_000 },
        }
    }
}

impl Options {
    /// As short as shows that all works.
    pub fn quick() -> Self {
        let usual = Self::default();
        Self {
            pools: 3,
            hosts: 60,
            days: 9,
            sets: Sets {
                syn: vec![(0.7, MEMORY_GB)],
                cold: false,
                recorded: vec![0.7],
                ..usual.sets.clone()
            },
            accuracies: vec![0.6, 0.8, 0.95],
            inflate_every_h: 24,
            inflations: 1,
            ..usual
        }
    }

    pub(super) fn check(&self) -> Result<(), OptionError> {
        let bad = |key, value: String, allowed: &str| Err(OptionError::new(key, value, allowed));
        if !(1..=1000).contains(&self.pools) {
            return bad("pools", self.pools.to_string(), "1 to 1000");
        }
        if !(3..=365).contains(&self.days) {
            return bad("days", self.days.to_string(), "3 to 365: two of them are best fit's");
        }
        if !(10..=100_000).contains(&self.hosts) {
            return bad("hosts", self.hosts.to_string(), "10 to 100000");
        }
        Ok(())
    }
}
