//! What a recorder writes and a replayer reads: one JSON object a line.
//!
//! The first line of every file is a [`Header`]; every other line is one [`Step`]. A rotated file starts with a
//! header of its own whose `start` is `None`: it continues the file before it. Its header holds the machine as
//! it was then, so that the file can be replayed alone: the one before it may be gone, and steps may be lost
//! between the two.

use serde::{Deserialize, Serialize};

use crate::{Cause, Instant};

/// The version of this format.
pub const VERSION: u32 = 1;

/// The first line: everything that makes the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header<P, S, M = ()> {
    /// The version of the format, [`VERSION`].
    pub ballast_recording: u32,
    /// Which controller: `"agent"` or `"chassis"`.
    pub machine: String,
    /// When the machine was made.
    pub at: Instant,
    /// What clocks on the wall showed then, in milliseconds since 1970; `None` in virtual time.
    pub unix_ms: Option<i64>,
    /// The parameters that the controller was made with.
    pub params: P,
    /// What it was started from; `None` in a file that continues another.
    pub start: Option<S>,
    /// The machine at the begin of a file that continues another; `None` in one that starts the machine.
    pub state: Option<MachineState<M>>,
}

/// A machine between two steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineState<M> {
    /// The instant of its last step.
    pub at: Instant,
    /// Its steps since its start, whether they were written or lost.
    pub steps: u64,
    /// All of the machine.
    pub machine: M,
}

impl<P, S, M> Header<P, S, M> {
    /// The header of a recording that starts with its machine, at `at`.
    pub fn new(machine: &str, at: Instant, params: P, start: S) -> Self {
        let start = Some(start);
        let machine = machine.to_owned();
        Self { ballast_recording: VERSION, machine, at, unix_ms: None, params, start, state: None }
    }

    /// Which start of the machine the file belongs to.
    pub fn origin(&self) -> (Instant, Option<i64>) {
        (self.at, self.unix_ms)
    }
}

/// One step of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step<I, O> {
    /// The instant of the step, on the machine's clock.
    pub at: Instant,
    /// The input or timer that moved it.
    pub cause: Cause<I>,
    /// What it then wanted done.
    pub outputs: Vec<O>,
}
