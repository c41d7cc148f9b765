//! Amounts of cores and memory, as integers.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// No host and no VM is larger than this many cores: a slip, and products still fit 64 bits.
const CORES_MAX: f64 = 65_536.0;
/// No host and no VM has more memory than this, in GB.
const MEMORY_MAX_GB: f64 = 100_000.0;

/// Thousandths of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MilliCores(u32);

/// Memory in kB: a millionth of a GB. Whether a GB is 10⁹ or 2³⁰ bytes is the caller's matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MemoryKb(u64);

impl MilliCores {
    /// None.
    pub const ZERO: Self = Self(0);
    /// As many as anything can have.
    pub const MAX: Self = Self((CORES_MAX * 1e3) as u32);

    /// So many whole cores.
    pub const fn from_cores(cores: u16) -> Self {
        Self(cores as u32 * 1000)
    }
    /// So many thousandths; `None` above 65,536 cores.
    pub fn from_milli(milli: u64) -> Option<Self> {
        u32::try_from(milli).ok().map(Self).filter(|cores| *cores <= Self::MAX)
    }
    /// Thousandths.
    pub const fn milli(self) -> u32 {
        self.0
    }
    /// In cores, for reports.
    pub fn cores(self) -> f64 {
        f64::from(self.0) / 1e3
    }
}

impl MemoryKb {
    /// None.
    pub const ZERO: Self = Self(0);
    /// As much as anything can have.
    pub const MAX: Self = Self((MEMORY_MAX_GB * 1e6) as u64);

    /// So many kB; `None` above 100,000 GB.
    pub fn from_kb(kb: u64) -> Option<Self> {
        Some(Self(kb)).filter(|memory| *memory <= Self::MAX)
    }
    /// So many GB, to the next kB; `None` for NaN, below zero and above 100,000 GB.
    pub fn from_gb(gb: f64) -> Option<Self> {
        (0.0..=MEMORY_MAX_GB).contains(&gb).then(|| Self(libm::round(gb * 1e6) as u64))
    }
    /// kB.
    pub const fn kb(self) -> u64 {
        self.0
    }
    /// In GB, for reports.
    pub fn gb(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl TryFrom<u64> for MilliCores {
    type Error = String;
    fn try_from(milli: u64) -> Result<Self, String> {
        Self::from_milli(milli)
            .ok_or_else(|| format!("{milli} thousandths of a core: 0 to {}", Self::MAX.milli()))
    }
}
impl From<MilliCores> for u64 {
    fn from(cores: MilliCores) -> Self {
        Self::from(cores.0)
    }
}
impl TryFrom<u64> for MemoryKb {
    type Error = String;
    fn try_from(kb: u64) -> Result<Self, String> {
        Self::from_kb(kb).ok_or_else(|| format!("{kb} kB of memory: 0 to {}", Self::MAX.kb()))
    }
}
impl From<MemoryKb> for u64 {
    fn from(memory: MemoryKb) -> Self {
        memory.0
    }
}

/// So many kinds of resources there can be beside cores and memory.
pub const EXTRAS: usize = 4;

/// Amounts of resources beside cores and memory, such as GPUs or GB of disk. Which is which is known to whoever names
/// them: [`crate::Inventory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extras(pub [u32; EXTRAS]);

impl Extras {
    /// None of any.
    pub const NONE: Self = Self([0; EXTRAS]);

    /// Whether these hold all of `requested`.
    #[must_use]
    pub fn hold(self, requested: Self) -> bool {
        self.0.iter().zip(requested.0).all(|(have, requested)| *have >= requested)
    }
    /// Of which of them there are any: a bit each.
    pub(crate) fn kinds(self) -> u8 {
        self.0.iter().enumerate().fold(0, |kinds, (n, amount)| kinds | u8::from(*amount > 0) << n)
    }
    fn zip(self, other: Self, f: impl Fn(u32, u32) -> Option<u32>) -> Option<Self> {
        let mut all = self;
        for (n, amount) in all.0.iter_mut().enumerate() {
            *amount = f(*amount, other.0[n])?;
        }
        Some(all)
    }
}

/// What a host has or a VM asks for. Extras have no names here, so they are not written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Cores, in thousandths of a core.
    pub cores: MilliCores,
    /// Memory, in units of 1000 bytes.
    pub memory: MemoryKb,
    /// Everything else that is counted.
    #[serde(skip)]
    pub extras: Extras,
}

impl Resources {
    /// Nothing.
    pub const ZERO: Self = Self::new(MilliCores::ZERO, MemoryKb::ZERO);

    /// Cores and memory, and nothing else.
    pub const fn new(cores: MilliCores, memory: MemoryKb) -> Self {
        Self { cores, memory, extras: Extras::NONE }
    }

    /// Whether these hold all of `requested`.
    #[must_use]
    pub fn hold(self, requested: Self) -> bool {
        requested.cores <= self.cores && requested.memory <= self.memory && self.extras.hold(requested.extras)
    }
    /// The sum, unless one of the two is beyond what a host can have.
    #[must_use]
    pub fn checked_add(self, more: Self) -> Option<Self> {
        let milli = u64::from(self.cores.0) + u64::from(more.cores.0);
        let cores = MilliCores::from_milli(milli)?;
        let memory = MemoryKb::from_kb(self.memory.0.checked_add(more.memory.0)?)?;
        Some(Self { cores, memory, extras: self.extras.zip(more.extras, u32::checked_add)? })
    }
    /// What is left without `taken`; `None` where it holds less.
    #[must_use]
    pub fn checked_sub(self, taken: Self) -> Option<Self> {
        Some(Self {
            cores: MilliCores(self.cores.0.checked_sub(taken.cores.0)?),
            memory: MemoryKb(self.memory.0.checked_sub(taken.memory.0)?),
            extras: self.extras.zip(taken.extras, u32::checked_sub)?,
        })
    }
    /// What is left when so much is taken: of each nothing, where that is more than there is.
    pub(crate) fn less(self, taken: Totals) -> Self {
        let less = |have: u32, taken: u64| u32::try_from(u64::from(have).saturating_sub(taken)).unwrap_or(0);
        let mut extras = self.extras;
        extras.0.iter_mut().zip(taken.extras).for_each(|(have, taken)| *have = less(*have, taken));
        Self {
            cores: MilliCores(less(self.cores.0, taken.milli_cores)),
            memory: MemoryKb(self.memory.0.saturating_sub(taken.memory_kb)),
            extras,
        }
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores, {} GB", self.cores.cores(), self.memory.gb())
    }
}

/// Sums over many hosts or VMs, which no single one could have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Thousandths of a core.
    pub milli_cores: u64,
    /// Memory, in units of 1000 bytes.
    pub memory_kb: u64,
    /// Of every kind of the extras.
    pub extras: [u64; EXTRAS],
}

impl Totals {
    /// Whether `room` has less of something.
    pub fn exceed(&self, room: Resources) -> bool {
        let mut extras = self.extras.iter().zip(room.extras.0);
        self.milli_cores > u64::from(room.cores.0)
            || self.memory_kb > room.memory.0
            || extras.any(|(taken, room)| *taken > u64::from(room))
    }
}

impl AddAssign<Resources> for Totals {
    fn add_assign(&mut self, more: Resources) {
        self.milli_cores += u64::from(more.cores.0);
        self.memory_kb += more.memory.0;
        self.extras.iter_mut().zip(more.extras.0).for_each(|(sum, more)| *sum += u64::from(more));
    }
}
impl SubAssign<Resources> for Totals {
    fn sub_assign(&mut self, less: Resources) {
        self.milli_cores -= u64::from(less.cores.0);
        self.memory_kb -= less.memory.0;
        self.extras.iter_mut().zip(less.extras.0).for_each(|(sum, less)| *sum -= u64::from(less));
    }
}
impl Add<Resources> for Totals {
    type Output = Self;
    fn add(mut self, more: Resources) -> Self {
        self += more;
        self
    }
}
impl Sub<Resources> for Totals {
    type Output = Self;
    fn sub(mut self, less: Resources) -> Self {
        self -= less;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_amounts_are_refused() {
        assert_eq!(MemoryKb::from_gb(1.75), MemoryKb::from_kb(1_750_000));
        for bad in [f64::NAN, -0.1, f64::INFINITY, 100_001.0] {
            assert_eq!(MemoryKb::from_gb(bad), None, "{bad}");
        }
        assert_eq!(MilliCores::from_milli(65_536_001), None);
        assert_eq!(MilliCores::from_milli(250).map(MilliCores::cores), Some(0.25));
    }

    #[test]
    fn differences_never_go_below_nothing() {
        let gb = |cores, gb| Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(gb).unwrap());
        assert_eq!(gb(4, 8.0).checked_sub(gb(1, 8.5)), None);
        assert_eq!(gb(4, 8.0).checked_sub(gb(1, 0.5)), Some(gb(3, 7.5)));
        assert_eq!(gb(3, 7.5).checked_add(gb(1, 0.5)), Some(gb(4, 8.0)));
        assert_eq!(gb(4, 8.0).to_string(), "4 cores, 8 GB");

        let gpus = |count| Resources { extras: Extras([0, count, 0, 0]), ..gb(4, 8.0) };
        assert_eq!(gpus(2).checked_sub(gpus(3)), None);
        assert_eq!(
            (gpus(3).hold(gpus(3)), gpus(2).hold(gpus(3)), gpus(3).hold(gb(4, 8.0))),
            (true, false, true)
        );
        let taken = Totals::default() + gpus(2) + gpus(2);
        assert_eq!((taken.extras[1], taken - gpus(2)), (4, Totals::default() + gpus(2)));
        assert_eq!(gpus(3).less(taken), Resources::ZERO);
        assert!(taken.exceed(gpus(3)) && !(taken - gpus(2)).exceed(gpus(3)));
    }
}
