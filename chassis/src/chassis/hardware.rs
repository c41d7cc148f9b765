//! When hardware caps go on, and when they are given back.
//!
//! They go on for every server when software is found wanting: the breaker is half-way to its trip, or too
//! little time is left, and a reading has shown that the alert did not help. They go on for one server when
//! its agent is silent and the draw stays above the limit, or when it draws more than its cap for seconds.
//!
//! They are given back one by one, so many watts a second. A server whose agent obeys is lifted at once, for
//! the agent's own cap holds it. Any other is lifted when everything fits with what it would draw then. If
//! an excess follows, whoever was lifted just before waits longer the next time.

use core::time::Duration;

use ballast_types::wire::{EventKind, Slot};
use ballast_types::{ActionId, Instant, ServerId, TRIP_TIME, Watts};
use serde::{Deserialize, Serialize};

use super::Chassis;
use crate::Output;
use crate::out_of_band::{Change, Phase};
use crate::slots::Agent;

/// A server that draws more than its grant is capped by hardware when that goes on for so long.
const OVERDRAWS_FOR: Duration = Duration::from_secs(2);

/// A server has drawn more since its cap was given back when it is by more than this share (3 %).
const NOISE_PPM: u32 = 30_000;

/// What is kept of one server's hardware cap.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Given {
    /// How long everything must have fitted before the cap is given back. Who obeys waits only after a lift
    /// that came too early.
    hold: Duration,
    lifted_at: Option<Instant>,
    /// What it drew when its cap was given back.
    lifted_draw: Option<Watts>,
    /// What it drew before its cap.
    unrestricted: Option<Watts>,
}

impl Given {
    const fn new(hold: Duration) -> Self {
        Self { hold, lifted_at: None, lifted_draw: None, unrestricted: None }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hardware {
    /// Caps in the ledger on servers that are not configured: nobody can lift them from here.
    unconfigured: Vec<(ServerId, Watts)>,
    servers: Vec<Given>,
    /// Since when everything fits with all that would come back.
    fits_since: Option<Instant>,
    /// So many watts may come back at the moment; grows with time.
    room: Watts,
    room_at: Instant,
    on_since: Option<Instant>,
    on_before: Duration,
    /// Since when a fenced manager holds what the supplies can carry.
    guard: Option<Instant>,
}

impl Hardware {
    pub(super) fn new(
        agents: &[Agent],
        unconfigured: Vec<(ServerId, Watts)>,
        hold: Duration,
        now: Instant,
    ) -> Self {
        Self {
            unconfigured,
            servers: vec![Given::new(hold); agents.len()],
            fits_since: None,
            room: Watts::ZERO,
            room_at: now,
            on_since: None,
            on_before: Duration::ZERO,
            guard: None,
        }
    }

    /// A server is configured from now on: gives the cap that the ledger has of it.
    pub(super) fn configured(&mut self, server: &ServerId) -> Option<Watts> {
        let at = self.unconfigured.iter().position(|(id, _)| id == server)?;
        Some(self.unconfigured.remove(at).1)
    }

    /// Other servers: each was before at this place, or is new. Those that have `left` have these caps on.
    pub(super) fn follow(&mut self, origins: &[Option<usize>], left: Vec<(ServerId, Watts)>, hold: Duration) {
        self.servers =
            origins.iter().map(|origin| origin.map_or(Given::new(hold), |i| self.servers[i])).collect();
        self.unconfigured.extend(left);
        self.unconfigured.sort();
    }

    pub(super) fn unconfigured(&self) -> &[(ServerId, Watts)] {
        &self.unconfigured
    }

    /// For how long some cap was on.
    pub(super) fn time_on(&self, now: Instant) -> Duration {
        self.on_before.saturating_add(self.on_since.map_or(Duration::ZERO, |since| now - since))
    }

    /// Whether everything fits now.
    pub(super) fn note_fit(&mut self, now: Instant, fits: bool) {
        self.fits_since = fits.then(|| self.fits_since.unwrap_or(now));
    }

    fn has_fitted(&self, now: Instant, hold: Duration) -> bool {
        self.fits_since.is_some_and(|since| now - since >= hold)
    }
}

impl Chassis {
    /// Whether any configured server's cap is, or may be, on.
    pub(super) fn caps_on(&self) -> bool {
        self.agents.iter().any(|a| a.out_of_band.phase != Phase::Off)
    }

    /// Orders the hardware caps that are needed, and gives back those that are not.
    pub(super) fn order_hardware(&mut self, now: Instant) {
        if self.is_urgent() {
            self.order(now, &self.caps_for_all(), "over the limit for too long");
        } else if self.event.is_some() {
            let mut caps = self.caps_for_silent(now);
            caps.extend(self.caps_for_overdrawing(now));
            caps.extend(self.caps_for_wrong_meters());
            self.order(now, &caps, "a server does not obey in a capping event");
        }
        self.give_back(now);
        self.note_caps(now);
    }

    /// Whether software is found wanting.
    fn is_urgent(&self) -> bool {
        let Some(event) = &self.event else { return false };
        if !self.detector.is_excess() {
            return false;
        }
        let (left, needs) = (self.detector.left_s(), self.params.hardware_takes().as_secs_f64());
        let due = self.detector.fraction() >= self.tuning.hardware_at || left < 1.5 * needs;
        let shown = self.supplies.taken_at() >= event.began + self.params.shows_after();
        due && (shown || left < needs)
    }

    /// Every server that is on and has a path is capped at its target, first those that draw more.
    pub(super) fn caps_for_all(&self) -> Vec<(usize, Watts)> {
        let targets = self.hardware_targets();
        let mut caps = self.requested_caps(|i, a| (a.slot != Slot::Off).then_some(targets[i]));
        let draws_less = |&(i, _): &(usize, Watts)| {
            let power = self.agents[i].last_power();
            power.is_some_and(|w| w <= targets[i])
        };
        caps.sort_by_key(draws_less);
        caps
    }

    /// Whether the servers' own limits were ordered and an excess lasts for `time` and what a reading needs to
    /// show it.
    fn exceeds_by_own_limits(&self, now: Instant, time: Duration) -> bool {
        let shown_after = time + self.params.shows_after();
        self.detector.is_excess() && self.own_limits_since().is_some_and(|since| now - since >= shown_after)
    }

    /// In an event a server that does not answer is capped at what it may hold. What may be in force besides, an
    /// older fallback, ends with that cap. A manager that reads the supplies waits for a lease, or an emergency:
    /// until then the total may show that the server obeys, or that its fallback holds it.
    pub(super) fn caps_for_silent(&self, now: Instant) -> Vec<(usize, Watts)> {
        let waits = self.orders_own_limits() && self.sees() && !self.is_emergency();
        if waits && !self.exceeds_by_own_limits(now, self.params.lease) {
            return Vec::new();
        }
        let even = self.even();
        self.requested_caps(|_, a| {
            let uncapped = a.slot == Slot::Silent && !a.out_of_band.is_requested();
            let last = a.last_power().unwrap_or_default();
            let hold = a.cap.unwrap_or_default().max(a.holds.fallback()).max(last);
            let fallback = if a.report.is_some() { hold } else { hold.max(even) };
            // For a moment an agent may be restarting.
            let silent = now - a.since >= self.params.poll();
            (uncapped && silent).then_some(fallback)
        })
    }

    /// A server that goes on to draw more than it was told, while others lack.
    fn caps_for_overdrawing(&self, now: Instant) -> Vec<(usize, Watts)> {
        let overdraws = |a: &Agent| a.overdraws(now, OVERDRAWS_FOR).is_some();
        // Under a common height a server may draw more than its cap until the manager orders its own limit.
        let cap_binds = !self.orders_own_limits() || self.exceeds_by_own_limits(now, OVERDRAWS_FOR);
        let most = if self.orders_own_limits() { self.limit() } else { self.set_point() };
        if !self.agents.iter().any(overdraws) || !self.is_above(now, most) || !cap_binds {
            return Vec::new();
        }
        let targets = self.hardware_targets();
        self.requested_caps(|i, a| {
            let draws = a.overdraws(now, OVERDRAWS_FOR)?;
            (targets[i] < draws && !a.out_of_band.is_requested()).then_some(targets[i])
        })
    }

    /// A blind manager's only bound of a server with a wrong meter is its hardware cap, which was made for
    /// what the meter said.
    fn caps_for_wrong_meters(&self) -> Vec<(usize, Watts)> {
        if self.sees() {
            return Vec::new();
        }
        let targets = self.hardware_targets();
        let bounds = |a: &Agent| a.wrong_above().is_some() && a.out_of_band.is_requested();
        self.requested_caps(|i, a| bounds(a).then_some(targets[i]))
    }

    /// The caps that `rule` asks for and that would add something; never under a server's floor.
    fn requested_caps(&self, rule: impl Fn(usize, &Agent) -> Option<Watts>) -> Vec<(usize, Watts)> {
        let cap = |(i, a): (usize, &Agent)| {
            let floor = a.server.out_of_band_floor?;
            let watts = rule(i, a)?.max(floor);
            a.out_of_band.needs(watts).then_some((i, watts))
        };
        self.agents.iter().enumerate().filter_map(cap).collect()
    }

    fn order(&mut self, now: Instant, caps: &[(usize, Watts)], cause: &'static str) {
        if caps.is_empty() {
            return;
        }
        self.cause = cause.into();
        self.blame_lifts(now);
        let mut orders = Vec::with_capacity(caps.len());

        for &(i, watts) in caps {
            let agent = &self.agents[i];
            if agent.out_of_band.phase == Phase::Off {
                let demand = agent.needs.need().map(|n| n.demand);
                self.hardware.servers[i].unrestricted = agent.last_power().max(demand);
            }

            orders.push(self.cap(now, i, watts));
        }

        // The ledger comes first: it must hold what may be on.
        self.record(now);
        self.outputs.extend(orders);
        self.unplanned = true;
    }

    /// Notes that server `i` is to be capped; the order that says so to its BMC.
    fn cap(&mut self, now: Instant, i: usize, watts: Watts) -> Output {
        let id = self.next_action();
        let agent = &mut self.agents[i];
        agent.out_of_band.set(now, id, watts, TRIP_TIME);
        Output::OutOfBandCap { id, server: agent.server.id.clone(), watts }
    }

    /// An excess soon after caps were given back: those came back too early.
    fn blame_lifts(&mut self, now: Instant) {
        if !self.detector.is_excess() {
            return;
        }
        let (blamed, last) = (self.tuning.lift_blamed, self.tuning.release_within);
        let lifts = self.hardware.servers.iter().filter_map(|s| s.lifted_at);
        let Some(newest) = lifts.max().filter(|&at| now - at < blamed) else { return };
        let mut names = Vec::new();

        for (given, agent) in self.hardware.servers.iter_mut().zip(&self.agents) {
            let draw = agent.last_power();

            // By more than a meter's noise; who does not say what it draws may have drawn anything.
            let more =
                given.lifted_draw.is_none_or(|then| draw.is_none_or(|w| w > then + then.ppm(NOISE_PPM)));
            if more && given.lifted_at.is_some_and(|at| newest - at <= last) {
                let hold = given.hold.max(self.params.out_of_band_hold);
                given.hold = (hold * 2).min(self.tuning.longest_hold);
                names.push(agent.server.id.to_string());
            }
        }

        if names.is_empty() {
            return;
        }

        // Older lifts are not to blame, and no later order of the same excess makes them so.
        self.hardware.servers.iter_mut().for_each(|given| given.lifted_at = None);
        let message = format!(
            "hardware caps were given back too early: {} will wait longer the next time",
            names.join(", ")
        );

        self.tell(now, EventKind::Alarm { message });
    }

    /// Gives caps back, so many watts a second.
    fn give_back(&mut self, now: Instant) {
        let passed = now - self.hardware.room_at;
        self.hardware.room_at = now;
        let rate = self.limit().ppm(self.tuning.lift_ppm_a_second);
        let grown = i64::try_from(passed.as_millis().min(10_000)).unwrap_or(0);
        let more = Watts::from_milli(rate.milli() / 1000 * grown);

        // What is saved up is a second's worth, so that the first lift need not wait.
        self.hardware.room = (self.hardware.room + more).min(rate);
        let none = !self.agents.iter().any(|a| a.out_of_band.is_requested());

        // Without sight an estimate will do where software holds the server.
        if none || self.detector.is_excess() || !(self.sees() || self.estimated(now).is_some()) {
            return;
        }
        for i in 0..self.agents.len() {
            if self.hardware.room <= Watts::ZERO {
                return;
            }
            if self.agents[i].out_of_band.is_requested() && self.may_lift(now, i) {
                // A cap that was found may say anything; more than the limit cannot come back.
                let cap = self.agents[i].out_of_band.watts().unwrap_or_default();
                self.hardware.room -= cap.min(self.limit());
                self.lift(now, i);
            }
        }
    }

    /// Whether server `i` may be let go by hardware.
    fn may_lift(&self, now: Instant, i: usize) -> bool {
        let (agent, given) = (&self.agents[i], self.hardware.servers[i]);
        let epoch = self.identity.epoch();
        let cap = agent.out_of_band.watts().unwrap_or_default();

        if agent.obeys(now, epoch, self.silent_after(), self.holds_by_watts()) {
            // After a lift that came too early it is as slow as any other, unless nothing would come back.
            let held = given.hold <= self.params.out_of_band_hold;
            let since = agent.out_of_band.on_since(now);
            return held || since >= given.hold || agent.stays_under(cap);
        }

        if agent.should_obey() || !self.sees() {
            return false;
        }

        // The draw of now holds its cap at most; what it drew before would come back.
        let back = given.unrestricted.map(|w| (w - cap).at_least_zero());
        let limit = self.limit().ppm(self.params.lift_ppm);
        let draw = self.reading(now).map(|read| self.judged(now, read));
        let fits = match agent.slot {
            Slot::Off => true,
            _ => back.is_none_or(|back| draw.is_some_and(|draw| draw + back < limit)),
        };

        fits && self.hardware.has_fitted(now, given.hold)
    }

    fn lift(&mut self, now: Instant, i: usize) {
        let id = self.next_action();
        let agent = &mut self.agents[i];
        self.hardware.servers[i].lifted_at = Some(now);
        self.hardware.servers[i].lifted_draw = agent.last_power();
        agent.out_of_band.lift(now, id, TRIP_TIME);
        let server = agent.server.id.clone();
        self.outputs.push_back(Output::OutOfBandLift { id, server });
    }

    fn lift_all(&mut self, now: Instant) {
        for i in 0..self.agents.len() {
            if self.agents[i].out_of_band.is_requested() {
                self.lift(now, i);
            }
        }
    }

    /// Tries again what failed, or was not answered.
    pub(super) fn retry_due(&mut self, now: Instant) {
        for i in 0..self.agents.len() {
            if self.agents[i].out_of_band.again_at().is_none_or(|at| at > now) {
                continue;
            }
            let id = self.next_action();
            let agent = &mut self.agents[i];
            agent.out_of_band.again(now, id, TRIP_TIME);
            let server = agent.server.id.clone();
            match agent.out_of_band.phase {
                Phase::Setting(watts, _) => {
                    self.outputs.push_back(Output::OutOfBandCap { id, server, watts });
                }
                Phase::Lifting(..) => self.outputs.push_back(Output::OutOfBandLift { id, server }),
                Phase::Off | Phase::On { .. } => {}
            }
        }
    }

    /// The actuator's answer. It counts in every state: the ledger must know what is on. Only a
    /// fenced manager writes no more: the ledger is another's.
    pub(super) fn take_applied(&mut self, now: Instant, id: ActionId, result: Result<(), String>) {
        let Some(i) = self.agents.iter().position(|a| a.out_of_band.expects(id)) else {
            return self.refuse();
        };
        let agent = &mut self.agents[i];
        let change = agent.out_of_band.answered(now, id, result);

        if !self.acts() {
            if change == Change::Lifted && self.left {
                self.record(now);
            }
            return;
        }

        match change {
            Change::None => {}
            Change::Set | Change::Lifted => {
                self.cause = "the last hardware cap is lifted".into();
                self.unplanned = true;
            }
            Change::Failed => {
                let agent = &self.agents[i];
                let message = format!(
                    "the hardware cap of {} could not be changed, try {}: {}",
                    agent.server.id,
                    agent.out_of_band.tries(),
                    agent.out_of_band.error.as_deref().unwrap_or("no reason given"),
                );

                self.tell(now, EventKind::Alarm { message });
            }
        }
    }

    /// A BMC was asked for its cap. A ruler adopts what it did not set, so that it can be given back.
    pub(super) fn take_readback(&mut self, now: Instant, server: &ServerId, cap: Option<Watts>) {
        let Some(i) = self.position(server) else { return self.refuse() };
        let agent = &mut self.agents[i];
        let Some(message) = agent.out_of_band.apply_readback(now, cap) else { return };
        let message = format!("{}: {message}", agent.server.id);
        self.cause = "a BMC's cap is another than the one that was ordered".into();
        self.unplanned = true;
        self.tell(now, EventKind::Alarm { message });
    }

    /// Counts the time with caps on.
    fn note_caps(&mut self, now: Instant) {
        match (self.hardware.on_since, self.caps_on()) {
            (None, true) => self.hardware.on_since = Some(now),
            (Some(since), false) => {
                self.hardware.on_since = None;
                self.hardware.on_before = self.hardware.on_before.saturating_add(now - since);
            }
            _ => {}
        }
    }

    /// The daemon stops. What is out of band is lifted if nothing would go over; otherwise it stays
    /// on, and in the ledger. Agents are left to their leases.
    pub(super) fn leave(&mut self, now: Instant) {
        if self.hardware.has_fitted(now, Duration::ZERO) && self.reading(now).is_some() {
            self.lift_all(now);
        }
        self.left = true;
    }

    // ---- a fenced manager ----

    /// A fenced manager judges only what the supplies can carry, never a budget.
    pub(super) fn judge_capacity(&mut self, now: Instant, total: Watts) {
        let share = total.as_f64() / self.supplies.capacity().as_f64().max(0.001);
        let scale =
            crate::detector::Scale { share, trip_share: share, threshold: 1.0, noise: self.params.noise() };
        self.detector.take(now, scale);
    }

    /// It acts by hardware when the ruler lets the supplies' breaker get near its trip, and gives back its
    /// own caps after the hold, as long as somebody rules.
    pub(super) fn guard_supplies(&mut self, now: Instant) {
        let Some(fenced_at) = self.identity.fenced_at() else { return };
        if self.hardware.guard.is_some() {
            self.retry_due(now);
        }
        let in_danger = self.detector.is_excess()
            && self.detector.fraction() >= self.tuning.fenced_at
            && self.hardware.guard.is_none();
        if in_danger {
            self.hardware.guard = Some(now);
            let each = self.supplies.capacity().per(self.agents.len() as u64);
            let caps = self.requested_caps(|_, a| (a.slot != Slot::Off).then_some(each));

            for (i, watts) in caps {
                let order = self.cap(now, i, watts);
                self.outputs.push_back(order);
            }
        }

        let since = self.hardware.guard.unwrap_or(fenced_at);
        let held = now - since >= self.params.out_of_band_hold;

        if held && !self.detector.is_excess() && self.is_ruled(now) {
            self.hardware.guard = None;
            self.lift_all(now);
        }
    }
}
