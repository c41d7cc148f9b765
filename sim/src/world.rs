//! The very same controllers, around the plant, in virtual time.
//!
//! ```text
//!               ┌────────── queue of events, by instant and order ──────────┐
//!               ▼                                                           │
//!   poll ▶ chassis ──Alert──▶ network ──▶ agents ──p-states──▶ actuators ──▶ plant
//!               ▲                 │         ▲                               │
//!               └─────Answer──────┘         └────────────meter──────────────┘
//! ```
//! A run is its [`Setup`]: the same one gives the same outputs at the same instants, to the bit. Faults
//! come from a plan; what must hold is watched at every step of the plant, and a broken promise ends the
//! run with the seed that shows it again. Every machine has a clock of its own, so that a controller that
//! compared two clocks would be found out.

mod around;
mod breaker;
mod chance;
mod checks;
mod faults;
mod fixed;
mod hash;
mod host;
mod hunt;
mod outcome;
mod queue;
mod setup;
mod shells;
mod sum;
mod tally;
mod tape;

use core::time::Duration;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::{Instant, Machine, Supply, SupplyState as Told, Watts, turn};

pub use breaker::{TripCurve, TripFraction};
pub use checks::{Checks, Violation};
pub use faults::{Disorder, Extent, Fault, FaultPlan, MeterFault, Window};
pub use hash::OutputHash;
pub use hunt::Hunt;
pub use outcome::{Outcome, Restrictions};
pub use setup::{Setup, Timing};
pub use tally::Bucket;
pub use tape::{Life, Tape};

use crate::plant::{Plant, SupplyState};
use around::{Around, Envelope, Event};
use chance::Chance;
use fixed::FixedCap;
use host::{Host, Reader};
use shells::{AgentShell, ChassisShell};
use sum::{Sharing, SumRule};
use tally::Tally;

/// The tape of an agent.
pub type AgentTape = Tape<agent::Params, agent::Found, agent::Input, agent::Output>;
/// The tape of a chassis manager.
pub type ChassisTape = Tape<chassis::Params, chassis::Ledger, chassis::Input, chassis::Output>;

/// More turns than this at one instant are a machine that does not let go of its timer.
const TURNS_AT_ONCE: u32 = 10_000;

/// A chassis, its controllers, and virtual time.
#[derive(Debug)]
pub struct World {
    around: Around,
    agents: Vec<Option<agent::Agent>>,
    chassis: Option<chassis::Chassis>,
    agent_params: Vec<agent::Params>,
    chassis_params: chassis::Params,
    fixed_cap: Option<FixedCap>,
    /// When each agent, and last the chassis manager, wants to be woken, in the world's time.
    wake: Vec<Instant>,
    turns_at_once: u32,
}

/// No wake-up.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl World {
    /// Everything at instant zero, about to start. Agents without a server are left out.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let Setup { seed, plant, chassis, fixed_cap, agents, timing, faults, .. } = setup;
        let Setup { checks, record, length, points, .. } = setup;
        let mut clocks = Chance::new(seed, 0xC1);
        let mut hosts: Vec<_> = (plant.servers.iter())
            .map(|s| {
                Host::new(s, clocks.span(Duration::from_secs(100_000)), record.then(Tape::default))
            })
            .collect();
        let servers = hosts.len().min(agents.len());
        for (host, agent) in hosts.iter_mut().zip(&agents) {
            host.dry = agent.dry_run.is_some();
        }
        let tally = Tally::new(length, points);
        let plant = Plant::new(plant, seed);
        let trip = chassis.trip_time;
        let sum = SumRule::new(servers, chassis.lease);
        let mut around = Around::new(seed, plant, hosts, timing, checks, trip, sum, tally, record);
        for window in &faults.windows {
            around.queue.put(window.from, Event::Begin(window.fault));
            around.queue.put(window.to, Event::End(window.fault));
        }
        for (server, agent) in agents.iter().enumerate().take(servers) {
            // Agents do not sample in step.
            let share = |period: Duration| period * server as u32 / servers as u32;
            let at = Instant::ZERO + Duration::from_millis(7);
            around.queue.put(at + share(agent.sample_period), Event::Sample(server));
            around.queue.put(at + share(timing.usage_period), Event::Usage(server));
            if agent.policy == agent::Policy::Predictive {
                around.queue.put(at + share(agent.fast_period), Event::Fast(server));
            }
        }
        around.queue.put(Instant::from_millis(50), Event::Poll);
        let mut world = Self {
            around,
            agents: (0..servers).map(|_| None).collect(),
            chassis: None,
            agent_params: agents,
            fixed_cap: fixed_cap
                .map(|watts| FixedCap::new(chassis.chassis_id.clone(), watts, servers)),
            chassis_params: chassis,
            wake: vec![NEVER; servers + 1],
            turns_at_once: 0,
        };
        for server in 0..servers {
            world.start_agent(server);
        }
        world.around.queue.put(Instant::ZERO, Event::Start);
        world
    }

    /// Runs until `to`.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(&mut self, to: Instant) -> Result<(), Violation> {
        loop {
            let (machine, wake) = self.next_wake();
            let event = self.around.queue.next_at().unwrap_or(NEVER);
            let at = wake.min(event);
            if at > to {
                break;
            }
            self.go_to(at);
            // A due timer fires before a waiting input.
            if wake <= event {
                self.turn(machine);
            } else if let Some((_, event)) = self.around.queue.take() {
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
        self.tell_chassis(chassis::Input::Budget(budget));
    }

    fn broken(&mut self) -> Result<(), Violation> {
        self.around.violation.take().map_or(Ok(()), Err)
    }

    fn go_to(&mut self, at: Instant) {
        if at > self.around.now {
            self.turns_at_once = 0;
            self.around.advance(at);
        } else {
            self.turns_at_once += 1;
            if self.turns_at_once > TURNS_AT_ONCE {
                self.around.violated("a machine does not let go of its timer".into());
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
            Event::Start if self.fixed_cap.is_some() => {}
            Event::Start if self.around.active.has(Fault::ChassisDown) => {}
            Event::Start => self.start_chassis(),
            Event::Poll => {
                self.again(self.chassis_params.poll_period, Event::Poll);
                if let Some(fixed) = &mut self.fixed_cap {
                    for (server, alert) in fixed.round() {
                        self.around.send(server, alert);
                    }
                } else if self.chassis.is_some() {
                    self.around.polls += 1;
                    let poll = self.poll();
                    self.tell_chassis(chassis::Input::Psu(poll));
                }
            }
            Event::Sample(server) => {
                self.again(self.agent_params[server].sample_period, Event::Sample(server));
                if self.agents[server].is_some() {
                    let meter = self.around.plant.server_meter(server);
                    let fault = self.around.active.meter(server);
                    let reading = self.around.hosts[server].read(meter, fault);
                    self.tell_agent(server, agent::Input::Power(reading), None);
                }
            }
            Event::Fast(server) => {
                self.again(self.agent_params[server].fast_period, Event::Fast(server));
                if self.agents[server].is_some()
                    && let Some(fast) = self.around.fast(server)
                {
                    self.tell_agent(server, agent::Input::Fast(fast), None);
                }
            }
            Event::Usage(server) => {
                self.again(self.around.timing.usage_period, Event::Usage(server));
                if self.agents[server].is_some() {
                    let usage = self.usage(server);
                    self.tell_agent(server, agent::Input::Usage(usage), None);
                }
            }
            Event::Alert(letter, alert) => self.deliver(letter, *alert),
            Event::Answer { to, server, seq, answer } => {
                if let (Some(fixed), chassis::Answer::Report(report)) =
                    (&mut self.fixed_cap, &*answer)
                {
                    fixed.heard(server, &report.boot_id, report.agent_ms);
                } else if to == self.around.manager.life {
                    let server = self.around.hosts[server].id.clone();
                    self.tell_chassis(chassis::Input::Answer { server, seq, answer: *answer });
                }
            }
            Event::Act { server, life, id, action } => {
                let result = self.around.act(server, action);
                if life == self.around.hosts[server].life {
                    self.tell_agent(server, agent::Input::Applied { id, result }, None);
                }
            }
            Event::Slot { life, id, server, watts } => {
                let result = self.around.slot(server, watts);
                if life == self.around.manager.life {
                    self.tell_chassis(chassis::Input::Applied { id, result });
                }
            }
            Event::Gone(server, vm) => {
                let host = &mut self.around.hosts[server];
                host.bury(&vm);
                let vms = host.there();
                self.tell_agent(server, agent::Input::Vms(vms), None);
            }
            Event::Begin(fault) => self.begin(fault),
            Event::End(fault) => self.end(fault),
        }
    }

    fn again(&mut self, period: Duration, event: Event) {
        let at = self.around.now + period.max(Duration::from_millis(1));
        self.around.queue.put(at, event);
    }

    fn begin(&mut self, fault: Fault) {
        self.around.active.begin(fault);
        match fault {
            Fault::AgentDown(server) => {
                self.agents[server] = None;
                self.around.sum.agent_dies(server);
                self.around.hosts[server].life += 1;
                self.wake[server] = NEVER;
            }
            Fault::ChassisDown => {
                self.chassis = None;
                self.around.sum.manager_dies(self.around.now);
                self.around.manager.life += 1;
                self.rest(self.agents.len());
            }
            Fault::FeedLoss(supply) => self.around.lose_supply(supply, true),
            _ => {}
        }
    }

    fn end(&mut self, fault: Fault) {
        if !self.around.active.end(fault) {
            return;
        }
        match fault {
            Fault::AgentDown(server) => self.start_agent(server),
            Fault::ChassisDown if self.fixed_cap.is_none() => self.start_chassis(),
            Fault::FeedLoss(supply) => self.around.lose_supply(supply, false),
            _ => {}
        }
    }

    fn start_agent(&mut self, server: usize) {
        let host = &mut self.around.hosts[server];
        let (params, found) = (self.agent_params[server].clone(), host.found());
        let at = self.around.now + host.ahead;
        if let Some(tape) = &mut host.tape {
            tape.start("agent", at, params.clone(), found.clone());
        }
        let vms = host.there();
        self.agents[server] = Some(agent::Agent::new(params, found, at));
        self.around.sum.agent_starts(self.around.now, server);
        self.tell_agent(server, agent::Input::Vms(vms), None);
    }

    fn start_chassis(&mut self) {
        let manager = &mut self.around.manager;
        let (params, ledger) = (self.chassis_params.clone(), manager.ledger.clone());
        let at = self.around.now + manager.ahead;
        if let Some(tape) = &mut manager.tape {
            tape.start("chassis", at, params.clone(), ledger.clone());
        }
        self.chassis = Some(chassis::Chassis::new(params, ledger, at));
        self.around.sum.manager_starts();
        self.rest(self.agents.len());
    }

    /// One poll of every supply, as the daemon sees them.
    fn poll(&self) -> chassis::Poll {
        let count = self.around.plant.spec().supplies.len();
        let mut taken_at = Instant::ZERO;
        let supplies = (0..count)
            .map(|n| {
                if self.around.active.has(Fault::SupplyUnreadable(n)) {
                    return Supply::UNKNOWN;
                }
                let meter = self.around.plant.supply_meter(n);
                taken_at = taken_at.max(meter.refreshed_at);
                let state = match meter.state {
                    SupplyState::Active => Told::Active,
                    SupplyState::Standby => Told::Standby,
                    SupplyState::Failed => Told::Failed,
                };
                Supply { state, input: Some(meter.input) }
            })
            .collect();
        chassis::Poll { supplies, taken_at: taken_at + self.around.manager.ahead }
    }

    fn usage(&mut self, server: usize) -> Vec<agent::VmUsage> {
        let Around { plant, hosts, .. } = &mut self.around;
        let host = &mut hosts[server];
        (0..host.vms.len())
            .map(|n| {
                let vm = host.vms[n].id.clone();
                let stops = plant.vm_stops(server, &vm).stopped_periods;
                let throttled = host.stopped(n, Reader::Usage, stops);
                agent::VmUsage { vm, utilisation: plant.vm_utilisation(server, n), throttled }
            })
            .collect()
    }

    fn deliver(&mut self, letter: Envelope, alert: ballast_types::wire::Alert) {
        if self.around.active.has(Fault::Partition(letter.server)) {
            self.around.unanswered(letter);
        } else if self.agents[letter.server].is_none() {
            self.around.refused(letter);
        } else {
            self.tell_agent(letter.server, agent::Input::Alert(alert), Some(letter));
        }
    }

    fn tell_agent(&mut self, server: usize, input: agent::Input, letter: Option<Envelope>) {
        if let Some(agent) = &mut self.agents[server] {
            let mut shell =
                AgentShell { around: &mut self.around, server, input: Some(input), letter };
            let mut turns = 0;
            while shell.input.is_some() && turns < TURNS_AT_ONCE {
                turn(agent, &mut shell);
                turns += 1;
            }
            if shell.letter.is_some() || shell.input.is_some() {
                self.around.violated("an agent did not answer".into());
            }
        }
        self.rest(server);
    }

    fn tell_chassis(&mut self, input: chassis::Input) {
        if let Some(chassis) = &mut self.chassis {
            let mut shell = ChassisShell { around: &mut self.around, input: Some(input) };
            let mut turns = 0;
            while shell.input.is_some() && turns < TURNS_AT_ONCE {
                turn(chassis, &mut shell);
                turns += 1;
            }
            if shell.input.is_some() {
                self.around.violated("the chassis manager does not take its input".into());
            }
        }
        self.rest(self.agents.len());
    }

    /// One turn of a machine whose timer is due.
    fn turn(&mut self, machine: usize) {
        let around = &mut self.around;
        match self.agents.get_mut(machine) {
            Some(Some(agent)) => {
                turn(agent, &mut AgentShell { around, server: machine, input: None, letter: None });
            }
            Some(None) => {}
            None => {
                if let Some(chassis) = &mut self.chassis {
                    turn(chassis, &mut ChassisShell { around, input: None });
                }
            }
        }
        self.rest(machine);
    }

    /// Notes what a machine says of shares.
    fn note_shares(&mut self, machine: usize) {
        let (now, sum) = (self.around.now, &mut self.around.sum);
        if let Some(Some(agent)) = self.agents.get(machine) {
            sum.agent(machine, agent.cap(), agent.fallback());
        } else if let (true, Some(chassis)) = (machine == self.agents.len(), &self.chassis) {
            let answers = chassis.answering().collect();
            let (sharable, caps) = (chassis.sharable(), chassis.is_capping());
            sum.manager(now, Sharing { sharable, caps, answers });
        }
    }

    /// Notes when a machine wants to be woken.
    fn rest(&mut self, machine: usize) {
        if self.around.checks.sum_of_caps {
            self.note_shares(machine);
        }
        let (due, ahead) = match self.agents.get(machine) {
            Some(agent) => {
                (agent.as_ref().and_then(Machine::poll_timeout), self.around.hosts[machine].ahead)
            }
            None => {
                (self.chassis.as_ref().and_then(Machine::poll_timeout), self.around.manager.ahead)
            }
        };
        self.wake[machine] =
            due.map_or(NEVER, |(at, _)| at.saturating_sub(ahead).max(self.around.now));
    }
}
