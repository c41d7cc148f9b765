//! The distribution of the sum of independent VMs, exactly but for the width of a cell.

use std::sync::Arc;

use super::samples::check_capacity;
use super::{EstimateError, Load, Promise, Samples};

/// So many cells have the width of a machine.
pub const CELLS: usize = 200;
/// Cells from nothing to the capacity, rounded up to whole lanes.
const WIDTH: usize = (CELLS + 1).next_multiple_of(LANES);
const LANES: usize = 8;
/// A cell with less is empty: smaller products are denormal numbers, which are slow.
const NOTHING: f32 = 1e-20;

/// How likely a VM uses so many cells of a machine: its samples, each in the nearest cell.
#[derive(Debug, PartialEq)]
pub struct Histogram {
    /// The first cell that is not empty.
    first: usize,
    /// Shares of the cells from there to the last that is not empty, up to the capacity.
    shares: Vec<f32>,
    /// The share of use above `CELLS - n` cells, for every `n`.
    above: [f32; WIDTH],
}

impl Histogram {
    /// Of a VM on machines of this capacity, which must be above 0 and at most 65,536 cores.
    pub fn new(samples: Samples<'_>, capacity: f64) -> Result<Arc<Self>, EstimateError> {
        let capacity = check_capacity(capacity)?;
        let per_core = CELLS as f64 / capacity;
        let mut counts = [0_u32; CELLS + 2];
        for value in samples.values() {
            let cell = libm::round(f64::from(*value) * per_core) as usize;
            counts[cell.min(CELLS + 1)] += 1;
        }

        let share = |count: u32| (f64::from(count) / samples.values().len() as f64) as f32;
        let mut above = [0.0; WIDTH];
        let mut count = 0;
        for n in 0..=CELLS {
            count += counts[CELLS + 1 - n];
            above[n] = share(count);
        }

        let first = counts[..=CELLS].iter().position(|count| *count > 0).unwrap_or(0);
        let last = counts[..=CELLS].iter().rposition(|count| *count > 0);
        let shares =
            last.map_or_else(Vec::new, |last| counts[first..=last].iter().copied().map(share).collect());
        Ok(Arc::new(Self { first, shares, above }))
    }
}

/// The distribution of a machine's use. All histograms are for machines of the promise's capacity.
#[derive(Clone, Debug)]
pub struct Convolution {
    vms: Vec<Arc<Histogram>>,
    /// Shares of the cells up to the capacity.
    shares: [f32; WIDTH],
    /// The share above the capacity.
    over: f32,
}

impl Default for Convolution {
    fn default() -> Self {
        let mut shares = [0.0; WIDTH];
        shares[0] = 1.0;
        Self { vms: Vec::new(), shares, over: 0.0 }
    }
}

impl Convolution {
    fn over(&self, vm: &Histogram) -> f32 {
        let mut lanes = [0.0_f32; LANES];
        for (mine, above) in self.shares.chunks_exact(LANES).zip(vm.above.chunks_exact(LANES)) {
            for lane in 0..LANES {
                lanes[lane] += mine[lane] * above[lane];
            }
        }
        self.over + lanes.iter().sum::<f32>()
    }

    fn convolve(&mut self, vm: &Histogram) {
        self.over = self.over(vm);
        let mut sum = [0.0_f32; WIDTH];
        for (cell, mine) in self.shares[..=CELLS - vm.first.min(CELLS)].iter().enumerate() {
            if *mine > NOTHING {
                let to = &mut sum[cell + vm.first..=CELLS];
                for (sum, share) in to.iter_mut().zip(&vm.shares) {
                    *sum += mine * share;
                }
            }
        }
        self.shares = sum;
    }
}

impl Load for Convolution {
    type Usage = Arc<Histogram>;

    fn add(&mut self, vm: &Arc<Histogram>) {
        self.convolve(vm);
        self.vms.push(Arc::clone(vm));
    }

    /// Makes the distribution anew from the VMs that stay, in the order in which they came: to divide it by the VM's would
    /// let rounding grow without bound.
    fn remove(&mut self, vm: &Arc<Histogram>) {
        let Some(at) = self.vms.iter().rposition(|there| Arc::ptr_eq(there, vm)) else { return };
        let mut vms = core::mem::take(&mut self.vms);
        vms.remove(at);
        *self = Self::default();
        for vm in &vms {
            self.convolve(vm);
        }
        self.vms = vms;
    }

    fn risk(&self, vm: Option<&Arc<Histogram>>, _promise: &Promise) -> f64 {
        f64::from(vm.map_or(self.over, |vm| self.over(vm))).min(1.0)
    }
}
