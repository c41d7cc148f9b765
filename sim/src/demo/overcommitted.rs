//! A host that promises more CPUs than it has.

use ballast_types::{CoreId, OnExtreme, VmClass, VmId, Watts};

use super::built_in::user_facing;
use super::{CORES, DemoOptions, chassis, default_budget};
use crate::load::{BatchSpec, Profile};
use crate::plant::{Load, PlantSpec, VmLoad};

const VCPUS: u16 = 4;
/// Of each class's half of the cores, what its VMs want together: user-facing ones have room, batch has not.
const USER_FACING_WANTS: f64 = 0.5;
const BATCH_WANTS: f64 = 1.5;

/// Servers of 40 cores whose VMs have `ratio` times as many CPUs, half of them user-facing. All VMs run on any core,
/// as under KVM, until an agent says otherwise.
pub fn overcommitted(servers: usize, ratio: u16) -> PlantSpec {
    let options = DemoOptions { servers, budget: default_budget(servers), ..DemoOptions::default() };
    let mut spec = chassis(&options, |_, _, _| Load::Batch(BatchSpec::endless(1.0, Profile::Constant(0.0))));
    // Supplies that carry whatever the servers draw: nothing but software is to hold anybody down.
    for supply in &mut spec.supplies {
        supply.rated = Watts::from_whole(310 * servers as i64);
    }
    for server in &mut spec.servers {
        let of_class = |(class, name)| {
            let share = f64::from(CORES / 2) / f64::from(CORES / 2 * ratio);
            (0..CORES / 2 * ratio / VCPUS).map(move |n| VmLoad {
                id: VmId::new(&format!("{name}{n}")).expect("letters and digits"),
                class,
                throttle_order: 0,
                cores: (0..CORES).map(CoreId).collect(),
                vcpus: Some(VCPUS),
                on_extreme: OnExtreme::None,
                load: match class {
                    VmClass::UserFacing => {
                        user_facing(&options, Profile::Constant(USER_FACING_WANTS * share))
                    }
                    VmClass::NonUserFacing => Load::Batch(BatchSpec::endless(
                        60.0,
                        Profile::Constant((BATCH_WANTS * share).min(1.0)),
                    )),
                },
            })
        };
        let classes = [(VmClass::UserFacing, "web"), (VmClass::NonUserFacing, "batch")];
        server.vms = classes.into_iter().flat_map(of_class).collect();
    }
    spec
}
