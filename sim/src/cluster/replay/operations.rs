//! Does what a plan says.

use core::cmp::Reverse;

use ballast_placement::{Cluster, Host, HostId, HostState, PlacementError, Resources, Scheduler, VmKey};
use ballast_types::Instant;

use super::moves::Moves;
use super::outcome::Drained;
use super::plan::{Action, Plan};
use crate::cluster::engine::{EngineError, Operator};

/// A plan under way.
#[derive(Debug)]
pub(super) struct Operations<'a> {
    /// When the first VM comes: the plan counts from there.
    first_ms: u64,
    /// What is still to be done, the next one last.
    actions: Vec<(u64, &'a Action)>,
    pub(super) moves: Moves,
}

impl<'a> Operations<'a> {
    /// The error names a host that is none.
    pub(super) fn new(plan: &'a Plan, first_ms: u64, cluster: &Cluster) -> Result<Self, EngineError> {
        let mut actions = Vec::with_capacity(plan.actions.len());
        let this = Self { first_ms, actions: Vec::new(), moves: Moves::new(plan.moving, plan.drains) };
        for (after_ms, action) in &plan.actions {
            let at_ms = first_ms.saturating_add(*after_ms);
            if let Action::Drain(hosts) | Action::Open(hosts) | Action::Resize(hosts, _) = action {
                let known = hosts.iter().try_for_each(|host| cluster.check(*host));
                known.map_err(|error| this.wrong(at_ms, error))?;
            }
            actions.push((at_ms, action));
        }

        actions.sort_by_key(|(at_ms, _)| *at_ms);
        actions.reverse();

        Ok(Self { actions, ..this })
    }

    fn wrong(&self, at_ms: u64, error: PlacementError) -> EngineError {
        EngineError::Operation { after_s: self.after_s(at_ms), error }
    }

    fn after_s(&self, at_ms: u64) -> f64 {
        (at_ms - self.first_ms) as f64 / 1e3
    }

    /// What came of drains. The error names the first action that comes after all is over.
    pub(super) fn finish(&self, last_ms: u64) -> Result<Drained, EngineError> {
        match self.actions.last() {
            Some((at_ms, _)) => {
                Err(EngineError::Late { after_s: self.after_s(*at_ms), last_s: self.after_s(last_ms) })
            }
            None => Ok(self.moves.drained()),
        }
    }
}

/// The open hosts with VMs that have the fewest cores in use.
fn emptiest(cluster: &Cluster, count: usize) -> Vec<HostId> {
    let is_used = |host: &HostId| cluster.state(*host) == HostState::Open && cluster.vms(*host) > 0;
    let mut hosts: Vec<HostId> = cluster.ids().filter(is_used).collect();
    hosts.sort_by_key(|host| (cluster.taken(*host).milli_cores, Reverse(*host)));
    hosts.truncate(count);
    hosts
}

fn resize(
    at_ms: u64,
    hosts: &[HostId],
    capacity: Resources,
    scheduler: &mut Scheduler,
) -> Result<(), PlacementError> {
    hosts.iter().try_for_each(|id| {
        let after = Host { capacity, room: capacity, ..*scheduler.cluster().host(*id) };
        scheduler.change_host(Instant::from_millis(at_ms), *id, &after)
    })
}

impl Operator for Operations<'_> {
    fn next_ms(&self) -> Option<u64> {
        let action = self.actions.last().map(|(at_ms, _)| *at_ms);
        [action, self.moves.next_ms()].into_iter().flatten().min()
    }

    fn ended(&mut self, at_ms: u64, vm: VmKey) {
        self.moves.ended(at_ms, vm);
    }

    /// Moves end, actions are taken, and what became free is used for other moves.
    fn act(
        &mut self,
        at_ms: u64,
        freed: bool,
        scheduler: &mut Scheduler,
        phase: &mut dyn FnMut(&Cluster),
    ) -> Result<(), EngineError> {
        let mut changed = self.moves.finish(at_ms, scheduler) || freed;
        while let Some((_, action)) = self.actions.pop_if(|(due_ms, _)| *due_ms <= at_ms) {
            let done = match action {
                Action::Drain(hosts) => self.moves.drain(at_ms, hosts, false, scheduler),
                Action::Defragment(count) => {
                    let hosts = emptiest(scheduler.cluster(), *count as usize);
                    self.moves.drain(at_ms, &hosts, true, scheduler)
                }
                Action::Resize(hosts, capacity) => resize(at_ms, hosts, *capacity, scheduler),
                Action::Open(hosts) => self.moves.open(at_ms, hosts, scheduler),
                Action::Policy(policy) => {
                    let (fits, ranking) = policy.rules(scheduler.cluster());
                    scheduler.set_policy(fits, ranking);
                    phase(scheduler.cluster());
                    Ok(())
                }
            };
            done.map_err(|error| self.wrong(at_ms, error))?;
            changed = true;
        }

        changed |= self.moves.watch(at_ms, scheduler).map_err(|error| self.wrong(at_ms, error))?;
        if changed {
            self.moves.start(at_ms, scheduler);
        }
        Ok(())
    }
}
