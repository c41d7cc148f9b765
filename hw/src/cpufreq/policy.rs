//! One folder `policyN`: the CPUs that the kernel scales together, and their limit.

use std::path::{Path, PathBuf};

use ballast_types::{CoreId, KiloHertz, Ladder};
use nix::errno::Errno;
use tracing::warn;

use super::ladder::{ReferenceSource, steps};
use super::{Driver, Floor, NO_LIMIT_KHZ, read_khz};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{read_text, write_value};

/// What was found of one cpufreq policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFacts {
    /// Its number, that of its lowest CPU.
    pub id: CoreId,
    /// Its driver.
    pub driver: Driver,
    /// The lowest frequency that its hardware has.
    pub cpuinfo_min: KiloHertz,
    /// The highest, turbo included where the driver counts it.
    pub cpuinfo_max: KiloHertz,
    /// The highest without turbo: what "half of the maximum" is half of.
    pub reference: KiloHertz,
    /// Where that comes from.
    pub reference_source: ReferenceSource,
    /// Below this frequency hardly any power is saved; `None` where that is not known.
    pub lowest_nonlinear: Option<KiloHertz>,
    /// Whether the driver has a table of steps; otherwise steps of 100 MHz are taken.
    pub table: bool,
    /// What it can be capped to.
    pub ladder: Ladder,
    /// `scaling_max_freq` before any cap of ours.
    pub original: KiloHertz,
}

/// One policy, and what we did to it.
#[derive(Debug)]
pub(super) struct Policy {
    max_file: PathBuf,
    pub(super) facts: PolicyFacts,
    /// Whether a cap of ours is on it, or may be.
    pub(super) touched: bool,
}

impl Policy {
    pub(super) fn read(root: &Root, dir: &Path, id: CoreId, floor: Floor) -> Result<Self, HwError> {
        let driver = read_text(&dir.join("scaling_driver"))?;
        let driver = driver.trim().parse().unwrap_or_else(|never| match never {});
        let cpuinfo_min = read_khz(&dir.join("cpuinfo_min_freq"))?;
        let max_path = dir.join("cpuinfo_max_freq");
        let cpuinfo_max = read_khz(&max_path)?;
        if cpuinfo_max < cpuinfo_min {
            let allowed = format!("at least cpuinfo_min_freq, {cpuinfo_min}");
            return Err(HwError::value(&max_path, Operation::Read, cpuinfo_max, allowed));
        }
        let range = (cpuinfo_min, cpuinfo_max);
        let steps = steps(root, dir, id.0.into(), &driver, range, floor)?;
        let max_file = dir.join("scaling_max_freq");
        let original = read_khz(&max_file)?;
        if original < cpuinfo_max {
            warn!(file = %max_file.display(), khz = original.get(), "already limited: kept as the original");
        }
        let facts = PolicyFacts {
            id,
            driver,
            cpuinfo_min,
            cpuinfo_max,
            reference: steps.reference.0,
            reference_source: steps.reference.1,
            lowest_nonlinear: steps.nonlinear,
            table: steps.table,
            ladder: steps.ladder,
            original,
        };
        Ok(Self { max_file, facts, touched: false })
    }

    /// The limit in force: the least of ours and the kernel's own.
    pub(super) fn read_back(&self) -> Result<KiloHertz, HwError> {
        read_khz(&self.max_file)
    }

    /// Caps it; never above what it was limited to before.
    pub(super) fn cap(&mut self, khz: KiloHertz) -> Result<(), HwError> {
        self.touched = true;
        write_value(&self.max_file, khz.min(self.facts.original).get())
    }

    /// Takes our cap off, if there is one.
    pub(super) fn release(&mut self) -> Result<(), HwError> {
        if self.touched {
            self.restore()?;
            self.touched = false;
        }
        Ok(())
    }

    fn restore(&self) -> Result<(), HwError> {
        let PolicyFacts { original, cpuinfo_max, .. } = self.facts;
        if original < cpuinfo_max {
            return write_value(&self.max_file, original.get());
        }
        match write_value(&self.max_file, NO_LIMIT_KHZ) {
            // Kernels without frequency QoS take nothing above the maximum.
            Err(e) if e.is(&[Errno::EINVAL, Errno::ERANGE]) => {
                write_value(&self.max_file, cpuinfo_max.get())
            }
            result => result,
        }
    }

    /// Takes over what an earlier life had found. A limit at or above that was set by somebody else since
    /// and is the original now; one below it is ours, and is given back.
    pub(super) fn adopt(&mut self, original: KiloHertz) -> Result<Option<KiloHertz>, HwError> {
        let current = self.read_back()?;
        self.touched = current < original;
        self.facts.original = if self.touched { original } else { current };
        Ok(self.touched.then_some(current))
    }
}
