//! The demo's arguments.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Arguments of `ballast demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// How long the load runs, in seconds of wall time
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub(crate) seconds: u64,
    /// Servers in the chassis
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// The chassis's power budget in watts [default: one that the load exceeds several times]
    #[arg(long, value_name = "W", value_parser = positive)]
    pub(crate) budget_w: Option<f64>,
    /// How the agents throttle
    #[arg(long, value_enum, default_value_t = PolicyArg::Stepwise)]
    pub(crate) policy: PolicyArg,
    /// What throttling acts on
    #[arg(long, value_enum, default_value_t = ActuatorArg::Pstate)]
    pub(crate) actuator: ActuatorArg,
    /// CPU trace that sets the load (CSV, also .zst) [default: the built-in generator]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Load seconds that pass in one second; timers and figures stay in wall time
    /// [default: 1; with --trace, so that one day of it passes in the run]
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

/// How the agents throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PolicyArg {
    /// Low-priority cores to the floor, then step by step back up
    Stepwise,
    /// The p-states that just fit, by a model learnt on line from RAPL and CPU use
    Predictive,
    /// Every core equally, as RAPL does: the baseline
    FullServer,
    /// Nothing is throttled, and the plant's hardware caps are off: the load alone
    None,
}

impl PolicyArg {
    /// Its name in the daemons' config.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stepwise => "stepwise",
            Self::Predictive => "predictive",
            Self::FullServer => "full-server",
            Self::None => "none",
        }
    }
}

/// What throttling acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ActuatorArg {
    /// The p-states of a VM's cores: every VM has its own
    Pstate,
    /// The CPU bandwidth of a VM, which floats over all cores
    CpuMax,
}

impl ActuatorArg {
    /// Its name in the daemons' config.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pstate => "pstate",
            Self::CpuMax => "cpu-max",
        }
    }
}

/// A finite number above zero.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a number above 0 is needed".to_owned())?;
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err("a finite number above 0 is needed".to_owned())
    }
}
