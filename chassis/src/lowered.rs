//! Budgets that were lowered a moment ago: the breaker is judged by the one before for a while.
//!
//! What makes room for a lower budget takes a few seconds, and the breaker knows no budget. So each budget
//! counts from its own grace on: a second one that comes within the grace of a first neither shortens that
//! nor puts the first one off.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

/// So many are kept apart; beyond it the oldest ends early, which is the strict side.
const MAX_KEPT: usize = 16;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lowered {
    /// What was in force before, and until when the breaker is judged by that: oldest first, budgets fall.
    before: VecDeque<(Watts, Instant)>,
}

impl Lowered {
    /// A lower budget than `before` was accepted.
    pub(crate) fn accepted(&mut self, now: Instant, before: Watts, grace: Duration) {
        self.before.retain(|&(watts, until)| watts > before && until > now);
        if self.before.len() == MAX_KEPT {
            self.before.pop_front();
        }
        self.before.push_back((before, now + grace));
    }

    /// The highest budget that the breaker is still judged by, if that is not the one in force.
    pub(crate) fn judged_by(&self, now: Instant) -> Option<Watts> {
        self.before.iter().find(|&&(_, until)| now < until).map(|&(watts, _)| watts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_budget_counts_from_its_own_grace_on() {
        let (w, at, grace) = (Watts::from_whole, Instant::from_millis, Duration::from_secs(5));
        let mut lowered = Lowered::default();
        lowered.accepted(at(1000), w(900), grace);
        lowered.accepted(at(4000), w(800), grace);
        for (ms, judged) in [(4000, Some(900)), (6000, Some(800)), (8999, Some(800)), (9000, None)] {
            assert_eq!(lowered.judged_by(at(ms)), judged.map(w), "{ms}");
        }
        // It was raised to more than before, and is lowered again.
        lowered.accepted(at(8000), w(850), grace);
        for ms in [8000, 8500, 12_999] {
            assert_eq!(lowered.judged_by(at(ms)), Some(w(850)), "{ms}: 800 W is no longer the highest");
        }
        for n in 0..100 {
            lowered.accepted(at(20_000 + n), w(800 - n as i64), grace);
        }
        assert!(lowered.before.len() <= MAX_KEPT);
    }
}
