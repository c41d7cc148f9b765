//! Does what the agent's controller wants.

use std::cell::Cell;
use std::collections::VecDeque;

use anyhow::bail;
use ballast_agent_core::{ActuatorError, Agent, Input, Memory, Output};
use ballast_types::wire::{AgentState, AgentStatus, EventKind, Refusal, Report};
use ballast_types::{ActionId, CoreId, Instant, KiloHertz, Watts};
use tokio::sync::oneshot;

use super::cores::Cores;
use super::kill::Killer;
use super::message::Message;
use super::refused::refused;
use super::sampler::Sensors;
use super::vms::Notes;
use super::{dry, limit, quota};
use crate::metrics::Counts;
use ballast_runtime::alarms::AlarmBook;
use ballast_runtime::clock;
use ballast_runtime::control::Effects;
use ballast_runtime::events::Events;
use ballast_runtime::state::StateWriter;

/// What the agent acts on: cores, quotas, the server's own limit, and the answer to the chassis.
pub(super) struct AgentEffects {
    pub(super) cores: Cores,
    pub(super) quotas: quota::Worker,
    pub(super) limit: Option<limit::Worker>,
    pub(super) killer: Killer,
    pub(super) sensors: Sensors,
    pub(super) writer: StateWriter<Memory>,
    pub(super) events: Events,
    pub(super) counts: Counts,
    /// Whether the meter was read since the last status.
    pub(super) is_read: Cell<bool>,
    /// What the status says of VMs.
    pub(super) notes: Notes,
    /// Nothing is written: what would be done is said.
    pub(super) dry: bool,
    pub(super) alarms: AlarmBook,
    pub(super) waiting: Waiting,
    /// The server's limit, ordered before it was known what the rest of the server draws.
    pub(super) waits_for_rest: Cell<Option<(ActionId, Watts)>>,
}

/// Who waits for the answer to the newest alert.
pub(super) type Waiting = Option<oneshot::Sender<Result<Report, Refusal>>>;

impl AgentEffects {
    fn answer(&mut self, answer: Result<Report, Refusal>) {
        if let Some(waiting) = self.waiting.take() {
            // Fails only when the chassis has hung up.
            let _ = waiting.send(answer);
        }
    }

    fn set_core(&self, core: CoreId, khz: Option<KiloHertz>) -> Result<(), ActuatorError> {
        self.cores.set(core, khz).map_err(|error| refused(&error))
    }

    /// Orders the server's limit, or its end; what keeps it from being ordered.
    fn order_limit(&self, id: ActionId, watts: Option<Watts>) -> Result<(), ActuatorError> {
        self.waits_for_rest.set(None);
        let limit = self.limit.as_ref().ok_or(ActuatorError::Permanent)?;
        let watts = match watts {
            // The rest of the server draws on beside its packages.
            Some(watts) if limit.packages_only => {
                let Some(rest) = self.sensors.non_cpu.get() else {
                    // At a start: the first reading is under way, and is waited for as a slow device is.
                    self.waits_for_rest.set(Some((id, watts)));
                    return Ok(());
                };
                Some(watts - rest)
            }
            watts => watts,
        };
        limit.order(id, watts)
    }

    /// Puts every core, every VM's bandwidth and the server's limit back, whatever the controller believes.
    /// The error names all that could not be put back; the journal then stays for the next start.
    pub(super) fn restore(self) -> anyhow::Result<()> {
        if self.dry {
            return Ok(());
        }
        let mut failed = self.cores.lock().release_all();
        failed.extend(self.quotas.put_back());
        if let Some(limit) = self.limit {
            failed.extend(limit.put_back().err().map(|error| error.to_string()));
        }
        if !failed.is_empty() {
            bail!("not put back: {}", failed.join("; "));
        }
        Ok(())
    }
}

impl Effects<Agent> for AgentEffects {
    type Message = Message;
    type Status = AgentStatus;

    fn open(&mut self, message: Message) -> Option<Input> {
        if let Some((id, watts)) = self.waits_for_rest.get() {
            // What fails now is not answered in time.
            let _ = self.order_limit(id, Some(watts));
        }
        match message {
            Message::Alert(alert, waiting) => {
                self.waiting = Some(waiting);
                self.counts.alerted(clock::now(), &alert);
                Some(Input::Alert(alert))
            }
            Message::Input(input) => {
                match &input {
                    Input::Power(_) => self.is_read.set(true),
                    Input::Usage(usage) => self.counts.used(usage, self.notes.measured_cpus()),
                    _ => {}
                }
                Some(input)
            }
            Message::Stop => None,
        }
    }

    fn perform(&mut self, now: Instant, output: Output, answers: &mut VecDeque<Input>) {
        let mut applied = |id: ActionId, result| answers.push_back(Input::Applied { id, result });
        if let Some(id) = output.action().filter(|_| self.dry) {
            dry::tell(&output);
            return applied(id, Ok(()));
        }

        match output {
            Output::SetPstate { id, core, khz } => applied(id, self.set_core(core, Some(khz))),
            Output::Lift { id, core } => applied(id, self.set_core(core, None)),
            Output::SetServerLimit { id, watts } => {
                self.order_limit(id, Some(watts)).unwrap_or_else(|error| applied(id, Err(error)));
            }
            Output::LiftServerLimit { id } => {
                self.order_limit(id, None).unwrap_or_else(|error| applied(id, Err(error)));
            }
            Output::SetQuota { id, vm, millicores } => {
                let ordered = self.quotas.order(id, vm, Some(millicores));
                ordered.unwrap_or_else(|error| applied(id, Err(error)));
            }
            Output::LiftQuota { id, vm } => {
                let ordered = self.quotas.order(id, vm, None);
                ordered.unwrap_or_else(|error| applied(id, Err(error)));
            }
            Output::KillVm { id, vm } => applied(id, self.killer.kill(&vm)),
            Output::Report(report) => self.answer(Ok(report)),
            Output::Refuse(refusal) => self.answer(Err(refusal)),
            Output::Remember(memory) => self.writer.keep(memory),
            Output::Event(event) => {
                if let EventKind::FloorReached { epoch, seq, .. } = event.kind {
                    self.counts.lowest(now, epoch, seq);
                }
                self.events.push(event);
            }
        }
    }

    fn status(&self, machine: &Agent, now: Instant) -> AgentStatus {
        let mut status = machine.status(now);
        if self.is_read.take() {
            self.counts.read(now, &status);
        }
        {
            let cores = self.cores.lock();
            status.cores = Some(cores.status());
            status.alarms.extend(cores.alarms());
        }
        status.alarms.extend(self.quotas.alarms());
        for gauge in &self.sensors.gauges {
            status.sensors.push(gauge.status(now));
            status.alarms.extend(gauge.alarms(now));
        }
        self.notes.add_to(&mut status);
        self.counts.estimate(&mut status);
        self.alarms.complete(&mut status.alarms);
        status
    }

    fn is_attended(status: &AgentStatus) -> bool {
        status.report.power_w.is_some() || status.report.state == AgentState::Blind
    }
}
