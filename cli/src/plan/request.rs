//! What is asked of a plan, checked.

use anyhow::Context;
use ballast_planner::{Approach, Chassis, Intake, Terms};
use serde::Serialize;

use super::curves::Curves;
use super::history::Loads;

pub(super) struct PlanRequest {
    pub(super) approach: Approach,
    pub(super) servers: u32,
    pub(super) loads: Loads,
    pub(super) curves: Curves,
    pub(super) terms: Terms,
    pub(super) intake: Intake,
}

impl PlanRequest {
    /// A chassis of that hardware generation, and where its servers' curves and its load come from.
    pub(super) fn chassis(&self, generation: &str) -> anyhow::Result<(Chassis, Basis)> {
        let curve = self.curves.of(generation)?;
        let (load, words) = self.loads.of(generation)?;
        let chassis = Chassis { servers: self.servers, server: curve.model, ..load };
        chassis.check().with_context(|| format!("generation {generation:?}, {}", curve.from))?;
        Ok((chassis, Basis { curves: curve.from.clone(), load: words }))
    }
}

/// What a plan rests on, in words.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Basis {
    pub(super) curves: String,
    pub(super) load: String,
}

pub(super) fn ppm(share: f64) -> u32 {
    (share * 1e6).round() as u32
}
