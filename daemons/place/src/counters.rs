//! What was asked and answered, counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ballast_predict::Prediction;
use ballast_types::VmClass;
use prometheus_client::metrics::histogram::Histogram;

use super::fault::REASONS;

/// From 50 µs to 0.8 s, each twice the one before.
const LATENCIES_S: [f64; 15] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.051_2,
    0.102_4, 0.204_8, 0.409_6, 0.819_2,
];

/// Answers that were not sure enough to act on, so that the careful one stands; and those that were.
pub(crate) type Sure = [AtomicU64; 2];

/// The counts of one daemon, since its start.
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
    pub(crate) latency: Histogram,
    /// The same of `/v1/score`.
    pub(crate) score_latency: Histogram,
    /// The same of `/v1/place`, on disk included.
    pub(crate) place_latency: Histogram,
    pub(crate) placed: AtomicU64,
    pub(crate) removed: AtomicU64,
    /// New deployments that were admitted, refused, and in shadow mode would have been.
    pub(crate) admissions: [AtomicU64; 3],
    /// Scale-outs that were placed, and that found no place.
    pub(crate) scale_outs: [AtomicU64; 2],
    /// What was refused about hosts and VMs, by [`REASONS`].
    pub(crate) refusals: [AtomicU64; REASONS.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            requests: AtomicU64::default(),
            refused: AtomicU64::default(),
            classes: Default::default(),
            buckets: Default::default(),
            unmodelled: AtomicU64::default(),
            conservative: AtomicU64::default(),
            latency: Histogram::new(LATENCIES_S),
            score_latency: Histogram::new(LATENCIES_S),
            place_latency: Histogram::new(LATENCIES_S),
            placed: AtomicU64::default(),
            removed: AtomicU64::default(),
            admissions: Default::default(),
            scale_outs: Default::default(),
            refusals: Default::default(),
        }
    }
}

impl Counters {
    pub(super) fn answered(&self, took: Duration) {
        add(&self.requests);
        self.latency.observe(took.as_secs_f64());
    }

    /// A VM was answered for, `by_model` or without one.
    pub(super) fn predicted(&self, by_model: bool, said: &Prediction) {
        if !(said.class_confident && said.p95_confident) {
            add(&self.conservative);
        }
        if by_model {
            let class = usize::from(said.class == VmClass::NonUserFacing);
            add(&self.classes[class][usize::from(said.class_confident)]);
            add(&self.buckets[said.p95_bucket.index()][usize::from(said.p95_confident)]);
        } else {
            add(&self.unmodelled);
        }
    }

    pub(super) fn refused(&self) {
        add(&self.refused);
    }

    pub(super) fn placed(&self, vms: usize) {
        self.placed.fetch_add(vms as u64, Ordering::Relaxed);
    }

    /// Whether so many new deployments may come was decided.
    pub(super) fn admission(&self, count: u64, admit: bool, would_refuse: bool) {
        let outcome = if would_refuse { 2 } else { usize::from(!admit) };
        self.admissions[outcome].fetch_add(count, Ordering::Relaxed);
    }

    /// So many deployments that were there asked for more.
    pub(super) fn scaled_out(&self, count: u64, placed: bool) {
        self.scale_outs[usize::from(!placed)].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn removed(&self) {
        add(&self.removed);
    }

    /// A question or change about hosts and VMs was refused; `reason` is a place in [`REASONS`].
    pub(super) fn refused_for(&self, reason: usize) {
        self.refusals.get(reason).iter().for_each(|count| add(count));
    }

    /// VMs answered for.
    pub(crate) fn predictions(&self) -> u64 {
        self.classes.iter().flatten().map(count).sum::<u64>() + count(&self.unmodelled)
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
