//! A chassis of servers that answer at once, and a clock.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::time::Duration;

use ballast_chassis_core::{Answer, Chassis, Input, Ledger, Output, Params, Poll, Server};
use ballast_types::wire::{
    AgentState, Alert, ChassisState, ChassisStatus, EventKind, Level, OtherManager, Refusal, RefusalReason,
    Report,
};
use ballast_types::{
    ActionId, BootId, ChassisId, Epoch, Instance, Instant, Machine, Seq, ServerId, Supply, SupplyState, Watts,
};

pub(crate) const W: fn(i64) -> Watts = Watts::from_whole;

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn name(i: usize) -> ServerId {
    ServerId::new(&format!("s-{i:02}")).expect("an id")
}

/// `n` managed servers with an out-of-band floor of 120 W, 200 W each, behind two supplies.
pub(crate) fn params(n: usize) -> Params {
    let server = |i| Server::new(name(i), Some(W(120)));
    let budget = W(200 * n as i64);
    let rated = vec![budget, budget];
    Params::defaults(ChassisId::new("c-1").expect("an id"), budget, rated, (0..n).map(server).collect())
}

/// One server's agent, as the test wants it.
pub(crate) struct Agent {
    pub(crate) answers: bool,
    /// It refuses every message, for it obeys a manager of this epoch and instance, whose messages advance.
    pub(crate) obeys: Option<(Epoch, Option<Instance>)>,
    /// That manager is gone: its messages do not advance, and a newer epoch is obeyed.
    pub(crate) ruler_gone: bool,
    /// Another manager, whose messages it refuses.
    pub(crate) refuses: Option<OtherManager>,
    /// What it draws, or would draw if nothing limited it.
    pub(crate) power: Option<Watts>,
    /// What its meter says instead of its draw.
    pub(crate) says: Option<Watts>,
    /// Its agent keeps its draw under its cap, and says what it holds back.
    pub(crate) capped: bool,
    pub(crate) low_cores: u16,
    /// Its hardware cap, which it cannot exceed.
    pub(crate) hardware: Option<Watts>,
    pub(crate) restorable: Watts,
    pub(crate) leaving: bool,
    pub(crate) cap: Option<Watts>,
    pub(crate) seq: Seq,
}

impl Agent {
    /// What it draws under its caps.
    pub(crate) fn draw(&self) -> Option<Watts> {
        let own = self.cap.filter(|_| self.capped);
        let most = own.unwrap_or(Watts::MAX).min(self.hardware.unwrap_or(Watts::MAX));
        self.power.map(|power| power.min(most))
    }

    fn holds_back(&self) -> Watts {
        match (self.power, self.draw()) {
            (Some(power), Some(draw)) => power - draw,
            _ => Watts::ZERO,
        }
    }
}

pub(crate) struct World {
    pub(crate) chassis: Chassis,
    pub(crate) now: Instant,
    pub(crate) agents: BTreeMap<ServerId, Agent>,
    /// Actions are answered like this, at once; `None`: not at all.
    pub(crate) actuator: Option<Result<(), String>>,
    /// What the supplies read, `None`: nothing.
    pub(crate) total: Option<Watts>,
    /// If set, the supplies read what the servers draw, and so much beside them.
    pub(crate) beside: Option<Watts>,
    pub(crate) polls: bool,
    /// Everything that came out, with its time.
    pub(crate) log: Vec<(Instant, Output)>,
    next_poll: Instant,
}

impl World {
    pub(crate) fn new(params: Params) -> Self {
        Self::with(params, Ledger::default())
    }

    pub(crate) fn with(params: Params, ledger: Ledger) -> Self {
        let now = Instant::from_millis(1000);
        let agent = |s: &Server| {
            let agent = Agent {
                answers: true,
                obeys: None,
                ruler_gone: false,
                refuses: None,
                power: Some(W(150)),
                says: None,
                capped: false,
                low_cores: 20,
                hardware: None,
                restorable: W(0),
                leaving: false,
                cap: None,
                seq: Seq(0),
            };

            (s.id.clone(), agent)
        };

        let agents = params.servers.iter().map(agent).collect();
        let total = params.servers.len() as i64 * 150;
        let chassis = Chassis::new(params, ledger, now);
        let mut world = Self {
            chassis,
            now,
            agents,
            actuator: Some(Ok(())),
            total: Some(W(total)),
            beside: None,
            polls: true,
            log: vec![],
            next_poll: now + ms(100),
        };

        world.drain();

        world
    }

    /// One that has run for `span`.
    pub(crate) fn after(params: Params, span: Duration) -> Self {
        let mut world = Self::new(params);
        world.run(span);
        world
    }

    /// One in a capping event; the supplies then read `after`.
    pub(crate) fn in_event(params: Params, after: Watts) -> Self {
        let mut world = Self::new(params);
        world.begin_event(after);
        world
    }

    pub(crate) fn agent(&mut self, i: usize) -> &mut Agent {
        self.agents.get_mut(&name(i)).expect("a server")
    }

    pub(crate) fn each(&mut self, change: impl FnMut(&mut Agent)) {
        self.agents.values_mut().for_each(change);
    }

    /// The supplies read this from now on.
    pub(crate) fn reads(&mut self, total: impl Into<Option<Watts>>) -> &mut Self {
        self.total = total.into();
        self
    }

    /// Agent `i` answers no more.
    pub(crate) fn silence(&mut self, i: usize) -> &mut Self {
        self.agent(i).answers = false;
        self
    }

    pub(crate) fn poll_of(&self, total: Option<Watts>) -> Poll {
        let half = total.map(|w| w.per(2));
        let supply = Supply { state: SupplyState::Active, input: half };
        Poll { supplies: vec![supply; 2], taken_at: self.now }
    }

    /// What the supplies read now.
    fn read(&self) -> Option<Watts> {
        let sum = || self.agents.values().filter_map(Agent::draw).sum::<Watts>();
        self.beside.map(|beside| beside + sum()).or(self.total)
    }

    /// Runs until it is in `state`; panics after two minutes.
    pub(crate) fn until(&mut self, state: ChassisState) -> &mut Self {
        let late = self.now + ms(120_000);
        while self.state() != state {
            assert!(self.now < late, "{:?} after two minutes", self.state());
            self.run(ms(100));
        }
        self
    }

    /// A leap of 4 % over the limit, which one reading shows, begins a capping event; then the supplies
    /// read `after`.
    pub(crate) fn begin_event(&mut self, after: Watts) -> &mut Self {
        self.run(ms(1000));
        self.reads(self.status().limit_w.ppm(1_040_000)).run(ms(200));
        assert_eq!(self.state(), ChassisState::Alerting);
        self.reads(after)
    }

    /// Runs for `span`: timers, polls every 200 ms, answers at once.
    pub(crate) fn run(&mut self, span: Duration) -> &mut Self {
        let end = self.now + span;
        loop {
            let timer = self.chassis.poll_timeout().map(|(at, _)| at);
            let poll = self.polls.then_some(self.next_poll);
            let Some(next) = timer.into_iter().chain(poll).min().filter(|&at| at <= end) else {
                break;
            };
            self.now = self.now.max(next);

            if timer.is_some_and(|at| at <= self.now) {
                self.chassis.handle_timeout(self.now);
                let again = self.chassis.poll_timeout();
                assert!(again.is_none_or(|(at, _)| at > self.now), "a timer loops: {again:?}");
                self.drain();
            } else {
                self.next_poll = self.now + ms(200);
                let poll = self.poll_of(self.read());
                self.input(Input::Psu(poll));
            }
        }

        self.now = end;
        self.next_poll = self.next_poll.max(self.now);
        self
    }

    pub(crate) fn input(&mut self, input: Input) -> &mut Self {
        self.chassis.handle_input(self.now, input);
        self.drain();
        self
    }

    fn drain(&mut self) {
        while let Some(output) = self.chassis.poll_output() {
            self.log.push((self.now, output.clone()));
            match &output {
                Output::Alert { server, alert } => self.deliver(server, alert),
                Output::OutOfBandCap { id, .. } | Output::OutOfBandLift { id, .. } => {
                    let id = *id;
                    if self.actuator == Some(Ok(())) {
                        self.apply(output.clone());
                    }
                    let Some(result) = self.actuator.clone() else { continue };
                    self.chassis.handle_input(self.now, Input::Applied { id, result });
                }
                Output::Ledger(_) | Output::Event(_) => {}
            }
        }
    }

    /// What a BMC does.
    fn apply(&mut self, output: Output) {
        let (server, watts) = match output {
            Output::OutOfBandCap { server, watts, .. } => (server, Some(watts)),
            Output::OutOfBandLift { server, .. } => (server, None),
            _ => return,
        };
        if let Some(agent) = self.agents.get_mut(&server) {
            agent.hardware = watts;
        }
    }

    fn deliver(&mut self, server: &ServerId, alert: &Alert) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(server).filter(|a| a.answers) else { return };
        if agent.ruler_gone && agent.obeys.is_some_and(|(epoch, _)| alert.epoch > epoch) {
            (agent.obeys, agent.ruler_gone) = (None, false);
        }
        let answer = if let Some((newest_epoch, instance)) = agent.obeys {
            let same = newest_epoch == alert.epoch;
            let reason = if same { RefusalReason::OtherInstance } else { RefusalReason::Stale };
            let newest_seq = Seq(if agent.ruler_gone { 7 } else { now.as_millis() });
            Answer::Refused(Refusal { reason, newest_epoch, newest_seq, instance })
        } else {
            agent.cap = alert.cap_w;
            agent.seq = alert.seq;
            Answer::Report(Box::new(report(server, now, alert, agent)))
        };
        self.chassis.handle_input(now, Input::Answer { server: server.clone(), seq: alert.seq, answer });
    }

    /// What came out, without a fenced manager's questions.
    pub(crate) fn acts(&self) -> Vec<&Output> {
        let asks = |o: &&Output| matches!(o, Output::Alert { alert, .. } if alert.epoch == Epoch(0));
        self.log.iter().map(|(_, output)| output).filter(|output| !asks(output)).collect()
    }

    /// Forgets what came out so far.
    pub(crate) fn clear(&mut self) {
        self.log.clear();
    }

    pub(crate) fn status(&self) -> ChassisStatus {
        self.chassis.status(self.now)
    }

    pub(crate) fn state(&self) -> ChassisState {
        self.status().state
    }

    /// The caps that the servers hold together.
    pub(crate) fn granted(&self) -> Watts {
        let s = self.chassis.status(self.now);
        s.servers.iter().filter_map(|s| s.granted_w).sum()
    }

    /// Their fallbacks together, as they were last told.
    pub(crate) fn fallbacks(&self) -> Watts {
        let last = |i| self.alerts_to(i).last().map(|(_, alert)| alert.fallback_w);
        (0..self.agents.len()).filter_map(last).sum()
    }

    pub(crate) fn alerts_to(&self, i: usize) -> Vec<(Instant, &Alert)> {
        let wanted = name(i);
        let pick = |(at, o): &'_ (Instant, Output)| match o {
            Output::Alert { server, .. } if *server == wanted => Some(*at),
            _ => None,
        };
        self.log
            .iter()
            .filter_map(|entry| {
                let at = pick(entry)?;
                match &entry.1 {
                    Output::Alert { alert, .. } => Some((at, alert)),
                    _ => None,
                }
            })
            .collect()
    }

    pub(crate) fn levels(&self) -> Vec<Level> {
        self.log
            .iter()
            .filter_map(|(_, o)| match o {
                Output::Alert { alert, .. } => Some(alert.level),
                _ => None,
            })
            .collect()
    }

    /// The servers capped and lifted out of band, in order.
    pub(crate) fn caps(&self) -> Vec<(ServerId, Watts)> {
        self.log
            .iter()
            .filter_map(|(_, o)| match o {
                Output::OutOfBandCap { server, watts, .. } => Some((server.clone(), *watts)),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn lifts(&self) -> Vec<(Instant, ServerId)> {
        self.log
            .iter()
            .filter_map(|(at, o)| match o {
                Output::OutOfBandLift { server, .. } => Some((*at, server.clone())),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn ledgers(&self) -> Vec<&Ledger> {
        self.log
            .iter()
            .filter_map(|(_, o)| match o {
                Output::Ledger(l) => Some(l),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn events(&self) -> Vec<&EventKind> {
        self.log
            .iter()
            .filter_map(|(_, o)| match o {
                Output::Event(e) => Some(&e.kind),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn has_alarm(&self, text: &str) -> bool {
        self.chassis.status(self.now).alarms.iter().any(|a| a.message.contains(text))
    }
}

pub(crate) fn report(server: &ServerId, now: Instant, alert: &Alert, agent: &Agent) -> Report {
    Report {
        agent_ms: now.as_millis(),
        epoch_obeyed: alert.epoch,
        seq_obeyed: alert.seq,
        enforced_seq: alert.cap_w.map(|_| alert.seq),
        state: AgentState::Uncapped,
        power_w: agent.says.or(agent.draw()),
        cap_w: agent.cap,
        restorable_w: agent.restorable + agent.holds_back(),
        low_cores: agent.low_cores,
        leaving: agent.leaving,
        refused: agent.refuses,
        ..Report::blank(server.clone(), BootId::new("boot-1").expect("an id"))
    }
}

/// The caps that the ledger before each out-of-band action must hold: checks the whole log.
pub(crate) fn check_ledger_first(log: &[(Instant, Output)]) {
    let mut recorded = Ledger::default();
    let mut epochs = vec![];
    for (_, output) in log {
        match output {
            Output::Ledger(l) => {
                epochs.push(l.epoch);
                recorded = l.clone();
            }
            Output::OutOfBandCap { server, watts, .. } => {
                assert!(recorded.out_of_band.contains(&(server.clone(), *watts)), "{server} {watts}");
            }
            Output::OutOfBandLift { server, .. } => {
                assert!(recorded.out_of_band.iter().any(|(s, _)| s == server), "{server}");
            }

            // Epoch 0 only asks.
            Output::Alert { alert, .. } if alert.epoch == Epoch(0) => {}
            Output::Alert { alert, .. } => assert_eq!(alert.epoch, recorded.epoch),
            Output::Event(_) => {}
        }
    }

    assert!(epochs.windows(2).all(|w| w[0] <= w[1]));
    assert!(epochs.first().is_none_or(|&e| e > Epoch(0)));
}

pub(crate) fn action_ids(log: &[(Instant, Output)]) -> Vec<ActionId> {
    log.iter()
        .filter_map(|(_, o)| match o {
            Output::OutOfBandCap { id, .. } | Output::OutOfBandLift { id, .. } => Some(*id),
            _ => None,
        })
        .collect()
}
