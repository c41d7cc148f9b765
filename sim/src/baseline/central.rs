//! Central baselines: one height for all batch cores, from the supplies' readings alone.
//!
//! A rule acts on every new reading, at polls 200 ms apart like the project's manager. Writes take effect with the
//! plant's next step, 10 ms.

use core::time::Duration;

use ballast_types::{CoreId, Instant, KiloHertz, VmClass};

use super::supplies::{read_at, supplies_w};
use crate::plant::Plant;

/// Between two polls of the supplies (200 ms).
pub(super) const POLL: Duration = Duration::from_millis(200);

/// How a central baseline finds the height of all batch cores: 0 is their lowest frequency, 1 is free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// A proportional-integral controller. Draws are shares of the budget.
    Pi {
        /// Height per unit of change of the deviation from the set point.
        kp: f64,
        /// Height per unit of deviation, with every reading.
        ki: f64,
        /// The draw to hold, as a share of the budget.
        set_point: f64,
    },
    /// Dynamo's three bands. Draws are shares of the budget. Source: Wu et al., "Dynamo", ISCA 2016.
    Bands {
        /// At this draw the height falls as far as `target` asks for.
        cap: f64,
        /// The draw that a cut aims at.
        target: f64,
        /// Under this draw all cores are free.
        uncap: f64,
    },
}

#[derive(Clone, Debug)]
struct BatchCore {
    server: usize,
    id: CoreId,
    ladder: Vec<KiloHertz>,
    /// The share of a step at which this core rises to the next p-state, so that cores rise one after the other.
    rises_at: f64,
    level: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Central {
    rule: Rule,
    budget_w: f64,
    /// Watts between height 0 and height 1 with busy cores, by the servers' power models.
    slope_w: f64,
    cores: Vec<BatchCore>,
    height: f64,
    /// The deviation at the reading before.
    deviation: f64,
    next: Instant,
    read_at: Instant,
    /// A reading taken before this instant does not show the last cut of the bands.
    shown_from: Instant,
}

impl Central {
    pub(super) fn new(rule: Rule, plant: &Plant) -> Self {
        let (mut cores, mut slope_w) = (Vec::new(), 0.0);
        for (n, server) in plant.spec().servers.iter().enumerate() {
            let batch = server.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing);
            let ids: Vec<CoreId> = batch.flat_map(|vm| vm.cores.iter().copied()).collect();
            let each_w = server.model.dynamic_w() / server.cores.len().max(1) as f64;
            for (k, id) in ids.iter().enumerate() {
                let Some(core) = server.cores.iter().find(|core| core.id == *id) else { continue };
                let ladder: Vec<_> = (0..core.ladder.len()).map(|level| core.ladder.khz(level)).collect();
                slope_w +=
                    each_w * (1.0 - server.model.scale(core.ladder.floor().share_of(core.ladder.max())));
                let rises_at = 1.0 - (k as f64 + 0.5) / ids.len() as f64;
                cores.push(BatchCore { server: n, id: *id, level: ladder.len() - 1, ladder, rises_at });
            }
        }
        let budget_w = plant.spec().budget.as_f64();
        Self {
            rule,
            budget_w,
            slope_w,
            cores,
            height: 1.0,
            deviation: 0.0,
            next: Instant::ZERO + POLL,
            read_at: Instant::ZERO,
            shown_from: Instant::ZERO,
        }
    }

    pub(super) fn act(&mut self, now: Instant, plant: &mut Plant) {
        if now < self.next {
            return;
        }
        self.next = now + POLL;
        let newest = read_at(plant);
        if newest <= self.read_at {
            return;
        }
        self.read_at = newest;
        let sensor = plant.spec().supply_meter;
        let taken_at = Instant::from_nanos(newest.as_nanos().saturating_sub(sensor.lag.as_nanos() as u64));
        let share = supplies_w(plant).as_f64() / self.budget_w;
        self.decide(now, taken_at, share, sensor.refresh);
        self.write(plant);
    }

    /// Finds the height for a draw of `share` of the budget, a mean over the `window` that ended at `taken_at`.
    fn decide(&mut self, now: Instant, taken_at: Instant, share: f64, window: Duration) {
        match self.rule {
            Rule::Pi { kp, ki, set_point } => {
                let deviation = set_point - share;
                self.height += kp * (deviation - self.deviation) + ki * deviation;
                self.deviation = deviation;
            }
            Rule::Bands { cap, target, .. } if share >= cap && taken_at >= self.shown_from => {
                self.height -= (share - target) * self.budget_w / self.slope_w.max(1.0);
                self.shown_from = now + window;
            }
            Rule::Bands { uncap, .. } if share < uncap => self.height = 1.0,
            Rule::Bands { .. } => {}
        }
        self.height = self.height.clamp(0.0, 1.0);
    }

    fn write(&mut self, plant: &mut Plant) {
        for core in &mut self.cores {
            let top = core.ladder.len() - 1;
            let level = ((self.height * top as f64 + core.rises_at) as usize).min(top);
            if level != core.level {
                core.level = level;
                plant.set_core_cap(core.server, core.id, core.ladder[level]);
            }
        }
    }
}
