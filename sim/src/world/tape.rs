//! Recordings of the world's machines, in the very format of the daemons' recorder.

use std::io::{self, Write};

use ballast_types::recording::{Header, Step};
use ballast_types::{Cause, Instant};
use serde::Serialize;

/// One machine from its start to its end.
#[derive(Clone, Debug)]
pub struct Life<P, S, I, O> {
    /// How it was made.
    pub header: Header<P, S>,
    pub steps: Vec<Step<I, O>>,
}

/// Every life of one machine.
#[derive(Clone, Debug)]
pub struct Tape<P, S, I, O> {
    lives: Vec<Life<P, S, I, O>>,
}

impl<P, S, I, O> Default for Tape<P, S, I, O> {
    fn default() -> Self {
        Self { lives: Vec::new() }
    }
}

impl<P, S, I: Clone, O> Tape<P, S, I, O> {
    pub(crate) fn start(&mut self, machine: &str, at: Instant, params: P, start: S) {
        let header = Header::new(machine, at, params, start);
        self.lives.push(Life { header, steps: Vec::new() });
    }

    pub(crate) fn moved(&mut self, at: Instant, cause: &Cause<I>) {
        if let Some(life) = self.lives.last_mut() {
            life.steps.push(Step { at, cause: cause.clone(), outputs: Vec::new() });
        }
    }

    pub(crate) fn performed(&mut self, output: O) {
        if let Some(step) = self.lives.last_mut().and_then(|life| life.steps.last_mut()) {
            step.outputs.push(output);
        }
    }

    /// Its lives, oldest first.
    #[must_use]
    pub fn lives(&self) -> &[Life<P, S, I, O>] {
        &self.lives
    }
}

impl<P: Serialize, S: Serialize, I: Serialize, O: Serialize> Life<P, S, I, O> {
    /// Writes it as one file of a recording.
    ///
    /// # Errors
    /// When `out` does not take it.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, &self.header)?;
        out.write_all(b"\n")?;
        for step in &self.steps {
            serde_json::to_writer(&mut out, step)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}
