//! `ballast replay`: the controllers in virtual time, on a daemon's recording or on foreign telemetry.

mod plot;
mod recording;
mod telemetry;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::common::columns::ColumnArgs;
use crate::common::control::ControlArgs;
use crate::common::numbers::{not_negative, positive};
use crate::common::one_of;
use crate::common::server::ServerArgs;

#[derive(Args, Debug)]
#[command(group = one_of(["recording", "telemetry"]))]
pub(crate) struct ReplayArgs {
    /// A daemon's recording: a file, or a folder with all of its files
    #[arg(long, value_name = "FILE|DIR")]
    recording: Option<PathBuf>,
    /// Telemetry of servers or VMs (CSV, also .zst, or Parquet): CPU use, or watts of whole servers
    #[arg(long, value_name = "FILE", requires = "budget_w")]
    telemetry: Option<PathBuf>,
    /// Print the report as one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: TelemetryArgs,
}

/// What goes with `--telemetry`.
#[derive(Args, Debug)]
#[command(next_help_heading = "With --telemetry")]
struct TelemetryArgs {
    /// The chassis's power budget at the supplies' input, in watts
    #[arg(long, value_name = "W", value_parser = positive, conflicts_with = "recording")]
    budget_w: Option<f64>,
    /// Servers in the chassis [default: 12; with watts, one per series]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    servers: Option<u16>,
    /// How many recorded hours to replay; 0 for all
    #[arg(long, value_name = "H", default_value_t = 6.0, value_parser = not_negative)]
    hours: f64,
    /// Recorded hours to leave out at the start
    #[arg(long, value_name = "H", default_value_t = 0.0, value_parser = not_negative)]
    skip_hours: f64,
    /// Seed of all chance: sensor noise and message latencies
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    control: ControlArgs,
    /// Multiplies every recorded value
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = positive)]
    scale: f64,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Draw power against budget, and frequencies, into this file
    #[arg(long, value_name = "FILE.svg", conflicts_with = "recording")]
    plot: Option<PathBuf>,
}

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let control = args.options.control != ControlArgs::default();
    match (&args.recording, &args.telemetry) {
        (Some(_), _) if control => anyhow::bail!(
            "--recording: a recording has its own rules; --preset, --policy, --shares and --actuator go \
             with --telemetry"
        ),
        (Some(path), _) => recording::run(path, args.json),
        (None, Some(path)) => telemetry::run(path, &args.options, args.json),
        (None, None) => anyhow::bail!("nothing to replay: give --telemetry or --recording"),
    }
}
