//! One run of a cluster in virtual time: a [`Source`] says which VMs come, an [`Operator`] acts, [`Probe`]s watch.
//!
//! At one instant VMs leave, then rules are woken, then the operator acts, and then others come. What is held is that of the
//! VMs that live, and of one group that comes.

mod error;
mod leaving;
mod operator;
mod outlived;
mod probe;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ballast_placement::{
    AdmissionRequest, Cluster, DeploymentId, HostId, PlacementError, Resources, Scheduler, VmKey, VmRequest,
};
use ballast_types::Instant;

use super::noise::Noise;

pub use error::EngineError;
use leaving::Leaving;
pub use operator::Operator;
use outlived::Outlived;
pub use probe::{Probe, Reason};
pub use source::{RequestedVm, Source};

/// How the VMs of a deployment come that are asked for at one instant. VMs without a deployment are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// One by one in the order of the source. Where the scheduler has admissions, they decide on all VMs of a deployment when
    /// the first of them is due.
    Split,
    /// All or none, taken together where the first of them stands.
    Atomic,
}

pub struct Engine<'a, 'p, O> {
    pub(super) scheduler: &'a mut Scheduler,
    pub(super) operator: &'a mut O,
    probes: &'a mut [&'p mut dyn Probe],
    batches: Batches,
    /// `None` before the first group.
    now_ms: Option<u64>,
    leaving: Leaving,
    outlived: Option<Outlived>,
    /// VMs of every deployment that runs; kept where somebody decides on admission.
    running: Option<BTreeMap<DeploymentId, u32>>,
}

type Fatal<'g> = (&'g RequestedVm, PlacementError);

impl<'a, 'p, O: Operator> Engine<'a, 'p, O> {
    pub fn new(
        scheduler: &'a mut Scheduler,
        operator: &'a mut O,
        probes: &'a mut [&'p mut dyn Probe],
        batches: Batches,
    ) -> Self {
        let running = scheduler.has_admissions().then(BTreeMap::new);
        let leaving = Leaving::default();
        Self { scheduler, operator, probes, batches, now_ms: None, leaving, outlived: None, running }
    }

    /// VMs that outlive what this predictor said of them are predicted anew.
    #[must_use]
    pub fn with_noise(self, noise: Option<Noise>) -> Self {
        Self { outlived: noise.map(Outlived::new), ..self }
    }

    /// Plays all that the source has, and answers its last instant: nothing is played after it.
    ///
    /// The error names a VM that no host could ever hold, or that is there already, when its turn comes; and what the
    /// operator cannot do.
    pub fn play(&mut self, source: &mut impl Source) -> Result<Option<u64>, EngineError> {
        let mut group = Vec::new();
        while let Some(at_ms) = source.next_group(&mut group)? {
            self.advance(at_ms)?;
            self.decide(at_ms, &group).map_err(|(vm, error)| EngineError::Vm {
                name: source.name().to_owned(),
                index: vm.index,
                error,
            })?;
        }
        Ok(self.now_ms)
    }

    /// Time goes on to this instant; what is due up to it is done.
    pub(super) fn advance(&mut self, at_ms: u64) -> Result<(), EngineError> {
        self.now_ms.get_or_insert(at_ms);
        while let Some(next_ms) = self.next_ms().filter(|next_ms| *next_ms <= at_ms) {
            self.pass(next_ms);
            self.step(next_ms)?;
        }
        self.pass(at_ms);
        Ok(())
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        // One that asks to be woken now is woken as soon as time goes on.
        let wake = self.scheduler.poll_timeout();
        let wake = wake.map(|at| at.as_nanos().div_ceil(1_000_000).max(self.now_ms.unwrap_or(0) + 1));
        let outlived = self.outlived.as_ref().and_then(Outlived::next_ms);
        [self.leaving.next_ms(), self.operator.next_ms(), outlived, wake].into_iter().flatten().min()
    }

    fn pass(&mut self, to_ms: u64) {
        let from_ms = *self.now_ms.get_or_insert(to_ms);
        if from_ms < to_ms {
            self.probes.iter_mut().for_each(|probe| probe.pass(self.scheduler.cluster(), from_ms, to_ms));
            self.now_ms = Some(to_ms);
        }
    }

    /// VMs leave, others are predicted anew, rules are woken, the operator acts.
    fn step(&mut self, at_ms: u64) -> Result<(), EngineError> {
        let now = Instant::from_millis(at_ms);
        let mut freed = false;
        while let Some(vm) = self.leaving.pop(at_ms) {
            freed = true;
            self.end(now, vm);
        }
        if let Some(outlived) = &mut self.outlived {
            outlived.predict(at_ms, self.scheduler);
        }
        if self.scheduler.poll_timeout().is_some_and(|due| due <= now) {
            self.scheduler.handle_timeout(now);
        }

        let Self { probes, operator, scheduler, .. } = self;
        let mut phase = |cluster: &Cluster| probes.iter_mut().for_each(|probe| probe.phase(cluster, at_ms));
        operator.act(at_ms, freed, scheduler, &mut phase)
    }

    fn end(&mut self, now: Instant, vm: VmKey) {
        let removed = self.scheduler.remove(now, vm);
        debug_assert!(removed.is_ok(), "{removed:?}");
        let Ok(resident) = removed else { return };

        let at_ms = now.as_millis();
        self.operator.ended(at_ms, vm);
        self.probes.iter_mut().for_each(|probe| probe.ended(self.scheduler.cluster(), at_ms, &resident));

        if let Some(running) = &mut self.running
            && let Some(deployment) = resident.vm.deployment
            && let Some(count) = running.get_mut(&deployment)
        {
            *count -= 1;
            if *count == 0 {
                running.remove(&deployment);
            }
        }
    }

    /// A group comes, or what of it can.
    fn decide<'g>(&mut self, at_ms: u64, group: &'g [RequestedVm]) -> Result<(), Fatal<'g>> {
        match self.batches {
            Batches::Atomic => by_deployment(group).iter().try_for_each(|batch| self.all(at_ms, batch)),
            Batches::Split if self.running.is_some() => self.admitted(at_ms, group),
            Batches::Split => group.iter().try_for_each(|vm| self.one(at_ms, vm)),
        }
    }

    fn one<'g>(&mut self, at_ms: u64, vm: &'g RequestedVm) -> Result<(), Fatal<'g>> {
        match self.scheduler.place(Instant::from_millis(at_ms), &vm.request) {
            Ok(host) => self.placed(at_ms, vm, host),
            Err(PlacementError::NoHost { .. }) => self.short(&[vm]),
            Err(error) => return Err((vm, error)),
        }
        Ok(())
    }

    /// One VM after the other, once their deployment was let in.
    fn admitted<'g>(&mut self, at_ms: u64, group: &'g [RequestedVm]) -> Result<(), Fatal<'g>> {
        let batches = by_deployment(group);
        // The next deployment whose first VM is met is the next batch.
        let mut batches = batches.iter();
        let mut verdicts = BTreeMap::new();
        for vm in group {
            let deployment = vm.request.deployment;
            let admitted = match verdicts.get(&deployment) {
                Some(admitted) => *admitted,
                None => {
                    let requests = self.requests(batches.next().map_or(&[], Vec::as_slice))?;
                    *verdicts.entry(deployment).or_insert(self.admit(at_ms, &requests))
                }
            };

            if admitted {
                self.one(at_ms, vm)?;
            } else {
                self.failed(&[vm], Reason::Admission);
            }
        }

        Ok(())
    }

    fn all<'g>(&mut self, at_ms: u64, batch: &[&'g RequestedVm]) -> Result<(), Fatal<'g>> {
        let requests = self.requests(batch)?;
        if !self.admit(at_ms, &requests) {
            self.failed(batch, Reason::Admission);
            return Ok(());
        }
        match self.scheduler.place_all(Instant::from_millis(at_ms), &requests) {
            Ok(hosts) => batch.iter().zip(hosts).for_each(|(vm, host)| self.placed(at_ms, vm, host)),
            Err(PlacementError::NoHost { .. }) => self.short(batch),
            Err(error) => return Err((batch[0], error)),
        }
        Ok(())
    }

    /// What a batch asks for. Each VM is checked: one that is too large may stand behind others that merely find no room.
    fn requests<'g>(&self, batch: &[&'g RequestedVm]) -> Result<Vec<VmRequest>, Fatal<'g>> {
        let check = |vm: &&'g RequestedVm| {
            let checked = self.scheduler.cluster().check_request(&vm.request);
            checked.map(|()| vm.request).map_err(|error| (*vm, error))
        };
        batch.iter().map(check).collect()
    }

    /// Whether a batch may come; one of which VMs are running scales out.
    fn admit(&self, at_ms: u64, requests: &[VmRequest]) -> bool {
        let Some(running) = &self.running else { return true };
        let deployment = requests.first().and_then(|vm| vm.deployment);
        let request = match deployment.filter(|deployment| running.contains_key(deployment)) {
            Some(deployment) => AdmissionRequest::ScaleOut(deployment, requests),
            None => AdmissionRequest::Deployment(requests),
        };
        self.scheduler.admit(Instant::from_millis(at_ms), &request).is_ok()
    }

    fn placed(&mut self, at_ms: u64, vm: &RequestedVm, host: HostId) {
        if let (Some(running), Some(deployment)) = (&mut self.running, vm.request.deployment) {
            *running.entry(deployment).or_default() += 1;
        }
        let leaves_ms = vm.lifetime_ms.map(|lifetime_ms| at_ms.saturating_add(lifetime_ms));
        if let Some(leaves_ms) = leaves_ms {
            self.leaving.push(leaves_ms, vm.request.id);
        }
        if let Some(outlived) = &mut self.outlived {
            outlived.expect(vm.request.id, vm.request.end, leaves_ms.unwrap_or(u64::MAX), 0);
        }
        self.probes.iter_mut().for_each(|probe| probe.placed(self.scheduler.cluster(), at_ms, vm, host));
    }

    /// There is too little room.
    fn short(&mut self, vms: &[&RequestedVm]) {
        let sizes: Vec<Resources> = vms.iter().map(|vm| vm.request.resources).collect();
        self.failed(vms, self.scheduler.cluster().shortage(&sizes).into());
    }

    fn failed(&mut self, vms: &[&RequestedVm], reason: Reason) {
        self.probes.iter_mut().for_each(|probe| probe.failed(vms, reason));
    }
}

/// The VMs of every deployment, in the order of their first VMs.
fn by_deployment(group: &[RequestedVm]) -> Vec<Vec<&RequestedVm>> {
    let mut batches: Vec<Vec<&RequestedVm>> = Vec::new();
    let mut indices = BTreeMap::new();
    for vm in group {
        let index = *indices.entry(vm.request.deployment).or_insert(batches.len());
        if index == batches.len() {
            batches.push(Vec::new());
        }
        batches[index].push(vm);
    }
    batches
}
