//! What a reading does: it begins and ends episodes, and says when software is not enough.

use ballast_types::wire::{EventKind, SharePolicy, Slot};
use ballast_types::{Instant, Watts};

use crate::chassis::Chassis;
use crate::episode::{Episode, Excess, State, Trigger};
use crate::{LiftRule, Mode};

impl Chassis {
    /// Takes the chassis's draw: measured now (`measured`), or estimated while blind. An estimate
    /// may restrict, and never lifts.
    pub(crate) fn assess(&mut self, now: Instant, total: Watts, measured: bool) {
        let limit = self.limit();
        let threshold = limit.ppm(self.params.alert_ppm);
        self.calm_since =
            (measured && self.is_calm(now, total)).then(|| self.calm_since.unwrap_or(now));
        self.begin_if_reached(now, total);
        if let Some(episode) = self.state.episode_mut() {
            if total >= threshold {
                episode.high_at = now;
            }
            episode.emergency &= total > threshold;
            episode.over_since = (total > limit).then(|| episode.over_since.unwrap_or(now));
            episode.excess = Excess::after(episode.excess, now, total, threshold, limit);
        }
        self.escalate_if_due(now);
        if measured {
            self.lift_when_safe(now);
            self.end_if_calm(now);
        }
    }

    /// Whether the draw plus what would come back is under the lift threshold.
    pub(crate) fn is_calm(&self, now: Instant, total: Watts) -> bool {
        self.restorable(now)
            .is_some_and(|back| total + back < self.limit().ppm(self.params.lift_ppm))
    }

    /// What would come back if every agent lifted everything; `None` while that is not known. An
    /// agent that has been silent for longer than the hold time holds nobody back any more: what it
    /// could restore, its own lease has restored by then.
    fn restorable(&self, now: Instant) -> Option<Watts> {
        let mut sum = Watts::ZERO;
        for agent in &self.agents {
            match agent.slot {
                Slot::Managed => {
                    sum += agent.fresh(now, self.silent_after())?.restorable_w.at_least_zero();
                }
                Slot::Silent if now - agent.since <= self.params.lift_hold => return None,
                _ => {}
            }
        }
        Some(sum)
    }

    /// The draw of all servers as far as agents meter it; `None` if one should and does not.
    ///
    /// A server without an agent counts with its reserve, one that is off with nothing.
    pub(crate) fn reported(&self, now: Instant) -> Option<Watts> {
        let (silent_after, most) = (self.silent_after(), self.supplies.rated());
        let mut sum = Watts::ZERO;
        for agent in &self.agents {
            sum += match agent.slot {
                Slot::Managed => agent.power(now, silent_after, most)?,
                Slot::Silent => return None,
                Slot::Off => Watts::ZERO,
                Slot::Maintenance | Slot::Unmanaged => self.shares.even,
            };
        }
        Some(sum)
    }

    /// Begins an episode if the draw asks for one.
    pub(crate) fn begin_if_reached(&mut self, now: Instant, total: Watts) {
        if total >= self.limit().ppm(self.params.alert_ppm) {
            self.begin(now, "the draw reached the alert threshold");
        }
    }

    /// Begins an episode, unless one is on: every server is told at once.
    fn begin(&mut self, now: Instant, cause: &str) {
        if self.state.episode().is_some() {
            return;
        }
        self.alerts = self.alerts.saturating_add(1);
        self.calm_since = None;
        self.move_by(now, Trigger::Reached(Episode::new(now)), cause);
        for agent in &mut self.agents {
            agent.unreleased = true;
        }
        self.publish(now, false);
        self.cap_silent(now);
    }

    /// At a manager's start agents may still be capped by an earlier life. If lifting them all would
    /// bring the draw back over the lift threshold, that episode is carried on.
    pub(crate) fn carry_on(&mut self, now: Instant) {
        let Some(read) = self.reading(now).filter(|_| self.state == State::Normal) else { return };
        let back: Watts = self
            .agents
            .iter()
            .filter_map(|a| a.fresh(now, self.silent_after()))
            .map(|r| r.restorable_w.at_least_zero())
            .sum();
        if self.judged(now, read) + back >= self.limit().ppm(self.params.lift_ppm) {
            self.begin(now, "servers are still capped from before, and too much would come back");
        }
    }

    fn end_if_calm(&mut self, now: Instant) {
        let Some(episode) = self.state.episode() else { return };
        let since = match self.params.lift_rule {
            LiftRule::Restorable => self.calm_since,
            LiftRule::Paper => Some(episode.high_at),
        };
        // The cap of a server that answers, or cannot, is lifted first, under the agents' caps.
        let capped =
            self.agents.iter().any(|a| a.out_of_band.is_wanted() && a.slot != Slot::Silent);
        if !capped && since.is_some_and(|since| now - since >= self.params.lift_hold) {
            self.move_by(now, Trigger::Calm, "the draw stayed under the lift threshold");
            self.release_at = now;
            self.release_due(now);
        }
    }

    /// After an episode: tells the servers `watch` one by one, so that they do not surge together.
    pub(crate) fn release_due(&mut self, now: Instant) {
        while self.releases() && self.release_at <= now {
            let Some(i) = self.agents.iter().position(|a| a.unreleased) else { return };
            self.agents[i].unreleased = false;
            if self.agents[i].is_messaged() {
                self.send(now, i);
                self.release_at = now + self.params.lift_stagger;
            }
        }
    }

    /// Whether a server's turn is to come. Without sight nobody is released.
    pub(crate) fn releases(&self) -> bool {
        matches!(self.state, State::Normal | State::OutOfBand(None))
            && self.acts()
            && self.agents.iter().any(|a| a.unreleased)
    }

    /// Over the limit for too long, as far as is known: `emergency`, then out-of-band caps.
    fn escalate_if_due(&mut self, now: Instant) {
        let (emergency_after, out_of_band_after) =
            (self.params.emergency_after, self.params.out_of_band_after);
        let Some(episode) = self.state.episode_mut() else { return };
        let lasted = |since: Option<Instant>| since.map(|since| now - since);
        if lasted(episode.over_since).is_some_and(|over| over >= emergency_after) {
            episode.emergency = true;
        }
        let excess = episode.excess.map(|excess| excess.since);
        if lasted(excess).is_some_and(|over| over >= out_of_band_after) {
            self.escalate(now);
        }
    }

    /// Sight: three polls without a reading make the manager blind. Then reports stand in for the
    /// supplies; where those are missing too, every server is held at its fallback.
    pub(crate) fn look(&mut self, now: Instant) {
        if matches!(self.state, State::Blind(_)) {
            if now < self.estimate_at {
                return;
            }
        } else {
            if now < self.supplies.seen_at() + self.params.blind_after() {
                return;
            }
            self.calm_since = None;
            self.move_by(now, Trigger::SightLost, "no usable reading for three polls");
            self.share_out(now);
        }
        self.estimate_at = now + self.params.poll();
        if let Some(episode) = self.state.episode_mut() {
            // What is not seen is not low.
            episode.high_at = now;
        }
        let servers = self.reported(now).filter(|_| self.shared.is_measured());
        if let Some(servers) = servers {
            self.assess(now, servers + self.shared.watts(), false);
        } else {
            self.begin(now, "no reading, and not every server reports");
            self.escalate_if_due(now);
        }
        self.publish(now, false);
    }

    /// Agents that did not answer in time fall silent.
    pub(crate) fn check_silence(&mut self, now: Instant) {
        let silent_after = self.silent_after();
        for i in 0..self.agents.len() {
            let agent = &self.agents[i];
            if agent.slot == Slot::Managed && now - agent.heard_at >= silent_after {
                self.silence(now, i, "no answer");
            }
        }
    }

    /// A server's agent is lost. In a calm chassis that is an alarm; in an episode it is capped
    /// without its software.
    pub(crate) fn silence(&mut self, now: Instant, i: usize, cause: &'static str) {
        let fallback = self.shares.even.max(self.agents[i].holds.fallback());
        let granted = match self.params.shares {
            SharePolicy::Even => None,
            SharePolicy::CriticalFirst => self.agents[i].may_hold(),
        };
        self.agents[i].hold(granted.unwrap_or(fallback).max(fallback));
        self.change_slot(now, i, Slot::Silent, cause);
    }

    /// Moves a server to another slot, and shares anew.
    pub(crate) fn change_slot(&mut self, now: Instant, i: usize, to: Slot, cause: &'static str) {
        let agent = &mut self.agents[i];
        let (from, server) = (agent.slot, agent.server.id.clone());
        agent.move_to(now, to, cause);
        let cause = cause.to_owned();
        self.tell(now, EventKind::SlotChanged { server, from, to, cause });
        self.share_out(now);
        if self.state.episode().is_some() {
            self.cap_silent(now);
            self.publish(now, false);
        }
    }

    /// Whether a server's agent should answer and does not.
    pub(crate) fn is_lost(&self, i: usize) -> bool {
        let agent = &self.agents[i];
        agent.slot == Slot::Silent && agent.server.mode == Mode::Managed
    }
}
