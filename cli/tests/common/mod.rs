//! The program from outside.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program in `folder` with these arguments.
pub(crate) fn ballast(folder: &Path, args: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast"));
    program.current_dir(folder).args(args.split_whitespace());
    program.output().expect("the program can be run")
}

/// The same where it must succeed and print JSON alone.
pub(crate) fn json(folder: &Path, args: &str) -> Value {
    let output = ballast(folder, args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON alone")
}
