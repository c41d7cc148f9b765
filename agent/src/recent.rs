//! The mean of the last two seconds.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

/// What is averaged over: flicker and a meter's noise are gone, a trip is far away.
const SPAN: Duration = Duration::from_secs(2);
/// Values that are kept, at most: 2 s at the shortest period.
const KEPT: usize = 64;

/// Values of the last two seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recent {
    values: VecDeque<(Instant, Watts)>,
}

impl Recent {
    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }

    pub(crate) fn push(&mut self, now: Instant, watts: Watts) {
        while self.values.len() >= KEPT || self.values.front().is_some_and(|(at, _)| now.since(*at) > SPAN) {
            self.values.pop_front();
        }
        self.values.push_back((now, watts));
    }

    pub(crate) fn mean(&self) -> Option<Watts> {
        let sum: Watts = self.values.iter().map(|(_, watts)| *watts).sum();
        (!self.values.is_empty()).then(|| sum.per(self.values.len() as u64))
    }
}
