//! The world as a shell around each of its machines.

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::wire::{EventKind, Refusal, RefusalReason, Report};
use ballast_types::{Cause, Epoch, Instant, Seq, Shell, Turn, VmId};

use super::checks::Promise;
use super::environment::Environment;
use super::event::{Action, Envelope, Event};
use super::faults::Rogue;
use super::kills::Victim;

pub(crate) struct AgentShell<'a> {
    pub(crate) environment: &'a mut Environment,
    pub(crate) server: usize,
    pub(crate) input: Option<agent::Input>,
    /// The message that is being handled, until it is answered.
    pub(crate) message: Option<Envelope>,
}

impl AgentShell<'_> {
    fn act(&mut self, id: ballast_types::ActionId, action: Action) {
        let at = self.environment.now + self.environment.timing.actuation;
        let instance = self.environment.hosts[self.server].instance;
        self.environment.queue.put(at, Event::Act { server: self.server, instance, id, action });
    }

    fn quota(&mut self, id: ballast_types::ActionId, vm: &VmId, millicores: Option<u32>) {
        let host = &mut self.environment.hosts[self.server];
        let Some(n) = host.vms.iter().position(|known| known.id == *vm) else {
            let what = format!("{} limits VM {vm}, which is not there", host.id);
            return self.environment.violated(Promise::Protocol, what);
        };
        let fair = millicores.is_none_or(|millicores| host.journal_quota(n, millicores));
        if !fair && self.environment.observer.checks.user_facing {
            let what = format!("{} limits the user-facing VM {vm}", host.id);
            self.environment.violated(Promise::UserFacing, what);
        }
        self.act(id, Action::Quota(n, millicores));
    }

    /// Only a VM that prefers it may be killed.
    fn kill(&mut self, id: ballast_types::ActionId, vm: VmId) {
        let host = &self.environment.hosts[self.server];
        if !host.may_kill(&vm) {
            let what = format!("{} kills VM {vm}, which must live", host.id);
            self.environment.violated(Promise::UserFacing, what);
        }
        self.act(id, Action::Kill(vm));
    }

    fn answer(&mut self, answer: chassis::Answer) {
        match self.message.take() {
            Some(message) => self.environment.answer(message, answer),
            None => {
                let what = "an agent answered a message that it did not get".into();
                self.environment.violated(Promise::Protocol, what);
            }
        }
    }
}

impl Shell<agent::Agent> for AgentShell<'_> {
    fn now(&mut self) -> Instant {
        self.environment.now + self.environment.hosts[self.server].ahead
    }

    fn wait(&mut self, _: Option<Instant>) -> Turn<agent::Input> {
        self.input.take().map_or(Turn::Stop, Turn::Input)
    }

    fn moved(&mut self, now: Instant, cause: &Cause<agent::Input>) {
        if let Some(tape) = self.environment.tape(self.server) {
            tape.moved(now, cause);
        }
    }

    fn perform(&mut self, now: Instant, output: agent::Output) {
        use agent::Output;
        let server = self.server;
        if !self.environment.kills.lets(Victim::Agent(server)) {
            return;
        }
        self.environment.observer.output(server as u32, now, &output);

        if let Some(tape) = self.environment.tape(server) {
            tape.performed(output.clone());
        }
        if let Some(id) = output.action().filter(|_| self.environment.hosts[server].is_dry_run) {
            return self.act(id, Action::Nothing);
        }
        match output {
            Output::SetPstate { id, core, khz } => {
                let fair = self.environment.hosts[server].journal(core, khz);
                if !fair && self.environment.observer.checks.user_facing {
                    let name = &self.environment.hosts[server].id;
                    let what = format!("{name} lowers core {core}, which is not low-priority, to {khz}");
                    self.environment.violated(Promise::UserFacing, what);
                }

                self.act(id, Action::Cap(core, khz));
            }
            Output::Lift { id, core } => self.act(id, Action::Lift(core)),
            Output::SetQuota { id, vm, millicores } => self.quota(id, &vm, Some(millicores)),
            Output::LiftQuota { id, vm } => self.quota(id, &vm, None),
            Output::SetServerLimit { id, watts } => {
                self.environment.hosts[server].limit_journalled = true;
                self.act(id, Action::Limit(Some(watts)));
            }
            Output::LiftServerLimit { id } => self.act(id, Action::Limit(None)),
            Output::KillVm { id, vm } => self.kill(id, vm),
            Output::Report(report) => {
                self.environment.observer.sum.agent_obeyed(server);
                self.environment.hosts[server].obeyed_at = Some(self.environment.now);
                let answer = match self.environment.active.rogue(server) {
                    Some(rogue) => rogue.answer(report),
                    None => chassis::Answer::Report(Box::new(report)),
                };

                if let chassis::Answer::Report(report) = &answer {
                    self.environment.hosts[server].reported = report.power_w.unwrap_or_default();
                }
                self.answer(answer);
            }
            Output::Refuse(refusal) => self.answer(chassis::Answer::Refused(refusal)),
            Output::Remember(memory) => self.environment.hosts[server].remember(memory),
            Output::Event(_) => {}
        }
    }
}

impl Rogue {
    /// What such an agent says instead of its report.
    fn answer(self, mut report: Report) -> chassis::Answer {
        match self {
            Self::Refuses => {
                return chassis::Answer::Refused(Refusal {
                    reason: RefusalReason::Stale,
                    newest_epoch: Epoch(report.epoch_obeyed.0 + 1000),
                    newest_seq: Seq(0),
                    instance: None,
                });
            }
            Self::Understates => report.power_w = report.power_w.map(|watts| watts.per(2)),
            Self::Overstates => report.power_w = report.power_w.map(|watts| watts.ppm(1_800_000)),
        }
        chassis::Answer::Report(Box::new(report))
    }
}

pub(crate) struct ChassisShell<'a> {
    pub(crate) environment: &'a mut Environment,
    pub(crate) manager: usize,
    pub(crate) input: Option<chassis::Input>,
}

impl ChassisShell<'_> {
    fn index(&self, server: &ballast_types::ServerId) -> Option<usize> {
        self.environment.hosts.iter().position(|h| h.id == *server)
    }
}

impl Shell<chassis::Chassis> for ChassisShell<'_> {
    fn now(&mut self) -> Instant {
        self.environment.now + self.environment.managers[self.manager].ahead
    }

    fn wait(&mut self, _: Option<Instant>) -> Turn<chassis::Input> {
        self.input.take().map_or(Turn::Stop, Turn::Input)
    }

    fn moved(&mut self, now: Instant, cause: &Cause<chassis::Input>) {
        if let Some(tape) = &mut self.environment.managers[self.manager].tape {
            tape.moved(now, cause);
        }
    }

    fn perform(&mut self, now: Instant, output: chassis::Output) {
        use chassis::Output;
        if self.manager == 0 && !self.environment.kills.lets(Victim::Manager) {
            return;
        }
        let number = (self.environment.hosts.len() + self.manager) as u32;
        self.environment.observer.output(number, now, &output);

        if let Some(tape) = &mut self.environment.managers[self.manager].tape {
            tape.performed(output.clone());
        }
        match output {
            Output::Alert { server, alert } => match self.index(&server) {
                Some(n) => {
                    self.environment.managers[self.manager].level[n] = alert.level;
                    self.environment.send(self.manager, n, alert);
                }
                None => {
                    let what = format!("a message to {server}, which is no server here");
                    self.environment.violated(Promise::Protocol, what);
                }
            },
            Output::OutOfBandCap { id, server, watts } => self.slot(id, &server, Some(watts)),
            Output::OutOfBandLift { id, server } => self.slot(id, &server, None),
            Output::Ledger(ledger) => self.keep(ledger),
            Output::Event(event) => {
                if let EventKind::ChassisState { from, to, .. } = event.kind {
                    self.environment.observer.chassis_state(from, to);
                }
            }
        }
    }
}

impl ChassisShell<'_> {
    fn keep(&mut self, ledger: chassis::Ledger) {
        if self.manager == 0 {
            self.environment.budget_is(ledger.budget_w);
        }
        let manager = &mut self.environment.managers[self.manager];
        manager.first_ledger.get_or_insert_with(|| ledger.clone());
        manager.ledger = ledger;
    }

    fn slot(
        &mut self,
        id: ballast_types::ActionId,
        server: &ballast_types::ServerId,
        watts: Option<ballast_types::Watts>,
    ) {
        let Some(server) = self.index(server) else {
            let what = format!("a hardware cap for {server}, which is no server here");
            return self.environment.violated(Promise::Protocol, what);
        };
        if self.environment.manager_fault(self.manager).is_some() {
            return;
        }
        let at = self.environment.now + self.environment.timing.out_of_band;
        let from = self.environment.sender(self.manager);
        self.environment.queue.put(at, Event::Slot { from, id, server, watts });
    }
}
