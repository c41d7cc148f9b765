//! Who gets how many watts: the facts about every server, and the allocation that follows.

use ballast_types::wire::{SharePolicy, Slot};
use ballast_types::{Instant, Watts};

use super::Chassis;
use crate::allocate::{Claim, Party, allocate, grants};
use crate::slots::{Agent, Bound};

impl Chassis {
    /// In a capping event the draw is kept at this: under the limit by what flickers above a mean, for the
    /// share of time that the operator allows.
    pub(super) fn set_point(&self) -> Watts {
        let limit = self.limit();
        let squares: f64 = (self.agents.iter())
            .filter_map(|a| a.report.as_ref()?.flicker_w)
            .map(|w| w.as_f64() * w.as_f64())
            .sum();
        let flicker = Watts::from_f64(self.tuning.flicker_sigmas * libm::sqrt(squares));
        limit.ppm(self.tuning.set_point_ppm).min(limit - flicker.unwrap_or_default())
    }

    /// What the servers may share, without what the integral term lends.
    ///
    /// A manager that sees the total corrects its estimate of what the servers do not see; one that is
    /// blind keeps under the alert threshold instead.
    fn sharable_for_long(&self) -> Watts {
        let limit = if self.blind { self.limit().ppm(self.params.alert_ppm) } else { self.limit() };
        let taken = (-self.integral.watts()).at_least_zero();
        (limit - self.shared.at(limit) - taken).at_least_zero()
    }

    /// What the servers may share. What the integral term lends is part of it, for one lease.
    #[must_use]
    pub fn sharable(&self) -> Watts {
        let lent =
            if self.blind || self.event.is_none() { Watts::ZERO } else { self.integral.watts() };
        self.sharable_for_long() + lent.at_least_zero()
    }

    /// The share of a server of which nothing is known.
    pub(super) fn even(&self) -> Watts {
        self.sharable_for_long().per(self.agents.len() as u64)
    }

    /// What the servers that take no part may draw together.
    pub(super) fn reserved(&self, now: Instant) -> Watts {
        let even = self.even();
        let (mut sure, mut unseen) = (Watts::ZERO, Watts::ZERO);
        for agent in &self.agents {
            match self.may_draw(now, agent, even) {
                Some(Bound::Sure(watts)) => sure += watts,
                Some(Bound::Unseen(watts)) => unseen += watts,
                None => {}
            }
        }
        // What is drawn beside the reports can be read; a blind manager has to believe the bounds.
        let read = if self.blind || !self.sighted { Watts::MAX } else { self.unseen };
        sure + unseen.min(read)
    }

    pub(super) fn may_draw(&self, now: Instant, agent: &Agent, even: Watts) -> Option<Bound> {
        let told = agent.report.as_ref().and_then(|r| r.orphan_hold_ms);
        let hold = told.map_or(self.tuning.orphan_hold, core::time::Duration::from_millis);
        let bound = agent.may_draw(now, hold, even)?;
        // Who draws more than its cap counts so only while that matters.
        let pays = agent.slot != Slot::Managed || agent.is_dry() || self.is_over_set_point(now);
        pays.then_some(bound)
    }

    fn is_over_set_point(&self, now: Instant) -> bool {
        self.event.is_some() && self.reading(now).is_some_and(|draw| draw > self.set_point())
    }

    /// Follows what is drawn beside the reports, the shared watts not counted.
    pub(super) fn follow_unseen(&mut self, now: Instant, total: Watts) {
        let seen = self.reported_sum(now) + self.shared.at(total);
        let unseen = (total - seen).at_least_zero();
        self.unseen = unseen.max(self.unseen - (self.unseen - unseen).per(16));
    }

    /// What server `agent` asks for; with even shares nobody asks for anything.
    fn claim(&self, agent: &Agent, even: Watts) -> Claim {
        match self.params.shares {
            SharePolicy::Even => Claim::default(),
            SharePolicy::CriticalFirst => agent.claim(even),
        }
    }

    /// Plans everybody's cap, target and fallback.
    pub(super) fn plan(&mut self, now: Instant) {
        let (even, reserved) = (self.even(), self.reserved(now));
        let pool = (self.sharable() - reserved).at_least_zero();
        let takes_part: Vec<usize> = (0..self.agents.len())
            .filter(|&i| {
                self.agents[i].shares() && self.may_draw(now, &self.agents[i], even).is_none()
            })
            .collect();
        let claims: Vec<_> =
            takes_part.iter().map(|&i| self.claim(&self.agents[i], even)).collect();

        let targets = allocate(pool, &claims);
        self.lacking = match self.params.shares {
            SharePolicy::Even => takes_part.iter().any(|&i| self.agents[i].is_restricted()),
            SharePolicy::CriticalFirst => {
                let slack = Watts::from_whole(1);
                targets.iter().zip(&claims).any(|(t, c)| *t + slack < c.demand.max(c.base))
            }
        };
        self.plan_caps(pool, &takes_part, &targets);

        let pool = (self.sharable_for_long() - reserved).at_least_zero();
        let targets = allocate(pool, &claims);
        self.plan_fallbacks(pool, &takes_part, &targets, &claims);
    }

    fn plan_caps(&mut self, pool: Watts, takes_part: &[usize], targets: &[Watts]) {
        let party = |(&i, &target): (&usize, &Watts)| {
            let agent = &self.agents[i];
            let cap = agent.cap.map(|_| agent.share);
            let sheds = agent.needs.need().is_none_or(|n| n.sheds);
            Party { target, cap, holds: agent.may_hold(), needs: true, sheds }
        };
        let parties: Vec<_> = takes_part.iter().zip(targets).map(party).collect();
        let caps = grants(pool, &parties);

        let even = self.even();
        let mut planned = vec![None; self.agents.len()];
        for ((&i, cap), target) in takes_part.iter().zip(caps).zip(targets) {
            planned[i] = Some((cap, *target));
        }
        // Who takes no part is not raised: nobody would know what came of it.
        let all = self.hardware_targets();
        for ((agent, planned), most) in self.agents.iter_mut().zip(planned).zip(all) {
            let kept = agent.cap.map_or(even, |_| agent.share).min(most);
            (agent.share, agent.target) = planned.unwrap_or((kept, kept));
        }
    }

    /// Fallbacks follow need too, and seldom: agents write them to disk. Somebody who lacks is raised by
    /// the same proof as a grant; otherwise they only fall, when their sum must.
    fn plan_fallbacks(
        &mut self,
        pool: Watts,
        takes_part: &[usize],
        targets: &[Watts],
        claims: &[Claim],
    ) {
        let parties: Vec<_> = (takes_part.iter().zip(targets).zip(claims))
            .map(|((&i, &target), claim)| {
                let agent = &self.agents[i];
                let lacks = agent.fallback < claim.demand.max(claim.base).min(target);
                let even = self.params.shares == SharePolicy::Even;
                Party {
                    target,
                    cap: Some(agent.fallback),
                    holds: Some(agent.holds.fallback().max(agent.fallback)),
                    needs: lacks || even,
                    sheds: agent.needs.need().is_none_or(|n| n.sheds),
                }
            })
            .collect();
        for (&i, fallback) in takes_part.iter().zip(grants(pool, &parties)) {
            self.agents[i].fallback = fallback;
        }
    }

    /// What every server should draw at most by hardware: as if all of them took part.
    pub(super) fn hardware_targets(&self) -> Vec<Watts> {
        let even = self.even();
        let claim = |agent: &Agent| match agent.slot {
            Slot::Off => Claim { weight: 1, ..Claim::default() },
            _ => self.claim(agent, even),
        };
        let claims: Vec<_> = self.agents.iter().map(claim).collect();
        allocate(self.sharable_for_long(), &claims)
    }
}
