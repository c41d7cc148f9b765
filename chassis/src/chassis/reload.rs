//! Other parameters while the manager runs. Of servers and supplies that stay, all that was learnt, promised and
//! ordered stays too: no cap is lifted, and no new epoch begins.

use std::collections::BTreeMap;

use ballast_types::wire::Slot;
use ballast_types::{Instant, ServerId, Watts};

use super::Chassis;
use crate::Params;
use crate::slots::{Agent, slot_of};

impl Chassis {
    /// Goes by `params` from now on; which chassis this is, and which start of its manager, stays.
    ///
    /// A server that is new is as every server is at a start. A hardware cap that is on at a server that is gone
    /// stays in the ledger, as one on a server that is not configured. The operator's lower budget stays while it
    /// is the lower one.
    pub(super) fn take_params(&mut self, now: Instant, params: Params) {
        let before = self.budget_in_force();
        let (chassis_id, instance) = (self.params.chassis_id.clone(), self.params.instance);
        let params = Params { chassis_id, instance, ..params };

        self.supplies.follow(now, &self.params, &params);
        self.shared.follow(params.shared_floor, params.budget);
        self.detector.follow(params.trip_curve.clone());
        self.take_servers(now, &params);

        self.params = params;
        self.budget = self.budget.filter(|&budget| budget < self.params.budget);
        if self.budget_in_force() < before {
            self.lowered.accepted(now, before, self.tuning.lowered_counts_after);
        }
        // What was read of the supplies before counts until those there are now can have been read.
        self.grace_until = self.grace_until.max(now + self.params.blind_after());
        self.budget_refused = None;
        if let Some(total) = self.reading(now) {
            self.follow_unreported(now, total);
        }
        if self.acts() {
            self.cause = "the configuration was read anew".into();
            self.limit_moved(now);
        }
    }

    fn take_servers(&mut self, now: Instant, params: &Params) {
        let even = params.budget.per(params.servers.len() as u64);
        let known = self.recorded.as_ref().map(|ledger| ledger.highest_w.clone()).unwrap_or_default();
        let before = std::mem::take(&mut self.agents);
        // A server may come back within this epoch: its agent obeys higher numbers only.
        let highest_seq = before.iter().map(|agent| agent.seq).max().unwrap_or_default();
        self.highest_seq = self.highest_seq.max(highest_seq);
        let mut before: BTreeMap<ServerId, (usize, Agent)> =
            before.into_iter().enumerate().map(|(i, agent)| (agent.server.id.clone(), (i, agent))).collect();
        let (mut origins, mut other_mode) = (vec![], vec![]);

        for server in &params.servers {
            let (origin, agent) = match before.remove(&server.id) {
                Some((i, mut agent)) => {
                    let before = std::mem::replace(&mut agent.server, server.clone());
                    if before.mode != server.mode && agent.slot != Slot::Off {
                        other_mode.push(self.agents.len());
                    }
                    (Some(i), agent)
                }
                None => {
                    let capped = self.hardware.configured(&server.id);
                    let mut agent = Agent::new(server.clone(), capped, even, now);
                    agent.seq = self.highest_seq;
                    let highest = known.iter().find(|(id, _)| *id == server.id);
                    agent.highest = highest.map(|&(_, watts)| watts).unwrap_or_default();
                    (None, agent)
                }
            };
            origins.push(origin);
            self.agents.push(agent);
        }

        // What they draw is not granted to others. Once they are off, what the total leaves brings this down.
        let gone = before.values().map(|(_, agent)| agent.last_power().unwrap_or_default().at_least_zero());
        self.shared.add(gone.sum());
        let left = |(id, (_, agent)): (ServerId, (usize, Agent))| Some((id, agent.out_of_band.watts()?));
        let left: Vec<(ServerId, Watts)> = before.into_iter().filter_map(left).collect();
        self.hardware.follow(&origins, left, params.out_of_band_hold);
        self.index = self.agents.iter().enumerate().map(|(i, a)| (a.server.id.clone(), i)).collect();

        for i in other_mode {
            // What was known of it is of a time before: it begins as a new one, with numbers that go on.
            let agent = &mut self.agents[i];
            agent.forget(even, now);
            let slot = slot_of(agent.server.mode);
            self.change_slot(now, i, slot, "the configuration says so");
        }
    }
}
