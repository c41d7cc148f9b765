//! What agents answer, and what the BMCs say of power.

use ballast_types::wire::{EventKind, Refusal, RefusalReason, Report, Slot};
use ballast_types::{Epoch, Instant, Seq, ServerId};

use super::Chassis;
use crate::slots::slot_of;
use crate::{Answer, Mode};

/// A reason is kept up to this many characters.
const REASON: usize = 200;

/// Message numbers above this are not followed: counting on from there could run out.
const HIGHEST_SEQ: Seq = Seq(u64::MAX / 2);

impl Chassis {
    /// What came of one message.
    pub(super) fn take_answer(&mut self, now: Instant, server: &ServerId, seq: Seq, answer: Answer) {
        let known = self.position(server).filter(|&i| self.agents[i].sent_at(seq).is_some());
        let Some(i) = known else { return self.refuse() };
        if !self.acts() {
            return self.take_word(now, i, &answer);
        }
        match answer {
            Answer::Report(report) => self.take_report(now, i, seq, *report),
            Answer::Refused(refusal) => self.take_refusal(now, i, seq, refusal),
            Answer::Nothing(reason) => self.note_error(i, seq, reason),
        }
    }

    fn note_error(&mut self, i: usize, seq: Seq, mut reason: String) {
        let agent = &mut self.agents[i];
        if seq > agent.heard_seq {
            if let Some((end, _)) = reason.char_indices().nth(REASON) {
                reason.truncate(end);
            }
            agent.error = Some(reason);
        }
    }

    fn take_report(&mut self, now: Instant, i: usize, seq: Seq, report: Report) {
        let agent = &mut self.agents[i];
        let (leaving, capped, first) = (report.leaving, report.cap_w.is_some(), agent.heard_seq == Seq(0));
        if report.server != agent.server.id || !agent.hear(seq, report) {
            return self.refuse();
        }
        agent.other = None;
        let fresh = now - self.agents[i].heard_at < self.silent_after();
        let joins = self.agents[i].slot == Slot::Silent && fresh && !leaving;
        let (epoch, most) = (self.identity.epoch(), self.supplies.rated());
        self.agents[i].learn(now, epoch, most, first, joins);
        self.note_other_manager(now);

        if joins {
            self.change_slot(now, i, Slot::Managed, "answers");
        } else if leaving && self.agents[i].slot == Slot::Managed {
            self.change_slot(now, i, Slot::Silent, "leaving");
        }

        if first {
            self.unplanned = true;
            if capped {
                self.carry_on(now);
            }
        }

        // Without an echo the first message granted nothing: the next one, with it, does. At start
        // it waits for everyone's first report, so that no event of an earlier instance is cut short.
        if joins {
            self.agents[i].next_at = now;
        } else if first && self.agents.iter().all(|a| a.heard_seq > Seq(0) || !a.is_messaged()) {
            self.agents.iter_mut().for_each(|a| a.next_at = now);
        }
    }

    fn take_refusal(&mut self, now: Instant, i: usize, seq: Seq, refusal: Refusal) {
        let Refusal { reason, newest_epoch, newest_seq, instance } = refusal;
        let other = (newest_epoch, instance, newest_seq);
        match reason {
            RefusalReason::ForeignChassis => self.expel(now, i, seq, "belongs to another chassis"),
            RefusalReason::EpochJump => self.expel(now, i, seq, "refuses the epoch as a jump"),
            RefusalReason::Unknown => {
                self.expel(now, i, seq, "refuses for a reason of a newer version");
            }

            // No number follows the last: such an agent is beyond reach, not another manager's.
            RefusalReason::Stale | RefusalReason::OtherInstance if newest_epoch == Epoch(u64::MAX) => {
                self.expel(now, i, seq, "has seen the last epoch there is");
            }
            RefusalReason::OtherInstance if newest_epoch >= self.identity.epoch() => {
                self.contradict(now, i, seq, other);
            }
            RefusalReason::Stale if newest_epoch > self.identity.epoch() => {
                self.contradict(now, i, seq, other);
            }
            RefusalReason::Stale | RefusalReason::OtherInstance => {
                let agent = &mut self.agents[i];
                if newest_epoch == self.identity.epoch() && newest_seq <= HIGHEST_SEQ {
                    agent.seq = agent.seq.max(newest_seq);
                }
                self.refuse();
            }
        }
    }

    /// An agent that will not obey is as good as silent.
    pub(super) fn expel(&mut self, now: Instant, i: usize, seq: Seq, cause: &'static str) {
        let agent = &mut self.agents[i];
        if seq <= agent.heard_seq {
            self.refuse();
        } else if agent.slot == Slot::Managed {
            self.change_slot(now, i, Slot::Silent, cause);
        } else {
            agent.cause = cause.into();
        }
    }

    /// Agents that did not answer in time fall silent.
    pub(super) fn check_silence(&mut self, now: Instant) {
        if now < self.grace_until {
            return;
        }
        let silent_after = self.silent_after();
        for i in 0..self.agents.len() {
            let agent = &self.agents[i];
            if agent.slot == Slot::Managed && now - agent.heard_at >= silent_after {
                self.change_slot(now, i, Slot::Silent, "no answer");
            }
        }
    }

    pub(super) fn change_slot(&mut self, now: Instant, i: usize, to: Slot, cause: &'static str) {
        let agent = &mut self.agents[i];
        let (from, server) = (agent.slot, agent.server.id.clone());
        agent.move_to(now, to, cause);
        self.unplanned = true;
        let cause = cause.to_owned();
        self.tell(now, EventKind::SlotChanged { server, from, to, cause });
    }

    /// Whether a server's agent should answer and does not.
    pub(super) fn is_lost(&self, i: usize) -> bool {
        let agent = &self.agents[i];
        agent.slot == Slot::Silent && agent.server.mode == Mode::Managed
    }

    /// The BMC's word on a server's power.
    pub(super) fn take_powered(&mut self, now: Instant, server: &ServerId, on: bool) {
        let Some(i) = self.position(server) else { return self.refuse() };
        let agent = &self.agents[i];
        match (agent.slot, on) {
            (Slot::Off, false) => {}
            (Slot::Off, true) if agent.server.mode == Mode::Managed => {
                self.agents[i].next_at = now;
                self.change_slot(now, i, Slot::Silent, "switched on, does not answer yet");
            }
            (Slot::Off, true) => {
                let slot = slot_of(agent.server.mode);
                self.change_slot(now, i, slot, "switched on");
            }
            (_, false) => self.change_slot(now, i, Slot::Off, "switched off"),
            (_, true) => {}
        }
    }
}
