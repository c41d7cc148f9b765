//! From a poll of the power supplies to the chassis's draw and to what it can carry.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Supply, SupplyState, TRIP_TIME, Watts};
use serde::{Deserialize, Serialize};

use crate::{Params, Poll};

/// For so long a supply that cannot be read keeps its capacity without a sign that it carries.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// Reports that exceed the readable supplies by this share (10 %) show that the others carry.
const CARRIES_PPM: u32 = 100_000;

/// If they do so for this long, a supply that was taken for lost was not.
const CARRIES_AFTER: Duration = Duration::from_secs(10);

/// A supply that carried less than this share of the draw (5 %) leaves no trace in the others' readings
/// when it goes.
const TRACE_PPM: u32 = 50_000;

/// Within this time the others take over what a lost supply carried.
const TAKEN_OVER: Duration = Duration::from_secs(1);

/// A supply that carries this share of the draw (20 %) shows when the others' draw moves by [`MOVED_PPM`].
const SHOWS_PPM: u32 = 200_000;

/// See [`SHOWS_PPM`]: 10 %, far beyond how finely a supply's meter counts.
const MOVED_PPM: u32 = 100_000;

/// In so many readings in a row (a second).
const STUCK_AFTER: u8 = 5;

/// Readings of the last second.
const RECENT: usize = 16;

/// A reading beyond this share of the rating is implausible, in parts per million.
const IMPLAUSIBLE_PPM: u32 = 1_500_000;

/// Why a poll gave no reading. The index is the supply's, in configured order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// Not as many supplies as configured.
    Count,
    /// Stamped later than now, or so long ago that it says nothing.
    Time,
    /// The supply's state cannot be read.
    Unknown(usize),
    /// The supply carries load, and reads nothing or zero.
    NoReading(usize),
    /// Below zero, or far beyond the rating.
    Implausible(usize),
    /// The reading stays the same while the others' draw moves.
    Stuck(usize),
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
    Missing(Fault),
}

/// One supply's last readable state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SupplyRecord {
    rated: Watts,
    state: SupplyState,
    /// What it last carried.
    part: Watts,
    /// Since when it cannot be read.
    unreadable: Option<Instant>,
    /// The others carry its part since it cannot be read.
    lost: bool,
    /// What the others carried when its reading last changed.
    others: Watts,
    /// Readings in a row that were the same although the others' moved.
    same: u8,
}

/// The power supplies as last polled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Supplies {
    records: Vec<SupplyRecord>,
    rated: Watts,
    capacity: Watts,
    taken_at: Option<Instant>,
    reading: Option<Watts>,
    fresh_at: Instant,
    fault: Option<Fault>,
    /// While one cannot be read: what the others carried lately.
    others: VecDeque<(Instant, Watts)>,
    /// One came back: until then the others' draw rises by what that one carries.
    settles_at: Instant,
    /// The draw by the servers' reports, as far as it is certain.
    reported: Watts,
    /// Since when and until when that showed that supplies that cannot be read carry.
    carrying: Option<(Instant, Instant)>,
    /// After a supply's state changed, its meter and those of the others show that within this time.
    shows_within: Duration,
    /// Until then their readings do not add up to the draw.
    moves_until: Instant,
}

impl Supplies {
    /// Before the first poll every supply is taken to carry load. A reading older than [`TRIP_TIME`]
    /// says nothing.
    pub(crate) fn new(rated: &[Watts], now: Instant) -> Self {
        let records: Vec<_> = rated.iter().map(|&rated| SupplyRecord::new(rated)).collect();
        let rated = records.iter().map(|k| k.rated).sum();
        Self {
            records,
            rated,
            capacity: rated,
            taken_at: None,
            reading: None,
            fresh_at: now,
            fault: None,
            others: VecDeque::new(),
            settles_at: now,
            reported: Watts::ZERO,
            carrying: None,
            shows_within: Duration::ZERO,
            moves_until: now,
        }
    }

    /// The supplies of `params`, at the manager's start.
    pub(crate) fn of(params: &Params, now: Instant) -> Self {
        Self { shows_within: params.polled_after(), ..Self::new(&params.supply_rated, now) }
    }

    /// Notes the draw by the servers' reports, as far as it is certain.
    pub(crate) fn note_reported(&mut self, watts: Watts) {
        self.reported = watts;
    }

    /// Other supplies: what is known of those that stay, by name, stays. What they can carry rises with the next
    /// poll only, for until then the reading is that of the supplies before.
    pub(crate) fn follow(&mut self, now: Instant, before: &Params, params: &Params) {
        let names: Vec<_> = (0..self.records.len()).map(|i| before.supply_name(i)).collect();
        let record = |(i, &rated): (usize, &Watts)| {
            let known = names.iter().position(|name| *name == params.supply_name(i));
            let known = known.map(|i| SupplyRecord { rated: rated.at_least_zero(), ..self.records[i] });
            known.unwrap_or_else(|| SupplyRecord::new(rated))
        };
        self.records = params.supply_rated.iter().enumerate().map(record).collect();
        self.rated = self.records.iter().map(|k| k.rated).sum();
        self.capacity = self.capacity.min(self.carried(now));
        self.shows_within = params.polled_after();
        self.others.clear();
    }

    pub(crate) fn take(&mut self, now: Instant, poll: &Poll) -> Outcome {
        let outcome = self.judge(now, poll);
        match outcome {
            Outcome::Fresh(total) => {
                self.taken_at = Some(poll.taken_at);
                self.reading = Some(total);
                self.fresh_at = now;
                self.fault = None;
            }
            Outcome::Missing(fault) => self.fault = Some(fault),
            Outcome::Old => {}
        }
        outcome
    }

    fn judge(&mut self, now: Instant, poll: &Poll) -> Outcome {
        if poll.supplies.len() != self.records.len() {
            return Outcome::Missing(Fault::Count);
        }
        if poll.taken_at > now || now - poll.taken_at > TRIP_TIME {
            return Outcome::Missing(Fault::Time);
        }
        if self.taken_at.is_some_and(|newest| poll.taken_at < newest) {
            return Outcome::Old;
        }
        self.notice_stuck(&poll.supplies);
        // A lost feed counts at once, even where the meters have not moved yet.
        self.learn_states(now, &poll.supplies);
        match sum(&self.records, &poll.supplies) {
            Err(fault) => Outcome::Missing(fault),
            Ok(_) if self.taken_at == Some(poll.taken_at) => Outcome::Old,
            // A lost feed's part is counted nowhere or twice until all meters show who carries it.
            Ok(total) if self.are_moving(now) => Outcome::Fresh(self.reading.unwrap_or(total)),
            Ok(total) => Outcome::Fresh(total),
        }
    }

    /// A constant reading is suspicious only while the rest moves; one that changes is believed again.
    fn notice_stuck(&mut self, supplies: &[Supply]) {
        let total: Watts = supplies.iter().filter_map(|s| s.input).sum();
        for (record, supply) in self.records.iter_mut().zip(supplies) {
            let readable = supply.state != SupplyState::Unknown;
            let Some(part) = supply.input.filter(|part| readable && *part > Watts::ZERO) else {
                record.same = 0;
                continue;
            };
            let others = total - part;
            if part != record.part || part < total.ppm(SHOWS_PPM) {
                (record.others, record.same) = (others, 0);
                continue;
            }
            let moved = (others - record.others).max(record.others - others);
            let suspicious = moved > record.others.ppm(MOVED_PPM);
            record.same = if suspicious { record.same.saturating_add(1) } else { 0 };
        }
    }

    /// Where no supply at all can be read, the link to them broke, not the supplies: the
    /// capacity stays, and the missing reading makes the manager blind.
    fn learn_states(&mut self, now: Instant, supplies: &[Supply]) {
        let unreadable = |s: &Supply| s.state == SupplyState::Unknown;
        if supplies.iter().all(unreadable) {
            return;
        }
        for (record, supply) in self.records.iter_mut().zip(supplies) {
            if unreadable(supply) {
                record.unreadable = record.unreadable.or(Some(now));
            } else {
                if supply.state == SupplyState::Active && !record.is_read_to_carry() {
                    self.settles_at = now + TAKEN_OVER;
                }
                // A supply that changes all the time hides the draw for half of the time at most.
                if supply.state != record.state && now >= self.moves_until + self.shows_within {
                    self.moves_until = now + self.shows_within;
                }
                record.state = supply.state;
                record.part = supply.input.unwrap_or(record.part).at_least_zero();
                (record.unreadable, record.lost) = (None, false);
            }
        }

        self.notice_losses(now, supplies);
        self.notice_carrying(now, supplies);
        self.capacity = self.carried(now);
    }

    /// What the supplies that carry load or stand by can carry.
    fn carried(&self, now: Instant) -> Watts {
        self.records.iter().filter(|k| self.carries(now, k)).map(|k| k.rated).sum()
    }

    fn carries(&self, now: Instant, record: &SupplyRecord) -> bool {
        let shown_at = self.carrying.map_or(Instant::ZERO, |(_, until)| until);
        matches!(record.state, SupplyState::Active | SupplyState::Standby)
            && !record.lost
            && record.unreadable.is_none_or(|since| now - since.max(shown_at) < KEPT)
    }

    /// Servers that draw more than the readable supplies carry are carried by those that cannot be read.
    fn notice_carrying(&mut self, now: Instant, supplies: &[Supply]) {
        let readable = supplies.iter().filter(|s| s.state != SupplyState::Unknown);
        let read: Watts = readable.clone().filter_map(|s| s.input).sum();
        let is_shown = readable.count() < supplies.len() && self.reported - read > read.ppm(CARRIES_PPM);
        let lasts = self.carrying.filter(|&(_, until)| now - until < TAKEN_OVER).map(|(since, _)| since);
        if is_shown {
            self.carrying = Some((lasts.unwrap_or(now), now));
        }
        if is_shown && lasts.is_some_and(|since| now - since >= CARRIES_AFTER) {
            self.records.iter_mut().for_each(|record| record.lost = false);
        }
    }

    /// A supply that cannot be read has gone when the others rise by half of what it carried within a
    /// second; not where one of the others has just come back, or can be read again.
    fn notice_losses(&mut self, now: Instant, supplies: &[Supply]) {
        if self.records.iter().all(|k| k.unreadable.is_none()) {
            self.others.clear();
            return;
        }

        let readable = supplies.iter().filter(|s| s.state != SupplyState::Unknown);
        let carried: Watts = readable.filter_map(|s| s.input).sum();

        if now < self.settles_at {
            self.others.clear();
            self.others.push_back((now, carried));
            return;
        }

        if self.others.is_empty() {
            // From before it went: its neighbours' parts as they were.
            let before = self.before(supplies);
            self.others.push_back((now, before));
        }

        while self.others.len() >= RECENT || self.others.front().is_some_and(|(at, _)| now - *at > TAKEN_OVER)
        {
            self.others.pop_front();
        }
        self.others.push_back((now, carried));

        let lowest = self.others.iter().map(|(_, watts)| *watts).min().unwrap_or(carried);
        let rise = carried - lowest;
        for record in self.records.iter_mut().filter(|k| k.unreadable.is_some()) {
            let traceable = record.part > (carried + record.part).ppm(TRACE_PPM);
            record.lost |= traceable && rise >= record.part.per(2);
        }
    }

    /// What the supplies that can be read carried in the last full reading.
    fn before(&self, supplies: &[Supply]) -> Watts {
        let unreadable: Watts = (self.records.iter().zip(supplies))
            .filter(|(_, s)| s.state == SupplyState::Unknown)
            .map(|(k, _)| k.part)
            .sum();
        self.reading.map_or(Watts::MAX, |total| total - unreadable)
    }

    /// The draw, if a fresh reading came less than `max_age` ago.
    pub(crate) fn reading(&self, now: Instant, max_age: Duration) -> Option<Watts> {
        self.reading.filter(|_| now - self.fresh_at < max_age)
    }

    /// Whether readings do not add up to the draw yet, because a supply's state has just changed.
    pub(crate) fn are_moving(&self, now: Instant) -> bool {
        now < self.moves_until
    }

    /// When the newest fresh reading was produced; the start before the first.
    pub(crate) fn taken_at(&self) -> Instant {
        self.taken_at.unwrap_or(self.fresh_at)
    }

    /// When the newest fresh reading came; the start before the first.
    pub(crate) fn fresh_at(&self) -> Instant {
        self.fresh_at
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
    pub(crate) fn lost(&self, now: Instant) -> impl Iterator<Item = usize> {
        self.records.iter().enumerate().filter(move |(_, k)| !self.carries(now, k)).map(|(i, _)| i)
    }
}

impl SupplyRecord {
    /// Before the first poll it is taken to carry load.
    fn new(rated: Watts) -> Self {
        Self {
            rated: rated.at_least_zero(),
            state: SupplyState::Active,
            part: Watts::ZERO,
            unreadable: None,
            lost: false,
            others: Watts::ZERO,
            same: 0,
        }
    }

    /// Whether its draw was part of the newest reading.
    fn is_read_to_carry(&self) -> bool {
        self.state == SupplyState::Active && self.unreadable.is_none()
    }
}

/// The draw over all supplies; one missing reading makes the whole missing. A supply that has failed, and whose
/// meter shows the same whatever the others carry, carries nothing.
fn sum(records: &[SupplyRecord], supplies: &[Supply]) -> Result<Watts, Fault> {
    let mut total = Watts::ZERO;
    for (i, (record, supply)) in records.iter().zip(supplies).enumerate() {
        let input = match (supply.state, supply.input) {
            (SupplyState::Unknown, _) => return Err(Fault::Unknown(i)),
            (SupplyState::Active, None | Some(Watts::ZERO)) => return Err(Fault::NoReading(i)),
            (_, input) => input.unwrap_or(Watts::ZERO),
        };
        if input < Watts::ZERO || input > record.rated.ppm(IMPLAUSIBLE_PPM) {
            return Err(Fault::Implausible(i));
        }
        if record.same < STUCK_AFTER {
            total += input;
        } else if supply.state == SupplyState::Active {
            return Err(Fault::Stuck(i));
        }
    }
    if total > Watts::ZERO { Ok(total) } else { Err(Fault::NoDraw) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SupplyState::{Absent, Active, Failed, Standby, Unknown};

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn supplies() -> Supplies {
        Supplies::new(&[W(1000), W(1000)], Instant::ZERO)
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
            ((Active, Some(-5)), (Active, Some(9)), Missing(Fault::Implausible(0)), 2000),
            ((Active, Some(1501)), (Active, Some(9)), Missing(Fault::Implausible(0)), 2000),
            ((Active, Some(1500)), (Active, Some(9)), Fresh(W(1509)), 2000),
            ((Active, Some(900)), (Failed, Some(-1)), Missing(Fault::Implausible(1)), 1000),
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
    fn a_reading_that_stands_still_while_the_others_move_is_none() {
        let take = |s: &mut Supplies, n: u64, a, b| {
            s.take(Instant::from_millis(200 * n), &poll(200 * n, (Active, Some(a)), (Active, Some(b))))
        };

        // The other's draw; the first reading that is none.
        for (stuck, other, first) in [
            (200, 240, Some(14)), // five readings after the move
            (200, 160, Some(14)),
            (200, 215, None), // within what loads that are not shared evenly do
            (8, 240, None),   // a supply that rests carries next to nothing
        ] {
            let mut s = supplies();
            let missing = |outcome| outcome == Outcome::Missing(Fault::Stuck(0));
            let found = (0..40).find(|&n| {
                let b = if n < 10 { 200 } else { other };
                missing(take(&mut s, n + 1, stuck, b))
            });

            assert_eq!(found, first, "{stuck} {other}");
            assert_eq!(take(&mut s, 100, stuck + 1, other), Outcome::Fresh(W(stuck + 1 + other)));
        }
    }

    /// The feed of a supply with a stuck meter was lost: its reading held a chassis down for good.
    #[test]
    fn a_failed_supply_whose_reading_stands_still_carries_nothing() {
        let mut s = supplies();
        let mut take = |n: u64, state, stuck, other| {
            let poll = poll(200 * n, (state, Some(stuck)), (Active, Some(other)));
            s.take(Instant::from_millis(200 * n), &poll)
        };
        assert_eq!(take(1, Active, 300, 300), Outcome::Fresh(W(600)));
        for n in 2..6 {
            assert_eq!(take(n, Failed, 300, 500), Outcome::Fresh(W(800)), "it may be right");
        }
        assert_eq!(take(6, Failed, 300, 500), Outcome::Fresh(W(500)));
        assert_eq!(take(7, Failed, 290, 500), Outcome::Fresh(W(790)), "it moves");
        assert_eq!(take(8, Active, 300, 500), Outcome::Fresh(W(800)));
    }

    #[test]
    fn an_unreadable_supply_carries_for_ten_minutes() {
        let mut s = supplies();
        let mut take = |t: u64, a, b| {
            s.take(Instant::from_millis(t), &poll(t, (Active, Some(a)), b));
            s.capacity()
        };
        assert_eq!(take(1, 450, (Active, Some(450))), W(2000));
        for t in [200, 400, 599_000, 600_100] {
            assert_eq!(take(t, 460, (Unknown, None)), W(2000), "{t}");
        }
        assert_eq!(take(600_300, 460, (Unknown, None)), W(1000));
        assert_eq!(take(600_500, 460, (Standby, None)), W(2000));
    }

    /// The tenth of what the others carry is within what meters may be off together.
    #[test]
    fn an_unreadable_supply_carries_as_long_as_the_reports_show_it() {
        for (reported, kept) in [(900, true), (540, true), (500, false), (0, false)] {
            let mut s = supplies();
            let mut take = |t: u64, b| {
                s.note_reported(W(reported));
                s.take(Instant::from_millis(t), &poll(t, (Active, Some(460)), b));
                s.capacity()
            };
            take(1, (Active, Some(450)));
            let capacity = (1..9000).map(|n| take(200 * n, (Unknown, None))).min();
            assert_eq!(capacity == Some(W(2000)), kept, "{reported}");
        }
    }

    /// A load that rose within a second had the supply taken for lost for good.
    #[test]
    fn a_supply_that_was_taken_for_lost_carries_once_the_reports_show_it() {
        for (reported, carries) in [(1300, true), (760, false)] {
            let mut s = supplies();
            let mut take = |n: u64, a, b| {
                s.note_reported(W(reported));
                s.take(Instant::from_millis(200 * n), &poll(200 * n, (Active, Some(a)), b));
                s.capacity()
            };
            take(1, 450, (Active, Some(450)));
            take(2, 450, (Unknown, None));
            assert_eq!(take(3, 700, (Unknown, None)), W(1000));
            let found = (4..200).find(|&n| take(n, 700, (Unknown, None)) == W(2000));
            assert_eq!(found.is_some(), carries, "{reported}: {found:?}");
        }
    }

    #[test]
    fn an_unreadable_supply_has_gone_when_the_others_take_over() {
        for (parts, rises, capacity) in [
            ((450, 450), [455, 690, 900], 1000), // half of its part within a second
            ((450, 450), [450, 500, 560], 2000), // the load rises a little
            ((860, 40), [860, 900, 900], 2000),  // what it carried leaves no trace
            ((450, 450), [900, 900, 900], 1000), // in the first poll already
        ] {
            let mut s = supplies();
            let (a, b) = parts;
            s.take(Instant::from_millis(1), &poll(1, (Active, Some(a)), (Active, Some(b))));
            for (n, a) in (1..).zip(rises) {
                let t = 1 + 200 * n;
                s.take(Instant::from_millis(t), &poll(t, (Active, Some(a)), (Unknown, None)));
            }
            assert_eq!(s.capacity(), W(capacity), "{parts:?} {rises:?}");
        }
    }

    #[test]
    fn a_supply_that_comes_back_takes_nothing_over_from_one_that_cannot_be_read() {
        for away in [(Failed, Some(0)), (Unknown, None)] {
            let mut s = Supplies::new(&[W(1000); 3], Instant::ZERO);
            let mut take = |n: u64, parts: [(SupplyState, Option<i64>); 3]| {
                let taken_at = Instant::from_millis(200 * n);
                let supplies =
                    parts.into_iter().map(|(state, input)| Supply { state, input: input.map(W) }).collect();
                s.take(taken_at, &Poll { supplies, taken_at });

                s.capacity()
            };

            let (full, blind) = ((Active, Some(300)), (Unknown, None));
            take(1, [full; 3]);
            (2..20).for_each(|n| _ = take(n, [full, full, blind]));
            (20..30).for_each(|n| _ = take(n, [full, away, blind]));

            // Its state is known before its meter has moved.
            take(30, [full, (Active, Some(1)), blind]);
            let back = (31..60).map(|n| take(n, [full, full, blind])).min();
            assert_eq!(back, Some(W(3000)), "{away:?}");

            // Later one that goes is found as ever.
            let half = (Active, Some(450));
            assert_eq!(take(60, [half, half, blind]), W(2000), "{away:?}");
        }
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
        assert_eq!(s.take(late, &poll(101, ok, ok)), Outcome::Missing(Fault::Time));
        assert_eq!(s.take(Instant::from_millis(9000), &poll(60, ok, ok)), Outcome::Missing(Fault::Time));
        assert_eq!(s.reading(Instant::from_millis(200), Duration::from_millis(101)), Some(W(800)));
        assert_eq!(s.reading(Instant::from_millis(200), Duration::from_millis(100)), None);
    }
}
