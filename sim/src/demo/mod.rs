//! Ready-made chassis: the paper's servers, with a load that makes the budget bite.

mod built_in;
mod overcommitted;
mod traced;

use std::collections::BTreeMap;

use ballast_agent_core::{ControlledVm, PhysicalCore, core_groups};
use ballast_types::wire::VmSpec;
use ballast_types::{
    Core, CoreId, KiloHertz, Ladder, LadderError, OnExtreme, PowerModel, ServerId, SplitMix64, VmClass, VmId,
    Watts,
};

use crate::load::Profile;
use crate::plant::{Load, PlantSpec, SensorSpec, ServerSpec, SharedSpec, SupplySpec, VmLoad};
use crate::trace::Trace;
pub use overcommitted::overcommitted;

/// Cores of one server: 2 packages of 20.
const CORES: u16 = 40;
/// User-facing VMs of one server, and the cores of each.
const USER_FACING: (u16, u16) = (3, 4);
/// The same of batch VMs.
const BATCH: (u16, u16) = (3, 6);

#[derive(Clone, Copy, Debug)]
pub struct DemoOptions<'a> {
    /// How many servers; at least one.
    pub servers: usize,
    /// How long it will run: the load's timeline is laid out over this.
    pub seconds: f64,
    /// What the truth is judged against. The built-in load does not depend on it; a trace's automatic
    /// scale does.
    pub budget: Watts,
    pub seed: u64,
    /// Whether the plant's own hardware caps act.
    pub hardware_caps: bool,
    /// Load from a trace instead of the built-in one.
    pub trace: Option<(&'a Trace, TraceScale)>,
    /// Trace seconds that pass in one second; zero makes one day pass in the run.
    pub speedup: f64,
    /// Whether user-facing VMs are queues, with latencies. Otherwise they follow a line, which is many
    /// times faster to compute.
    pub queues: bool,
}

impl Default for DemoOptions<'_> {
    fn default() -> Self {
        Self {
            servers: 12,
            seconds: 60.0,
            budget: default_budget(12),
            seed: 1,
            hardware_caps: true,
            trace: None,
            speedup: 0.0,
            queues: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceScale {
    /// Every VM's line is taken relative to its own peak, then all are scaled so that the uncapped peak
    /// is 15 % above the budget while the peak at the floor stays 5 % under it, as far as both can be.
    /// Where the recorded load is so flat that it would then exceed the budget nearly always, the scale is
    /// lower: down to a peak 5 % above the budget.
    Auto,
    /// The recorded utilisation times this.
    Factor(f64),
}

/// The budget that the built-in load is made for: 2,450 W for twelve servers.
pub fn default_budget(servers: usize) -> Watts {
    Watts::from_milli(2_450_000 * servers.max(1) as i64 / 12)
}

/// The demo's chassis: servers of 2 × 20 cores from 1.2 to 2.4 GHz, each with three user-facing VMs of
/// four cores and three batch VMs of six.
///
/// The built-in load starts quietly, has three peaks that would draw about 16 % more than the default
/// budget, and from 42 % of the run on falls for good. At the floor of the batch cores it always fits.
pub fn demo(options: &DemoOptions<'_>) -> PlantSpec {
    match options.trace {
        None => built_in::chassis_of(options),
        Some((trace, scale)) => traced::from_trace(options, trace, scale),
    }
}

/// The scale of a chassis whose load is a trace: that of its user-facing and of its batch VMs.
///
/// `None` if no VM plays a trace. For messages to people.
pub fn trace_scales(spec: &PlantSpec) -> Option<(f64, f64)> {
    traced::scales(spec)
}

/// The chassis, with VMs that do what `load` says for `(server, VM within its class, class)`.
fn chassis(options: &DemoOptions<'_>, mut load: impl FnMut(usize, u16, VmClass) -> Load) -> PlantSpec {
    let servers = options.servers.max(1);
    let per_server = |w: f64| Watts::from_f64(w * servers as f64).unwrap_or(Watts::ZERO);

    // Any two of the four can carry the default budget.
    let rated = per_server(110.0);
    let mut supplies = vec![SupplySpec::active(rated); 3];
    supplies.push(SupplySpec::standby(rated));

    PlantSpec {
        servers: (0..servers).map(|n| server(n, &mut load)).collect(),
        supplies,
        shared: SharedSpec {
            fans_idle: per_server(5.0),
            fans_full: per_server(10.0),
            switch: per_server(2.0),
        },
        meter: SensorSpec::default(),
        supply_meter: SensorSpec::default(),
        hardware_caps: options.hardware_caps,
        budget: options.budget,
    }
}

fn server(index: usize, load: &mut impl FnMut(usize, u16, VmClass) -> Load) -> ServerSpec {
    let ladder = ladder();
    let cores: Vec<CoreId> = (0..CORES).map(CoreId).collect();
    let mut wanted = Vec::new();
    let mut loads = BTreeMap::new();

    for (class, name, (count, size)) in
        [(VmClass::UserFacing, "web", USER_FACING), (VmClass::NonUserFacing, "batch", BATCH)]
    {
        for n in 0..count {
            let id = VmId::new(&format!("{name}{n}")).expect("letters and a digit");
            let (throttle_order, on_extreme) = (0, OnExtreme::None);
            let spec = VmSpec {
                class: Some(class),
                throttle_order,
                cores: size,
                cgroup: None,
                on_extreme,
                tenant: None,
                pinned: false,
            };

            loads.insert(id.clone(), load(index, n, class));
            wanted.push((id, spec));
        }
    }

    // The agent's own placement: the plant's VMs run where the agent would put them.
    let places: Vec<_> = cores.iter().copied().map(PhysicalCore::from).collect();
    let groups = core_groups(&places, &wanted).expect("30 cores fit on 40");
    let vms = groups.into_iter().filter_map(|vm| {
        let load = loads.remove(&vm.id)?;
        let ControlledVm { id, class, throttle_order, cores, vcpus, on_extreme } = vm;
        Some(VmLoad { id, class, throttle_order, cores, vcpus, on_extreme, load })
    });

    ServerSpec {
        id: ServerId::new(&format!("s{:02}", index + 1)).expect("a letter and digits"),
        model: PowerModel::PAPER,
        sockets: 2,
        cores: cores.iter().map(|id| Core { id: *id, ladder: ladder.clone() }).collect(),
        vms: vms.collect(),
    }
}

/// 1.2 to 2.4 GHz in steps of 100 MHz.
fn ladder() -> Ladder {
    let mhz = KiloHertz::from_mhz;
    let ladder: Result<_, LadderError> = Ladder::stepped(mhz(1200), mhz(2400), mhz(100));
    ladder.expect("the floor is below the maximum")
}

/// The demo's chassis with its usual budget, whose VMs do what `load` says for their server and class.
pub fn loaded(servers: usize, load: impl Fn(usize, VmClass) -> Profile) -> PlantSpec {
    let budget = default_budget(servers);
    let options = DemoOptions { servers, budget, queues: false, ..DemoOptions::default() };
    chassis(&options, |server, _, class| Load::Profile(load(server, class)))
}

/// Use of the user-facing VMs by server. Every 250 ms it flips between 10 and 50 % with a probability of 3 %. At most 60 %
/// of the servers are high.
pub fn moving(servers: usize, seconds: f64, seed: u64) -> Vec<Profile> {
    let mut random = SplitMix64::new(seed);
    let mut high = vec![false; servers];
    let mut steps = vec![vec![(0.0, 0.1)]; servers];
    for quarter in 1..(4.0 * seconds) as u32 {
        for n in 0..servers {
            let flips = random.draw() % 100 < 3;
            let is_full = high.iter().filter(|h| **h).count() >= servers * 6 / 10;
            if flips && (high[n] || !is_full) {
                high[n] = !high[n];
                steps[n].push((f64::from(quarter) / 4.0, if high[n] { 0.5 } else { 0.1 }));
            }
        }
    }
    steps.into_iter().map(|steps| Profile::Steps(steps.into())).collect()
}

/// The same, whose batch VMs ask for `high` from the third second until `falls_s`, and for little from then
/// on. User-facing VMs need 30 % all the time.
pub fn overloaded(servers: usize, high: f64, falls_s: f64) -> PlantSpec {
    loaded(servers, |_, class| match class {
        VmClass::UserFacing => Profile::Constant(0.3),
        VmClass::NonUserFacing => Profile::Steps([(0.0, 0.3), (3.0, high), (falls_s, 0.05)].into()),
    })
}

#[cfg(test)]
mod tests;
