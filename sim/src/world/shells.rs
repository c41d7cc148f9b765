//! The world as a shell around each of its machines.

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::wire::EventKind;
use ballast_types::{Cause, Instant, Shell, Turn, VmId};

use super::around::{Action, Around, Envelope, Event};

/// Around one agent.
pub(crate) struct AgentShell<'a> {
    pub(crate) around: &'a mut Around,
    pub(crate) server: usize,
    pub(crate) input: Option<agent::Input>,
    /// The message that is being handled, until it is answered.
    pub(crate) letter: Option<Envelope>,
}

impl AgentShell<'_> {
    fn act(&mut self, id: ballast_types::ActionId, action: Action) {
        let at = self.around.now + self.around.timing.actuation;
        let life = self.around.hosts[self.server].life;
        self.around.queue.put(at, Event::Act { server: self.server, life, id, action });
    }

    fn quota(&mut self, id: ballast_types::ActionId, vm: &VmId, millicores: Option<u32>) {
        let host = &mut self.around.hosts[self.server];
        let Some(n) = host.vms.iter().position(|known| known.id == *vm) else {
            let what = format!("{} limits VM {vm}, which is not there", host.id);
            return self.around.violated(what);
        };
        let fair = millicores.is_none_or(|millicores| host.journal_quota(n, millicores));
        if !fair && self.around.checks.user_facing {
            let what = format!("{} limits the user-facing VM {vm}", host.id);
            self.around.violated(what);
        }
        self.act(id, Action::Quota(n, millicores));
    }

    /// Only a VM that prefers it may be killed.
    fn kill(&mut self, id: ballast_types::ActionId, vm: VmId) {
        let host = &self.around.hosts[self.server];
        if !host.may_kill(&vm) {
            let what = format!("{} kills VM {vm}, which must live", host.id);
            self.around.violated(what);
        }
        self.act(id, Action::Kill(vm));
    }

    fn answer(&mut self, answer: chassis::Answer) {
        match self.letter.take() {
            Some(letter) => self.around.answer(letter, answer),
            None => self.around.violated("an agent answered a message that it did not get".into()),
        }
    }
}

impl Shell<agent::Agent> for AgentShell<'_> {
    fn now(&mut self) -> Instant {
        self.around.now + self.around.hosts[self.server].ahead
    }

    fn wait(&mut self, _: Option<Instant>) -> Turn<agent::Input> {
        self.input.take().map_or(Turn::Stop, Turn::Input)
    }

    fn moved(&mut self, now: Instant, cause: &Cause<agent::Input>) {
        if let Some(tape) = self.around.tape(self.server) {
            tape.moved(now, cause);
        }
    }

    fn perform(&mut self, now: Instant, output: agent::Output) {
        use agent::Output;
        let server = self.server;
        self.around.outputs += 1;
        self.around.hash.add(server as u32, now, &output);
        if let Some(tape) = self.around.tape(server) {
            tape.performed(output.clone());
        }
        if let Some(id) = output.action().filter(|_| self.around.hosts[server].dry) {
            return self.act(id, Action::Nothing);
        }
        match output {
            Output::SetPstate { id, core, khz } => {
                let fair = self.around.hosts[server].journal(core, khz);
                if !fair && self.around.checks.user_facing {
                    let name = &self.around.hosts[server].id;
                    let what =
                        format!("{name} lowers core {core}, which is not low-priority, to {khz}");
                    self.around.violated(what);
                }
                self.act(id, Action::Cap(core, khz));
            }
            Output::Lift { id, core } => self.act(id, Action::Lift(core)),
            Output::SetQuota { id, vm, millicores } => self.quota(id, &vm, Some(millicores)),
            Output::LiftQuota { id, vm } => self.quota(id, &vm, None),
            Output::SetServerLimit { id, watts } => {
                self.around.hosts[server].limit_journalled = true;
                self.act(id, Action::Limit(Some(watts)));
            }
            Output::LiftServerLimit { id } => self.act(id, Action::Limit(None)),
            Output::KillVm { id, vm } => self.kill(id, vm),
            Output::Report(report) => {
                self.around.sum.agent_obeyed(server);
                self.answer(chassis::Answer::Report(report));
            }
            Output::Refuse(refusal) => self.answer(chassis::Answer::Refused(refusal)),
            Output::Remember(memory) => self.around.hosts[server].memory = memory,
            Output::Event(_) => {}
        }
    }
}

/// Around the chassis manager.
pub(crate) struct ChassisShell<'a> {
    pub(crate) around: &'a mut Around,
    pub(crate) input: Option<chassis::Input>,
}

impl ChassisShell<'_> {
    fn index(&self, server: &ballast_types::ServerId) -> Option<usize> {
        self.around.hosts.iter().position(|h| h.id == *server)
    }
}

impl Shell<chassis::Chassis> for ChassisShell<'_> {
    fn now(&mut self) -> Instant {
        self.around.now + self.around.manager.ahead
    }

    fn wait(&mut self, _: Option<Instant>) -> Turn<chassis::Input> {
        self.input.take().map_or(Turn::Stop, Turn::Input)
    }

    fn moved(&mut self, now: Instant, cause: &Cause<chassis::Input>) {
        if let Some(tape) = &mut self.around.manager.tape {
            tape.moved(now, cause);
        }
    }

    fn perform(&mut self, now: Instant, output: chassis::Output) {
        use chassis::Output;
        self.around.outputs += 1;
        let number = self.around.hosts.len() as u32;
        self.around.hash.add(number, now, &output);
        if let Some(tape) = &mut self.around.manager.tape {
            tape.performed(output.clone());
        }
        match output {
            Output::Alert { server, alert } => match self.index(&server) {
                Some(n) => {
                    self.around.manager.level[n] = alert.level;
                    self.around.send(n, alert);
                }
                None => {
                    self.around.violated(format!("a message to {server}, which is no server here"));
                }
            },
            Output::OutOfBandCap { id, server, watts } => self.slot(id, &server, Some(watts)),
            Output::OutOfBandLift { id, server } => self.slot(id, &server, None),
            Output::Ledger(ledger) => self.around.manager.ledger = ledger,
            Output::Event(event) => {
                if let EventKind::ChassisState { from, to, .. } = event.kind {
                    self.around.chassis_state(from, to);
                }
            }
        }
    }
}

impl ChassisShell<'_> {
    fn slot(
        &mut self,
        id: ballast_types::ActionId,
        server: &ballast_types::ServerId,
        watts: Option<ballast_types::Watts>,
    ) {
        let Some(server) = self.index(server) else {
            return self
                .around
                .violated(format!("an out-of-band cap for {server}, which is no server here"));
        };
        let at = self.around.now + self.around.timing.out_of_band;
        let life = self.around.manager.life;
        self.around.queue.put(at, Event::Slot { life, id, server, watts });
    }
}
