//! One VM at work on its cores.

use ballast_types::VmClass;

use super::bandwidth::{Bandwidth, CpuQuota, CpuStops};
use super::truth::ByCause;
use super::{Load, VmLoad};
use crate::load::{BATCH_BOUND, Batch, Cursor, Queue, USER_FACING_BOUND};
use crate::rng::Stream;

/// How fast a core runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// As a share of its highest frequency.
    pub(super) share: f64,
    /// What is left of its dynamic power: `share^a`.
    pub(super) scale: f64,
}

impl Speed {
    pub(super) const FULL: Self = Self { share: 1.0, scale: 1.0 };

    /// At this share, with the power model's exponent.
    pub(super) fn new(share: f64, exponent: f64) -> Self {
        if share < 1.0 { Self { share, scale: libm::pow(share, exponent) } } else { Self::FULL }
    }

    pub(super) fn under(self, ceiling: Self) -> Self {
        if self.share <= ceiling.share { self } else { ceiling }
    }
}

/// Cores next to each other in a list, on one package and with the same cap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) package: usize,
    pub(super) cap: Speed,
    pub(super) cores: u32,
}

impl Run {
    /// Adds `each` for every core, one by one: a sum is the same to the bit, however cores are grouped.
    pub(super) fn plus(&self, sum: f64, each: f64) -> f64 {
        (0..self.cores).fold(sum, |sum, _| sum + each)
    }
}

/// Cores of one VM that are on one package and run alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) package: usize,
    pub(super) share: f64,
    pub(super) cores: f64,
    /// Utilisation per unit of demand.
    pub(super) stretch: f64,
    /// Watts at full utilisation.
    pub(super) watts: f64,
    /// Work done per second of CPU time.
    pub(super) progress: f64,
}

impl Group {
    /// The utilisation of each core at this demand.
    pub(super) fn wanted(&self, demand: f64) -> f64 {
        (demand * self.stretch).min(1.0)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Work {
    Queue(Box<Queue>),
    Batch(Batch),
    Series(Cursor),
    Nothing,
}

#[derive(Clone, Debug)]
pub(super) struct SimVm {
    pub(super) user_facing: bool,
    /// Indices into the server's cores.
    pub(super) cores: Vec<usize>,
    /// How many CPUs it has, if it shares these cores; and which of the server's pools they are.
    pub(super) vcpus: Option<u16>,
    pub(super) pool: Option<usize>,
    pub(super) work: Work,
    pub(super) bound: f64,
    pub(super) runs: Vec<Run>,
    pub(super) groups: Vec<Group>,
    pub(super) shares: f64,
    /// No hardware held one of its cores when the groups were found.
    pub(super) caps_hold: bool,
    /// CPU seconds per second in the current step.
    pub(super) busy: f64,
    /// CPU seconds at the start of the current window, and the mean share of the last one.
    pub(super) window_start_s: f64,
    pub(super) window_mean: f64,
    /// Cores held down, by cause.
    pub(super) held: ByCause,
    pub(super) quota: Option<CpuQuota>,
    pub(super) bandwidth: Option<Bandwidth>,
    pub(super) stops: CpuStops,
}

impl SimVm {
    /// At work on `cores` (indices into the server's), with its own stream of chance.
    pub(super) fn new(spec: &VmLoad, cores: Vec<usize>, rng: Stream) -> Self {
        let user_facing = spec.class == VmClass::UserFacing;
        let class_bound = if user_facing { USER_FACING_BOUND } else { BATCH_BOUND };
        let cpus = spec.vcpus.map_or(cores.len(), usize::from);
        let (work, bound) = match &spec.load {
            Load::Queue(queue) => {
                (Work::Queue(Box::new(Queue::new(queue, cpus, rng))), queue.frequency_bound)
            }
            Load::Batch(batch) => (Work::Batch(Batch::new(batch)), batch.frequency_bound),
            Load::Profile(profile) => (Work::Series(Cursor::new(profile.clone())), class_bound),
        };

        Self {
            user_facing,
            cores,
            vcpus: spec.vcpus,
            pool: None,
            work,
            bound,
            runs: Vec::new(),
            groups: Vec::new(),
            shares: 0.0,
            caps_hold: false,
            busy: 0.0,
            window_start_s: 0.0,
            window_mean: 0.0,
            held: ByCause::default(),
            quota: None,
            bandwidth: None,
            stops: CpuStops::default(),
        }
    }

    /// CPUs of its own for each of its cores: 1, unless it shares them.
    pub(super) fn width(&self) -> f64 {
        self.vcpus.map_or(1.0, |cpus| f64::from(cpus) / self.cores.len().max(1) as f64)
    }

    /// Core-seconds that its quota stopped in the current step.
    pub(super) fn stopped_s(&self) -> f64 {
        self.bandwidth.map_or(0.0, |bandwidth| bandwidth.stopped_s)
    }

    /// Its quota as a share of all that its cores could do.
    pub(super) fn quota_share(&self) -> f64 {
        let cores = self.cores.len().max(1) as f64;
        self.quota.map_or(1.0, |quota| (quota.cores / cores).clamp(0.0, 1.0))
    }
}
