//! Controllers to compare with. They act on the plant itself, through what its meters show.

mod full_server;
mod thunderbolt;

use ballast_types::{Instant, Watts};

pub(super) use full_server::FullServer;
pub(super) use thunderbolt::Thunderbolt;

use ballast_sim::plant::{Plant, SupplyState};

/// Who acts on the plant beside the controllers of the project.
#[derive(Clone, Debug)]
pub(super) enum Baseline {
    /// Nobody, or what was set on the plant once and for all.
    Nobody,
    /// The chassis's own mechanism of the paper.
    FullServer(FullServer),
    /// Thresholds and CPU time.
    Thunderbolt(Box<Thunderbolt>),
}

impl Baseline {
    /// Acts if it is time to.
    pub(super) fn act(&mut self, now: Instant, plant: &mut Plant) {
        match self {
            Self::Nobody => {}
            Self::FullServer(baseline) => baseline.act(now, plant),
            Self::Thunderbolt(baseline) => baseline.act(now, plant),
        }
    }
}

/// What the supplies' meters show of the whole chassis.
fn supplies_w(plant: &Plant) -> Watts {
    let readings = (0..plant.spec().supplies.len()).map(|n| plant.supply_meter(n));
    readings.filter(|r| r.state != SupplyState::Failed).map(|r| r.input).sum()
}
