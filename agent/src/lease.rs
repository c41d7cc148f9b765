//! What the chassis ordered, and for how long it holds: epochs, leases, the fallback.
//!
//! ```text
//!                 live message                 lease end                rise
//!   fallback ───────────────────▶ Live(cap) ─────────────▶ Held ────────────────▶ fallback
//!      │                            ▲   ▲         lower of cap and fallback
//!      └── lower cap, echo dead ──▶ Held └── live message ──┘
//! ```
//! No clocks are shared. A lease runs from the agent's own stamp that the chassis echoes, so a
//! message that was delayed in the network can restrict, but grants nothing.
//!
//! The rise to the fallback comes one `valid_for` after the lease's end, and two after the newest obeyed
//! message with a cap. A manager that shares unevenly relies on it: before a server of a low cap may rise,
//! its silence has been noticed, and what others were granted above their fallbacks has run out.
//!
//! Who is obeyed at all is decided in [`identity`].

mod identity;
mod steering;

use core::time::Duration;

use ballast_types::wire::{Alert, Level, OtherManager, Refusal, RefusalReason};
use ballast_types::{BootId, ChassisId, Epoch, Instance, Instant, Seq, Watts};
use serde::{Deserialize, Serialize};

use crate::Memory;
use identity::Identity;
use steering::Steering;

/// No lease is longer, whatever the message says: a cap below the fallback must end by itself.
const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// The lease of a manager that the memory says nothing of: the usual one.
const USUAL_LEASE: Duration = Duration::from_secs(2);

/// A message's lease, as it counts.
fn lease(valid_for_ms: u64) -> Duration {
    Duration::from_millis(valid_for_ms).min(LONGEST_LEASE)
}

/// The lower of two caps; `None` is uncapped.
fn lower(a: Option<Watts>, b: Option<Watts>) -> Option<Watts> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// One order in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Grant {
    cap: Option<Watts>,
    /// The common height of low-priority cores, in parts per million; `None` with a cap alone.
    height_ppm: Option<u32>,
    /// Whether the server's own limit and user-facing cores hold the cap too.
    own_limit: bool,
    end: Instant,
    /// From here on the fallback alone holds.
    rise: Instant,
    /// Whether the lease has ended.
    held: bool,
}

impl Grant {
    /// When it next changes by itself.
    ///
    /// Not inlined: rustc 1.95 (LLVM 22.1) makes the choice an index into the struct and reads there before
    /// it knows whether there is a grant at all. Without one the index is rubbish, and the read beyond the
    /// end of the agent can hit a page that is not there.
    #[inline(never)]
    fn changes_at(&self) -> Instant {
        if self.held { self.rise } else { self.end }
    }
}

/// What an accepted message changed besides the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The cap that it means.
    pub(crate) cap: Option<Watts>,
    /// It opened a new epoch.
    pub(crate) new_epoch: bool,
    /// What is to be remembered has changed.
    pub(crate) remember: bool,
}

/// Everything the chassis has ordered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    boot_id: BootId,
    /// This life began. What an earlier one reported, and a message from then echoes, proves nothing:
    /// newer messages may have been obeyed since, and the restart has forgotten their numbers.
    born: Instant,
    identity: Identity,
    memory: Memory,
    /// What was last handed out to be kept.
    kept: Memory,
    grant: Option<Grant>,
    steering: Steering,
    /// No raise before this instant: nobody has told this instance anything that is live.
    sure_from: Instant,
    /// No raise before this instant: the last message was an emergency.
    emergency_until: Option<Instant>,
    /// The newest message orders a cap, and was not late.
    capping: bool,
}

impl Orders {
    pub(crate) fn new(chassis_id: ChassisId, boot_id: BootId, memory: Memory, born: Instant) -> Self {
        // What another chassis said holds nothing here. A memory that names none is from before it did.
        let ours = memory.chassis_id.as_ref().is_none_or(|known| *known == chassis_id);
        let kept = if ours { memory } else { Memory::default() };
        let memory = Memory { chassis_id: Some(chassis_id.clone()), ..kept };

        // A previous instance's leases, and those of the others that went with them, have run out after two.
        let first_word = memory.lease_ms.map_or(USUAL_LEASE, lease).saturating_mul(2);

        Self {
            boot_id,
            sure_from: born + first_word,
            born,
            identity: Identity::new(chassis_id, memory.epoch, memory.instance),
            memory,
            kept,
            grant: None,
            steering: Steering::default(),
            emergency_until: None,
            capping: false,
        }
    }

    /// Obeys `alert`, or says why not; a refused alert changes nothing that is obeyed.
    pub(crate) fn take(&mut self, now: Instant, alert: &Alert) -> Result<Accepted, RefusalReason> {
        let new_epoch = self.identity.take(now, alert)?;
        (self.memory.epoch, self.memory.instance) = self.identity.obeyed();
        // An emergency that names no cap still means that there is too much draw.
        let emergency = alert.level == Level::Emergency;
        let cap = alert.cap_w.or(emergency.then_some(alert.fallback_w));
        self.obey(now, alert, cap);
        Ok(Accepted { cap, new_epoch, remember: self.remember() })
    }

    /// Whether a message would be obeyed; one that would not be is noted.
    pub(crate) fn hear(&mut self, now: Instant, alert: &Alert) -> Result<(), RefusalReason> {
        self.identity.hear(now, alert)
    }

    /// Whether what is to be kept has changed.
    ///
    /// A first epoch is kept only once its manager has echoed a report: a stray message proves nothing.
    fn remember(&mut self) -> bool {
        let known = self.kept.epoch > Epoch::default() || self.lease_end().is_some();
        let remember = known && self.kept != self.memory;
        if remember {
            self.kept = self.memory.clone();
        }
        remember
    }

    fn obey(&mut self, now: Instant, alert: &Alert, cap: Option<Watts>) {
        let span = lease(alert.valid_for_ms);
        self.memory.lease_ms = Some(span.as_millis() as u64);
        let steered_at = self.steering.take(now, alert, span);
        let end = self.echo(now, alert).map(|echo| echo.min(steered_at) + span);
        let live = end.filter(|&end| end > now);

        if alert.level == Level::Emergency {
            self.emergency_until = self.emergency_until.max(Some(now + span));
        } else if live.is_some() {
            self.emergency_until = None;
        }

        if live.is_some() {
            self.sure_from = now;
        }
        self.capping = live.is_some() && alert.level >= Level::Cap && cap.is_some();
        let fallback = Some(alert.fallback_w);

        if live.is_some() || lower(self.memory.fallback_w, fallback) != self.memory.fallback_w {
            self.memory.fallback_w = fallback;
        }
        let kept = now + span + span;

        if let Some(end) = live {
            let rise = if cap.is_some() { kept } else { end + span };
            let (height_ppm, own_limit) = (alert.height_ppm, alert.own_limit.unwrap_or(true));
            self.grant = Some(Grant { cap, height_ppm, own_limit, end, rise, held: false });
        } else if cap.is_some() {
            let restricts = lower(cap, self.cap()) == cap;
            self.grant = match self.grant {
                Some(grant) => {
                    let cap = if restricts { cap } else { grant.cap };
                    // A late message may lower the height and never raises it.
                    let height_ppm = grant.height_ppm.min(alert.height_ppm.or(grant.height_ppm));
                    Some(Grant { cap, height_ppm, rise: grant.rise.max(kept), ..grant })
                }
                None => {
                    let held =
                        Grant { cap, height_ppm: None, own_limit: true, end: now, rise: kept, held: true };
                    restricts.then_some(held)
                }
            };
        }
    }

    /// The report of this instance that a message answers.
    fn echo(&self, now: Instant, alert: &Alert) -> Option<Instant> {
        let echo = alert.echo_agent_ms?;
        let own = alert.echo_boot_id.as_ref() == Some(&self.boot_id);
        let known = (self.born.as_millis()..=now.as_millis()).contains(&echo);
        (own && known).then(|| Instant::from_millis(echo))
    }

    /// Lets leases end that end by `now`.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some(grant) = &mut self.grant {
            grant.held |= now >= grant.end;
            if now >= grant.rise {
                self.grant = None;
            }
        }
    }

    /// When the cap changes next by itself.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.grant.as_ref().map(Grant::changes_at)
    }

    /// The cap in force; `None` is uncapped.
    pub(crate) fn cap(&self) -> Option<Watts> {
        match self.grant {
            None => self.memory.fallback_w,
            Some(grant) if grant.held => lower(grant.cap, self.memory.fallback_w),
            Some(grant) => grant.cap,
        }
    }

    /// Whether a live lease says "uncapped", rather than nobody having said anything.
    pub(crate) fn uncapped_by_lease(&self) -> bool {
        self.grant.is_some_and(|grant| !grant.held && grant.cap.is_none())
    }

    /// Whether the chassis orders a cap, by a message that came in time and still holds.
    pub(crate) fn capped_by_lease(&self) -> bool {
        self.capping && self.grant.is_some_and(|grant| !grant.held)
    }

    /// The live lease's end.
    pub(crate) fn lease_end(&self) -> Option<Instant> {
        self.grant.filter(|grant| !grant.held).map(|grant| grant.end)
    }

    /// The common height of low-priority cores in a live lease, in parts per million.
    pub(crate) fn height_ppm(&self) -> Option<u32> {
        self.grant.filter(|grant| !grant.held && grant.cap.is_some())?.height_ppm
    }

    /// Whether the server's own limit and user-facing cores hold the cap too: by order, or without a live lease.
    pub(crate) fn own_limit(&self) -> bool {
        self.grant.is_none_or(|grant| grant.held || grant.own_limit)
    }

    /// Whether nothing may rise yet: a previous instance may have obeyed a lower cap than the fallback, and
    /// what it left for others is theirs until its leases have run out or the chassis speaks.
    pub(crate) fn unsure(&self, now: Instant) -> bool {
        now < self.sure_from
    }

    /// Whether the newest message was an emergency that still holds.
    pub(crate) fn emergency(&self, now: Instant) -> bool {
        self.emergency_until.is_some_and(|until| now < until)
    }

    /// The newest epoch and message obeyed.
    pub(crate) fn newest(&self) -> (Epoch, Seq) {
        (self.memory.epoch, self.identity.newest_seq())
    }

    /// Which start of a manager is obeyed, if it says that.
    pub(crate) fn instance(&self) -> Option<Instance> {
        self.memory.instance
    }

    /// The newest other manager whose messages were refused.
    pub(crate) fn refused(&self, now: Instant) -> Option<OtherManager> {
        self.identity.refused(now)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn refusal(&self, reason: RefusalReason) -> Refusal {
        let (newest_epoch, newest_seq) = self.newest();
        Refusal { reason, newest_epoch, newest_seq, instance: self.instance() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }
    fn w(watts: i64) -> Option<Watts> {
        Some(Watts::from_whole(watts))
    }
    fn orders(fallback: Option<Watts>) -> Orders {
        let (chassis, boot) = (ChassisId::new("c").unwrap(), BootId::new("boot").unwrap());
        let (chassis_id, lease_ms) = (Some(chassis.clone()), Some(2000));
        let memory = Memory { chassis_id, epoch: Epoch(5), fallback_w: fallback, lease_ms, instance: None };
        Orders::new(chassis, boot, memory, ms(500))
    }
    fn alert(seq: u64, cap_w: Option<Watts>, echo: Option<u64>) -> Alert {
        Alert {
            level: Level::Cap,
            echo_boot_id: echo.map(|_| BootId::new("boot").unwrap()),
            echo_agent_ms: echo,
            chassis_limit_w: Watts::from_whole(2450),
            cap_w,
            fallback_w: Watts::from_whole(200),
            valid_for_ms: 2000,
            ..Alert::watch(ChassisId::new("c").unwrap(), Epoch(5), Seq(seq))
        }
    }
    /// The caps at these instants, ticking in between.
    fn caps(orders: &mut Orders, at: &[u64]) -> Vec<Option<Watts>> {
        let cap = |t: &u64| {
            orders.tick(ms(*t));
            orders.cap()
        };
        at.iter().map(cap).collect()
    }

    #[test]
    fn a_lease_runs_from_the_echo_then_holds_then_rises_to_the_fallback() {
        let mut o = orders(None);
        o.take(ms(1500), &alert(1, w(180), Some(1000))).unwrap();
        assert_eq!(caps(&mut o, &[2999, 3000, 5499, 5500]), [w(180), w(180), w(180), w(200)]);
        // A grant above the fallback, and "uncapped", fall to the fallback when the lease ends.
        for cap in [w(250), None] {
            let mut o = orders(None);
            o.take(ms(1500), &alert(1, cap, Some(1000))).unwrap();
            assert_eq!(caps(&mut o, &[2999, 3000, 5500]), [cap, w(200), w(200)]);
        }
    }

    #[test]
    fn no_cap_rises_within_two_leases_of_an_obeyed_message() {
        let mut o = orders(None);
        o.take(ms(1500), &alert(1, w(150), Some(1000))).unwrap();
        // Late, and no stricter: it grants nothing, but somebody is there.
        o.take(ms(3400), &alert(2, w(160), Some(1200))).unwrap();
        assert_eq!(caps(&mut o, &[5500, 7399, 7400]), [w(150), w(150), w(200)]);
        // That nobody caps is no reason to hold on.
        o.take(ms(8000), &alert(3, w(150), Some(7900))).unwrap();
        o.take(ms(8100), &alert(4, None, None)).unwrap();
        assert_eq!(caps(&mut o, &[11_999, 12_000]), [w(150), w(200)]);
    }

    #[test]
    fn an_echo_of_a_previous_instance_proves_nothing() {
        let mut o = orders(w(150));
        o.take(ms(600), &alert(1, w(250), Some(499))).unwrap();
        assert_eq!((o.cap(), o.memory().fallback_w), (w(150), w(150)));
        o.take(ms(600), &alert(2, w(250), Some(500))).unwrap();
        assert_eq!(o.cap(), w(250));
    }

    #[test]
    fn without_a_live_echo_a_message_only_restricts() {
        // What is in force before (by a live message at 1000), what the message says, what holds.
        for (before, told, after) in [
            (w(180), w(190), w(180)),
            (w(180), None, w(180)),
            (w(180), w(150), w(150)),
            (None, w(150), w(150)),
            (None, w(250), w(250)),
            (None, None, None),
        ] {
            let mut o = orders(None);
            o.take(ms(1000), &alert(1, before, Some(1000))).unwrap();
            o.take(ms(1200), &alert(2, told, None)).unwrap();
            assert_eq!(o.cap(), after, "{before:?} {told:?}");
            // The old lease keeps its end.
            assert_eq!(o.lease_end(), Some(ms(3000)));
        }
    }

    #[test]
    fn echoes_that_prove_nothing() {
        let other = Some(BootId::new("other").unwrap());
        let foreign = Alert { echo_boot_id: other, ..alert(1, None, Some(9000)) };
        let old = alert(1, None, Some(8000));
        let future = alert(1, None, Some(10_001));
        let no_boot = Alert { echo_boot_id: None, ..alert(1, None, Some(9000)) };
        for told in [foreign, old, future, no_boot, alert(1, None, None)] {
            let mut o = orders(w(150));
            o.take(ms(10_000), &told).unwrap();
            assert_eq!(o.cap(), w(150), "{told:?}");
        }
        let mut o = orders(w(150));
        o.take(ms(10_000), &alert(1, None, Some(8001))).unwrap();
        assert_eq!(o.cap(), None);
    }

    #[test]
    fn a_delayed_message_raises_no_fallback() {
        let mut o = orders(w(150));
        assert!(!o.take(ms(9000), &alert(1, w(150), None)).unwrap().remember);
        assert_eq!(o.memory().fallback_w, w(150));
        assert!(o.take(ms(9000), &alert(2, w(150), Some(9000))).unwrap().remember);
        assert_eq!(o.memory().fallback_w, w(200));
        let lower = Alert { fallback_w: Watts::from_whole(120), ..alert(3, None, None) };
        assert!(o.take(ms(9000), &lower).unwrap().remember);
        assert_eq!(o.memory().fallback_w, w(120));
    }

    #[test]
    fn a_lower_cap_without_a_lease_ends_by_itself() {
        let mut o = orders(w(200));
        o.take(ms(9000), &alert(1, w(100), None)).unwrap();
        assert_eq!(caps(&mut o, &[9000, 12_999, 13_000]), [w(100), w(100), w(200)]);
        assert_eq!(o.due(), None);
        // However long the message wants it.
        let long = Alert { valid_for_ms: u64::MAX, ..alert(2, w(100), Some(9000)) };
        o.take(ms(14_000), &long).unwrap();
        assert_eq!(caps(&mut o, &[133_999, 134_000]), [w(100), w(200)]);
    }

    #[test]
    fn an_emergency_without_a_cap_means_the_fallback() {
        let mut o = orders(None);
        let emergency = Alert { level: Level::Emergency, ..alert(1, None, Some(9000)) };
        assert_eq!(o.take(ms(9000), &emergency).unwrap().cap, w(200));
        assert_eq!(o.cap(), w(200));
        assert!(o.emergency(ms(10_999)) && !o.emergency(ms(11_000)));
        o.take(ms(9400), &alert(2, None, None)).unwrap();
        assert!(o.emergency(ms(9400)), "a dead message grants nothing");
        o.take(ms(9500), &alert(3, None, Some(9000))).unwrap();
        assert!(!o.emergency(ms(9500)));
    }

    #[test]
    fn nothing_is_sure_until_the_leases_of_a_previous_instance_have_run_out() {
        // (the lease that is remembered, when all of them have run out)
        for (lease_ms, sure) in [(None, 4500), (Some(5000), 10_500), (Some(u64::MAX), 120_500)] {
            let memory = Memory { lease_ms, ..orders(w(150)).memory().clone() };
            let o = Orders::new(ChassisId::new("c").unwrap(), BootId::new("b").unwrap(), memory, ms(500));
            assert!(o.unsure(ms(sure - 1)) && !o.unsure(ms(sure)), "{lease_ms:?}");
        }
    }

    #[test]
    fn the_memory_of_another_chassis_is_dropped() {
        let of = |id: Option<&str>| Memory {
            chassis_id: id.map(|id| ChassisId::new(id).unwrap()),
            epoch: Epoch(5),
            fallback_w: w(150),
            ..Memory::default()
        };
        for (id, kept) in [(None, true), (Some("c"), true), (Some("x"), false)] {
            let (c, b) = (ChassisId::new("c").unwrap(), BootId::new("b").unwrap());
            let o = Orders::new(c.clone(), b, of(id), ms(500));
            assert_eq!(o.memory().fallback_w, w(150).filter(|_| kept), "{id:?}");
            assert_eq!(o.newest().0, if kept { Epoch(5) } else { Epoch(0) });
            assert_eq!(o.memory().chassis_id, Some(c));
        }
    }

    #[test]
    fn a_first_epoch_is_kept_once_its_manager_has_echoed_a_report() {
        let (c, b) = (ChassisId::new("c").unwrap(), BootId::new("boot").unwrap());
        let mut o = Orders::new(c, b, Memory::default(), ms(500));
        assert!(!o.take(ms(600), &alert(1, w(150), None)).unwrap().remember);
        assert_eq!(o.cap(), w(150), "it is obeyed");
        assert!(o.take(ms(700), &alert(2, w(150), Some(600))).unwrap().remember);
        assert!(!o.take(ms(800), &alert(3, w(150), Some(700))).unwrap().remember);
    }

    #[test]
    fn a_height_holds_under_a_live_lease_with_a_cap() {
        for (cap, height) in [(w(150), Some(400_000)), (None, None)] {
            let mut o = orders(w(200));
            let message = Alert { height_ppm: Some(400_000), ..alert(1, cap, Some(1000)) };
            o.take(ms(1500), &message).unwrap();
            assert_eq!((o.height_ppm(), o.uncapped_by_lease()), (height, cap.is_none()), "{cap:?}");
            o.tick(o.lease_end().unwrap());
            assert_eq!(
                (o.height_ppm(), o.uncapped_by_lease()),
                (None, false),
                "{cap:?}: the lease has ended"
            );
        }
    }
}
