//! Everything around the machines: the plant, the network, what is on, and what was seen.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::wire::{Alert, ChassisState, Level};
use ballast_types::{ActionId, CoreId, Instant, KiloHertz, Seq, VmId, Watts};

use super::breaker::{Breaker, METER_CLASS};
use super::chance::Chance;
use super::checks::{Checks, Excuse, Promise, Violation};
use super::conservation::{Conservation, ServerView};
use super::faults::{Active, Fault};
use super::hash::OutputHash;
use super::host::Host;
use super::mean::Means;
use super::queue::Queue;
use super::sum::SumRule;
use super::tally::{Sample, Tally, seconds};
use super::tape::Tape;
use super::{AgentTape, ChassisTape, Timing};
use crate::plant::{CpuQuota, Plant, STEP};

/// Something still to come.
#[derive(Debug)]
pub(crate) enum Event {
    /// The chassis manager starts for the first time.
    Start,
    /// A chassis manager polls the supplies.
    Poll { manager: usize, life: u32 },
    /// An operator sets the budget.
    Budget(Option<Watts>),
    /// An agent's meter is read.
    Sample(usize),
    /// An agent's CPU use is read.
    Usage(usize),
    /// An agent's RAPL and CPU counters are read.
    Fast(usize),
    /// A message reaches an agent.
    Alert(Envelope, Box<Alert>),
    /// What came of a message reaches the chassis manager.
    Answer { to: Sender, server: usize, seq: Seq, answer: Box<chassis::Answer> },
    /// An agent's actuator acts, and answers.
    Act { server: usize, life: u32, id: ActionId, action: Action },
    /// The out-of-band path acts, and answers.
    Slot { from: Sender, id: ActionId, server: usize, watts: Option<Watts> },
    /// A killed VM's cgroup is empty.
    Gone(usize, VmId),
    /// A fault begins.
    Begin(Fault),
    /// A fault is mended.
    End(Fault),
    /// Nothing changes from here on but by faults that last.
    Calm,
    /// All agents are told to stop.
    Stop,
}

/// A chassis manager, from one start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) manager: usize,
    pub(crate) life: u32,
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: Sender,
    pub(crate) server: usize,
    pub(crate) seq: Seq,
    pub(crate) sent: Instant,
    /// A double of another: nobody waits for its answer.
    pub(crate) double: bool,
}

/// What an agent's actuator is told.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// What a dry agent wanted: it only logs it.
    Nothing,
    Cap(CoreId, KiloHertz),
    Lift(CoreId),
    /// A VM, by its place on the server, and its bandwidth in millicores.
    Quota(usize, Option<u32>),
    Limit(Option<Watts>),
    Kill(VmId),
}

impl Action {
    /// Whether it takes something away, rather than giving it back.
    fn restricts(&self) -> bool {
        matches!(self, Self::Cap(..) | Self::Quota(_, Some(_)) | Self::Limit(Some(_)) | Self::Kill(_))
    }
}

/// A chassis manager's surroundings.
#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) life: u32,
    pub(crate) ahead: Duration,
    pub(crate) ledger: chassis::Ledger,
    /// The ledger that it found at its newest start.
    pub(crate) found: chassis::Ledger,
    /// The first ledger that was written: an old backup.
    pub(crate) first_ledger: Option<chassis::Ledger>,
    pub(crate) level: Vec<Level>,
    pub(crate) polls: u64,
    pub(crate) tape: Option<ChassisTape>,
}

/// The chassis manager, and a second one.
pub(crate) const MANAGERS: usize = 2;

impl Manager {
    fn new(ahead: Duration, servers: usize, record: bool) -> Self {
        Self {
            life: 0,
            ahead,
            ledger: chassis::Ledger::default(),
            found: chassis::Ledger::default(),
            first_ledger: None,
            level: vec![Level::Watch; servers],
            polls: 0,
            tape: record.then(Tape::default),
        }
    }
}

/// An operator's lower budget counts for the oracles so long after it was accepted.
const BUDGET_AFTER: Duration = Duration::from_secs(5);

/// An agent that obeyed no message for so long is not ruled by anybody.
const RULED_FOR: Duration = Duration::from_secs(3);

/// From the moment an excess can be seen until hardware has ended it: two polls, the wire, a command to
/// a BMC, and its regulator. The meters' refresh and lag come on top.
const REACTION: Duration = Duration::from_millis(2200);

/// See the module.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) seed: u64,
    pub(crate) now: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) plant: Plant,
    pub(crate) timing: Timing,
    pub(crate) checks: Checks,
    trip_time: Duration,
    pub(crate) breaker: Breaker,
    /// Which servers have an out-of-band path.
    has_slot: Vec<bool>,
    pub(crate) sum: SumRule,
    pub(crate) active: Active,
    chance: Chance,
    pub(crate) hosts: Vec<Host>,
    /// The chassis manager, and a second one for when a fault makes it run.
    pub(crate) managers: [Manager; MANAGERS],
    /// The hardware cap that each server's BMC keeps.
    pub(crate) slot_cap: Vec<Option<Watts>>,
    /// What a supply's stuck meter shows.
    pub(crate) stuck: Vec<Option<Watts>>,
    /// Whether servers have even shares.
    pub(crate) even_shares: bool,
    /// The budget that counts, and lower ones that are about to: each from 5 s after it was accepted.
    budget: Watts,
    lowered: VecDeque<(Instant, Watts)>,
    pub(crate) conservation: Conservation,
    /// What servers draw in the mean of a second, and of a window of 100 ms.
    by_second: Means,
    by_window: Means,
    is_calm: bool,
    pub(crate) hash: OutputHash,
    pub(crate) tally: Tally,
    pub(crate) alerts_sent: u64,
    pub(crate) capping_events: u64,
    pub(crate) outputs: u64,
    pub(crate) violation: Option<Violation>,
    supply_lost: Vec<bool>,
}

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Hardware can take every core at least down to this share of its highest frequency.
const LOWEST_SHARE: f64 = 1.0 / 3.0;

impl Environment {
    #[expect(clippy::too_many_arguments, reason = "called from one place")]
    pub(crate) fn new(
        seed: u64,
        plant: Plant,
        hosts: Vec<Host>,
        timing: Timing,
        checks: Checks,
        trip_time: Duration,
        has_slot: Vec<bool>,
        sum: SumRule,
        tally: Tally,
        record: bool,
    ) -> Self {
        let mut chance = Chance::new(seed, 0xC0);
        let servers = hosts.len();
        let ahead = chance.span(Duration::from_secs(100_000));
        let second = Manager::new(ahead + Duration::from_secs(1000), servers, false);
        let managers = [Manager::new(ahead, servers, record), second];
        let supplies = plant.spec().supplies.len();
        let budget = plant.spec().budget;

        Self {
            seed,
            now: Instant::ZERO,
            queue: Queue::default(),
            plant,
            timing,
            checks,
            trip_time,
            breaker: Breaker::default(),
            has_slot,
            sum,
            active: Active::default(),
            chance,
            hosts,
            managers,
            slot_cap: vec![None; servers],
            stuck: vec![None; supplies],
            even_shares: false,
            budget,
            lowered: VecDeque::new(),
            conservation: Conservation::new(servers),
            by_second: Means::new(servers),
            by_window: Means::new(servers),
            is_calm: false,
            hash: OutputHash::default(),
            tally,
            alerts_sent: 0,
            capping_events: 0,
            outputs: 0,
            violation: None,
            supply_lost: vec![false; supplies],
        }
    }

    /// Notes a broken promise; the first one counts.
    pub(crate) fn violated(&mut self, promise: Promise, what: String) {
        if self.violation.is_none() {
            let (seed, at) = (self.seed, self.now);
            let excuse = match promise {
                Promise::Breaker if self.trips_too_fast() => Some(Excuse::TooFast),
                Promise::Breaker | Promise::SumOfDraws => self.excuse(),
                Promise::Liveness if self.active.hide_that_all_fits() => Some(Excuse::AllMeters),
                _ => None,
            };
            self.violation = Some(Violation { seed, at, promise, what, excuse });
        }
    }

    /// Whether the excess tripped the breaker before anybody can have seen it and acted.
    fn trips_too_fast(&self) -> bool {
        let meter = self.plant.spec().supply_meter;
        self.now.since(self.breaker.rises_since()) < REACTION + meter.refresh + meter.lag
    }

    /// Why nobody could have kept the draw under the limit, if that is so.
    fn excuse(&self) -> Option<Excuse> {
        let lately: Vec<&Fault> = self.active.lately(self.now).collect();
        let blurred = lately.iter().any(|fault| fault.blurs_supplies());
        if blurred && lately.iter().any(|fault| fault.blurs_server()) {
            return Some(Excuse::AllMeters);
        }

        let hits = |fault: &Fault, server| fault.server().is_none_or(|n| n == server);
        let out_of_reach = |server: usize| {
            let stopped = lately.iter().any(|f| f.stops_software() && hits(f, server));

            // An agent that has lost its memory, and that no manager has spoken to since, knows no cap.
            let software = stopped || self.sum.was_told_nothing(server);
            let no_path = !self.has_slot[server];

            // A manager that was fenced orders no caps, should the one that has fenced it be gone.
            let ruled = self.sum.is_ruled();
            let hardware = !ruled || lately.iter().any(|f| f.stops_hardware() && hits(f, server));

            software && (no_path || hardware)
        };

        let all = self.plant.spec().servers.iter().enumerate();
        let draws = all.map(|(n, spec)| {
            let draw_w = self.plant.server_power(n).as_f64();
            let lowest_w = spec.model.power(1.0, LOWEST_SHARE).as_f64();
            if out_of_reach(n) { draw_w } else { draw_w.min(lowest_w) }
        });

        let least_w = draws.sum::<f64>() * self.input_per_dc();

        // A limit that has just risen is not what the draw was judged by.
        let limit_w = self.limit().as_f64().min(self.breaker.limit_w());

        (least_w * METER_CLASS > limit_w).then_some(Excuse::LastActor)
    }

    /// Watts at the supplies' input for each watt that the servers draw.
    fn input_per_dc(&self) -> f64 {
        let servers = 0..self.plant.spec().servers.len();
        let dc_w: f64 = servers.map(|n| self.plant.server_power(n).as_f64()).sum();
        self.plant.power().as_f64() / dc_w.max(1.0)
    }

    /// A chassis manager wrote its ledger, and with it the budget that is in force.
    pub(crate) fn budget_is(&mut self, told: Option<Watts>) {
        let highest = self.plant.spec().budget;
        let budget = told.map_or(highest, |watts| watts.min(highest));
        let newest = self.lowered.back().map_or(self.budget, |&(_, watts)| watts);
        if budget < newest {
            self.lowered.push_back((self.now + BUDGET_AFTER, budget));
        } else if budget < self.budget {
            // Raised, as far as it is still to count.
            self.lowered.iter_mut().for_each(|(_, watts)| *watts = (*watts).max(budget));
        } else {
            self.lowered.clear();
            self.budget = budget;
        }
    }

    /// Time passes. Every step of the plant is looked at.
    pub(crate) fn advance(&mut self, to: Instant) {
        let step = STEP.as_nanos() as u64;
        let mut end = Instant::from_nanos((self.plant.now().as_nanos() / step + 1) * step);
        while end <= to {
            self.now = end;
            self.observe();
            self.plant.advance(end);
            end += STEP;
        }
        self.plant.advance(to);
        self.now = to;
    }

    /// Looks at the plant's current step, just before it ends.
    fn observe(&mut self) {
        let sample = Sample {
            power_w: self.plant.power().as_f64(),
            limit_w: self.limit().as_f64(),
            batch_ratio: self.plant.truth().batch_frequency_ratio_end,
            user_facing_ratio: self.plant.user_facing_frequency_ratio(),
            emergency: self.managers[0].level.contains(&Level::Emergency),
            out_of_band: self.slot_cap.iter().any(Option::is_some),
            server_limit: self.hosts.iter().any(|h| h.server_limit.is_some()),
        };

        let over = Duration::from_secs_f64(seconds(self.tally.add(&sample)));
        if self.breaker.step(self.now, sample.power_w, sample.limit_w) {
            self.judge_window(sample.limit_w);
        }
        if self.checks.conservation && self.now.as_nanos().is_multiple_of(SECOND_NS) {
            self.judge_servers(sample.limit_w);
        }
        if self.checks.sum_of_caps
            && let Some(what) = self.sum.broken(self.now)
        {
            self.violated(Promise::SumOfCaps, what);
        }
        if self.checks.trip_time && over > self.trip_time {
            let what = format!(
                "{:.1} W are drawn, above the limit of {:.1} W for more than the trip time of {:.1} s",
                sample.power_w,
                sample.limit_w,
                self.trip_time.as_secs_f64()
            );

            self.violated(Promise::TripTime, what);
        }
    }

    /// Judges the 100 ms that have passed.
    fn judge_window(&mut self, limit_w: f64) {
        while let Some((_, watts)) = self.lowered.pop_front_if(|(at, _)| *at <= self.now) {
            self.budget = watts;
        }
        if self.checks.breaker && self.breaker.fraction().now() >= 1.0 {
            let what = format!(
                "the breaker trips: {:.1} W are drawn under a limit of {limit_w:.1} W",
                self.breaker.mean_w()
            );
            self.violated(Promise::Breaker, what);
        }
        if self.checks.sum_of_draws {
            let draws = self.by_window.look(self.now, &self.plant);
            let reported = self.hosts.iter().map(|host| host.reported);
            if let Some(what) = self.sum.overdrawn(self.now, limit_w, &draws, reported) {
                self.violated(Promise::SumOfDraws, what);
            }
        }
    }

    /// Something has changed. Before the calm phase whoever is held may be held for that.
    pub(crate) fn changed(&mut self) {
        if !self.is_calm {
            self.conservation.changed();
        }
    }

    /// The calm phase begins.
    pub(crate) fn calm_begins(&mut self) {
        self.changed();
        self.is_calm = true;
    }

    /// Judges, once a second, what holds servers down.
    fn judge_servers(&mut self, limit_w: f64) {
        let means = self.by_second.look(self.now, &self.plant);
        let share = self.sum.even_share().filter(|_| self.even_shares);
        let share_w = share.map_or(f64::INFINITY, Watts::as_f64);

        let mut reported = Watts::ZERO;
        let mut views = Vec::with_capacity(self.hosts.len());
        for (n, host) in self.hosts.iter().enumerate() {
            let obeyed = host.obeyed_at.is_some_and(|at| self.now.since(at) < RULED_FOR);
            reported += if obeyed { host.reported } else { Watts::ZERO };
            views.push(ServerView {
                faulty: self.active.affects(n),
                ruled: obeyed,
                leased: host.leased,
                restricted: host.is_restricted() || self.slot_cap[n].is_some(),
                draw_w: means.servers_w[n],
                need_w: self.plant.unrestricted_power(n).as_f64(),
                share_w,
            });
        }

        let reported_w = reported.as_f64();
        let broken = self.conservation.second(limit_w, means.input_w, reported_w, &views);

        if let Some((promise, server, what)) = broken {
            let what = format!("{} is held down: {what}", self.hosts[server].id);
            self.violated(promise, what);
        }
    }

    /// The least of the budget in force and what the surviving supplies can carry.
    fn limit(&self) -> Watts {
        if !self.supply_lost.contains(&true) {
            return self.budget;
        }
        let supplies = &self.plant.spec().supplies;
        let left = supplies.iter().zip(&self.supply_lost).filter(|(_, lost)| !**lost);
        self.budget.min(left.map(|(s, _)| s.rated).sum())
    }

    pub(crate) fn lose_supply(&mut self, supply: usize, lost: bool) {
        self.plant.fail_supply(supply, lost);
        if let Some(slot) = self.supply_lost.get_mut(supply) {
            *slot = lost;
        }
    }

    fn latency(&mut self) -> Duration {
        let usual = self.timing.latency + self.chance.span(self.timing.jitter);
        let disorder = self.active.disorder;
        if self.chance.happens(disorder.late_ppm) {
            usual + self.chance.span(disorder.late_by)
        } else {
            usual
        }
    }

    /// A chassis manager as it runs now.
    pub(crate) fn sender(&self, manager: usize) -> Sender {
        Sender { manager, life: self.managers[manager].life }
    }

    /// Hands a message to the network.
    pub(crate) fn send(&mut self, manager: usize, server: usize, alert: Alert) {
        self.alerts_sent += 1;
        let letter =
            Envelope { from: self.sender(manager), server, seq: alert.seq, sent: self.now, double: false };

        let disorder = self.active.disorder;

        if self.active.has(Fault::Partition(server)) || self.chance.happens(disorder.lost_ppm) {
            return self.unanswered(letter);
        }
        if self.chance.happens(disorder.duplicated_ppm) {
            let at = self.now + self.latency();
            let double = Envelope { double: true, ..letter };
            self.queue.put(at, Event::Alert(double, Box::new(alert.clone())));
        }

        let at = self.now + self.latency();
        self.queue.put(at, Event::Alert(letter, Box::new(alert)));
    }

    /// The sender will wait in vain.
    pub(crate) fn unanswered(&mut self, letter: Envelope) {
        let at = (letter.sent + self.timing.request_timeout).max(self.now);
        self.reply(letter, at, chassis::Answer::Nothing("no answer in time".into()));
    }

    /// Nobody listens at the other end.
    pub(crate) fn refused(&mut self, letter: Envelope) {
        let at = self.now + self.latency();
        self.reply(letter, at, chassis::Answer::Nothing("connection refused".into()));
    }

    /// Carries an agent's answer back.
    pub(crate) fn answer(&mut self, letter: Envelope, answer: chassis::Answer) {
        let lost = self.chance.happens(self.active.disorder.lost_ppm);
        let at = self.now + self.latency();
        let late = at.since(letter.sent) > self.timing.request_timeout;
        if lost || late || self.active.has(Fault::Partition(letter.server)) {
            return self.unanswered(letter);
        }
        self.reply(letter, at, answer);
    }

    fn reply(&mut self, letter: Envelope, at: Instant, answer: chassis::Answer) {
        if !letter.double {
            let Envelope { from, server, seq, .. } = letter;
            self.queue.put(at, Event::Answer { to: from, server, seq, answer: Box::new(answer) });
        }
    }

    /// What an agent's fast counters say since they were last read.
    pub(crate) fn fast(&mut self, server: usize) -> Option<agent::Fast> {
        let sockets = self.plant.spec().servers[server].sockets;
        let energy = (0..sockets).fold(ballast_types::Microjoules::default(), |sum, package| {
            sum + self.plant.package_energy(server, package) + self.plant.dram_energy(server, package)
        });
        let host = &self.hosts[server];
        let used = host.vms.iter().map(|vm| self.plant.vm_usage_us(server, &vm.id)).collect();
        let stops = |vm: &agent::Vm| self.plant.vm_stops(server, &vm.id).stopped_periods;
        let stops: Vec<_> = host.vms.iter().map(stops).collect();
        self.hosts[server].count(self.now, energy, used, &stops)
    }

    /// An agent's actuator acts.
    pub(crate) fn act(&mut self, server: usize, action: Action) -> Result<(), agent::ActuatorError> {
        if self.active.has(Fault::WritesRefused(server)) {
            return Err(agent::ActuatorError::Permanent);
        }
        if self.active.has(Fault::WritesFail(server)) && self.chance.happens(700_000) {
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

    /// The out-of-band path acts.
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
        let answers = self.has_slot[server] && !self.active.has(Fault::OutOfBandFails(server));
        answers.then_some(self.slot_cap[server])
    }

    /// What a server's BMC keeps from now on.
    pub(crate) fn keep_slot(&mut self, server: usize, watts: Option<Watts>) {
        self.slot_cap[server] = watts;
        self.sum.slot(server, watts);
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

    /// Counts capping episodes.
    pub(crate) fn chassis_state(&mut self, from: ChassisState, to: ChassisState) {
        let capping = |s| matches!(s, ChassisState::Alerting | ChassisState::OutOfBand);
        let calm = matches!(from, ChassisState::Boot | ChassisState::Normal);
        self.capping_events += u64::from(calm && capping(to));
    }

    /// An agent's tape, if there is one.
    pub(crate) fn tape(&mut self, server: usize) -> Option<&mut AgentTape> {
        self.hosts[server].tape.as_mut()
    }
}
