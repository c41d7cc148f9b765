//! What a controller of the chassis reads.

use ballast_types::{Instant, Watts};

use crate::plant::{Plant, SupplyReading, SupplyState};

/// What the supplies' meters show of the whole chassis.
pub(super) fn supplies_w(plant: &Plant) -> Watts {
    readings(plant).map(|r| r.input).sum()
}

/// When the newest of these readings appeared.
pub(super) fn read_at(plant: &Plant) -> Instant {
    readings(plant).map(|r| r.refreshed_at).max().unwrap_or(Instant::ZERO)
}

fn readings(plant: &Plant) -> impl Iterator<Item = SupplyReading> {
    let readings = (0..plant.spec().supplies.len()).map(|n| plant.supply_meter(n));
    readings.filter(|r| r.state != SupplyState::Failed)
}
