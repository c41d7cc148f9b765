//! What is asked of a plan, checked.

use std::collections::BTreeMap;

use anyhow::Context;
use ballast_planner::{Approach, Chassis, ClassLoad, Intake, Plan, RackFit, Terms};
use ballast_types::Watts;
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
    /// What the breaker of a rack carries.
    pub(super) rack: Watts,
    /// What chassis could shed at their peaks, by generation, where servers' loads were given.
    pub(super) peaks: BTreeMap<String, ClassLoad>,
    /// The buffers that back-tests propose, in millionths, by generation and approach.
    pub(super) buffers: BTreeMap<(String, &'static str), u32>,
}

impl PlanRequest {
    /// A chassis of that hardware generation, and where its servers' curves and its load come from.
    pub(super) fn chassis(&self, generation: &str) -> anyhow::Result<(Chassis, Basis)> {
        let curve = self.curves.of(generation)?;
        let (load, words) = self.loads.of(generation)?;
        let at_peak = self.peaks.get(generation).copied();
        let words = at_peak.map_or(words, |ClassLoad { user_facing, others }| {
            format!(
                "at their own peaks chassis kept {others:.2} of {} servers busy with others' work and \
                 {user_facing:.2} with user-facing work, or more",
                self.servers
            )
        });
        let chassis = Chassis { servers: self.servers, server: curve.model, at_peak, ..load };
        chassis.check().with_context(|| format!("generation {generation:?}, {}", curve.from))?;
        Ok((chassis, Basis { curves: curve.from.clone(), load: words }))
    }
}

impl PlanRequest {
    /// The terms of an approach: with the buffer that its back-test proposes, where there is one.
    pub(super) fn terms(&self, generation: &str, approach: &Approach) -> Terms {
        let proposed = self.buffers.get(&(generation.to_owned(), approach.name));
        Terms { buffer_ppm: proposed.copied().unwrap_or(self.terms.buffer_ppm), ..self.terms }
    }

    pub(super) fn fit(&self, plan: &Plan) -> RackFit {
        plan.fit(self.rack, self.servers, self.terms.provisioned)
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Basis {
    pub(super) curves: String,
    pub(super) load: String,
}

pub(super) fn ppm(share: f64) -> u32 {
    (share * 1e6).round() as u32
}
