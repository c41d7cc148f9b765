//! Which frequencies a policy can be capped to.
//!
//! "Half of the maximum" is a rule of the paper, not of Linux, so the maximum must be told: the
//! *reference* is the highest frequency without turbo. Drivers with a table have its steps; the others
//! take any frequency and round it to about 100 MHz.

use std::path::Path;

use ballast_types::{KiloHertz, Ladder};
use tracing::warn;

use super::driver::Driver;
use super::frequency::{FREQUENCY, Floor, read_khz, valid};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{optional, read_text, read_value};

/// Step of a driver without a table.
const STEP: KiloHertz = KiloHertz::from_mhz(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceSource {
    /// `base_frequency` (Intel with HWP).
    Base,
    /// The highest entry of `scaling_available_frequencies` that is no boost.
    Table,
    /// `acpi_cppc/nominal_freq`.
    Nominal,
    /// `intel_pstate/turbo_pct` and `num_pstates` (Intel without HWP).
    TurboShare,
    /// `cpuinfo_max_freq`: the kernel shows nothing better, and turbo may be part of it.
    HardwareMax,
}

/// What a policy can be capped to, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) ladder: Ladder,
    pub(super) reference: (KiloHertz, ReferenceSource),
    pub(super) nonlinear: Option<KiloHertz>,
    pub(super) table: bool,
}

/// Works out the steps of one policy. `cpu` is one of its CPUs, `range` what its hardware can do.
pub(super) fn steps(
    root: &Root,
    dir: &Path,
    cpu: u32,
    driver: &Driver,
    range: (KiloHertz, KiloHertz),
    floor: Floor,
) -> Result<Steps, HwError> {
    let (min, max) = range;
    let mut table = table(dir)?;
    table.retain(|khz| (min..=max).contains(khz));
    let cppc = root.path(&format!("sys/devices/system/cpu/cpu{cpu}/acpi_cppc"));
    let (reference, source) = reference(root, dir, &cppc, &table, range)?;
    let reference = reference.clamp(min, max);
    let nonlinear = lowest_nonlinear(dir, &cppc, driver)?;

    let lowest = match floor {
        Floor::Half => KiloHertz::new(reference.get().div_ceil(2)),
        Floor::At(khz) => khz,
    };

    if lowest > reference {
        let allowed = format!("a floor of at most the reference frequency, {reference}");
        return Err(HwError::value(dir, Operation::Read, lowest, allowed));
    }

    let lowest = lowest.max(min).max(nonlinear.unwrap_or_default()).min(reference);
    let ladder = ladder(&table, lowest, reference).ok_or_else(|| {
        HwError::value(dir, Operation::Read, reference, "a reference frequency above 0 kHz")
    })?;

    Ok(Steps { ladder, reference: (reference, source), nonlinear, table: !table.is_empty() })
}

/// What another policy can be capped to as well; `None` if that is nothing.
pub(super) fn common(a: &Ladder, b: &Ladder) -> Option<Ladder> {
    let steps = |ladder: &Ladder| (0..ladder.len()).map(|n| ladder.khz(n)).collect::<Vec<_>>();
    let b = steps(b);
    Ladder::new(&steps(a).into_iter().filter(|khz| b.contains(khz)).collect::<Vec<_>>()).ok()
}

/// A value that firmware or the driver offers: one that is not there, refused or zero is not known.
fn hint<T: PartialEq + Default>(value: Result<T, HwError>) -> Result<Option<T>, HwError> {
    match optional(value) {
        Err(e) if e.source.is_some() => {
            warn!(%e, "a hint of the firmware cannot be read: it is not used");
            Ok(None)
        }
        value => Ok(value?.filter(|value| *value != T::default())),
    }
}

fn reference(
    root: &Root,
    dir: &Path,
    cppc: &Path,
    table: &[KiloHertz],
    (min, max): (KiloHertz, KiloHertz),
) -> Result<(KiloHertz, ReferenceSource), HwError> {
    if let Some(base) = hint(read_khz(&dir.join("base_frequency")))? {
        return Ok((base, ReferenceSource::Base));
    }
    if let Some(top) = table.last() {
        return Ok((*top, ReferenceSource::Table));
    }
    let mhz = hint(read_value::<u32>(&cppc.join("nominal_freq"), "a whole number of MHz"))?;

    if let Some(nominal) = mhz.map(KiloHertz::from_mhz) {
        return Ok((nominal, ReferenceSource::Nominal));
    }
    let pstate = root.path("sys/devices/system/cpu/intel_pstate");
    let percent = hint(read_value::<u32>(&pstate.join("turbo_pct"), "a percentage"))?;
    let count = hint(read_value::<u32>(&pstate.join("num_pstates"), "a number of p-states"))?;

    if let (Some(turbo @ 1..=99), Some(count @ 1..=255)) = (percent, count) {
        // The share is rounded down: so many p-states are not turbo, the lowest of them at `min`.
        let base = (count * (100 - turbo)).div_ceil(100).max(1);
        let base = min.get() + (base - 1) * STEP.get();
        return Ok((KiloHertz::new(base), ReferenceSource::TurboShare));
    }

    Ok((max, ReferenceSource::HardwareMax))
}

/// Below this frequency a core saves hardly any power, so it is not throttled further.
fn lowest_nonlinear(dir: &Path, cppc: &Path, driver: &Driver) -> Result<Option<KiloHertz>, HwError> {
    if let Some(khz) = hint(read_khz(&dir.join("amd_pstate_lowest_nonlinear_freq")))? {
        return Ok(Some(khz));
    }
    if !driver.is_cppc() {
        return Ok(None);
    }

    // Performance is abstract, and in proportion to frequency.
    let number = |file| hint(read_value::<u32>(&cppc.join(file), "a whole number"));
    let (nonlinear, nominal) = (number("lowest_nonlinear_perf")?, number("nominal_perf")?);
    let mhz = number("nominal_freq")?;
    let (Some(nonlinear), Some(nominal), Some(mhz)) = (nonlinear, nominal, mhz) else {
        return Ok(None);
    };
    let khz = u64::from(mhz) * 1000 * u64::from(nonlinear) / u64::from(nominal);

    Ok((nonlinear <= nominal).then(|| KiloHertz::new(khz.try_into().unwrap_or(u32::MAX))))
}

/// The non-boost p-states of a table driver, ascending; empty if the driver has no table.
fn table(dir: &Path) -> Result<Vec<KiloHertz>, HwError> {
    let mut table = frequencies(&dir.join("scaling_available_frequencies"))?;
    let boost = frequencies(&dir.join("scaling_boost_frequencies"))?;
    table.retain(|khz| !boost.contains(khz));
    table.sort_unstable();
    table.dedup();
    // acpi-cpufreq shows turbo as one more entry, 1 MHz above the highest real one.
    if let [.., below, top] = table[..]
        && top.get() - below.get() == 1000
    {
        table.pop();
    }
    Ok(table)
}

fn frequencies(path: &Path) -> Result<Vec<KiloHertz>, HwError> {
    let text = optional(read_text(path))?.unwrap_or_default();
    let khz = |word: &str| {
        let khz = word.parse().ok().map(KiloHertz::new).filter(|khz| valid(*khz));
        khz.ok_or_else(|| HwError::value(path, Operation::Read, word, FREQUENCY))
    };
    text.split_whitespace().map(khz).collect()
}

fn ladder(table: &[KiloHertz], lowest: KiloHertz, reference: KiloHertz) -> Option<Ladder> {
    let steps: Vec<_> = table.iter().copied().filter(|khz| (lowest..=reference).contains(khz)).collect();
    if !steps.is_empty() {
        return Ladder::new(&steps).ok();
    }
    // The first supported step at or above the lowest: steps are counted down from the reference.
    let steps_down = (reference.get() - lowest.get()) / STEP.get();
    let floor = KiloHertz::new(reference.get() - steps_down * STEP.get());
    Ladder::stepped(floor, reference, STEP).ok()
}
