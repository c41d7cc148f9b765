//! Plays recorded arrivals against a scheduler.

mod error;
mod ids;
mod moves;
mod outcome;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ballast_placement::{
    AdmissionRequest, DeploymentId, HostId, PlacementError, Resources, Scheduler, VmKey, VmRequest,
};
use ballast_types::Instant;
use serde::Serialize;

use super::arrivals::{Arrival, Arrivals};
pub use error::ReplayError;
use ids::{Batches, Strides};
use moves::Moves;
use outcome::Means;
pub use outcome::{Drained, Outcome, Phase, Reason};
pub use plan::{Action, Moving, Plan};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayOptions {
    /// How long after the first arrival VMs still come, inclusive, in milliseconds; all where `None`.
    pub until_ms: Option<u64>,
    /// How often the trace is laid over itself, each time with fresh ids. At equal times the first copy comes
    /// first.
    pub repeat: u32,
    /// The VMs of a batch are placed all or none. They are taken together where the first of them stands.
    pub atomic_batches: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { until_ms: None, repeat: 1, atomic_batches: false }
    }
}

/// A run on its way.
#[derive(Debug)]
struct Run<'a, D> {
    scheduler: &'a mut Scheduler,
    options: &'a ReplayOptions,
    file: &'a str,
    vms: &'a [Arrival],
    strides: Strides,
    first_ms: u64,
    now_ms: u64,
    /// VMs by the time at which they leave.
    leaving: BTreeMap<u64, Vec<VmKey>>,
    moves: Moves,
    /// What is still to be done, the next one last.
    actions: Vec<(u64, &'a Action)>,
    /// VMs of every deployment that runs; kept where somebody decides on admission.
    running: Option<BTreeMap<DeploymentId, u32>>,
    means: Means,
    /// Over the phases that have ended.
    ended: Means,
    outcome: Outcome,
    decided: D,
}

/// Plays the trace. `decided` is told every VM's id and host, in the order of decisions.
///
/// A trace knows neither class nor utilisation, so the power rule says nothing of its VMs. Where the scheduler
/// has admissions, they decide on a whole batch when the first of its VMs is due; it is a scale-out where VMs
/// of it are running. The error names the record of a VM that no host could ever hold, copies whose ids do
/// not fit, and actions that cannot be done.
pub fn replay<D: FnMut(u64, Option<HostId>)>(
    arrivals: &Arrivals,
    scheduler: &mut Scheduler,
    options: &ReplayOptions,
    plan: &Plan,
    decided: D,
) -> Result<Outcome, ReplayError> {
    let mut run = Run::new(arrivals, scheduler, options, plan, decided)?;
    run.play()?;
    Ok(run.finish())
}

/// What is to be done, the next one last.
fn actions<'a>(
    plan: &'a Plan,
    scheduler: &Scheduler,
    first_ms: u64,
    last_ms: u64,
) -> Result<Vec<(u64, &'a Action)>, ReplayError> {
    let mut actions = Vec::with_capacity(plan.actions.len());
    for (after_ms, action) in &plan.actions {
        let (at_s, at_ms) = (*after_ms as f64 / 1e3, first_ms.saturating_add(*after_ms));
        if at_ms > last_ms {
            let last_s = (last_ms - first_ms) as f64 / 1e3;
            return Err(ReplayError::Late { at_s, last_s });
        }

        if let Action::Drain(hosts) | Action::Open(hosts) = action {
            let known = hosts.iter().try_for_each(|host| scheduler.cluster().check(*host));
            known.map_err(|error| ReplayError::Action { at_s, error })?;
        }

        actions.push((at_ms, action));
    }

    actions.sort_by_key(|(at_ms, _)| *at_ms);
    actions.reverse();

    Ok(actions)
}

impl<'a, D: FnMut(u64, Option<HostId>)> Run<'a, D> {
    fn new(
        arrivals: &'a Arrivals,
        scheduler: &'a mut Scheduler,
        options: &'a ReplayOptions,
        plan: &'a Plan,
        decided: D,
    ) -> Result<Self, ReplayError> {
        let first_ms = arrivals.vms.first().map_or(0, |vm| vm.at_ms);
        let last_ms = options.until_ms.map_or(u64::MAX, |until| first_ms.saturating_add(until));
        let vms = &arrivals.vms[..arrivals.vms.partition_point(|vm| vm.at_ms <= last_ms)];
        let file = &*arrivals.name;
        let strides = Strides::of(file, vms, options)?;

        // All are asked first: one that is too large may stand behind others of its batch that merely find no room.
        for vm in vms {
            let sound = scheduler.cluster().check_request(&strides.request(vm, 0));
            sound.map_err(|error| wrong(file, vm, error))?;
        }

        let last_ms = vms.last().map_or(first_ms, |vm| vm.at_ms);

        Ok(Self {
            actions: actions(plan, scheduler, first_ms, last_ms)?,
            moves: Moves::new(plan.moving),
            running: scheduler.has_admissions().then(BTreeMap::new),
            scheduler,
            options,
            file,
            vms,
            strides,
            first_ms,
            now_ms: first_ms,
            leaving: BTreeMap::new(),
            means: Means::default(),
            ended: Means::default(),
            outcome: Outcome { phases: vec![Phase::default()], ..Outcome::default() },
            decided,
        })
    }

    /// Until the last VM has come.
    fn play(&mut self) -> Result<(), ReplayError> {
        for together in self.vms.chunk_by(|a, b| a.at_ms == b.at_ms) {
            self.until(together[0].at_ms)?;
            let batches = if self.options.atomic_batches || self.running.is_some() {
                Batches::of(together)
            } else {
                Batches::default()
            };

            for copy in 0..u64::from(self.options.repeat) {
                if self.options.atomic_batches {
                    batches.all.iter().try_for_each(|batch| self.batch(batch, copy))?;
                } else if self.running.is_some() {
                    self.admitted(together, &batches, copy)?;
                } else {
                    together.iter().try_for_each(|vm| self.one(vm, copy))?;
                }
            }
        }

        Ok(())
    }

    /// Time goes on to this instant; what is due at it is done.
    fn until(&mut self, at_ms: u64) -> Result<(), ReplayError> {
        while let Some(next_ms) = self.next_ms().filter(|next_ms| *next_ms <= at_ms) {
            self.step(next_ms)?;
        }
        self.pass(at_ms);
        Ok(())
    }

    /// When something is due next.
    fn next_ms(&self) -> Option<u64> {
        let leave = self.leaving.first_key_value().map(|(at_ms, _)| *at_ms);
        let act = self.actions.last().map(|(at_ms, _)| *at_ms);
        // One that asks to be woken now is woken as soon as time goes on.
        let wake = self.scheduler.poll_timeout();
        let wake = wake.map(|at| at.as_nanos().div_ceil(1_000_000).max(self.now_ms + 1));
        [leave, self.moves.next_ms(), act, wake].into_iter().flatten().min()
    }

    fn pass(&mut self, at_ms: u64) {
        self.means.add(self.scheduler.cluster(), (at_ms - self.now_ms) as f64);
        self.now_ms = at_ms;
    }

    /// VMs leave, moves end, actions are taken, rules are woken; and what became free is used for moves.
    fn step(&mut self, at_ms: u64) -> Result<(), ReplayError> {
        self.pass(at_ms);
        let mut changed = self.leave();
        changed |= self.moves.finish(at_ms, self.scheduler);
        while let Some((_, action)) = self.actions.pop_if(|(due_ms, _)| *due_ms <= at_ms) {
            self.act(action)?;
            changed = true;
        }
        let now = Instant::from_millis(at_ms);
        if self.scheduler.poll_timeout().is_some_and(|due| due <= now) {
            self.scheduler.handle_timeout(now);
        }
        if changed {
            self.moves.start(at_ms, self.scheduler);
        }
        Ok(())
    }

    /// Everybody leaves whose time is now.
    fn leave(&mut self) -> bool {
        let now_ms = self.now_ms;
        let Some(entry) = self.leaving.first_entry().filter(|entry| *entry.key() <= now_ms) else {
            return false;
        };
        for vm in entry.remove() {
            let left = self.scheduler.remove(Instant::from_millis(now_ms), vm);
            debug_assert!(left.is_ok(), "{left:?}");
            self.moves.ended(now_ms, vm);

            if let (Some(running), Ok(left)) = (&mut self.running, left)
                && let Some(deployment) = left.vm.deployment
                && let Some(count) = running.get_mut(&deployment)
            {
                *count -= 1;
                if *count == 0 {
                    running.remove(&deployment);
                }
            }
        }

        true
    }

    fn act(&mut self, action: &Action) -> Result<(), ReplayError> {
        let at_ms = self.now_ms;
        let done = match action {
            Action::Drain(hosts) => self.moves.drain(at_ms, hosts, self.scheduler),
            Action::Open(hosts) => self.moves.open(hosts, self.scheduler),
            Action::Policy(policy) => {
                let (fits, ranking) = policy.rules(self.scheduler.cluster());
                self.scheduler.set_policy(fits, ranking);
                self.end_phase();
                let from_ms = at_ms - self.first_ms;
                self.outcome.phases.push(Phase { from_ms, ..Phase::default() });
                Ok(())
            }
        };
        done.map_err(|error| ReplayError::Action { at_s: (at_ms - self.first_ms) as f64 / 1e3, error })
    }

    fn end_phase(&mut self) {
        let means = core::mem::take(&mut self.means);
        self.ended.join(&means);
        if let Some(phase) = self.outcome.phases.last_mut() {
            (phase.empty_host_ratio, phase.packing_density) = means.ratios(self.scheduler.cluster());
        }
    }

    fn finish(mut self) -> Outcome {
        self.end_phase();
        let cluster = self.scheduler.cluster();
        let (empty_host_ratio, packing_density) = self.ended.ratios(cluster);
        let phases = &self.outcome.phases;
        Outcome {
            placed: phases.iter().map(|phase| phase.placed).sum(),
            failed: phases.iter().map(|phase| phase.failed).sum(),
            empty_host_ratio,
            packing_density,
            drained: self.moves.drained(self.scheduler),
            ..self.outcome
        }
    }

    fn one(&mut self, vm: &Arrival, copy: u64) -> Result<(), ReplayError> {
        let now = Instant::from_millis(vm.at_ms);
        match self.scheduler.place(now, &self.strides.request(vm, copy)) {
            Ok(host) => self.placed(vm, copy, host),
            Err(PlacementError::NoHost { .. }) => {
                let short = self.scheduler.cluster().shortage(&[vm.resources]);
                self.failed(&[vm], copy, short.into());
            }
            Err(error) => return Err(wrong(self.file, vm, error)),
        }
        Ok(())
    }

    /// One VM after the other, once their batch was let in.
    fn admitted(
        &mut self,
        together: &[Arrival],
        batches: &Batches<'_>,
        copy: u64,
    ) -> Result<(), ReplayError> {
        let mut verdicts = vec![None; batches.all.len()];
        for vm in together {
            let place = batches.places[&vm.batch];
            let admitted = match verdicts[place] {
                Some(admitted) => admitted,
                None => self.admit(&self.requests(&batches.all[place], copy)),
            };

            verdicts[place] = Some(admitted);

            if admitted {
                self.one(vm, copy)?;
            } else {
                self.failed(&[vm], copy, Reason::Admission);
            }
        }

        Ok(())
    }

    fn requests(&self, batch: &[&Arrival], copy: u64) -> Vec<VmRequest> {
        batch.iter().map(|vm| self.strides.request(vm, copy)).collect()
    }

    /// Whether a batch may come.
    fn admit(&self, requests: &[VmRequest]) -> bool {
        let now = Instant::from_millis(self.now_ms);
        let deployment = requests.first().and_then(|vm| vm.deployment);
        let runs = |deployment: &DeploymentId| {
            self.running.as_ref().is_some_and(|running| running.contains_key(deployment))
        };
        let wanted = match deployment.filter(runs) {
            Some(deployment) => AdmissionRequest::ScaleOut(deployment, requests),
            None => AdmissionRequest::Deployment(requests),
        };
        self.scheduler.admit(now, &wanted).is_ok()
    }

    fn batch(&mut self, batch: &[&Arrival], copy: u64) -> Result<(), ReplayError> {
        let now = Instant::from_millis(batch[0].at_ms);
        let requests = self.requests(batch, copy);
        if !self.admit(&requests) {
            self.failed(batch, copy, Reason::Admission);
            return Ok(());
        }
        match self.scheduler.place_all(now, &requests) {
            Ok(hosts) => batch.iter().zip(hosts).for_each(|(vm, h)| self.placed(vm, copy, h)),
            Err(PlacementError::NoHost { .. }) => {
                let asked: Vec<Resources> = batch.iter().map(|vm| vm.resources).collect();
                self.failed(batch, copy, self.scheduler.cluster().shortage(&asked).into());
            }
            Err(error) => return Err(wrong(self.file, batch[0], error)),
        }
        Ok(())
    }

    fn placed(&mut self, vm: &Arrival, copy: u64, host: HostId) {
        let id = self.strides.id(vm, copy);
        if let Some(phase) = self.outcome.phases.last_mut() {
            phase.placed += 1;
        }
        if let Some(running) = &mut self.running {
            *running.entry(self.strides.deployment(vm, copy)).or_default() += 1;
        }
        if let Some(lifetime) = vm.lifetime_ms {
            self.leaving.entry(vm.at_ms + lifetime).or_default().push(VmKey(id));
        }
        (self.decided)(id, Some(host));
    }

    fn failed(&mut self, vms: &[&Arrival], copy: u64, reason: Reason) {
        let count = vms.len() as u64;
        *self.outcome.failures.entry(reason).or_default() += count;
        if let Some(phase) = self.outcome.phases.last_mut() {
            phase.failed += count;
        }
        for vm in vms {
            (self.decided)(self.strides.id(vm, copy), None);
        }
    }
}

fn wrong(file: &str, vm: &Arrival, error: PlacementError) -> ReplayError {
    ReplayError::Record { file: file.to_owned(), line: vm.line, error }
}
