//! What a controller of the chassis reads.

use ballast_types::Watts;

use crate::plant::{Plant, SupplyState};

/// What the supplies' meters show of the whole chassis.
pub(super) fn supplies_w(plant: &Plant) -> Watts {
    let readings = (0..plant.spec().supplies.len()).map(|n| plant.supply_meter(n));
    readings.filter(|r| r.state != SupplyState::Failed).map(|r| r.input).sum()
}
