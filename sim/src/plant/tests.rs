//! The plant against its specification.

use super::*;
use ballast_types::{Core, Ladder, PowerModel, ServerId};

const MHZ: fn(u32) -> KiloHertz = KiloHertz::from_mhz;

/// 2 × 20 cores, 1.2 to 2.4 GHz, one VM on every core.
fn server(load: Load) -> ServerSpec {
    let ladder = Ladder::stepped(MHZ(1200), MHZ(2400), MHZ(100)).unwrap();
    let cores: Vec<_> = (0..40).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
    let vm = VmLoad {
        id: VmId::new("vm").unwrap(),
        class: VmClass::NonUserFacing,
        throttle_order: 0,
        cores: cores.iter().map(|c| c.id).collect(),
        load,
    };
    let id = ServerId::new("s0").unwrap();
    ServerSpec { id, model: PowerModel::PAPER, sockets: 2, cores, vms: vec![vm] }
}

/// One server, one big supply, no fans.
fn one(load: Load) -> PlantSpec {
    let none = Watts::ZERO;
    PlantSpec {
        servers: vec![server(load)],
        supplies: vec![SupplySpec::active(Watts::from_whole(1000))],
        shared: SharedSpec { fans_idle: none, fans_full: none, switch: none },
        meter: SensorSpec::default(),
        supply_meter: SensorSpec::default(),
        hardware_caps: true,
        budget: Watts::from_whole(300),
    }
}

fn constant(u: f64) -> Load {
    Load::Batch(BatchSpec::endless(1e9, Profile::Constant(u)))
}

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn cap_all(plant: &mut Plant, khz: KiloHertz) {
    for n in 0..40 {
        plant.set_core_cap(0, CoreId(n), khz);
    }
}

#[test]
fn a_server_draws_what_the_paper_measured() {
    for (u, mhz, want) in [
        (0.0, 2400, 112.0),
        (1.0, 2400, 310.0),
        (0.0, 1200, 111.0),
        (1.0, 1200, 169.0),
        (1.0, 1800, 110.0 + 1.5 + 118.9),
    ] {
        let mut plant = Plant::new(one(constant(u)), 1);
        cap_all(&mut plant, MHZ(mhz));
        plant.advance(ms(20));
        let got = plant.server_power(0).as_f64();
        assert!((got - want).abs() < 0.1, "u {u} at {mhz} MHz: {got} W, not {want}");
    }
}
