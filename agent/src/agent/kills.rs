//! When a VM whose tenant prefers that is killed.

use ballast_types::wire::VmKill;
use ballast_types::{Instant, Watts};

use super::Agent;
use crate::meter::Sample;
use crate::state::State;

impl Agent {
    /// One fresh sample: kills one VM at most.
    pub(super) fn kill_if_extreme(&mut self, now: Instant, cap: Watts, sample: Sample) {
        if !self.shed.is_allowed() {
            return;
        }
        self.shed.overdue(now, &mut self.out);
        if !self.extreme(cap, sample) {
            return self.shed.reset();
        }

        let floored_at = match self.state {
            State::Throttled { over_since, .. } => over_since,
            _ => None,
        };

        let changes = [self.changed_at, self.shed.killed_at()];
        let settled = changes.into_iter().flatten().all(|at| self.shows(sample, at));
        let kills = self.shed.extreme(now, floored_at.unwrap_or(now), settled);

        let next = self.shed.next(now, &self.fleet.killable()).filter(|_| kills);
        if let Some(vm) = next {
            let kill = VmKill { vm, at_ns: now, power_w: sample.watts, cap_w: cap };
            self.shed.ask(now, kill, &mut self.out);
        }
    }

    /// Whether there is a VM that may be killed yet.
    pub(super) fn may_kill(&self) -> bool {
        self.shed.may_kill(&self.fleet.killable())
    }

    /// Whether throttling has nothing left to give, and it is not enough.
    fn extreme(&self, cap: Watts, sample: Sample) -> bool {
        // The server's own limit keeps the draw at the cap: around it noise alone would show too much.
        let most = match self.state {
            State::Throttled { .. } => cap,
            State::Shedding { .. } => cap + self.params.deadband,
            _ => return false,
        };
        sample.watts > most
            && self.limits_itself()
            && self.orders.capped_by_lease()
            && self.throttle.all_floored()
            && self.mechanism().floor_obeyed(self)
    }
}
