//! `ballast-agent`: the agent of one server, for systemd.

use std::process::ExitCode;

fn main() -> ExitCode {
    ballast_runtime::program::main::<ballast_agent::AgentDaemon>()
}
