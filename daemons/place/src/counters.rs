//! What was asked and answered, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use ballast_predict::Prediction;
use ballast_types::VmClass;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::fault::REASONS;

/// A histogram of seconds: fifteen buckets, the first up to `FIRST_US` microseconds, each twice the one before.
pub(crate) struct Latency<const FIRST_US: u32>(pub(crate) Histogram);

impl<const FIRST_US: u32> Default for Latency<FIRST_US> {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(f64::from(FIRST_US) / 1e6, 2.0, 15)))
    }
}

/// Answers that were not sure enough to act on, so that the careful one stands; and those that were.
pub(crate) type Sure = [AtomicU64; 2];

/// The counts of one daemon, since its start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    /// Requests refused for what was in them.
    pub(crate) refused: AtomicU64,
    /// VMs said to be user-facing, and not.
    pub(crate) classes: [Sure; 2],
    /// VMs by the bucket that was said of their P95.
    pub(crate) buckets: [Sure; 4],
    /// VMs answered for without a model.
    pub(crate) unmodelled: AtomicU64,
    /// VMs whose class or P95 was not sure enough to act on.
    pub(crate) conservative: AtomicU64,
    /// From a whole request to its answer.
    pub(crate) latency: Latency<50>,
    /// The same of `/v1/score`.
    pub(crate) score_latency: Latency<50>,
    /// The same of `/v1/place`, on disk included.
    pub(crate) place_latency: Latency<50>,
    pub(crate) placed: AtomicU64,
    pub(crate) removed: AtomicU64,
    /// New deployments that were admitted, refused, and in shadow mode would have been.
    pub(crate) admissions: [AtomicU64; 3],
    /// Scale-outs that were placed, and that found no place.
    pub(crate) scale_outs: [AtomicU64; 2],
    /// What was refused about hosts and VMs, by [`REASONS`].
    pub(crate) refusals: [AtomicU64; REASONS.len()],
}

impl Counters {
    /// A VM was answered for, `by_model` or without one.
    pub(super) fn predicted(&self, by_model: bool, said: &Prediction) {
        if !(said.class_confident && said.p95_confident) {
            count_more(&self.conservative, 1);
        }
        if by_model {
            let class = usize::from(said.class == VmClass::NonUserFacing);
            count_more(&self.classes[class][usize::from(said.class_confident)], 1);
            count_more(&self.buckets[said.p95_bucket.index()][usize::from(said.p95_confident)], 1);
        } else {
            count_more(&self.unmodelled, 1);
        }
    }

    pub(crate) fn predictions(&self) -> u64 {
        self.classes.iter().flatten().map(count).sum::<u64>() + count(&self.unmodelled)
    }
}

pub(crate) fn count_more(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
