//! `ballast-agent`: the agent of one server, for systemd.

use std::process::ExitCode;

use ballast_agent::Program;
use clap::Parser;

fn main() -> ExitCode {
    ballast_agent::main(&Program::parse().args)
}
