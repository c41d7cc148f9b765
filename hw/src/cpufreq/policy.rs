//! One folder `policyN`: the CPUs that the kernel scales together, and their limit.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ballast_types::{CoreId, KiloHertz, Ladder};
use nix::errno::Errno;
use tracing::{info, warn};

use super::driver::Driver;
use super::frequency::{Floor, NO_LIMIT_KHZ, read_khz};
use super::hold::{Hold, Verdict, above};
use super::kernel_limits::KernelLimits;
use super::ladder::{ReferenceSource, steps};
use crate::error::{HwError, Operation};
use crate::root::{read_text, write_value};
use crate::topology::{self, online};
use crate::{CpuList, Root};

/// So long after a write the kernel shows what was written.
const QUIET: Duration = Duration::from_secs(5);
/// Errors of a file whose CPUs, or whose driver, went away: a policy without an online CPU answers EBUSY.
pub(super) const GONE: [Errno; 4] = [Errno::EBUSY, Errno::ENODEV, Errno::ENXIO, Errno::ENOENT];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFacts {
    /// Its number, that of its lowest CPU.
    pub id: CoreId,
    /// Its CPUs, offline ones too: `related_cpus`.
    pub cpus: CpuList,
    pub driver: Driver,
    /// The lowest frequency that its hardware has.
    pub cpuinfo_min: KiloHertz,
    /// The highest, turbo included where the driver counts it.
    pub cpuinfo_max: KiloHertz,
    /// The highest without turbo: what "half of the maximum" is half of.
    pub reference: KiloHertz,
    pub reference_source: ReferenceSource,
    /// Below this frequency hardly any power is saved; `None` where that is not known.
    pub lowest_nonlinear: Option<KiloHertz>,
    /// Whether the driver has a table of steps; otherwise steps of 100 MHz are taken.
    pub table: bool,
    pub ladder: Ladder,
    /// `scaling_max_freq` before any cap of ours.
    pub original: KiloHertz,
}

impl PolicyFacts {
    /// What is written at the end. A limit at the hardware's maximum is none: written as such, it would be one
    /// once boost raises that maximum.
    pub(super) fn put_back(&self) -> KiloHertz {
        let is_limited = self.original < self.cpuinfo_max;
        if is_limited { self.original } else { KiloHertz::new(NO_LIMIT_KHZ) }
    }
}

#[derive(Debug)]
pub(super) struct Policy {
    dir: PathBuf,
    pub(super) facts: PolicyFacts,
    /// What of ours is on it, or may be.
    pub(super) hold: Option<Hold>,
    /// All its CPUs are offline, or its driver is gone: it takes no values until it is back.
    pub(super) away: bool,
    /// What was there before is on disk: without that it is not capped.
    pub(super) journalled: bool,
    /// A cap of ours may be on it that is not wanted.
    pub(super) unwanted: bool,
    /// When its limit was last written here: the kernel shows that later.
    pub(super) wrote: Option<Instant>,
    /// What it showed at the last scan without a cap of ours, if that is not the original.
    pub(super) shown: Option<KiloHertz>,
}

/// What tells how a policy is driven.
pub(super) type Driven = (Driver, (KiloHertz, KiloHertz), KiloHertz);

impl Policy {
    pub(super) fn read(
        root: &Root,
        dir: &Path,
        id: CoreId,
        floor: Floor,
        kernel: &KernelLimits<'_>,
    ) -> Result<Self, HwError> {
        let driver = driver(dir)?;
        let cpus = topology::cpus(&dir.join("related_cpus"))?;
        let (cpuinfo_min, cpuinfo_max) = range(dir)?;
        let steps = steps(root, dir, id.0.into(), &driver, (cpuinfo_min, cpuinfo_max), floor)?;
        let max_file = dir.join("scaling_max_freq");
        let mut original = read_khz(&max_file)?;

        if kernel.explain(dir, cpuinfo_max, original) {
            warn!(file = %max_file.display(), khz = original.get(), "firmware or heat limits this core: that \
                limit is the kernel's, and not put back at the end");
            original = cpuinfo_max;
        } else if original < cpuinfo_max {
            warn!(file = %max_file.display(), khz = original.get(), "this core was limited before the agent \
                started: that limit is kept, and put back at the end");
        }
        let facts = PolicyFacts {
            id,
            cpus: cpus.unwrap_or_else(|| [u32::from(id.0)].into_iter().collect()),
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

        let (dir, hold) = (dir.to_owned(), None);
        let (wrote, shown) = (None, None);

        Ok(Self { dir, facts, hold, away: false, journalled: true, unwanted: false, wrote, shown })
    }

    /// Its `scaling_max_freq`.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.join("scaling_max_freq")
    }

    /// The limit in force: the least of ours and the kernel's own.
    pub(super) fn read_back(&self) -> Result<KiloHertz, HwError> {
        read_khz(&self.file())
    }

    /// Caps it; never above what it was limited to before. One that is away is capped when it is back, and
    /// one that came when what was there before is on disk.
    pub(super) fn cap(&mut self, root: &Root, khz: KiloHertz) -> Result<(), HwError> {
        let khz = khz.min(self.facts.original);
        self.unwanted = false;
        self.hold = Some(Hold::after(self.hold, khz));
        if !self.journalled {
            self.hold = Some(Hold { push: true, ..Hold::after(None, khz) });
            return Ok(());
        }
        self.wrote = Some(Instant::now());
        let written = write_value(&self.file(), khz.get()).map_err(|e| self.below_min(e, khz));
        self.unless_away(root, written)
    }

    /// Takes our cap off, if there is one. What somebody else has raised since stays as it is; one that is
    /// away is released when it is back.
    pub(super) fn release(&mut self, root: &Root) -> Result<(), HwError> {
        self.unwanted = false;
        let Some(hold) = self.hold else { return Ok(()) };
        if !self.journalled {
            // Nothing was written.
            self.hold = None;
            return Ok(());
        }

        // Ours was never above the original.
        let at_most = if hold.guessed { self.facts.original } else { hold.khz };

        if hold.observed
            && let Ok(now) = self.read_back()
            && above(now, at_most)
        {
            let file = self.file();
            warn!(file = %file.display(), khz = now.get(), "another program has raised this core above its \
                cap: what it wrote is left");
            self.hold = None;
            return Ok(());
        }

        let restored = self.restore();
        self.unless_away(root, restored)?;

        if !self.away {
            self.hold = None;
        }
        Ok(())
    }

    /// Writes what was there before.
    pub(super) fn restore(&mut self) -> Result<(), HwError> {
        self.wrote = Some(Instant::now());
        let khz = self.facts.put_back().get();
        write_back(&self.file(), khz, (khz == NO_LIMIT_KHZ).then_some(self.facts.cpuinfo_max))
    }

    /// Takes in what it shows without a cap of ours: what the user limits it to is what is put back. True if
    /// that is another limit than before; it must be seen twice.
    pub(super) fn follow(&mut self, free: &Free) -> bool {
        let before = self.shown.take();
        let is_quiet = self.wrote.is_none_or(|wrote| wrote.elapsed() > QUIET);
        if self.hold.is_some() || self.away || !is_quiet || free.is_kernels {
            return false;
        }
        let was = self.facts.original;
        let (old, new) = (was.min(self.facts.cpuinfo_max), free.limit.min(self.facts.cpuinfo_max));
        if !above(old, new) && !above(new, old) {
            return false;
        }
        if before != Some(free.limit) {
            self.shown = Some(free.limit);
            return false;
        }

        let (file, now) = (self.file(), free.limit.get());
        info!(file = %file.display(), was = was.get(), now, "this core is limited otherwise than before: \
            that is what is put back");
        self.facts.original = free.limit;
        true
    }

    /// Nothing can be done to a policy whose CPUs are offline, and nothing has to: they draw nothing. Where
    /// one is online, an error is an error.
    fn unless_away(&mut self, root: &Root, result: Result<(), HwError>) -> Result<(), HwError> {
        self.away = match &result {
            Err(e) if e.is(&GONE) => match online(root) {
                Ok(Some(online)) => !self.facts.cpus.iter().any(|cpu| online.contains(cpu)),
                _ => e.is(&[Errno::EBUSY]),
            },
            _ => false,
        };
        if self.away { Ok(()) } else { result }
    }

    /// Kernels before frequency QoS refuse a maximum below `scaling_min_freq`; later ones lower that.
    fn below_min(&self, e: HwError, khz: KiloHertz) -> HwError {
        match read_khz(&self.dir.join("scaling_min_freq")) {
            Ok(min) if e.is(&[Errno::EINVAL]) && khz < min => {
                HwError { allowed: format!("at least scaling_min_freq, {min}, with this kernel"), ..e }
            }
            _ => e,
        }
    }

    /// Takes over what a previous instance had found. A limit at or above that was set by somebody else since
    /// and is the original now; one below it is ours, and is given back.
    pub(super) fn adopt(
        &mut self,
        original: KiloHertz,
        shown: Result<KiloHertz, HwError>,
    ) -> Result<Option<KiloHertz>, HwError> {
        let current = match shown {
            Ok(current) => current,
            Err(e) if e.is(&GONE) => {
                // Went since it was found: when it is back it is capped or released.
                self.away = true;
                self.facts.ladder.floor()
            }
            Err(e) => return Err(e),
        };

        // Where nobody had limited it the hardware's maximum is what it showed.
        let ours = (current < original.min(self.facts.cpuinfo_max)).then_some(current);
        self.hold = ours.map(|khz| Hold { guessed: true, observed: true, ..Hold::after(None, khz) });
        self.facts.original = if ours.is_some() { original } else { current };

        Ok(ours)
    }

    /// Takes in what was read from it; true if somebody else has raised it. A look that `counts` wears out
    /// the patience with a cap that is late.
    pub(super) fn judge(&mut self, read: Result<KiloHertz, HwError>, counts: bool) -> bool {
        let Some(before) = self.hold else { return false };
        let mut hold = before;
        match read {
            Ok(khz) => {
                if hold.guessed && above(khz, hold.khz) && !above(khz, self.facts.original) {
                    hold.khz = khz;
                }
                hold.judge(khz, counts);
            }
            Err(e) => self.away |= e.is(&GONE),
        }

        self.hold = Some(hold);
        let (file, wrote) = (self.file(), hold.khz.get());
        let file = file.display();

        match hold.verdict {
            verdict if verdict == before.verdict => {}
            Verdict::Obeyed => info!(%file, wrote, "a cap is in force again"),
            Verdict::Limited(to) => {
                info!(%file, wrote, to = to.get(), "the firmware, heat or an operator limits this core \
                    below its cap");
            }
            Verdict::Raised(to) => {
                warn!(%file, wrote, to = to.get(), "another program has raised this core above its cap");
            }
        }

        hold.raised > before.raised
    }

    /// It has another driver: what was asked of the old one is gone, and nobody has asked the new one.
    pub(super) fn driver_changed(&mut self, (driver, (min, max), shown): Driven) {
        let facts = &mut self.facts;
        (facts.driver, facts.cpuinfo_min, facts.cpuinfo_max) = (driver, min, max);
        facts.original = if self.hold.is_some() { max } else { shown };
        self.hold = self.hold.map(|hold| Hold { push: true, ..Hold::after(None, hold.khz) });
        self.journalled = false;
    }
}

/// Writes a limit that is put back; kernels without frequency QoS take nothing above `max`, which they get instead.
pub(super) fn write_back(file: &Path, khz: u32, max: Option<KiloHertz>) -> Result<(), HwError> {
    match (write_value(file, khz), max) {
        (Err(e), Some(max)) if e.is(&[Errno::EINVAL, Errno::ERANGE]) => write_value(file, max.get()),
        (written, _) => written,
    }
}

/// What a policy without a cap of ours shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free {
    /// The least of all limits; the highest frequency where there is none.
    limit: KiloHertz,
    is_kernels: bool,
}

impl Free {
    pub(super) fn read(dir: &Path, kernel: &KernelLimits<'_>) -> Result<Self, HwError> {
        let (shown, max) = (read_khz(&dir.join("scaling_max_freq"))?, range(dir)?.1);
        // Turbo that was switched off lowers the highest frequency itself.
        let limit = if shown < max { shown } else { KiloHertz::new(NO_LIMIT_KHZ) };
        Ok(Self { limit, is_kernels: kernel.explain(dir, max, shown) })
    }
}

pub(super) fn driven(dir: &Path) -> Result<Driven, HwError> {
    Ok((driver(dir)?, range(dir)?, read_khz(&dir.join("scaling_max_freq"))?))
}

pub(super) fn driver(dir: &Path) -> Result<Driver, HwError> {
    let name = read_text(&dir.join("scaling_driver"))?;
    Ok(name.trim().parse().unwrap_or_else(|never| match never {}))
}

fn range(dir: &Path) -> Result<(KiloHertz, KiloHertz), HwError> {
    let min = read_khz(&dir.join("cpuinfo_min_freq"))?;
    let path = dir.join("cpuinfo_max_freq");
    let max = read_khz(&path)?;
    if max < min {
        let allowed = format!("at least cpuinfo_min_freq, {min}");
        return Err(HwError::value(&path, Operation::Read, max, allowed));
    }
    Ok((min, max))
}
