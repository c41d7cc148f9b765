//! The machine's use as it would have been: the VMs' samples, added up instant by instant.

use std::sync::Arc;

use super::samples::check_capacity;
use super::{EstimateError, Load, Promise, Samples};

/// A machine's capacity, in the integer units of [`Aligned`].
const CAPACITY: i32 = 1 << 16;
/// A VM that would need more machines than this counts as if it needed these.
const MACHINES_MAX: f64 = 16.0;
const LANES: usize = 8;
/// So many samples are counted before the count is looked at.
const BLOCK: usize = 256;

/// A VM's samples in 65,536ths of a machine, those of all VMs at the same instants. They are rounded down: VMs that need
/// exactly one machine do not need more.
#[derive(Debug, PartialEq, Eq)]
pub struct Aligned(Box<[i32]>);

impl Aligned {
    /// The newest `length` samples of a VM on machines of this capacity, each times `factor`. What a shorter series lacks at
    /// its start is the largest sample that it has: nobody knows better.
    ///
    /// A factor above 1 keeps room above the peak: the largest sum of the training time, times the factor, fits.
    pub fn new(
        samples: Samples<'_>,
        length: usize,
        capacity: f64,
        factor: f64,
    ) -> Result<Arc<Self>, EstimateError> {
        let capacity = check_capacity(capacity)?;
        if !(0.01..=100.0).contains(&factor) {
            return Err(EstimateError::Parameter { name: "factor", value: factor, allowed: "0.01 to 100" });
        }

        let unit = factor * f64::from(CAPACITY) / capacity;
        let units = |value: f32| {
            let most = MACHINES_MAX * f64::from(CAPACITY);
            (f64::from(value) * unit).min(most) as i32
        };

        let values = samples.values();
        let newest = &values[values.len().saturating_sub(length)..];
        let largest = newest.iter().copied().fold(0.0, f32::max);
        let lacking = core::iter::repeat_n(largest, length - newest.len());
        Ok(Arc::new(Self(lacking.chain(newest.iter().copied()).map(units).collect())))
    }

    /// How many instants.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A machine's use at every instant of the training time. Its risk is the share of these instants above the capacity: with
/// all that VMs have in common, and with nothing that did not happen in that time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simultaneous(Vec<i32>);

impl Simultaneous {
    /// Instants above the capacity with the VM there; more than `allowed` are not counted to their end.
    fn over(&self, vm: Option<&Aligned>, allowed: usize) -> usize {
        let vm = vm.map_or(&[][..], |vm| &vm.0);
        if self.0.is_empty() || vm.is_empty() {
            return self.0.iter().chain(vm).filter(|sum| **sum > CAPACITY).count();
        }

        debug_assert_eq!(self.0.len(), vm.len(), "VMs of one machine have the same instants");
        let mut over = 0;
        for (mine, vm) in self.0.chunks(BLOCK).zip(vm.chunks(BLOCK)) {
            over += count(mine, vm);
            if over > allowed {
                break;
            }
        }
        over
    }

    fn len(&self, vm: Option<&Aligned>) -> usize {
        self.0.len().max(vm.map_or(0, Aligned::len)).max(1)
    }
}

/// How many sums of two are above the capacity.
fn count(mine: &[i32], vm: &[i32]) -> usize {
    let (mine, mine_rest) = mine.as_chunks::<LANES>();
    let (vm, vm_rest) = vm.as_chunks::<LANES>();
    let mut lanes = [0_i32; LANES];
    for (mine, vm) in mine.iter().zip(vm) {
        for lane in 0..LANES {
            lanes[lane] += i32::from(mine[lane].wrapping_add(vm[lane]) > CAPACITY);
        }
    }
    let rest = mine_rest.iter().zip(vm_rest).filter(|(mine, vm)| mine.wrapping_add(**vm) > CAPACITY);
    lanes.iter().sum::<i32>() as usize + rest.count()
}

impl Load for Simultaneous {
    type Usage = Arc<Aligned>;

    fn add(&mut self, vm: &Arc<Aligned>) {
        self.0.resize(vm.len(), 0);
        for (sum, value) in self.0.iter_mut().zip(&vm.0) {
            *sum = sum.wrapping_add(*value);
        }
    }
    fn remove(&mut self, vm: &Arc<Aligned>) {
        for (sum, value) in self.0.iter_mut().zip(&vm.0) {
            *sum = sum.wrapping_sub(*value);
        }
    }
    fn risk(&self, vm: Option<&Arc<Aligned>>, _promise: &Promise) -> f64 {
        let vm = vm.map(AsRef::as_ref);
        self.over(vm, usize::MAX) as f64 / self.len(vm) as f64
    }
    fn fits(&self, vm: &Arc<Aligned>, promise: &Promise) -> bool {
        let length = self.len(Some(vm)) as f64;

        // Such that `over / length <= target` holds for whole numbers, too.
        let mut allowed = (promise.target() * length) as usize;
        if (allowed + 1) as f64 / length <= promise.target() {
            allowed += 1;
        }
        self.over(Some(vm), allowed) <= allowed
    }
}

/// Two loads that must both keep the promise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Both<A, B>(
    /// It need not come before the other: both must fit.
    pub A,
    /// Asked where the first fits.
    pub B,
);

impl<A: Load, B: Load> Load for Both<A, B> {
    type Usage = (A::Usage, B::Usage);

    fn add(&mut self, vm: &Self::Usage) {
        self.0.add(&vm.0);
        self.1.add(&vm.1);
    }
    fn remove(&mut self, vm: &Self::Usage) {
        self.0.remove(&vm.0);
        self.1.remove(&vm.1);
    }
    fn risk(&self, vm: Option<&Self::Usage>, promise: &Promise) -> f64 {
        let one = self.0.risk(vm.map(|vm| &vm.0), promise);
        one.max(self.1.risk(vm.map(|vm| &vm.1), promise))
    }
    fn fits(&self, vm: &Self::Usage, promise: &Promise) -> bool {
        self.0.fits(&vm.0, promise) && self.1.fits(&vm.1, promise)
    }
}
