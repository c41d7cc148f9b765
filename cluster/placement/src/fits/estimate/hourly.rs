//! Sums by hour of the day.

use super::samples::{distance, tail};
use super::{Load, Moments, Promise, Samples};

const HOURS: usize = 24;

/// A VM's moments in each hour of the day.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile(Box<[Moments; HOURS]>);

impl Profile {
    /// Of samples `period_s` apart, the first of them `start_s` after midnight. An hour without a sample has the moments of
    /// the whole day.
    pub fn new(samples: Samples<'_>, start_s: f64, period_s: f64) -> Self {
        let mut hours = vec![Vec::new(); HOURS];
        for (n, value) in samples.values().iter().enumerate() {
            let hour = libm::floor((start_s + n as f64 * period_s) / 3600.0);
            let hour = hour - HOURS as f64 * libm::floor(hour / HOURS as f64);
            hours[(hour as usize).min(HOURS - 1)].push(f64::from(*value));
        }

        let whole = samples.moments();
        Self(Box::new(core::array::from_fn(|hour| match &hours[hour][..] {
            [] => whole,
            some => Moments::of(some.iter().copied()),
        })))
    }
}

/// A machine's use as a normal variable in each hour of the day. Its risk is the mean over the hours: VMs that are busy at the
/// same hours are not taken for independent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hourly([Moments; HOURS]);

impl Load for Hourly {
    type Usage = Profile;

    fn add(&mut self, vm: &Profile) {
        for (sum, hour) in self.0.iter_mut().zip(vm.0.iter()) {
            *sum += hour;
        }
    }
    fn remove(&mut self, vm: &Profile) {
        for (sum, hour) in self.0.iter_mut().zip(vm.0.iter()) {
            *sum -= hour;
        }
    }
    fn risk(&self, vm: Option<&Profile>, promise: &Promise) -> f64 {
        (0..HOURS).map(|hour| self.risk_in(hour, vm, promise)).sum::<f64>() / HOURS as f64
    }
    fn fits(&self, vm: &Profile, promise: &Promise) -> bool {
        let (allowed, mut sum) = (promise.target() * HOURS as f64, 0.0);
        (0..HOURS).all(|hour| {
            sum += self.risk_in(hour, Some(vm), promise);
            sum <= allowed
        })
    }
}

impl Hourly {
    fn risk_in(&self, hour: usize, vm: Option<&Profile>, promise: &Promise) -> f64 {
        let (mean, variance) = vm.map_or((0.0, 0.0), |vm| (vm.0[hour].mean(), vm.0[hour].variance()));
        let sum = &self.0[hour];
        tail(distance(promise.capacity(), sum.mean() + mean, sum.variance() + variance))
    }
}
