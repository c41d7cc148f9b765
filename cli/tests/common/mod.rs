//! The program from outside.

use std::path::{Path, PathBuf};
use std::process::Output;

use ballast_testbed::program::Program;
pub(crate) use ballast_testbed::program::answer;
use serde_json::Value;

const BALLAST: Program = Program(env!("CARGO_BIN_EXE_ballast"));

pub(crate) fn ballast(folder: &Path, args: &str) -> Output {
    BALLAST.run(folder, args)
}

pub(crate) fn json(folder: &Path, args: &str) -> Value {
    BALLAST.json(folder, args)
}

pub(crate) fn refused(folder: &Path, args: &str, said: &str) {
    BALLAST.refused(folder, args, said);
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
