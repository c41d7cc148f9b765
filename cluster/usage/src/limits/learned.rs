//! The paper's second recommender, with costs that are well posed.
//!
//! As printed, both costs count samples: those above a limit, and those below it. Their sum is then a constant, less what lies in
//! the limit's own bucket, so that the answer depends on how wide buckets are; a test shows it. Here what lies below costs what
//! it leaves unused.
//!
//! Source: Autopilot, Section 3.2.2.

use super::bucket::{BUCKETS, UseBucket};
use super::{Costs, Recommender, UseWindow};

/// By so much of the newest window a model forgets.
const FADES: [f32; 5] = [0.002, 0.005, 0.01, 0.02, 0.05];
const MARGINS: [f32; 4] = [1.0, 1.05, 1.1, 1.2];
const MODELS: usize = FADES.len() * MARGINS.len();

/// Models that each find the limit of least cost, of which the job follows the one that would have cost the least.
#[derive(Clone, Debug)]
pub struct Learned {
    costs: Costs,
    /// What share of the samples lies in each bucket, by how fast it fades.
    uses: Box<[[f32; BUCKETS]; FADES.len()]>,
    /// What each finds, before margins.
    best: [UseBucket; FADES.len()],
    spent: [f32; MODELS],
    followed: usize,
    limit: Option<f32>,
}

impl Learned {
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            uses: Box::new([[0.0; BUCKETS]; FADES.len()]),
            best: [UseBucket::default(); FADES.len()],
            spent: [0.0; MODELS],
            followed: 0,
            limit: None,
        }
    }

    fn limit_of(&self, model: usize) -> f32 {
        (self.best[model / MARGINS.len()].edge() * MARGINS[model % MARGINS.len()]).min(1.0)
    }

    /// The limit that would cost the least.
    fn cheapest(&self, uses: &[f32; BUCKETS], before: UseBucket) -> UseBucket {
        let total: f32 = uses.iter().sum();
        // Below a limit L lie `count` samples that used `used`: they leave count − used / L of it.
        let (mut count, mut used) = (0.0, 0.0);
        let (mut best, mut least) = (before, f32::INFINITY);
        for (index, share) in uses.iter().enumerate() {
            let bucket = UseBucket::from_index(index);
            count += share;
            used += share * bucket.edge();
            let change = if bucket == before { 0.0 } else { self.costs.change };
            let cost = self.costs.over * (total - count) + (count - used / bucket.edge()) + change;
            if cost < least {
                (best, least) = (bucket, cost);
            }
        }
        best
    }
}

impl Recommender for Learned {
    fn observe(&mut self, window: &UseWindow<'_>) {
        if window.samples.is_empty() {
            return;
        }
        let is_first = self.limit.is_none();
        let mut limits: [f32; MODELS] = core::array::from_fn(|model| self.limit_of(model));
        if !is_first {
            for (model, limit) in limits.iter().enumerate() {
                let cost = self.costs.over * window.over(*limit) + window.slack(*limit);
                self.spent[model] += self.costs.newest * (cost - self.spent[model]);
            }
        }

        let count = window.count();
        for (fade, uses) in FADES.into_iter().zip(self.uses.iter_mut()) {
            let fade = if is_first { 1.0 } else { fade };
            uses.iter_mut().for_each(|share| *share *= 1.0 - fade);
            window.samples.iter().for_each(|(bucket, n)| uses[bucket.index()] += fade * n / count);
        }
        self.best = core::array::from_fn(|n| self.cheapest(&self.uses[n], self.best[n]));

        let before = limits;
        limits = core::array::from_fn(|model| self.limit_of(model));
        let cost = |model: usize| {
            let switch = if model == self.followed { 0.0 } else { self.costs.switch };
            let change = if Some(limits[model]) == self.limit { 0.0 } else { self.costs.change };
            let own =
                if limits[model] == before[model] { 0.0 } else { self.costs.newest * self.costs.change };
            self.spent[model] + switch + change + own
        };
        let best = (0..MODELS).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        self.followed = best.unwrap_or(self.followed);
        self.limit = Some(limits[self.followed]);
    }

    fn limit(&self) -> Option<f32> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of least cost where both costs count samples, over buckets that end at multiples of a width.
    fn as_printed(uses: &[f32], width: f32, (over, under): (f32, f32)) -> f32 {
        let edge = |used: f32| libm::ceilf(used / width) as i32;
        let cost = |limit: i32| {
            let above = uses.iter().filter(|used| edge(**used) > limit).count() as f32;
            let below = uses.iter().filter(|used| edge(**used) < limit).count() as f32;
            over * above + under * below
        };
        let edges = 1..=libm::roundf(1.0 / width) as i32;
        edges.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(0) as f32 * width
    }

    #[test]
    fn the_printed_costs_depend_on_how_wide_buckets_are() {
        // Most at a fifth, in values that differ a little; few up to a half.
        let uses: Vec<f32> =
            (0..90).map(|n| 0.2 + n as f32 * 1e-4).chain((0..10).map(|n| 0.3 + n as f32 * 0.02)).collect();
        let [coarse, fine] = [0.05, 0.001].map(|width| as_printed(&uses, width, (2.0, 1.0)));
        assert!(coarse <= 0.25, "{coarse}");
        assert!(fine >= 0.28, "finer buckets hold next to nothing each, and the largest value wins: {fine}");
    }

    #[test]
    fn the_limit_of_least_cost_is_found() {
        let costs = Costs { over: 20.0, change: 0.0, switch: 0.0, newest: 0.01 };
        let learned = Learned::new(costs);
        let mut uses = [0.0; BUCKETS];
        let index = |share: f32| UseBucket::of(share).unwrap().index();
        uses[index(0.2)] = 0.97;
        uses[index(0.8)] = 0.03;
        // Covering the 3 % leaves three quarters of the limit unused in 97 %; not covering them costs 20 × 3 %.
        assert_eq!(learned.cheapest(&uses, UseBucket::default()).index(), index(0.2));
        let dear = Learned::new(Costs { over: 40.0, ..costs });
        assert_eq!(dear.cheapest(&uses, UseBucket::default()).index(), index(0.8));
    }
}
