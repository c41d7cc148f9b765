//! `ballast-chassis`: the manager of one chassis, for systemd.

use std::process::ExitCode;

fn main() -> ExitCode {
    ballast_runtime::program::main::<ballast_chassis::ChassisDaemon>()
}
