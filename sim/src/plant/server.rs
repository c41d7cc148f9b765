//! One server: cores, packages, VMs, and the limits that hold them.

mod foresight;
mod sharing;

pub(super) use foresight::BatchCore;
use sharing::Sharing;

use ballast_types::{CoreId, KiloHertz, Ladder, PowerModel, VmId, Watts};

use super::bandwidth::{Bandwidth, CpuQuota, CpuStops};
use super::ceiling::Ceiling;
use super::truth::{ByCause, Mean, VmTruth};
use super::vm::{Group, Run, SimVm, Speed, Work};
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

#[derive(Clone, Copy, Debug)]
struct CoreState {
    package: usize,
    /// Its cap as an index on its ladder.
    cap: usize,
    /// The same as a speed. In force from the next step on.
    next: Speed,
    capped: Speed,
}

#[derive(Clone, Debug)]
struct Package {
    /// What its cores may draw beside its idle power, before the regulators' loss.
    limit: Option<f64>,
    ceiling: Ceiling,
    /// What its fastest core may run at, by this ceiling and all that hold the whole server.
    held: Speed,
    dynamic_w: f64,
    energy_j: f64,
    /// Highest cap among its cores.
    top: f64,
}

impl Package {
    /// What RAPL counts, with `idle_w` beside its cores' work.
    fn watts(&self, idle_w: f64) -> f64 {
        COUNTED * (idle_w + self.dynamic_w)
    }
}

/// What has to be worked out anew when a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Anew {
    Nothing,
    /// A ceiling or a quota has moved.
    Speeds,
    /// A cap or a VM has moved: which cores run alike, and then their speeds.
    Runs,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    model: PowerModel,
    exponent: f64,
    /// One over the exponent.
    root: f64,
    cores: Vec<CoreState>,
    runs: Vec<Run>,
    packages: Vec<Package>,
    dram_j: f64,
    vms: Vec<SimVm>,
    sharing: Sharing,
    slot_limit: Option<f64>,
    slot: Ceiling,
    supply_share: f64,
    /// All cores are kept busy for this share of their time, and the VMs stand still.
    pub(super) kept_busy: Option<f64>,
    anew: Anew,
    /// The step at which the current window of use began.
    window_step: u64,
    static_w: f64,
    /// Of these, what each package draws, and its memory.
    package_idle_w: f64,
    dram_w: f64,
    /// DC draw in the current step.
    pub(super) power_w: f64,
    pub(super) energy_j: f64,
    /// CPU time of all cores so far.
    cpu_s: f64,
    /// CPU seconds per second in the current step.
    busy: f64,
    /// Core shares of non-user-facing VMs, times what their quotas leave them.
    pub(super) batch: Mean,
    /// Core shares of user-facing VMs.
    pub(super) user_facing: Mean,
    /// Cores of user-facing and of other VMs that are held down, by cause.
    pub(super) held: Option<(ByCause, ByCause)>,
    /// Some core is held down by hardware.
    pub(super) engaged: bool,
    /// Core-seconds of user-facing and of other VMs that their quotas stopped in the current step.
    pub(super) stopped: (f64, f64),
    /// Core-seconds for which user-facing VMs were held down or stopped, since the start.
    pub(super) user_facing_slowed_s: f64,
    pub(super) cap_changes: u64,
}

impl Server {
    pub(super) fn new(spec: &ServerSpec, index: usize, seed: u64) -> Self {
        let sockets = usize::from(spec.sockets.max(1));
        let core = |(n, core): (usize, &ballast_types::Core)| CoreState {
            package: n * sockets / spec.cores.len(),
            cap: core.ladder.top(),
            next: Speed::FULL,
            capped: Speed::FULL,
        };

        let package = Package {
            limit: None,
            ceiling: Ceiling::new(RAPL_TAU_S),
            held: Speed::FULL,
            dynamic_w: 0.0,
            energy_j: 0.0,
            top: 1.0,
        };

        let vms = spec.vms.iter().enumerate().map(|(n, vm)| {
            let cores = core_indices(spec, &vm.cores);
            let rng = Stream::new(seed, Purpose::Arrivals, index as u64, n as u64);
            SimVm::new(vm, cores, rng)
        });

        Self {
            model: spec.model,
            exponent: spec.model.exponent(),
            root: 1.0 / spec.model.exponent(),
            cores: spec.cores.iter().enumerate().map(core).collect(),
            runs: Vec::new(),
            packages: vec![package; sockets],
            dram_j: 0.0,
            vms: vms.collect(),
            sharing: Sharing::default(),
            slot_limit: None,
            slot: Ceiling::new(SLOT_TAU_S),
            supply_share: 1.0,
            kept_busy: None,
            anew: Anew::Runs,
            window_step: 0,
            static_w: 0.0,
            package_idle_w: 0.0,
            dram_w: 0.0,
            power_w: 0.0,
            energy_j: 0.0,
            cpu_s: 0.0,
            busy: 0.0,
            batch: Mean::default(),
            user_facing: Mean::default(),
            held: None,
            engaged: false,
            stopped: (0.0, 0.0),
            user_facing_slowed_s: 0.0,
            cap_changes: 0,
        }
    }

    /// Books the step that has passed.
    pub(super) fn book(&mut self, truth: &mut [VmTruth]) {
        self.energy_j += self.power_w * STEP_S;
        self.cpu_s += self.busy * STEP_S;
        for package in &mut self.packages {
            package.energy_j += package.watts(self.package_idle_w) * STEP_S;
        }
        self.dram_j += self.dram_w * STEP_S;

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

    /// Finds anew what has changed since the last step.
    fn refresh(&mut self) {
        match core::mem::replace(&mut self.anew, Anew::Nothing) {
            Anew::Nothing => {}
            Anew::Speeds => self.find_speeds(),
            Anew::Runs => {
                self.find_runs();
                self.find_speeds();
            }
        }
    }

    /// Works out the step that begins at second `t`.
    pub(super) fn step(&mut self, t: f64, truth: &mut [VmTruth]) {
        self.refresh();

        for package in &mut self.packages {
            package.dynamic_w = 0.0;
        }
        if let Some(share) = self.kept_busy {
            self.keep_busy(share);
            return;
        }

        let watts_per_core = self.watts_per_core();
        (self.busy, self.stopped) = (0.0, (0.0, 0.0));
        self.sharing.begin();

        for (vm, truth) in self.vms.iter_mut().zip(truth) {
            let part = self.sharing.part(vm);
            run(vm, truth, (t, part), &self.cores, &mut self.packages, watts_per_core);

            // Who gets a part of a core wants the whole of it.
            self.sharing.want(vm, vm.busy / part);
            self.busy += vm.busy;
            if let Some(bandwidth) = &vm.bandwidth {
                let stopped = if vm.user_facing { &mut self.stopped.0 } else { &mut self.stopped.1 };
                *stopped += bandwidth.stopped_s;
            }
        }

        self.power_w = self.static_w + self.dynamic_w();
    }

    /// A step in which every core is busy for `share` of it.
    fn keep_busy(&mut self, share: f64) {
        let watts = share * self.watts_per_core();
        for core in &self.cores {
            let scale = speed(core, &self.packages).scale;
            self.packages[core.package].dynamic_w += watts * scale;
        }
        for vm in &mut self.vms {
            vm.busy = 0.0;
        }
        self.power_w = self.static_w + self.dynamic_w();
        self.busy = share * self.cores.len() as f64;
        self.stopped = (0.0, 0.0);
    }

    /// Beyond idle, at full use and the highest frequency.
    fn watts_per_core(&self) -> f64 {
        self.model.dynamic_w() / self.cores.len().max(1) as f64
    }

    pub(super) fn regulate(&mut self) {
        let mut moved = false;
        let mut top: f64 = 0.0;
        for p in &mut self.packages {
            let before = p.ceiling.share;
            let room = p.limit.map(|limit| limit - self.package_idle_w);
            p.ceiling.step(p.dynamic_w, room, p.top, self.root);
            moved |= p.ceiling.share != before;
            top = top.max(p.top);
        }
        let before = self.slot.share;
        let room = self.slot_limit.map(|limit| limit - self.static_w);
        self.slot.step(self.dynamic_w(), room, top, self.root);
        moved |= self.slot.share != before;
        if moved {
            self.work_out(Anew::Speeds);
        }
    }

    /// The next step begins with this.
    fn work_out(&mut self, anew: Anew) {
        self.anew = self.anew.max(anew);
    }

    /// Caps come into force: finds the cores that run alike, whatever the ceilings do.
    fn find_runs(&mut self) {
        for p in &mut self.packages {
            p.top = 0.0;
        }
        for core in &mut self.cores {
            core.capped = core.next;
            let top = &mut self.packages[core.package].top;
            *top = top.max(core.capped.share);
        }
        find_runs(&self.cores, 0..self.cores.len(), &mut self.runs);
        self.sharing.find(&mut self.vms);
        for vm in &mut self.vms {
            find_runs(&self.cores, vm.cores.iter().copied(), &mut vm.runs);
            vm.caps_hold = false;
        }
    }

    /// Works out what every core runs at, and what follows from it.
    fn find_speeds(&mut self) {
        for n in 0..self.packages.len() {
            let share = self.packages[n].ceiling.share.min(self.slot.share).min(self.supply_share);
            let known = self.packages.iter().map(|p| p.held).find(|held| held.share == share);
            self.packages[n].held = known.unwrap_or_else(|| Speed::new(share, self.exponent));
        }

        let mut sum = 0.0;
        for run in &self.runs {
            let share = run.cap.under(self.packages[run.package].held).share;
            sum = run.plus(sum, share);
        }

        let packages = self.packages.len() as f64;
        self.static_w = self.model.static_w(sum / self.cores.len().max(1) as f64);
        self.package_idle_w = self.static_w * PACKAGE_SHARE / packages;
        self.dram_w = self.static_w * DRAM_SHARE / packages;

        let watts = self.watts_per_core();
        (self.engaged, self.batch, self.user_facing) = (false, Mean::default(), Mean::default());
        let (mut user_facing, mut other) = (ByCause::default(), ByCause::default());

        for vm in &mut self.vms {
            let caps_hold = vm.runs.iter().all(|run| run.cap.share <= self.packages[run.package].held.share);
            // What only caps hold, before and now, does not feel a ceiling that moves.
            if !(caps_hold && vm.caps_hold) {
                regroup(vm, &self.packages, self.slot.share, watts);
                let held = core::mem::take(&mut vm.held);
                vm.held.add(&held, self.sharing.own(vm));
            }
            vm.caps_hold = caps_hold;
            self.engaged |= !caps_hold;
            let cores = vm.cores.len() as f64;

            if vm.user_facing {
                user_facing.add(&vm.held, 1.0);
                self.user_facing.add(vm.shares, cores);
            } else {
                other.add(&vm.held, 1.0);
                self.batch.add(vm.shares * vm.quota_share(), cores);
            }
        }

        let any = user_facing.total() + other.total() > 0.0;
        self.held = any.then_some((user_facing, other));
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
            self.cores[n] = CoreState { cap, next: Speed::new(share, self.exponent), ..self.cores[n] };
            self.cap_changes += 1;
            self.work_out(Anew::Runs);
        }
    }

    pub(super) fn set_package_limit(&mut self, package: u16, limit: Option<Watts>) {
        if let Some(p) = self.packages.get_mut(usize::from(package)) {
            p.limit = limit.map(|limit| limit.as_f64() / COUNTED);
        }
    }

    pub(super) fn set_slot_cap(&mut self, limit: Option<Watts>) {
        self.slot_limit = limit.map(Watts::as_f64);
    }

    /// The ceiling that the supplies' alert puts on every core.
    pub(super) fn set_supply_share(&mut self, share: f64) {
        if self.supply_share != share {
            self.supply_share = share;
            self.work_out(Anew::Speeds);
        }
    }

    pub(super) fn set_vm_cores(&mut self, vm: usize, cores: Vec<usize>, t: f64) {
        let vm = &mut self.vms[vm];
        match &mut vm.work {
            Work::Nothing => return,
            Work::Queue(queue) => queue.resize(vm.vcpus.map_or(cores.len(), usize::from), t),
            Work::Batch(_) | Work::Series(_) => {}
        }
        vm.cores = cores;
        self.work_out(Anew::Runs);
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
        self.work_out(Anew::Speeds);
    }

    pub(super) fn stops(&self, vm: usize) -> CpuStops {
        self.vms[vm].stops
    }

    pub(super) fn stop_vm(&mut self, vm: usize) {
        let vm = &mut self.vms[vm];
        vm.work = Work::Nothing;
        vm.cores.clear();
        self.work_out(Anew::Runs);
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
    /// What RAPL counts of all packages.
    pub(super) fn packages_w(&self) -> f64 {
        self.packages.iter().map(|package| package.watts(self.package_idle_w)).sum()
    }
    /// Package energy `extra` seconds into the current step, in joules.
    pub(super) fn package_j(&self, package: u16, extra: f64) -> f64 {
        let package = self.packages.get(usize::from(package));
        package.map_or(0.0, |p| p.energy_j + p.watts(self.package_idle_w) * extra)
    }
    /// Memory energy of one package, likewise.
    pub(super) fn dram_j(&self, package: u16, extra: f64) -> f64 {
        if usize::from(package) < self.packages.len() { self.dram_j + self.dram_w * extra } else { 0.0 }
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
        batch.flat_map(|vm| &vm.groups).map(|group| group.share).fold(1.0, f64::min)
    }
    pub(super) fn vm_share_min(&self, vm: usize) -> f64 {
        let groups = self.vms.get(vm).map_or(&[][..], |vm| &vm.groups);
        groups.iter().map(|group| group.share).fold(1.0, f64::min)
    }
    pub(super) fn core_share(&self, core: usize) -> f64 {
        speed(&self.cores[core], &self.packages).share
    }
}

/// Runs a VM that has `part` of its cores in the step that begins at second `t`.
#[inline]
fn run(
    vm: &mut SimVm,
    truth: &mut VmTruth,
    (t, part): (f64, f64),
    cores: &[CoreState],
    packages: &mut [Package],
    watts: f64,
) {
    let width = vm.width();

    match &mut vm.work {
        Work::Series(line) => {
            let demand = line.at(t);
            let allowed = limited(&mut vm.bandwidth, &mut vm.stops, || {
                vm.groups.iter().map(|group| group.wanted(demand) * width * part * group.cores).sum()
            });
            let work;
            (vm.busy, work) =
                spend(&vm.groups, packages, 1.0, |group| group.wanted(demand) * width * part * allowed);
            if !vm.user_facing {
                truth.work_core_s += work * STEP_S;
            }
        }
        Work::Nothing => vm.busy = 0.0,
        Work::Batch(batch) => {
            let u = batch.demand(t) * width * part;
            let u = u * limited(&mut vm.bandwidth, &mut vm.stops, || u * vm.cores.len() as f64);
            let work;
            (vm.busy, work) = spend(&vm.groups, packages, STEP_S, |_| u);
            truth.work_core_s += work;
            truth.jobs += batch.progress(work);
        }
        Work::Queue(queue) => {
            queue.set_part(part);
            let runs = vm
                .bandwidth
                .as_mut()
                .is_none_or(|bandwidth| bandwidth.may_run(queue.waiting(t, STEP_S) / STEP_S, &mut vm.stops));

            if !runs {
                queue.stop(t, STEP_S);
            }
            queue.run(
                t,
                STEP_S,
                |index| match vm.pool {
                    None => speed(&cores[vm.cores[index]], packages).share,
                    Some(_) => vm.shares / vm.cores.len() as f64,
                },
                &mut truth.latency,
                &mut truth.refused,
            );

            if let Some(bandwidth) = vm.bandwidth.as_mut().filter(|_| runs) {
                bandwidth.used(queue.busy().iter().sum());
            }
            vm.busy = spend_queue(queue.busy(), &vm.cores, vm.pool.is_some(), part, cores, packages, watts);
        }
    }
}

/// Cores whose work is known before the step: what they spend of their packages' power, how many are busy,
/// and the work that they do in `span`.
fn spend(groups: &[Group], packages: &mut [Package], span: f64, used: impl Fn(&Group) -> f64) -> (f64, f64) {
    let (mut busy, mut work) = (0.0, 0.0);
    for group in groups {
        let used = used(group);
        packages[group.package].dynamic_w += used * group.watts;
        busy += used * group.cores;
        work += used * group.cores * group.progress * span;
    }
    (busy, work)
}

/// The cores of a VM with a queue: adds their power to their packages, and returns how many are busy. `busy` is in
/// seconds of the step, by vCPU. Outside a pool each vCPU has a core of its own.
fn spend_queue(
    busy: &[f64],
    vm_cores: &[usize],
    in_pool: bool,
    part: f64,
    cores: &[CoreState],
    packages: &mut [Package],
    watts_per_core: f64,
) -> f64 {
    // In a pool the VM runs on any free core, so that its use is spread evenly.
    let even = busy.iter().sum::<f64>() * part / vm_cores.len().max(1) as f64;
    let used = vm_cores.iter().enumerate().map(|(index, core)| {
        let used = if in_pool { even } else { busy[index] };
        (&cores[*core], used / STEP_S)
    });
    spend_each(used, packages, watts_per_core)
}

/// The same of cores that are busy for a share of the step each, and draw `watts` at the highest frequency; gives how many
/// are busy.
fn spend_each<'a>(
    cores: impl Iterator<Item = (&'a CoreState, f64)>,
    packages: &mut [Package],
    watts: f64,
) -> f64 {
    let mut busy = 0.0;
    for (core, used) in cores {
        packages[core.package].dynamic_w += used * watts * speed(core, packages).scale;
        busy += used;
    }
    busy
}

/// What a core runs at in the current step.
fn speed(core: &CoreState, packages: &[Package]) -> Speed {
    core.capped.under(packages[core.package].held)
}

/// Sorts a list of cores into runs.
fn find_runs(all: &[CoreState], cores: impl Iterator<Item = usize>, runs: &mut Vec<Run>) {
    runs.clear();
    for core in cores.map(|n| &all[n]) {
        match runs.last_mut().filter(|r| (r.package, r.cap) == (core.package, core.capped)) {
            Some(run) => run.cores += 1,
            None => runs.push(Run { package: core.package, cap: core.capped, cores: 1 }),
        }
    }
}

/// Groups a VM's cores by what they run at, and counts those that are held down by what holds them lowest.
fn regroup(vm: &mut SimVm, packages: &[Package], slot_share: f64, watts: f64) {
    (vm.shares, vm.held) = (0.0, ByCause::default());
    vm.groups.clear();
    for run in &vm.runs {
        let package = &packages[run.package];
        let speed = run.cap.under(package.held);
        vm.shares = run.plus(vm.shares, speed.share);
        join(&mut vm.groups, run, speed, watts, vm.bound);

        if speed.share >= 1.0 {
            continue;
        }
        let held = if run.cap.share <= speed.share {
            &mut vm.held.software
        } else if package.ceiling.share <= speed.share {
            &mut vm.held.rapl
        } else if slot_share <= speed.share {
            &mut vm.held.out_of_band
        } else {
            &mut vm.held.supply
        };

        *held += f64::from(run.cores);
    }
}

/// Adds the cores of a run, each of which draws `watts` at full use and the highest frequency.
fn join(groups: &mut Vec<Group>, run: &Run, speed: Speed, watts: f64, bound: f64) {
    let alike = |g: &Group| g.package == run.package && g.share == speed.share;
    let n = groups.iter().position(alike).unwrap_or_else(|| {
        let stretch = stretch(bound, speed.share);
        groups.push(Group {
            package: run.package,
            share: speed.share,
            cores: 0.0,
            stretch,
            watts: 0.0,
            progress: 1.0 / stretch,
        });
        groups.len() - 1
    });
    groups[n].cores += f64::from(run.cores);
    groups[n].watts = run.plus(groups[n].watts, watts * speed.scale);
}

/// The share of what a VM wants in this step that its quota lets it have.
fn limited(bandwidth: &mut Option<Bandwidth>, stops: &mut CpuStops, wanted: impl FnOnce() -> f64) -> f64 {
    bandwidth.as_mut().map_or(1.0, |bandwidth| bandwidth.part(wanted(), stops))
}

/// Where these cores are in the server's list; unknown ids are left out.
pub(super) fn core_indices(spec: &ServerSpec, ids: &[CoreId]) -> Vec<usize> {
    ids.iter().filter_map(|id| spec.cores.iter().position(|c| c.id == *id)).collect()
}

pub(super) fn vm_index(spec: &ServerSpec, vm: &VmId) -> Option<usize> {
    spec.vms.iter().position(|v| v.id == *vm)
}
