//! What agents are told, and when.
//!
//! A message is desired state. A stricter one goes out at once; otherwise a calm server hears every
//! heartbeat, at a phase of its own, and a capped one every poll. Answers are not waited for.

use ballast_types::wire::{Alert, EventKind, Level};
use ballast_types::{Instant, Watts};

use super::{Chassis, level};
use crate::Output;
use crate::slots::Agent;

impl Chassis {
    /// Whether agents are spoken to at all. Before the first reading they are not: a `watch` would
    /// release what an earlier instance had capped.
    pub(super) fn speaks(&self) -> bool {
        self.acts() && (self.sighted || self.blind)
    }

    /// Whether every low-priority core is wanted at its floor.
    pub(super) fn is_emergency(&self) -> bool {
        self.event.is_some() && self.detector.is_excess() && self.detector.fraction() >= self.tuning.floor_at
    }

    /// What server `i` is to be told.
    fn goal(&self, i: usize) -> (Level, Option<Watts>) {
        let agent = &self.agents[i];
        if self.event.is_some() {
            (level(self.is_emergency()), Some(agent.share))
        } else if agent.unreleased {
            (Level::Cap, Some(agent.share))
        } else {
            (Level::Watch, None)
        }
    }

    /// Sends what is stricter than what was told, and what is due; with a fresh poll, also what capped
    /// servers are to hear every poll.
    pub(super) fn speak(&mut self, now: Instant) {
        if !self.speaks() {
            return;
        }
        let polled = core::mem::take(&mut self.polled);

        // A timer may have spoken for this poll already.
        let recent = self.params.poll() / 2;

        for i in 0..self.agents.len() {
            let agent = &self.agents[i];
            if !agent.is_messaged() {
                continue;
            }
            let (level, cap) = self.goal(i);
            let lower = cap.is_some_and(|cap| agent.cap.is_none_or(|old| cap < old));
            let regular = polled && cap.is_some() && now - agent.sent_at >= recent;

            if level > agent.level || lower || regular || agent.next_at <= now {
                self.send(now, i);
            }
        }
    }

    fn send(&mut self, now: Instant, i: usize) {
        let (level, cap_w) = self.goal(i);

        // A quarter of a period of slack: a poll that comes in time speaks first, with a fresh reading.
        let poll = self.params.poll();
        let next_at = if cap_w.is_some() { now + poll + poll / 4 } else { self.next_beat(now, i) };
        let (chassis_power_w, chassis_limit_w) = (self.reading(now), self.limit());
        let epoch = self.identity.epoch();
        let capped = cap_w.is_some() && self.knows_total(now);
        let height_ppm = (capped && self.steers()).then(|| self.height_of(i));
        let own_limit = (capped && self.orders_own_limits()).then(|| self.own_limits_since().is_some());

        let agent = &mut self.agents[i];
        let raised = level > agent.level;
        let seq = agent.number(now);
        agent.level = level;
        agent.cap = cap_w;
        agent.holds.sent(seq, cap_w, agent.fallback);
        agent.next_at = next_at;
        let server = agent.server.id.clone();
        let report = agent.report.as_ref();
        let alert = Alert {
            chassis_id: self.params.chassis_id.clone(),
            epoch,
            seq,
            level,
            echo_boot_id: report.map(|r| r.boot_id.clone()),
            echo_agent_ms: report.map(|r| r.agent_ms),
            chassis_power_w,
            chassis_limit_w,
            cap_w,
            fallback_w: agent.fallback,
            valid_for_ms: u64::try_from(self.params.lease.as_millis()).unwrap_or(u64::MAX),
            instance: Some(self.params.instance),
            height_ppm,
            own_limit,
            judgements: Some(self.judgements),
        };

        self.outputs.push_back(Output::Alert { server: server.clone(), alert });

        if raised {
            self.tell(now, EventKind::AlertSent { server, epoch, seq, level });
        }
    }

    /// Every server hears its first message now: it has no echo, grants nothing, and brings the
    /// report that the manager needs to know where it stands. Then heartbeats are spread.
    pub(super) fn start_heartbeats(&mut self, now: Instant) {
        self.beat_from = now;
        for agent in &mut self.agents {
            agent.next_at = now;
        }
    }

    /// After an event: tells the servers `watch` one by one, so that they do not surge together.
    pub(super) fn release_due(&mut self, now: Instant) {
        let servers = u32::try_from(self.agents.len().max(1)).unwrap_or(u32::MAX);
        let stagger = self.params.lift_stagger.min(self.tuning.release_within / servers);
        while self.releases() && self.release_at <= now {
            let Some(i) = self.agents.iter().position(|a| self.may_release(a)) else { return };
            self.agents[i].unreleased = false;
            if self.agents[i].is_messaged() {
                self.send(now, i);
                self.release_at = now + stagger;
            }
        }
    }

    /// Whether a server's turn is to come. An event that has ended was looked at: with the supplies' readings,
    /// or with every server's report.
    pub(super) fn releases(&self) -> bool {
        self.event.is_none() && self.speaks() && self.agents.iter().any(|a| self.may_release(a))
    }

    /// Whether server `agent` is to be released. Without sight one whose cap is all that bounds its draw keeps
    /// that cap: once it had none, nobody could tell whether everything fits, and all would be capped again.
    fn may_release(&self, agent: &Agent) -> bool {
        agent.unreleased && (!self.blind || agent.is_bounded_without_cap())
    }

    /// The place of server `i` within the heartbeat.
    fn phase(&self, i: usize) -> core::time::Duration {
        let servers = self.agents.len().max(1) as u128;
        nanos(self.params.beat().as_nanos() * i as u128 / servers)
    }

    /// The next heartbeat of server `i` after `now`.
    fn next_beat(&self, now: Instant, i: usize) -> Instant {
        let first = self.beat_from + self.phase(i);
        if now < first {
            return first;
        }
        let period = self.params.beat().as_nanos();
        let passed = (now - first).as_nanos() / period;
        first + nanos((passed + 1) * period)
    }
}

fn nanos(n: u128) -> core::time::Duration {
    core::time::Duration::from_nanos(u64::try_from(n).unwrap_or(u64::MAX))
}
