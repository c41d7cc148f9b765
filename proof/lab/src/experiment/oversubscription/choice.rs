//! What can be chosen.

use std::path::PathBuf;

use ballast_lab::report::oversubscription::Settings;
use ballast_sim::verify::Options;
use ballast_types::wire::SharePolicy;
use clap::Args;

use ballast_cli::common::server::ServerArgs;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
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
    /// Write the draws of the chassis, and what their servers were busy with, for ballast plan: FLEET-draws and
    /// FLEET-loads.csv.zst
    #[arg(long, value_name = "FOLDER")]
    pub(super) export: Option<PathBuf>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl Choice {
    /// With the shares that the chassis manager has by default.
    pub(super) fn replay_options(&self) -> Options {
        Options { seed: self.seed, shares: SharePolicy::CriticalFirst, ..Options::default() }
    }

    pub(super) fn settings(&self) -> Settings {
        let Self { chassis, replicates, replay_chassis, seed, .. } = *self;
        Settings { chassis, replicates, replay_chassis, seed, server: self.server.model() }
    }
}
