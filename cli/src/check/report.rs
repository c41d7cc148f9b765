//! All that `ballast check` prints.

use ballast_hw::probe::{Machine, Written};
use serde::Serialize;

use super::functions::Function;
use super::state::{Finding, Watched};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The format of this object.
    pub(super) version: u32,
    /// What can be done here.
    pub(super) functions: Vec<Function>,
    pub(super) findings: Vec<Finding>,
    /// What was written, if that was asked for.
    pub(super) write_test: Option<Vec<Written>>,
    /// How sensors behaved, if they were watched.
    pub(super) sensors: Vec<Watched>,
    pub(super) machine: Machine,
    /// What agent.toml could say here.
    pub(super) agent_toml: String,
    /// The code that this command ends with.
    pub(super) exit_code: u8,
}
