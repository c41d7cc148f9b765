//! The program `ballast`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ballast_cli::main()
}
