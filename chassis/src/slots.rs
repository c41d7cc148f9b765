//! One server: what is known of its agent, what it was told, and what it may draw.

use core::time::Duration;
use std::borrow::Cow;

use ballast_types::wire::{Level, Report, Slot};
use ballast_types::{Epoch, Instance, Instant, Seq, Watts, noise_above};
use serde::{Deserialize, Serialize};

use crate::allocate::Claim;
use crate::holds::Holds;
use crate::needs::Needs;
use crate::out_of_band::OutOfBand;
use crate::{Mode, Server};

/// Messages whose answers are still understood. At five to ten messages a second that is more than
/// three seconds: an older answer says nothing of the present.
const REMEMBERED: u64 = 32;

/// The guard over base and demand: this share (4 %), and not less than [`MIN_GUARD`]. A meter is 1 %
/// off, the agent keeps 2 % under its cap, and user-facing load moves from one sample to the next.
const GUARD_PPM: u32 = 40_000;
/// See [`GUARD_PPM`].
const MIN_GUARD: Watts = Watts::from_whole(6);

/// In the mean of so long.
const OVER_MEAN: Duration = Duration::from_secs(2);

/// Another manager, in an agent's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contradiction {
    pub(crate) epoch: Epoch,
    pub(crate) instance: Option<Instance>,
    /// That manager's newest message, when this agent first spoke of that manager.
    first_seq: Seq,
    seq: Seq,
    /// Since when no newer one has come.
    still_since: Instant,
    /// When the agent last said so.
    pub(crate) at: Instant,
}

impl Contradiction {
    /// The other manager is alive: its messages advance.
    pub(crate) fn advances(&self) -> bool {
        self.seq > self.first_seq
    }

    /// Its messages have not advanced for so long.
    pub(crate) fn is_still(&self, now: Instant, at_least: Duration) -> bool {
        now - self.still_since >= at_least
    }
}

/// Whether a server draws more than its cap, in the mean.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Overdraw {
    /// How far above its cap it draws, in milliwatts, as a running mean.
    mean_mw: i64,
    at: Option<Instant>,
    since: Option<Instant>,
}

/// What a server's draw is bounded by, when the server takes no part in the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// By this, whatever the supplies say.
    Sure(Watts),
    /// By this, and by what the supplies leave beside the reports of the others.
    Unseen(Watts),
    /// By nothing that is known to this start of the manager: an earlier one ruled the server last. It may
    /// draw this, and all that the supplies leave beside the reports.
    Unheard(Watts),
}

impl Bound {
    /// The watts that it names.
    pub(crate) const fn watts(self) -> Watts {
        match self {
            Self::Sure(watts) | Self::Unseen(watts) | Self::Unheard(watts) => watts,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) server: Server,
    pub(crate) slot: Slot,
    /// Why it is silent.
    pub(crate) cause: Cow<'static, str>,
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
    /// Told to cap after the event's end, until its turn comes.
    pub(crate) unreleased: bool,
    /// Its grant: its cap, while it has one.
    pub(crate) share: Watts,
    /// What it will get once the others' cuts are proven.
    pub(crate) target: Watts,
    /// What it may draw when nobody tells it anything.
    pub(crate) fallback: Watts,
    pub(crate) needs: Needs,
    /// What it may hold, by the messages it was sent.
    pub(crate) holds: Holds,
    overdraw: Overdraw,
    /// Its meter is wrong: what it says above this is no draw.
    wrong_above: Option<Watts>,
    /// The highest draw that it has reported.
    pub(crate) highest: Watts,
    /// The other manager that it obeys instead of this one; `None` once it obeys this one again.
    pub(crate) other: Option<Contradiction>,
    pub(crate) out_of_band: OutOfBand,
    sent: [(Seq, Instant); REMEMBERED as usize],
}

impl Agent {
    /// A server at the manager's start; `capped` is its out-of-band cap in the ledger, `fallback` the
    /// highest that an earlier manager is taken to have told it.
    pub(crate) fn new(server: Server, capped: Option<Watts>, fallback: Watts, now: Instant) -> Self {
        Self {
            slot: slot_of(server.mode),
            server,
            cause: "".into(),
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
            share: Watts::ZERO,
            target: Watts::ZERO,
            fallback,
            needs: Needs::default(),
            holds: Holds::new(fallback),
            overdraw: Overdraw::default(),
            wrong_above: None,
            highest: Watts::ZERO,
            other: None,
            out_of_band: OutOfBand::recover(capped, now),
            sent: [(Seq(0), now); REMEMBERED as usize],
        }
    }

    /// Begins as at the manager's start. Its cap by hardware, its highest draw and its messages' numbers stay.
    pub(crate) fn forget(&mut self, fallback: Watts, now: Instant) {
        let fresh = Self::new(self.server.clone(), None, fallback, now);
        let (out_of_band, highest) = (self.out_of_band.clone(), self.highest);
        *self = Self { slot: self.slot, seq: self.seq, out_of_band, highest, ..fresh };
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

    /// Its draw, if known; zero, less, more than `most`, and what a wrong meter says are no draws.
    pub(crate) fn power(&self, now: Instant, silent_after: Duration, most: Watts) -> Option<Watts> {
        self.reported_power(now, silent_after, most).filter(|&w| self.believes(w))
    }

    /// The same, whatever its meter is worth.
    pub(crate) fn reported_power(&self, now: Instant, silent_after: Duration, most: Watts) -> Option<Watts> {
        self.fresh(now, silent_after)?.power_w.filter(|&w| w > Watts::ZERO && w <= most)
    }

    /// What it last said that it draws, however long ago, unless its meter is wrong.
    pub(crate) fn last_power(&self) -> Option<Watts> {
        self.report.as_ref()?.power_w.filter(|&w| self.believes(w))
    }

    /// Notes above which draw its meter is wrong; then what was learnt from the meter is worth nothing.
    pub(crate) fn meter_is_wrong(&mut self, above: Option<Watts>) {
        if above.is_some() && self.wrong_above.is_none() {
            (self.needs, self.overdraw) = (Needs::default(), Overdraw::default());
            self.highest = Watts::ZERO;
        }
        self.wrong_above = above;
    }

    /// Above which draw its meter is known to be wrong.
    pub(crate) fn wrong_above(&self) -> Option<Watts> {
        self.wrong_above
    }

    fn believes(&self, power: Watts) -> bool {
        self.wrong_above.is_none_or(|above| power <= above)
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
                (report.agent_ms, report.seq_obeyed) > (old.agent_ms, old.seq_obeyed)
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

    /// Learns from the newest report what the server needs, what it may hold, and whether it draws more
    /// than its cap. `first`: no report came before in this start of the manager; `joins`: it was silent.
    /// Numbers of another epoch say nothing.
    pub(crate) fn learn(&mut self, now: Instant, epoch: Epoch, most: Watts, first: bool, joins: bool) {
        let Some(report) = &self.report else { return };
        let power = report.power_w.filter(|&w| w > Watts::ZERO && w <= most);
        if power.is_none_or(|w| self.believes(w)) {
            self.needs.take(report, most);
        }
        let power = power.filter(|&w| self.believes(w));
        self.highest = self.highest.max(power.unwrap_or_default());
        self.overdraw = match (power, report.cap_w) {
            (Some(power), Some(cap)) => self.overdraw.after(now, power, cap),
            _ => Overdraw::default(),
        };

        if report.epoch_obeyed != epoch {
            return;
        }
        if first && let Some(cap) = report.cap_w {
            self.holds.recover(report.seq_obeyed, cap);
        } else if joins {
            // Alone it may have risen to its fallback, or have been let go.
            self.holds.rejoined(report.seq_obeyed, report.cap_w);
        }

        self.holds.reported(report.seq_obeyed, report.enforced_seq);
    }

    /// Moves it to another slot.
    pub(crate) fn move_to(&mut self, now: Instant, slot: Slot, cause: &'static str) {
        self.slot = slot;
        self.cause = cause.into();
        self.since = now;
    }

    /// What it may hold while it answers; `None` if that is not known.
    pub(crate) fn may_hold(&self) -> Option<Watts> {
        match (self.holds.max(), self.out_of_band.certain()) {
            (Some(told), Some(capped)) => Some(told.min(capped)),
            (told, capped) => told.or(capped),
        }
    }

    /// Whether its agent answers but only watches: it draws what it draws, whatever it is told.
    pub(crate) fn is_dry(&self) -> bool {
        self.slot == Slot::Managed && self.report.as_ref().is_some_and(|r| r.dry_run)
    }

    /// Whether it takes part in the allocation.
    pub(crate) fn shares(&self) -> bool {
        self.slot == Slot::Managed && !self.is_dry()
    }

    /// Whether something of it is held back.
    pub(crate) fn is_restricted(&self) -> bool {
        self.report.as_ref().is_some_and(|r| r.restorable_w > Watts::from_whole(1))
    }

    /// What it asks for; `even` where its needs are not known.
    pub(crate) fn claim(&self, even: Watts) -> Claim {
        let cores = self.report.as_ref().and_then(|r| r.cores).map_or(1, u32::from);
        let weight = self.server.weight.unwrap_or(1);
        let min = self.server.min_w.unwrap_or_default().max(self.needs.lowest());
        let Some(need) = self.needs.need() else {
            let (base, guarded, demand, peak) = (even, even, even, even);
            return Claim { min, base, guarded, demand, peak, weight, cores };
        };
        let (base, demand) = (need.base, guarded(need.demand));
        let (min, guarded, peak) = (min.min(base), guarded(base), need.peak.max(demand));
        Claim { min, base, guarded, demand, peak, weight, cores }
    }

    /// Whether it wants so little that a cap holds nothing back.
    pub(crate) fn stays_under(&self, cap: Watts) -> bool {
        self.needs.need().is_some_and(|need| guarded(need.demand.max(need.peak)) <= cap)
    }

    /// What its draw is bounded by; `None`: it answers, and takes part.
    ///
    /// `orphan_hold` is how long a server that falls silent holds what it had, `even` what counts for one
    /// of which nothing is known.
    pub(crate) fn may_draw(&self, now: Instant, orphan_hold: Duration, even: Watts) -> Option<Bound> {
        let capped = self.out_of_band.certain();
        let known = |w: Watts| if w > Watts::ZERO { w } else { even };
        match self.slot {
            Slot::Managed if self.is_dry() => {
                let peak = self.needs.need().map_or(even, |n| n.demand.max(n.peak));
                Some(Bound::Sure(capped.unwrap_or(peak)))
            }
            Slot::Managed => None,
            Slot::Silent if now - self.since < orphan_hold && self.report.is_none() => {
                let capped = self.out_of_band.watts().unwrap_or_default();
                let most = self.highest.max(self.holds.fallback()).max(capped);

                // Whoever ruled it, it draws no more than a cap that its BMC keeps.
                let bounded = self.out_of_band.read_back(now).is_some();

                Some(if bounded { Bound::Sure(most) } else { Bound::Unheard(most) })
            }
            Slot::Silent if now - self.since < orphan_hold => {
                // A hardware cap below that frees nothing yet: a BMC may forget what it has acknowledged.
                let last = self.holds.max().unwrap_or_default().max(self.holds.fallback());
                Some(Bound::Sure(last.max(capped.unwrap_or_default())))
            }
            Slot::Silent | Slot::Maintenance | Slot::Unmanaged | Slot::Unknown => {
                let most = self.server.max_w.unwrap_or_else(|| known(self.highest));
                Some(Bound::Unseen(capped.map_or(most, |w| w.min(most))))
            }
            Slot::Off => Some(Bound::Unseen(capped.unwrap_or(even))),
        }
    }

    /// What it draws at most although it does not say what it draws; `None` if that is not known.
    pub(crate) fn draws_max(&self) -> Option<Watts> {
        let seen = Some(self.highest).filter(|&w| w > Watts::ZERO);
        let held = self.holds.max().map(|most| most.max(self.holds.fallback()));
        let most = [self.server.max_w.or(seen), self.out_of_band.certain()];
        most.into_iter().flatten().min().or(held)
    }

    /// Whether its draw is bounded, or known, when it has no cap.
    pub(crate) fn is_bounded_without_cap(&self) -> bool {
        let reports = self.slot == Slot::Managed && self.needs.need().is_some();
        let bounded = self.server.max_w.is_some() || self.highest > Watts::ZERO;
        reports || bounded || self.out_of_band.certain().is_some()
    }

    /// Its mean draw, if it lies above its cap, for so long, by more than meters explain.
    pub(crate) fn overdraws(&self, now: Instant, at_least: Duration) -> Option<Watts> {
        let since = self.overdraw.since?;
        let cap = self.report.as_ref()?.cap_w?;
        (self.shares() && now - since >= at_least).then(|| cap + Watts::from_milli(self.overdraw.mean_mw))
    }

    /// Whether it draws less than its cap, in the mean, by more than `ppm`: that cap does not hold it.
    pub(crate) fn is_unheld(&self, ppm: u32) -> bool {
        let cap = self.report.as_ref().and_then(|report| report.cap_w);
        cap.is_some_and(|cap| Watts::from_milli(self.overdraw.mean_mw) < -cap.ppm(ppm))
    }

    /// Whether its agent acts and sees, so that it can be waited for to obey. A wrong meter shows nothing.
    pub(crate) fn should_obey(&self) -> bool {
        use ballast_types::wire::AgentState::{Blind, Boot};
        self.shares()
            && self.wrong_above.is_none()
            && self.report.as_ref().is_some_and(|report| !matches!(report.state, Boot | Blind))
    }

    /// Whether software holds it: its agent answers, sees, and has a cap in force that is no higher than its
    /// grant; or no cap is asked for. `by_watts`: that cap binds. Under a common height it may draw more.
    pub(crate) fn obeys(&self, now: Instant, epoch: Epoch, silent_after: Duration, by_watts: bool) -> bool {
        let Some(report) = self.fresh(now, silent_after).filter(|_| self.should_obey()) else {
            return false;
        };
        let capped = self.cap.is_none_or(|told| report.cap_w.is_some_and(|cap| cap <= told));
        let overdraws = by_watts && self.overdraw.since.is_some();
        capped && report.epoch_obeyed == epoch && !overdraws
    }

    /// Notes that it obeys another manager.
    pub(crate) fn contradicts(&mut self, now: Instant, epoch: Epoch, instance: Option<Instance>, seq: Seq) {
        let same = self.other.filter(|o| (o.epoch, o.instance) == (epoch, instance));
        // An agent that was restarted counts anew.
        let first_seq = same.map_or(seq, |o| o.first_seq.min(seq));
        let still_since = same.filter(|o| o.seq == seq).map_or(now, |o| o.still_since);
        self.other = Some(Contradiction { epoch, instance, first_seq, seq, still_since, at: now });
    }

    /// What is wrong with an agent that obeys another manager than the one of epoch `own`, in words.
    pub(crate) fn contradiction(&self, own: Epoch) -> Option<String> {
        let id = &self.server.id;
        self.other.map(|other| {
            format!(
                "{id} refuses this manager, epoch {own}: it obeys epoch {}{}. No other agent says \
                 so; {id} is set aside and counts as silent",
                other.epoch,
                if other.epoch == own { " of another manager" } else { "" },
            )
        })
    }
}

impl Overdraw {
    fn after(self, now: Instant, power: Watts, cap: Watts) -> Self {
        let passed = self.at.map_or(OVER_MEAN, |at| now - at).min(OVER_MEAN).as_millis() as i64;
        let over = (power - cap).milli();
        let before = if self.at.is_some() { self.mean_mw } else { 0 };
        let step = if self.at.is_some() { passed } else { 200 };
        let mean_mw = before + (over - before) * step / OVER_MEAN.as_millis() as i64;
        let counts = Watts::from_milli(mean_mw) > noise_above(cap);
        Self { mean_mw, at: Some(now), since: counts.then(|| self.since.unwrap_or(now)) }
    }
}

/// A need with its guard.
fn guarded(watts: Watts) -> Watts {
    watts + watts.ppm(GUARD_PPM).max(MIN_GUARD)
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
    use ballast_types::{ActionId, BootId, ServerId};

    const W: fn(i64) -> Watts = Watts::from_whole;

    #[test]
    fn a_hardware_cap_of_a_server_that_has_just_fallen_silent_frees_nothing() {
        let (now, minute) = (Instant::from_millis(1000), Duration::from_secs(60));
        for (hardware, bound) in [(None, 190), (Some(W(180)), 190), (Some(W(200)), 200)] {
            let server = Server::new(ServerId::new("s").unwrap(), Some(W(100)));
            let mut agent = Agent::new(server, None, W(180), now);
            let seq = agent.number(now);
            agent.holds.sent(seq, Some(W(190)), W(180));
            agent.holds.reported(seq, None);
            let boot = BootId::new("b").unwrap();
            agent.report = Some(Report::blank(agent.server.id.clone(), boot));
            agent.move_to(now, Slot::Silent, "no answer");

            if let Some(watts) = hardware {
                agent.out_of_band.set(now, ActionId(1), watts, minute);
                agent.out_of_band.answered(now, ActionId(1), Ok(()));
            }

            assert_eq!(agent.may_draw(now, minute, W(150)), Some(Bound::Sure(W(bound))));

            // Then it counts with what is read beside the reports, and its BMC's cap bounds that.
            let most = hardware.map_or(W(150), |w| w.min(W(150)));
            let later = agent.may_draw(now + minute, minute, W(150));
            assert_eq!(later, Some(Bound::Unseen(most)), "{hardware:?}");
        }
    }
    #[test]
    fn what_a_server_holds_that_an_earlier_manager_ruled_is_not_known() {
        let (now, minute) = (Instant::from_millis(1000), Duration::from_secs(60));
        for (highest, hardware, bound) in [(0, None, 150), (170, None, 170), (170, Some(200), 200)] {
            let server = Server::new(ServerId::new("s").unwrap(), Some(W(100)));
            let mut agent = Agent::new(server, hardware.map(W), W(150), now);
            agent.highest = W(highest);
            agent.move_to(now, Slot::Silent, "no answer");
            assert_eq!(agent.may_draw(now, minute, W(140)), Some(Bound::Unheard(W(bound))));

            agent.out_of_band.set(now, ActionId(1), W(bound), minute);
            agent.out_of_band.answered(now, ActionId(1), Ok(()));
            for (seconds, read_back) in [(14, false), (16, true)] {
                let later = agent.may_draw(now + Duration::from_secs(seconds), minute, W(140));
                let known = if read_back { Bound::Sure(W(bound)) } else { Bound::Unheard(W(bound)) };
                assert_eq!(later, Some(known), "{seconds} s");
            }
        }
    }

    /// A server that takes part, in the second after message 1 was sent: 150 W, with a fallback of 120 W.
    fn managed(now: Instant) -> Agent {
        let server = Server::new(ServerId::new("s").unwrap(), None);
        let mut agent = Agent::new(server, None, W(180), now);
        let seq = agent.number(now);
        agent.cap = Some(W(150));
        agent.holds.sent(seq, agent.cap, W(120));
        agent
    }

    /// A report that message 1 is obeyed and enforced.
    fn obedient(agent: &Agent, epoch: u64) -> Report {
        Report {
            epoch_obeyed: Epoch(epoch),
            seq_obeyed: Seq(1),
            enforced_seq: Some(Seq(1)),
            state: ballast_types::wire::AgentState::Uncapped,
            power_w: Some(W(140)),
            cap_w: Some(W(150)),
            ..Report::blank(agent.server.id.clone(), BootId::new("b").unwrap())
        }
    }

    /// Message numbers count within one epoch: under another ruler's epoch, number 1 is another message.
    #[test]
    fn a_report_of_another_epoch_proves_no_watts() {
        let (now, silent_after) = (Instant::from_millis(1000), Duration::from_secs(1));
        let table = [(2, None, W(180), false), (3, Some(W(150)), W(120), true), (4, None, W(180), false)];
        for (epoch, held, fallback, obeys) in table {
            for (first, joins) in [(true, false), (true, true), (false, true), (false, false)] {
                let mut agent = managed(now);
                assert!(agent.hear(Seq(1), obedient(&agent, epoch)));
                agent.learn(now, Epoch(3), W(1000), first, joins);
                let case = format!("epoch {epoch}, first {first}, joins {joins}");
                assert_eq!(agent.may_hold(), held, "{case}");
                assert_eq!(agent.holds.fallback(), fallback, "{case}");
                assert_eq!(agent.obeys(now, Epoch(3), silent_after, true), obeys, "{case}");
                assert_eq!(agent.highest, W(140), "{case}: its draw is its draw");
            }
        }
    }

    /// A server that has reported once, and of which no peak is known.
    fn reporting(now: Instant) -> Agent {
        let mut agent = managed(now);
        assert!(agent.hear(Seq(1), obedient(&agent, 3)));
        agent.learn(now, Epoch(3), W(1000), true, false);
        agent.highest = W(0);
        agent
    }

    fn is_bounded_when_silent(change: fn(&mut Agent)) -> bool {
        let now = Instant::from_millis(1000);
        let mut agent = reporting(now);
        agent.move_to(now, Slot::Silent, "no answer");
        change(&mut agent);
        agent.is_bounded_without_cap()
    }

    #[test]
    fn a_server_without_a_cap_is_bounded_by_its_report_its_history_or_its_hardware_cap() {
        let now = Instant::from_millis(1000);
        assert!(reporting(now).is_bounded_without_cap());
        assert!(!managed(now).is_bounded_without_cap(), "it has not reported yet");
        assert!(!is_bounded_when_silent(|_| {}), "its last report is old");
        assert!(is_bounded_when_silent(|agent| agent.highest = W(1)));
        assert!(is_bounded_when_silent(|agent| agent.server.max_w = Some(W(300))));
        // From the ledger it is not certain; ordered and acknowledged it is.
        assert!(!is_bounded_when_silent(|agent| {
            agent.out_of_band = OutOfBand::recover(Some(W(150)), Instant::ZERO);
        }));
        assert!(is_bounded_when_silent(|agent| {
            agent.out_of_band.set(Instant::ZERO, ActionId(1), W(150), Duration::from_secs(5));
            agent.out_of_band.answered(Instant::ZERO, ActionId(1), Ok(()));
        }));
    }

    #[test]
    fn a_server_that_only_watches_is_bounded_by_its_peak_or_its_hardware_cap() {
        let (now, minute) = (Instant::from_millis(1000), Duration::from_secs(60));
        let mut agent = managed(now);
        let watches = Report { dry_run: true, ..obedient(&agent, 3) };
        assert!(agent.hear(Seq(1), watches));
        assert_eq!(agent.may_draw(now, minute, W(170)), Some(Bound::Sure(W(170))), "its needs are not known");
        agent.learn(now, Epoch(3), W(1000), true, false);
        assert_eq!(agent.may_draw(now, minute, W(170)), Some(Bound::Sure(W(140))));
        agent.out_of_band.set(now, ActionId(1), W(130), minute);
        agent.out_of_band.answered(now, ActionId(1), Ok(()));
        assert_eq!(agent.may_draw(now, minute, W(170)), Some(Bound::Sure(W(130))));
    }
}
