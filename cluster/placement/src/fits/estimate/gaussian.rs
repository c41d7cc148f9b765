//! The sum as a normal variable, with and without its skewness.

use libm::sqrt;

use super::samples::{density, distance, tail};
use super::{Load, Moments, Promise};

/// The sum of independent VMs as a normal variable (the paper's GPA).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gaussian(Moments);

impl Load for Gaussian {
    type Usage = Moments;

    fn add(&mut self, vm: &Moments) {
        self.0 += vm;
    }
    fn remove(&mut self, vm: &Moments) {
        self.0 -= vm;
    }
    fn risk(&self, vm: Option<&Moments>, promise: &Promise) -> f64 {
        let (mean, variance, _) = with(&self.0, vm);
        tail(distance(promise.capacity(), mean, variance))
    }
    fn fits(&self, vm: &Moments, promise: &Promise) -> bool {
        let (mean, variance, _) = with(&self.0, Some(vm));
        promise.capacity() - mean >= promise.sigmas() * sqrt(variance)
    }
}

/// The same with the third cumulant: the first term of the Edgeworth series. It mends what [`Gaussian`] gets wrong about rare
/// peaks, not what it gets wrong about VMs that peak together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skewed(Moments);

impl Load for Skewed {
    type Usage = Moments;

    fn add(&mut self, vm: &Moments) {
        self.0 += vm;
    }
    fn remove(&mut self, vm: &Moments) {
        self.0 -= vm;
    }
    fn risk(&self, vm: Option<&Moments>, promise: &Promise) -> f64 {
        let (mean, variance, third) = with(&self.0, vm);
        let z = distance(promise.capacity(), mean, variance);
        if !z.is_finite() {
            return tail(z);
        }

        let skewness = third / (variance * sqrt(variance));
        let risk = tail(z) + density(z) * skewness / 6.0 * (z * z - 1.0);

        // A variance so small that its power 3/2 is zero is no variance.
        if risk.is_nan() { tail(z) } else { risk.clamp(0.0, 1.0) }
    }
}

/// Mean, variance and third cumulant of a machine with one VM more.
fn with(sum: &Moments, vm: Option<&Moments>) -> (f64, f64, f64) {
    let none = Moments::default();
    let vm = vm.unwrap_or(&none);
    (sum.mean() + vm.mean(), sum.variance() + vm.variance(), sum.third() + vm.third())
}
