//! Frequencies as the kernel writes them, and where.

use std::path::Path;

use ballast_types::KiloHertz;

use crate::error::{HwError, Operation};
use crate::root::read_value;

/// Where the policies are.
pub(super) const DIR: &str = "sys/devices/system/cpu/cpufreq";
/// "No user limit": `FREQ_QOS_MAX_DEFAULT_VALUE`. Unlike `cpuinfo_max_freq` it survives a later boost.
pub(super) const NO_LIMIT_KHZ: u32 = 2_147_483_647;
/// What a frequency file must hold.
pub(super) const FREQUENCY: &str = "a whole number of kHz from 1 to 100000000";
/// A hundred gigahertz: beyond it the unit is wrong.
pub(super) const MAX_KHZ: u32 = 100_000_000;

/// How low software may throttle a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Floor {
    /// The lowest p-state at or above half of the reference frequency.
    #[default]
    Half,
    /// The lowest p-state at or above this frequency.
    At(KiloHertz),
}

pub(super) fn valid(khz: KiloHertz) -> bool {
    (1..=MAX_KHZ).contains(&khz.get())
}

pub(super) fn read_khz(path: &Path) -> Result<KiloHertz, HwError> {
    let khz = KiloHertz::new(read_value(path, FREQUENCY)?);
    // `scaling_max_freq` may show the "no limit" value itself on some kernels.
    if !valid(khz) && khz.get() != NO_LIMIT_KHZ {
        return Err(HwError::value(path, Operation::Read, khz, FREQUENCY));
    }
    Ok(khz)
}
