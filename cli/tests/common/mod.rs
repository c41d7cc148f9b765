//! The program from outside.

use std::path::{Path, PathBuf};
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
    answer(&ballast(folder, args))
}

/// What a program says that must succeed and print JSON alone.
pub(crate) fn answer(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON alone")
}

/// Runs the program in `folder` with arguments that must be refused, and say why.
pub(crate) fn refused(folder: &Path, args: &str, said: &str) {
    let output = ballast(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(said), "{args}: {stderr}");
}

/// Azure's recorded arrivals; where they are not there, that is said.
#[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
pub(crate) fn azure_arrivals() -> Option<PathBuf> {
    let data = std::env::var_os("BALLAST_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")),
        PathBuf::from,
    );
    let trace = data.join("azure2017_arrivals/azure2017_dev.csv.zst");
    if !trace.exists() {
        eprintln!("skipped: there is no {}", trace.display());
        return None;
    }
    Some(trace)
}
