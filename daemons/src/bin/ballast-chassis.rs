//! `ballast-chassis`: the manager of one chassis, for systemd.

use std::process::ExitCode;

use ballast_daemons::DaemonArgs;
use clap::Parser;

/// Keeps a chassis of servers under its power budget.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    args: DaemonArgs,
}

fn main() -> ExitCode {
    ballast_daemons::chassis::main(&Command::parse().args)
}
