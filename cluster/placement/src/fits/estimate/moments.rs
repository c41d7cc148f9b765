//! Mean, variance and third central moment, as integers: sums of them can be undone.

use core::ops::{AddAssign, SubAssign};

/// Units of an integer moment in one core, core² or core³. The third moment of the largest VM takes 108 bits; a million such
/// VMs fit.
const SCALE: f64 = (1u64 << 60) as f64;

/// The first three cumulants of one VM's use, or of the sum of independent VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    exact: [i128; 3],
    /// The same as `exact`, in cores, for the test of fit.
    float: [f64; 3],
}

impl Moments {
    pub(super) fn of(values: impl ExactSizeIterator<Item = f64> + Clone) -> Self {
        let count = (values.len() as f64).max(1.0);
        let mean = values.clone().sum::<f64>() / count;
        let (mut variance, mut third) = (0.0, 0.0);
        for value in values {
            let away = value - mean;
            variance += away * away;
            third += away * away * away;
        }

        let exact = [mean, variance / count, third / count].map(|moment| libm::round(moment * SCALE) as i128);
        Self { exact, float: exact.map(float) }
    }

    /// In cores.
    pub const fn mean(&self) -> f64 {
        self.float[0]
    }

    /// In cores².
    pub const fn variance(&self) -> f64 {
        self.float[1]
    }

    /// The third central moment, in cores³.
    pub const fn third(&self) -> f64 {
        self.float[2]
    }

    /// The standard deviation, in cores.
    pub fn deviation(&self) -> f64 {
        libm::sqrt(self.variance())
    }

    fn combine(&mut self, other: &Self, combine: fn(i128, i128) -> i128) {
        for (sum, moment) in self.exact.iter_mut().zip(other.exact) {
            *sum = combine(*sum, moment);
        }
        self.float = self.exact.map(float);
    }
}

fn float(exact: i128) -> f64 {
    exact as f64 / SCALE
}

impl AddAssign<&Self> for Moments {
    fn add_assign(&mut self, more: &Self) {
        self.combine(more, i128::wrapping_add);
    }
}

impl SubAssign<&Self> for Moments {
    fn sub_assign(&mut self, less: &Self) {
        self.combine(less, i128::wrapping_sub);
    }
}
