//! `ballast-chassis`: polls the power supplies, alerts the agents, falls back to hardware caps.
//!
//! `open` → `adopt` → `start` → `serve` → restore: each step takes the type that the one before gives.

mod adopt;
mod api;
mod budget;
pub mod config;
mod dry;
mod effects;
mod history;
mod message;
mod metrics;
mod open;
mod out_of_band;
mod polling;
mod power_input;
mod release;
mod reload;
pub mod sender;
mod serve;
mod start;

use std::process::ExitCode;

use ballast_hw::Root;
use ballast_runtime::config::Loaded;
use ballast_runtime::confine::Needs;
use ballast_runtime::program::Daemon;
use clap::Subcommand;

use crate::config::ChassisConfig;
pub use api::http_reference;
pub use metrics::metrics_reference;
use open::Opened;
use release::ReleaseArgs;

/// The manager of one chassis.
#[derive(Debug)]
pub struct ChassisDaemon;

/// What is done instead of running.
#[derive(Subcommand, Clone, Debug)]
pub enum Order {
    /// Name the hardware caps that a manager which ended has left on; lift them if ordered to
    #[command(after_help = release::EXIT_CODES)]
    Release(ReleaseArgs),
}

impl Daemon for ChassisDaemon {
    const NAME: &'static str = "ballast-chassis";
    const ABOUT: &'static str = "Keeps a chassis of servers under its power budget";
    const AFTER_HELP: &'static str = "\
        Example: ballast-chassis --config /etc/ballast/chassis.toml --check-config\n\n\
        Exit codes: 0 ended by SIGTERM or SIGINT; 1 could not start, or broke; 2 wrong usage; 78 the \
        configuration is refused.\n\n\
        SIGHUP: reads the configuration anew; what is refused changes nothing.\n\n\
        Files: /etc/ballast/chassis.toml, /etc/default/ballast-chassis, /var/lib/ballast-chassis. More in \
        /usr/share/doc/ballast-chassis/docs/operate/operations.md.";
    type Config = ChassisConfig;
    type Order = Order;

    fn obey(Order::Release(args): &Order) -> ExitCode {
        release::main(args)
    }

    /// Beside its folders: the slots' caps, if it has any. hwmon devices renumber, and lie wherever their bus does.
    fn needs(config: &ChassisConfig) -> Needs {
        let root = Root::at(&config.daemon.root);
        let hwmon = ["sys/devices", "sys/class/hwmon"].map(|folder| root.path(folder));
        let kernel = if config.has_slots() { hwmon.into() } else { vec![] };
        Needs { kernel, ..config.daemon.needs() }
    }

    fn run(loaded: &Loaded<ChassisConfig>) -> anyhow::Result<()> {
        Opened::open(&loaded.config)?.adopt()?.start()?.serve(loaded.clone())?.restore()
    }
}
