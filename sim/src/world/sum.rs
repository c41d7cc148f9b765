//! The sum rule: no watt is promised twice.
//!
//! The caps that agents hold, added up, are at most what their manager shares. A dead manager's agents
//! hold what it left behind, by the rules of their leases. Allowed, and nothing else, are:
//!
//! - **one lease** from the begin of a capping event, and from the start of a manager: until then servers may
//!   hold what they were told before. A manager that dies within that lease has not noticed yet who missed its
//!   message, and what it granted to the others holds for one lease more;
//! - **two leases** after the sharable watts fell, counted while a manager caps: within one a server that
//!   is not reached is noticed, and within one more what was granted to others until then has run out;
//! - **two leases** after an agent's restart, or until it obeys its first message, if that is sooner: it
//!   starts from its fallback, which may be above the cap that it has forgotten. It counts with that cap;
//! - more than is shared, as far as **servers that the manager cannot reach** alone hold more;
//! - without a manager, what such servers hold above the even share: they know an older fallback, and
//!   nobody is there to make the others pay for it;
//! - without a manager, what **a restarted agent** holds above the cap that it has forgotten, for as long
//!   as it obeys nobody: its memory may be lost or older, and fallbacks are lowered with the next message;
//! - with a manager that does not reach it, what such an agent holds above that cap and above the fallback
//!   that it knew before: nobody can tell that its memory is older.
//!
//! What servers draw beyond their caps is paid for by the others while the chassis is above its limit by more
//! than its meters' class: below that nobody can tell that there is anything to pay for.
//!
//! A server that has not answered for a minute counts with what it draws, as far as the supplies show that:
//! what others report beyond what they draw hides as much. A dead agent counts with its last cap, an agent
//! that was never told anything with its even share, and a server that is capped out of band with no more
//! than that cap.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, METER_CLASS, Watts};

use super::mean::MeanDraws;

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// The cap in force; `None` is uncapped.
    cap: Option<Watts>,
    fallback: Option<Watts>,
    /// The out-of-band cap: its hardware draws no more.
    out_of_band: Option<Watts>,
    /// The mean draw of the last seconds, and what was reported of it, in watts.
    draw_w: f64,
    reported_w: f64,
    alive: bool,
    /// Of an agent that was restarted; until it obeys a message.
    before: Option<Before>,
    /// Since when it does not answer the manager.
    unheard: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Before {
    at: Instant,
    /// The last cap that a message gave it.
    cap: Watts,
    fallback: Watts,
}

#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    pub(crate) sharable: Watts,
    pub(crate) caps: bool,
    pub(crate) answers: Vec<bool>,
}

#[derive(Clone, Debug)]
pub(crate) struct SumRule {
    lease: Duration,
    held: Vec<Held>,
    /// The newest word of the manager; kept when it dies.
    sharing: Option<Sharing>,
    manager_alive: bool,
    holds_from: Option<Instant>,
    /// What was shared, newest last, each the highest since the one before: of the last two leases.
    shared: VecDeque<(Instant, Watts)>,
    /// The mean draw of the last seconds at the supplies' input, in watts.
    input_w: f64,
    /// Since when servers draw more than is shared together, each counted with its cap at least.
    overdrawn_since: Option<Instant>,
}

/// Draws are means of about the last two seconds: of this share of each window of 100 ms.
const DRAW_GAIN: f64 = 0.05;

/// A draw so far above the cap is no breach of it: a share, and watts.
const DRAW_SLACK: (f64, f64) = (0.03, 5.0);

/// A server that has not answered for so long counts with what it draws: that is read at the supplies.
const ORPHAN_HOLD: Duration = Duration::from_secs(60);

/// A hardware cap is not ordered anew for less than this share of it.
const ORDER_SLACK_PPM: u32 = 20_000;

/// For so long the others may take to pay for who draws more than its cap.
const PAID_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Manager {
    alive: bool,
    reaches: bool,
    /// What others report beyond what they draw, in watts.
    hidden_w: f64,
}

/// What the caps in force add up to, and what is allowed.
struct Sums {
    caps: Watts,
    /// Each server counts with the higher of its cap and its draw.
    draws: Watts,
    shared: Watts,
    allowed: Watts,
    from: Instant,
}

impl SumRule {
    pub(crate) fn new(servers: usize, lease: Duration) -> Self {
        Self {
            lease,
            held: vec![Held::default(); servers],
            sharing: None,
            manager_alive: false,
            holds_from: None,
            shared: VecDeque::new(),
            input_w: 0.0,
            overdrawn_since: None,
        }
    }

    /// An agent moved: the cap in force, and its fallback.
    pub(crate) fn agent(&mut self, server: usize, cap: Option<Watts>, fallback: Option<Watts>) {
        let held = &mut self.held[server];
        (held.cap, held.fallback) = (cap, fallback);
    }

    /// A server is capped out of band, or no longer.
    pub(crate) fn slot(&mut self, server: usize, cap: Option<Watts>) {
        self.held[server].out_of_band = cap;
    }

    pub(crate) fn agent_starts(&mut self, now: Instant, server: usize) {
        let held = &mut self.held[server];
        let known = held.cap.or(held.fallback);
        let known = known.map(|cap| Before { at: now, cap, fallback: held.fallback.unwrap_or(cap) });
        // Of several restarts on end the first one counts.
        held.before = held.before.map(|before| Before { at: now, ..before }).or(known);
        held.alive = true;
    }

    pub(crate) fn agent_dies(&mut self, server: usize) {
        self.held[server].alive = false;
    }

    pub(crate) fn agent_obeyed(&mut self, server: usize) {
        self.held[server].before = None;
    }

    pub(crate) fn is_ruled(&self) -> bool {
        self.manager_alive
    }

    /// Whether the agent runs, and knows neither a cap nor a fallback.
    pub(crate) fn was_told_nothing(&self, server: usize) -> bool {
        let held = &self.held[server];
        held.alive && held.cap.is_none() && held.fallback.is_none()
    }

    pub(crate) fn manager_starts(&mut self) {
        self.holds_from = None;
        self.manager_alive = true;
    }

    /// The manager is killed. What it granted above an agent's fallback runs out within a lease.
    pub(crate) fn manager_dies(&mut self, now: Instant) {
        let held_before = self.holds_from.filter(|&from| from <= now);
        self.manager_alive = false;
        self.holds_from = held_before.or(Some(now + self.lease));
    }

    pub(crate) fn manager(&mut self, now: Instant, sharing: Sharing) {
        self.manager_alive = true;
        match (sharing.caps, self.holds_from) {
            (true, None) => {
                self.holds_from = Some(now + self.lease);

                // Before, nobody was told a cap: what was shared then is still what counts.
                self.shared.iter_mut().for_each(|s| s.0 = now);
            }
            (false, Some(_)) => self.holds_from = None,
            _ => {}
        }

        for (held, &answers) in self.held.iter_mut().zip(&sharing.answers) {
            held.unheard = (!answers).then(|| held.unheard.unwrap_or(now));
        }
        if self.sharing.as_ref().is_none_or(|old| old.sharable != sharing.sharable) {
            // The last one was shared until now.
            if let Some(last) = self.shared.back_mut() {
                last.0 = now;
            }
            self.shared.push_back((now, sharing.sharable));
        }

        self.sharing = Some(sharing);
    }

    /// What an even share is, by the newest word of the manager.
    pub(crate) fn even_share(&self) -> Option<Watts> {
        Some(self.sharing.as_ref()?.sharable.per(self.held.len() as u64))
    }

    /// What is wrong with the caps now, if anything is.
    pub(crate) fn broken(&mut self, now: Instant) -> Option<String> {
        let sums = self.sums(now).filter(|sums| sums.caps > sums.allowed)?;
        let sharing = self.sharing.as_ref()?;
        let caps: Vec<_> = self.held.iter().map(|h| h.cap.map(Watts::as_f64)).collect();
        Some(format!(
            "caps add up to {}, {} are shared (now {}), the rule holds since {:.3} s: {caps:?}, answering \
             {:?}",
            sums.caps,
            sums.shared,
            sharing.sharable,
            sums.from.as_secs_f64(),
            sharing.answers
        ))
    }

    /// Takes what was drawn in the last 100 ms under a limit, in watts, and what servers have last reported
    /// of it. What is wrong, if servers have drawn more than their caps for long and nobody paid for it.
    pub(crate) fn overdrawn(
        &mut self,
        now: Instant,
        limit_w: f64,
        draws: &MeanDraws,
        reported: impl Iterator<Item = Watts>,
    ) -> Option<String> {
        for ((held, draw_w), told) in self.held.iter_mut().zip(&draws.servers_w).zip(reported) {
            held.draw_w += DRAW_GAIN * (draw_w - held.draw_w);
            held.reported_w += DRAW_GAIN * (told.as_f64() - held.reported_w);
        }

        self.input_w += DRAW_GAIN * (draws.input_w - self.input_w);

        let above = self.input_w > METER_CLASS * limit_w;
        let sums = self.sums(now).filter(|_| self.manager_alive && above);
        let over = sums.filter(|sums| sums.draws > sums.allowed.max(sums.caps));
        let Some(sums) = over else {
            self.overdrawn_since = None;
            return None;
        };

        let since = *self.overdrawn_since.get_or_insert(now);

        (now.since(since) > PAID_WITHIN).then(|| {
            format!(
                "servers draw {} with their caps, {} are shared, and nobody has paid for {:.0} s",
                sums.draws,
                sums.shared,
                PAID_WITHIN.as_secs_f64()
            )
        })
    }

    /// Adds up; `None` while the rule does not hold.
    fn sums(&mut self, now: Instant) -> Option<Sums> {
        let two = self.lease * 2;
        let caps = self.manager_alive && self.holds_from.is_some();
        while caps && self.shared.len() > 1 && self.shared[0].0 + two < now {
            self.shared.pop_front();
        }
        let from = self.holds_from.filter(|&at| now > at)?;
        let sharing = self.sharing.as_ref()?;
        let shared = self.shared.iter().map(|&(_, w)| w).max()?;
        let even = self.even_share()?;
        let hidden_w = self.hidden_w(&sharing.answers);
        let (mut sum, mut draws) = (Watts::ZERO, Watts::ZERO);
        let (mut beyond_reach, mut unpaid) = (Watts::ZERO, Watts::ZERO);

        for (held, &answers) in self.held.iter().zip(&sharing.answers) {
            let manager = Manager { alive: self.manager_alive, reaches: answers, hidden_w };
            let watts = held.counts(now, even, two, manager);
            sum += watts;
            draws += watts.max(held.breach());

            match (answers && held.alive, self.manager_alive) {
                (true, _) => {}
                (false, true) => beyond_reach += watts,
                (false, false) => unpaid += (watts - even).at_least_zero(),
            }
        }

        let allowed = shared.max(beyond_reach) + unpaid;

        Some(Sums { caps: sum, draws, shared, allowed, from })
    }

    /// What the servers that answer report beyond what they draw, in watts.
    fn hidden_w(&self, answers: &[bool]) -> f64 {
        let answering = self.held.iter().zip(answers).filter(|(_, answers)| **answers);
        answering.map(|(held, _)| (held.reported_w - held.draw_w).max(0.0)).sum()
    }
}

impl Held {
    /// What it counts with by its cap. A manager that reaches it tells it anew within two leases of a
    /// restart.
    fn counts(&self, now: Instant, even: Watts, two_leases: Duration, manager: Manager) -> Watts {
        let recent = self.before.filter(|b| !manager.alive || now <= b.at + two_leases);
        let beyond_reach = self.before.filter(|_| !manager.reaches);
        let knew = recent.map(|b| b.cap).or(beyond_reach.map(|b| b.cap.max(b.fallback)));
        let watts = match (self.cap, self.fallback) {
            (_, None) => recent.map_or(even, |b| b.cap),
            (None, Some(fallback)) if !self.alive => fallback,
            (None, Some(_)) => Watts::MAX,
            (Some(cap), Some(_)) => knew.map_or(cap, |knew| cap.min(knew)),
        };
        let orphaned = self.unheard.is_some_and(|since| now > since + ORPHAN_HOLD);
        let drawn = if orphaned { self.is_seen_to_draw(manager.hidden_w) } else { Watts::MAX };
        let hardware = self.out_of_band.map_or(Watts::MAX, |cap| cap - cap.ppm(ORDER_SLACK_PPM));
        watts.min(drawn).min(hardware)
    }

    /// What it draws, less what others hide of that, and what meters may miss.
    fn is_seen_to_draw(&self, hidden_w: f64) -> Watts {
        Watts::from_f64((self.draw_w - hidden_w) * 0.95 - DRAW_SLACK.1).unwrap_or(Watts::MAX).at_least_zero()
    }

    /// What it draws, where that is more than its cap by more than noise; else nothing.
    fn breach(&self) -> Watts {
        let draw_w = self.draw_w * (1.0 - DRAW_SLACK.0) - DRAW_SLACK.1;
        Watts::from_f64(draw_w.max(0.0)).unwrap_or(Watts::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(1000 * seconds)
    }

    /// Two servers with caps of 100 W and fallbacks of 100 W, 200 W are shared; the rule holds from the
    /// third second on.
    fn sum() -> SumRule {
        let mut sum = SumRule::new(2, Duration::from_secs(2));
        sum.manager_starts();
        for server in 0..2 {
            sum.agent_starts(at(0), server);
            sum.agent(server, Some(W(100)), Some(W(100)));
            sum.agent_obeyed(server);
        }
        let answers = vec![true; 2];
        sum.manager(at(0), Sharing { sharable: W(200), caps: true, answers });
        sum
    }

    #[test]
    fn without_a_manager_a_restarted_agent_counts_with_what_it_was_told() {
        for (restarted, manager, broken) in [(true, false, false), (true, true, true), (false, false, true)] {
            let mut sum = sum();
            if !manager {
                sum.manager_dies(at(3));
            }
            for n in 0..2 {
                if restarted {
                    sum.agent_dies(0);
                    sum.agent_starts(at(4 + n), 0);
                }

                // Its memory knows of an older fallback.
                sum.agent(0, Some(W(120)), Some(W(120)));
            }

            assert_eq!(sum.broken(at(6)).is_some(), !restarted, "two leases");
            assert_eq!(sum.broken(at(20)).is_some(), broken, "{restarted} {manager}");
            sum.agent_obeyed(0);
            assert!(sum.broken(at(20)).is_some(), "it was told, and holds more");
        }
    }

    #[test]
    fn a_restarted_agent_that_nobody_reaches_counts_with_what_it_knew() {
        for (fallback, answers, broken) in [(120, false, false), (120, true, true), (100, false, false)] {
            let mut sum = sum();
            let answering = vec![answers, true];
            sum.manager(at(3), Sharing { sharable: W(200), caps: true, answers: answering });
            sum.agent(0, Some(W(fallback)), Some(W(fallback)));
            assert_eq!(sum.broken(at(4)).is_some(), fallback > 100, "what it has now it was told");
            sum.agent(0, Some(W(100)), Some(W(100)));
            sum.agent_dies(0);
            sum.agent_starts(at(5), 0);
            sum.agent(0, Some(W(fallback)), Some(W(fallback)));
            assert_eq!(sum.broken(at(20)).is_some(), broken, "{fallback} {answers}");
        }
    }

    /// The first server has not answered for more than a minute. It draws 90 W, and the second one has its
    /// watts.
    #[test]
    fn who_is_not_heard_counts_with_what_others_do_not_hide_of_its_draw() {
        for (reported, broken) in [(100, true), (180, false)] {
            let mut sum = sum();
            let answers = vec![false, true];
            sum.manager(at(3), Sharing { sharable: W(200), caps: true, answers });
            sum.agent(1, Some(W(190)), Some(W(190)));
            let draws = MeanDraws { input_w: 190.0, servers_w: vec![90.0, 100.0] };
            for n in 0..100 {
                let told = [W(0), W(reported)].into_iter();
                sum.overdrawn(at(3) + Duration::from_millis(100 * n), 300.0, &draws, told);
            }
            assert!(sum.broken(at(60)).is_some(), "within the minute it counts with its cap");
            assert_eq!(sum.broken(at(70)).is_some(), broken, "{reported} W are reported");
        }
    }

    #[test]
    fn who_draws_more_than_its_cap_is_paid_for_above_the_limit() {
        for (input_w, broken) in [(302.0, false), (306.0, true)] {
            let mut sum = sum();
            let draws = MeanDraws { input_w, servers_w: vec![150.0, 100.0] };
            let found = (0..300).find_map(|n| {
                let now = at(3) + Duration::from_millis(100 * n);
                sum.overdrawn(now, 300.0, &draws, [Watts::ZERO; 2].into_iter())
            });
            assert_eq!(found.is_some(), broken, "{input_w} W: {found:?}");
        }
    }
}
