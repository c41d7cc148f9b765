//! Recordings of the world's machines, in the very format of the daemons' recorder.

use std::io::{self, Write};

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::recording::{Header, Step};
use ballast_types::{Cause, Instant};
use serde::Serialize;

pub type AgentTape = Tape<agent::Params, agent::RecoveredState, agent::Input, agent::Output>;
pub type ChassisTape = Tape<chassis::Params, chassis::Ledger, chassis::Input, chassis::Output>;

/// One machine from its start to its end.
#[derive(Clone, Debug)]
pub struct TapedInstance<P, S, I, O> {
    pub header: Header<P, S>,
    pub steps: Vec<Step<I, O>>,
}

#[derive(Clone, Debug)]
pub struct Tape<P, S, I, O> {
    instances: Vec<TapedInstance<P, S, I, O>>,
}

impl<P, S, I, O> Default for Tape<P, S, I, O> {
    fn default() -> Self {
        Self { instances: Vec::new() }
    }
}

impl<P, S, I: Clone, O> Tape<P, S, I, O> {
    pub(crate) fn start(&mut self, machine: &str, at: Instant, params: P, start: S) {
        let header = Header::new(machine, at, params, start);
        self.instances.push(TapedInstance { header, steps: Vec::new() });
    }

    pub(crate) fn moved(&mut self, at: Instant, cause: &Cause<I>) {
        if let Some(instance) = self.instances.last_mut() {
            instance.steps.push(Step { at, cause: cause.clone(), outputs: Vec::new() });
        }
    }

    pub(crate) fn performed(&mut self, output: O) {
        if let Some(step) = self.instances.last_mut().and_then(|instance| instance.steps.last_mut()) {
            step.outputs.push(output);
        }
    }

    /// Its instances, oldest first.
    pub fn instances(&self) -> &[TapedInstance<P, S, I, O>] {
        &self.instances
    }
}

impl<P: Serialize, S: Serialize, I: Serialize, O: Serialize> TapedInstance<P, S, I, O> {
    /// Writes it as one file of a recording.
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
