//! Controllers to compare with. They act on the plant itself, through what its meters show.

mod central;
mod full_server;
mod late_oracle;
mod supplies;
mod thunderbolt;

use ballast_types::{Instant, VmClass, Watts};

use crate::plant::{Plant, VmLoad};
use central::Central;
pub use central::Rule;
use full_server::FullServer;
use late_oracle::LateOracle;
use thunderbolt::Thunderbolt;

/// Who acts on the plant in place of the project's controllers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Baseline {
    Nobody,
    /// Hardware: every server has this cap from the start.
    HardwareCap(Watts),
    /// The highest p-states with which the chassis draws no more than this, knowing the load.
    Oracle(Watts),
    /// The batch cores' p-states of that oracle, a refresh, a lag and a poll of 200 ms late.
    LateOracle(Watts),
    /// One height for all batch cores, from the supplies' readings.
    Central(Rule),
    /// The chassis's own mechanism of the paper: on an alert every server above this share is capped by
    /// hardware.
    FullServer {
        share: Watts,
    },
    /// Two thresholds under the budget, and a cut of the batch VMs' CPU time.
    Thunderbolt,
}

/// Every batch VM, with the index of its server.
fn batch_vms(plant: &Plant) -> impl Iterator<Item = (usize, &VmLoad)> {
    let servers = plant.spec().servers.iter().enumerate();
    servers.flat_map(|(n, server)| {
        let batch = server.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing);
        batch.map(move |vm| (n, vm))
    })
}

#[derive(Debug)]
pub(crate) enum Acting {
    /// What was set on the plant at the start is all.
    Nobody,
    FullServer(FullServer),
    Thunderbolt(Box<Thunderbolt>),
    Central(Box<Central>),
    LateOracle(Box<LateOracle>),
}

impl Baseline {
    /// Begins on a plant that is about to start.
    pub(crate) fn start(self, plant: &mut Plant, seed: u64) -> Acting {
        let budget = plant.spec().budget;
        match self {
            Self::Nobody => {}
            Self::HardwareCap(watts) => {
                (0..plant.spec().servers.len()).for_each(|server| plant.set_slot_cap(server, Some(watts)));
            }
            Self::Oracle(watts) => plant.set_oracle(Some(watts)),
            Self::LateOracle(watts) => return Acting::LateOracle(Box::new(LateOracle::new(watts, plant))),
            Self::Central(rule) => return Acting::Central(Box::new(Central::new(rule, plant))),
            Self::FullServer { share } => return Acting::FullServer(FullServer::new(budget, share)),
            Self::Thunderbolt => {
                return Acting::Thunderbolt(Box::new(Thunderbolt::new(budget, plant, seed)));
            }
        }
        Acting::Nobody
    }
}

impl Acting {
    pub(crate) fn act(&mut self, now: Instant, plant: &mut Plant) {
        match self {
            Self::Nobody => {}
            Self::FullServer(baseline) => baseline.act(now, plant),
            Self::Thunderbolt(baseline) => baseline.act(now, plant),
            Self::Central(baseline) => baseline.act(now, plant),
            Self::LateOracle(baseline) => baseline.act(plant),
        }
    }
}
