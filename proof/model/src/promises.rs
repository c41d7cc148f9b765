//! What must hold in every state, and in ten seconds without a fault after every state.

use ballast_types::{Instant, Machine as _, Watts};

use crate::broken::{Broken, NO_RULER, ONE_EPOCH, TWICE, TWO_RULERS};
use crate::plant::{BUDGET, EVEN, LEASE, SHARABLE, TICK};
use crate::world::{Server, World};

/// Without a fault for so long, one manager rules.
const SETTLED_AFTER: u32 = 20;

/// Who ruled in so many last ticks of that time is looked at: nobody keeps silent for longer.
const LOOKED_AT: u32 = 4;

/// In a capping event the chassis's loop may share out so much of the limit more, for a lease (3 %).
const INTEGRAL_PPM: u32 = 30_000;

impl World {
    /// Notes a watt that is granted twice: the caps in force, now and at every later instant at which one
    /// changes by itself, if nobody hears anything more.
    ///
    /// The exceptions are those of the simulator's sum rule that can happen here: a lease from the begin of
    /// a capping event and from a manager's start; an agent that has forgotten its cap counts with it for
    /// two leases; one that was never told anything counts with its even share; without a manager nobody pays
    /// for what a dead agent holds above that. If the manager of the newest epoch were to die now, it is the
    /// same of a server that has not obeyed that manager yet: an earlier one has told it a fallback that no
    /// ledger holds. What is shared does not change here, so there is no exception for that. The other way
    /// round the rule here is stricter: what the leases will do counts already.
    pub(crate) fn judge_sum(&mut self) {
        let Some(from) = self.sum_from.filter(|_| self.broken.is_none()) else { return };
        let ahead = self.servers.each_ref().map(|server| server.ahead(self.now));

        let acting = self.managers.iter().filter(|m| m.acts());
        let newest = acting.max_by_key(|m| (m.disk.epoch, m.life)).map(|m| m.life);

        let mut instants: Vec<_> = ahead.iter().flatten().map(|&(at, _)| at).collect();
        instants.push(from.max(self.now));
        instants.retain(|at| *at >= from.max(self.now));

        for at in instants {
            let caps = ahead.each_ref().map(|caps| {
                let current = caps.iter().rev().find(|(since, _)| *since <= at);
                current.map_or(Watts::ZERO, |&(_, watts)| watts)
            });

            let leased = at < self.now + LEASE;
            let integral = if leased { BUDGET.ppm(INTEGRAL_PPM) } else { Watts::ZERO };
            let nobody_pays = at > self.now || newest.is_none();
            let later = at > self.now && newest.is_some();
            let unheard = (self.servers.iter().zip(caps))
                .filter(|(s, _)| nobody_pays && s.agent.is_none() || later && s.obeys != newest);
            let unpaid: Watts = unheard.map(|(_, cap)| (cap - EVEN).at_least_zero()).sum();
            let allowed = SHARABLE + integral + unpaid;
            let sum: Watts = caps.iter().copied().sum();

            if sum > allowed {
                let (when, rule) = (at.since(self.now), from);
                let held = self.servers.each_ref().map(|s| s.held);
                let what = format!(
                    "in {when:?} caps add up to {sum} of {allowed}: {caps:?}, held {held:?}, counts since \
                     {rule:?}"
                );
                self.broken = Some(Broken { promise: TWICE, what });
                return;
            }
        }
    }

    /// Ends every fault and lets ten seconds pass; `each` sees every state. What was broken is noted.
    pub(crate) fn settle(&mut self, mut each: impl FnMut(&Self)) {
        self.mend();
        for tick in 0..SETTLED_AFTER {
            if tick + LOOKED_AT == SETTLED_AFTER {
                self.listen();
            }
            self.tick();
            self.judge_sum();
            each(self);
            if self.broken.is_some() {
                return;
            }
        }
        self.broken = self.judge_rulers();
    }

    /// Who ruled since [`World::listen`].
    fn judge_rulers(&self) -> Option<Broken> {
        let lately = format!("in the last {:?} of 10 s without a fault", TICK * LOOKED_AT);
        let spoke = self.managers.each_ref().map(|m| m.spoke);
        let epochs = self
            .managers
            .each_ref()
            .map(|m| m.chassis.as_ref().map(|chassis| chassis.status(self.now).epoch));
        let obeyed = self.servers.each_ref().map(|s| s.obeyed);
        let who = format!("managers that spoke {spoke:?}, obeyed by a {:?}, by b {:?}", obeyed[0], obeyed[1]);

        let promise = match (spoke, obeyed) {
            ([true, true], _) if epochs[0] == epochs[1] => ONE_EPOCH,
            ([true, true], _) => TWO_RULERS,
            (_, [a, b]) if a == b && a != [false; 2] => return None,
            _ => NO_RULER,
        };

        Some(Broken { promise, what: format!("{lately} {who}") })
    }
}

impl Server {
    /// What it counts with from now on, if nobody tells it anything.
    fn ahead(&self, now: Instant) -> Vec<(Instant, Watts)> {
        let forgotten = self.before.filter(|(at, _)| now <= *at + LEASE * 2);
        let count = |cap: Option<Watts>, fallback: Option<Watts>, alive: bool| {
            let watts = match (cap, fallback) {
                (_, None) => EVEN,
                (None, Some(fallback)) if !alive => fallback,
                (None, Some(_)) => Watts::from_whole(1_000_000),
                (Some(cap), Some(_)) => cap,
            };

            let least = forgotten.map(|(_, before)| before).into_iter().chain(self.hardware).min();
            least.map_or(watts, |least| watts.min(least))
        };

        let mut caps = vec![(now, count(self.held.0, self.held.1, self.agent.is_some()))];
        let Some(agent) = &self.agent else { return caps };
        let mut agent = (**agent).clone();
        let boot = now.saturating_sub(self.clock(now).since(Instant::ZERO));
        let until = self.clock(now) + LEASE * 3;

        while let Some((at, _)) = agent.poll_timeout().filter(|(at, _)| *at <= until) {
            agent.handle_timeout(at);
            while let Some(output) = agent.poll_output() {
                if let Some(id) = output.action() {
                    let done = ballast_agent_core::Input::Applied { id, result: Ok(()) };
                    agent.handle_input(at, done);
                }
            }

            let watts = count(agent.cap(), agent.fallback(), true);

            if caps.last().is_none_or(|last| last.1 != watts) {
                caps.push((boot + at.since(Instant::ZERO), watts));
            }
        }

        caps
    }
}
