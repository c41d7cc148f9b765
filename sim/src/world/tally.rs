//! What a run adds up to, and the curve of it.

use core::time::Duration;

use serde::Serialize;

use crate::plant::STEP;

/// One step of the plant, as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) power_w: f64,
    pub(crate) limit_w: f64,
    pub(crate) batch_ratio: f64,
    pub(crate) user_facing_ratio: f64,
    pub(crate) emergency: bool,
    pub(crate) out_of_band: bool,
    pub(crate) server_limit: bool,
}

/// A stretch of time in the curve. Extremes are kept, so that no peak is lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// Its start, in seconds of the run.
    pub at_s: f64,
    pub power_min_w: f64,
    pub power_max_w: f64,
    /// Lowest limit: of the budget and what the surviving supplies can carry.
    pub limit_w: f64,
    /// Lowest mean frequency of the batch VMs' cores, as a share of the highest.
    pub batch_ratio_min: f64,
    /// The same of the user-facing VMs' cores.
    pub user_facing_ratio_min: f64,
}

/// Sums over the steps of a run.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    steps: u64,
    steps_per_bucket: u64,
    buckets: Vec<Bucket>,
    over_now: u64,
    pub(crate) over_limit_max: u64,
    pub(crate) batch_ratio_min: f64,
    emergency: u64,
    out_of_band: u64,
    server_limit: u64,
}

/// Steps of the plant in seconds.
pub(crate) fn seconds(steps: u64) -> f64 {
    steps as f64 * STEP.as_secs_f64()
}

impl Tally {
    /// For a run of `length`, with a curve of about `points` buckets; 0 for none.
    pub(crate) fn new(length: Duration, points: usize) -> Self {
        let steps = (length.as_nanos() / STEP.as_nanos()) as u64;
        let per_bucket = if points == 0 { u64::MAX } else { steps.div_ceil(points as u64).max(1) };
        Self {
            steps: 0,
            steps_per_bucket: per_bucket,
            buckets: Vec::with_capacity(points),
            over_now: 0,
            over_limit_max: 0,
            batch_ratio_min: 1.0,
            emergency: 0,
            out_of_band: 0,
            server_limit: 0,
        }
    }

    /// Takes one step; how many in a row were above the limit.
    pub(crate) fn add(&mut self, s: &Sample) -> u64 {
        if self.steps_per_bucket != u64::MAX {
            self.curve(s);
        }
        self.steps += 1;
        self.over_now = if s.power_w > s.limit_w { self.over_now + 1 } else { 0 };
        self.over_limit_max = self.over_limit_max.max(self.over_now);
        self.batch_ratio_min = self.batch_ratio_min.min(s.batch_ratio);
        self.emergency += u64::from(s.emergency);
        self.out_of_band += u64::from(s.out_of_band);
        self.server_limit += u64::from(s.server_limit);
        self.over_now
    }

    fn curve(&mut self, s: &Sample) {
        if self.steps.is_multiple_of(self.steps_per_bucket) {
            self.buckets.push(Bucket {
                at_s: seconds(self.steps),
                power_min_w: s.power_w,
                power_max_w: s.power_w,
                limit_w: s.limit_w,
                batch_ratio_min: s.batch_ratio,
                user_facing_ratio_min: s.user_facing_ratio,
            });
        } else if let Some(b) = self.buckets.last_mut() {
            b.power_min_w = b.power_min_w.min(s.power_w);
            b.power_max_w = b.power_max_w.max(s.power_w);
            b.limit_w = b.limit_w.min(s.limit_w);
            b.batch_ratio_min = b.batch_ratio_min.min(s.batch_ratio);
            b.user_facing_ratio_min = b.user_facing_ratio_min.min(s.user_facing_ratio);
        }
    }

    pub(crate) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }
    pub(crate) fn emergency_s(&self) -> f64 {
        seconds(self.emergency)
    }
    pub(crate) fn out_of_band_s(&self) -> f64 {
        seconds(self.out_of_band)
    }
    pub(crate) fn server_limit_s(&self) -> f64 {
        seconds(self.server_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_keeps_a_peak_of_one_step() {
        let mut tally = Tally::new(Duration::from_secs(100), 10);
        let calm = Sample {
            power_w: 100.0,
            limit_w: 500.0,
            batch_ratio: 1.0,
            user_facing_ratio: 1.0,
            emergency: false,
            out_of_band: false,
            server_limit: false,
        };

        let mut longest = 0;

        for n in 0..10_000 {
            let peak = Sample { power_w: 900.0, batch_ratio: 0.5, ..calm };
            longest = longest.max(tally.add(if n == 4321 || n == 4322 { &peak } else { &calm }));
        }

        assert_eq!((longest, tally.over_limit_max), (2, 2));
        assert_eq!(tally.buckets().len(), 10);
        let b = tally.buckets()[4];
        assert_eq!((b.power_min_w, b.power_max_w, b.batch_ratio_min), (100.0, 900.0, 0.5));
        assert_eq!(tally.buckets()[5].power_max_w, 100.0);
    }
}
