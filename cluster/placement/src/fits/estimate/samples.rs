//! What goes in: checked once.

use libm::{erfc, exp, sqrt};
use thiserror::Error;

use super::Moments;

/// No VM uses more cores than this, and no machine has more: what is above is a slip.
const CORES_MAX: f64 = 65_536.0;
/// The normal tail is zero in double precision from here on.
const SIGMAS_MAX: f64 = 38.0;

/// Why no estimate can be made.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EstimateError {
    /// A VM without a single sample.
    #[error("no sample: at least one is needed")]
    Empty,
    /// A use of CPU that cannot be.
    #[error("sample {index} is {value}: a use of 0 to {CORES_MAX} cores is needed")]
    Sample {
        /// Its place, from 0.
        index: usize,
        /// NaN, below 0 or above what a VM can use.
        value: f32,
    },
    /// A machine that cannot be.
    #[error("capacity {0}: more than 0 and at most {CORES_MAX} cores are needed")]
    Capacity(f64),
    /// A share of time that is none.
    #[error("target {0}: a share of time from 0 to 1 is needed")]
    Target(f64),
    /// A parameter of an estimator.
    #[error("{name} {value}: {allowed} is needed")]
    Parameter {
        /// What it is called.
        name: &'static str,
        /// Out of its range.
        value: f64,
        /// What it may be.
        allowed: &'static str,
    },
}

/// What is promised of every machine: its use is above `capacity` for at most a share `target` of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    capacity: f64,
    target: f64,
    sigmas: f64,
}

impl Promise {
    /// Fails where the capacity is not above 0 and at most 65,536 cores, or the target is no share.
    pub fn new(capacity: f64, target: f64) -> Result<Self, EstimateError> {
        let capacity = check_capacity(capacity)?;
        if !(0.0..=1.0).contains(&target) {
            return Err(EstimateError::Target(target));
        }
        Ok(Self { capacity, target, sigmas: sigmas(target) })
    }

    /// In cores.
    pub const fn capacity(&self) -> f64 {
        self.capacity
    }

    /// A share of time.
    pub const fn target(&self) -> f64 {
        self.target
    }

    /// How many standard deviations a normal variable exceeds for a share `target` of the time.
    pub(super) const fn sigmas(&self) -> f64 {
        self.sigmas
    }
}

pub(super) fn check_capacity(capacity: f64) -> Result<f64, EstimateError> {
    let possible = capacity > 0.0 && capacity <= CORES_MAX;
    if possible { Ok(capacity) } else { Err(EstimateError::Capacity(capacity)) }
}

/// One VM's use of CPU in cores, in order of time: at least one sample, and none that cannot be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples<'a>(&'a [f32]);

impl<'a> Samples<'a> {
    /// Fails where there is none, or one is NaN, below 0 or above 65,536 cores.
    pub fn new(values: &'a [f32]) -> Result<Self, EstimateError> {
        if values.is_empty() {
            return Err(EstimateError::Empty);
        }
        let possible = |value: f32| (0.0..=CORES_MAX).contains(&f64::from(value));
        match values.iter().position(|value| !possible(*value)) {
            Some(index) => Err(EstimateError::Sample { index, value: values[index] }),
            None => Ok(Self(values)),
        }
    }

    /// In cores.
    pub const fn values(self) -> &'a [f32] {
        self.0
    }

    /// Mean, population variance and third central moment; of one sample, or of a constant use, the last two are 0.
    pub fn moments(self) -> Moments {
        Moments::of(self.0.iter().map(|value| f64::from(*value)))
    }
}

/// The upper tail of the standard normal distribution.
pub(super) fn tail(z: f64) -> f64 {
    0.5 * erfc(z * core::f64::consts::FRAC_1_SQRT_2)
}

/// The density of the standard normal distribution.
pub(super) fn density(z: f64) -> f64 {
    const FACTOR: f64 = 0.398_942_280_401_432_7;
    FACTOR * exp(-0.5 * z * z)
}

/// Where the upper tail is `share`, by bisection: done once for each promise.
fn sigmas(share: f64) -> f64 {
    let (mut low, mut high) = (-SIGMAS_MAX, SIGMAS_MAX);
    while high - low > 1e-14 * SIGMAS_MAX {
        let middle = 0.5 * (low + high);
        if tail(middle) > share {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// How far the capacity is above the mean, in standard deviations: infinite for a constant sum.
pub(super) fn distance(capacity: f64, mean: f64, variance: f64) -> f64 {
    let room = capacity - mean;
    if variance > 0.0 {
        room / sqrt(variance)
    } else if room >= 0.0 {
        f64::INFINITY
    } else {
        f64::NEG_INFINITY
    }
}
