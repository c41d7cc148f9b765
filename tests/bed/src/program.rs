//! A program from outside: what it prints, and how it ends.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A program that tests run; cargo builds it for them.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub &'static str);

impl Program {
    pub fn run(self, folder: &Path, args: &str) -> Output {
        let mut program = Command::new(self.0);
        program.current_dir(folder).args(args.split_whitespace());
        program.output().expect("the program can be run")
    }

    /// The same where it must succeed and print JSON alone.
    pub fn json(self, folder: &Path, args: &str) -> Value {
        answer(&self.run(folder, args))
    }

    /// Runs the program in `folder` with arguments that must be refused, and say why.
    pub fn refused(self, folder: &Path, args: &str, said: &str) {
        let output = self.run(folder, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{args}: {stderr}");
    }
}

/// Parses the output of a program that prints only JSON. Exit code 3 means that an experiment missed a figure; any other
/// failure panics.
pub fn answer(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("stdout is not JSON alone: {error}: {stderr}"));
    let goals = answer.get("goals").and_then(Value::as_array).filter(|_| answer["experiment"].is_string());
    let is_missed = goals.is_some_and(|goals| goals.iter().any(|goal| goal["met"] == false));
    assert_eq!(output.status.code(), Some(if is_missed { 3 } else { 0 }), "{stderr}");
    answer
}
