//! What can be chosen.

use std::num::NonZeroUsize;

use ballast_lab::report::oversubscription::Settings;
use clap::Args;

use crate::common::server::ServerArgs;
use crate::common::threads::all_cores;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// How many chassis have draws with the paper's quantiles
    #[arg(long, alias = "made-chassis", value_name = "N", default_value_t = 144,
        value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub(super) synthetic_chassis: u32,
    /// How many weeks of them, a reading every five minutes
    #[arg(long, alias = "made-weeks", value_name = "N", default_value_t = 13,
        value_parser = clap::value_parser!(u32).range(1..=52))]
    pub(super) synthetic_weeks: u32,
    /// How many chassis are made of each population of real VMs
    #[arg(long, value_name = "N", default_value_t = 48,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) chassis: u32,
    /// How often weeks are resampled, for the intervals
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) replicates: u32,
    /// How many chassis of each population are replayed with the real controllers; 0 for none
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(super) replay_chassis: u32,
    /// Of everything that is drawn
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            synthetic_chassis: 144,
            synthetic_weeks: 13,
            chassis: 48,
            replicates: 100,
            replay_chassis: 2,
            seed: 1,
            threads: None,
            server: ServerArgs::default(),
        }
    }
}

impl Choice {
    /// What the document shows: more chassis are replayed, which takes most of the time.
    pub(crate) fn documented() -> Self {
        Self { replay_chassis: 8, ..Self::default() }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(all_cores).get()
    }

    pub(super) fn settings(&self) -> Settings {
        let Self { synthetic_chassis, synthetic_weeks, chassis, replicates, replay_chassis, seed, .. } =
            *self;
        Settings {
            synthetic_chassis,
            synthetic_weeks,
            chassis,
            replicates,
            replay_chassis,
            seed,
            server: self.server.model(),
        }
    }
}
