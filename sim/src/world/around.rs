//! Everything around the machines: the plant, the network, what is on, and what was seen.

use core::time::Duration;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::wire::{Alert, ChassisState, Level};
use ballast_types::{ActionId, CoreId, Instant, KiloHertz, Seq, VmClass, VmId, Watts};

use super::breaker::TripFraction;
use super::chance::Chance;
use super::checks::{Checks, Violation};
use super::faults::{Active, Fault};
use super::hash::OutputHash;
use super::host::Host;
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
    /// The supplies are polled.
    Poll,
    /// An agent's meter is read.
    Sample(usize),
    /// An agent's CPU use is read.
    Usage(usize),
    /// An agent's RAPL and CPU counters are read.
    Fast(usize),
    /// A message reaches an agent.
    Alert(Envelope, Box<Alert>),
    /// What came of a message reaches the chassis manager.
    Answer { to: u32, server: usize, seq: Seq, answer: Box<chassis::Answer> },
    /// An agent's actuator acts, and answers.
    Act { server: usize, life: u32, id: ActionId, action: Action },
    /// The out-of-band path acts, and answers.
    Slot { life: u32, id: ActionId, server: usize, watts: Option<Watts> },
    /// A killed VM's cgroup is empty.
    Gone(usize, VmId),
    /// A fault begins.
    Begin(Fault),
    /// A fault is mended.
    End(Fault),
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    /// The sender's life.
    pub(crate) from: u32,
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

/// The chassis manager's surroundings.
#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) life: u32,
    pub(crate) ahead: Duration,
    pub(crate) ledger: chassis::Ledger,
    pub(crate) level: Vec<Level>,
    pub(crate) slot_cap: Vec<Option<Watts>>,
    pub(crate) tape: Option<ChassisTape>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) seed: u64,
    pub(crate) now: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) plant: Plant,
    pub(crate) timing: Timing,
    pub(crate) checks: Checks,
    trip_time: Duration,
    pub(crate) breaker: Breaker,
    pub(crate) sum: SumRule,
    pub(crate) active: Active,
    chance: Chance,
    pub(crate) hosts: Vec<Host>,
    pub(crate) manager: Manager,
    pub(crate) hash: OutputHash,
    pub(crate) tally: Tally,
    pub(crate) polls: u64,
    pub(crate) alerts_sent: u64,
    pub(crate) capping_events: u64,
    pub(crate) outputs: u64,
    pub(crate) violation: Option<Violation>,
    user_facing: UserFacing,
    supply_lost: Vec<bool>,
}

/// Frequency of user-facing cores: looked at only while something holds one.
#[derive(Clone, Copy, Debug, Default)]
struct UserFacing {
    held_s: f64,
}

/// Steps of the plant in one mean that the breaker is judged by: 100 ms. A supply's capacitors carry
/// shorter swings.
const BREAKER_STEPS: u32 = 10;

/// The breaker over the chassis, as the true draw drives it.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    fraction: TripFraction,
    steps: u32,
    sum_w: f64,
    limit_w: f64,
}

impl Breaker {
    /// Takes one step of the plant; of the limits in a window the lowest counts.
    fn step(&mut self, power_w: f64, limit_w: f64) {
        self.limit_w = if self.steps == 0 { limit_w } else { self.limit_w.min(limit_w) };
        self.sum_w += power_w;
        self.steps += 1;
        if self.steps == BREAKER_STEPS {
            let steps = f64::from(BREAKER_STEPS);
            self.fraction.take(self.sum_w / steps, self.limit_w, steps * STEP.as_secs_f64());
            (self.steps, self.sum_w) = (0, 0.0);
        }
    }

    /// How far it has gone towards its trip.
    pub(crate) fn fraction(&self) -> &TripFraction {
        &self.fraction
    }
}

impl Around {
    #[expect(clippy::too_many_arguments, reason = "called from one place")]
    pub(crate) fn new(
        seed: u64,
        plant: Plant,
        hosts: Vec<Host>,
        timing: Timing,
        checks: Checks,
        trip_time: Duration,
        sum: SumRule,
        tally: Tally,
        record: bool,
    ) -> Self {
        let mut chance = Chance::new(seed, 0xC0);
        let servers = hosts.len();
        let manager = Manager {
            life: 0,
            ahead: chance.span(Duration::from_secs(100_000)),
            ledger: chassis::Ledger::default(),
            level: vec![Level::Watch; servers],
            slot_cap: vec![None; servers],
            tape: record.then(Tape::default),
        };
        let supplies = plant.spec().supplies.len();
        Self {
            seed,
            now: Instant::ZERO,
            queue: Queue::default(),
            plant,
            timing,
            checks,
            trip_time,
            breaker: Breaker::default(),
            sum,
            active: Active::default(),
            chance,
            hosts,
            manager,
            hash: OutputHash::default(),
            tally,
            polls: 0,
            alerts_sent: 0,
            capping_events: 0,
            outputs: 0,
            violation: None,
            user_facing: UserFacing::default(),
            supply_lost: vec![false; supplies],
        }
    }

    /// Notes a broken promise; the first one counts.
    pub(crate) fn violated(&mut self, what: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { seed: self.seed, at: self.now, what });
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
        let truth = self.plant.truth();
        let held_s = truth.user_facing_throttled_core_s.total();
        let batch_ratio = truth.batch_frequency_ratio_end;
        let user_facing_ratio =
            if held_s > self.user_facing.held_s { self.user_facing_ratio() } else { 1.0 };
        self.user_facing.held_s = held_s;
        let sample = Sample {
            power_w: self.plant.power().as_f64(),
            limit_w: self.limit().as_f64(),
            batch_ratio,
            user_facing_ratio,
            emergency: self.manager.level.contains(&Level::Emergency),
            out_of_band: self.manager.slot_cap.iter().any(Option::is_some),
            server_limit: self.hosts.iter().any(|h| h.server_limit.is_some()),
        };
        self.breaker.step(sample.power_w, sample.limit_w);
        let over = Duration::from_secs_f64(seconds(self.tally.add(&sample)));
        if self.checks.sum_of_caps
            && let Some(what) = self.sum.broken(self.now)
        {
            self.violated(what);
        }
        if self.checks.trip_time && over > self.trip_time {
            self.violated(format!(
                "{:.1} W are drawn, above the limit of {:.1} W for more than the trip time of {:.1} s",
                sample.power_w,
                sample.limit_w,
                self.trip_time.as_secs_f64()
            ));
        }
    }

    /// The least of the budget and what the surviving supplies can carry.
    fn limit(&self) -> Watts {
        let spec = self.plant.spec();
        if !self.supply_lost.contains(&true) {
            return spec.budget;
        }
        let left = spec.supplies.iter().zip(&self.supply_lost).filter(|(_, lost)| !**lost);
        spec.budget.min(left.map(|(s, _)| s.rated).sum())
    }

    fn user_facing_ratio(&self) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for (n, server) in self.plant.spec().servers.iter().enumerate() {
            let top =
                |core: CoreId| server.cores.iter().find(|c| c.id == core).map(|c| c.ladder.max());
            for vm in server.vms.iter().filter(|vm| vm.class == VmClass::UserFacing) {
                for core in &vm.cores {
                    sum += self.plant.core_khz(n, *core).share_of(top(*core).unwrap_or_default());
                    count += 1.0;
                }
            }
        }
        if count > 0.0 { sum / count } else { 1.0 }
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

    /// Hands a message to the network.
    pub(crate) fn send(&mut self, server: usize, alert: Alert) {
        self.alerts_sent += 1;
        let letter = Envelope {
            from: self.manager.life,
            server,
            seq: alert.seq,
            sent: self.now,
            double: false,
        };
        let disorder = self.active.disorder;
        if self.active.has(Fault::Partition(server)) || self.chance.happens(disorder.lost_ppm) {
            return self.unanswered(letter);
        }
        if self.chance.happens(disorder.doubled_ppm) {
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
            sum + self.plant.package_energy(server, package)
                + self.plant.dram_energy(server, package)
        });
        let host = &self.hosts[server];
        let used = host.vms.iter().map(|vm| self.plant.vm_usage_us(server, &vm.id)).collect();
        let stops = |vm: &agent::Vm| self.plant.vm_stops(server, &vm.id).stopped_periods;
        let stops: Vec<_> = host.vms.iter().map(stops).collect();
        self.hosts[server].count(self.now, energy, used, &stops)
    }

    /// An agent's actuator acts.
    pub(crate) fn act(
        &mut self,
        server: usize,
        action: Action,
    ) -> Result<(), agent::ActuatorError> {
        if self.active.has(Fault::WritesRefused(server)) {
            return Err(agent::ActuatorError::Permanent);
        }
        if self.active.has(Fault::WritesFail(server)) && self.chance.happens(700_000) {
            return Err(agent::ActuatorError::Transient);
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
                let at = self.now + self.timing.burial;
                self.queue.put(at, Event::Gone(server, vm));
            }
            Action::Limit(watts) => {
                host.server_limit = watts;
                host.limit_journalled = watts.is_some();
                let sockets = self.plant.spec().servers[server].sockets;
                // RAPL limits the packages: the rest of the server draws on beside them.
                let outside =
                    (self.plant.server_power(server) - self.plant.packages_power(server)).as_f64();
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
        self.manager.slot_cap[server] = watts;
        self.sum.slot(server, watts);
        self.plant.set_slot_cap(server, watts);
        Ok(())
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
