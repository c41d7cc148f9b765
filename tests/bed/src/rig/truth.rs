//! `truth.json`: what really happened, and what is now. For people and tests; no daemon reads it.

use ballast_sim::plant::{Plant, Truth};
use ballast_types::{ServerId, Watts};
use serde::Serialize;

use crate::rig::error::RigError;

/// The plant's truth since the start, with its present state.
#[derive(Serialize)]
struct Snapshot<'a> {
    /// The draw at the supplies' input, now.
    power_w: Watts,
    /// How far the breaker of the budget is on its way to its trip; 1 or more is a trip.
    trip_fraction: f64,
    /// P95 latency over all queues of user-facing VMs, in milliseconds.
    user_facing_p95_ms: Option<f64>,
    servers: Vec<ServerNow<'a>>,
    #[serde(flatten)]
    truth: &'a Truth,
}

#[derive(Serialize)]
struct ServerNow<'a> {
    server: &'a ServerId,
    power_w: Watts,
    /// Its DC energy since the start.
    energy_j: f64,
    /// Mean frequency of its cores as a share of the highest.
    frequency_ratio: f64,
}

pub(crate) fn json(plant: &Plant, trip_fraction: f64) -> Result<String, RigError> {
    let servers = plant.spec().servers.iter().enumerate().map(|(n, server)| {
        let share = |core: &ballast_types::Core| plant.core_khz(n, core.id).share_of(core.ladder.max());
        let sum: f64 = server.cores.iter().map(share).sum();
        ServerNow {
            server: &server.id,
            power_w: plant.server_power(n),
            energy_j: plant.server_energy_j(n),
            frequency_ratio: sum / server.cores.len().max(1) as f64,
        }
    });
    let snapshot = Snapshot {
        power_w: plant.power(),
        trip_fraction,
        user_facing_p95_ms: plant.user_facing_p95_ms(),
        servers: servers.collect(),
        truth: plant.truth(),
    };
    Ok(serde_json::to_string(&snapshot)? + "\n")
}
