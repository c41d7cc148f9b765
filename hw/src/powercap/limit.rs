use std::collections::BTreeMap;
use std::path::PathBuf;

use ballast_types::Watts;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{Kind, zones};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{optional, read_text, read_value, write_value};

const LIMIT: &str = "a whole number of microwatts";
/// Constraints a zone may have: long_term, short_term, peak_power; their numbers shift.
const CONSTRAINTS: u32 = 8;
/// The hardware counts in eighths of a watt (or finer): a read-back may differ by that much.
const UNIT_UW: u64 = 125_000;
/// A register holds at most 32767 units: more would wrap to a small limit.
const MOST_UW: u64 = 4_095 * 1_000_000;

/// A zone's limit as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitOriginal {
    /// `constraint_N_power_limit_uw` of `long_term`, in microwatts.
    pub limit_uw: u64,
    /// `enabled`.
    pub enabled: bool,
}

/// This server's own power limit: `long_term` (PL1) of every package.
///
/// The last resort: it slows every core, user-facing ones too. The kernel neither clamps nor refuses
/// a senseless value (it is masked into a register, and a refused write shows as ENODATA), so the
/// range is checked here and every write is read back.
#[derive(Debug)]
pub struct ServerLimit {
    zones: Vec<LimitZone>,
    /// The lowest limit per package, in microwatts.
    floor_uw: u64,
}

#[derive(Debug)]
struct LimitZone {
    name: String,
    limit_file: PathBuf,
    enabled_file: PathBuf,
    /// The highest limit that makes sense, in microwatts.
    most_uw: u64,
    original: LimitOriginal,
}

impl ServerLimit {
    /// Finds the packages that can be limited; `None` if there are none (AMD has no constraints).
    /// Changes nothing. `floor` is the least that all packages together may be limited to.
    ///
    /// # Errors
    /// If a file of a zone is unreadable or garbage, or the floor is not above 1 W per package.
    pub fn find(root: &Root, floor: Watts) -> Result<Option<Self>, HwError> {
        let mut found = Vec::new();
        for zone in zones(root)?.into_iter().filter(|z| z.kind == Kind::Package) {
            let Some(n) = long_term(&zone.dir)? else {
                continue;
            };
            let file = |suffix: &str| zone.dir.join(format!("constraint_{n}_{suffix}"));
            let limit_file = file("power_limit_uw");
            let enabled_file = zone.dir.join("enabled");
            let original = LimitOriginal {
                limit_uw: read_value(&limit_file, LIMIT)?,
                enabled: read_enabled(&enabled_file)?,
            };
            // Firmware that does not tell its maximum says 0.
            let most = optional(read_value(&file("max_power_uw"), LIMIT))?.filter(|most| *most > 0);
            let most_uw = most.unwrap_or(original.limit_uw).min(MOST_UW);
            found.push(LimitZone { name: zone.name, limit_file, enabled_file, most_uw, original });
        }
        if found.is_empty() {
            return Ok(None);
        }
        let floor_uw = share_uw(floor, found.len());
        if floor_uw < 1_000_000 {
            let dir = root.path("sys/class/powercap");
            let allowed = "a floor of at least 1 W per package";
            return Err(HwError::value(&dir, Operation::Write, floor, allowed));
        }
        Ok(Some(Self { zones: found, floor_uw }))
    }

    /// What must be put back at the end, by zone name.
    #[must_use]
    pub fn originals(&self) -> BTreeMap<String, LimitOriginal> {
        self.zones.iter().map(|z| (z.name.clone(), z.original)).collect()
    }

    /// Takes over what an earlier life had found; tells whether it left a limit on.
    ///
    /// # Errors
    /// If a zone cannot be read.
    pub fn adopt(&mut self, saved: &BTreeMap<String, LimitOriginal>) -> Result<bool, HwError> {
        for zone in &mut self.zones {
            if let Some(original) = saved.get(&zone.name) {
                zone.original = *original;
            }
        }
        self.is_on()
    }

    /// Limits all packages together to `watts`, an equal part each.
    ///
    /// A part is raised to the floor, and lowered to the maximum and to the limit of before.
    ///
    /// # Errors
    /// If the kernel refuses, or the value read back is another one (locked by the BIOS).
    pub fn set(&mut self, watts: Watts) -> Result<(), HwError> {
        let part = share_uw(watts, self.zones.len());
        for zone in &self.zones {
            let before = if zone.original.enabled { zone.original.limit_uw } else { u64::MAX };
            zone.write(part.max(self.floor_uw).min(zone.most_uw).min(before), true)?;
        }
        Ok(())
    }

    /// Puts every limit back. Every zone is tried, even after a failure.
    ///
    /// # Errors
    /// The first failure.
    pub fn release(&mut self) -> Result<(), HwError> {
        let results: Vec<_> =
            self.zones.iter().map(|z| z.write(z.original.limit_uw, z.original.enabled)).collect();
        results.into_iter().collect()
    }

    /// Whether any package is limited below what it was before.
    ///
    /// # Errors
    /// If a zone cannot be read.
    pub fn is_on(&self) -> Result<bool, HwError> {
        for zone in &self.zones {
            let limit: u64 = read_value(&zone.limit_file, LIMIT)?;
            let newly_enabled = read_enabled(&zone.enabled_file)? && !zone.original.enabled;
            if limit.saturating_add(UNIT_UW) < zone.original.limit_uw || newly_enabled {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl LimitZone {
    /// Writes what differs; the limit first, so that it is never enabled with another one.
    ///
    /// Nothing is written where nothing changes: on a locked package even that would fail.
    fn write(&self, limit_uw: u64, enabled: bool) -> Result<(), HwError> {
        let mut is: u64 = read_value(&self.limit_file, LIMIT)?;
        if is.abs_diff(limit_uw) > UNIT_UW {
            write_value(&self.limit_file, limit_uw)?;
            is = read_value(&self.limit_file, LIMIT)?;
        }
        if is.abs_diff(limit_uw) > UNIT_UW {
            let allowed = format!("{limit_uw} uW, as written (is the limit locked by the BIOS?)");
            return Err(HwError::value(&self.limit_file, Operation::Verify, is, allowed));
        }
        if read_enabled(&self.enabled_file)? == enabled {
            return Ok(());
        }
        write_value(&self.enabled_file, u8::from(enabled))?;
        if read_enabled(&self.enabled_file)? != enabled {
            warn!(file = %self.enabled_file.display(), "stays as it is: locked by the BIOS");
            let allowed = format!("{}, as written", u8::from(enabled));
            return Err(HwError::value(&self.enabled_file, Operation::Verify, !enabled, allowed));
        }
        Ok(())
    }
}

/// One zone's part of `watts`, in microwatts; nothing for a negative power.
fn share_uw(watts: Watts, zones: usize) -> u64 {
    let milliwatts = u64::try_from(watts.per(zones as u64).milli()).unwrap_or_default();
    milliwatts.saturating_mul(1000)
}

fn long_term(dir: &std::path::Path) -> Result<Option<u32>, HwError> {
    for n in 0..CONSTRAINTS {
        let name = optional(read_text(&dir.join(format!("constraint_{n}_name"))))?;
        if name.is_some_and(|name| name.trim() == "long_term") {
            return Ok(Some(n));
        }
    }
    Ok(None)
}

fn read_enabled(path: &std::path::Path) -> Result<bool, HwError> {
    match read_text(path)?.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(HwError::value(path, Operation::Read, other, "0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const FLOOR: Watts = Watts::from_whole(100);

    fn dir(package: usize) -> String {
        format!("sys/class/powercap/intel-rapl:{package}")
    }
    fn tree() -> Tree {
        let tree = Tree::new();
        for package in 0..2 {
            tree.folder(
                &dir(package),
                &[
                    ("name", &format!("package-{package}")),
                    ("enabled", "1"),
                    ("constraint_0_name", "short_term"),
                    ("constraint_0_power_limit_uw", "200000000"),
                    ("constraint_1_name", "long_term"),
                    ("constraint_1_power_limit_uw", "165000000"),
                    ("constraint_1_max_power_uw", "165000000"),
                ],
            );
        }
        tree
    }
    fn limit(tree: &Tree) -> ServerLimit {
        ServerLimit::find(tree.root(), FLOOR).unwrap().unwrap()
    }
    fn written(tree: &Tree) -> [String; 2] {
        [0, 1].map(|p| {
            tree.read(&format!("{}/constraint_1_power_limit_uw", dir(p))).trim().to_owned()
        })
    }

    #[test]
    fn each_package_gets_its_part_within_floor_and_maximum() {
        for (watts, each) in [
            (240, "120000000"),
            (60, "50000000"),
            (-5, "50000000"),
            (0, "50000000"),
            (9999, "165000000"),
        ] {
            let tree = tree();
            let mut limit = limit(&tree);
            assert!(!limit.is_on().unwrap());
            limit.set(Watts::from_whole(watts)).unwrap();
            assert_eq!(written(&tree), [each, each], "{watts}");
            assert_eq!(
                tree.read(&format!("{}/constraint_0_power_limit_uw", dir(0))),
                "200000000\n"
            );
            assert_eq!(limit.is_on().unwrap(), watts < 330);
            limit.release().unwrap();
            assert_eq!(written(&tree), ["165000000", "165000000"]);
            assert!(!limit.is_on().unwrap());
        }
    }

    #[test]
    fn a_limit_that_was_disabled_is_disabled_again() {
        let tree = tree();
        tree.write(&format!("{}/enabled", dir(0)), "0\n");
        let mut limit = limit(&tree);
        limit.set(Watts::from_whole(240)).unwrap();
        assert_eq!(tree.read(&format!("{}/enabled", dir(0))), "1\n");
        assert!(limit.is_on().unwrap());
        limit.release().unwrap();
        assert_eq!(tree.read(&format!("{}/enabled", dir(0))), "0\n");
    }

    #[test]
    fn a_restart_adopts_the_originals() {
        let tree = tree();
        let mut first = limit(&tree);
        let saved = first.originals();
        first.set(Watts::from_whole(200)).unwrap();
        let mut second = limit(&tree);
        assert!(second.adopt(&saved).unwrap());
        second.release().unwrap();
        assert_eq!(written(&tree), ["165000000", "165000000"]);
        assert!(!limit(&tree).adopt(&saved).unwrap());
    }

    #[test]
    fn a_limit_that_does_not_take_is_an_error() {
        // A symbolic link to a file that swallows every write, as a locked register does.
        let tree = tree();
        let mut limit = limit(&tree);
        let file = format!("{}/constraint_1_power_limit_uw", dir(0));
        tree.remove(&file);
        std::os::unix::fs::symlink("/dev/null", tree.root().path(&file)).unwrap();
        assert!(limit.set(Watts::from_whole(240)).unwrap_err().to_string().contains(&file));
        // Reads of this file fail as well: it cannot be told what is in force.
        assert!(limit.release().is_err());
        // The other package was put back all the same.
        assert_eq!(tree.read(&format!("{}/constraint_1_power_limit_uw", dir(1))), "165000000\n");
    }

    #[test]
    fn a_release_of_what_was_never_set_writes_nothing() {
        let tree = tree();
        let file = format!("{}/constraint_1_power_limit_uw", dir(0));
        tree.write(&file, "165000000");
        limit(&tree).release().unwrap();
        // A write would have ended in a newline.
        assert_eq!(tree.read(&file), "165000000");
    }

    #[test]
    fn without_constraints_there_is_no_limit() {
        let tree = Tree::new();
        assert!(ServerLimit::find(tree.root(), FLOOR).unwrap().is_none());
        tree.folder(&dir(0), &[("name", "package-0"), ("enabled", "1")]);
        assert!(ServerLimit::find(tree.root(), FLOOR).unwrap().is_none());
    }

    #[test]
    fn garbage_is_an_error_that_names_its_file() {
        for (file, bad) in [
            ("enabled", "maybe"),
            ("enabled", ""),
            ("constraint_1_power_limit_uw", "-1"),
            ("constraint_1_max_power_uw", "x"),
        ] {
            let tree = tree();
            tree.write(&format!("{}/{file}", dir(1)), bad);
            let e = ServerLimit::find(tree.root(), FLOOR).unwrap_err();
            assert!(e.to_string().contains(file), "{e}");
        }
        assert!(ServerLimit::find(tree().root(), Watts::ZERO).is_err());
    }
}
