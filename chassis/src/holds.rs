//! What one server may hold, by the messages it was sent: the proof behind `critical-first` shares.
//!
//! A message that was sent may arrive, be lost, or arrive late; so what counts is the highest cap of all
//! messages since the newest that the server's `enforced_seq` shows respected. Numbers rise and agents take
//! only higher ones, so a message that is older than an obeyed one is out of the game. Any message that is
//! obeyed keeps the cap for two leases, and a server is silent well before: then its fallback counts too.

use std::collections::VecDeque;

use ballast_types::{Seq, Watts};
use serde::{Deserialize, Serialize};

/// So many different caps are kept; beyond it the two oldest count as one, at the higher cap.
const MAX_HELD: usize = 16;

/// The messages of one server that may still be in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Holds {
    /// Numbers rise, caps fall: each is the highest cap of all messages from its number on.
    /// [`Watts::MAX`] is uncapped, or unknown.
    caps: VecDeque<(Seq, Watts)>,
    /// The highest fallback that may be in force.
    fallback: Watts,
    /// The newest message, and its fallback.
    newest: (Seq, Watts),
}

impl Holds {
    /// Nothing is known: an earlier manager may have granted anything, with a fallback up to `fallback`.
    pub(crate) fn new(fallback: Watts) -> Self {
        Self { caps: VecDeque::from([(Seq(0), Watts::MAX)]), fallback, newest: (Seq(0), Watts::ZERO) }
    }

    /// A message was sent.
    pub(crate) fn sent(&mut self, seq: Seq, cap: Option<Watts>, fallback: Watts) {
        self.newest = (seq, fallback);
        self.fallback = self.fallback.max(fallback);
        let cap = cap.unwrap_or(Watts::MAX);
        while self.caps.back().is_some_and(|&(_, lower)| lower <= cap) {
            self.caps.pop_back();
        }
        if self.caps.len() >= MAX_HELD
            && let Some((_, highest)) = self.caps.pop_front()
            && let Some(next) = self.caps.front_mut()
        {
            next.1 = highest;
        }
        self.caps.push_back((seq, cap));
    }

    /// A report shows the newest message obeyed, and the newest whose cap a sample shows respected.
    ///
    /// Of an uncapped server no sample can show that; there a later message obeyed ends it.
    pub(crate) fn reported(&mut self, obeyed: Seq, enforced: Option<Seq>) {
        while self.caps.len() > 1
            && let Some(&(seq, cap)) = self.caps.front()
            && (if cap == Watts::MAX { seq < obeyed } else { enforced.is_some_and(|e| seq < e) })
        {
            self.caps.pop_front();
        }
        if obeyed == self.newest.0 {
            self.fallback = self.newest.1;
        }
    }

    /// The first report to this manager says that `cap` is in force. What was sent until `obeyed` echoed
    /// no report, and so raised nothing.
    pub(crate) fn recover(&mut self, obeyed: Seq, cap: Watts) {
        self.caps.retain(|&(seq, _)| seq > obeyed);
        let later = self.caps.front().map_or(Watts::ZERO, |&(_, cap)| cap);
        if cap > later {
            self.caps.push_front((obeyed, cap));
        }
    }

    /// It answers again after a silence, and says that `cap` is in force: its fallback, or what it was told
    /// last. Until a later message is proven it may hold that.
    pub(crate) fn rejoined(&mut self, obeyed: Seq, cap: Option<Watts>) {
        let cap = cap.unwrap_or(Watts::MAX);
        if self.caps.front().is_none_or(|&(_, highest)| highest < cap) {
            self.caps.push_front((obeyed, cap));
        }
    }

    /// What it may hold as long as its leases last; `None` if it may be uncapped, or is not known.
    pub(crate) fn max(&self) -> Option<Watts> {
        self.caps.front().map(|&(_, cap)| cap).filter(|&cap| cap < Watts::MAX)
    }

    /// What it may rise to when nobody tells it anything.
    pub(crate) fn fallback(&self) -> Watts {
        self.fallback
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn sent(h: &mut Holds, seq: u64, cap: Option<i64>) {
        h.sent(Seq(seq), cap.map(W), W(200));
    }

    #[test]
    fn the_highest_cap_counts_until_a_later_one_is_respected() {
        let mut h = Holds::new(W(0));
        assert_eq!(h.max(), None, "an earlier manager may have granted anything");
        sent(&mut h, 1, Some(180));
        assert_eq!(h.max(), None);
        h.reported(Seq(1), None);
        assert_eq!(h.max(), Some(W(180)), "obeyed is enough where no cap was before");
        sent(&mut h, 2, Some(150));
        sent(&mut h, 3, Some(160));

        for (seen, enforced, most) in [(3, None, 180), (3, Some(1), 180), (3, Some(2), 160)] {
            h.reported(Seq(seen), enforced.map(Seq));
            assert_eq!(h.max(), Some(W(most)), "{enforced:?}");
        }

        sent(&mut h, 4, None);
        sent(&mut h, 5, Some(150));
        h.reported(Seq(4), Some(Seq(4)));
        assert_eq!(h.max(), None, "uncapped");
        h.reported(Seq(5), Some(Seq(3)));
        assert_eq!(h.max(), Some(W(150)));
    }

    #[test]
    fn what_the_first_report_says_is_in_force() {
        let mut h = Holds::new(W(0));
        sent(&mut h, 1, None);
        h.recover(Seq(1), W(150));
        assert_eq!(h.max(), Some(W(150)), "without an echo nothing was raised");
        let mut h = Holds::new(W(0));
        sent(&mut h, 1, Some(170));
        sent(&mut h, 2, Some(160));
        h.recover(Seq(1), W(150));
        assert_eq!(h.max(), Some(W(160)), "one is still under way");
    }

    #[test]
    fn the_fallback_counts_until_a_lower_one_is_obeyed() {
        let mut h = Holds::new(W(0));
        for (seq, fallback) in [(1, 210), (2, 200)] {
            h.sent(Seq(seq), None, W(fallback));
        }
        h.reported(Seq(1), None);
        assert_eq!(h.fallback(), W(210));
        h.reported(Seq(2), None);
        assert_eq!(h.fallback(), W(200));
    }

    proptest! {
        /// Against the plain definition; where too many caps are kept apart it may be higher.
        #[test]
        fn it_is_the_highest_cap_since_the_newest_respected(
            steps in prop::collection::vec((1i64..60, prop::bool::weighted(0.3), 0u64..40), 1..100)
        ) {
            let (mut h, mut sent, mut proven) = (Holds::new(W(0)), vec![], 1u64);
            for (n, (cap, reports, back)) in steps.into_iter().enumerate() {
                let seq = n as u64 + 1;
                h.sent(Seq(seq), Some(W(cap)), W(200));
                sent.push(W(cap));

                if reports {
                    proven = proven.max(seq.saturating_sub(back).max(1));
                    h.reported(Seq(seq), Some(Seq(proven)));
                }

                let highest = sent[proven as usize - 1..].iter().max().copied();

                if let Some(most) = h.max() {
                    prop_assert!(Some(most) >= highest);
                    prop_assert!(h.caps.len() == MAX_HELD || Some(most) == highest || most <= W(60));
                }

                prop_assert!(h.caps.len() <= MAX_HELD);
            }

            h.reported(Seq(1000), Some(Seq(1000)));
            prop_assert_eq!(h.max(), sent.last().copied());
        }
    }
}
