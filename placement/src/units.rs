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

    /// So many whole cores.
    pub const fn from_cores(cores: u16) -> Self {
        Self(cores as u32 * 1000)
    }
    /// So many thousandths; `None` above 65,536 cores.
    pub fn from_milli(milli: u64) -> Option<Self> {
        let fits = milli <= (CORES_MAX * 1e3) as u64;
        u32::try_from(milli).ok().filter(|_| fits).map(Self)
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

    /// So many kB; `None` above 100,000 GB.
    pub fn from_kb(kb: u64) -> Option<Self> {
        (kb <= (MEMORY_MAX_GB * 1e6) as u64).then_some(Self(kb))
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
        let most = (CORES_MAX * 1e3) as u64;
        Self::from_milli(milli).ok_or_else(|| format!("{milli} thousandths of a core: 0 to {most}"))
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
        let most = (MEMORY_MAX_GB * 1e6) as u64;
        Self::from_kb(kb).ok_or_else(|| format!("{kb} kB of memory: 0 to {most}"))
    }
}
impl From<MemoryKb> for u64 {
    fn from(memory: MemoryKb) -> Self {
        memory.0
    }
}

/// What a host has or a VM asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Cores, in thousandths of a core.
    pub cores: MilliCores,
    /// Memory, in units of 1000 bytes.
    pub memory: MemoryKb,
}

impl Resources {
    /// Nothing.
    pub const ZERO: Self = Self { cores: MilliCores::ZERO, memory: MemoryKb::ZERO };

    /// Whether these hold all of `requested`.
    #[must_use]
    pub fn hold(self, requested: Self) -> bool {
        requested.cores <= self.cores && requested.memory <= self.memory
    }
    /// The sum, unless one of the two is beyond what a host can have.
    #[must_use]
    pub fn checked_add(self, more: Self) -> Option<Self> {
        let milli = u64::from(self.cores.0) + u64::from(more.cores.0);
        let cores = MilliCores::from_milli(milli)?;
        let memory = MemoryKb::from_kb(self.memory.0.checked_add(more.memory.0)?)?;
        Some(Self { cores, memory })
    }
    /// What is left without `taken`; `None` where it holds less.
    #[must_use]
    pub fn checked_sub(self, taken: Self) -> Option<Self> {
        self.hold(taken).then(|| Self {
            cores: MilliCores(self.cores.0 - taken.cores.0),
            memory: MemoryKb(self.memory.0 - taken.memory.0),
        })
    }
    /// What is left when so much is taken: of each nothing, where that is more than there is.
    pub(crate) fn less(self, taken: Totals) -> Self {
        let milli = u64::from(self.cores.0).saturating_sub(taken.milli_cores);
        Self {
            cores: MilliCores(u32::try_from(milli).unwrap_or_default()),
            memory: MemoryKb(self.memory.0.saturating_sub(taken.memory_kb)),
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
}

impl AddAssign<Resources> for Totals {
    fn add_assign(&mut self, more: Resources) {
        self.milli_cores += u64::from(more.cores.0);
        self.memory_kb += more.memory.0;
    }
}
impl SubAssign<Resources> for Totals {
    fn sub_assign(&mut self, less: Resources) {
        self.milli_cores -= u64::from(less.cores.0);
        self.memory_kb -= less.memory.0;
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
        let gb = |cores, gb| Resources {
            cores: MilliCores::from_cores(cores),
            memory: MemoryKb::from_gb(gb).unwrap(),
        };
        assert_eq!(gb(4, 8.0).checked_sub(gb(1, 8.5)), None);
        assert_eq!(gb(4, 8.0).checked_sub(gb(1, 0.5)), Some(gb(3, 7.5)));
        assert_eq!(gb(3, 7.5).checked_add(gb(1, 0.5)), Some(gb(4, 8.0)));
        assert_eq!(gb(4, 8.0).to_string(), "4 cores, 8 GB");
    }
}
