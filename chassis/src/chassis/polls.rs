//! What a reading does: it begins and ends capping events, and says how urgent one is.

use core::time::Duration;

use ballast_types::wire::{EventKind, Slot};
use ballast_types::{Instant, Watts, noise_above};

use super::Chassis;
use crate::crosscheck::APART_PPM;
use crate::detector::Scale;
use crate::event::{CappingEvent, Deviation};
use crate::height::Height;
use crate::slots::Bound;
use crate::supplies::Outcome;
use crate::{LiftRule, Poll};

/// A server's meter is wrong when it says more than twice what the supplies or its hardware cap leave for it,
/// and this share of the whole (10 %) besides.
const WRONG_PPM: u32 = 100_000;

impl Chassis {
    pub(super) fn take_poll(&mut self, now: Instant, poll: &Poll) {
        let limit = self.limit();
        let reported = self.reported_sum(now);
        self.supplies.note_reported(reported + self.shared.lower_bound(reported));
        let outcome = self.supplies.take(now, poll);
        if let Outcome::Missing(_) = outcome {
            self.refuse();
        }
        let Outcome::Fresh(total) = outcome else {
            if self.limit() != limit && self.acts() {
                self.limit_moved(now);
            }
            return;
        };

        if !self.acts() {
            return self.judge_capacity(now, total);
        }

        self.find_wrong_meter(now, total);
        let (servers, reported) = (self.reported(now), self.reported_sum(now));
        self.shared.compare(now, total, servers, reported, self.limit());
        self.follow_unreported(now, total);

        if !self.sighted || self.blind {
            let first = !core::mem::replace(&mut self.sighted, true);
            self.blind = false;
            self.cause = "a usable reading".into();

            if first {
                self.start_heartbeats(now);
            }
        }

        self.cross_check(now, total);

        self.observe(now, self.judged(now, total), true);
        (self.unplanned, self.polled) = (true, true);
        self.judgements += 1;
    }

    /// Another limit takes effect at once, on the reading that there is.
    pub(super) fn limit_moved(&mut self, now: Instant) {
        self.unplanned = true;
        if let Some(read) = self.reading(now) {
            let draw = self.judged(now, read);
            self.detector.take_again(now, self.scale(now, draw));
            self.begin_if_high(now, draw);
        }
    }

    /// Takes the chassis's draw: measured now (`measured`), or estimated while blind. An estimate is an
    /// upper bound, and keeps a guard.
    fn observe(&mut self, now: Instant, draw: Watts, measured: bool) {
        let limit = self.limit();
        self.detector.take(now, self.scale(now, draw));
        self.begin_if_high(now, draw);

        let guard = if measured { Watts::ZERO } else { noise_above(limit) };
        let fits = self.everything_fits(now, draw + guard);
        let threshold = limit.ppm(self.params.alert_ppm);
        let (gap, hold) = (self.params.poll() * 2, self.params.lift_hold);
        let (floor, set_point) = (self.floor_of(now, draw), self.set_point());

        let (steers, by_watts) = (self.steers(), self.holds_by_watts());
        // At both ends of the ladder another set point would move nothing but caps in watts.
        if measured && self.event.is_some() && (by_watts || self.height.is_between()) {
            self.set_point.take(draw > limit, f64::from(self.params.above_share_ppm) / 1e6);
        }
        let corrects = by_watts || self.integral.watts() < Watts::ZERO;
        if let Some(event) = &mut self.event {
            event.fits(now, fits, gap, hold);
            if draw >= threshold {
                event.high_at = now;
            }
            event.follow_floor(floor, limit.ppm(self.tuning.floor_moves_ppm));
            self.integral.take(Deviation {
                below: set_point - draw,
                limit,
                lacking: self.lacking && measured,
                overdrawn: self.is_overdrawn(),
                excess: self.detector.is_excess(),
                gain_ppm: if corrects { self.tuning.integral_ppm } else { 0 },
                max_ppm: if by_watts { self.tuning.integral_max_ppm } else { 0 },
            });
        }

        if self.event.is_some() {
            let aim = if measured { set_point } else { threshold };
            // A reading from before a supply's state changed raises nothing.
            let aim = if self.supplies.are_moving(now) { aim.min(draw) } else { aim };
            match steers {
                true => self.steer(now, draw, aim),
                false if self.orders_own_limits() => self.order_own_limits(now, draw, self.range()),
                false => {}
            }
        }
        self.hardware.note_fit(now, fits);
        self.end_if_fitted(now);
    }

    /// Whether the servers that have caps draw more than those together, by so much that their agents know it.
    fn is_overdrawn(&self) -> bool {
        let (mut drawn, mut known) = (Watts::ZERO, Watts::ZERO);
        for agent in self.agents.iter().filter(|a| a.shares()) {
            if let Some((power, cap)) = agent.last_power().zip(agent.cap) {
                drawn += power;
                known += cap + noise_above(cap);
            }
        }
        drawn > known
    }

    /// A draw as the detector compares it.
    fn scale(&self, now: Instant, draw: Watts) -> Scale {
        let over = |limit: Watts| draw.as_f64() / limit.as_f64().max(0.001);
        let judged_by = self
            .lowered
            .judged_by(now)
            .map_or(self.limit(), |before| before.min(self.supplies.capacity()).max(self.limit()));
        Scale {
            share: over(self.limit()),
            trip_share: over(judged_by),
            threshold: f64::from(self.params.alert_ppm) / 1e6,
            noise: self.params.noise(),
        }
    }

    /// Whether the draw plus what would come back is under the lift threshold.
    fn everything_fits(&self, now: Instant, draw: Watts) -> bool {
        draw + self.restorable(now) < self.limit().ppm(self.params.lift_ppm)
    }

    /// What would come back if every agent lifted everything. A server that says nothing may rise to what it
    /// was told last; after a while it is taken to draw what is read beside the others' reports.
    pub(super) fn restorable(&self, now: Instant) -> Watts {
        let even = self.even();
        let (mut sum, mut unheard) = (Watts::ZERO, Watts::ZERO);
        for agent in &self.agents {
            match (agent.slot, &agent.report) {
                (Slot::Managed, Some(report)) => sum += report.restorable_w.at_least_zero(),
                (Slot::Managed, None) => unheard += even,
                (Slot::Silent, _) => match (self.may_draw(now, agent, even), agent.last_power()) {
                    (Some(Bound::Sure(bound)), Some(drew)) => {
                        sum += (bound - drew).at_least_zero();
                    }
                    (Some(Bound::Sure(bound) | Bound::Unheard(bound)), None) => unheard += bound,
                    _ => {}
                },
                _ => {}
            }
        }

        // What certainly is drawn by servers that report nothing cannot come back.
        let total = self.reading(now).unwrap_or_else(|| self.limit());
        let uncertain = self.shared.at(total) - self.shared.lower_bound(total);

        sum + (unheard - (self.unseen - uncertain).at_least_zero()).at_least_zero()
    }

    /// The draw of all servers as far as agents meter it; `None` if one should and does not.
    ///
    /// A server without an agent counts with its bound, one that is off with nothing.
    fn reported(&self, now: Instant) -> Option<Watts> {
        let (silent_after, most) = (self.silent_after(), self.supplies.rated());
        let mut sum = Watts::ZERO;
        for agent in &self.agents {
            sum += match agent.slot {
                Slot::Managed => agent.power(now, silent_after, most)?,
                Slot::Silent | Slot::Maintenance | Slot::Unmanaged | Slot::Unknown => return None,
                Slot::Off => Watts::ZERO,
            };
        }
        Some(sum)
    }

    /// Whether the supplies are read.
    pub(super) fn sees(&self) -> bool {
        self.sighted && !self.blind
    }

    /// The same for an estimate: who says nothing counts with the most that it may draw. `None` if that
    /// is not known of some server.
    pub(super) fn estimated(&self, now: Instant) -> Option<Watts> {
        let (silent_after, most) = (self.silent_after(), self.supplies.rated());
        let mut sum = Watts::ZERO;
        for agent in &self.agents {
            let power = agent.power(now, silent_after, most);
            sum += match agent.slot {
                Slot::Off => Watts::ZERO,
                _ => power.or_else(|| agent.draws_max())?,
            };
        }
        Some(sum)
    }

    /// A report older than this is not added up: a calm server answers every heartbeat, and the poll
    /// that looks at the answer comes a poll later at most.
    fn oldest_report(&self) -> Duration {
        (self.params.beat() + self.params.poll()).min(self.silent_after())
    }

    /// What the servers that answer report together. Who does not report is left out, and shared watts
    /// are not added: it is a lower bound.
    pub(super) fn reported_sum(&self, now: Instant) -> Watts {
        let (oldest, most) = (self.oldest_report(), self.supplies.rated());
        self.agents.iter().filter_map(|agent| agent.power(now, oldest, most)).sum()
    }

    /// Where the reports add up to far more than the supplies read, and one server alone makes that
    /// difference, that server's meter is wrong: a missing supply would show in all of them. Once both sides have
    /// disagreed for a while, a smaller difference suffices, if no other server's report would explain it.
    pub(super) fn find_wrong_meter(&mut self, now: Instant, read: Watts) {
        let (oldest, most) = (self.oldest_report(), self.supplies.rated());
        let powers: Vec<_> =
            self.agents.iter().map(|a| a.reported_power(now, oldest, most).unwrap_or_default()).collect();
        let sum: Watts = powers.iter().copied().sum();
        let reporting = powers.iter().filter(|&&w| w > Watts::ZERO).count();
        let highest = (0..powers.len()).max_by_key(|&i| powers[i]);
        let wrong = highest.and_then(|i| {
            let others = sum - powers[i];
            let alone = (0..powers.len()).all(|j| j == i || sum - powers[j] > read);
            let apart = self.crosscheck.is_alarm() || self.agents[i].wrong_above().is_some();
            let left = read - others;
            let most = if apart && alone { left + read.ppm(APART_PPM) } else { far_above(left, read) };

            // What the others report is all but a part of the reading, and this one says far more.
            (reporting >= 3 && others <= read && powers[i] > most).then_some((i, most))
        });

        // What a wrong meter said last stays wrong when its agent is lost.
        let heard = self.agents.iter_mut().enumerate().filter(|&(i, _)| powers[i] > Watts::ZERO);
        for (i, agent) in heard {
            agent.meter_is_wrong(wrong.filter(|&(n, _)| n == i).map(|(_, most)| most));
        }
    }

    /// Without the supplies a hardware cap tells: a server that says far more than its cap lets through has
    /// a wrong meter, for as long as it says so.
    fn find_wrong_meters_by_caps(&mut self, now: Instant) {
        let (oldest, most, limit) = (self.oldest_report(), self.supplies.rated(), self.limit());
        for agent in &mut self.agents {
            let Some(power) = agent.reported_power(now, oldest, most) else { continue };
            let cap = agent.out_of_band.read_back(now);
            let above = agent.wrong_above().or(cap.map(|cap| far_above(cap, limit)));
            agent.meter_is_wrong(above.filter(|&above| power > above));
        }
    }

    /// Compares a fresh reading of the supplies with the reports.
    fn cross_check(&mut self, now: Instant, read: Watts) {
        let reported = self.reported_sum(now);
        if self.crosscheck.take(now, read, reported)
            && let Some(message) = self.crosscheck.message()
        {
            self.tell(now, EventKind::Alarm { message });
        }
    }

    /// The draw that is judged when the supplies' total is `read`: the higher of it and the reports'.
    pub(super) fn judged(&self, now: Instant, read: Watts) -> Watts {
        if self.crosscheck.counts(now, self.oldest_report()) {
            read.max(self.reported_sum(now))
        } else {
            read
        }
    }

    /// Begins an event if the draw asks for one. The paper's rule is one reading at the threshold.
    fn begin_if_high(&mut self, now: Instant, draw: Watts) {
        let high = match self.params.lift_rule {
            LiftRule::Paper => draw >= self.limit().ppm(self.params.alert_ppm),
            LiftRule::Restorable => self.detector.is_high(),
        };
        if high || draw > self.limit() && !self.sighted {
            self.begin(now, "the draw reached the alert threshold");
        }
    }

    /// Begins an event, unless one is on: every server is told at once.
    fn begin(&mut self, now: Instant, cause: &'static str) {
        if self.event.is_some() {
            return;
        }
        self.alerts = self.alerts.saturating_add(1);
        self.event = Some(CappingEvent::new(now));
        self.height = Height::at(self.range());
        self.cause = cause.into();
        self.unplanned = true;
        for agent in &mut self.agents {
            agent.unreleased = true;
        }
    }

    /// At a manager's start agents may still be capped by an earlier instance. If lifting them all would
    /// bring the draw back over the lift threshold, that event is carried on.
    pub(super) fn carry_on(&mut self, now: Instant) {
        let Some(read) = self.reading(now).filter(|_| self.sighted) else { return };
        let back: Watts = (self.agents.iter())
            .filter_map(|a| a.fresh(now, self.silent_after()))
            .map(|r| r.restorable_w.at_least_zero())
            .sum();
        if self.judged(now, read) + back >= self.limit().ppm(self.params.lift_ppm) {
            self.begin(now, "servers are still capped from before, and too much would come back");
        }
    }

    fn end_if_fitted(&mut self, now: Instant) {
        let Some(event) = &self.event else { return };
        let fitted = match self.params.lift_rule {
            LiftRule::Restorable => event.fitted(),
            LiftRule::Paper => now - event.high_at,
        };
        if fitted >= self.params.lift_hold {
            self.event = None;
            self.integral = crate::event::Integral::default();
            self.cause = "what everybody wants has fitted for the hold time".into();
            self.unplanned = true;
            self.release_at = now;
        }
    }

    /// From here on, without a fresh reading, the manager is blind.
    pub(super) fn blind_at(&self) -> Instant {
        (self.supplies.fresh_at() + self.params.blind_after()).max(self.grace_until)
    }

    /// Sight: three polls without a reading make the manager blind. Then reports stand in for the
    /// supplies; where those are missing too, every server is held at its share.
    pub(super) fn look(&mut self, now: Instant) {
        if self.blind {
            if now < self.estimate_at {
                return;
            }
        } else if now < self.blind_at() {
            return;
        } else {
            self.blind = true;
            self.cause = "no usable reading for three polls".into();
            if !self.sighted {
                self.start_heartbeats(now);
            }
        }

        self.estimate_at = now + self.params.poll();
        self.unplanned = true;
        self.judgements += 1;
        self.find_wrong_meters_by_caps(now);

        match self.estimated(now) {
            Some(servers) => {
                let draw = servers + self.shared.at(self.limit());
                self.observe(now, draw, false);
            }
            None => self.begin(now, "no reading, and not every server reports"),
        }
    }
}

/// What no meter says by mistake of a server that draws `most`, in a chassis of `whole`.
fn far_above(most: Watts, whole: Watts) -> Watts {
    most + most + whole.ppm(WRONG_PPM)
}
