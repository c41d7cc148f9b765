//! What agents are told, and when.
//!
//! A message is desired state. A stricter one goes out at once; otherwise a calm server hears every
//! heartbeat, at a phase of its own, and a capped one every poll. Answers are not waited for.

use ballast_types::wire::{Alert, EventKind, Level};
use ballast_types::{Instant, Watts};

use crate::Output;
use crate::chassis::Chassis;
use crate::episode::State;

impl Chassis {
    /// Whether agents are spoken to at all. Before the first reading they are not: a `watch` would
    /// release what an earlier life had capped.
    pub(crate) fn speaks(&self) -> bool {
        self.acts() && self.state != State::Boot
    }

    /// What server `i` is to be told.
    fn wanted(&self, i: usize) -> (Level, Option<Watts>) {
        let agent = &self.agents[i];
        let share = self.share(agent);
        match self.state.episode() {
            Some(episode) if episode.emergency => (Level::Emergency, Some(share)),
            Some(_) => (Level::Cap, Some(share)),
            None if agent.unreleased => (Level::Cap, Some(share)),
            None => (Level::Watch, None),
        }
    }

    /// Sends what is stricter than what was told; with a fresh poll, also what capped servers are to
    /// hear every poll.
    pub(crate) fn publish(&mut self, now: Instant, polled: bool) {
        if !self.speaks() {
            return;
        }
        // A timer may have spoken for this poll already.
        let recent = self.params.poll() / 2;
        for i in 0..self.agents.len() {
            let agent = &self.agents[i];
            if !agent.is_messaged() {
                continue;
            }
            let (level, cap) = self.wanted(i);
            let lower = cap.is_some_and(|cap| agent.cap.is_none_or(|old| cap < old));
            let regular = polled && cap.is_some() && now - agent.sent_at >= recent;
            if level > agent.level || lower || regular {
                self.send(now, i);
            }
        }
    }

    /// Sends what is due by the clock.
    pub(crate) fn send_due(&mut self, now: Instant) {
        if !self.speaks() {
            return;
        }
        for i in 0..self.agents.len() {
            let agent = &self.agents[i];
            if agent.is_messaged() && agent.next_at <= now {
                self.send(now, i);
            }
        }
    }

    /// Sends server `i` its message.
    pub(crate) fn send(&mut self, now: Instant, i: usize) {
        let (level, cap_w) = self.wanted(i);
        // A quarter of a period of slack: a poll that comes in time speaks first, with a fresh reading.
        let poll = self.params.poll();
        let next_at = if cap_w.is_some() { now + poll + poll / 4 } else { self.next_beat(now, i) };
        let chassis_power_w = self.reading(now);
        let chassis_limit_w = self.limit();
        let (epoch, fallback_w) = (self.epoch, self.shares.even);
        let agent = &mut self.agents[i];
        let raised = level > agent.level;
        let seq = agent.number(now);
        agent.level = level;
        agent.cap = cap_w;
        agent.holds.told(seq, cap_w, fallback_w);
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
            fallback_w,
            valid_for_ms: u64::try_from(self.params.lease.as_millis()).unwrap_or(u64::MAX),
            version: ballast_types::wire::VERSION,
            instance: None,
            target_w: None,
            margin_w: None,
        };
        self.put(Output::Alert { server: server.clone(), alert });
        if raised {
            self.tell(now, EventKind::AlertSent { server, epoch, seq, level });
        }
    }

    /// Every server hears its first message now: it has no echo, grants nothing, and brings the
    /// report that the manager needs to know where it stands. Then heartbeats are spread.
    pub(crate) fn start_heartbeats(&mut self, now: Instant) {
        self.beat_from = now;
        for agent in &mut self.agents {
            agent.next_at = now;
        }
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
