//! Which message's cap the meter shows respected: only that frees watts for other servers.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Seq, Watts};
use serde::{Deserialize, Serialize};

use crate::meter::Sample;

/// Messages that wait for a sample, at most. Messages come about as often as samples, so that two or
/// three wait at a time; beyond this the oldest goes.
const WAITING: usize = 16;

/// Messages whose cap no sample has shown respected yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Enforced {
    /// A sample younger than this after the message shows, at least in part, the draw before it: the
    /// meter's lag, and what it averages over.
    lag: Duration,
    waiting: VecDeque<(Seq, Option<Watts>, Instant)>,
    newest: Option<Seq>,
}

impl Enforced {
    pub(crate) fn new(lag: Duration) -> Self {
        Self { lag, waiting: VecDeque::with_capacity(WAITING), newest: None }
    }

    /// A new epoch counts its messages from the start.
    pub(crate) fn restart(&mut self) {
        self.waiting.clear();
        self.newest = None;
    }

    pub(crate) fn message(&mut self, now: Instant, seq: Seq, cap: Option<Watts>) {
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((seq, cap, now));
    }

    pub(crate) fn sample(&mut self, sample: Sample) {
        let shown = self.waiting.iter().rposition(|&(_, cap, at)| {
            sample.taken_at >= at + self.lag && cap.is_none_or(|cap| sample.watts <= cap)
        });
        if let Some(index) = shown {
            self.newest = Some(self.waiting[index].0);
            self.waiting.drain(..=index);
        }
    }

    /// The newest message whose cap is respected.
    pub(crate) fn newest(&self) -> Option<Seq> {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_enforced_by_a_sample_taken_after_it_and_under_its_cap() {
        let ms = Instant::from_millis;
        let w = Watts::from_whole;
        let mut enforced = Enforced::new(Duration::from_millis(200));
        let sample = |watts, at| Sample { watts: w(watts), taken_at: ms(at) };
        enforced.message(ms(0), Seq(1), Some(w(200)));
        enforced.message(ms(200), Seq(2), Some(w(180)));

        for (taken, expected) in [
            (sample(150, 100), None),         // before the lag of either
            (sample(250, 300), None),         // over the cap
            (sample(190, 310), Some(Seq(1))), // under the first; the second's lag is not over
            (sample(190, 500), Some(Seq(1))), // over the second
            (sample(180, 600), Some(Seq(2))),
        ] {
            enforced.sample(taken);
            assert_eq!(enforced.newest(), expected, "{taken:?}");
        }

        for seq in 3..1000 {
            enforced.message(ms(1000), Seq(seq), None);
        }
        assert_eq!(enforced.waiting.len(), WAITING);
        enforced.sample(sample(300, 1200));
        assert_eq!(enforced.newest(), Some(Seq(999)));
        enforced.restart();
        assert_eq!(enforced.newest(), None);
    }
}
