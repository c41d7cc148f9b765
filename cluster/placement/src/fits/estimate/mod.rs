//! How many VMs fit on a machine when their CPU use is random, under a promise: the machine's total use exceeds its capacity
//! for at most a share `target` of the time.
//!
//! | [`Load`] of a machine | what is kept of it | what is kept of a VM | where it is right |
//! |---|---|---|---|
//! | [`Gaussian`] | sums of mean and variance | [`Moments`] | many small, independent VMs |
//! | [`Skewed`] | the third cumulant, too | [`Moments`] | the same, with rare peaks |
//! | [`Convolution`] | the distribution of the sum | [`Histogram`] | few, large, independent VMs |
//! | [`Simultaneous`] | the sum at every instant of the training time | [`Aligned`] | VMs that peak together |
//! | [`Hourly`] | sums of mean and variance, by hour of the day | [`Profile`] | VMs that follow the day |
//! | [`Sizes`] | a sum of sizes | [`Size`]: percentile, average, Cantelli | a tuned rule of thumb |
//! | [`Both`] | two of them | both | where one alone is too bold |
//!
//! No load is right everywhere: which one keeps its promise is found out by replay (`sim::packing`). What is added can be
//! removed without a trace: sums are integers, and a distribution is made anew from the VMs that stay.
//!
//! CPU is in cores, or in any other unit that VMs and machines share. Each VM's use is checked once ([`Samples`]); from there
//! on no number is NaN.
//!
//! Source: Janus and Rzadca, "SLO-aware colocation of data center tasks based on instantaneous processor requirements", SoCC
//! 2017, Section 4, for [`Gaussian`], [`Sizes`] and the round robin of [`rebalance`].

mod convolution;
mod gaussian;
mod hourly;
mod moments;
mod pack;
pub mod rebalance;
mod samples;
mod simultaneous;
mod sized;
#[cfg(test)]
mod tests;

use core::fmt::Debug;

pub use convolution::{CELLS, Convolution, Histogram};
pub use gaussian::{Gaussian, Skewed};
pub use hourly::{Hourly, Profile};
pub use moments::Moments;
pub use pack::{Heuristic, Machine, by_variance_to_mean, pack};
pub use samples::{EstimateError, Promise, Samples};
pub use simultaneous::{Aligned, Both, Simultaneous};
pub use sized::{Size, Sizes};

/// What is kept of the VMs on one machine, to say how likely their sum is beyond the machine's capacity.
pub trait Load: Clone + Debug + Default {
    /// What one VM adds.
    type Usage;

    /// A VM comes.
    fn add(&mut self, vm: &Self::Usage);

    /// A VM goes that was added: afterwards the load is as if the VM had never been there.
    fn remove(&mut self, vm: &Self::Usage);

    /// The share of time that the machine's use is above its capacity, as estimated, with `vm` beside those that are there.
    /// From 0 to 1.
    fn risk(&self, vm: Option<&Self::Usage>, promise: &Promise) -> f64;

    /// Whether the promise is kept with `vm` beside those that are there.
    fn fits(&self, vm: &Self::Usage, promise: &Promise) -> bool {
        self.risk(Some(vm), promise) <= promise.target()
    }
}
