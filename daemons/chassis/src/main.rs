//! `ballast-chassis`: the manager of one chassis, for systemd.

use std::process::ExitCode;

use ballast_chassis::Program;
use clap::Parser;

fn main() -> ExitCode {
    ballast_chassis::main(&Program::parse().args)
}
