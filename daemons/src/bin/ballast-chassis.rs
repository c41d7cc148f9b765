//! `ballast-chassis`: the manager of one chassis, for systemd.

use std::process::ExitCode;

use ballast_daemons::chassis::ChassisArgs;
use clap::Parser;

/// Keeps a chassis of servers under its power budget.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Command {
    #[command(flatten)]
    args: ChassisArgs,
}

fn main() -> ExitCode {
    ballast_daemons::chassis::main(&Command::parse().args)
}
