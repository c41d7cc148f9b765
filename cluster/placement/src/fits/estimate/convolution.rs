//! The distribution of the sum of independent VMs, exactly but for the width of a cell.

use std::sync::Arc;

use super::samples::check_capacity;
use super::{EstimateError, Load, Promise, Samples};

/// So many cells have the width of a machine.
pub const CELLS: usize = 200;
const LANES: usize = 8;
/// A cell with less is empty: smaller products are denormal numbers, which are slow.
const NOTHING: f32 = 1e-20;

/// How likely a VM uses so many cells of a machine. A sample between two cells counts for both, by how near they are, so that
/// the mean is kept: nearly idle VMs are rounded neither to nothing nor to a cell. A sum that falls into the cell of the capacity
/// itself counts as above it: half of such sums are, and the other half is on the safe side.
#[derive(Debug, PartialEq)]
pub struct Histogram {
    /// The first cell that is not empty.
    first: usize,
    /// Shares of the cells from there to the last that is not empty, below the capacity.
    shares: Vec<f32>,
    /// The share of use of `CELLS - n` cells or more, for every `n`.
    above: [f32; CELLS],
}

impl Histogram {
    /// Of a VM on machines of this capacity, which must be above 0 and at most 65,536 cores.
    pub fn new(samples: Samples<'_>, capacity: f64) -> Result<Arc<Self>, EstimateError> {
        let weight = 1.0 / samples.values().len() as f64;
        Self::weighted(samples.values().iter().map(|value| (f64::from(*value), weight)), capacity)
    }

    /// The same of uses in cores, from 0 on, each for a share of the time; the shares make 1.
    pub(crate) fn weighted(
        uses: impl Iterator<Item = (f64, f64)>,
        capacity: f64,
    ) -> Result<Arc<Self>, EstimateError> {
        let capacity = check_capacity(capacity)?;
        let per_core = CELLS as f64 / capacity;
        let mut shares = [0.0_f64; CELLS + 1];
        for (cores, weight) in uses {
            let place = cores * per_core;
            let (cell, part) = (place as usize, place - libm::floor(place));
            shares[cell.min(CELLS)] += weight * (1.0 - part);
            shares[(cell + 1).min(CELLS)] += weight * part;
        }

        let mut above = [0.0; CELLS];
        let mut share = 0.0;
        for n in 0..CELLS {
            share += shares[CELLS - n];
            above[n] = share as f32;
        }

        let below = &shares[..CELLS];
        let first = below.iter().position(|share| *share > 0.0).unwrap_or(0);
        let end = below.iter().rposition(|share| *share > 0.0).map_or(first, |last| last + 1);
        let shares = below[first..end].iter().map(|share| *share as f32).collect();
        Ok(Arc::new(Self { first, shares, above }))
    }
}

/// The distribution of a machine's use. All histograms are for machines of the promise's capacity.
#[derive(Clone, Debug)]
pub struct Convolution {
    vms: Vec<Arc<Histogram>>,
    /// Shares of the cells below the capacity.
    shares: [f32; CELLS],
    /// The share at the capacity and above.
    over: f32,
}

impl Default for Convolution {
    fn default() -> Self {
        let mut shares = [0.0; CELLS];
        shares[0] = 1.0;
        Self { vms: Vec::new(), shares, over: 0.0 }
    }
}

impl Convolution {
    /// The share of time above the capacity that all histograms are for.
    pub(crate) fn share_above(&self, vm: Option<&Histogram>) -> f64 {
        f64::from(vm.map_or(self.over, |vm| self.over(vm))).min(1.0)
    }

    /// The share of time above so many cells of the capacity, [`CELLS`] at most.
    pub(crate) fn share_above_cells(&self, vm: Option<&Histogram>, cells: usize) -> f64 {
        if cells >= CELLS {
            return self.share_above(vm);
        }
        let (below, above) = self.shares.split_at(cells);
        let there = self.over + above.iter().sum::<f32>();
        let with = |vm: &Histogram| {
            let lifted =
                below.iter().enumerate().map(|(cell, share)| share * vm.above[CELLS - (cells - cell)]);
            lifted.sum::<f32>()
        };
        f64::from(there + vm.map_or(0.0, with)).min(1.0)
    }

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
        let mut sum = [0.0_f32; CELLS];
        for (cell, mine) in self.shares[..CELLS - vm.first].iter().enumerate() {
            if *mine > NOTHING {
                let to = &mut sum[cell + vm.first..];
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
        self.share_above(vm.map(AsRef::as_ref))
    }
}
