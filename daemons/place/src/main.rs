//! `ballast-place`: predictions for schedulers, for systemd.

use std::process::ExitCode;

fn main() -> ExitCode {
    ballast_runtime::program::main::<ballast_place::PlaceDaemon>()
}
