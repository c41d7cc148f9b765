//! One server: cores, packages, VMs, and the limits that hold them.

mod foresight;

pub(super) use foresight::BatchCore;

use ballast_types::{CoreId, KiloHertz, Ladder, PowerModel, VmId, Watts};

use super::bandwidth::{Bandwidth, CpuQuota, CpuStops};
use super::ceiling::Ceiling;
use super::truth::{ByCause, VmTruth};
use super::vm::{Group, Vm, Work};
use super::{STEP_S, ServerSpec};
use crate::load::stretch;
use crate::rng::{Purpose, Stream};

/// Of idle power, this share is drawn by all CPU packages: 2 × 25 W of the paper's 112 W.
const PACKAGE_SHARE: f64 = 50.0 / 112.0;
/// And this one by memory: 2 × 5 W.
const DRAM_SHARE: f64 = 10.0 / 112.0;
/// Of what a package takes from the board, RAPL counts this share and its limits act on it: the loss of
/// the voltage regulators is outside.
const COUNTED: f64 = 0.94;
/// RAPL's regulator; with load that stretches it settles in about twice this.
const RAPL_TAU_S: f64 = 0.25;
/// That of a slot limit, which goes through the BMC.
const SLOT_TAU_S: f64 = 0.5;

/// One core.
#[derive(Clone, Copy, Debug)]
struct CoreState {
    /// Its cap as an index on its ladder.
    cap: usize,
    /// The same as a share of its highest frequency.
    cap_share: f64,
    /// `cap_share^a`.
    cap_scale: f64,
    /// What it runs at, hardware included.
    share: f64,
    /// `share^a`.
    scale: f64,
}

/// One package.
#[derive(Clone, Debug)]
struct Package {
    limit: Option<f64>,
    ceiling: Ceiling,
    dynamic_w: f64,
    /// CPU energy so far.
    energy_j: f64,
    /// Highest cap among its cores.
    top: f64,
}

/// One server at work.
#[derive(Clone, Debug)]
pub(super) struct Server {
    model: PowerModel,
    exponent: f64,
    cores: Vec<CoreState>,
    packages: Vec<Package>,
    dram_j: f64,
    vms: Vec<Vm>,
    slot_limit: Option<f64>,
    slot: Ceiling,
    supply_share: f64,
    /// All cores are kept busy for this share of their time, and the VMs stand still.
    kept_busy: Option<f64>,
    hardware_caps: bool,
    dirty: bool,
    /// The step at which the current window of use began.
    window_step: u64,
    static_w: f64,
    /// DC draw in the current step.
    pub(super) power_w: f64,
    /// DC energy so far.
    pub(super) energy_j: f64,
    /// CPU time of all cores so far.
    cpu_s: f64,
    /// CPU seconds per second in the current step.
    busy: f64,
    /// Core shares of non-user-facing VMs: sum and count.
    pub(super) batch_share: f64,
    pub(super) batch_cores: f64,
    /// Cores of user-facing and of other VMs that are held down, by cause.
    pub(super) held: Option<(ByCause, ByCause)>,
    /// Some core is held down by hardware.
    pub(super) engaged: bool,
    /// Core-seconds of user-facing and of other VMs that their quotas stopped in the current step.
    pub(super) stopped: (f64, f64),
    /// How often the cap of a core was changed.
    pub(super) cap_changes: u64,
}

impl Server {
    pub(super) fn new(spec: &ServerSpec, index: usize, seed: u64, hardware_caps: bool) -> Self {
        let full = CoreState { cap: 0, cap_share: 1.0, cap_scale: 1.0, share: 1.0, scale: 1.0 };
        let cores = spec.cores.iter().map(|c| CoreState { cap: c.ladder.top(), ..full }).collect();
        let package = Package {
            limit: None,
            ceiling: Ceiling::new(RAPL_TAU_S),
            dynamic_w: 0.0,
            energy_j: 0.0,
            top: 1.0,
        };
        let vms = spec.vms.iter().enumerate().map(|(n, vm)| {
            let cores = core_indices(spec, &vm.cores);
            let rng = Stream::new(seed, Purpose::Arrivals, index as u64, n as u64);
            Vm::new(vm, cores, rng)
        });
        Self {
            model: spec.model,
            exponent: spec.model.exponent(),
            cores,
            packages: vec![package; usize::from(spec.sockets.max(1))],
            dram_j: 0.0,
            vms: vms.collect(),
            slot_limit: None,
            slot: Ceiling::new(SLOT_TAU_S),
            supply_share: 1.0,
            kept_busy: None,
            hardware_caps,
            dirty: true,
            window_step: 0,
            static_w: 0.0,
            power_w: 0.0,
            energy_j: 0.0,
            cpu_s: 0.0,
            busy: 0.0,
            batch_share: 0.0,
            batch_cores: 0.0,
            held: None,
            engaged: false,
            stopped: (0.0, 0.0),
            cap_changes: 0,
        }
    }

    /// Books the step that has passed.
    pub(super) fn book(&mut self, truth: &mut [VmTruth]) {
        self.energy_j += self.power_w * STEP_S;
        self.cpu_s += self.busy * STEP_S;
        for package in 0..self.packages.len() {
            self.packages[package].energy_j += self.package_w(package) * STEP_S;
        }
        self.dram_j += self.dram_w() * STEP_S;
        for (vm, truth) in self.vms.iter_mut().zip(truth.iter_mut()) {
            truth.cpu_s += vm.busy * STEP_S;
        }
        if self.stopped != (0.0, 0.0) {
            for (vm, truth) in self.vms.iter().zip(truth.iter_mut()) {
                truth.throttled_core_s.software += vm.stopped_s();
            }
        }
        if self.held.is_some() {
            for (vm, truth) in self.vms.iter().zip(truth) {
                truth.throttled_core_s.add(&vm.held, STEP_S);
            }
        }
    }

    /// Works out the step that begins at second `t`.
    pub(super) fn step(&mut self, t: f64, truth: &mut [VmTruth]) {
        if self.hardware_caps {
            self.regulate();
        }
        if self.dirty {
            self.rebuild();
        }
        for package in &mut self.packages {
            package.dynamic_w = 0.0;
        }
        let watts_per_core = self.watts_per_core();
        if let Some(share) = self.kept_busy {
            self.keep_busy(share);
            return;
        }
        for (vm, truth) in self.vms.iter_mut().zip(truth) {
            match &mut vm.work {
                Work::Line(line) => {
                    let demand = line.at(t);
                    let used = |g: &Group| (demand * g.stretch).min(1.0);
                    let part = limited(&mut vm.bandwidth, &mut vm.stops, || {
                        vm.groups.iter().map(|g| used(g) * g.cores).sum()
                    });
                    vm.busy = 0.0;
                    for g in &vm.groups {
                        let u = used(g) * part;
                        self.packages[g.package].dynamic_w += u * g.watts;
                        vm.busy += u * g.cores;
                    }
                }
                Work::Nothing => vm.busy = 0.0,
                Work::Batch(batch) => {
                    let u = batch.demand(t);
                    let all = vm.cores.len() as f64;
                    let u = u * limited(&mut vm.bandwidth, &mut vm.stops, || u * all);
                    vm.busy = 0.0;
                    let mut work = 0.0;
                    for g in &vm.groups {
                        self.packages[g.package].dynamic_w += u * g.watts;
                        vm.busy += u * g.cores;
                        work += u * g.cores * g.progress * STEP_S;
                    }
                    truth.work_core_s += work;
                    truth.jobs += batch.progress(work);
                }
                Work::Queue(queue) => {
                    let cores = &self.cores;
                    let share = |n: usize| cores[vm.cores[n]].share;
                    let runs = vm.bandwidth.as_mut().is_none_or(|bandwidth| {
                        bandwidth.may_run(queue.waiting(t, STEP_S) / STEP_S, &mut vm.stops)
                    });
                    if !runs {
                        queue.stop(t, STEP_S);
                    }
                    queue.run(t, STEP_S, share, &mut truth.latency, &mut truth.refused);
                    if let Some(bandwidth) = vm.bandwidth.as_mut().filter(|_| runs) {
                        bandwidth.used(queue.busy().iter().sum());
                    }
                    vm.busy = 0.0;
                    for (core, busy) in vm.cores.iter().zip(queue.busy()) {
                        let u = busy / STEP_S;
                        let package = core * self.packages.len() / self.cores.len();
                        self.packages[package].dynamic_w +=
                            u * watts_per_core * self.cores[*core].scale;
                        vm.busy += u;
                    }
                }
            }
        }
        self.power_w = self.static_w + self.dynamic_w();
        self.busy = self.vms.iter().map(|vm| vm.busy).sum();
        self.stopped = (0.0, 0.0);
        for vm in self.vms.iter().filter(|vm| vm.bandwidth.is_some()) {
            let sum = if vm.user_facing { &mut self.stopped.0 } else { &mut self.stopped.1 };
            *sum += vm.stopped_s();
        }
    }

    /// A step in which every core is busy for `share` of it.
    fn keep_busy(&mut self, share: f64) {
        let watts = share * self.watts_per_core();
        let (cores, packages) = (self.cores.len(), self.packages.len());
        for (n, core) in self.cores.iter().enumerate() {
            self.packages[n * packages / cores].dynamic_w += watts * core.scale;
        }
        for vm in &mut self.vms {
            vm.busy = 0.0;
        }
        self.power_w = self.static_w + self.dynamic_w();
        self.busy = share * cores as f64;
        self.stopped = (0.0, 0.0);
    }

    /// Beyond idle, at full use and the highest frequency.
    fn watts_per_core(&self) -> f64 {
        self.model.dynamic_w() / self.cores.len().max(1) as f64
    }

    /// Moves the hardware's ceilings.
    fn regulate(&mut self) {
        let idle = self.static_w;
        let package_idle = idle * PACKAGE_SHARE / self.packages.len() as f64;
        let mut top: f64 = 0.0;
        for p in &mut self.packages {
            let before = p.ceiling.share;
            let room = p.limit.map(|limit| limit / COUNTED - package_idle);
            p.ceiling.step(p.dynamic_w, room, p.top, self.exponent);
            self.dirty |= p.ceiling.share != before;
            top = top.max(p.top);
        }
        let before = self.slot.share;
        let (dynamic, room) = (self.dynamic_w(), self.slot_limit.map(|limit| limit - idle));
        self.slot.step(dynamic, room, top, self.exponent);
        self.dirty |= self.slot.share != before;
    }

    /// Works out what every core runs at, after a cap or a ceiling has moved.
    fn rebuild(&mut self) {
        self.dirty = false;
        let count = self.cores.len();
        let packages = self.packages.len();
        for p in &mut self.packages {
            p.top = 0.0;
        }
        let mut sum = 0.0;
        let ceilings: Vec<_> = self
            .packages
            .iter()
            .map(|p| p.ceiling.share.min(self.slot.share).min(self.supply_share))
            .map(|share| (share, if share < 1.0 { self.model.scale(share) } else { 1.0 }))
            .collect();
        for (n, core) in self.cores.iter_mut().enumerate() {
            let package = n * packages / count;
            let (share, scale) = ceilings[package];
            (core.share, core.scale) = if core.cap_share <= share {
                (core.cap_share, core.cap_scale)
            } else {
                (share, scale)
            };
            let top = &mut self.packages[package].top;
            *top = top.max(core.cap_share);
            sum += core.share;
        }
        self.static_w = self.model.static_w(sum / count.max(1) as f64);
        (self.engaged, self.batch_share, self.batch_cores) = (false, 0.0, 0.0);
        let (mut user_facing, mut other) = (ByCause::default(), ByCause::default());
        for n in 0..self.vms.len() {
            let groups = self.groups(n);
            let held = self.held_cores(n);
            let vm = &mut self.vms[n];
            vm.groups = groups;
            vm.held = held;
            self.engaged |= held.total() > held.software;
            if vm.user_facing {
                user_facing.add(&held, 1.0);
            } else {
                other.add(&held, 1.0);
                let share = vm.cores.iter().map(|c| self.cores[*c].share).sum::<f64>();
                self.batch_share += share * vm.quota_share();
                self.batch_cores += vm.cores.len() as f64;
            }
        }
        let any = user_facing.total() + other.total() > 0.0;
        self.held = any.then_some((user_facing, other));
    }

    fn groups(&self, vm: usize) -> Vec<Group> {
        let vm = &self.vms[vm];
        let watts = self.watts_per_core();
        let mut groups: Vec<Group> = Vec::with_capacity(vm.groups.len());
        for n in &vm.cores {
            let core = &self.cores[*n];
            let package = n * self.packages.len() / self.cores.len();
            match groups.iter_mut().find(|g| g.package == package && g.share == core.share) {
                Some(group) => {
                    group.cores += 1.0;
                    group.watts += watts * core.scale;
                }
                None => {
                    let stretch = stretch(vm.bound, core.share);
                    groups.push(Group {
                        package,
                        share: core.share,
                        cores: 1.0,
                        stretch,
                        watts: watts * core.scale,
                        progress: 1.0 / stretch,
                    });
                }
            }
        }
        groups
    }

    /// How many of the VM's cores are held below their highest frequency, by what holds them lowest.
    fn held_cores(&self, vm: usize) -> ByCause {
        let mut held = ByCause::default();
        for n in &self.vms[vm].cores {
            let core = &self.cores[*n];
            if core.share >= 1.0 {
                continue;
            }
            let rapl = self.packages[n * self.packages.len() / self.cores.len()].ceiling.share;
            if core.cap_share <= core.share {
                held.software += 1.0;
            } else if rapl <= core.share {
                held.rapl += 1.0;
            } else if self.slot.share <= core.share {
                held.out_of_band += 1.0;
            } else {
                held.supply += 1.0;
            }
        }
        held
    }

    pub(super) fn set_cap(&mut self, spec: &ServerSpec, core: CoreId, khz: KiloHertz) {
        let Some(n) = spec.cores.iter().position(|c| c.id == core) else {
            return;
        };
        let ladder = &spec.cores[n].ladder;
        self.cap_core(n, ladder, ladder.at_or_below(khz));
    }

    fn cap_core(&mut self, n: usize, ladder: &Ladder, cap: usize) {
        if self.cores[n].cap != cap {
            let share = ladder.khz(cap).share_of(ladder.max());
            let scale = if cap == ladder.top() { 1.0 } else { self.model.scale(share) };
            self.cores[n] = CoreState { cap, cap_share: share, cap_scale: scale, ..self.cores[n] };
            self.cap_changes += 1;
            self.dirty = true;
        }
    }

    pub(super) fn set_package_limit(&mut self, package: u16, limit: Option<Watts>) {
        if let Some(p) = self.packages.get_mut(usize::from(package)) {
            p.limit = limit.map(Watts::as_f64);
        }
    }

    pub(super) fn set_slot_cap(&mut self, limit: Option<Watts>) {
        self.slot_limit = limit.map(Watts::as_f64);
    }

    /// The ceiling that the supplies' alert puts on every core.
    pub(super) fn set_supply_share(&mut self, share: f64) {
        self.dirty |= self.supply_share != share;
        self.supply_share = share;
    }

    pub(super) fn set_kept_busy(&mut self, share: Option<f64>) {
        self.kept_busy = share;
    }

    pub(super) fn set_vm_cores(&mut self, vm: usize, cores: Vec<usize>, t: f64) {
        let vm = &mut self.vms[vm];
        match &mut vm.work {
            Work::Nothing => return,
            Work::Queue(queue) => queue.resize(cores.len(), t),
            Work::Batch(_) | Work::Line(_) => {}
        }
        vm.cores = cores;
        self.dirty = true;
    }

    pub(super) fn set_vm_quota(&mut self, vm: usize, quota: Option<CpuQuota>) {
        let vm = &mut self.vms[vm];
        match (&mut vm.bandwidth, quota) {
            (Some(bandwidth), Some(quota)) => bandwidth.change(quota),
            (bandwidth, quota) => *bandwidth = quota.map(Bandwidth::new),
        }
        vm.quota = quota;
        if let Work::Queue(queue) = &mut vm.work {
            queue.hold(quota.is_some());
        }
        self.dirty = true;
    }

    pub(super) fn stops(&self, vm: usize) -> CpuStops {
        self.vms[vm].stops
    }

    pub(super) fn stop_vm(&mut self, vm: usize) {
        let vm = &mut self.vms[vm];
        vm.work = Work::Nothing;
        vm.cores.clear();
        self.dirty = true;
    }

    /// Ends the window of [`Server::utilisation`].
    pub(super) fn end_window(&mut self, step: u64, truth: &[VmTruth]) {
        let span = (step - self.window_step) as f64 * STEP_S;
        self.window_step = step;
        for (vm, truth) in self.vms.iter_mut().zip(truth) {
            let cores = vm.cores.len().max(1) as f64;
            vm.window_mean = (truth.cpu_s - vm.window_start_s) / (span * cores);
            vm.window_start_s = truth.cpu_s;
        }
    }

    pub(super) fn dynamic_w(&self) -> f64 {
        self.packages.iter().map(|p| p.dynamic_w).sum()
    }
    /// What RAPL counts of one package.
    pub(super) fn package_w(&self, package: usize) -> f64 {
        let idle = self.static_w * PACKAGE_SHARE / self.packages.len() as f64;
        COUNTED * (idle + self.packages[package].dynamic_w)
    }
    /// The same of all packages.
    pub(super) fn packages_w(&self) -> f64 {
        (0..self.packages.len()).map(|package| self.package_w(package)).sum()
    }
    fn dram_w(&self) -> f64 {
        self.static_w * DRAM_SHARE / self.packages.len() as f64
    }
    /// Package energy `extra` seconds into the current step, in joules.
    pub(super) fn package_j(&self, package: u16, extra: f64) -> f64 {
        let n = usize::from(package);
        self.packages.get(n).map_or(0.0, |p| p.energy_j + self.package_w(n) * extra)
    }
    /// Memory energy of one package, likewise.
    pub(super) fn dram_j(&self, package: u16, extra: f64) -> f64 {
        if usize::from(package) < self.packages.len() {
            self.dram_j + self.dram_w() * extra
        } else {
            0.0
        }
    }
    /// CPU time of all cores `extra` seconds into the current step.
    pub(super) fn cpu_s(&self, extra: f64) -> f64 {
        self.cpu_s + self.busy * extra
    }
    pub(super) fn busy(&self, vm: usize) -> f64 {
        self.vms[vm].busy
    }
    pub(super) fn utilisation(&self, vm: usize) -> f64 {
        self.vms.get(vm).map_or(0.0, |vm| vm.window_mean)
    }
    pub(super) fn batch_share_min(&self) -> f64 {
        let batch = self.vms.iter().filter(|vm| !vm.user_facing);
        batch.flat_map(|vm| &vm.cores).map(|core| self.cores[*core].share).fold(1.0, f64::min)
    }
    pub(super) fn vm_share_min(&self, vm: usize) -> f64 {
        let groups = self.vms.get(vm).map_or(&[][..], |vm| &vm.groups);
        groups.iter().map(|group| group.share).fold(1.0, f64::min)
    }
    pub(super) fn core_share(&self, core: usize) -> f64 {
        self.cores[core].share
    }
}

/// The share of what a VM wants in this step that its quota lets it have.
fn limited(
    bandwidth: &mut Option<Bandwidth>,
    stops: &mut CpuStops,
    wanted: impl FnOnce() -> f64,
) -> f64 {
    bandwidth.as_mut().map_or(1.0, |bandwidth| bandwidth.part(wanted(), stops))
}

/// Where these cores are in the server's list; unknown ids are left out.
pub(super) fn core_indices(spec: &ServerSpec, ids: &[CoreId]) -> Vec<usize> {
    ids.iter().filter_map(|id| spec.cores.iter().position(|c| c.id == *id)).collect()
}

/// Which VM of a server has this name.
pub(super) fn vm_index(spec: &ServerSpec, vm: &VmId) -> Option<usize> {
    spec.vms.iter().position(|v| v.id == *vm)
}
