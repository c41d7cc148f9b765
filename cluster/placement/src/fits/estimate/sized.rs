//! A fixed size for each VM: the rules of thumb.

use super::{EstimateError, Load, Moments, Promise, Samples};

/// Units of a size in one core.
const SCALE: f64 = (1u64 << 40) as f64;

/// What a VM takes of a machine, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size(i128);

impl Size {
    /// This percentile of the samples, 0 to 100, linear between two of them. The 100th is the largest.
    pub fn percentile(sorted: Samples<'_>, percentile: f64) -> Result<Self, EstimateError> {
        if !(0.0..=100.0).contains(&percentile) {
            let name = "percentile";
            return Err(EstimateError::Parameter { name, value: percentile, allowed: "0 to 100" });
        }

        let values = sorted.values();
        debug_assert!(values.is_sorted());
        let place = percentile / 100.0 * (values.len() - 1) as f64;
        let (below, above) = (values[place as usize], values[libm::ceil(place) as usize]);
        let part = place - libm::floor(place);
        Ok(Self::of(f64::from(below) + part * (f64::from(above) - f64::from(below))))
    }

    /// The mean, times a factor from 0 to 100.
    pub fn average(moments: &Moments, factor: f64) -> Result<Self, EstimateError> {
        Ok(Self::of(multiple("factor", factor)? * moments.mean()))
    }

    /// The mean and so many standard deviations, 0 to 100: by Cantelli's inequality a VM alone is above this for at most
    /// `1 / (1 + deviations²)` of the time.
    pub fn cantelli(moments: &Moments, deviations: f64) -> Result<Self, EstimateError> {
        Ok(Self::of(moments.mean() + multiple("deviations", deviations)? * moments.deviation()))
    }

    fn of(cores: f64) -> Self {
        Self(libm::round(cores * SCALE) as i128)
    }
}

fn multiple(name: &'static str, value: f64) -> Result<f64, EstimateError> {
    let possible = (0.0..=100.0).contains(&value);
    if possible { Ok(value) } else { Err(EstimateError::Parameter { name, value, allowed: "0 to 100" }) }
}

/// The sizes of a machine's VMs. A machine is full, or it is not: the risk is 0 or 1, and nothing is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes(i128);

impl Load for Sizes {
    type Usage = Size;

    fn add(&mut self, vm: &Size) {
        self.0 += vm.0;
    }
    fn remove(&mut self, vm: &Size) {
        self.0 -= vm.0;
    }
    fn risk(&self, vm: Option<&Size>, promise: &Promise) -> f64 {
        let sum = self.0 + vm.map_or(0, |vm| vm.0);
        f64::from(u8::from(sum > Size::of(promise.capacity()).0))
    }
}
