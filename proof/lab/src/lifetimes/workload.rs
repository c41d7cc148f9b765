//! The VMs of a pool as they come, and the source that an engine plays: who is there at the start, and what is foreseen
//! of each.

use ballast_placement::{DeploymentId, ExpectedEnd, Resources, VmKey, VmRequest};
use ballast_predict::lifetime::{LifetimeFeatures, LifetimeModel};
use ballast_sim::cluster::{EngineError, Noise, NoisyCurves, RequestedVm, Source};
use ballast_types::Instant;

pub(super) const DAY_MS: u64 = 86_400_000;
/// No VM lives longer: 28 days.
pub(super) const LONGEST_MS: u64 = 28 * DAY_MS;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolVm {
    pub id: u64,
    /// Which VMs came with it, and how many these are together.
    pub batch: u64,
    pub batch_vms: u32,
    pub resources: Resources,
    pub kind: Option<u32>,
    /// When it starts by the calendar that models read.
    pub start_s: i64,
    pub lifetime_ms: u64,
}

impl PoolVm {
    pub fn features(&self) -> LifetimeFeatures {
        LifetimeFeatures {
            cores: Some(self.resources.cores.cores()),
            memory_gb: Some(self.resources.memory.gb()),
            vm_type: self.kind.map(|kind| format!("kind-{kind}")),
            batch_vms: Some(self.batch_vms),
            ..LifetimeFeatures::default()
        }
    }
}

/// Batches of VMs in the order of time.
pub trait Workload {
    /// Puts the next batch in place of what is there, and says when it comes, in milliseconds.
    fn next_batch(&mut self, batch: &mut Vec<PoolVm>) -> Option<u64>;
}

/// What a scheduler learns of the ends of VMs.
#[derive(Clone, Copy)]
pub enum Foresight<'a> {
    Nothing,
    Oracle,
    Noisy(Noise),
    /// What that word is worth to who knows how often the predictor is right.
    Believed(&'a NoisyCurves),
    Model(&'a LifetimeModel),
}

impl Foresight<'_> {
    fn end(&self, at_ms: u64, vm: &PoolVm) -> Option<ExpectedEnd> {
        Some(match self {
            Self::Nothing => return None,
            Self::Oracle => ExpectedEnd::At(Instant::from_millis(at_ms.saturating_add(vm.lifetime_ms))),
            Self::Noisy(noise) => noise.end(vm.id, 0, at_ms, vm.lifetime_ms),
            Self::Believed(curves) => curves.end(vm.id, vm.lifetime_ms as f64 / 1e3),
            Self::Model(model) => ExpectedEnd::Curve(model.curve(&vm.features(), vm.start_s)),
        })
    }
}

/// A workload as a source. Of what comes before `from_ms` only VMs come that are still there then, each at its time.
pub struct PoolSource<'a, W> {
    name: &'a str,
    workload: W,
    foresight: Foresight<'a>,
    from_ms: u64,
    end_ms: u64,
    batch: Vec<PoolVm>,
    is_over: bool,
}

impl<'a, W: Workload> PoolSource<'a, W> {
    pub fn new(name: &'a str, workload: W, foresight: Foresight<'a>, from_ms: u64, end_ms: u64) -> Self {
        Self { name, workload, foresight, from_ms, end_ms, batch: Vec::new(), is_over: false }
    }

    /// The next batch of which somebody comes.
    fn advance(&mut self) -> Option<u64> {
        loop {
            let at_ms = self.workload.next_batch(&mut self.batch).filter(|at_ms| *at_ms < self.end_ms)?;
            if at_ms < self.from_ms {
                self.batch.retain(|vm| at_ms + vm.lifetime_ms > self.from_ms);
            }
            if !self.batch.is_empty() {
                return Some(at_ms);
            }
        }
    }
}

impl<W: Workload> Source for PoolSource<'_, W> {
    fn name(&self) -> &str {
        self.name
    }

    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError> {
        group.clear();
        if self.is_over {
            return Ok(None);
        }
        let Some(at_ms) = self.advance() else {
            // Time goes on to the end.
            self.is_over = true;
            return Ok(Some(self.end_ms));
        };
        group.extend(self.batch.iter().map(|vm| RequestedVm {
            request: VmRequest {
                deployment: Some(DeploymentId(vm.batch)),
                end: self.foresight.end(at_ms, vm),
                ..VmRequest::new(VmKey(vm.id), vm.resources)
            },
            lifetime_ms: Some(vm.lifetime_ms),
            index: vm.id,
        }));
        Ok(Some(at_ms))
    }
}
