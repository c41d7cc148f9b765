//! Everything around the machines: the plant, the network, the managers, what is on, and who watches.

use core::time::Duration;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::wire::{Alert, Level};
use ballast_types::{Instant, KiloHertz, Watts};

use super::bmcs::Bmcs;
use super::chance::Chance;
use super::checks::Promise;
use super::event::{Action, Envelope, Event, Sender};
use super::faults::{Active, Fault, ManagerFault};
use super::host::Host;
use super::kills::{Kills, Victim};
use super::managers::{MANAGERS, Manager};
use super::network::{Network, Post};
use super::observer::{Moment, Observer};
use super::queue::Queue;
use super::tally::Tally;
use super::tape::{AgentTape, Tape};
use super::timing::Timing;
use crate::plant::{CpuQuota, Plant, STEP};
use crate::scenario::Scenario;

/// No two clocks are further apart.
const CLOCKS_APART: Duration = Duration::from_secs(100_000);

#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) now: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) plant: Plant,
    /// Every server, as its agent's daemon sees it.
    pub(crate) hosts: Vec<Host>,
    pub(crate) bmcs: Bmcs,
    /// What a supply's stuck meter shows.
    pub(crate) stuck: Vec<Option<Watts>>,
    /// The chassis manager, and a second one for when a fault makes it run.
    pub(crate) managers: [Manager; MANAGERS],
    pub(crate) network: Network,
    pub(crate) timing: Timing,
    pub(crate) active: Active,
    pub(crate) kills: Kills,
    pub(crate) observer: Observer,
}

impl Environment {
    /// At instant zero, with this many agents.
    pub(crate) fn new(scenario: &Scenario, agents: usize) -> Self {
        let Scenario { seed, plant, chassis, timing, record, ledger, .. } = scenario;
        let mut clocks = Chance::new(*seed, 0xC1);
        let mut ahead = || clocks.span(CLOCKS_APART);
        let new = |server| Host::new(server, ahead(), record.then(Tape::default));
        let mut hosts: Vec<_> = plant.servers.iter().map(new).collect();
        for (host, params) in hosts.iter_mut().zip(&scenario.agents) {
            host.is_dry_run = params.dry_run.is_some();
            host.uses_pstates = params.actuator == agent::Actuator::Pstate;
        }

        let mut chance = Chance::new(*seed, 0xC0);
        let ahead = chance.span(CLOCKS_APART);
        let mut managers = [
            Manager::new(ahead, hosts.len(), *record),
            Manager::new(ahead + Duration::from_secs(1000), hosts.len(), false),
        ];
        managers[0].ledger = ledger.clone();

        let tally = Tally::new(scenario.length, scenario.points);
        let has_path = chassis.servers.iter().map(|s| s.out_of_band_floor.is_some()).collect();
        let mut environment = Self {
            now: Instant::ZERO,
            queue: Queue::default(),
            bmcs: Bmcs::new(has_path, hosts.len()),
            stuck: vec![None; plant.supplies.len()],
            managers,
            network: Network::new(chance, timing),
            timing: *timing,
            active: Active::default(),
            kills: Kills::default(),
            observer: Observer::new(scenario, agents, tally),
            hosts,
            plant: Plant::new(plant.clone(), *seed),
        };

        // What the ledger says was true once: the BMCs keep it.
        for (id, watts) in &ledger.out_of_band {
            if let Some(server) = environment.hosts.iter().position(|host| host.id == *id) {
                environment.keep_slot(server, Some(*watts));
            }
        }
        environment
    }

    /// Puts what is known beforehand into the queue.
    pub(crate) fn schedule(&mut self, scenario: &Scenario, agents: usize) {
        let queue = &mut self.queue;
        for (at, budget) in &scenario.budgets {
            queue.put(*at, Event::Budget(*budget));
        }
        queue.put(scenario.quiet_from, Event::Quiet);
        for window in &scenario.faults.windows {
            queue.put(window.from, Event::Begin(window.fault));
            queue.put(window.to, Event::End(window.fault));
        }
        for kill in &scenario.kills {
            queue.put(kill.from, Event::Kill(*kill));
        }

        // What ends at that instant has ended by then.
        for at in &scenario.stops {
            queue.put(*at, Event::Stop);
        }

        for (server, agent) in scenario.agents.iter().enumerate().take(agents) {
            // Agents do not sample in step.
            let share = |period: Duration| period * server as u32 / agents as u32;
            let at = Instant::ZERO + Duration::from_millis(7);
            queue.put(at + share(agent.sample_period), Event::Sample(server));
            queue.put(at + share(scenario.timing.usage_period), Event::Usage(server));
        }
    }

    /// Notes a broken promise; the first one counts.
    pub(crate) fn violated(&mut self, promise: Promise, what: String) {
        let (observer, moment) = self.moment();
        observer.violated(&moment, promise, what);
    }

    /// Who watches, and what there is to see now.
    fn moment(&mut self) -> (&mut Observer, Moment<'_>) {
        let moment = Moment {
            now: self.now,
            plant: &mut self.plant,
            hosts: &self.hosts,
            bmcs: &self.bmcs,
            active: &self.active,
            is_emergency: self.managers[0].level.contains(&Level::Emergency),
        };
        (&mut self.observer, moment)
    }

    /// Time passes. Every step of the plant is looked at, just before it ends.
    pub(crate) fn advance(&mut self, to: Instant) {
        let step = STEP.as_nanos() as u64;
        let mut end = Instant::from_nanos((self.plant.now().as_nanos() / step + 1) * step);
        while end <= to {
            self.now = end;
            let (observer, mut moment) = self.moment();
            observer.observe(&mut moment);
            self.plant.advance(end);
            end += STEP;
        }
        self.plant.advance(to);
        self.now = to;
    }

    /// Plans the start of a process that a kill has hit; gives what its absence is called.
    pub(crate) fn remove_dead(&mut self, victim: Victim) -> Option<Fault> {
        let kill = self.kills.take_dead(victim)?;
        if let Victim::Agent(server) = victim {
            let host = &mut self.hosts[server];
            host.cut = kill.loses_writes.then_some(host.instance);
        }
        self.queue.put(self.now + kill.down, Event::End(victim.absence()));
        Some(victim.absence())
    }

    pub(crate) fn lose_supply(&mut self, supply: usize, lost: bool) {
        self.plant.fail_supply(supply, lost);
        self.observer.limit.lose_supply(supply, lost);
    }

    /// A chassis manager wrote its ledger, and with it the budget that is in force.
    pub(crate) fn budget_is(&mut self, budget: Option<Watts>) {
        self.observer.limit.accepted(self.now, budget);
    }

    /// A chassis manager as it runs now.
    pub(crate) fn sender(&self, manager: usize) -> Sender {
        Sender { manager, instance: self.managers[manager].instance }
    }

    /// How a chassis manager is wrong: only the first one ever is.
    pub(crate) fn manager_fault(&self, manager: usize) -> Option<ManagerFault> {
        self.active.manager_fault().filter(|_| manager == 0)
    }

    pub(crate) fn send(&mut self, manager: usize, server: usize, alert: Alert) {
        let (from, sent) = (self.sender(manager), self.now);
        let wrong = self.manager_fault(manager);
        let alert = self.managers[manager].falsified(server, alert, wrong);
        let message = Envelope { from, server, seq: alert.seq, sent, is_duplicate: false };
        let (network, post) = self.post();
        network.send(post, message, alert);
    }

    pub(crate) fn unanswered(&mut self, message: Envelope) {
        let (network, post) = self.post();
        network.unanswered(post, message);
    }

    pub(crate) fn refused(&mut self, message: Envelope) {
        let (network, post) = self.post();
        network.refused(post, message);
    }

    pub(crate) fn answer(&mut self, message: Envelope, answer: chassis::Answer) {
        let (network, post) = self.post();
        network.answer(post, message, answer);
    }

    fn post(&mut self) -> (&mut Network, Post<'_>) {
        let post = Post { now: self.now, active: &self.active, queue: &mut self.queue };
        (&mut self.network, post)
    }

    pub(crate) fn act(&mut self, server: usize, action: Action) -> Result<(), agent::ActuatorError> {
        if self.active.has(Fault::WritesRefused(server)) {
            return Err(agent::ActuatorError::Permanent);
        }
        if self.active.has(Fault::WritesFail(server)) && self.network.chance.happens(700_000) {
            return Err(agent::ActuatorError::Transient);
        }
        if self.active.has(Fault::WritesIgnored(server)) && action.restricts() {
            return Ok(());
        }
        let host = &mut self.hosts[server];

        match action {
            Action::Nothing => {}
            Action::Cap(core, khz) => {
                host.wrote(core, Some(khz));
                self.plant.set_core_cap(server, core, khz);
            }
            Action::Lift(core) => {
                host.wrote(core, None);
                self.plant.set_core_cap(server, core, KiloHertz::new(u32::MAX));
            }
            Action::Quota(vm, millicores) => {
                host.wrote_quota(vm, millicores);
                let period = self.timing.quota_period;
                let quota = |m| CpuQuota { cores: f64::from(m) / 1000.0, period };
                self.plant.set_vm_quota(server, &host.vms[vm].id, millicores.map(quota));
            }
            Action::Kill(vm) => {
                self.plant.stop_vm(server, &vm);
                let at = self.now + self.timing.reap_delay;
                self.queue.put(at, Event::Gone(server, vm));
            }
            Action::Limit(watts) => {
                host.server_limit = watts;
                host.limit_journalled = watts.is_some();
                let sockets = self.plant.spec().servers[server].sockets;

                // RAPL limits the packages: the rest of the server draws on beside them.
                let outside = (self.plant.server_power(server) - self.plant.packages_power(server)).as_f64();
                let each = watts.map(|w| {
                    let packages = (w.as_f64() - outside).max(1.0) / f64::from(sockets);
                    Watts::from_f64(packages).unwrap_or(w)
                });

                for package in 0..sockets {
                    self.plant.set_package_limit(server, package, each);
                }
            }
        }

        Ok(())
    }

    pub(crate) fn slot(&mut self, server: usize, watts: Option<Watts>) -> Result<(), String> {
        if self.active.has(Fault::OutOfBandFails(server)) {
            return Err("the BMC does not answer".into());
        }
        let watts = watts.filter(|_| !self.active.has(Fault::BmcForgets(server)));
        self.keep_slot(server, watts);
        Ok(())
    }

    /// The cap that a server's BMC says it keeps; the outer `None` if it does not answer.
    pub(crate) fn slot_cap(&self, server: usize) -> Option<Option<Watts>> {
        let answers = self.bmcs.has_path[server] && !self.active.has(Fault::OutOfBandFails(server));
        answers.then_some(self.bmcs.caps[server])
    }

    /// What a server's BMC keeps from now on.
    pub(crate) fn keep_slot(&mut self, server: usize, watts: Option<Watts>) {
        self.bmcs.caps[server] = watts;
        self.observer.sum.slot(server, watts);
        self.plant.set_slot_cap(server, watts);
    }

    /// A server goes down: what was set on it is gone, and nothing runs.
    pub(crate) fn power_down(&mut self, server: usize) {
        self.hosts[server].boot();
        let spec = self.plant.spec().servers[server].clone();
        for core in &spec.cores {
            self.plant.set_core_cap(server, core.id, KiloHertz::new(u32::MAX));
        }
        for package in 0..spec.sockets {
            self.plant.set_package_limit(server, package, None);
        }
        for vm in &spec.vms {
            self.plant.set_vm_quota(server, &vm.id, None);
        }
        self.plant.keep_busy(server, Some(0.0));
    }

    pub(crate) fn tape(&mut self, server: usize) -> Option<&mut AgentTape> {
        self.hosts[server].tape.as_mut()
    }
}
