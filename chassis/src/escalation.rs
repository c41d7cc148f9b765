//! When out-of-band caps go on, and when they come off again.
//!
//! They go on for every server when the draw stayed over the limit for too long, and for a server
//! whose agent is silent in an episode. They come off one by one, when the chassis has been calm and
//! the server healthy for the hold time.

use core::time::Duration;

use ballast_types::wire::{EventKind, SharePolicy, Slot};
use ballast_types::{ActionId, Instant, ServerId, Watts};

use crate::Output;
use crate::chassis::Chassis;
use crate::episode::{State, Trigger};
use crate::out_of_band::{Change, Phase};
use crate::slots::Agent;

/// The hold time doubles up to this.
const LONGEST_HOLD: Duration = Duration::from_secs(15 * 60);

/// Without an escalation for this long the hold time is the configured one again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// What is kept of escalations.
#[derive(Debug)]
pub(crate) struct Escalation {
    /// Caps in the ledger on servers that are not configured: nobody can lift them from here.
    pub(crate) strangers: Vec<(ServerId, Watts)>,
    hold: Duration,
    ordered_at: Option<Instant>,
    lifted_at: Option<Instant>,
    on_since: Option<Instant>,
    on_before: Duration,
}

impl Escalation {
    pub(crate) fn new(strangers: Vec<(ServerId, Watts)>, hold: Duration) -> Self {
        Self {
            strangers,
            hold,
            ordered_at: None,
            lifted_at: None,
            on_since: None,
            on_before: Duration::ZERO,
        }
    }

    /// For how long some cap was on.
    pub(crate) fn time_on(&self, now: Instant) -> Duration {
        self.on_before.saturating_add(self.on_since.map_or(Duration::ZERO, |since| now - since))
    }

    /// Caps are ordered: again soon after a lift means that it came too early.
    fn ordered(&mut self, now: Instant, configured: Duration) {
        match self.ordered_at {
            Some(before) if now - before >= FORGIVEN_AFTER => self.hold = configured,
            Some(before) if self.lifted_at.is_some_and(|lifted| lifted >= before) => {
                self.hold = self.hold.saturating_mul(2).min(LONGEST_HOLD.max(configured));
            }
            _ => {}
        }
        self.ordered_at = Some(now);
    }

    /// The hold time in force.
    fn hold(&self, now: Instant, configured: Duration) -> Duration {
        let forgiven = self.ordered_at.is_some_and(|at| now - at >= FORGIVEN_AFTER);
        if forgiven { configured } else { self.hold }
    }
}

impl Chassis {
    /// Whether any configured server's cap is, or may be, on.
    pub(crate) fn caps_on(&self) -> bool {
        self.agents.iter().any(|a| a.out_of_band.phase != Phase::Off)
    }

    /// Counts the time with caps on, and moves the state when the first goes on or the last comes off.
    pub(crate) fn note_caps(&mut self, now: Instant, cause: &str) {
        match (self.escalation.on_since, self.caps_on()) {
            (None, true) => {
                self.escalation.on_since = Some(now);
                self.move_by(now, Trigger::CapsOn, cause);
            }
            (Some(since), false) => {
                self.escalation.on_since = None;
                self.escalation.on_before = self.escalation.on_before.saturating_add(now - since);
                self.move_by(now, Trigger::CapsOff, cause);
            }
            _ => {}
        }
    }

    /// Over the limit for too long: every server that is on and has a path is capped at its share,
    /// first those that draw more than it, or do not say.
    pub(crate) fn escalate(&mut self, now: Instant) {
        let share = |a: &Agent| match self.params.shares {
            SharePolicy::CriticalFirst if a.shares() => a.share,
            _ => self.shares.even,
        };
        let mut wanted: Vec<_> = self.wanted_caps(|a| (a.slot != Slot::Off).then(|| share(a)));
        let (silent_after, most) = (self.silent_after(), self.supplies.rated());
        wanted.sort_by_key(|&(i, _)| {
            let agent = &self.agents[i];
            agent.power(now, silent_after, most).is_some_and(|w| w <= share(agent))
        });
        self.order(now, &wanted, "over the limit for too long");
    }

    /// In an episode a server that does not answer is capped at what it was granted, and not under the
    /// even share. What may be in force besides, an older fallback, ends with that cap.
    pub(crate) fn cap_silent(&mut self, now: Instant) {
        if self.state.episode().is_none() {
            return;
        }
        let even = self.shares.even;
        let wanted = self.wanted_caps(|a| {
            let uncapped = a.slot == Slot::Silent && !a.out_of_band.is_wanted();
            uncapped.then(|| a.cap.unwrap_or(even).max(even))
        });
        self.order(now, &wanted, "a server is silent in a capping episode");
    }

    /// The caps that `rule` asks for and that would add something; never under a server's floor.
    fn wanted_caps(&self, rule: impl Fn(&Agent) -> Option<Watts>) -> Vec<(usize, Watts)> {
        let cap = |a: &Agent| {
            let floor = a.server.out_of_band_floor?;
            rule(a).map(|w| w.max(floor)).filter(|&w| a.out_of_band.needs(w))
        };
        self.agents.iter().enumerate().filter_map(|(i, a)| cap(a).map(|w| (i, w))).collect()
    }

    fn order(&mut self, now: Instant, wanted: &[(usize, Watts)], cause: &str) {
        if wanted.is_empty() {
            return;
        }
        self.escalation.ordered(now, self.params.out_of_band_hold);
        let mut orders = Vec::with_capacity(wanted.len());
        for &(i, watts) in wanted {
            let id = self.next_action();
            let agent = &mut self.agents[i];
            agent.out_of_band.set(now, id, watts, self.params.trip_time);
            orders.push(Output::OutOfBandCap { id, server: agent.server.id.clone(), watts });
        }
        self.record();
        for order in orders {
            self.put(order);
        }
        self.share_out(now);
        self.note_caps(now, cause);
    }

    /// Lifts the next cap, if its server is healthy: it answers, or needs no agent. The cap of a
    /// silent server stays until it answers or is off.
    ///
    /// A server whose agent answers stays under the agent's own cap, so it is enough that the draw
    /// was under the alert threshold for the hold time: a lasting load must not leave hardware in
    /// charge where software can hold the budget. Any other may take up its whole load again: there
    /// the chassis must be calm.
    pub(crate) fn lift_when_safe(&mut self, now: Instant) {
        let hold = self.escalation.hold(now, self.params.out_of_band_hold);
        let held = |since: Instant| now - since >= hold;
        let recently =
            self.escalation.lifted_at.is_some_and(|at| now - at < self.params.out_of_band_stagger);
        let calm = self.calm_since.is_some_and(held);
        let quiet = self.state.episode().map_or(calm, |episode| held(episode.high_at));
        if recently || !(calm || quiet) {
            return;
        }
        let silent_after = self.silent_after();
        let next = self.agents.iter().position(|a| {
            a.out_of_band.is_wanted()
                && match a.slot {
                    Slot::Managed if a.is_dry() => calm,
                    Slot::Managed => held(a.since) && a.fresh(now, silent_after).is_some(),
                    Slot::Silent => false,
                    Slot::Off | Slot::Maintenance | Slot::Unmanaged => calm,
                }
        });
        if let Some(i) = next {
            self.lift(now, i);
        }
    }

    fn lift(&mut self, now: Instant, i: usize) {
        self.escalation.lifted_at = Some(now);
        let id = self.next_action();
        let agent = &mut self.agents[i];
        agent.out_of_band.lift(now, id, self.params.trip_time);
        let server = agent.server.id.clone();
        self.put(Output::OutOfBandLift { id, server });
        self.share_out(now);
    }

    /// Tries again what failed, or was not answered.
    pub(crate) fn retry_due(&mut self, now: Instant) {
        for i in 0..self.agents.len() {
            if self.agents[i].out_of_band.again_at().is_none_or(|at| at > now) {
                continue;
            }
            let id = self.next_action();
            let agent = &mut self.agents[i];
            agent.out_of_band.again(now, id, self.params.trip_time);
            let server = agent.server.id.clone();
            match agent.out_of_band.phase {
                Phase::Setting(watts, _) => self.put(Output::OutOfBandCap { id, server, watts }),
                Phase::Lifting(..) => self.put(Output::OutOfBandLift { id, server }),
                Phase::Off | Phase::On { .. } => {}
            }
        }
    }

    /// The actuator's answer. It counts in every state: the ledger must know what is on. Only a
    /// fenced manager writes no more: the ledger is another's.
    pub(crate) fn take_applied(&mut self, now: Instant, id: ActionId, result: Result<(), String>) {
        let Some(i) = self.agents.iter().position(|a| a.out_of_band.expects(id)) else {
            self.refuse();
            return;
        };
        let agent = &mut self.agents[i];
        let change = agent.out_of_band.answered(now, id, result);
        if self.state == State::Fenced {
            return;
        }
        match change {
            Change::None => {}
            Change::Set => {
                self.share_out(now);
                self.publish(now, false);
            }
            Change::Lifted => {
                self.record();
                self.note_caps(now, "the last out-of-band cap is lifted");
                self.share_out(now);
                self.publish(now, false);
            }
            Change::Failed => {
                let agent = &self.agents[i];
                let message = format!(
                    "out-of-band action on {} failed, try {}: {}",
                    agent.server.id,
                    agent.out_of_band.tries(),
                    agent.out_of_band.error.as_deref().unwrap_or("no reason given"),
                );
                self.tell(now, EventKind::Alarm { message });
            }
        }
    }

    /// The daemon stops. What is out of band is lifted if nothing would go over; otherwise it stays
    /// on, and in the ledger. Agents are left to their leases.
    pub(crate) fn leave(&mut self, now: Instant) {
        if self.reading(now).is_some_and(|read| self.is_calm(now, self.judged(now, read))) {
            for i in 0..self.agents.len() {
                if self.agents[i].out_of_band.is_wanted() {
                    self.lift(now, i);
                }
            }
        }
        self.left = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hold_time_doubles_up_to_a_quarter_of_an_hour_and_is_forgiven_after_one() {
        let base = Duration::from_secs(30);
        let mut e = Escalation::new(vec![], base);
        let mut now = Instant::ZERO;
        let mut holds = vec![];
        for _ in 0..8 {
            e.ordered(now, base);
            holds.push(e.hold(now, base).as_secs());
            now += Duration::from_secs(60);
            e.lifted_at = Some(now);
            now += Duration::from_secs(60);
        }
        assert_eq!(holds, [30, 60, 120, 240, 480, 900, 900, 900]);
        e.ordered(now, base);
        e.ordered(now, base);
        assert_eq!(
            e.hold(now, base).as_secs(),
            900,
            "without a lift in between it is one escalation"
        );
        now += FORGIVEN_AFTER;
        assert_eq!(e.hold(now, base), base);
        e.ordered(now, base);
        assert_eq!(e.hold(now, base), base);
    }
}
