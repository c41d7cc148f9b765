//! A recorded trace as a source, and copies of it.

use ballast_placement::{DeploymentId, ExpectedEnd, VmKey, VmRequest};
use ballast_types::Instant;
use std::collections::BTreeMap;

use crate::cluster::arrivals::{Arrival, Arrivals, ArrivalsError, unique};
use crate::cluster::engine::{EngineError, RequestedVm, Source};
use crate::cluster::noise::{Noise, NoisyCurves};

/// How often a trace is laid over itself, each time with ids of its own. At equal times the first copy comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    count: u64,
    /// The first ids that no VM and no batch of the trace has.
    vm_stride: u64,
    batch_stride: u64,
}

impl Copies {
    pub const ONE: Self = Self { count: 1, vm_stride: 0, batch_stride: 0 };

    /// So many copies of what comes within a window; all of it is read, and nothing is held. The last copy's largest ids
    /// must still be ids.
    pub fn of(arrivals: Arrivals<'_>, until_ms: Option<u64>, repeat: u32) -> Result<Self, EngineError> {
        let file = arrivals.name().to_owned();
        let (mut last_ms, mut vm, mut batch) = (None, 0, 0);
        for arrival in arrivals {
            let arrival = arrival?;
            if arrival.at_ms > *last_ms.get_or_insert_with(|| end_ms(&arrival, until_ms)) {
                break;
            }
            (vm, batch) = (arrival.id.max(vm), arrival.batch.max(batch));
        }

        let stride = |column, largest: u64| {
            let stride = largest.checked_add(1);
            let fits = stride.and_then(|stride| stride.checked_mul(u64::from(repeat)));
            let ids = || EngineError::Ids { file: file.clone(), repeat, column, largest };
            fits.and(stride).ok_or_else(ids)
        };

        Ok(Self {
            count: u64::from(repeat.max(1)),
            vm_stride: stride("vm_id", vm)?,
            batch_stride: stride("batch_id", batch)?,
        })
    }

    fn request(self, vm: &Arrival, copy: u64) -> RequestedVm {
        let id = VmKey(vm.id + copy * self.vm_stride);
        let deployment = Some(DeploymentId(vm.batch + copy * self.batch_stride));
        RequestedVm {
            request: VmRequest { deployment, ..VmRequest::new(id, vm.resources) },
            lifetime_ms: vm.lifetime_ms,
            index: vm.line,
        }
    }
}

/// Says what is expected of a VM's end, which came with so many others of its batch.
pub type Foresight<'r> = Box<dyn Fn(&Arrival, u32) -> ExpectedEnd + 'r>;

/// What a scheduler is told of the ends of a trace's VMs. A VM that the trace ends before counts as living for 28 days.
#[derive(Default)]
pub enum LifetimeSource<'r> {
    /// Nothing.
    #[default]
    Unknown,
    /// The truth.
    Oracle,
    /// What a noisy predictor says; VMs that outlive that are predicted anew.
    Noisy(Noise),
    /// What a noisy predictor's word is worth to whoever knows it.
    Believed(NoisyCurves),
    Foreseen(Foresight<'r>),
}

/// A VM that lives longer than its trace is told to live so long.
const CENSORED_MS: u64 = 28 * 24 * 3_600_000;

impl LifetimeSource<'_> {
    /// `id` is that of the VM's copy.
    fn end(&self, vm: &Arrival, id: VmKey, batch_vms: u32) -> Option<ExpectedEnd> {
        let lifetime_ms = vm.lifetime_ms.unwrap_or(CENSORED_MS);
        Some(match self {
            Self::Unknown => return None,
            Self::Oracle => ExpectedEnd::At(Instant::from_millis(vm.at_ms.saturating_add(lifetime_ms))),
            Self::Noisy(noise) => noise.end(id.0, 0, vm.at_ms, lifetime_ms),
            Self::Believed(curves) => curves.end(id.0, lifetime_ms as f64 / 1e3),
            Self::Foreseen(end) => end(vm, batch_vms),
        })
    }

    /// Who predicts VMs anew that outlive what was predicted.
    pub(super) fn noise(&self) -> Option<Noise> {
        if let Self::Noisy(noise) = self { Some(*noise) } else { None }
    }
}

/// When the last VM may come.
fn end_ms(first: &Arrival, until_ms: Option<u64>) -> u64 {
    until_ms.map_or(u64::MAX, |until_ms| first.at_ms.saturating_add(until_ms))
}

/// A recorded trace, read as it is played: the VMs of one instant are held. It knows neither class nor utilisation of its VMs.
pub struct Recorded<'r> {
    arrivals: Arrivals<'r>,
    copies: Copies,
    lifetimes: LifetimeSource<'r>,
    first_ms: u64,
    end_ms: u64,
    /// The first VM of the next instant.
    next: Option<Arrival>,
    /// The VMs of this instant, and the copy of them that comes next.
    together: Vec<Arrival>,
    /// How many VMs each of their batches has, where somebody asks for that.
    batches: BTreeMap<u64, u32>,
    copy: u64,
}

impl<'r> Recorded<'r> {
    /// VMs come for so long after the first arrival, inclusive, in milliseconds; all where `None`.
    pub fn new(
        mut arrivals: Arrivals<'r>,
        until_ms: Option<u64>,
        copies: Copies,
    ) -> Result<Self, ArrivalsError> {
        let first = arrivals.next().transpose()?;
        let first = first.ok_or_else(|| ArrivalsError::Empty { file: arrivals.name().to_owned() })?;
        Ok(Self {
            arrivals,
            copies,
            lifetimes: LifetimeSource::Unknown,
            first_ms: first.at_ms,
            end_ms: end_ms(&first, until_ms),
            next: Some(first),
            together: Vec::new(),
            batches: BTreeMap::new(),
            copy: copies.count,
        })
    }

    /// The same, of which the scheduler is told when VMs end.
    #[must_use]
    pub fn with_lifetimes(self, lifetimes: LifetimeSource<'r>) -> Self {
        Self { lifetimes, ..self }
    }

    pub(super) fn noise(&self) -> Option<Noise> {
        self.lifetimes.noise()
    }
    pub fn first_ms(&self) -> u64 {
        self.first_ms
    }

    /// Goes to the next instant; there is none after the last.
    fn advance(&mut self) -> Result<Option<()>, ArrivalsError> {
        let Some(first) = self.next.take() else { return Ok(None) };

        self.together.clear();
        self.together.push(first);
        while let Some(vm) = self.arrivals.next().transpose()? {
            if vm.at_ms != first.at_ms {
                self.next = Some(vm).filter(|vm| vm.at_ms <= self.end_ms);
                break;
            }
            self.together.push(vm);
        }

        unique(self.arrivals.name(), &self.together)?;
        self.copy = 0;
        self.batches.clear();
        if matches!(self.lifetimes, LifetimeSource::Foreseen(_)) {
            self.together.iter().for_each(|vm| *self.batches.entry(vm.batch).or_default() += 1);
        }
        Ok(Some(()))
    }
}

impl Source for Recorded<'_> {
    fn name(&self) -> &str {
        self.arrivals.name()
    }

    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError> {
        group.clear();
        if self.copy == self.copies.count && self.advance()?.is_none() {
            return Ok(None);
        }
        group.extend(self.together.iter().map(|vm| {
            let mut requested = self.copies.request(vm, self.copy);
            let batch_vms = self.batches.get(&vm.batch).copied().unwrap_or(1);
            requested.request.end = self.lifetimes.end(vm, requested.request.id, batch_vms);
            requested
        }));
        self.copy += 1;
        Ok(self.together.first().map(|vm| vm.at_ms))
    }
}
