//! The chassis's draw over time, from polls alone: for those who read a recording.

use ballast_types::{Instant, Watts};

use crate::supplies::Supplies;
use crate::{Params, Poll};

/// The draw as the manager knows it.
#[derive(Debug)]
pub struct Draws {
    supplies: Supplies,
    params: Params,
}

impl Draws {
    /// Before the first poll, for a manager with these parameters that started at `now`.
    pub fn new(params: Params, now: Instant) -> Self {
        let supplies = Supplies::new(&params.supply_rated, now);
        Self { supplies, params }
    }

    pub fn take(&mut self, now: Instant, poll: &Poll) {
        self.supplies.take(now, poll);
    }

    /// The draw, and how long it is known for: until the manager would be blind. `None` where it is blind.
    pub fn known(&self, now: Instant) -> Option<(Watts, Instant)> {
        let blind_after = self.params.blind_after();
        let until = self.supplies.fresh_at() + blind_after;
        self.supplies.reading(now, blind_after).map(|draw| (draw, until))
    }
}
