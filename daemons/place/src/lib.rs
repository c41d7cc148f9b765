//! `ballast-place`: says what is expected of a VM before it runs, and where it should go; and keeps what is
//! where.
//!
//! ```text
//!   model's file ──▶ predictor ◀── HTTP: POST /v1/predict
//!                        ▲
//!                        │           HTTP: POST /v1/score, /v1/place, hosts, VMs
//!                        │                  │
//!                  vm_request ◀────────────┤
//!                                           ▼
//!                                       inventory ──▶ database on disk
//! ```
//!
//! What the model knows of lifetimes goes to the inventory, which gives every VM its curve; what VMs come and end goes to a
//! table that training reads (`lifetime_history`).
//!
//! One thread answers; one reads the model's file and swaps what it has read; one writes the inventory, one that table; one
//! tells the hosts' agents. An answer never waits for the model or an agent, and one that changes something waits for the
//! disk.
//!
//! `open` → `adopt` → `start` → `serve` → restore: each step takes the type that the one before gives.

mod admission;
mod adopt;
mod agents;
mod api;
mod ask;
mod body;
pub mod config;
mod counters;
mod drains;
mod fault;
mod fleet_limits;
mod host_list;
mod hosts;
mod inventory;
mod kubernetes;
mod lifetime_history;
mod lifetimes;
#[cfg(test)]
mod lifetimes_tests;
mod metrics;
mod open;
mod overcommit;
mod placing;
#[cfg(test)]
mod placing_tests;
mod predictor;
mod reloaded_file;
mod reloader;
mod routes;
mod serve;
mod start;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod vm_request;

use std::convert::Infallible;
use std::process::ExitCode;

use ballast_runtime::config::{Loaded, listen};
use ballast_runtime::confine::Needs;
use ballast_runtime::program::Daemon;

use crate::config::PlaceConfig;
pub use metrics::metrics_references;
use open::Opened;
pub use routes::http_reference;

/// The placement daemon of a cluster.
#[derive(Debug)]
pub struct PlaceDaemon;

impl Daemon for PlaceDaemon {
    const NAME: &'static str = "ballast-place";
    const ABOUT: &'static str =
        "Says what is expected of a VM before it runs, and on which host it should go";
    const AFTER_HELP: &'static str = "\
        Example: ballast-place --config /etc/ballast/place.toml --check-config\n\n\
        Exit codes: 0 ended by SIGTERM or SIGINT; 1 could not start, or broke; 2 wrong usage; 78 the \
        configuration is refused.\n\n\
        SIGHUP: looks at the model's file at once, else once a second; reads the file of hosts, and \
        checks the configuration.\n\n\
        Files: /etc/ballast/place.toml, /etc/default/ballast-place, /var/lib/ballast-place. More in \
        /usr/share/doc/ballast-place/docs/place-and-plan/place.md.";
    type Config = PlaceConfig;
    type Order = Infallible;

    fn obey(order: &Infallible) -> ExitCode {
        match *order {}
    }

    /// A folder of its own, and where it listens: models, hosts and the cluster are only read.
    fn needs(config: &PlaceConfig) -> Needs {
        listen::needs([config.state_dir.clone()], &config.listen)
    }

    fn run(loaded: &Loaded<PlaceConfig>) -> anyhow::Result<()> {
        Opened::open(&loaded.config)?.adopt()?.start()?.serve(loaded.clone()).restore()
    }
}
