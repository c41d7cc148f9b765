//! Mean draws between two looks at the plant.
//!
//! A VM under a quota runs and stops in every period, so what a server draws at one instant may be its peak
//! in every second, or its trough: only a mean over whole periods says what it draws.

use ballast_types::Instant;

use crate::plant::Plant;

/// The plant's energy at the last look.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    at: Instant,
    input_j: f64,
    servers_j: Vec<f64>,
}

/// Mean draws since the last look, in watts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeanDraws {
    /// At the supplies' input.
    pub(crate) input_w: f64,
    pub(crate) servers_w: Vec<f64>,
}

impl Means {
    pub(crate) fn new(servers: usize) -> Self {
        Self { at: Instant::ZERO, input_j: 0.0, servers_j: vec![0.0; servers] }
    }

    /// What was drawn since the last look.
    pub(crate) fn look(&mut self, now: Instant, plant: &Plant) -> MeanDraws {
        let span_s = now.since(self.at).as_secs_f64().max(f64::MIN_POSITIVE);
        self.at = now;

        let mean_w = |before_j: &mut f64, now_j: f64| (now_j - core::mem::replace(before_j, now_j)) / span_s;
        let input_w = mean_w(&mut self.input_j, plant.energy_j());
        let servers = self.servers_j.iter_mut().enumerate();
        let servers_w = servers.map(|(n, joules)| mean_w(joules, plant.server_energy_j(n)));
        MeanDraws { input_w, servers_w: servers_w.collect() }
    }
}
