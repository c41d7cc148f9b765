//! The hardware caps that a manager which is not there has left on: told, and lifted when ordered to.
//!
//! They outlive the manager, and even a reboot, on purpose: lifting one lets its server draw more at once,
//! and nobody watches the budget then. So nothing lifts them but a running manager, or an operator who
//! says `--lift`.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use ballast_chassis_core::Ledger;
use ballast_hw::Root;
use ballast_types::{ServerId, Watts};
use clap::Args;

use super::out_of_band::OutOfBand;
use ballast_runtime::config::EXIT_CONFIG;

use crate::config::{ChassisConfig, ConfigFile as _};
use ballast_runtime::{EXIT_LIVE, state};

/// For `--help`, and docs/operate/operations.md.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 no hardware cap is on; 1 some are, each named on \
    stderr; 2 wrong usage; 75 a manager runs here: nothing was done; 78 the configuration is refused.";

/// Which chassis, and whether to act.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// The manager's TOML file
    #[arg(long, value_name = "FILE", default_value = "/etc/ballast/chassis.toml")]
    config: std::path::PathBuf,
    /// Lift them: the servers may then draw more than the budget, and nobody watches
    #[arg(long)]
    lift: bool,
}

/// `ballast-chassis release`.
pub(super) fn main(args: &ReleaseArgs) -> ExitCode {
    let _flush = ballast_runtime::log::start(tracing::Level::INFO);
    let config = match ChassisConfig::load(&args.config) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };

    let folder = &config.daemon.state_dir;
    let _lock = match folder.exists().then(|| state::lock(folder)).transpose() {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            tracing::warn!("{error}: nothing was done");
            return ExitCode::from(EXIT_LIVE);
        }
        lock => lock,
    };

    match release(&config, args.lift) {
        Ok(()) => {
            tracing::info!("no hardware cap is on");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn release(config: &ChassisConfig, lift: bool) -> anyhow::Result<()> {
    if !config.daemon.state_dir.try_exists()? {
        return Ok(());
    }
    let root = Root::at(&config.daemon.root);
    let path = config.daemon.state_dir.join("ledger.json");
    let mut ledger: Ledger = state::read(&path)?.unwrap_or_default();
    let place = &config.daemon;
    let mut caps = OutOfBand::open(&config.servers, &config.redfish, &root, &place.state_dir)?;
    caps.complete(&mut ledger);
    let (mut failed, mut lifted) = (vec![], false);
    let mut lift_one = |(server, watts): &(ServerId, Watts)| {
        if !lift {
            bail!("{server}: capped to {} W by hardware", watts.as_f64());
        }
        caps.put_back(server).with_context(|| server.to_string())
    };

    ledger.out_of_band.retain(|cap| match lift_one(cap) {
        Ok(()) => {
            lifted = true;
            tracing::warn!(server = %cap.0, watts = cap.1.as_f64(), "hardware cap lifted");
            false
        }
        Err(error) => {
            failed.push(format!("{error:#}"));
            true
        }
    });

    if lifted {
        state::write(&path, &ledger)?;
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}
