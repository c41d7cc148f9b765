//! `ballast-agent`: the agent of one server, for systemd.

use std::process::ExitCode;

use ballast_daemons::agent::AgentArgs;
use clap::Parser;

/// Throttles only the low-priority cores of this server when its chassis says so.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Command {
    #[command(flatten)]
    args: AgentArgs,
}

fn main() -> ExitCode {
    ballast_daemons::agent::main(&Command::parse().args)
}
