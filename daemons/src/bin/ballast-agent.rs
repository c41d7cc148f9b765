//! `ballast-agent`: the agent of one server, for systemd.

use std::process::ExitCode;

use ballast_daemons::agent::Program;
use clap::Parser;

fn main() -> ExitCode {
    ballast_daemons::agent::main(&Program::parse().args)
}
