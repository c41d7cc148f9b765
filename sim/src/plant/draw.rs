//! What a chassis would draw, from the model alone: no queue is run and nothing is capped on the way.

use ballast_types::{VmClass, Watts};

use super::server::core_indices;
use super::supply::Supplies;
use super::{Load, PlantSpec, ServerSpec};
use crate::load::{BATCH_BOUND, Cursor, USER_FACING_BOUND, stretch};

struct VmDraw {
    cursor: Cursor,
    /// Utilisation per unit of demand.
    stretch: f64,
    /// Watts at full utilisation.
    watts: f64,
}

/// The draw at the supplies' input at `samples` instants spread evenly over `seconds`.
///
/// `floored` takes every core of a non-user-facing VM at the floor of its ladder, otherwise all run at
/// their highest frequency. A queue counts with its offered load, so this is a mean over its requests.
pub fn draws(spec: &PlantSpec, seconds: f64, samples: u32, floored: bool) -> impl Iterator<Item = Watts> {
    let mut static_w = Vec::new();
    let mut vms_drawn = Vec::new();
    for server in &spec.servers {
        static_w.push(add_server(server, floored, &mut vms_drawn));
    }
    let idle: f64 = spec.servers.iter().map(|s| s.model.idle_w).sum();
    let full: f64 = spec.servers.iter().map(|s| s.model.full_w).sum();
    let mut supplies = Supplies::new(&spec.supplies);
    let shared = spec.shared;
    let draw = move |sample: u32| {
        let t = seconds * f64::from(sample) / f64::from(samples);
        let mut dc: f64 = static_w.iter().sum();
        for vm in &mut vms_drawn {
            dc += (vm.cursor.at(t) * vm.stretch).min(1.0) * vm.watts;
        }
        supplies.step(dc + shared.draw_w(dc, idle, full));

        Watts::from_f64(supplies.input_w).unwrap_or(Watts::MAX)
    };

    (0..samples).map(draw)
}

/// The highest of [`draws`].
pub fn peak_draw(spec: &PlantSpec, seconds: f64, samples: u32, floored: bool) -> Watts {
    draws(spec, seconds, samples, floored).max().unwrap_or(Watts::ZERO)
}

/// Adds the VMs of one server, and gives what it draws without them.
fn add_server(server: &ServerSpec, floored: bool, vms_drawn: &mut Vec<VmDraw>) -> f64 {
    let count = server.cores.len().max(1) as f64;
    let mut shares = vec![1.0; server.cores.len()];
    for vm in &server.vms {
        let cores = core_indices(server, &vm.cores);
        let low = floored && vm.class == VmClass::NonUserFacing;
        let mut watts = 0.0;
        let mut sum = 0.0;

        for n in &cores {
            let ladder = &server.cores[*n].ladder;
            shares[*n] = if low { ladder.floor().share_of(ladder.max()) } else { 1.0 };
            watts += server.model.dynamic_w() / count * server.model.scale(shares[*n]);
            sum += shares[*n];
        }

        let share = sum / cores.len().max(1) as f64;
        let (profile, bound) = match &vm.load {
            Load::Queue(queue) => (&queue.utilisation, queue.frequency_bound),
            // Batch work keeps its cores as busy as it wants to, at any frequency.
            Load::Batch(batch) => (&batch.demand, 0.0),
            Load::Profile(profile) if vm.class == VmClass::UserFacing => (profile, USER_FACING_BOUND),
            Load::Profile(profile) => (profile, BATCH_BOUND),
        };

        let cursor = Cursor::new(profile.clone());
        vms_drawn.push(VmDraw { cursor, stretch: stretch(bound, share), watts });
    }

    server.model.static_w(shares.iter().sum::<f64>() / count)
}
