//! The very same controllers, around the plant, in virtual time.
//!
//! ```text
//!               ┌────────── queue of events, by instant and order ──────────┐
//!               ▼                                                           │
//!   poll ▶ chassis ──Alert──▶ network ──▶ agents ──p-states──▶ actuators ──▶ plant
//!               ▲                 │         ▲                               │
//!               └─────Answer──────┘         └────────────meter──────────────┘
//! ```
//! A run is its [`Scenario`]: the same one gives the same outputs at the same instants, to the bit. Faults
//! come from a plan; what must hold is watched at every step of the plant, and a broken promise ends the
//! run with the seed that shows it again. Every machine has a clock of its own, so that a controller that
//! compared two clocks would be found out.

mod bmcs;
mod breaker;
mod chance;
pub(crate) mod checks;
mod conservation;
mod environment;
mod event;
pub(crate) mod faults;
mod fixed;
mod hash;
mod host;
mod inversion;
pub(crate) mod kills;
mod limit;
mod managers;
mod mean;
mod network;
mod observer;
mod outcome;
mod queue;
mod shells;
mod sum;
mod tally;
mod tape;
pub(crate) mod timing;

use core::time::Duration;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::{BootId, Instance, Instant, Machine, Supply, SupplyState as Shown, VmId, Watts, turn};

pub use checks::{Checks, Excuse, Promise, Violation};
pub use faults::{Disorder, Extent, Fault, FaultPlan, ManagerFault, MeterFault, Rewind, Rogue, Window};
pub use hash::OutputHash;
pub use kills::{Kill, Victim};
pub use outcome::{Outcome, Restrictions};
pub use tally::Bucket;
pub use tape::{AgentTape, ChassisTape, Tape, TapedInstance};
pub use timing::Timing;

use crate::plant::SupplyState;
use crate::scenario::{Controller, Scenario};
pub(crate) use chance::Chance;
use environment::Environment;
use event::{Envelope, Event};
use fixed::FixedCap;
use host::biased;
use managers::MANAGERS;
use shells::{AgentShell, ChassisShell};
use sum::Sharing;

/// More turns than this at one instant are a machine that does not let go of its timer.
const TURNS_AT_ONCE: u32 = 10_000;

/// A chassis, its controllers, and virtual time.
#[derive(Debug)]
pub struct World {
    seed: u64,
    environment: Environment,
    agents: Vec<Option<agent::Agent>>,
    /// The chassis manager; a second one while a fault makes it run.
    chassis: Vec<Option<chassis::Chassis>>,
    agent_params: Vec<agent::Params>,
    chassis_params: chassis::Params,
    tuning: chassis::Tuning,
    agent_tuning: Option<agent::Tuning>,
    fixed_cap: Option<FixedCap>,
    /// When each agent, and then each chassis manager, wants to be woken, in the world's time.
    wake: Vec<Instant>,
    /// In the same order: what has come in for a process that stands still; `None` while it runs.
    stalled: Vec<Option<Vec<Incoming>>>,
    turns_at_once: u32,
}

/// What waits for a process that stands still.
#[derive(Debug)]
enum Incoming {
    Agent(agent::Input, Option<Envelope>),
    Chassis(chassis::Input),
}

/// So many polls lie between two looks at the BMCs' caps: 10 s at 200 ms.
const POLLS_A_LOOK: u64 = 50;

/// No wake-up.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl World {
    /// Everything at instant zero, about to start. Agents without a server are left out.
    pub fn new(scenario: Scenario) -> Self {
        let servers = scenario.plant.servers.len().min(scenario.agents.len());
        let mut environment = Environment::new(&scenario, servers);
        environment.schedule(&scenario, servers);

        let Scenario { seed, controller, chassis, tuning, agent_tuning, agents, .. } = scenario;
        let fixed_cap = match controller {
            Controller::FixedCap { watts } => Some(FixedCap::new(chassis.chassis_id.clone(), watts, servers)),
            Controller::Manager | Controller::Baseline(_) => None,
        };

        let mut world = Self {
            seed,
            environment,
            agents: (0..servers).map(|_| None).collect(),
            chassis: (0..MANAGERS).map(|_| None).collect(),
            agent_params: agents,
            fixed_cap,
            agent_tuning,
            tuning: tuning.unwrap_or_default(),
            chassis_params: chassis,
            wake: vec![NEVER; servers + MANAGERS],
            stalled: (0..servers + MANAGERS).map(|_| None).collect(),
            turns_at_once: 0,
        };

        for server in 0..servers {
            world.start_agent(server);
        }
        world.environment.queue.put(Instant::ZERO, Event::Start);
        world.poll_from(0, Instant::from_millis(50));

        world
    }

    /// Runs until `to`.
    pub fn run(&mut self, to: Instant) -> Result<(), Violation> {
        loop {
            let (machine, wake) = self.next_wake();
            let event = self.environment.queue.next_at().unwrap_or(NEVER);
            let at = wake.min(event);

            if at > to {
                break;
            }
            self.go_to(at);

            // A due timer fires before a waiting input.
            if wake <= event {
                self.turn(machine);
            } else if let Some((_, event)) = self.environment.queue.take() {
                self.handle(event);
            }

            self.broken()?;
        }

        self.go_to(to);
        self.broken()
    }

    /// An operator lowers the budget; `None` goes back to the configured one. Nobody hears it while the
    /// chassis manager is down.
    pub fn set_budget(&mut self, budget: Option<Watts>) {
        self.tell_chassis(0, chassis::Input::Budget(budget));
    }

    /// Every agent is told to stop, as at the end of a day: it puts everything back.
    pub fn stop_agents(&mut self) {
        // Who stops is ruled by nobody any more.
        self.environment.observer.checks.conservation = false;
        for server in 0..self.agents.len() {
            self.tell_agent(server, agent::Input::Leave, None);
        }
    }

    fn broken(&mut self) -> Result<(), Violation> {
        self.environment.observer.violation.take().map_or(Ok(()), Err)
    }

    fn go_to(&mut self, at: Instant) {
        if at > self.environment.now {
            self.turns_at_once = 0;
            self.environment.advance(at);
        } else {
            self.turns_at_once += 1;
            if self.turns_at_once > TURNS_AT_ONCE {
                let what = "a machine does not let go of its timer".into();
                self.environment.violated(Promise::Protocol, what);
            }
        }
    }

    /// The machine that wants to be woken first, and when.
    fn next_wake(&self) -> (usize, Instant) {
        let mut first = (0, NEVER);
        for (machine, at) in self.wake.iter().enumerate() {
            if *at < first.1 {
                first = (machine, *at);
            }
        }
        first
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start => self.start_chassis(0),
            Event::Poll { manager, instance } => self.poll_due(manager, instance),
            Event::Quiet => self.environment.observer.quiet_begins(),
            Event::Stop => self.stop_agents(),
            Event::Budget(budget) => {
                self.environment.observer.changed();
                self.set_budget(budget);
            }
            Event::Sample(server) => self.sample(server),
            Event::Usage(server) => {
                self.again(self.environment.timing.usage_period, Event::Usage(server));
                if self.samples(server) {
                    let usage = self.usage(server);
                    self.tell_agent(server, agent::Input::Usage(usage), None);
                }
            }
            Event::Alert(message, alert) => self.deliver(message, *alert),
            Event::Answer { answer, server, .. } if self.fixed_cap.is_some() => {
                if let (Some(fixed), chassis::Answer::Report(report)) = (&mut self.fixed_cap, *answer) {
                    fixed.heard(server, *report);
                }
            }
            Event::Answer { to, server, seq, answer } => {
                if to == self.environment.sender(to.manager) {
                    let server = self.environment.hosts[server].id.clone();
                    let input = chassis::Input::Answer { server, seq, answer: *answer };
                    self.tell_chassis(to.manager, input);
                }
            }
            Event::Act { server, instance, .. } if self.environment.hosts[server].cut == Some(instance) => {}
            Event::Act { server, instance, id, action } => {
                let result = self.environment.act(server, action);
                if instance == self.environment.hosts[server].instance {
                    self.tell_agent(server, agent::Input::Applied { id, result }, None);
                }
            }
            Event::Slot { from, id, server, watts } => {
                let result = self.environment.slot(server, watts);
                if from == self.environment.sender(from.manager) {
                    self.tell_chassis(from.manager, chassis::Input::Applied { id, result });
                }
            }
            Event::Gone(server, vm) => self.gone(server, &vm),
            Event::Begin(fault) => {
                self.environment.observer.changed();
                self.begin(fault);
            }
            Event::Kill(kill) => self.environment.kills.add(kill),
            Event::End(fault) => {
                self.environment.observer.changed();
                self.end(fault);
            }
        }
    }

    fn sample(&mut self, server: usize) {
        self.again(self.agent_params[server].sample_period, Event::Sample(server));
        if self.samples(server) {
            let meter = self.environment.plant.server_meter(self.environment.active.meter_of(server));
            let fault = self.environment.active.meter(server);
            let reading = self.environment.hosts[server].read(meter, fault);
            self.tell_agent(server, agent::Input::Power(reading), None);
        }
    }

    fn gone(&mut self, server: usize, vm: &VmId) {
        let host = &mut self.environment.hosts[server];
        host.reap(vm);
        let vms = host.there();
        self.tell_agent(server, agent::Input::Vms(vms), None);
    }

    fn again(&mut self, period: Duration, event: Event) {
        let at = self.environment.now + period.max(Duration::from_millis(1));
        self.environment.queue.put(at, event);
    }

    /// Whether an agent's samplers run: they are threads of its process.
    fn samples(&self, server: usize) -> bool {
        self.agents[server].is_some() && self.stalled[server].is_none()
    }

    fn number(&self, manager: usize) -> usize {
        self.agents.len() + manager
    }

    fn begin(&mut self, fault: Fault) {
        self.environment.active.begin(fault);
        match fault {
            Fault::AgentDown(server) | Fault::Memory(server, _) => self.kill_agent(server),
            Fault::Reboot(server) => {
                self.kill_agent(server);
                self.environment.power_down(server);
            }
            Fault::AgentStalls(server) => {
                // What stands still lets no lease end, and obeys nothing.
                self.environment.observer.sum.agent_dies(server);
                self.stall(server);
            }
            Fault::ChassisDown | Fault::Ledger(_) => self.kill_chassis(0),
            Fault::ChassisStalls => {
                let number = self.number(0);
                self.stall(number);
                self.note_shares(number);
            }
            Fault::SecondManager { copied } => self.start_second(copied),
            Fault::FeedLoss(supply) => self.environment.lose_supply(supply, true),
            Fault::SupplyStuck(supply) => {
                let shown = self.environment.plant.supply_meter(supply).input;
                self.environment.stuck[supply] = Some(shown);
            }
            Fault::BmcForgets(server) => self.environment.keep_slot(server, None),
            _ => {}
        }
    }

    fn end(&mut self, fault: Fault) {
        if !self.environment.active.end(self.environment.now, fault) {
            return;
        }
        match fault {
            Fault::AgentDown(server) => self.start_agent(server),
            Fault::Memory(server, rewind) => {
                let host = &mut self.environment.hosts[server];
                host.memory = match rewind {
                    Rewind::Lost => agent::Memory::default(),
                    Rewind::Old => host.first_memory.clone(),
                };

                self.start_agent(server);
            }
            Fault::Reboot(server) => {
                self.environment.plant.keep_busy(server, None);
                let boot = format!("boot-{}", self.environment.hosts[server].boots);
                if let Ok(boot_id) = BootId::new(&boot) {
                    self.agent_params[server].boot_id = boot_id;
                }
                self.start_agent(server);
            }
            Fault::AgentStalls(server) => {
                // It may have been killed meanwhile.
                if self.agents[server].is_some() {
                    self.environment.observer.sum.agent_starts(self.environment.now, server);
                }
                self.resume(server);
            }
            Fault::ChassisDown => self.start_chassis(0),
            Fault::Ledger(rewind) => {
                let manager = &mut self.environment.managers[0];
                manager.ledger = match rewind {
                    Rewind::Lost => chassis::Ledger::default(),
                    Rewind::Old => manager.first_ledger.clone().unwrap_or_default(),
                };

                self.start_chassis(0);
            }
            Fault::ChassisStalls => self.resume(self.number(0)),
            Fault::SecondManager { .. } => self.kill_chassis(1),
            Fault::FeedLoss(supply) => self.environment.lose_supply(supply, false),
            Fault::SupplyStuck(supply) => self.environment.stuck[supply] = None,
            _ => {}
        }
    }

    fn kill_agent(&mut self, server: usize) {
        self.agents[server] = None;
        self.environment.observer.sum.agent_dies(server);
        self.environment.hosts[server].instance += 1;
        self.wake[server] = NEVER;
        // Who waits for an answer finds a closed connection.
        for incoming in self.stalled[server].iter_mut().flat_map(core::mem::take) {
            if let Incoming::Agent(_, Some(message)) = incoming {
                self.environment.refused(message);
            }
        }
    }

    fn start_agent(&mut self, server: usize) {
        if self.environment.active.holds_down(server) {
            return;
        }
        let host = &mut self.environment.hosts[server];
        let (params, found) = (self.agent_params[server].clone(), host.found());
        let at = self.environment.now + host.ahead;
        if let Some(tape) = &mut host.tape {
            tape.start("agent", at, params.clone(), found.clone());
        }
        let vms = host.there();
        let tuning = self.agent_tuning.unwrap_or_default();
        self.agents[server] = Some(agent::Agent::tuned(params, tuning, found, at));
        self.environment.observer.sum.agent_starts(self.environment.now, server);
        // What it remembers holds even if it stands still from its first moment.
        self.note_shares(server);
        self.tell_agent(server, agent::Input::Vms(vms), None);
    }

    fn kill_chassis(&mut self, manager: usize) {
        self.chassis[manager] = None;
        if manager == 0 {
            self.environment.observer.sum.manager_dies(self.environment.now);
        }
        self.environment.managers[manager].instance += 1;
        let number = self.number(manager);
        self.stalled[number].iter_mut().for_each(Vec::clear);
        self.rest(number);
    }

    fn start_chassis(&mut self, manager: usize) {
        let held_down = manager == 0 && self.environment.active.holds_chassis_down();
        if self.fixed_cap.is_some() || held_down {
            return;
        }
        let surroundings = &mut self.environment.managers[manager];
        let (mut params, ledger) = (self.chassis_params.clone(), surroundings.ledger.clone());

        // A daemon draws it at every start.
        let start = u64::from(surroundings.instance) * MANAGERS as u64 + manager as u64;
        params.instance = Instance(Chance::new(self.seed, 0x1D0 + start).below(1 << 53));
        let at = self.environment.now + surroundings.ahead;
        surroundings.found = ledger.clone();

        if let Some(tape) = &mut surroundings.tape {
            tape.start("chassis", at, params.clone(), ledger.clone());
        }
        if manager == 0 {
            self.environment.budget_is(ledger.budget_w);
            self.environment.observer.sum.manager_starts();
        }

        self.chassis[manager] = Some(chassis::Chassis::tuned(params, self.tuning.clone(), ledger, at));
        self.rest(self.number(manager));
    }

    /// Somebody starts a second manager: without a ledger, or with a copy of what the first one found at
    /// its start.
    fn start_second(&mut self, copied: bool) {
        let copy = self.environment.managers[0].found.clone();
        self.environment.managers[1].ledger = if copied { copy } else { chassis::Ledger::default() };
        self.start_chassis(1);
        self.poll_from(1, self.environment.now + Duration::from_millis(30));
    }

    /// A process stands still: what comes in waits.
    fn stall(&mut self, machine: usize) {
        self.stalled[machine].get_or_insert_default();
        self.wake[machine] = NEVER;
    }

    /// A process goes on, with everything that came in meanwhile.
    fn resume(&mut self, machine: usize) {
        let waiting = self.stalled[machine].take().unwrap_or_default();
        for incoming in waiting {
            match incoming {
                Incoming::Agent(input, message) => self.tell_agent(machine, input, message),
                Incoming::Chassis(input) => self.tell_chassis(machine - self.agents.len(), input),
            }
        }
        self.rest(machine);
    }

    fn poll_from(&mut self, manager: usize, at: Instant) {
        // The first manager is polled through all of its starts.
        let instance = if manager == 0 { 0 } else { self.environment.managers[manager].instance };
        self.environment.queue.put(at, Event::Poll { manager, instance });
    }

    fn poll_due(&mut self, manager: usize, instance: u32) {
        if manager > 0 && self.environment.managers[manager].instance != instance {
            return;
        }
        self.again(self.chassis_params.poll_period, Event::Poll { manager, instance });
        if let Some(fixed) = &mut self.fixed_cap {
            for (server, alert) in fixed.round() {
                self.environment.send(manager, server, alert);
            }
        } else if self.chassis[manager].is_some() && self.stalled[self.number(manager)].is_none() {
            self.environment.managers[manager].polls += 1;
            let poll = self.poll(manager);
            self.tell_chassis(manager, chassis::Input::Psu(poll));
            if self.environment.managers[manager].polls.is_multiple_of(POLLS_A_LOOK) {
                self.look_at_caps(manager);
            }
        }
    }

    /// A manager's daemon asks every BMC for its cap.
    fn look_at_caps(&mut self, manager: usize) {
        for server in 0..self.agent_params.len() {
            if let Some(cap) = self.environment.slot_cap(server) {
                let server = self.agent_params[server].server.clone();
                self.tell_chassis(manager, chassis::Input::RecoveredCap { server, cap });
            }
        }
    }

    /// One poll of every supply, as a manager's daemon sees them.
    fn poll(&self, manager: usize) -> chassis::Poll {
        let Environment { plant, active, stuck, managers, .. } = &self.environment;
        let bias_ppm = active.supply_bias_ppm();
        let mut taken_at = Instant::ZERO;

        // A daemon reads the supplies that its config lists.
        let listed = plant.spec().supplies.len().min(self.chassis_params.supply_rated.len());
        let supplies = (0..listed)
            .map(|n| {
                if active.has(Fault::SupplyUnreadable(n)) {
                    return Supply::UNKNOWN;
                }
                let meter = plant.supply_meter(n);
                taken_at = taken_at.max(meter.refreshed_at);
                let state = match meter.state {
                    SupplyState::Active => Shown::Active,
                    SupplyState::Standby => Shown::Standby,
                    SupplyState::Failed => Shown::Failed,
                };

                let input = stuck[n].unwrap_or(meter.input);
                Supply { state, input: Some(biased(input, bias_ppm)) }
            })
            .collect();
        chassis::Poll { supplies, taken_at: taken_at + managers[manager].ahead }
    }

    fn usage(&mut self, server: usize) -> Vec<agent::VmUsage> {
        let Environment { plant, hosts, .. } = &mut self.environment;
        let host = &mut hosts[server];
        (0..host.vms.len())
            .map(|n| {
                let vm = host.vms[n].id.clone();
                let stops = plant.vm_stops(server, &vm).stopped_periods;
                let throttled = host.stopped(n, stops);
                agent::VmUsage { vm, utilisation: plant.vm_utilisation(server, n), throttled }
            })
            .collect()
    }

    fn deliver(&mut self, message: Envelope, alert: ballast_types::wire::Alert) {
        if self.environment.active.has(Fault::Partition(message.server)) {
            self.environment.unanswered(message);
        } else if self.agents[message.server].is_none() {
            self.environment.refused(message);
        } else {
            self.tell_agent(message.server, agent::Input::Alert(alert), Some(message));
        }
    }

    fn tell_agent(&mut self, server: usize, input: agent::Input, message: Option<Envelope>) {
        if let (Some(_), Some(waiting)) = (&self.agents[server], &mut self.stalled[server]) {
            return waiting.push(Incoming::Agent(input, message));
        }
        if let Some(agent) = &mut self.agents[server] {
            let mut shell =
                AgentShell { environment: &mut self.environment, server, input: Some(input), message };

            let mut turns = 0;
            while shell.input.is_some() && turns < TURNS_AT_ONCE {
                turn(agent, &mut shell);
                turns += 1;
            }

            let (message, is_unanswered) = (shell.message, shell.message.is_some() || shell.input.is_some());
            if self.environment.kills.has_killed(Victim::Agent(server)) {
                message.into_iter().for_each(|message| self.environment.refused(message));
            } else if is_unanswered {
                let what = "an agent did not answer".into();
                self.environment.violated(Promise::Protocol, what);
            }
        }

        self.remove_dead(Victim::Agent(server));
        self.rest(server);
    }

    fn tell_chassis(&mut self, manager: usize, input: chassis::Input) {
        let number = self.number(manager);
        if let (Some(_), Some(waiting)) = (&self.chassis[manager], &mut self.stalled[number]) {
            return waiting.push(Incoming::Chassis(input));
        }
        if let Some(chassis) = &mut self.chassis[manager] {
            let mut shell = ChassisShell { environment: &mut self.environment, manager, input: Some(input) };
            let mut turns = 0;
            while shell.input.is_some() && turns < TURNS_AT_ONCE {
                turn(chassis, &mut shell);
                turns += 1;
            }

            if shell.input.is_some() {
                let what = "the chassis manager does not take its input".into();
                self.environment.violated(Promise::Protocol, what);
            }
        }

        self.remove_dead(Victim::Manager);
        self.rest(number);
    }

    /// One turn of a machine whose timer is due.
    fn turn(&mut self, machine: usize) {
        let environment = &mut self.environment;
        let servers = self.agents.len();
        if machine >= servers {
            let manager = machine - servers;
            if let Some(chassis) = &mut self.chassis[manager] {
                turn(chassis, &mut ChassisShell { environment, manager, input: None });
            }
        } else if let Some(agent) = &mut self.agents[machine] {
            turn(agent, &mut AgentShell { environment, server: machine, input: None, message: None });
        }
        self.remove_dead(if machine >= servers { Victim::Manager } else { Victim::Agent(machine) });
        self.rest(machine);
    }

    /// A process that a kill has hit in the middle of its effects is gone.
    fn remove_dead(&mut self, victim: Victim) {
        if let Some(absence) = self.environment.remove_dead(victim) {
            // What it has sent counts, and what that was shared from.
            if victim == Victim::Manager {
                self.note_shares(self.number(0));
            }
            self.environment.observer.changed();
            self.begin(absence);
        }
    }

    /// Notes what a machine says of shares. The sum rule watches the manager that rules, and nobody while
    /// two believe that they do. One that stands still does not rule.
    fn note_shares(&mut self, machine: usize) {
        if !self.environment.observer.checks.sum_of_caps {
            return;
        }
        let (now, sum) = (self.environment.now, &mut self.environment.observer.sum);
        if let Some(Some(agent)) = self.agents.get(machine) {
            self.environment.hosts[machine].leased = agent.is_leased();
            return self.environment.observer.sum.agent(machine, agent.cap(), agent.fallback());
        }

        let first = self.agents.len();
        let moves = |manager: usize| self.stalled[first + manager].is_none();
        let managers = self.chassis.iter().enumerate().filter(|&(manager, _)| moves(manager));
        let managers = managers.filter_map(|(_, chassis)| chassis.as_ref());
        let mut rulers = managers.filter(|chassis| !chassis.is_fenced());

        match (rulers.next(), rulers.next()) {
            (Some(_), Some(_)) => sum.manager_starts(),
            (Some(ruler), None) => {
                let answers = ruler.answering().collect();
                let (sharable, caps) = (ruler.sharable(), ruler.is_capping());
                sum.manager(now, Sharing { sharable, caps, answers });
            }
            (None, _) => sum.manager_dies(now),
        }
    }

    /// Notes when a machine wants to be woken.
    fn rest(&mut self, machine: usize) {
        if self.stalled[machine].is_some() {
            self.wake[machine] = NEVER;
            return;
        }

        self.note_shares(machine);

        // A fenced manager judges no budget, and takes none back: an operator's lower one ends with its rule.
        if self.chassis[0].as_ref().is_some_and(chassis::Chassis::is_fenced) {
            self.environment.budget_is(None);
        }
        let due = match self.agents.get(machine) {
            Some(agent) => {
                let due = agent.as_ref().and_then(Machine::poll_timeout);
                due.map(|(at, _)| at.saturating_sub(self.environment.hosts[machine].ahead))
            }
            None => {
                let manager = machine - self.agents.len();
                let due = self.chassis[manager].as_ref().and_then(Machine::poll_timeout);
                due.map(|(at, _)| at.saturating_sub(self.environment.managers[manager].ahead))
            }
        };

        self.wake[machine] = due.map_or(NEVER, |at| at.max(self.environment.now));
    }
}
