//! The plant: a physical model of one chassis, the double of real hardware.
//!
//! Physics runs on a fixed grid of 10 ms. A step's draw is worked out at its start and holds until its
//! end; what actuators are told takes effect with the next step. So the plant's state depends on what it
//! was told and in which step, never on how often [`Plant::advance`] was called.
//!
//! The energy counters run on within a step. Nothing here reads a clock, and all chance comes from seeded
//! streams of which every queue and every sensor has its own.

mod bandwidth;
mod ceiling;
mod draw;
mod oracle;
mod sensor;
mod server;
mod spec;
mod supply;
mod truth;
mod vm;
mod window;

#[cfg(test)]
mod tests;

use core::time::Duration;

use ballast_types::{CoreId, Instant, KiloHertz, Microjoules, Utilisation, VmClass, VmId, Watts};

pub use crate::load::{
    BatchSpec, Generator, Interpolation, Latencies, Profile, QueueSpec, Series, ServiceTime, Shape,
};
pub use bandwidth::{CpuQuota, CpuStops};
pub use draw::{draws, peak_draw};
pub use spec::{Load, Loss, PlantSpec, SensorSpec, ServerSpec, SharedSpec, SupplySpec, VmLoad};
pub use supply::{SupplyReading, SupplyState};
pub use truth::{ByCause, Truth, VmTruth};
pub use window::{WINDOW_S, WindowMean};

use crate::rng::{Purpose, Stream};
use ceiling::Ceiling;
use oracle::Oracle;
use sensor::Sensor;
use server::Server;
use supply::Supplies;
use truth::{Mean, Sums};

/// The grid of physics, and of [`Truth`].
pub const STEP: Duration = Duration::from_millis(10);
/// The same in seconds.
const STEP_S: f64 = 0.01;
/// The supplies' overload alert acts within this time constant: it pulls a line to every server.
const SUPPLY_TAU_S: f64 = 0.1;

fn at_step(n: u64) -> Instant {
    Instant::from_nanos(n.saturating_mul(STEP.as_nanos() as u64))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterReading {
    pub watts: Watts,
    pub refreshed_at: Instant,
}

#[derive(Clone, Debug)]
pub struct Plant {
    spec: PlantSpec,
    now: Instant,
    step: u64,
    servers: Vec<Server>,
    /// Where each server's VMs begin in `truth.vms`.
    first_vm: Vec<usize>,
    supplies: Supplies,
    /// What the supplies' alert does to every core.
    overload: Ceiling,
    meters: Vec<Sensor>,
    /// The next step at which a meter wants to be told.
    meters_due: u64,
    idle_w: f64,
    full_w: f64,
    oracle: Option<Box<Oracle>>,
    sums: Sums,
    truth: Truth,
}

impl Plant {
    /// A chassis that has been running steadily, at instant zero.
    pub fn new(spec: PlantSpec, seed: u64) -> Self {
        let servers: Vec<_> = spec.servers.iter().enumerate().map(|(n, s)| Server::new(s, n, seed)).collect();
        let mut vms = Vec::new();
        let mut first_vm = vec![0];

        for server in &spec.servers {
            vms.extend(server.vms.iter().map(|vm| VmTruth {
                server: server.id.clone(),
                vm: vm.id.clone(),
                class: vm.class,
                cpu_s: 0.0,
                throttled_core_s: ByCause::default(),
                latency: Latencies::default(),
                refused: 0,
                work_core_s: 0.0,
                jobs: 0,
                killed_at_s: None,
            }));

            first_vm.push(vms.len());
        }

        let truth = Truth {
            budget_w: spec.budget,
            batch_frequency_ratio_mean: 1.0,
            batch_frequency_ratio_end: 1.0,
            vms,
            ..Truth::default()
        };

        let mut plant = Self {
            now: Instant::ZERO,
            step: 0,
            servers,
            first_vm,
            supplies: Supplies::new(&spec.supplies),
            overload: Ceiling::new(SUPPLY_TAU_S),
            meters: Vec::new(),
            meters_due: 0,
            idle_w: spec.servers.iter().map(|s| s.model.idle_w).sum(),
            full_w: spec.servers.iter().map(|s| s.model.full_w).sum(),
            oracle: None,
            sums: Sums::default(),
            truth,
            spec,
        };

        plant.begin_step();
        plant.supplies.attach(plant.spec.supply_meter, seed);
        plant.meters = (plant.servers.iter().enumerate())
            .map(|(n, s)| {
                let stream = Stream::new(seed, Purpose::ServerMeter, n as u64, 0);
                Sensor::new(plant.spec.meter, stream, s.power_w)
            })
            .collect();
        plant
    }

    /// What it is made of; VM cores as they are now.
    pub fn spec(&self) -> &PlantSpec {
        &self.spec
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    /// Core-seconds for which user-facing VMs of a server were held down or stopped, by any cause.
    pub fn user_facing_slowed_s(&self, server: usize) -> f64 {
        self.servers[server].user_facing_slowed_s
    }

    /// Runs until `to`; does nothing if that has passed.
    pub fn advance(&mut self, to: Instant) {
        if to <= self.now {
            return;
        }
        self.now = to;
        let last = to.as_nanos() / STEP.as_nanos() as u64;
        while self.step < last {
            self.end_step();
            self.begin_step();
        }
    }

    /// Books what the current step did, and goes to the next.
    fn end_step(&mut self) {
        self.step += 1;
        let budget = self.spec.budget.as_f64();
        let mut engaged = false;

        for (n, server) in self.servers.iter_mut().enumerate() {
            server.book(&mut self.truth.vms[self.first_vm[n]..self.first_vm[n + 1]]);
            engaged |= server.engaged;
            server.user_facing_slowed_s += server.stopped.0
                + server.held.as_ref().map_or(0.0, |(user_facing, _)| user_facing.total() * STEP_S);
            let (user_facing, other) = server.stopped;
            self.truth.user_facing_throttled_core_s.software += user_facing;
            self.truth.batch_throttled_core_s.software += other;

            if let Some((user_facing, other)) = &server.held {
                self.truth.user_facing_throttled_core_s.add(user_facing, STEP_S);
                self.truth.batch_throttled_core_s.add(other, STEP_S);
            }
        }

        self.supplies.book(self.step);

        if self.step >= self.meters_due {
            self.read_meters();
        }
        let ratio = self.truth.batch_frequency_ratio_end;
        self.sums.add(self.supplies.input_w, budget, engaged, ratio);
        self.sums.write(&mut self.truth);
    }

    fn read_meters(&mut self) {
        self.meters_due = u64::MAX;
        for (n, meter) in self.meters.iter_mut().enumerate() {
            if meter.tick(self.step, self.servers[n].energy_j) {
                let vms = &self.truth.vms[self.first_vm[n]..self.first_vm[n + 1]];
                self.servers[n].end_window(self.step, vms);
            }
            self.meters_due = self.meters_due.min(meter.due());
        }
    }

    fn begin_step(&mut self) {
        let t = self.step as f64 * STEP_S;
        if self.spec.hardware_caps {
            self.alert_on_overload();
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.fit(t, &self.spec, &mut self.servers);
        }
        if self.spec.hardware_caps {
            self.servers.iter_mut().for_each(Server::regulate);
        }
        let mut dc_w = 0.0;

        for (n, server) in self.servers.iter_mut().enumerate() {
            server.step(t, &mut self.truth.vms[self.first_vm[n]..self.first_vm[n + 1]]);
            dc_w += server.power_w;
        }

        let shared_w = self.spec.shared.draw_w(dc_w, self.idle_w, self.full_w);
        self.supplies.step(dc_w + shared_w);
        self.truth.batch_frequency_ratio_end = Mean::over(self.servers.iter().map(|s| s.batch));
    }

    /// What the servers may draw together when the supplies' input is to be `input_w`.
    pub fn dc_behind(&self, input_w: f64) -> f64 {
        let mut supplies = self.supplies.clone();
        let (mut low, mut high) = (0.0, input_w);
        for _ in 0..40 {
            let dc = 0.5 * (low + high);
            supplies.step(dc + self.spec.shared.draw_w(dc, self.idle_w, self.full_w));
            if supplies.input_w <= input_w {
                low = dc;
            } else {
                high = dc;
            }
        }
        low
    }

    /// Supplies that carry more than they can slow down every core, within a tenth of a second.
    fn alert_on_overload(&mut self) {
        let over = self.supplies.input_w - self.supplies.rated_w;
        if self.supplies.rated_w <= 0.0 || (over <= 0.0 && self.overload.is_off()) {
            return;
        }
        let dynamic: f64 = self.servers.iter().map(Server::dynamic_w).sum();
        let root = self.spec.servers.first().map_or(1.0, |s| 1.0 / s.model.exponent());
        self.overload.step(dynamic, Some(dynamic - over), 1.0, root);
        for server in &mut self.servers {
            server.set_supply_share(self.overload.share);
        }
    }

    fn since_step_s(&self) -> f64 {
        self.now.since(at_step(self.step)).as_secs_f64()
    }
}

/// Actuators. A server, core, package, VM or supply that does not exist is ignored.
impl Plant {
    /// Caps one core: the highest p-state at or below `khz`, the floor if there is none.
    pub fn set_core_cap(&mut self, server: usize, core: CoreId, khz: KiloHertz) {
        if let Some(s) = self.servers.get_mut(server) {
            s.set_cap(&self.spec.servers[server], core, khz);
        }
    }

    /// Limits one package as RAPL does: every core of it, whoever it works for.
    ///
    /// The limit covers the package without its memory. No effect without `hardware_caps`.
    pub fn set_package_limit(&mut self, server: usize, package: u16, limit: Option<Watts>) {
        if let Some(s) = self.servers.get_mut(server) {
            s.set_package_limit(package, limit);
        }
    }

    /// Limits a whole server's DC draw out of band, through its slot. No effect without `hardware_caps`.
    pub fn set_slot_cap(&mut self, server: usize, limit: Option<Watts>) {
        if let Some(s) = self.servers.get_mut(server) {
            s.set_slot_cap(limit);
        }
    }

    /// Moves a VM to other cores; false (and nothing done) if the VM or a core is unknown.
    pub fn set_vm_cores(&mut self, server: usize, vm: &VmId, cores: &[CoreId]) -> bool {
        let Some(spec) = self.spec.servers.get_mut(server) else {
            return false;
        };
        let Some(index) = server::vm_index(spec, vm) else {
            return false;
        };
        let indices = server::core_indices(spec, cores);
        if indices.len() != cores.len() {
            return false;
        }
        let t = self.now.as_secs_f64();
        spec.vms[index].cores = cores.to_vec();
        self.servers[server].set_vm_cores(index, indices, t);
        true
    }

    /// Limits a VM's CPU time from the next step on, or no more; false if the VM is unknown.
    ///
    /// A limited VM runs on whatever cores there are, so what it draws depends on the frequency of its
    /// own cores only because the plant has to put it somewhere.
    pub fn set_vm_quota(&mut self, server: usize, vm: &VmId, quota: Option<CpuQuota>) -> bool {
        let index = self.spec.servers.get(server).and_then(|s| server::vm_index(s, vm));
        if let Some(index) = index {
            self.servers[server].set_vm_quota(index, quota);
        }
        index.is_some()
    }

    /// Kills a VM: what it was doing is lost, and it does nothing any more.
    pub fn stop_vm(&mut self, server: usize, vm: &VmId) {
        let index = self.spec.servers.get(server).and_then(|s| server::vm_index(s, vm));
        if let Some(index) = index {
            self.servers[server].stop_vm(index);
            let at_s = self.step as f64 * STEP_S;
            self.truth.vms[self.first_vm[server] + index].killed_at_s.get_or_insert(at_s);
        }
    }

    /// Keeps the chassis's draw at or below `limit` by foresight, which no controller has: before every
    /// step batch cores get the highest p-states that fit, all alike. `None` lifts every cap.
    ///
    /// Supplies that fail later are not foreseen.
    pub fn set_oracle(&mut self, limit: Option<Watts>) {
        self.oracle = limit.map(|limit| Box::new(Oracle::new(&self.spec, self.dc_behind(limit.as_f64()))));
        if self.oracle.is_none() {
            oracle::lift(&self.spec, &mut self.servers);
        }
    }

    /// Keeps every core of a server busy for this share of its time from the next step on, 0 to 1, as threads
    /// with a duty cycle would on an empty server: its VMs stand still meanwhile. `None` lets them go on.
    pub fn keep_busy(&mut self, server: usize, share: Option<f64>) {
        if let Some(s) = self.servers.get_mut(server) {
            s.kept_busy = share.map(|share| if share > 0.0 { share.min(1.0) } else { 0.0 });
        }
    }

    /// Takes a supply's feed away, or gives it back.
    pub fn fail_supply(&mut self, supply: usize, failed: bool) {
        self.supplies.fail(supply, failed);
    }
}

/// Instruments: what real hardware would show. Asking for what does not exist gives zeros.
impl Plant {
    pub fn server_meter(&self, server: usize) -> MeterReading {
        let (watts, refreshed_at) =
            self.meters.get(server).map_or((Watts::ZERO, Instant::ZERO), Sensor::reading);
        MeterReading { watts, refreshed_at }
    }

    pub fn supply_meter(&self, supply: usize) -> SupplyReading {
        self.supplies.reading(supply).unwrap_or(SupplyReading {
            state: SupplyState::Failed,
            input: Watts::ZERO,
            output: Watts::ZERO,
            refreshed_at: Instant::ZERO,
        })
    }

    /// What RAPL counts of a server's packages now, without memory.
    pub fn packages_power(&self, server: usize) -> Watts {
        let watts = self.servers.get(server).map_or(0.0, Server::packages_w);
        Watts::from_f64(watts).unwrap_or(Watts::ZERO)
    }

    /// What a server would draw now if nothing held its cores; exact where VMs follow a line or have endless
    /// work. A queue counts with the requests that it has.
    pub fn unrestricted_power(&mut self, server: usize) -> Watts {
        let t = self.step as f64 * STEP_S;
        let watts = self.servers.get_mut(server).map_or(0.0, |s| s.unrestricted_w(t));
        Watts::from_f64(watts).unwrap_or(Watts::ZERO)
    }

    /// Energy that RAPL counted of one package since the start, without its memory; never wraps.
    pub fn package_energy(&self, server: usize, package: u16) -> Microjoules {
        let extra = self.since_step_s();
        micro(self.servers.get(server).map_or(0.0, |s| s.package_j(package, extra)))
    }

    /// Energy of one package's memory since the start; exact, never wraps.
    pub fn dram_energy(&self, server: usize, package: u16) -> Microjoules {
        let extra = self.since_step_s();
        micro(self.servers.get(server).map_or(0.0, |s| s.dram_j(package, extra)))
    }

    /// CPU time of all of a server's cores since the start, in microseconds: busy, and all.
    pub fn cpu_us(&self, server: usize) -> (u64, u64) {
        let cores = self.spec.servers.get(server).map_or(0, |s| s.cores.len());
        let all = cores as u64 * (self.now.as_nanos() / 1000);
        let extra = self.since_step_s();
        let busy = self.servers.get(server).map_or(0.0, |s| s.cpu_s(extra) * 1e6) as u64;
        (busy.min(all), all)
    }

    /// CPU time that a VM has used since the start, in microseconds, as in its cgroup's `cpu.stat`.
    pub fn vm_usage_us(&self, server: usize, vm: &VmId) -> u64 {
        let index = self.spec.servers.get(server).and_then(|s| server::vm_index(s, vm));
        index.map_or(0, |vm| {
            let done = self.truth.vms[self.first_vm[server] + vm].cpu_s;
            ((done + self.servers[server].busy(vm) * self.since_step_s()) * 1e6) as u64
        })
    }

    /// How often and for how long a VM's quota has stopped it, up to the last whole step.
    pub fn vm_stops(&self, server: usize, vm: &VmId) -> CpuStops {
        let index = self.spec.servers.get(server).and_then(|s| server::vm_index(s, vm));
        index.map_or(CpuStops::default(), |vm| self.servers[server].stops(vm))
    }

    /// Mean use of a VM's cores over the server meter's last whole window.
    pub fn vm_utilisation(&self, server: usize, vm_index: usize) -> Utilisation {
        let share = self.servers.get(server).map_or(0.0, |s| s.utilisation(vm_index));
        Utilisation::from_ratio(share).unwrap_or(Utilisation::IDLE)
    }

    /// What a core runs at, RAPL included.
    pub fn core_khz(&self, server: usize, core: CoreId) -> KiloHertz {
        let Some(spec) = self.spec.servers.get(server) else {
            return KiloHertz::default();
        };
        let Some(n) = spec.cores.iter().position(|c| c.id == core) else {
            return KiloHertz::default();
        };
        let max = f64::from(spec.cores[n].ladder.max().get());
        KiloHertz::new(libm::round(max * self.servers[server].core_share(n)) as u32)
    }
}

/// The truth, which no controller sees.
impl Plant {
    /// The chassis's draw now, at the supplies' input.
    pub fn power(&self) -> Watts {
        Watts::from_f64(self.supplies.input_w).unwrap_or(Watts::MAX)
    }

    /// Energy drawn at the supplies' input up to the last whole step, in joules.
    pub fn energy_j(&self) -> f64 {
        self.sums.energy_j()
    }

    pub fn server_power(&self, server: usize) -> Watts {
        self.servers.get(server).and_then(|s| Watts::from_f64(s.power_w)).unwrap_or(Watts::ZERO)
    }

    /// A server's DC energy up to the last whole step, in joules.
    pub fn server_energy_j(&self, server: usize) -> f64 {
        self.servers.get(server).map_or(0.0, |s| s.energy_j)
    }

    /// What really happened, up to the last whole step.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// How often the cap of a core was changed, over all cores and since the start.
    pub fn pstate_changes(&self) -> u64 {
        self.servers.iter().map(|s| s.cap_changes).sum()
    }

    /// What the slowest core of any non-user-facing VM runs at, as a share of its highest frequency; 1
    /// without such a core.
    pub fn batch_frequency_ratio_min(&self) -> f64 {
        self.servers.iter().map(Server::batch_share_min).fold(1.0, f64::min)
    }

    /// What the cores of user-facing VMs run at on average, as a share of their highest frequency; 1 without
    /// such a core.
    pub fn user_facing_frequency_ratio(&self) -> f64 {
        Mean::over(self.servers.iter().map(|s| s.user_facing))
    }

    /// What the slowest core of a server's VM `vm_index` runs at, as a share of its highest frequency; 1
    /// without such a core.
    pub fn vm_frequency_ratio_min(&self, server: usize, vm_index: usize) -> f64 {
        self.servers.get(server).map_or(1.0, |s| s.vm_share_min(vm_index))
    }

    /// The P95 latency over all queues of user-facing VMs, in milliseconds; `None` without requests.
    pub fn user_facing_p95_ms(&self) -> Option<f64> {
        let mut all = Latencies::default();
        for vm in self.truth.vms.iter().filter(|vm| vm.class == VmClass::UserFacing) {
            all.merge(&vm.latency);
        }
        all.p95_ms()
    }
}

fn micro(joules: f64) -> Microjoules {
    Microjoules::new((joules * 1e6) as u64)
}
