//! The sum rule: no watt is promised twice.
//!
//! The caps that agents hold, added up, are at most what their manager shares. A dead manager's agents
//! hold what it left behind, by the rules of their leases. Allowed, and nothing else, are:
//!
//! - **one lease** from the begin of an episode, and from the start of a manager: until then servers may
//!   hold what they were told before;
//! - **two leases** after the sharable watts fell, counted while a manager caps: within one a server that
//!   is not reached is noticed, and within one more what was granted to others until then has run out;
//! - **two leases** after an agent's restart, or until it obeys its first message, if that is sooner: it
//!   starts from its fallback, which may be above the cap that it has forgotten. It counts with that cap;
//! - more than is shared, as far as **servers that the manager cannot reach** alone hold more;
//! - without a manager, what such servers hold above the even share: they know an older fallback, and
//!   nobody is there to make the others pay for it.
//!
//! A dead agent counts with its last cap, an agent that was never told anything with its even share, and
//! a server that is capped out of band with no more than that cap.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Watts};

/// One server's agent.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// The cap in force; `None` is uncapped.
    cap: Option<Watts>,
    fallback: Option<Watts>,
    /// The out-of-band cap: its hardware draws no more.
    out_of_band: Option<Watts>,
    alive: bool,
    /// When it was restarted, and its cap before; until it obeys a message.
    before: Option<(Instant, Watts)>,
}

/// What a manager says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    /// What it shares.
    pub(crate) sharable: Watts,
    /// Whether it is in an episode.
    pub(crate) caps: bool,
    /// Which servers answer it.
    pub(crate) answers: Vec<bool>,
}

/// Watches the sum.
#[derive(Clone, Debug)]
pub(crate) struct SumRule {
    lease: Duration,
    held: Vec<Held>,
    /// The newest word of the manager; kept when it dies.
    sharing: Option<Sharing>,
    manager_alive: bool,
    /// The rule holds from here on.
    holds_from: Option<Instant>,
    /// What was shared, newest last, each the highest since the one before: of the last two leases.
    shared: VecDeque<(Instant, Watts)>,
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

    /// An agent starts.
    pub(crate) fn agent_starts(&mut self, now: Instant, server: usize) {
        let held = &mut self.held[server];
        held.before = held.cap.or(held.fallback).map(|cap| (now, cap));
        held.alive = true;
    }

    /// An agent is killed.
    pub(crate) fn agent_dies(&mut self, server: usize) {
        self.held[server].alive = false;
    }

    /// An agent obeyed a message.
    pub(crate) fn agent_obeyed(&mut self, server: usize) {
        self.held[server].before = None;
    }

    /// A manager starts.
    pub(crate) fn manager_starts(&mut self) {
        self.holds_from = None;
        self.manager_alive = true;
    }

    /// The manager is killed. Uncapped agents fall to their fallbacks within a lease.
    pub(crate) fn manager_dies(&mut self, now: Instant) {
        self.manager_alive = false;
        self.holds_from = self.holds_from.or(Some(now + self.lease));
    }

    /// The manager moved.
    pub(crate) fn manager(&mut self, now: Instant, sharing: Sharing) {
        match (sharing.caps, self.holds_from) {
            (true, None) => {
                self.holds_from = Some(now + self.lease);
                // Before, nobody was told a cap: what was shared then is still what counts.
                self.shared.iter_mut().for_each(|s| s.0 = now);
            }
            (false, Some(_)) => self.holds_from = None,
            _ => {}
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

    /// What is wrong now, if anything is.
    pub(crate) fn broken(&mut self, now: Instant) -> Option<String> {
        let two = self.lease * 2;
        let caps = self.manager_alive && self.holds_from.is_some();
        while caps && self.shared.len() > 1 && self.shared[0].0 + two < now {
            self.shared.pop_front();
        }
        let from = self.holds_from.filter(|&at| now > at)?;
        let sharing = self.sharing.as_ref()?;
        let shared = self.shared.iter().map(|&(_, w)| w).max()?;
        let even = sharing.sharable.per(self.held.len() as u64);
        let (mut sum, mut beyond_reach, mut unpaid) = (Watts::ZERO, Watts::ZERO, Watts::ZERO);
        for (held, &answers) in self.held.iter().zip(&sharing.answers) {
            let watts = match (held.cap, held.fallback) {
                (_, None) => even,
                (None, Some(fallback)) if !held.alive => fallback,
                (None, Some(_)) => Watts::MAX,
                (Some(cap), Some(_)) => match held.before {
                    Some((at, before)) if now <= at + two => cap.min(before),
                    _ => cap,
                },
            };
            let watts = held.out_of_band.map_or(watts, |cap| cap.min(watts));
            sum += watts;
            match (answers && held.alive, self.manager_alive) {
                (true, _) => {}
                (false, true) => beyond_reach += watts,
                (false, false) => unpaid += (watts - even).at_least_zero(),
            }
        }
        (sum > shared.max(beyond_reach) + unpaid).then(|| {
            let caps: Vec<_> = self.held.iter().map(|h| h.cap.map(Watts::as_f64)).collect();
            format!(
                "caps add up to {sum}, {shared} are shared (now {}), the rule holds since {:.3} s: {caps:?}, answering {:?}",
                sharing.sharable,
                from.as_secs_f64(),
                sharing.answers
            )
        })
    }
}
