//! From a poll of the power supplies to the chassis's draw and to what it can carry.

use core::time::Duration;

use ballast_types::{Instant, Supply, SupplyState, Watts};

use crate::Poll;

/// Polls for which a supply that cannot be told keeps the state it had.
const UNKNOWN_POLLS: u32 = 3;

/// A reading beyond this share of the rating is absurd, in parts per million.
const ABSURD_PPM: u32 = 1_500_000;

/// Why a poll gave no reading. The index is the supply's, in configured order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not as many supplies as configured.
    Count,
    /// Stamped later than now, or so long ago that it says nothing.
    Stamp,
    /// The supply's state cannot be told.
    Unknown(usize),
    /// The supply carries load, and reads nothing or zero.
    NoReading(usize),
    /// Below zero, or far beyond the rating.
    Absurd(usize),
    /// Nothing at all is drawn, by supplies that each may read zero.
    NoDraw,
}

/// What one poll gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A new draw of the whole chassis.
    Fresh(Watts),
    /// The same reading as before.
    Old,
    /// No usable reading.
    Missing(Fault),
}

/// One supply's last known state.
#[derive(Clone, Copy, Debug)]
struct Known {
    rated: Watts,
    state: SupplyState,
    unknown_polls: u32,
}

/// The power supplies as last polled.
#[derive(Debug)]
pub(crate) struct Supplies {
    known: Vec<Known>,
    rated: Watts,
    capacity: Watts,
    taken_at: Option<Instant>,
    reading: Option<Watts>,
    seen_at: Instant,
    fault: Option<Fault>,
    worst_age: Duration,
}

impl Supplies {
    /// Before the first poll every supply is taken to carry load. A reading older than `worst_age`
    /// says nothing.
    pub(crate) fn new(rated: &[Watts], worst_age: Duration, now: Instant) -> Self {
        let known: Vec<_> = rated
            .iter()
            .map(|&rated| Known {
                rated: rated.at_least_zero(),
                state: SupplyState::Active,
                unknown_polls: 0,
            })
            .collect();
        let rated = known.iter().map(|k| k.rated).sum();
        Self {
            known,
            rated,
            capacity: rated,
            taken_at: None,
            reading: None,
            seen_at: now,
            fault: None,
            worst_age,
        }
    }

    /// Takes one poll.
    pub(crate) fn take(&mut self, now: Instant, poll: &Poll) -> Outcome {
        let outcome = self.judge(now, poll);
        match outcome {
            Outcome::Fresh(total) => {
                self.taken_at = Some(poll.taken_at);
                self.reading = Some(total);
                self.seen_at = now;
                self.fault = None;
            }
            Outcome::Missing(fault) => self.fault = Some(fault),
            Outcome::Old => {}
        }
        outcome
    }

    fn judge(&mut self, now: Instant, poll: &Poll) -> Outcome {
        if poll.supplies.len() != self.known.len() {
            return Outcome::Missing(Fault::Count);
        }
        if poll.taken_at > now || now - poll.taken_at > self.worst_age {
            return Outcome::Missing(Fault::Stamp);
        }
        if self.taken_at.is_some_and(|newest| poll.taken_at < newest) {
            return Outcome::Old;
        }
        // A lost feed counts at once, even where the meters have not moved yet.
        self.learn_states(&poll.supplies);
        match sum(&self.known, &poll.supplies) {
            Err(fault) => Outcome::Missing(fault),
            Ok(_) if self.taken_at == Some(poll.taken_at) => Outcome::Old,
            Ok(total) => Outcome::Fresh(total),
        }
    }

    /// Where no supply at all can be told, it is the telling that broke, not the supplies: the
    /// capacity stays, and the missing reading makes the manager blind.
    fn learn_states(&mut self, supplies: &[Supply]) {
        if supplies.iter().all(|s| s.state == SupplyState::Unknown) {
            return;
        }
        for (known, supply) in self.known.iter_mut().zip(supplies) {
            if supply.state == SupplyState::Unknown {
                known.unknown_polls = known.unknown_polls.saturating_add(1);
            } else {
                known.state = supply.state;
                known.unknown_polls = 0;
            }
        }
        self.capacity = self.known.iter().filter(|k| k.carries()).map(|k| k.rated).sum();
    }

    /// The draw, if a fresh reading came less than `max_age` ago.
    pub(crate) fn reading(&self, now: Instant, max_age: Duration) -> Option<Watts> {
        self.reading.filter(|_| now - self.seen_at < max_age)
    }

    /// When the newest fresh reading came; the start before the first.
    pub(crate) fn seen_at(&self) -> Instant {
        self.seen_at
    }

    /// What the supplies that live can carry.
    pub(crate) fn capacity(&self) -> Watts {
        self.capacity
    }

    /// What all configured supplies could carry.
    pub(crate) fn rated(&self) -> Watts {
        self.rated
    }

    /// Why the newest poll gave no reading.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The supplies that carry nothing, by index.
    pub(crate) fn lost(&self) -> impl Iterator<Item = usize> {
        self.known.iter().enumerate().filter(|(_, k)| !k.carries()).map(|(i, _)| i)
    }
}

impl Known {
    fn carries(&self) -> bool {
        matches!(self.state, SupplyState::Active | SupplyState::Standby)
            && self.unknown_polls <= UNKNOWN_POLLS
    }
}

/// The draw over all supplies; one missing reading makes the whole missing.
fn sum(known: &[Known], supplies: &[Supply]) -> Result<Watts, Fault> {
    let mut total = Watts::ZERO;
    for (i, (known, supply)) in known.iter().zip(supplies).enumerate() {
        let input = match (supply.state, supply.input) {
            (SupplyState::Unknown, _) => return Err(Fault::Unknown(i)),
            (SupplyState::Active, None | Some(Watts::ZERO)) => return Err(Fault::NoReading(i)),
            (_, input) => input.unwrap_or(Watts::ZERO),
        };
        if input < Watts::ZERO || input > known.rated.ppm(ABSURD_PPM) {
            return Err(Fault::Absurd(i));
        }
        total += input;
    }
    if total > Watts::ZERO { Ok(total) } else { Err(Fault::NoDraw) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SupplyState::{Absent, Active, Failed, Standby, Unknown};

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn supplies() -> Supplies {
        Supplies::new(&[W(1000), W(1000)], Duration::from_secs(5), Instant::ZERO)
    }
    fn poll(at_ms: u64, a: (SupplyState, Option<i64>), b: (SupplyState, Option<i64>)) -> Poll {
        let supply = |(state, input): (_, Option<i64>)| Supply { state, input: input.map(W) };
        Poll { supplies: vec![supply(a), supply(b)], taken_at: Instant::from_millis(at_ms) }
    }

    #[test]
    fn what_a_poll_says() {
        use Outcome::{Fresh, Missing};
        for (a, b, outcome, capacity) in [
            ((Active, Some(400)), (Active, Some(500)), Fresh(W(900)), 2000),
            ((Active, Some(900)), (Standby, Some(0)), Fresh(W(900)), 2000),
            ((Active, Some(900)), (Standby, None), Fresh(W(900)), 2000),
            ((Active, Some(900)), (Failed, Some(0)), Fresh(W(900)), 1000),
            ((Active, Some(900)), (Absent, None), Fresh(W(900)), 1000),
            ((Active, Some(900)), (Active, Some(0)), Missing(Fault::NoReading(1)), 2000),
            ((Active, None), (Active, Some(9)), Missing(Fault::NoReading(0)), 2000),
            ((Active, Some(-5)), (Active, Some(9)), Missing(Fault::Absurd(0)), 2000),
            ((Active, Some(1501)), (Active, Some(9)), Missing(Fault::Absurd(0)), 2000),
            ((Active, Some(1500)), (Active, Some(9)), Fresh(W(1509)), 2000),
            ((Active, Some(900)), (Failed, Some(-1)), Missing(Fault::Absurd(1)), 1000),
            ((Active, Some(900)), (Unknown, Some(900)), Missing(Fault::Unknown(1)), 2000),
            ((Standby, Some(0)), (Standby, None), Missing(Fault::NoDraw), 2000),
            ((Failed, None), (Absent, None), Missing(Fault::NoDraw), 0),
        ] {
            let mut s = supplies();
            assert_eq!(s.take(Instant::from_millis(1), &poll(1, a, b)), outcome, "{a:?} {b:?}");
            assert_eq!(s.capacity(), W(capacity), "{a:?} {b:?}");
        }
    }

    #[test]
    fn an_unknown_supply_carries_for_three_polls() {
        let mut s = supplies();
        let mut carried = vec![];
        for t in 1..=5 {
            s.take(Instant::from_millis(t), &poll(t, (Active, Some(900)), (Unknown, None)));
            carried.push(s.capacity());
        }
        assert_eq!(carried, [W(2000), W(2000), W(2000), W(1000), W(1000)]);
        s.take(Instant::from_millis(9), &poll(9, (Active, Some(900)), (Standby, None)));
        assert_eq!(s.capacity(), W(2000));
    }

    #[test]
    fn when_nothing_can_be_told_the_capacity_stays() {
        let mut s = supplies();
        for t in 1..=9 {
            s.take(Instant::from_millis(t), &poll(t, (Unknown, None), (Unknown, None)));
        }
        assert_eq!(s.capacity(), W(2000));
        assert_eq!(s.reading(Instant::from_millis(9), Duration::from_secs(9)), None);
    }

    #[test]
    fn a_stamp_that_has_not_moved_is_not_fresh() {
        let mut s = supplies();
        let ok = (Active, Some(400));
        let late = Instant::from_millis(100);
        assert_eq!(s.take(late, &poll(50, ok, ok)), Outcome::Fresh(W(800)));
        assert_eq!(s.take(late, &poll(50, ok, (Failed, Some(0)))), Outcome::Old);
        assert_eq!(s.capacity(), W(1000), "a lost feed counts at once");
        assert_eq!(s.take(late, &poll(49, ok, ok)), Outcome::Old);
        assert_eq!(s.capacity(), W(1000), "an older poll says nothing");
        assert_eq!(s.take(late, &poll(101, ok, ok)), Outcome::Missing(Fault::Stamp));
        assert_eq!(
            s.take(Instant::from_millis(9000), &poll(60, ok, ok)),
            Outcome::Missing(Fault::Stamp)
        );
        assert_eq!(s.reading(Instant::from_millis(200), Duration::from_millis(101)), Some(W(800)));
        assert_eq!(s.reading(Instant::from_millis(200), Duration::from_millis(100)), None);
    }
}
