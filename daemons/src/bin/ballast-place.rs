//! `ballast-place`: predictions for schedulers, for systemd.

use std::process::ExitCode;

use ballast_daemons::place::Program;
use clap::Parser;

fn main() -> ExitCode {
    ballast_daemons::place::main(&Program::parse().args)
}
