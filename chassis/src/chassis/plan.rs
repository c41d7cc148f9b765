//! Who gets how many watts: the facts about every server, and the allocation that follows.

use core::time::Duration;

use ballast_types::wire::{SharePolicy, Slot};
use ballast_types::{Instant, Watts};

use super::Chassis;
use crate::allocate::{Claim, Party, allocate, grants};
use crate::slots::{Agent, Bound};

/// A server that draws more than its cap for so long is not on its way to its floor.
const OBEYS_WITHIN: Duration = Duration::from_secs(2);

/// A server that draws less than its limit by more than this share is not held by that limit.
const UNHELD_PPM: u32 = 50_000;

impl Chassis {
    /// In a capping event the draw is kept at this.
    pub(super) fn set_point(&self) -> Watts {
        self.set_point.under(self.limit())
    }

    /// What would be drawn with every low-priority core at its floor and no server's own limit, where `draw` is
    /// drawn now. A server that has not obeyed for `OBEYS_WITHIN` sheds nothing more.
    pub(super) fn floor_of(&self, now: Instant, draw: Watts) -> Watts {
        let sheds = |agent: &Agent| {
            let (power, need) = agent.last_power().zip(agent.needs.need())?;
            let limited = agent.report.as_ref().is_some_and(|report| report.server_limit);
            if limited && agent.is_unheld(UNHELD_PPM) {
                return Some(Watts::ZERO);
            }
            let refuses = self.holds_by_watts() && agent.overdraws(now, OBEYS_WITHIN).is_some();
            let most = if refuses { Watts::ZERO } else { Watts::MAX };
            let least = if limited { -need.base } else { Watts::ZERO };
            Some((power - need.base).min(most).max(least))
        };
        draw - self.agents.iter().filter(|a| a.shares()).filter_map(sheds).sum()
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
    pub fn sharable(&self) -> Watts {
        let integral = if self.blind || self.event.is_none() { Watts::ZERO } else { self.integral.watts() };
        self.sharable_for_long() + integral.at_least_zero()
    }

    /// The share of a server of which nothing is known.
    pub(super) fn even(&self) -> Watts {
        self.sharable_for_long().per(self.agents.len() as u64)
    }

    /// What the servers that take no part may draw together.
    fn reserved(&self, bounds: &[Option<Bound>]) -> Watts {
        let (mut sure, mut unseen, mut unheard) = (Watts::ZERO, Watts::ZERO, None);
        for bound in bounds.iter().flatten() {
            match *bound {
                Bound::Sure(watts) => sure += watts,
                Bound::Unseen(watts) => unseen += watts,
                Bound::Unheard(watts) => unheard = Some(unheard.unwrap_or(Watts::ZERO) + watts),
            }
        }
        // What is drawn beside the reports can be read; a blind manager has to believe the bounds.
        // Before every agent has spoken to this start of the manager, the reports leave far too much.
        let read = (self.sees() && self.all_heard).then_some(self.unseen);
        let unseen = unseen.min(read.unwrap_or(Watts::MAX));
        let beside = unheard.map_or(unseen, |w| (unseen + w).max(read.unwrap_or_default()));
        sure + beside
    }

    pub(super) fn may_draw(&self, now: Instant, agent: &Agent, even: Watts) -> Option<Bound> {
        let told = agent.report.as_ref().and_then(|r| r.orphan_hold_ms);
        let hold = told.map_or(self.tuning.orphan_hold, Duration::from_millis);
        agent.may_draw(now, hold, even)
    }

    /// Whether the reading of a capping event is above `most`.
    pub(super) fn is_above(&self, now: Instant, most: Watts) -> bool {
        self.event.is_some() && self.reading(now).is_some_and(|draw| draw > most)
    }

    /// Follows what is drawn beside the reports. Of the shared watts only those that are certain are no
    /// server's: what a server may draw that reports nothing is not granted to others.
    pub(super) fn follow_unreported(&mut self, now: Instant, total: Watts) {
        let seen = self.reported_sum(now) + self.shared.lower_bound(total);
        let unseen = (total - seen).at_least_zero();
        let before = if self.all_heard { self.unseen } else { unseen };
        self.unseen = unseen.max(before - (before - unseen).per(16));
        self.all_heard = self.agents.iter().all(|a| a.slot != Slot::Managed || a.report.is_some());
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
        let even = self.even();
        let bounds: Vec<_> = self.agents.iter().map(|a| self.may_draw(now, a, even)).collect();
        let reserved = self.reserved(&bounds);
        let takes_part: Vec<usize> = (0..self.agents.len()).filter(|&i| self.agents[i].shares()).collect();
        let claims: Vec<_> = takes_part.iter().map(|&i| self.claim(&self.agents[i], even)).collect();

        let pool = (self.sharable() - reserved).at_least_zero();
        let targets = allocate(pool, &claims);
        self.lacking = match self.params.shares {
            SharePolicy::Even => takes_part.iter().any(|&i| self.agents[i].is_restricted()),
            SharePolicy::CriticalFirst => {
                let slack = Watts::from_whole(1);
                targets.iter().zip(&claims).any(|(t, c)| *t + slack < c.demand.max(c.guarded))
            }
        };

        self.keep_the_others(&bounds, even);
        self.plan_caps(now, pool, &takes_part, &targets, &claims);

        let pool = (self.sharable_for_long() - reserved).at_least_zero();
        let targets = allocate(pool, &claims);
        self.plan_fallbacks(pool, &takes_part, &targets, &claims);
    }

    /// Who takes no part is not raised, not even to a share that was planned and not told yet: nobody would
    /// know what came of it.
    fn keep_the_others(&mut self, bounds: &[Option<Bound>], even: Watts) {
        if bounds.iter().all(Option::is_none) {
            return;
        }
        let all = self.hardware_targets();
        for ((agent, most), bound) in self.agents.iter_mut().zip(all).zip(bounds) {
            let Some(bound) = bound.map(Bound::watts) else { continue };
            let kept = agent.cap.map_or(even, |told| told.min(agent.share));
            agent.share = kept.min(most).min(bound);
            agent.target = agent.share;
        }
    }

    fn plan_caps(
        &mut self,
        now: Instant,
        pool: Watts,
        takes_part: &[usize],
        targets: &[Watts],
        claims: &[Claim],
    ) {
        // Who draws more than its cap keeps it, or gets less; the others pay for what it draws.
        let over = self.holds_by_watts() && self.is_above(now, self.set_point());
        let (mut rest, mut obeying) = (pool, Vec::with_capacity(takes_part.len()));

        for (n, &i) in takes_part.iter().enumerate() {
            let agent = &mut self.agents[i];
            agent.target = targets[n];
            match agent.overdraws(now, Duration::ZERO).filter(|_| over) {
                Some(draws) => {
                    let told = agent.cap.unwrap_or(agent.share);
                    agent.share = agent.share.min(told).min(targets[n]);
                    rest -= draws.max(told);
                }
                None => obeying.push(n),
            }
        }

        let rest = rest.at_least_zero();
        let targets = if obeying.len() == takes_part.len() {
            targets.to_vec()
        } else {
            let claims: Vec<_> = obeying.iter().map(|&n| claims[n]).collect();
            allocate(rest, &claims)
        };

        let party = |(&n, &target): (&usize, &Watts)| {
            let agent = &self.agents[takes_part[n]];
            let cap = agent.cap.map(|_| agent.share);
            let sheds = agent.needs.may_shed();

            Party { target, cap, holds: agent.may_hold(), needs: true, sheds }
        };

        let parties: Vec<_> = obeying.iter().zip(&targets).map(party).collect();
        for ((&n, share), target) in obeying.iter().zip(grants(rest, &parties)).zip(targets) {
            let agent = &mut self.agents[takes_part[n]];
            (agent.share, agent.target) = (share, target);
        }
    }

    /// Fallbacks follow need too, and seldom: agents write them to disk. Somebody who lacks is raised by
    /// the same proof as a grant; otherwise they only fall, when their sum must.
    fn plan_fallbacks(&mut self, pool: Watts, takes_part: &[usize], targets: &[Watts], claims: &[Claim]) {
        let parties: Vec<_> = (takes_part.iter().zip(targets).zip(claims))
            .map(|((&i, &target), claim)| {
                let agent = &self.agents[i];
                let lacks = agent.fallback < claim.demand.max(claim.guarded).min(target);
                let even = self.params.shares == SharePolicy::Even;

                // An agent that dies leaves its server at its cap, and no fallback ever takes its place.
                let held = agent.holds.max().unwrap_or_default().max(agent.holds.fallback());
                Party {
                    target,
                    cap: Some(agent.fallback),
                    holds: Some(held.max(agent.fallback)),
                    needs: lacks || even,
                    sheds: agent.needs.may_shed(),
                }
            })
            .collect();
        // Who takes no part keeps what it was told: a raise that was planned before is not told any more.
        for agent in &mut self.agents {
            agent.fallback = agent.fallback.min(agent.holds.fallback());
        }
        for (&i, fallback) in takes_part.iter().zip(grants(pool, &parties)) {
            self.agents[i].fallback = fallback;
        }
    }

    /// What every server should draw at most by hardware: as if all of them took part.
    pub(super) fn hardware_targets(&self) -> Vec<Watts> {
        let even = self.even();
        let claim = |agent: &Agent| match agent.slot {
            Slot::Off => Claim::default(),
            _ => self.claim(agent, even),
        };
        let claims: Vec<_> = self.agents.iter().map(claim).collect();
        allocate(self.sharable_for_long(), &claims)
    }
}
