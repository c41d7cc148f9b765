//! `ballast-place`: predictions for schedulers, for systemd.

use std::process::ExitCode;

use ballast_place::Program;
use clap::Parser;

fn main() -> ExitCode {
    ballast_place::main(&Program::parse().args)
}
