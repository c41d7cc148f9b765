//! What agents answer, and what the BMCs say of power.

use ballast_types::wire::{EventKind, Refusal, RefusalReason, Report, Slot};
use ballast_types::{Epoch, Instant, Seq, ServerId};

use crate::chassis::Chassis;
use crate::episode::Trigger;
use crate::slots::{Agent, slot_of};
use crate::{Answer, Mode};

/// A reason is kept up to this many characters.
const REASON: usize = 200;

/// Message numbers above this are not followed: counting on from there could run out.
const HIGHEST_SEQ: Seq = Seq(u64::MAX / 2);

impl Chassis {
    /// What came of one message.
    pub(crate) fn take_answer(
        &mut self,
        now: Instant,
        server: &ServerId,
        seq: Seq,
        answer: Answer,
    ) {
        let known = self.place(server).filter(|&i| self.agents[i].sent_at(seq).is_some());
        let Some(i) = known else {
            self.refuse();
            return;
        };
        match answer {
            Answer::Report(report) => self.take_report(now, i, seq, *report),
            Answer::Refused(refusal) => self.take_refusal(now, i, seq, refusal),
            Answer::Nothing(reason) => self.note_error(i, seq, reason),
        }
    }

    /// One more input that cannot be used.
    pub(crate) fn refuse(&mut self) {
        self.refused = self.refused.saturating_add(1);
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
        let (leaving, capped, first) =
            (report.leaving, report.cap_w.is_some(), agent.heard_seq == Seq(0));
        if report.server != agent.server.id || !agent.hear(seq, report) {
            self.refuse();
            return;
        }
        self.answered = true;
        self.agents[i].newer_epoch = None;
        self.learn(i, first);
        let fresh = now - self.agents[i].heard_at < self.silent_after();
        let joins = self.agents[i].slot == Slot::Silent && fresh && !leaving;
        if joins {
            self.agents[i].rejoin();
            self.change_slot(now, i, Slot::Managed, "answers");
        } else if leaving && self.agents[i].slot == Slot::Managed {
            self.silence(now, i, "leaving");
        }
        if self.agents[i].free(self.epoch) {
            self.share_out(now);
        }
        if first && capped {
            self.carry_on(now);
        }
        // Without an echo the first message granted nothing: the next one, with it, does. At start
        // it waits for everyone's first report, so that no episode of an earlier life is cut short.
        if joins {
            self.agents[i].next_at = now;
        } else if first && self.agents.iter().all(|a| a.heard_seq > Seq(0) || !a.is_messaged()) {
            self.agents.iter_mut().for_each(|a| a.next_at = now);
        }
    }

    /// What the newest report of server `i` says of what it needs and what it may hold. Numbers of
    /// another life say nothing.
    fn learn(&mut self, i: usize, first: bool) {
        let (epoch, most) = (self.epoch, self.supplies.rated());
        let agent = &mut self.agents[i];
        let Some(report) = &agent.report else { return };
        agent.needs.take(report, most);
        if report.epoch_seen == epoch {
            if let Some(cap) = report.cap_w.filter(|_| first) {
                agent.holds.found(report.seq_seen, cap);
            }
            agent.holds.reported(report.seq_seen, report.enforced_seq);
        }
    }

    fn take_refusal(&mut self, now: Instant, i: usize, seq: Seq, refusal: Refusal) {
        let Refusal { reason, newest_epoch, newest_seq, .. } = refusal;
        let agent = &mut self.agents[i];
        match reason {
            RefusalReason::ForeignChassis => self.expel(now, i, seq, "belongs to another chassis"),
            RefusalReason::EpochJump => self.expel(now, i, seq, "refuses the epoch as a jump"),
            // No number follows the last: such an agent is beyond reach, not another manager's.
            RefusalReason::Stale if newest_epoch == Epoch(u64::MAX) => {
                self.expel(now, i, seq, "has seen the last epoch there is");
            }
            RefusalReason::Stale
                if newest_epoch >= self.epoch && !self.answered && !agent.epoch_adopted =>
            {
                agent.epoch_adopted = true;
                self.adopt(now, newest_epoch);
            }
            RefusalReason::Stale if newest_epoch > self.epoch => {
                self.contradict(now, i, seq, newest_epoch);
            }
            RefusalReason::OtherInstance => self.contradict(now, i, seq, newest_epoch),
            RefusalReason::Unknown => {
                self.expel(now, i, seq, "refuses for a reason of a newer version");
            }
            RefusalReason::Stale => {
                if newest_epoch == self.epoch && newest_seq <= HIGHEST_SEQ {
                    agent.seq = agent.seq.max(newest_seq);
                }
                self.refuse();
            }
        }
    }

    /// At start: the ledger was older than what the agents have seen. Everything is said again in a
    /// newer epoch; message numbers go on.
    fn adopt(&mut self, now: Instant, newest: Epoch) {
        self.epoch = newest.next();
        self.record();
        for agent in &mut self.agents {
            agent.next_at = now;
        }
        self.send_due(now);
    }

    /// An agent obeys a newer epoch than this manager's. One alone may be mistaken: it was moved from
    /// another chassis, or its memory or the ledger was restored from a backup. It is set aside. Two
    /// agents, or the only one there is, are believed: another manager rules.
    fn contradict(&mut self, now: Instant, i: usize, seq: Seq, newest: Epoch) {
        if seq <= self.agents[i].heard_seq {
            self.refuse();
            return;
        }
        let first = self.agents[i].newer_epoch.replace((newest, now)).is_none();

        let messaged = self.agents.iter().filter(|a| a.is_messaged()).count();
        let recent = |at: Instant| now - at < self.silent_after();
        let says_so =
            |a: &&Agent| a.is_messaged() && a.newer_epoch.is_some_and(|(_, at)| recent(at));
        let agree = self.agents.iter().filter(says_so).count();
        if agree >= 2 || messaged == 1 {
            self.fence(now, newest);
            return;
        }

        if first {
            let message = self.agents[i].contradiction(self.epoch).unwrap_or_default();
            self.tell(now, EventKind::Alarm { message });
        }
        self.expel(now, i, seq, "obeys a newer epoch");
    }

    /// Another manager rules: this one falls silent for good.
    fn fence(&mut self, now: Instant, newest: Epoch) {
        self.rival = Some(newest);
        let message = format!(
            "another manager rules this chassis: epoch {newest}, this one's is {}; nothing is sent any more",
            self.epoch
        );
        self.move_by(now, Trigger::Rival, "an agent obeys a newer manager");
        self.tell(now, EventKind::Alarm { message });
    }

    /// An agent that will not obey is as good as silent.
    fn expel(&mut self, now: Instant, i: usize, seq: Seq, cause: &'static str) {
        let agent = &mut self.agents[i];
        if seq <= agent.heard_seq {
            self.refuse();
        } else if agent.slot == Slot::Managed {
            self.silence(now, i, cause);
        } else {
            agent.cause = cause;
        }
    }

    /// The BMC's word on a server's power.
    pub(crate) fn take_powered(&mut self, now: Instant, server: &ServerId, on: bool) {
        let Some(i) = self.place(server) else {
            self.refuse();
            return;
        };
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
