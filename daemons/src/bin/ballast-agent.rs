//! `ballast-agent`: the agent of one server, for systemd.

use std::process::ExitCode;

use ballast_daemons::DaemonArgs;
use clap::Parser;

/// Throttles only the low-priority cores of this server when its chassis says so.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    args: DaemonArgs,
}

fn main() -> ExitCode {
    ballast_daemons::agent::main(&Command::parse().args)
}
