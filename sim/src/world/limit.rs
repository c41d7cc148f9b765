//! The limit that the draw is judged by: the budget in force, and what the supplies that are left can carry.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Watts};

use crate::plant::PlantSpec;

/// An operator's lower budget counts for the oracles so long after it was accepted.
const BUDGET_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Limit {
    highest: Watts,
    /// The budget that counts, and lower ones that are about to: each from 5 s after it was accepted.
    budget: Watts,
    lowered: VecDeque<(Instant, Watts)>,
    rated: Vec<Watts>,
    lost: Vec<bool>,
}

impl Limit {
    pub(crate) fn new(spec: &PlantSpec) -> Self {
        let rated: Vec<_> = spec.supplies.iter().map(|supply| supply.rated).collect();
        let (highest, budget, lost) = (spec.budget, spec.budget, vec![false; rated.len()]);
        Self { highest, budget, lowered: VecDeque::new(), rated, lost }
    }

    /// A chassis manager wrote its ledger, and with it the budget that is in force.
    pub(crate) fn accepted(&mut self, now: Instant, budget: Option<Watts>) {
        let budget = budget.map_or(self.highest, |watts| watts.min(self.highest));
        let newest = self.lowered.back().map_or(self.budget, |&(_, watts)| watts);
        if budget < newest {
            self.lowered.push_back((now + BUDGET_AFTER, budget));
        } else if budget < self.budget {
            // Raised, as far as it is still to count.
            self.lowered.iter_mut().for_each(|(_, watts)| *watts = (*watts).max(budget));
        } else {
            self.lowered.clear();
            self.budget = budget;
        }
    }

    /// Time has passed: lower budgets begin to count.
    pub(crate) fn pass(&mut self, now: Instant) {
        while let Some((_, watts)) = self.lowered.pop_front_if(|(at, _)| *at <= now) {
            self.budget = watts;
        }
    }

    pub(crate) fn lose_supply(&mut self, supply: usize, lost: bool) {
        if let Some(is_lost) = self.lost.get_mut(supply) {
            *is_lost = lost;
        }
    }

    /// The least of the budget in force and what the surviving supplies can carry.
    pub(crate) fn watts(&self) -> Watts {
        if !self.lost.contains(&true) {
            return self.budget;
        }
        let left = self.rated.iter().zip(&self.lost).filter(|(_, lost)| !**lost);
        self.budget.min(left.map(|(rated, _)| *rated).sum())
    }
}
