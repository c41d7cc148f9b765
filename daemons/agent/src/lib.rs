//! `ballast-agent`: throttles the low-priority cores of one server when its chassis says so.
//!
//! `open` → `adopt` → `start` → `serve` → restore: each step takes the type that the one before gives.

mod adopt;
mod api;
pub mod config;
mod cores;
mod dcmi;
mod dry;
mod effects;
mod exclusive;
mod job_limits;
mod kill;
mod killable;
mod limit;
mod message;
mod metrics;
mod needs;
mod open;
mod pods;
mod quota;
pub mod records;
mod refused;
mod release;
mod reload;
mod sampler;
mod serve;
mod start;
mod usage;
mod vms;

use std::process::ExitCode;

use ballast_runtime::config::Loaded;
use ballast_runtime::confine::Needs;
use ballast_runtime::program::Daemon;
use clap::Subcommand;

use crate::config::AgentConfig;
pub use api::http_references;
pub use exclusive::Exclusive;
pub use metrics::metrics_reference;
use open::Opened;
pub use pods::podresources;
use release::ReleaseArgs;

/// The agent of one server.
#[derive(Debug)]
pub struct AgentDaemon;

/// What is done instead of running.
#[derive(Subcommand, Clone, Debug)]
pub enum Order {
    /// Put back what an agent that died has left restricted, by its journal alone
    #[command(after_help = release::EXIT_CODES)]
    Release(ReleaseArgs),
    /// For systemd's ExecStopPost: release after a clean end, otherwise hold and arm the orphan timer
    #[command(after_help = release::EXIT_CODES)]
    StopPost(ReleaseArgs),
}

impl Daemon for AgentDaemon {
    const NAME: &'static str = "ballast-agent";
    const ABOUT: &'static str =
        "Throttles only the low-priority cores of this server when its chassis says so";
    const AFTER_HELP: &'static str = "\
        Example: ballast-agent --config /etc/ballast/agent.toml --check-config\n\n\
        Exit codes: 0 ended by SIGTERM or SIGINT; 1 could not start, or broke; 2 wrong usage; 78 the \
        configuration is refused.\n\n\
        SIGHUP: reads the configuration's VMs anew; what is refused changes nothing.\n\n\
        Files: /etc/ballast/agent.toml, /etc/default/ballast-agent, /var/lib/ballast-agent. More in \
        /usr/share/doc/ballast-agent/docs/operate/operations.md.";
    type Config = AgentConfig;
    type Order = Order;

    fn obey(order: &Order) -> ExitCode {
        match order {
            Order::Release(args) => release::main(args),
            Order::StopPost(args) => release::stop_post(args),
        }
    }

    fn needs(config: &AgentConfig) -> Needs {
        needs::of(config)
    }

    fn misfit(config: &AgentConfig) -> Option<String> {
        vms::misfit(config)
    }

    fn run(loaded: &Loaded<AgentConfig>) -> anyhow::Result<()> {
        Opened::open(&loaded.config)?.adopt()?.start()?.serve(loaded.clone())?.restore()
    }
}
