//! Two managers, two servers with their agents, the messages between them, and time.
//!
//! Time moves in ticks: what is under way arrives, timers fire at their own instants, meters are read. So a
//! tick without a fault is one state. Whatever goes wrong is an action of its own between two ticks.

use core::fmt::{self, Debug};
use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::sync::Arc;

use ballast_agent_core::{Agent, Input as Told, Memory, Output as Done, Reading, RecoveredState};
use ballast_chassis_core::{Answer, Chassis, Input, Ledger, Output, Poll};
use ballast_types::wire::{Alert, ChassisState, EventKind, Refusal, RefusalReason};
use ballast_types::{Epoch, Instant, KiloHertz, Machine as _, Seq, Supply, SupplyState, Watts};

use crate::broken::{Broken, LONE_WORD};
use crate::digest::digest;
use crate::plant::{self, FREE, LEASE, TICK};

/// So many timers of one tick are no accident: a machine that never lets go of one is broken.
const TIMERS_PER_TICK: usize = 200;

/// Faults are possible from here on; far from the origin, so that no clock starts at zero.
const BEGIN: Instant = Instant::from_millis(10_000_000);

/// For so many ticks the first manager has ruled by then.
const RULED_FOR: u32 = 12;

/// What a starting manager finds on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// What it wrote.
    Own,
    /// Nothing.
    Lost,
    /// What the other one wrote.
    Copied,
}

/// What a starting agent finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Memory,
    Nothing,
    /// Its memory; the server was booted, so that nothing is capped, and its clock begins anew.
    Reboot,
}

/// A message under way.
#[derive(Clone, Debug)]
pub(crate) enum Mail {
    Alert { from: usize, life: u64, to: usize, alert: Arc<Alert> },
    Answer { to: usize, life: u64, from: usize, seq: Seq, answer: Arc<Answer> },
}

/// What becomes of the answer to a message that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Arrives,
    Lost,
    Late,
}

#[derive(Clone, Default)]
pub(crate) struct Manager {
    pub(crate) chassis: Option<Arc<Chassis>>,
    /// It was running, and is to be started again.
    pub(crate) stopped: bool,
    /// Numbers starts, so that nobody answers a dead one.
    pub(crate) life: u64,
    pub(crate) disk: Ledger,
    pub(crate) fenced: bool,
    /// Which agents contradict it, and in the answer to which message; older answers say nothing.
    words: [(Seq, bool); 2],
    /// Since the last [`World::listen`]: whether it spoke.
    pub(crate) spoke: bool,
    digest: u64,
}

/// One server, its agent and that agent's memory.
#[derive(Clone, Default)]
pub(crate) struct Server {
    pub(crate) agent: Option<Arc<Agent>>,
    pub(crate) busy: bool,
    memory: Memory,
    boots: u32,
    booted_at: Instant,
    khz: [KiloHertz; 2],
    /// What the last agent held: its cap, and its fallback.
    pub(crate) held: (Option<Watts>, Option<Watts>),
    /// The cap that its BMC keeps.
    pub(crate) hardware: Option<Watts>,
    /// When the agent started, and the cap that it has forgotten; until it obeys somebody.
    pub(crate) before: Option<(Instant, Watts)>,
    /// Which start of a manager the agent obeyed last.
    pub(crate) obeys: Option<u64>,
    /// Since the last [`World::listen`]: whom it obeyed.
    pub(crate) obeyed: [bool; 2],
    digest: u64,
}

#[derive(Clone)]
pub struct World {
    pub(crate) now: Instant,
    pub(crate) managers: [Manager; 2],
    pub(crate) servers: [Server; 2],
    /// Arrives with the next tick.
    pub(crate) flight: Vec<Mail>,
    /// Arrives whenever it likes.
    pub(crate) late: Vec<Mail>,
    /// Which manager cannot reach which server.
    pub(crate) cut: [[bool; 2]; 2],
    /// Faults that may still come, and changes of load.
    pub(crate) left: (u8, u8),
    /// Everybody who rules has capped since then, and a lease has passed: the sum counts from here on.
    pub(crate) sum_from: Option<Instant>,
    pub(crate) broken: Option<Broken>,
    lives: u64,
    digest: u64,
}

impl World {
    /// The first manager has ruled for some seconds; the second was never started.
    pub(crate) fn ruled(busy: [bool; 2], faults: u8, loads: u8) -> Self {
        let start = BEGIN.saturating_sub(TICK * RULED_FOR);
        let booted_at = start.saturating_sub(Duration::from_secs(1000));
        let server = |busy| Server { busy, booted_at, khz: [FREE; 2], ..Server::default() };
        let mut world = Self {
            now: start,
            managers: Default::default(),
            servers: busy.map(server),
            flight: Vec::new(),
            late: Vec::new(),
            cut: [[false; 2]; 2],
            left: (faults, loads),
            sum_from: None,
            broken: None,
            lives: 0,
            digest: 0,
        };

        (0..2).for_each(|index| world.start_agent(index, Kept::Memory));

        // Not the first of its chassis, so that the loss of its ledger leads back.
        world.managers[0].disk.epoch = Epoch(5);
        world.start_manager(0, Disk::Own);
        (0..RULED_FOR).for_each(|_| world.tick());
        world.seal();

        world
    }

    /// How long faults have been possible.
    pub(crate) fn passed(&self) -> Duration {
        self.now.since(BEGIN)
    }

    // ---- time ----

    /// What is under way arrives; then half a second passes.
    pub(crate) fn tick(&mut self) {
        for mail in core::mem::take(&mut self.flight) {
            self.arrive(mail, Reply::Arrives);
        }

        let end = self.now + TICK;
        self.fire_until(end);
        self.now = end;

        for index in 0..2 {
            let server = &self.servers[index];
            let watts = server.draw(index);
            let usage = Told::Usage(plant::usage(index, server.busy));
            let taken_at = server.clock(end);
            self.tell_agent(index, Some(usage));
            self.tell_agent(index, Some(Told::Power(Reading::Sample { watts, taken_at })));
        }

        let draws = self.servers.iter().enumerate().map(|(index, server)| server.draw(index));
        let supply = Supply { state: SupplyState::Active, input: Some(plant::total(draws.sum())) };

        for manager in 0..2 {
            let poll = Poll { supplies: vec![supply], taken_at: end };
            self.tell_manager(manager, Some(Input::Psu(poll)));
        }
    }

    /// Every timer until `end`, each at its instant.
    fn fire_until(&mut self, end: Instant) {
        for _ in 0..TIMERS_PER_TICK {
            let managers = (self.managers.iter().enumerate())
                .filter_map(|(i, m)| m.chassis.as_ref()?.poll_timeout().map(|(at, _)| (at, 0, i)));
            let agents = self.servers.iter().enumerate().filter_map(|(i, s)| {
                let (at, _) = s.agent.as_ref()?.poll_timeout()?;
                Some((s.booted_at + at.since(Instant::ZERO), 1, i))
            });

            let Some((at, kind, index)) = managers.chain(agents).min().filter(|t| t.0 <= end) else {
                return;
            };
            self.now = self.now.max(at);

            if kind == 0 {
                self.tell_manager(index, None);
            } else {
                self.tell_agent(index, None);
            }
        }

        panic!("{self:?}: a timer is not let go of");
    }

    // ---- messages ----

    /// A message comes to its end.
    pub(crate) fn arrive(&mut self, mail: Mail, reply: Reply) {
        match mail {
            Mail::Alert { from, life, to, alert } => {
                let seq = alert.seq;
                let answer = self.tell_agent(to, Some(Told::Alert(Arc::unwrap_or_clone(alert))));
                if matches!(answer, Some(Answer::Report(_))) {
                    self.servers[to].obeyed[from] = true;
                    self.servers[to].obeys = Some(life);
                    self.note_rule();
                }

                let Some(answer) = answer.map(Arc::new).filter(|_| !self.cut[from][to]) else {
                    return;
                };
                let mail = Mail::Answer { to: from, life, from: to, seq, answer };

                match reply {
                    Reply::Arrives => self.arrive(mail, reply),
                    Reply::Lost => {}
                    Reply::Late => self.late.push(mail),
                }
            }
            Mail::Answer { to, life, from, seq, answer } => {
                if self.managers[to].life == life {
                    self.note_word(to, from, seq, &answer);
                    let (server, answer) = (plant::server(from), Arc::unwrap_or_clone(answer));
                    let input = Input::Answer { server, seq, answer };
                    self.tell_manager(to, Some(input));
                }
            }
        }
    }

    /// Whether an agent says that another manager rules.
    fn note_word(&mut self, manager: usize, from: usize, seq: Seq, answer: &Answer) {
        let manager = &mut self.managers[manager];
        let (own, epoch) = (manager.chassis.as_ref().map(|c| c.params().instance), manager.disk.epoch);
        let contradicts = match answer {
            Answer::Refused(Refusal { reason: RefusalReason::OtherInstance, .. }) => true,
            Answer::Refused(Refusal { newest_epoch, instance, .. }) => {
                let other = instance.is_some() && *instance != own;
                *newest_epoch > epoch || (*newest_epoch == epoch && other)
            }
            Answer::Report(_) | Answer::Nothing(_) => false,
        };
        if seq > manager.words[from].0 {
            manager.words[from] = (seq, contradicts);
        }
    }

    // ---- managers ----

    pub(crate) fn start_manager(&mut self, index: usize, disk: Disk) {
        self.lives += 1;
        let ledger = match disk {
            Disk::Own => self.managers[index].disk.clone(),
            Disk::Lost => Ledger::default(),
            Disk::Copied => self.managers[1 - index].disk.clone(),
        };
        // Drawn at random in truth: here by turns higher and lower than all before.
        let number = if self.lives % 2 == 1 { 100 + self.lives } else { 100 - self.lives };
        let chassis = Chassis::new(plant::chassis_params(number), ledger, self.now);
        let manager = &mut self.managers[index];
        manager.chassis = Some(Arc::new(chassis));
        manager.life = self.lives;
        (manager.stopped, manager.fenced, manager.words) = (false, false, Default::default());
        self.sum_from = None;
        self.tell_manager(index, None);
    }

    pub(crate) fn stop_manager(&mut self, index: usize) {
        let manager = &mut self.managers[index];
        (manager.chassis, manager.stopped, manager.digest) = (None, true, 0);
        self.note_rule();
    }

    /// Tells a manager something, or only the time.
    fn tell_manager(&mut self, index: usize, input: Option<Input>) {
        let Some(chassis) = &mut self.managers[index].chassis else { return };
        let chassis = Arc::make_mut(chassis);
        match input {
            Some(input) => chassis.handle_input(self.now, input),
            None => chassis.handle_timeout(self.now),
        }

        let outputs: Vec<_> = core::iter::from_fn(|| chassis.poll_output()).collect();

        let mut hardware = Vec::new();
        let manager = &mut self.managers[index];
        manager.digest = 0;

        for output in outputs {
            match output {
                Output::Alert { server, alert } => {
                    let to = usize::from(server == plant::server(1));

                    // By a message of epoch 0 a fenced manager only asks.
                    manager.spoke |= alert.epoch > Epoch::default();
                    let mail = Mail::Alert { from: index, life: manager.life, to, alert: Arc::new(alert) };
                    self.flight.extend(Some(mail).filter(|_| !self.cut[index][to]));
                }
                Output::Ledger(ledger) => manager.disk = ledger,
                Output::Event(event) => {
                    if let EventKind::ChassisState { to, cause, .. } = event.kind {
                        manager.fenced = to == ChassisState::Fenced;
                        let words = manager.words.iter().filter(|(_, contradicts)| *contradicts).count();
                        if manager.fenced && words < 2 {
                            let what = format!("m{index} is fenced by {words} agents: {cause}");
                            self.broken.get_or_insert(Broken { promise: LONE_WORD, what });
                        }
                    }
                }
                Output::OutOfBandCap { id, server, watts } => {
                    hardware.push((id, server, Some(watts)));
                }
                Output::OutOfBandLift { id, server } => hardware.push((id, server, None)),
            }
        }

        self.note_rule();

        for (id, server, cap) in hardware {
            self.servers[usize::from(server == plant::server(1))].hardware = cap;
            let done = Input::Applied { id, result: Ok(()) };
            self.tell_manager(index, Some(done));
        }
    }

    /// From when on the sum of caps counts: a lease after everybody who rules began to cap, or died. Who
    /// is obeyed by nobody does not rule.
    fn note_rule(&mut self) {
        let rules = |m: &&Manager| m.acts() && self.servers.iter().any(|s| s.obeys == Some(m.life));
        let mut rulers = self.managers.iter().filter(rules).filter_map(|m| m.chassis.as_ref());
        let all_cap = rulers.all(|chassis| chassis.is_capping());
        self.sum_from = self.sum_from.or(Some(self.now + LEASE)).filter(|_| all_cap);
    }

    // ---- agents ----

    pub(crate) fn start_agent(&mut self, index: usize, kept: Kept) {
        let now = self.now;
        let server = &mut self.servers[index];
        let held = server.held.0.or(server.held.1);
        let forgotten = server.before.map(|(_, cap)| cap);
        server.before = held.into_iter().chain(forgotten).min().map(|cap| (now, cap));

        match kept {
            Kept::Memory => {}
            Kept::Nothing => server.memory = Memory::default(),
            Kept::Reboot => {
                server.boots += 1;
                server.booted_at = now.saturating_sub(TICK);
                server.khz = [FREE; 2];
            }
        }

        let capped = (0..).map(ballast_types::CoreId).zip(server.khz).filter(|(_, khz)| *khz < FREE);
        let found = RecoveredState {
            memory: server.memory.clone(),
            capped: capped.collect(),
            ..RecoveredState::default()
        };
        let params = plant::agent_params(index, server.boots);
        server.agent = Some(Arc::new(Agent::new(params, found, server.clock(now))));
        self.tell_agent(index, Some(Told::Vms(plant::vms())));
    }

    /// Kills an agent; what it has set stays.
    pub(crate) fn stop_agent(&mut self, index: usize) {
        let server = &mut self.servers[index];
        (server.agent, server.obeys, server.digest) = (None, None, 0);
        self.note_rule();
    }

    /// Tells an agent something, or only the time; its answer, if it gives one.
    fn tell_agent(&mut self, index: usize, told: Option<Told>) -> Option<Answer> {
        let server = &mut self.servers[index];
        let now = server.clock(self.now);
        let agent = Arc::make_mut(server.agent.as_mut()?);

        match told {
            Some(told) => agent.handle_input(now, told),
            None => agent.handle_timeout(now),
        }

        let mut answer = None;

        while let Some(output) = agent.poll_output() {
            let action = output.action();
            match output {
                Done::SetPstate { core, khz, .. } => server.khz[usize::from(core.0)] = khz,
                Done::Lift { core, .. } => server.khz[usize::from(core.0)] = FREE,
                Done::Remember(memory) => server.memory = memory,
                Done::Report(report) => {
                    server.before = None;
                    answer = Some(Answer::Report(Box::new(report)));
                }
                Done::Refuse(refusal) => answer = Some(Answer::Refused(refusal)),
                _ => {}
            }

            if let Some(id) = action {
                agent.handle_input(now, Told::Applied { id, result: Ok(()) });
            }
        }

        server.held = (agent.cap(), agent.fallback());
        server.digest = 0;

        answer
    }

    // ---- looking at it ----

    /// From now on it is noted who speaks and who is obeyed.
    pub(crate) fn listen(&mut self) {
        self.managers.iter_mut().for_each(|m| m.spoke = false);
        self.servers.iter_mut().for_each(|s| s.obeyed = [false; 2]);
    }

    /// Whether nothing is wrong now: nobody down, nothing cut off, nothing late.
    pub(crate) fn is_whole(&self) -> bool {
        self.late.is_empty()
            && self.cut == [[false; 2]; 2]
            && self.managers.iter().all(|m| !m.stopped)
            && self.servers.iter().all(|s| s.agent.is_some())
    }

    /// Ends every fault: who is down starts, who is cut off is reached, what is late arrives.
    pub(crate) fn mend(&mut self) {
        self.cut = [[false; 2]; 2];
        for index in 0..2 {
            if self.managers[index].stopped {
                self.start_manager(index, Disk::Own);
            }
            if self.servers[index].agent.is_none() {
                self.start_agent(index, Kept::Memory);
            }
        }
        let late = core::mem::take(&mut self.late);
        late.into_iter().for_each(|mail| self.arrive(mail, Reply::Arrives));
    }

    /// Takes the digest: of machines only where they have moved.
    pub(crate) fn seal(&mut self) {
        for manager in self.managers.iter_mut().filter(|m| m.digest == 0) {
            manager.digest = digest(&manager.chassis);
        }
        for server in self.servers.iter_mut().filter(|s| s.digest == 0) {
            server.digest = digest(&server.agent);
        }
        let managers =
            (self.managers.each_ref()).map(|m| (m.digest, m.life, &m.disk, m.stopped, m.fenced, m.words));
        let servers = self.servers.each_ref().map(|s| {
            let facts = (s.digest, s.busy, &s.memory, s.boots, s.booted_at, s.khz, s.obeys);
            (facts, s.held, s.before, s.hardware)
        });
        let network = (&self.flight, &self.late, self.cut);
        let rest = (self.now, self.left, self.sum_from, self.lives, &self.broken);
        self.digest = digest(&(managers, servers, network, rest));
    }
}

impl Manager {
    /// Whether it runs, and has not been fenced.
    pub(crate) fn acts(&self) -> bool {
        self.chassis.is_some() && !self.fenced
    }
}

impl Server {
    /// What server `index` draws, if it is this one.
    fn draw(&self, index: usize) -> Watts {
        let draw = plant::draw(index, self.busy, self.khz);
        self.hardware.map_or(draw, |cap| draw.min(cap))
    }

    /// Its own clock, since its boot.
    pub(crate) fn clock(&self, now: Instant) -> Instant {
        Instant::ZERO + now.since(self.booted_at)
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// One line of a history: a cap of 0 W stands for none.
impl Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4.1} s ", self.passed().as_secs_f64())?;
        for (index, manager) in self.managers.iter().enumerate() {
            let Some(chassis) = &manager.chassis else {
                write!(f, "| m{index} down ")?;
                continue;
            };

            let status = chassis.status(self.now);
            write!(f, "| m{index} epoch {} {:?} ", status.epoch, status.state)?;

            for (server, (_, refused)) in status.servers.iter().zip(manager.words) {
                let refused = if refused { " refuses" } else { "" };
                write!(f, "{}:{:?}{refused} ", server.server, server.slot)?;
            }
        }

        for (index, server) in self.servers.iter().enumerate() {
            let load = if server.busy { "busy" } else { "calm" };
            let down = if server.agent.is_some() { "" } else { " down" };
            let caps = [server.held.0, server.held.1, server.hardware].map(Option::unwrap_or_default);
            let [cap, fallback, hardware] = caps.map(Watts::as_f64);
            let (name, epoch) = (plant::server(index), server.memory.epoch);
            write!(f, "| {name} {load}{down} epoch {epoch} cap {cap:.0} fallback {fallback:.0} ")?;
            write!(f, "hardware {hardware:.0} ")?;
        }

        write!(f, "| under way: ")?;
        self.flight.iter().try_for_each(|mail| write!(f, "{mail}, "))?;
        write!(f, "late: ")?;

        self.late.iter().try_for_each(|mail| write!(f, "{mail}, "))
    }
}

impl fmt::Display for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alert { from, to, alert, .. } => {
                let Alert { epoch, seq, cap_w, .. } = &**alert;
                let cap = cap_w.unwrap_or_default().as_f64();
                write!(f, "m{from}→{} {epoch}/{seq} cap {cap:.0}", plant::server(*to))
            }
            Self::Answer { to, from, seq, answer, .. } => {
                let report = matches!(**answer, Answer::Report(_));
                let kind = if report { "report" } else { "refusal" };
                write!(f, "{}→m{to} {kind} to {seq}", plant::server(*from))
            }
        }
    }
}
