//! What the machines are made of, and what their servers draw.
//!
//! Both servers run batch work, and a user-facing VM that is calm or busy. While both are calm all fits. With
//! one of them busy the chassis is above its budget, and needs are uneven; with both, the floor just fits.

use core::time::Duration;

use ballast_agent_core::{ControlledVm, Params as AgentParams, VmUsage};
use ballast_chassis_core::{Params as ChassisParams, Server};
use ballast_types::{
    BootId, ChassisId, Core, CoreId, Instance, KiloHertz, Ladder, OnExtreme, PowerModel, ServerId,
    Utilisation, VmClass, VmId, Watts,
};

/// Everything that is read is read so often; messages reach their end within it.
pub(crate) const TICK: Duration = Duration::from_millis(500);

pub(crate) const LEASE: Duration = Duration::from_secs(2);

pub(crate) const BUDGET: Watts = Watts::from_whole(500);

/// What no agent's meter sees; the managers are told.
const SHARED: Watts = Watts::from_whole(20);

/// What the servers may share.
pub(crate) const SHARABLE: Watts = Watts::from_whole(480);

/// What each would get if all got the same.
pub(crate) const EVEN: Watts = Watts::from_whole(240);

/// The lowest cap that a BMC keeps.
const FLOOR: Watts = Watts::from_whole(150);

/// The supply carries more than the budget: it is no part of what is looked at.
const RATED: Watts = Watts::from_whole(1000);

/// The highest frequency and the floor.
const LADDER: [KiloHertz; 2] = [KiloHertz::from_mhz(1200), KiloHertz::from_mhz(2400)];

/// What a core may be set to at most: not capped.
pub(crate) const FREE: KiloHertz = LADDER[1];

/// The core of the batch VM; the other is the user-facing one's.
const BATCH: usize = 0;

fn id<T, E: core::fmt::Debug>(made: Result<T, E>) -> T {
    made.expect("a fixed name is an id")
}

pub(crate) fn server(index: usize) -> ServerId {
    id(ServerId::new(["a", "b"][index]))
}

/// The parameters of a manager's start. Everything has its default, but for what would make a step of
/// time more than one state, and for a capping event's end, which else were beyond every horizon.
pub(crate) fn chassis_params(instance: u64) -> ChassisParams {
    let servers = (0..2).map(|index| Server::new(server(index), Some(FLOOR))).collect();
    let chassis = id(ChassisId::new("chassis"));
    ChassisParams {
        instance: Instance(instance),
        shared_floor: Some(SHARED),
        poll_period: TICK,
        heartbeat: TICK,
        lease: LEASE,
        silent_after: TICK * 3,
        lift_hold: Duration::from_secs(3),
        ..ChassisParams::defaults(chassis, BUDGET, vec![RATED], servers)
    }
}

/// The parameters of an agent in boot number `boot` of its server.
pub(crate) fn agent_params(index: usize, boot: u32) -> AgentParams {
    let ladder = id(Ladder::new(&LADDER));
    let cores = (0..2).map(|core| Core { id: CoreId(core), ladder: ladder.clone() }).collect();
    let boot = id(BootId::new(&format!("boot-{boot}")));
    AgentParams {
        sample_period: TICK,
        settle: TICK,
        // What the leases promise must hold without it.
        server_limit_floor: None,
        ..AgentParams::defaults(server(index), boot, id(ChassisId::new("chassis")), cores)
    }
}

pub(crate) fn vms() -> Vec<ControlledVm> {
    let vm = |name, class, core: usize| ControlledVm {
        id: id(VmId::new(name)),
        class,
        throttle_order: 0,
        cores: vec![CoreId(core as u16)],
        vcpus: None,
        on_extreme: OnExtreme::None,
    };
    vec![vm("batch", VmClass::NonUserFacing, BATCH), vm("web", VmClass::UserFacing, 1 - BATCH)]
}

/// How busy each VM of server `index` is, batch first.
fn load(index: usize, busy: bool) -> [f64; 2] {
    [[0.9, 0.8][index], if busy { 1.0 } else { 0.2 }]
}

/// The same as the agent is told.
pub(crate) fn usage(index: usize, busy: bool) -> Vec<VmUsage> {
    let share = |share| Utilisation::from_ratio(share).unwrap_or(Utilisation::IDLE);
    (vms().into_iter().zip(load(index, busy)))
        .map(|(vm, load)| VmUsage { vm: vm.id, utilisation: share(load), throttled: false })
        .collect()
}

/// What server `index` draws with its cores at `khz`.
pub(crate) fn draw(index: usize, busy: bool, khz: [KiloHertz; 2]) -> Watts {
    let model = PowerModel::PAPER;
    let cores = khz.iter().zip(load(index, busy)).map(|(khz, load)| {
        let share = f64::from(khz.get()) / f64::from(FREE.get());
        model.power(load, share)
    });
    cores.sum::<Watts>().per(2)
}

/// What the supply carries when the servers draw `servers`.
pub(crate) fn total(servers: Watts) -> Watts {
    servers + SHARED
}
