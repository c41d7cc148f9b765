use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ballast_types::{Cap, CapError, Watts};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{Kind, Zone, look, zones};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{optional, read_text, read_value, write_value};

const LIMIT: &str = "a whole number of microwatts";
const WINDOW: &str = "a whole number of microseconds";
/// Constraints a zone may have: `long_term`, `short_term`, `peak_power`; their numbers shift.
const CONSTRAINTS: u32 = 8;
/// The hardware counts in eighths of a watt (or finer): a read-back may differ by that much.
const UNIT_UW: u64 = 125_000;
/// The kernel masks a value into a register, it does not clamp: below a unit it becomes 0 W, and above
/// 32767 units it wraps to a small limit.
const LEAST_UW: u64 = 1_000_000;
const MOST_UW: u64 = 4_095 * 1_000_000;

/// A zone's limits as they were before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaplCapOriginal {
    /// `constraint_N_power_limit_uw` of `long_term` (PL1), in microwatts.
    pub limit_uw: u64,
    /// Its `constraint_N_time_window_us`, in microseconds, if it has one.
    pub window_us: Option<u64>,
    /// `constraint_N_power_limit_uw` of `short_term` (PL2), in microwatts, if there is one.
    pub short_uw: Option<u64>,
    pub enabled: bool,
}

/// This server's own power limit: `long_term` and `short_term` of every package.
///
/// The last resort: it slows every core, user-facing ones too. Both constraints get the same limit, so that
/// the draw falls within the short window, whatever the long one is. The kernel neither clamps nor refuses
/// a senseless value, and every refused write, by a lock of the BIOS too, shows as ENODATA: so the range is
/// checked here and every write is read back.
#[derive(Debug)]
pub struct RaplCap {
    zones: Vec<LimitZone>,
    /// The lowest limit per package, in microwatts.
    floor_uw: u64,
}

#[derive(Debug)]
struct LimitZone {
    name: String,
    long: Constraint,
    short: Option<Constraint>,
    enabled_file: PathBuf,
}

#[derive(Debug)]
struct Constraint {
    limit_file: PathBuf,
    window_file: PathBuf,
    /// The highest limit that makes sense, in microwatts.
    most_uw: u64,
}

impl RaplCap {
    /// Finds the packages that can be limited; `None` if there are none (AMD has no constraints). Changes
    /// nothing. `floor` is the least that all packages together may be limited to. Fails if a file of a zone
    /// is unreadable or garbage, or the floor is not above 1 W per package.
    pub fn find(root: &Root, floor: Watts) -> Result<Option<Self>, HwError> {
        let mut found = Vec::new();
        for zone in zones(root)? {
            let Some(zone) = LimitZone::of(&zone)? else { continue };
            zone.read()?;
            found.push(zone);
        }

        if found.is_empty() {
            return Ok(None);
        }
        let floor_uw = share_uw(floor, found.len());

        if !(LEAST_UW..=MOST_UW).contains(&floor_uw) {
            let dir = root.path("sys/class/powercap");
            let allowed = "a floor of 1 to 4095 W per package";
            return Err(HwError::value(&dir, Operation::Write, floor, allowed));
        }

        Ok(Some(Self { zones: found, floor_uw }))
    }

    /// Puts back what a previous instance has left on zones, by their names; tells what could not be. What keeps
    /// one from it never stands in the way of the others.
    pub fn put_back_left(root: &Root, saved: &BTreeMap<String, RaplCapOriginal>) -> Vec<String> {
        let (zones, nameless) = look(root).unwrap_or_else(|error| (vec![], vec![error]));
        let put_back = |(name, was): (&String, &RaplCapOriginal)| {
            let of_name = |zone: &&Zone| zone.kind == Kind::Package && zone.name == *name;
            let zone = zones.iter().find(of_name).map_or(Ok(None), LimitZone::of);
            match zone.and_then(|zone| zone.map(|zone| zone.put_back(was)).transpose()) {
                Ok(Some(())) => None,
                Ok(None) => Some(format!("RAPL zone {name} is not there: its limit is not put back")),
                Err(error) => Some(format!("RAPL zone {name}: {error}")),
            }
        };
        let mut failed: Vec<_> = saved.iter().filter_map(put_back).collect();
        if !failed.is_empty() {
            // One of these may be a zone that is not there.
            failed.extend(nameless.iter().map(ToString::to_string));
        }
        failed
    }

    /// Does something with every zone that was there before, even after a failure; the first failure.
    fn each(
        &self,
        original: &BTreeMap<String, RaplCapOriginal>,
        act: impl Fn(&LimitZone, &RaplCapOriginal) -> Result<(), HwError>,
    ) -> Result<(), CapError> {
        let known = |zone| Some((zone, original.get(&LimitZone::name(zone))?));
        let results: Vec<_> = self.zones.iter().filter_map(known).map(|(zone, was)| act(zone, was)).collect();
        Ok(results.into_iter().collect::<Result<(), _>>()?)
    }
}

impl Cap for RaplCap {
    /// By zone name.
    type State = BTreeMap<String, RaplCapOriginal>;

    fn read(&mut self) -> Result<Self::State, CapError> {
        let read = |zone: &LimitZone| Ok((zone.name.clone(), zone.read()?));
        Ok(self.zones.iter().map(read).collect::<Result<_, HwError>>()?)
    }

    /// Every package gets an equal part, raised to the floor and lowered to its maximum.
    fn set(&mut self, watts: Watts, original: &Self::State) -> Result<(), CapError> {
        let part = share_uw(watts, self.zones.len()).max(self.floor_uw);
        self.each(original, |zone, was| zone.limit(part, was))
    }

    fn put_back(&mut self, original: &Self::State) -> Result<(), CapError> {
        self.each(original, LimitZone::put_back)
    }

    fn is_on(now: &Self::State, original: &Self::State) -> bool {
        now.iter().any(|(name, now)| {
            original.get(name).is_some_and(|was| {
                let newly_enabled = now.enabled && !was.enabled;
                real(now.limit_uw).saturating_add(UNIT_UW) < real(was.limit_uw) || newly_enabled
            })
        })
    }
}

impl LimitZone {
    /// `None` if that is no package, or one without limits.
    fn of(zone: &Zone) -> Result<Option<Self>, HwError> {
        if zone.kind != Kind::Package {
            return Ok(None);
        }
        let Some(long) = Constraint::find(&zone.dir, "long_term")? else { return Ok(None) };
        let short = Constraint::find(&zone.dir, "short_term")?;
        let enabled_file = zone.dir.join("enabled");
        Ok(Some(Self { name: zone.name.clone(), long, short, enabled_file }))
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&self) -> Result<RaplCapOriginal, HwError> {
        Ok(RaplCapOriginal {
            limit_uw: read_value(&self.long.limit_file, LIMIT)?,
            window_us: self.long.window()?,
            short_uw: self.short.as_ref().map(Constraint::limit).transpose()?,
            enabled: read_enabled(&self.enabled_file)?,
        })
    }

    /// Limits both constraints, never above what was; the limits first, so that they are never enabled with
    /// others.
    fn limit(&self, uw: u64, was: &RaplCapOriginal) -> Result<(), HwError> {
        let before = |limit: u64| if was.enabled { real(limit) } else { u64::MAX };
        let uw = uw.min(self.long.most_uw).min(before(was.limit_uw));
        self.long.write(uw)?;
        if let (Some(short), Some(short_was)) = (&self.short, was.short_uw)
            && let Err(error) = short.write(uw.min(short.most_uw).min(before(short_was)))
        {
            // The long window still holds: in seconds, and not in milliseconds.
            warn!(%error, "the short-term RAPL limit could not be lowered: the long-term one alone caps, \
                           and acts later");
        }
        self.enable(true)
    }

    /// The first failure; every part is tried.
    fn put_back(&self, was: &RaplCapOriginal) -> Result<(), HwError> {
        let long = self.long.write(was.limit_uw);
        let window = self.long.put_back_window(was.window_us);
        let short = match (&self.short, was.short_uw) {
            (Some(short), Some(uw)) => short.write(uw),
            _ => Ok(()),
        };
        let enabled = self.enable(was.enabled);
        long.and(short).and(window).and(enabled)
    }

    fn enable(&self, enabled: bool) -> Result<(), HwError> {
        if read_enabled(&self.enabled_file)? == enabled {
            return Ok(());
        }
        write_value(&self.enabled_file, u8::from(enabled)).map_err(locked)?;
        if read_enabled(&self.enabled_file)? != enabled {
            let allowed = format!("{}, as written (is it locked by the BIOS?)", u8::from(enabled));
            return Err(HwError::value(&self.enabled_file, Operation::Verify, !enabled, allowed));
        }
        Ok(())
    }
}

impl Constraint {
    fn find(dir: &Path, name: &str) -> Result<Option<Self>, HwError> {
        for n in 0..CONSTRAINTS {
            let file = |suffix: &str| dir.join(format!("constraint_{n}_{suffix}"));
            let is = optional(read_text(&file("name")))?;
            if is.is_none_or(|is| is.trim() != name) {
                continue;
            }
            let limit_file = file("power_limit_uw");
            // Firmware that does not tell its maximum says 0, or gives no value at all.
            let told = match read_value(&file("max_power_uw"), LIMIT) {
                Err(e) if e.is_missing() || e.is(&[nix::errno::Errno::ENODATA]) => None,
                told => Some(told?).filter(|most| *most >= LEAST_UW),
            };
            // Never the limit as it stands: it may be a cap that a previous instance has left.
            let most_uw = told.unwrap_or(MOST_UW).min(MOST_UW);
            return Ok(Some(Self { limit_file, window_file: file("time_window_us"), most_uw }));
        }
        Ok(None)
    }

    fn limit(&self) -> Result<u64, HwError> {
        read_value(&self.limit_file, LIMIT)
    }

    fn window(&self) -> Result<Option<u64>, HwError> {
        optional(read_value(&self.window_file, WINDOW))
    }

    /// Writes a limit that differs. Nothing is written where nothing changes: on a locked package even that
    /// would fail.
    fn write(&self, uw: u64) -> Result<(), HwError> {
        let file = &self.limit_file;
        if self.limit()?.abs_diff(uw) <= UNIT_UW {
            return Ok(());
        }
        // 0 is how firmware says that there is none; only what was there may be written below the least.
        if uw > MOST_UW || (uw < LEAST_UW && uw != 0) {
            let allowed = format!("{LEAST_UW} to {MOST_UW} uW");
            return Err(HwError::value(file, Operation::Write, uw, allowed));
        }
        write_value(file, uw).map_err(locked)?;
        let is = self.limit()?;
        if is.abs_diff(uw) > UNIT_UW {
            let allowed = format!("{uw} uW, as written (is the limit locked by the BIOS?)");
            return Err(HwError::value(file, Operation::Verify, is, allowed));
        }
        Ok(())
    }

    /// A window is not changed here; the hardware keeps it beside the limit, in steps of its own.
    fn put_back_window(&self, was: Option<u64>) -> Result<(), HwError> {
        match (was, self.window()?) {
            (Some(was), Some(is)) if was != is => write_value(&self.window_file, was),
            _ => Ok(()),
        }
    }
}

/// A limit as it holds: 0 is how firmware says that there is none.
fn real(uw: u64) -> u64 {
    if uw == 0 { u64::MAX } else { uw }
}

/// ENODATA is how the powercap class reports every refused write.
fn locked(mut error: HwError) -> HwError {
    if error.is(&[nix::errno::Errno::ENODATA]) {
        error.allowed = "a limit that the BIOS has not locked".into();
    }
    error
}

/// One zone's part of `watts`, in microwatts; nothing for a negative power.
fn share_uw(watts: Watts, zones: usize) -> u64 {
    let milliwatts = u64::try_from(watts.per(zones as u64).milli()).unwrap_or_default();
    milliwatts.saturating_mul(1000)
}

fn read_enabled(path: &Path) -> Result<bool, HwError> {
    match read_text(path)?.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(HwError::value(path, Operation::Read, other, "0 or 1")),
    }
}

#[cfg(test)]
mod tests;
