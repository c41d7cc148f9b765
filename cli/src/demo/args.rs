//! The demo's arguments.

use std::path::PathBuf;

use clap::Args;

use crate::common::columns::ColumnArgs;
use crate::common::control::{ControlArgs, PolicyArg};
use crate::common::numbers::positive;
use crate::common::plant::LoadArgs;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// How long the load runs, in seconds of wall time
    #[arg(long, value_name = "N", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub(crate) seconds: u64,
    /// Stay until q or Ctrl-C; the load begins anew when it has ended
    #[arg(long)]
    pub(crate) hold: bool,
    /// Servers in the chassis
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// The chassis's power budget in watts [default: one that the load exceeds several times]
    #[arg(long, value_name = "W", value_parser = positive)]
    pub(crate) budget_w: Option<f64>,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    /// CPU use that sets the load (CSV, also .zst, or Parquet) [default: the built-in generator]
    #[arg(long, value_name = "FILE")]
    pub(crate) telemetry: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) columns: ColumnArgs,
    /// Load seconds that pass in one second; timers and figures stay in wall time
    /// [default: 1; with --telemetry, so that one day of it passes in the run]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) speedup: Option<f64>,
    /// Seed of the load and of the sensors' noise
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print the summary as one JSON object, alone on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep the machine tree, the configs, the logs and the recordings in DIR (new or empty)
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

impl DemoArgs {
    /// The plant: quiet until the daemons should be ready.
    pub(super) fn load(&self) -> LoadArgs {
        LoadArgs {
            servers: self.servers,
            budget_w: self.budget_w,
            telemetry: self.telemetry.clone(),
            columns: self.columns.clone(),
            speedup: self.speedup,
            load_s: Some(self.seconds as f64),
            quiet_s: Some(2.0 + 0.2 * f64::from(self.servers)),
            seed: self.seed,
            no_hardware_caps: self.control.policy() == PolicyArg::None,
            repeat: self.hold,
        }
    }
}
