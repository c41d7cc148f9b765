//! The program from outside.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program in `folder` with these arguments.
pub(crate) fn ballast(folder: &Path, args: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballast-lab"));
    program.current_dir(folder).args(args.split_whitespace());
    program.output().expect("the program can be run")
}

/// The same where it must succeed and print JSON alone.
pub(crate) fn json(folder: &Path, args: &str) -> Value {
    answer(&ballast(folder, args))
}

/// What a program says that must succeed and print JSON alone. An experiment says by code 3 that it missed a
/// figure, and nothing else.
pub(crate) fn answer(output: &Output) -> Value {
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 3)), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON alone");
    if let Some(goals) =
        answer.get("goals").and_then(Value::as_array).filter(|_| answer["experiment"].is_string())
    {
        assert_eq!(code == Some(3), goals.iter().any(|goal| goal["met"] == false), "{answer}");
    }
    answer
}

/// Runs the program in `folder` with arguments that must be refused, and say why.
pub(crate) fn refused(folder: &Path, args: &str, said: &str) {
    let output = ballast(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(said), "{args}: {stderr}");
}
