//! One server: what is known of its agent, and what it was told.

use core::time::Duration;

use ballast_types::wire::{Level, Report, Slot};
use ballast_types::{Epoch, Instant, Seq, Watts};

use crate::holds::Holds;
use crate::needs::Needs;
use crate::out_of_band::OutOfBand;
use crate::{Mode, Server};

/// Messages whose answers are still understood. At five to ten messages a second that is more than
/// three seconds: an older answer says nothing of the present.
const REMEMBERED: u64 = 32;

/// Watts that a server may still hold from before it fell silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// How much.
    pub(crate) watts: Watts,
    /// Freed when a sample shows this message's cap respected; `None` while it is silent.
    pub(crate) until: Option<Seq>,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) server: Server,
    pub(crate) slot: Slot,
    /// Why it is silent.
    pub(crate) cause: &'static str,
    /// Since when it is in this slot.
    pub(crate) since: Instant,
    pub(crate) report: Option<Report>,
    /// When the message was sent that the newest report answers: the report is at most this old.
    pub(crate) heard_at: Instant,
    /// That message's number; 0 before the first report.
    pub(crate) heard_seq: Seq,
    /// Why the last message was not answered.
    pub(crate) error: Option<String>,
    /// The newest message's number, level, cap and time.
    pub(crate) seq: Seq,
    pub(crate) level: Level,
    pub(crate) cap: Option<Watts>,
    pub(crate) sent_at: Instant,
    /// When the next one is due.
    pub(crate) next_at: Instant,
    /// Told to cap after the episode's end, until its turn comes.
    pub(crate) unreleased: bool,
    pub(crate) held: Option<Held>,
    /// Its `critical-first` share: its cap, while it has one.
    pub(crate) share: Watts,
    /// What it needs, from its reports.
    pub(crate) needs: Needs,
    /// What it may hold, by the messages it was sent.
    pub(crate) holds: Holds,
    /// Whether its refusal has already made this manager adopt a newer epoch.
    pub(crate) epoch_adopted: bool,
    /// The newer epoch that it obeys instead of this manager's, and when it last said so; `None` once
    /// it obeys this one again.
    pub(crate) newer_epoch: Option<(Epoch, Instant)>,
    pub(crate) out_of_band: OutOfBand,
    sent: [(Seq, Instant); REMEMBERED as usize],
}

impl Agent {
    /// A server at the manager's start; `capped` is its out-of-band cap in the ledger, `fallback` the
    /// highest that an earlier manager can have told it.
    pub(crate) fn new(
        server: Server,
        capped: Option<Watts>,
        fallback: Watts,
        now: Instant,
    ) -> Self {
        Self {
            slot: slot_of(server.mode),
            server,
            cause: "",
            since: now,
            report: None,
            heard_at: now,
            heard_seq: Seq(0),
            error: None,
            seq: Seq(0),
            level: Level::Watch,
            cap: None,
            sent_at: now,
            next_at: now,
            unreleased: false,
            held: None,
            share: Watts::ZERO,
            needs: Needs::default(),
            holds: Holds::new(fallback),
            epoch_adopted: false,
            newer_epoch: None,
            out_of_band: OutOfBand::found(capped),
            sent: [(Seq(0), now); REMEMBERED as usize],
        }
    }

    /// Whether it gets messages.
    pub(crate) fn is_messaged(&self) -> bool {
        matches!(self.slot, Slot::Managed | Slot::Silent)
    }

    /// Its newest report, if the agent answers and the report is fresh.
    pub(crate) fn fresh(&self, now: Instant, silent_after: Duration) -> Option<&Report> {
        let fresh = self.slot == Slot::Managed && now - self.heard_at < silent_after;
        self.report.as_ref().filter(|_| fresh)
    }

    /// Its draw, if known; zero, less, and more than `most` are no draws.
    pub(crate) fn power(&self, now: Instant, silent_after: Duration, most: Watts) -> Option<Watts> {
        self.fresh(now, silent_after)?.power_w.filter(|&w| w > Watts::ZERO && w <= most)
    }

    /// Numbers the next message and notes its time.
    pub(crate) fn number(&mut self, now: Instant) -> Seq {
        self.seq = self.seq.next();
        self.sent_at = now;
        self.sent[(self.seq.0 % REMEMBERED) as usize] = (self.seq, now);
        self.seq
    }

    /// When message `seq` was sent, if that is not too long ago.
    pub(crate) fn sent_at(&self, seq: Seq) -> Option<Instant> {
        let (known, at) = self.sent[(seq.0 % REMEMBERED) as usize];
        (seq.0 > 0 && known == seq).then_some(at)
    }

    /// Takes a report that answers message `seq`; `false` if it is not newer than what is known.
    ///
    /// Within one boot the agent's clock orders reports. Over a reboot, or where that clock went
    /// back on a server that is silent by now, the messages' numbers do.
    pub(crate) fn hear(&mut self, seq: Seq, report: Report) -> bool {
        let Some(sent_at) = self.sent_at(seq) else { return false };
        let newer = match &self.report {
            None => true,
            Some(old) if old.boot_id == report.boot_id && self.slot != Slot::Silent => {
                (report.agent_ms, report.seq_seen) > (old.agent_ms, old.seq_seen)
            }
            Some(_) => seq > self.heard_seq,
        };
        if newer {
            // It may answer an older message than the last one did; it is no older for that.
            self.heard_at = self.heard_at.max(sent_at);
            self.heard_seq = self.heard_seq.max(seq);
            self.report = Some(report);
            self.error = None;
        }
        newer
    }

    /// Moves it to another slot.
    pub(crate) fn move_to(&mut self, now: Instant, slot: Slot, cause: &'static str) {
        self.slot = slot;
        self.cause = cause;
        self.since = now;
    }

    /// What it may hold although it does not answer: the higher of its last grant and the fallback.
    pub(crate) fn hold(&mut self, fallback: Watts) {
        let before = self.held.map_or(Watts::ZERO, |h| h.watts);
        let watts = self.cap.unwrap_or(fallback).max(fallback).max(before).max(self.dry_peak());
        self.held = Some(Held { watts, until: None });
    }

    /// What it may hold while it answers, what it had before it fell silent included; `None` if that
    /// is not known.
    pub(crate) fn may_hold(&self) -> Option<Watts> {
        self.holds.most().map(|most| self.held.map_or(most, |h| h.watts.max(most)))
    }

    /// Whether its agent answers but only watches: it draws what it draws, whatever it is told.
    pub(crate) fn is_dry(&self) -> bool {
        self.slot == Slot::Managed && self.reports_dry()
    }

    fn reports_dry(&self) -> bool {
        self.report.as_ref().is_some_and(|r| r.dry_run)
    }

    /// What a dry server lately drew at most; nothing where that is not known, or it acts.
    fn dry_peak(&self) -> Watts {
        let need = self.needs.need().filter(|_| self.reports_dry());
        need.map_or(Watts::ZERO, |need| need.demand)
    }

    /// What is wrong with an agent that obeys a newer epoch than `own`, in words.
    pub(crate) fn contradiction(&self, own: Epoch) -> Option<String> {
        let id = &self.server.id;
        self.newer_epoch.map(|(newest, _)| {
            format!(
                "{id} refuses this manager, epoch {own}: it obeys epoch {newest}. No other agent says \
                 so; {id} is set aside and counts as silent"
            )
        })
    }

    /// Whether it takes its share of what is granted.
    pub(crate) fn shares(&self) -> bool {
        self.slot == Slot::Managed && !self.is_dry()
    }

    /// Whether it answers again, but may still hold what it had.
    pub(crate) fn is_returning(&self) -> bool {
        self.shares() && self.held.is_some()
    }

    /// It answers again: what it held is freed once the next message's cap is respected.
    pub(crate) fn rejoin(&mut self) {
        let until = Some(self.seq.next());
        self.held = self.held.map(|h| Held { until, ..h });
    }

    /// Frees what it held, if its report shows the newer cap respected; `true` if it did.
    pub(crate) fn free(&mut self, epoch: Epoch) -> bool {
        let (Some(Held { until: Some(until), .. }), Some(report)) = (self.held, &self.report)
        else {
            return false;
        };
        // Numbers of an earlier life say nothing.
        let respected =
            report.epoch_seen == epoch && report.enforced_seq.is_some_and(|seq| seq >= until);
        if respected {
            self.held = None;
        }
        respected
    }

    /// What is reserved for it when it does not answer, runs dry, or holds more than it was granted since.
    /// `None`: it answers, and takes its share of what is granted.
    ///
    /// A dry server counts with its recent peak, which others must leave it, and not under its even share.
    pub(crate) fn reserve(&self, even: Watts) -> Option<Watts> {
        let held = self.held.map(|h| h.watts.max(even));
        let capped = self.out_of_band.certain();
        match self.slot {
            Slot::Managed if self.is_dry() => {
                Some(capped.unwrap_or_else(|| self.dry_peak()).max(even))
            }
            Slot::Managed => held,
            Slot::Silent => Some(capped.or(held).unwrap_or(even)),
            Slot::Off | Slot::Maintenance | Slot::Unmanaged => {
                Some(capped.map_or(even, |w| w.max(even)))
            }
        }
    }
}

/// The slot that a mode starts in.
pub(crate) fn slot_of(mode: Mode) -> Slot {
    match mode {
        Mode::Managed => Slot::Managed,
        Mode::Maintenance => Slot::Maintenance,
        Mode::Unmanaged => Slot::Unmanaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::ServerId;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn agent() -> Agent {
        let id = ServerId::new("s").unwrap();
        let server = Server::new(id, None);
        Agent::new(server, None, W(0), Instant::ZERO)
    }

    #[test]
    fn a_silent_server_holds_the_higher_of_grant_and_fallback() {
        for (granted, fallback, held) in
            [(None, 200, 200), (Some(150), 200, 200), (Some(250), 200, 250)]
        {
            let mut a = agent();
            a.cap = granted.map(W);
            a.hold(W(fallback));
            a.slot = Slot::Silent;
            assert_eq!(a.reserve(W(100)), Some(W(held)));
            assert_eq!(
                a.reserve(W(300)),
                Some(W(300)),
                "the fallback it is told rises with the share"
            );
        }
        let mut a = agent();
        a.hold(W(200));
        a.rejoin();
        a.hold(W(120));
        assert_eq!(a.reserve(W(120)), Some(W(200)), "not freed in between");
    }

    #[test]
    fn only_recent_messages_are_known() {
        let mut a = agent();
        for t in 0..100 {
            a.number(Instant::from_millis(t));
        }
        assert_eq!(a.sent_at(Seq(100)), Some(Instant::from_millis(99)));
        assert_eq!(a.sent_at(Seq(69)), Some(Instant::from_millis(68)));
        assert_eq!(
            (a.sent_at(Seq(68)), a.sent_at(Seq(101)), a.sent_at(Seq(0))),
            (None, None, None)
        );
    }
}
